"""Trajectories for the tests: sessions whose tools write files, and a coding agent's hook."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Optional

from agent_checkpoint import current_workspace, tool
from agent_checkpoint.agents.hook.event_saver import EventSaver, Request
from agent_checkpoint.agents.hook.protocol import LOCATION_VARIABLES


@tool
def write(name: str, text: str) -> int:
    """Write a file of the current session."""
    path = current_workspace().path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return len(text)


@tool
def rename(name: str, to: str) -> None:
    os.replace(current_workspace().path / name, current_workspace().path / to)


@tool
def delete(name: str) -> None:
    (current_workspace().path / name).unlink()


@tool
def shell(command: str) -> int:
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=current_workspace().path, check=False
    ).returncode


@tool(effect="irreversible", key=lambda to: to)
def mail(to: str) -> str:
    return "sent"


class Coding:
    """A coding agent with our hook, in this process."""

    def __init__(self, store: Path, directory: Path, session: str = "s1") -> None:
        self.directory = directory
        self.session = session
        self.key = f"claude-code/{session}"
        self.transcript = store.parent / f"{session}.jsonl"
        self._store = store
        self._saver = EventSaver(watch=False)
        self._calls = 0

    def say(self, message: "dict[str, Any]") -> None:
        with self.transcript.open("a") as file:
            file.write(json.dumps(message) + "\n")

    def event(self, name: str, **more: Any) -> Optional[str]:
        event = {
            "session_id": self.session,
            "transcript_path": str(self.transcript),
            "cwd": str(self.directory),
            "hook_event_name": name,
            **more,
        }
        places = tuple(os.environ.get(name, "") for name in LOCATION_VARIABLES)
        text = json.dumps(event).encode()
        return self._saver.save(
            Request("claude-code", str(self._store), str(self.directory), "", places, text)
        )

    def prompt(self, text: str) -> None:
        self.event("UserPromptSubmit", prompt=text)
        self.say({"type": "user", "message": {"role": "user", "content": text}})

    def before(self, tool: str, **given: Any) -> "dict[str, Any]":
        """Begin a call; return what its end needs."""
        self._calls += 1
        name = f"toolu_{self.session}_{self._calls}"
        block = {"type": "tool_use", "id": name, "name": tool, "input": given}
        self.say({"type": "assistant", "message": {"role": "assistant", "content": [block]}})
        call = {"tool_name": tool, "tool_input": given, "tool_use_id": name}
        self.event("PreToolUse", **call)
        return call

    def after(self, call: "dict[str, Any]") -> Optional[str]:
        return self.event("PostToolUse", **call, tool_response={})

    def write(self, name: str, text: str) -> Optional[str]:
        """Make a call that writes a file; return the id of its checkpoint."""
        call = self.before("Write", file_path=str(self.directory / name), content=text)
        (self.directory / name).write_text(text)
        return self.after(call)

    def close(self) -> None:
        self._saver.close()
