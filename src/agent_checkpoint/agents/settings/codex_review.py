"""Tells whether Codex runs our hooks: it runs only those that the user has reviewed.

Owns reading the reviews in its `config.toml`; writes none, since a review is the user's.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import CODEX
from agent_checkpoint.agents.settings.agent_settings import agent_home
from agent_checkpoint.agents.settings.settings_files import read_settings
from agent_checkpoint.errors import InvalidInputError

_KEY = re.compile(r"""^\s*\[\s*hooks\s*\.\s*state\s*\.\s*("(?:[^"\\]|\\.)*"|'[^']*')\s*\]""")
_HASH = re.compile(r"""\s*trusted_hash\s*=\s*["']([^"']*)["']""")
_HOW = 'start `codex` on a terminal and choose "Trust all and continue", or type /hooks in Codex'
_TIMEOUT = 600
"""The timeout of Codex for a hook without one, in seconds."""

Entry = tuple[str, int, int]
"""The event of a hook, and its numbers in the file."""


def codex_settings() -> str:
    """Return the text of `config.toml`; "" if it is missing or cannot be read."""
    try:
        return read_settings(agent_home(CODEX) / "config.toml", None) or ""
    except InvalidInputError:
        return ""


def reviewed_hashes(files: set[str], entries: list[Entry]) -> dict[Entry, str]:
    """Return the hash of each entry at its last review, without entries that are disabled.

    Args:
        files: the names under which Codex may know the file of the entries.
        entries: the entries.
    """
    names = {
        f"{file}:{_label(event)}:{group}:{handler}": (event, group, handler)
        for file in files
        for event, group, handler in entries
    }
    found: dict[Entry, str] = {}
    disabled: set[Entry] = set()
    current: Entry | None = None
    for line in codex_settings().splitlines():
        if (section := _KEY.match(line)) is not None:
            current = names.get(_unquoted(section[1]))
        elif line.lstrip().startswith("["):
            current = None
        elif current is not None and (reviewed := _HASH.match(line)) is not None:
            found[current] = reviewed[1]
        elif current is not None and re.match(r"\s*enabled\s*=\s*false", line):
            disabled.add(current)
    return {entry: text for entry, text in found.items() if entry not in disabled}


def hook_hash(event: str, group: Any, number: int) -> str:
    """Return the hash of a hook as Codex records it at a review."""
    handler = group["hooks"][number]
    hook = {"async": False, "timeout": _TIMEOUT, **handler}
    identity = {"event_name": _label(event), "hooks": [hook]}
    if isinstance(group.get("matcher"), str):
        identity["matcher"] = group["matcher"]
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


def review_problem(files: set[str], hooks: Any, entries: list[Entry], shown: Path) -> str | None:
    """Return why Codex does not run our hooks, and what to do; None if they were reviewed.

    Args:
        files: the names under which Codex may know the file.
        hooks: the hooks in it, by event.
        entries: our hooks.
        shown: the file, for the user.
    """
    reviewed = reviewed_hashes(files, entries)
    if len(reviewed) < len(entries):
        return (
            f"Codex runs no hook before you have reviewed it: {_HOW}. `codex exec` does not ask, "
            "and runs none until then."
        )
    hashes = {
        (event, group, number): hook_hash(event, hooks[event][group], number)
        for event, group, number in entries
    }
    if hashes == reviewed:
        return None
    return (
        f"The hooks in {shown} have changed since you reviewed them, so Codex does not run them: "
        f"{_HOW}."
    )


def _label(event: str) -> str:
    return re.sub("(?<!^)(?=[A-Z])", "_", event).lower()


def _unquoted(text: str) -> str:
    try:
        return text[1:-1] if text.startswith("'") else str(json.loads(text))
    except ValueError:  # an escape that JSON does not have
        return ""
