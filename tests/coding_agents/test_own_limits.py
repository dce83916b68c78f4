"""What agents do to a resumed conversation by themselves: shown without our hook.

The comparisons of `test_story` leave out what an agent adds, and what it cannot resume. A test
fails here once an agent behaves otherwise; then `Program.filler`, `Program.doubles_results` or
`Program.resumes` goes, too, or `QwenCode.has_written`.
"""

import json
import os
import signal
import subprocess
from threading import Event

import pytest

from tests.coding_agents.programs import Cline, OpenCode, Program, QwenCode
from tests.coding_agents.terminal import Terminal, wait_until

pytestmark = pytest.mark.slow

RESULT = "42 files"
COMMAND = "printf '%s files' 42"
"""Its text is not its result, and has no `$(`, which Gemini CLI refuses."""
SLOW_DISK = """\
require("fs/promises").open(__filename).then(async (file) => {
  const kind = Object.getPrototypeOf(file), sync = kind.sync;
  kind.sync = async function () {
    await new Promise((done) => setTimeout(done, 2000));
    return sync.call(this);
  };
  await file.close();
});
"""
"""Lets a program that runs on Node wait for its disk whenever it syncs a file."""
_STANDS_STILL = 15
"""Seconds in which an agent that does not wait would have sent its prompt."""


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
    with subprocess.Popen(
        command, cwd=program.project, env=program.environment, start_new_session=True
    ) as agent:
        asked.wait()
        wait_until(lambda: has_result(program))
        os.killpg(agent.pid, signal.SIGKILL)  # Gemini CLI is a process and its child
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


def test_lines_that_are_lost_with_the_window(program: Program) -> None:
    """Qwen Code syncs its transcript after each line; closed, it waits only seconds for them."""
    if not isinstance(program, QwenCode):
        return
    program.command("hook", "uninstall", program.agent)
    slow = program.home / "slow.cjs"
    slow.write_text(SLOW_DISK)
    program.on_terminal = True
    program.model.script = [(program.ask(COMMAND),), ("Counted.",)]
    environment = {**program.environment, "NODE_OPTIONS": f"--require {slow}"}
    terminal = Terminal(program.start("count"), program.project, environment)
    try:
        terminal.wait_for(lambda: b"Counted." in terminal.drawn)
    finally:
        terminal.close()
    program.on_terminal = False
    program.run(program.resume("go on"))
    heard = program.model.heard[-1]
    assert heard[0] == ("user", "count")
    assert heard[-1] == ("user", "go on")
    assert ("model", "Counted.") not in heard


def test_a_session_that_is_not_resumed_headless(program: Program) -> None:
    """Cline has an option to resume a session, but only for its terminal user interface."""
    assert program.resumes != isinstance(program, Cline)
    if not isinstance(program, Cline):
        return
    program.command("hook", "uninstall", program.agent)
    program.model.script = [("done",), ("continued",)]
    program.run(program.start("count the files"))
    (found,) = json.loads(program.run([str(program.program), "history", "--json"]))
    program.session = found["sessionId"]
    with pytest.raises(AssertionError, match="interactive mode is unsupported"):
        program.run(program.resume("go on"))
    assert len(program.model.heard) == 1


def test_a_prompt_that_waits_for_the_end_of_the_input(program: Program) -> None:
    """`opencode run` reads its standard input to the end, and sends nothing before."""
    if not isinstance(program, OpenCode):
        return
    program.command("hook", "uninstall", program.agent)
    program.model.script = [("done",)]
    with subprocess.Popen(
        program.start("count the files"),
        cwd=program.project,
        env=program.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as agent:
        assert agent.stdin is not None
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(_STANDS_STILL)
        assert program.model.heard == []
        agent.stdin.close()
        assert agent.wait() == 0
    assert len(program.model.heard) == 1
