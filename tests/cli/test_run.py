"""`run`: a command runs as it always does, and the directory is saved on the way."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.scene import Scene, scene, wait_for


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        yield found


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agent_checkpoint", "run", *arguments]


def start(work: Scene, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command(*arguments), cwd=work.workspace, env=work.environment, **options
    )


def key(work: Scene) -> str:
    return f"workspace:{work.workspace}"


def test_before_on_the_way_and_after(work: Scene) -> None:
    script = "sleep 1; echo one > one; sleep 1.5; echo two > two; echo said; echo bad >&2; exit 7"
    done = subprocess.run(
        command("--every", "0.2", "--", "sh", "-c", script),
        cwd=work.workspace,
        env=work.environment,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (7, b"said\n")
    rows = list(reversed(work.history(key(work))))
    told = f"agent-checkpoint: saved {rows[-1]['id']}; history: agent-checkpoint log {key(work)}\n"
    assert done.stderr.decode() == f"bad\n{told}"
    assert rows[0]["label"].startswith("before sh -c")
    assert rows[-1]["label"].startswith("after sh -c")
    assert 3 <= len(rows) <= 5
    with work.manager() as manager:
        state = manager.state_dict(key(work))
    assert state["run"]["status"] == 7
    assert state["run"]["command"] == ["sh", "-c", script]
    assert state["run"]["seconds"] > 2
    assert sorted("".join(state["output"]["begin"]).split()) == ["bad", "said"]
    work.command("restore", f"{rows[0]['id']}", "--yes")
    assert not (work.workspace / "one").exists()


def test_arguments_after_the_dashes_are_the_commands_own(work: Scene) -> None:
    done = subprocess.run(
        command(
            "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--every", "--", "x"
        ),
        cwd=work.workspace,
        env=work.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "['--every', '--', 'x']\n"


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_options_of_the_command_are_its_own(dashes: list[str], work: Scene) -> None:
    told = work.command("run", "--key", "nightly", *dashes, "ls", "-la", "--color=never")
    assert "app.py" in told or "src" in told
    assert work.keys() == ["nightly"]
    assert "No command given" in work.command("run", *dashes, status=2)


def test_a_key_of_ones_own(work: Scene) -> None:
    work.command("run", "--key", "nightly", "--", "sh", "-c", "echo x > x")
    assert work.keys() == ["nightly"]
    work.command("restore", "nightly~1", "--yes", cwd=work.place)
    assert not (work.workspace / "x").exists()


@pytest.mark.slow
def test_what_cannot_be_run(work: Scene) -> None:
    told = work.command("run", "--", "no-such-command-here", status=127)
    assert told == (
        "agent-checkpoint: Cannot run 'no-such-command-here': No such file or directory.\n"
    )
    assert work.keys() == []  # nothing was run, so nothing is left of it
    (work.workspace / "script").write_text("")
    assert "Permission denied" in work.command("run", "./script", status=126)
    work.command("save")
    (work.workspace / "script").write_text("no program")
    (work.workspace / "script").chmod(0o755)
    work.command("run", "./script", status=126)
    assert len(work.history(key(work))) == 1
    work.command("run", "--every", "0", "--", "true", status=2)


def test_much_output_is_passed_on_and_bounded_in_the_store(work: Scene) -> None:
    script = "import sys; sys.stdout.write('x' * 5_000_000 + 'end')"
    done = subprocess.run(
        command("--", sys.executable, "-c", script),
        cwd=work.workspace,
        env=work.environment,
        capture_output=True,
        timeout=60,
    )
    assert len(done.stdout) == 5_000_003
    with work.manager() as manager:
        output = manager.state_dict(key(work))["output"]
    kept = "".join(output["begin"]) + output["end"]
    assert len(kept) + output["dropped"] == 5_000_003
    assert len(kept) < 1_000_000
    assert kept.endswith("xend")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command(number: signal.Signals, work: Scene) -> None:
    script = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = start(
        work, "--", sys.executable, "-c", script, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.wait(timeout=60) == 42
    process.stdout.close()
    with work.manager() as manager:
        assert manager.state_dict(key(work))["run"]["status"] == 42


def test_the_status_of_a_command_that_was_killed(work: Scene) -> None:
    work.command("run", "--", "sh", "-c", "kill -KILL $$", status=137)


def test_what_is_left_running_is_not_waited_for(work: Scene) -> None:
    started = time.monotonic()
    script = "sleep 30 & echo done"
    process = start(work, "--", "sh", "-c", script, stdout=subprocess.PIPE, start_new_session=True)
    assert process.wait(timeout=25) == 0
    assert process.stdout is not None
    process.stdout.close()
    assert time.monotonic() - started < 25
    os.killpg(process.pid, signal.SIGKILL)


def test_killed_its_history_is_of_use(work: Scene) -> None:
    script = "echo a > a; sleep 2; echo b > b; sleep 60"
    process = start(work, "--every", "0.2", "--", "sh", "-c", script, start_new_session=True)
    wait_for(lambda: len(work.history(key(work))) >= 2)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    os.killpg(process.pid, signal.SIGKILL)  # the command, which has survived
    rows = work.history(key(work))
    with work.manager() as manager:
        assert manager.verify().ok
    work.command("restore", rows[-1]["id"], "--yes")
    assert not (work.workspace / "a").exists()


def test_on_a_terminal_the_command_has_one(work: Scene) -> None:
    script = (
        "import os, sys\n"
        "print(os.isatty(0), os.isatty(1), os.get_terminal_size().columns, flush=True)\n"
        "print('got ' + input('name? '), flush=True)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(work.workspace)
        os.execvpe(sys.executable, command("--", sys.executable, "-c", script), work.environment)
    os.set_blocking(terminal, True)
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 97, 0, 0))
    seen = read_until(terminal, b"name? ")
    assert b"True True" in seen
    os.write(terminal, b"Ada\n")
    read_until(terminal, b"got Ada")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    with work.manager() as manager:
        state = manager.state_dict(key(work))
    assert "got Ada" in "".join(state["output"]["begin"])


def test_ctrl_c_on_a_terminal_is_for_the_command(work: Scene) -> None:
    script = (
        "import time\n"
        "try:\n    print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('bye', flush=True); raise SystemExit(5)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells ignore it for what is in background
        os.chdir(work.workspace)
        os.execvpe(sys.executable, command("--", sys.executable, "-c", script), work.environment)
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    read_until(terminal, b"bye")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen, until = b"", time.monotonic() + 30
    while wanted not in seen:
        assert time.monotonic() < until, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 1 << 16)
    return seen


def test_the_data_is_json(work: Scene) -> None:
    work.command("run", "--", "true")
    told = json.loads(work.command("log", "--json"))
    assert [row["label"] for row in told["checkpoints"]] == ["after true", "before true"]


def test_what_it_leaves_running_neither_delays_the_end_nor_dies_of_it(work: Scene) -> None:
    script = "(while [ ! -e stop ]; do echo tick; sleep 0.05; done; echo ok > alive) & exit 3"
    begun = time.monotonic()
    process = start(work, "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert process.wait(30) == 3
    assert time.monotonic() - begun < 20
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.stdout.read(1 << 16):
        pass
    wait_for(lambda: bool(process.stdout.read(1 << 16)))  # it still prints where it did
    (work.workspace / "stop").touch()
    wait_for(lambda: (work.workspace / "alive").exists())
    process.stdout.close()


def test_on_a_terminal_what_is_typed_ahead_stops_nothing(work: Scene) -> None:
    code = (
        "import os, time, tty; tty.setraw(0)\n"
        "for n in range(30): os.write(1, b'tick'); time.sleep(0.02)\n"
        "os.write(1, b'done')"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(work.workspace)
        words = command("--", sys.executable, "-c", code)
        os.execve(words[0], words, work.environment)
    shown, pasted = b"", b"x" * 400_000
    os.set_blocking(terminal, False)
    until = time.monotonic() + 40
    while b"done" not in shown:
        assert time.monotonic() < until, shown[-200:]
        readable, writable, _ = select.select([terminal], [terminal] if pasted else [], [], 1)
        if readable:
            shown += os.read(terminal, 1 << 16)
        if writable and b"tick" in shown:
            pasted = pasted[os.write(terminal, pasted) :]
        elif writable:
            time.sleep(0.01)
    os.set_blocking(terminal, True)
    os.close(terminal)
    os.waitpid(child, 0)


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["keys", "run -- sh -c 'exit 3'", "purge x"])
def test_closed_files_are_nothing_to_stumble_over(work: Scene, closed: str, words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m agent_checkpoint {words} {closed}"],
        cwd=work.workspace,
        env=work.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in ((3,) if "exit 3" in words else (0, 2, 4))
