"""Claude Code on a terminal: what is saved, what is noticed, and what the resumed model hears."""

import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.coding_agents.programs import ClaudeCode, Program

pytestmark = [pytest.mark.slow, pytest.mark.long]


class Terminal:
    """An agent on a terminal that a test types on."""

    def __init__(self, program: Program, command: "list[str]") -> None:
        self._main, other = pty.openpty()
        self._drawn = b""
        environment = {**program.environment, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command,
            cwd=program.project,
            env=environment,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)

        # Read all the time: an agent whose screen is full stands still.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the agent has ended
            while True:
                self._drawn += os.read(self._main, 1 << 16)

    def wait_for(self, condition: "Callable[[], Any]", seconds: float = 120) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self._drawn[-4000:].decode(errors="replace")
            time.sleep(0.05)

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        os.close(self._main)


def rows_after_calls(program: Program) -> "list[dict[str, Any]]":
    """Return the rows after tool calls, newest first; none if nothing was saved yet."""
    try:
        rows = program.command("rewind", "-N", "100")["checkpoints"]
    except AssertionError:
        return []
    return [row for row in rows if row["event"] == "PostToolUse"]


def test_a_session_on_a_terminal(program: Program) -> None:
    if not isinstance(program, ClaudeCode):
        return
    program.accept_terms()
    begin = ["claude", "--dangerously-skip-permissions", "--model", "claude-sonnet-4-5"]
    asked = [program.ask(f"echo {number} > f{number}.txt") for number in (1, 2)]
    program.model.script = [(asked[0],), (asked[1],), ("done",)]
    terminal = Terminal(program, [*begin, "--session-id", program.session, "make two files"])
    try:
        # Other rows are there only if the transcript was written in time: the model is fast.
        terminal.wait_for(
            lambda: len(program.model.heard) == 3 and len(rows_after_calls(program)) == 2
        )
        row = rows_after_calls(program)[1]
        with pytest.raises(AssertionError, match="has this session open"):
            program.command("rewind", row["id"], "--yes")
    finally:
        terminal.close()
    heard = list(program.model.heard)
    program.command("rewind", row["id"], "--yes")  # it was killed, and is not running any more
    assert program.files() == ["f1.txt"]
    program.model.heard.clear()
    terminal = Terminal(program, [*begin, "--resume", program.session, "continue from here"])
    try:
        terminal.wait_for(lambda: program.model.heard)
    finally:
        terminal.close()
    said = program.said(program.model.heard[0])
    assert said == [*program.said(heard[1]), ("user", "continue from here")]
