"""On a terminal, and elsewhere: colours, questions, progress, and their absence."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_checkpoint.cli.output import Output
from tests.cli.world import opened, run_process

pytest.importorskip("rich")
ESCAPE = "\x1b["


def on_terminal(
    *typed: object, at: Path, answer: str = "", columns: int = 80, **env: str
) -> "tuple[int, str]":
    """Run the command on a terminal of its own; return the exit status and what was seen."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    given = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "COLUMNS", "CI")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_checkpoint", *map(str, typed)],
        cwd=at,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**given, "TERM": "xterm-256color", "PYTHONUTF8": "1", **env},
        start_new_session=True,
    )
    os.close(slave)
    seen, until = b"", time.monotonic() + 60
    if answer:
        os.write(master, f"{answer}\n".encode())
    while time.monotonic() < until:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        elif process.poll() is not None:
            break
    status = process.wait(timeout=10)
    os.close(master)
    return status, seen.decode(errors="replace")


def test_a_terminal_has_colours_and_a_pipe_has_none(repo: Path) -> None:
    for typed in (["log"], ["keys"], ["diff", "@1", "@2"], ["show"]):
        status, seen = on_terminal(*typed, at=repo)
        assert status == 0
        assert ESCAPE in seen, typed
        assert ESCAPE not in run_process(*typed, at=repo).out


def test_no_color_is_respected(repo: Path) -> None:
    _, seen = on_terminal("log", at=repo, NO_COLOR="1")
    assert "@2" in seen
    assert "\x1b[3" not in seen
    _, seen = on_terminal("log", at=repo, TERM="dumb")
    assert ESCAPE not in seen


def test_lines_are_cut_on_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    with opened() as manager:
        manager.save("run", {"x": 1}, label="long " * 100)
    _, seen = on_terminal("log", "run", at=tmp_path, columns=60, NO_COLOR="1")
    import re

    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    assert max(len(line) for line in plain.splitlines()) <= 60
    assert run_process("log", "run", at=tmp_path).out.count("long ") >= 99


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 4), ("", 4)])
def test_a_person_is_asked(repo: Path, answer: str, status: int) -> None:
    found, seen = on_terminal("restore", "@1", at=repo, answer=answer or "\n")
    assert "[y/N]" in seen
    assert found == status
    restored = (repo / "app.py").read_text() == "print('hello')\n"
    assert restored == (status == 0)


def test_progress_is_not_in_the_output(repo: Path) -> None:
    ran = run_process("verify", at=repo)
    assert ran.err == ""
    status, seen = on_terminal("verify", at=repo)
    assert status == 0
    assert "No problems found" in seen


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
@pytest.mark.parametrize(
    ("verb", "words"),
    [("stats", "Counting"), ("gc", "Marking reachable objects"), ("verify", "Verifying")],
)
def test_long_work_is_counted_on_a_terminal(repo: Path, verb: str, words: str, term: str) -> None:
    """TERM=dumb takes the way of an installation without rich, too."""
    _, seen = on_terminal(verb, at=repo, columns=200, TERM=term)
    assert re.search(rf"{words}: \d+ checkpoints?, \d+ objects?", seen)
    assert seen.index(words) < seen.index(f"{words}: ")  # shown before anything was read


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_files_are_counted_on_a_terminal(repo: Path, term: str) -> None:
    (repo / "app.py").write_text("broken")
    (repo / "new").write_text("x" * 1170)
    _, seen = on_terminal("save", at=repo, columns=200, TERM=term)
    assert re.search(r"Saving: \d files, 1\.2 kB", seen)
    _, seen = on_terminal("restore", "@1", "--yes", at=repo, columns=200, TERM=term)
    assert "Restoring: 1 of 1 file" in seen
    assert "files read" not in seen.partition("Restoring")[2]
    place = repo.parent / "fork"
    _, seen = on_terminal("fork", ".", "try", "--into", place, at=repo, columns=200, TERM=term)
    assert "Forking: 2 of 2 files" in seen


@pytest.mark.parametrize("verb", ["stats", "gc", "verify"])
def test_nothing_is_counted_beside_a_pipe(repo: Path, verb: str) -> None:
    master, slave = pty.openpty()
    try:
        command = [sys.executable, "-m", "agent_checkpoint", verb, "--json"]
        env = {**os.environ, "TERM": "xterm-256color"}
        done = subprocess.run(
            command,
            cwd=repo,
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=slave,
            env=env,
            timeout=60,
        )
        assert done.returncode == 0
        assert json.loads(done.stdout)
        assert select.select([master], [], [], 0)[0] == []
    finally:
        os.close(slave)
        os.close(master)


def test_who_says_no_is_not_told_how_to_say_yes(repo: Path) -> None:
    status, seen = on_terminal("restore", "@1", "app.py", at=repo, answer="n", columns=200)
    assert status == 4
    assert f"Restore app.py in {repo.resolve()} from @1?" in seen
    assert "Nothing was changed." in seen
    assert "--yes" not in seen
    assert "--yes" in run_process("restore", "@1", at=repo).out


def test_now_is_seen_beside_a_long_label(repo: Path) -> None:
    assert run_process("save", "-m", "long " * 100, at=repo).status == 0
    _, seen = on_terminal("log", at=repo, columns=60, NO_COLOR="1")
    assert "← now" in seen


def test_a_long_plan_is_cut_on_a_terminal_alone(repo: Path) -> None:
    for number in range(40):
        (repo / f"file-{number}").write_text("x")
    _, seen = on_terminal("restore", "@1", "--dry-run", at=repo, columns=200, NO_COLOR="1")
    assert "1 file to write, 40 to delete" in seen
    assert seen.count("  delete file-") == 15
    assert "  … and 25 more to delete" in seen
    told = run_process("restore", "@1", "--dry-run", at=repo).out
    assert told.count("  delete file-") == 40


def test_huge_values_are_cut_on_a_terminal_alone(tmp_path: Path) -> None:
    with opened() as manager:
        manager.save("run", {"text": "y" * 100_000})
        for number in range(40):
            manager.fork("run", f"try-{number}")
    _, seen = on_terminal("show", "run", at=tmp_path)
    assert "yyy" in seen
    assert len(seen) < 5000
    assert "y" * 100_000 in run_process("show", "run", at=tmp_path).out
    _, seen = on_terminal("log", "run", at=tmp_path)
    assert seen.count("Also forked at @1") == 20
    assert "and 13 more" in seen


@pytest.mark.slow
def test_bytes_are_not_for_a_terminal(repo: Path) -> None:
    (repo / "image").write_bytes(b"\x89PNG\0\0")
    assert run_process("save", at=repo).status == 0
    status, seen = on_terminal("show", "@3", "image", at=repo)
    assert status == 2
    assert "> FILE" in seen
    (repo / "evil").write_bytes(b"\x1b[31mred\n")
    assert run_process("save", at=repo).status == 0
    status, seen = on_terminal("show", "@4", "evil", at=repo, NO_COLOR="1")
    assert (status, "\\x1b[31mred" in seen) == (0, True)


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_a_table_breaks_at_words(tmp_path: Path, term: str) -> None:
    place = tmp_path / "a-directory-with-a-long-name" / "and-another-one-below-it"
    place.mkdir(parents=True)
    (place / "file").write_text("x")
    run_process("save", at=place)
    key = "investigate the failing integration tests of payments"
    with opened() as manager:
        manager.save(key, {"x": 1})
    status, seen = on_terminal("keys", at=tmp_path, TERM=term)
    assert status == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen).replace("\r", "").splitlines()
    assert all(len(line) <= 80 for line in lines)
    words = " ".join(lines).split()
    assert set(key.split()) <= set(words)


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_every_column_keeps_its_words(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "80")
    text = "investigate integration payments"
    path = "/home/someone/projects/payment-service/checkout/frontend/components"
    stream = Terminal()
    Output(stream).table(["key", "when", "note", "place"], [[text, "3 min ago", text, path]])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert all(len(line) <= 80 for line in lines)
    words = " ".join(lines).split()
    assert set(text.split()) <= set(words)
    for name in path.split("/"):
        assert any(name in line for line in lines), lines
