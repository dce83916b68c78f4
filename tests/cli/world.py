"""What the tests of the command share: running it, and stores and directories that are real."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, Session, Suspended, tool
from agent_checkpoint.cli.main import main


class Ran(NamedTuple):
    """What came of a command."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        data = json.loads(self.out)
        assert data.pop("format_version") == 1
        return data["items"] if list(data) == ["items"] else data


@contextmanager
def inside(place: "Path | None") -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place or before)
    try:
        yield
    finally:
        os.chdir(before)


def run(*typed: object, at: "Path | None" = None, stdin: str = "") -> Ran:
    """Run the command in this process."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    keys = mock.patch.object(sys, "stdin", io.StringIO(stdin))
    with inside(at), redirect_stdout(out), redirect_stderr(err), keys:
        status = main([str(word) for word in typed])
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Ran(status, *texts)


def run_process(*typed: object, at: Path, stdin: str = "", **env: str) -> Ran:
    """Run the command as people do, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "agent_checkpoint", *map(str, typed)],
        cwd=at,
        input=stdin,
        env={**os.environ, "PYTHONUTF8": "1", **env},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class Coder(Checkpointable):
    def __init__(self) -> None:
        self.steps = 0


@tool(effect="irreversible", key=lambda to, **_: to)
def send_mail(to: str, body: str) -> str:
    return "sent"


@tool(effect="reversible", key=lambda order, **_: order, undo=lambda order, **_: None)
def charge(order: str) -> str:
    return "paid"


@tool(effect="irreversible", key=lambda version, **_: version, approve=True)
def publish(version: str, notes: str) -> str:
    return f"published {version}: {notes}"


@tool(effect="irreversible", key=lambda name, **_: name)
def explode(name: str) -> str:
    raise TimeoutError("no answer")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A directory with two files, saved twice: at the second the first file was changed."""
    place = tmp_path / "repo"
    place.mkdir()
    (place / "app.py").write_text("print('hello')\n")
    (place / "notes.md").write_text("first\n")
    assert run("save", at=place).status == 0
    (place / "app.py").write_text("print('better')\n")
    assert run("save", "-m", "better", at=place).status == 0
    return place


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """The directory of the session `fix` with three tasks; @5 is after the first and its mail."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "app.py").write_text("print('hello')\n")
    agent = Coder()
    with Session("fix", agent=agent, workspace=place) as opened:
        for task in opened.tasks(["read", "edit", "tell"]):
            with task:
                agent.steps += 1
                opened.messages.append({"role": "assistant", "content": f"I {task.id} now."})
                (place / f"{task.id}.txt").write_text("done\n")
                opened.save(label=f"wrote {task.id}.txt")
                if task.id == "read":
                    send_mail("ann@example.org", "Hello")
    return place


@pytest.fixture
def request_id() -> str:
    """The id of a request that waits, of the session `release`."""
    try:
        with Session("release"):
            publish("1.2", "Many things.")
    except Suspended as waiting:
        return waiting.approval_id
    raise AssertionError("nobody was asked")


@contextmanager
def opened() -> Iterator[CheckpointManager]:
    """The user's own store, as the library opens it."""
    with CheckpointManager(backend="sqlite") as manager:
        yield manager
