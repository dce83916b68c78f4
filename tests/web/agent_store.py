"""A store of sessions of Claude Code, saved by the code of the hook, with their transcripts."""

import json
import os
import time
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.hook.event_saver import EventSaver, Request
from agent_checkpoint.agents.hook.protocol import LOCATION_VARIABLES

SESSION = "0f8c4c2e-6d1b-4b7e-9f53-7a1f7d2b9c10"
KEY = f"claude-code/{SESSION}"
OTHER = "claude-code/other-session"

PRICES = '''"""Prices of the shop."""


def total(items):
    return sum(item.price for item in items)
'''
ROUNDED = PRICES.replace(
    "sum(item.price for item in items)", "round(sum(i.price for i in items), 2)"
)
TEST = """from shop.prices import total


def test_nothing_costs_nothing():
    assert total([]) == 0
"""
ANSWER = """I have **rounded** the total to two digits.

## What changed

1. `shop/prices.py`: the sum is rounded
2. `tests/test_prices.py`: a *new* test

```python
return round(sum(i.price for i in items), 2)
```

See [the decimal module](https://docs.python.org/3/library/decimal.html) for exact amounts.
"""


class AgentWork:
    """A directory in which sessions of Claude Code work, and the events that they send."""

    def __init__(self, store: Path, place: Path, key: str = KEY) -> None:
        self.place = place
        self.session = key.partition("/")[2]
        self.key = key
        self.transcript = place.parent / f"{self.session}.jsonl"
        self._store = str(store)
        self._saver = EventSaver(watch=False)
        self._number = 0
        (place / ".git").mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        self._saver.close()

    def prompt(self, text: str) -> None:
        self.event("UserPromptSubmit", prompt=text)
        self.line("user", text)

    def say(self, text: str) -> None:
        self.line("assistant", [{"type": "text", "text": text}])

    def call(self, tool: str, given: Any, files: "dict[str, str]", result: str) -> None:
        """Have a tool called, which writes files; its result stands in the transcript later."""
        self._number += 1
        use = f"toolu_{self._number:03}"
        block = {"type": "tool_use", "id": use, "name": tool, "input": given}
        self.line("assistant", [block])
        self.event("PreToolUse", tool_name=tool, tool_input=given, tool_use_id=use)
        for path, text in files.items():
            (self.place / path).parent.mkdir(parents=True, exist_ok=True)
            (self.place / path).write_text(text)
        self.event("PostToolUse", tool_name=tool, tool_input=given, tool_use_id=use)
        answer = {"type": "tool_result", "tool_use_id": use, "content": result}
        self.line("user", [answer])

    def write(self, path: str, text: str) -> None:
        given = {"file_path": str(self.place / path), "content": text}
        self.call("Write", given, {path: text}, f"File created successfully at: {path}")

    def stop(self) -> None:
        self.event("Stop")

    def line(self, role: str, content: Any) -> None:
        self._number += 1
        message = {"role": role, "content": content}
        if role == "assistant":
            message["id"] = f"msg_{self._number:03}"
        record = {"type": role, "uuid": f"u{self._number}", "message": message}
        with self.transcript.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def event(self, name: str, **more: Any) -> None:
        fields = {"hook_event_name": name, "session_id": self.session, "cwd": str(self.place)}
        event = {**fields, "transcript_path": str(self.transcript), **more}
        places = tuple(os.environ.get(variable, "") for variable in LOCATION_VARIABLES)
        data = json.dumps(event).encode()
        self._saver.save(Request("claude-code", self._store, "", "", places, data))


def make_agent_work(store: Path, place: Path) -> None:
    """Have a session work on two prompts, and another one in the same directory."""
    work = AgentWork(store, place)
    (place / "shop").mkdir()
    (place / "shop" / "prices.py").write_text(PRICES)
    work.prompt("Totals like 19.990000000000002 look odd. Please round them.")
    work.say("I look at how totals are computed.")
    work.call("Bash", {"command": "cat shop/prices.py"}, {}, PRICES)
    given = {
        "file_path": "shop/prices.py",
        "old_string": "sum(item.price for item in items)",
        "new_string": "round(sum(i.price for i in items), 2)",
    }
    work.call("Edit", given, {"shop/prices.py": ROUNDED}, "The file has been updated.")
    work.write("tests/test_prices.py", TEST)
    output = "".join(f"tests/test_prices.py::test_{n} PASSED\n" for n in range(60))
    work.call("Bash", {"command": "python -m pytest -v"}, {}, output)
    work.say(ANSWER)
    work.stop()
    work.prompt("Now write a changelog entry.")
    work.write("CHANGELOG.md", "# Changes\n\n- Totals are rounded to two digits.\n")
    work.say("Done: the entry stands in `CHANGELOG.md`.")
    work.stop()
    work.close()
    time.sleep(0.01)
    other = AgentWork(store, place, OTHER)
    other.prompt("Add a readme.")
    other.write("README.md", "# Shop\n")
    other.say("There is a readme now.")
    other.stop()
    other.close()
