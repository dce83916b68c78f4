"""On a terminal: a session that is open is not rewound."""

import pytest

from tests.coding_agents.programs import Program
from tests.coding_agents.terminal import Terminal

pytestmark = pytest.mark.slow


def test_a_session_that_is_open(program: Program) -> None:
    if not program.rewinds_conversation:
        return
    program.on_terminal = True
    program.accept_terms()
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    terminal = Terminal(program.start("make a file"), program.project, program.environment)
    try:
        terminal.wait_for(lambda: len(program.model.heard) == 2)
        row = next(row for row in program.rows() if row["event"] in ("PostToolUse", "AfterTool"))
        with pytest.raises(AssertionError, match="has this session open"):
            program.command("rewind", row["id"], "--yes")
    finally:
        terminal.close()
    program.command("rewind", row["id"], "--yes")  # it has ended
    assert program.files() == ["f1.txt"]
