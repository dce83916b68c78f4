"""P13: the hook of a coding agent, from the start of its process to its end, beside a shadow git.

One source file of the checkout gets a line, and a line comes to a transcript of a thousand. Then
the very command that `hook install` puts into the settings is run by a shell, and, in turn, a shell
runs `git add -A && git commit`. For information: the same without the process that stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.hook.event_sender import DIRECT
from agent_checkpoint.agents.settings.agent_settings import command_of
from bench.aside import set_aside
from bench.figures import summary_ms, timed
from bench.rows import Row
from bench.workspaces.checkouts import Checkout, NoCheckoutError, small
from bench.workspaces.peers import ShadowGit, missing

TURNS = 25
QUICK_TURNS = 9
LINES = 1_000
TARGET = 1.0


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """The times of the sides; why there are none, if there are none."""
    absent = missing()
    if "git" in absent:
        return {"waiting": absent["git"]}
    try:
        checkout = small(directory / "hook-checkout")
    except NoCheckoutError as error:
        return {"waiting": str(error)}
    try:
        return _measure(directory / "hook", checkout, QUICK_TURNS if quick else TURNS)
    finally:
        set_aside(checkout.path)


def rows(figures: dict[str, Any]) -> list[Row]:
    """The promise, and what it would be without the process that stays."""
    if "waiting" in figures:
        return [
            Row("P13", "hook call", None, None, "ms", "git", TARGET, waiting=figures["waiting"])
        ]
    return [
        Row.of_times(
            "P13",
            f"hook call, 1 of {figures['files']:,} files changed{words}, p50",
            figures[side],
            figures["git"],
            "p50",
            peer_name="git add -A && commit",
            target=TARGET if side == "hook" else None,
            durability="FULL / unsynced",
        )
        for side, words in (("hook", ""), ("direct", ", no process stays"))
    ]


def _measure(place: Path, checkout: Checkout, turns: int) -> dict[str, Any]:
    place.mkdir()
    checkout.warm()
    git = ShadowGit(place / "git", checkout.path)
    git.make()
    transcript = place / "transcript.jsonl"
    transcript.write_text("".join(_line(number) for number in range(LINES)))
    home = {"HOME": str(place / "home"), "AGENT_CHECKPOINT_HOME": str(place / "ours")}
    environment = {**os.environ, **home, "AGENT_CHECKPOINT_HOOK_SECONDS": "60"}
    Path(home["HOME"]).mkdir()
    times: dict[str, list[int]] = {"hook": [], "direct": [], "git": []}
    try:
        for turn in range(-2, turns):
            for side in _in_turn(list(times), turn):
                source = checkout.path / checkout.source(turn + 2)
                source.write_text(source.read_text() + f"# {turn} {side}\n")
                with transcript.open("a") as file:
                    file.write(_line(LINES + turn))
                event = _event(checkout.path, transcript, f"{side}-{turn}")
                said = {**environment, **({DIRECT: "1"} if side == "direct" else {})}
                work = git.snapshot if side == "git" else lambda e=event, s=said: _hook(e, s)
                taken = timed(work)
                if turn >= 0:
                    times[side].append(taken)
        _check(environment, len(times["hook"]))
    finally:
        command = [sys.executable, "-m", "agent_checkpoint", "hook", "stop"]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {side: summary_ms(taken) for side, taken in times.items()}
    return {**found, "files": len(checkout.files), "turns": turns}


def _hook(event: bytes, environment: dict[str, str]) -> None:
    command = ["sh", "-c", command_of("claude-code")]
    subprocess.run(command, input=event, env=environment, check=True, stdout=subprocess.DEVNULL)


def _check(environment: dict[str, str], turns: int) -> None:
    """See that all was saved, and nothing went wrong."""
    log = Path(environment["AGENT_CHECKPOINT_HOME"]) / "hook" / "hook.log"
    if log.exists():
        raise RuntimeError(f"The hook failed: {log.read_text()}")
    command = [
        sys.executable,
        "-m",
        "agent_checkpoint",
        "log",
        "claude-code/bench",
        "--all",
        "--json",
    ]
    told = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    saved = len(json.loads(told)["checkpoints"])
    if saved != 2 * (turns + 2):
        raise RuntimeError(f"{saved} checkpoints of {2 * (turns + 2)} hook calls")


def _event(cwd: Path, transcript: Path, name: str) -> bytes:
    event = {
        "session_id": "bench",
        "transcript_path": str(transcript),
        "cwd": str(cwd),
        "permission_mode": "default",
        "hook_event_name": "PostToolUse",
        "tool_name": "Edit",
        "tool_input": {"file_path": f"{cwd}/{name}", "old_string": "a", "new_string": "b" * 500},
        "tool_response": {"success": True},
        "tool_use_id": f"toolu_{name}",
    }
    return json.dumps(event).encode()


def _line(number: int) -> str:
    content = f"message {number} " + "and some more words " * 30
    return json.dumps({"uuid": f"{number:08}", "type": "assistant", "content": content}) + "\n"


def _in_turn(names: list[str], turn: int) -> list[str]:
    first = turn % len(names)
    return [*names[first:], *names[:first]]
