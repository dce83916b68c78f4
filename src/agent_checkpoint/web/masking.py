"""Masks secrets on pages, unless the site whose request is answered shows them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from agent_checkpoint import redaction

masks: ContextVar[bool] = ContextVar("agent_checkpoint_masks", default=True)
"""Whether this request masks secrets."""


def mask(text: str) -> str:
    """Return a text with secrets masked."""
    return redaction.mask(text) if masks.get() else text


def mask_json(value: Any) -> Any:
    """Return JSON data with the secrets in its strings masked."""
    return redaction.mask_json(value) if masks.get() else value
