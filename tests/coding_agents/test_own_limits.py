"""What agents add to a resumed conversation by themselves: shown without our hook.

The comparisons of `test_story` leave these items out. A test fails here once an agent stops adding
them; then `Program.filler` or `Program.doubles_results` goes, too.
"""

import subprocess
from threading import Event

import pytest

from tests.coding_agents.programs import Program
from tests.coding_agents.terminal import wait_until

pytestmark = pytest.mark.slow

RESULT = "42 files"
COMMAND = "echo $((6 * 7)) files"


def has_result(program: Program) -> bool:
    """Return whether the agent has written the result of the call anywhere in its home."""
    files = (path for path in program.home.rglob("*.json*") if path.is_file())
    return any(RESULT in path.read_text(errors="replace") for path in files)


def test_the_filler_of_a_conversation_that_ends_with_a_result(program: Program) -> None:
    """Killed before the model has answered, and resumed, it adds a reply of its own."""
    if program.filler is None:
        return
    program.command("hook", "uninstall", program.agent)
    asked, killed = Event(), Event()

    def hold_the_answer(request: int) -> None:
        if request == 1:
            asked.set()
            killed.wait()

    program.model.before_answer = hold_the_answer
    program.model.script = [(program.ask(COMMAND),), ("too late",)]
    command = program.start("count")
    with subprocess.Popen(command, cwd=program.project, env=program.environment) as agent:
        asked.wait()
        wait_until(lambda: has_result(program))
        agent.kill()
    killed.set()
    wait_until(lambda: len(program.model.heard) == 2)
    program.run(program.resume("go on"))
    heard = program.model.heard[-1]
    assert heard.count(program.filler) == 1
    assert heard.index(program.filler) == len(heard) - 2


def test_results_that_are_told_twice(program: Program) -> None:
    """After any resume, each result is there twice."""
    if not program.doubles_results:
        return
    program.command("hook", "uninstall", program.agent)
    program.model.script = [(program.ask(COMMAND),), ("done",)]
    program.run(program.start("count"))
    program.run(program.resume("go on"))
    results = [item for item in program.model.heard[-1] if item[0] == "result"]
    assert len(results) == 2
    assert results[0] == results[1]
