"""The statuses of effects and approval requests in a ledger, and the title of their calls."""

from __future__ import annotations

UNKNOWN, COMMITTED, FAILED, UNDOING, UNDONE = "unknown", "committed", "failed", "undoing", "undone"
BEFORE = {COMMITTED: {UNKNOWN, FAILED}, FAILED: {UNKNOWN}, UNDOING: {COMMITTED}, UNDONE: {UNDOING}}
"""Allowed previous statuses of each status. A record that violates this came late; ignored."""
PENDING, APPROVED, DENIED, USED, VOID = "pending", "approved", "denied", "used", "void"
REDACTED = "redacted"
"""The part with redacted arguments, instead of `arguments`: the call cannot run from it."""
UNREADABLE = "unreadable"
"""Status of the placeholder in lists for a ledger that cannot be read."""


def title_of(tool: str, digest: str) -> str:
    """Return the title of a call: the tool name, and a prefix of the hash of the arguments."""
    return f"{tool} [{digest[:8]}]"
