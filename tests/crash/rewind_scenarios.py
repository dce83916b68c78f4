"""What is done to a coding agent's session while it is broken: a rewind, and what follows it."""

import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path

from agent_checkpoint.agents.hook.event_saver import EventSaver, Request
from agent_checkpoint.agents.hook.protocol import LOCATION_VARIABLES
from agent_checkpoint.cli.main import main
from tests.crash.fault_process import say

KEY = "claude-code/killed"
THEN, NOW = 2, 4


def warm_up(scratch):
    """Have everything imported that a run needs."""
    place = Path(scratch)
    make(place)
    _type(place / "place", "@1", "--yes")


def make(place):
    """Make a session of three tool calls: the first is `THEN`, the last is `NOW`."""
    place = Path(place) / "place"
    (place / "project" / "src").mkdir(parents=True)
    (place / "project" / ".git").mkdir()
    (place / "talk").mkdir()
    (place / "talk" / "t.jsonl").write_text('{"n": 1}\n')
    for number in range(THEN, NOW + 1):
        (place / "project" / "src" / "app.py").write_text(f"print({number})\n")
        (place / "project" / f"made-{number}").write_text("x")
        use = f"toolu_{number}"
        call = {"id": f"msg_{number}", "content": [{"type": "tool_use", "id": use, "name": "Bash"}]}
        call["content"][0]["input"] = {}
        _write(place, {"n": number, "type": "assistant", "message": call})
        result = {"content": [{"type": "tool_result", "tool_use_id": use}]}
        line = {"n": -number, "type": "user", "message": result}
        if number < NOW:  # late, as the agent does
            event(place, number)
            _write(place, line)
        else:
            _write(place, line)
            event(place, number)


def _write(place, line):
    with (place / "talk" / "t.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def event(place, number="5"):
    """Have the agent report a tool call."""
    place = Path(place)
    told = {
        "session_id": "killed",
        "transcript_path": str(place / "talk" / "t.jsonl"),
        "cwd": str(place / "project"),
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "true"},
        "tool_use_id": f"toolu_{number}",
    }
    keeper = EventSaver(watch=False)
    places = tuple(os.environ.get(name, "") for name in LOCATION_VARIABLES)
    store = str(place / "store")
    keeper.save(Request("claude-code", store, "", "", places, json.dumps(told).encode()))
    keeper.close()


def rewind(place, *options):
    """Go back to `THEN`, all of it or a part."""
    _type(place, "@1", "--yes", *options)
    say("done")


def look(place):
    """List the tool calls."""
    _type(place)


def _type(place, *options):
    os.chdir(Path(place) / "project")
    os.environ["AGENT_CHECKPOINT_STORE"] = str(Path(place) / "store")
    with redirect_stdout(io.StringIO()):
        assert main(["rewind", *options]) == 0
