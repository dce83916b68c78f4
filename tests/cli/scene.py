"""A directory in which a coding agent works, with its transcript, its home and our hook."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import agent_checkpoint
from agent_checkpoint import CheckpointManager
from agent_checkpoint.agents.hook.protocol import CLIENT

EVENTS = Path(__file__).with_name("events")
PACKAGE = Path(agent_checkpoint.__file__).parent


class Scene:
    """All that a hook needs, below one directory."""

    def __init__(self, place: Path, way: str) -> None:
        self.place = place
        self.way = way
        self.workspace = place / "project"
        self.transcript = place / "transcript.jsonl"
        self.home = place / "checkpoints"
        self.client = Path(CLIENT)
        (self.workspace / "src").mkdir(parents=True)
        (self.workspace / ".git").mkdir()
        (self.workspace / "src" / "app.py").write_text("print('old')\n")
        (place / "home").mkdir()
        self.transcript.write_text('{"type":"user","n":1}\n')
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(place / "home"),
            "AGENT_CHECKPOINT_HOME": str(self.home),
            "AGENT_CHECKPOINT_HOOK_SECONDS": "30",
            "PYTHONPATH": str(PACKAGE.parent),
        }
        if "COVERAGE_PROCESS_CONFIG" in os.environ:
            self.environment["COVERAGE_PROCESS_CONFIG"] = os.environ["COVERAGE_PROCESS_CONFIG"]
        if way == "direct":
            self.environment["AGENT_CHECKPOINT_HOOK_DIRECT"] = "1"

    def event(self, name: str, **changed: Any) -> dict[str, Any]:
        text = (EVENTS / f"{name}.json").read_text(encoding="utf-8")
        event = json.loads(text, object_hook=self._filled)
        return {**event, **changed}

    def _filled(self, found: dict[str, Any]) -> dict[str, Any]:
        places = {"{CWD}": str(self.workspace), "{TRANSCRIPT}": str(self.transcript)}
        for name, value in found.items():
            for mark, place in places.items():
                if isinstance(value, str):
                    value = value.replace(mark, place)
            found[name] = value
        return found

    def start(self, agent: str, event: Any, **environment: str) -> "subprocess.Popen[bytes]":
        text = event if isinstance(event, bytes) else json.dumps(event).encode()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(self.client), *([agent] if agent else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.workspace,
            env={**self.environment, **environment},
        )
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None
        return process

    def hook(self, agent: str, event: Any, **environment: str) -> str:
        """Run the hook; it must end well, and say nothing but what the agent can read."""
        process = self.start(agent, event, **environment)
        printed, complaints = process.communicate(timeout=60)
        assert process.returncode == 0
        assert complaints == b""
        if agent == "gemini":
            assert json.loads(printed) == {}
        else:
            assert printed == b""
        return printed.decode()

    def tool(self, number: int, **changed: Any) -> None:
        """Have Claude Code report a tool call."""
        self.say(number)
        use = f"toolu_{number}"
        self.hook(
            "claude-code", self.event("claude-code.post-tool-use", tool_use_id=use, **changed)
        )

    def say(self, number: int) -> None:
        with self.transcript.open("a") as file:
            file.write(json.dumps({"type": "assistant", "n": number}) + "\n")

    def command(
        self, *arguments: str, status: int = 0, cwd: Optional[Path] = None, **environment: str
    ) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "agent_checkpoint", *arguments],
            cwd=cwd or self.workspace,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    @property
    def log(self) -> str:
        path = self.home / "hook" / "hook.log"
        return path.read_text() if path.exists() else ""

    @contextmanager
    def manager(self, path: Optional[Path] = None) -> Iterator[CheckpointManager]:
        with CheckpointManager(backend="sqlite", path=path or self.home / "store") as manager:
            yield manager

    def history(self, key: str) -> list[dict[str, Any]]:
        with self.manager() as manager:
            return manager.history(key) if key in manager.list_keys() else []

    def keys(self) -> list[str]:
        with self.manager() as manager:
            return manager.list_keys()

    def sockets(self) -> list[Path]:
        return sorted((self.home / "hook").glob("*.sock"))

    def servers(self, client: Optional[Path] = None) -> list[int]:
        """The processes that serve this scene, by their environment and the client they run."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = {b"--serve", os.fsencode(client or self.client)} <= set(command)
            if ours and f"AGENT_CHECKPOINT_HOME={self.home}".encode() in environment:
                found.append(int(process.name))
        return found

    def close(self) -> None:
        if self.way != "direct":
            self.command("hook", "stop", cwd=self.place / "home")
            wait_for(lambda: not self.servers())


def wait_for(condition: Any, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


@contextmanager
def scene(place: Path, way: str) -> Iterator[Scene]:
    found = Scene(place, way)
    try:
        yield found
    finally:
        found.close()
