"""The hook keeps nothing of the agent's, waits no longer than it may, and saves what it can."""

import errno
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from agent_checkpoint.agents.session_lock import hold_session_lock
from agent_checkpoint.agents.session_note import SessionNote, read_note
from tests.cli.scene import Scene, scene, wait_for
from tests.cli.test_hook import CLAUDE

BOTH = ("served", "direct") if Path("/proc/self/ns/mnt").exists() else ("direct",)


@pytest.fixture(params=BOTH)
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, request.param) as found:
        yield found


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        yield found


@contextmanager
def locked(work: Scene) -> Iterator[None]:
    """Keep the store for ourselves."""
    with (work.home / "store" / ".lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def started(work: Scene, text: bytes = b"", **options: object) -> "subprocess.Popen[bytes]":
    process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, "-I", "-S", str(work.client), "claude-code"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=work.workspace,
        **{"env": work.environment, **options},
    )
    if text:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.flush()
    return process


def calls(work: Scene) -> list[str]:
    return [row["tags"][-1] for row in reversed(work.history(CLAUDE))]


def savers(work: Scene) -> list[int]:
    """The processes of hooks that are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")
            own = f"AGENT_CHECKPOINT_HOME={work.home}".encode()
            if os.fsencode(work.client) in command and own in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def note_of(work: Scene) -> SessionNote:
    with work.manager() as manager:
        head = manager.store.head(CLAUDE)
        assert head is not None
        note = read_note(manager.store, head)
    assert note is not None
    return note


@pytest.mark.slow
def test_nothing_of_the_agent_is_kept_open(work: Scene) -> None:
    """A pipe that the agent's shell has open ends with the hook, whoever saves goes on."""
    work.hook("claude-code", work.event("claude-code.post-tool-use"))
    if work.way == "served":
        work.command("hook", "stop")
        wait_for(lambda: not work.servers())
    event = work.event("claude-code.post-tool-use", tool_use_id="toolu_2")
    for number in range(20):
        (work.workspace / f"more{number}").write_text("x")
    reading, writing = os.pipe()
    high = fcntl.fcntl(writing, fcntl.F_DUPFD, 700)
    seconds = "0.7" if work.way == "direct" else "30"
    with locked(work) if work.way == "direct" else nullcontext():
        environment = {**work.environment, "AGENT_CHECKPOINT_HOOK_SECONDS": seconds}
        process = started(work, pass_fds=(writing, high), env=environment)
        os.close(writing)
        os.close(high)
        process.communicate(json.dumps(event).encode(), timeout=30)
        assert process.returncode == 0
        assert select.select([reading], [], [], 5)[0], "somebody has it open"
        assert os.read(reading, 1) == b""
        os.close(reading)
        assert savers(work) != []
    wait_for(lambda: calls(work)[-1] == "toolu_2")


def test_what_takes_long_is_finished_behind_the_agent(direct: Scene) -> None:
    direct.tool(2)
    with locked(direct):
        for number in (3, 4, 5):
            direct.say(number)
            event = direct.event("claude-code.post-tool-use", tool_use_id=f"toolu_{number}")
            before = time.monotonic()
            direct.hook("claude-code", event, AGENT_CHECKPOINT_HOOK_SECONDS="0.5")
            assert time.monotonic() - before < 3
        if Path("/proc/self/cmdline").exists():  # those who wait for the first one give up
            wait_for(lambda: len(savers(direct)) == 1)
    wait_for(lambda: calls(direct) == ["toolu_2", "toolu_3"])
    assert "continues in the background" in direct.log
    direct.tool(6)
    assert calls(direct)[-1] == "toolu_6"
    assert not list((direct.home / "hook").glob("*.lock"))


@pytest.mark.skipif("served" not in BOTH, reason="Linux only")
def test_without_a_lock_nobody_goes_on(direct: Scene) -> None:
    direct.tool(2)
    (direct.home / "hook").chmod(0o755)
    with locked(direct):
        event = direct.event("claude-code.post-tool-use", tool_use_id="toolu_3")
        direct.hook("claude-code", event, AGENT_CHECKPOINT_HOOK_SECONDS="0.7")
        wait_for(lambda: not savers(direct))
    direct.tool(4)
    assert calls(direct) == ["toolu_2", "toolu_4"]


@pytest.mark.skipif("served" not in BOTH, reason="Linux only")
def test_one_limit_is_for_all_steps(tmp_path: Path) -> None:
    with scene(tmp_path, "served") as work:
        work.tool(2)
        (server,) = work.servers()
        os.kill(server, signal.SIGSTOP)
        try:
            with locked(work):
                event = work.event("claude-code.post-tool-use", tool_use_id="toolu_3")
                before = time.monotonic()
                work.hook("claude-code", event, AGENT_CHECKPOINT_HOOK_SECONDS="1.5")
                assert time.monotonic() - before < 2.4
        finally:
            os.kill(server, signal.SIGCONT)
        wait_for(lambda: calls(work)[-1] == "toolu_3")


def test_an_input_that_never_ends_is_not_waited_for(direct: Scene) -> None:
    direct.environment["AGENT_CHECKPOINT_HOOK_SECONDS"] = "0.5"
    process = started(direct, b'{"session_id": ')
    assert process.wait(timeout=20) == 0
    process.communicate()
    assert "after 15 bytes" in direct.log


def test_an_event_that_is_too_long_is_read_to_its_end(direct: Scene) -> None:
    process = started(direct)
    assert process.stdin is not None
    piece = b"x" * (1 << 20)
    for _ in range(70):
        process.stdin.write(piece)  # a pipe that was closed would raise
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert "more than 67,108,864 bytes" in direct.log


@pytest.mark.parametrize("said", ["nan", "-1", "inf", "x", "1e400"])
def test_a_limit_that_makes_no_sense(said: str, direct: Scene) -> None:
    event = direct.event("claude-code.post-tool-use")
    direct.hook("claude-code", event, AGENT_CHECKPOINT_HOOK_SECONDS=said)
    wait_for(lambda: len(direct.history(CLAUDE)) == 1)


def test_a_pipe_in_the_place_of_the_record(direct: Scene) -> None:
    log = direct.home / "hook" / "hook.log"
    log.parent.mkdir(mode=0o700, parents=True)
    os.mkfifo(log)
    direct.hook("claude-code", b"no json")
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    direct.hook("claude-code", b"no json")
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_what_is_made_is_the_users_alone(work: Scene) -> None:
    """Also if the umask takes nothing away."""
    del work.environment["AGENT_CHECKPOINT_HOME"]
    home = work.place / "home"
    work.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    process = started(work, preexec_fn=lambda: os.umask(0))
    process.communicate(b"no json", timeout=30)
    assert (home / ".local/state/agent-checkpoint/hook.log").exists()
    made = [path for path in home.rglob("*") if path.is_dir()]
    assert [str(path) for path in made if path.stat().st_mode & 0o077] == []
    work.command("hook", "stop")


def test_a_transcript_that_cannot_be_read_keeps_no_file_from_being_saved(direct: Scene) -> None:
    place = direct.place
    large = place / "large.jsonl"
    with large.open("wb") as file:
        file.truncate(300 << 20)
    os.mkfifo(place / "fifo")
    os.symlink("loop", place / "loop")
    paths = {
        str(large): "limit: 268,435,456",
        str(place / "fifo"): "is not a regular file",
        str(place): "(Is a directory)",
        "/dev/zero": "is not a regular file",
        str(place / "loop"): "Cannot read the transcript",
        f"{place}/\ud800.jsonl": "not a valid file name",
        f"{place}/{'x' * 300}": "Cannot read the transcript",
    }
    for number, (path, why) in enumerate(paths.items()):
        (direct.workspace / "src" / "app.py").write_text(f"print({number})\n")
        event = direct.event(
            "claude-code.post-tool-use", tool_use_id=f"t{number}", transcript_path=path
        )
        direct.hook("claude-code", event)
        row, *older = direct.history(CLAUDE)
        assert (len(older), row["parts"]) == (number, ["workspace", "hook"])
        note = note_of(direct)
        assert note.trouble is not None
        assert why in note.trouble
        assert why in direct.log.splitlines()[-1]
    direct.hook("claude-code", {**event, "tool_use_id": "again"})
    assert len(direct.log.splitlines()) == len(paths)  # told once
    told = direct.command("rewind", "@1", "--yes")
    assert "The checkpoint has no conversation, so it is not rewound: " in told
    assert (direct.workspace / "src" / "app.py").read_text() == "print(0)\n"
    direct.tool(9)  # with a transcript that is one
    assert note_of(direct).trouble is None
    assert direct.history(CLAUDE)[0]["parts"] == ["workspace", "transcript", "hook"]


def test_a_lock_that_cannot_be_made_keeps_nothing_from_being_saved(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr("agent_checkpoint.agents.session_lock.try_lock", read_only)
    entered = False
    with hold_session_lock("key"):
        entered = True
    assert entered
