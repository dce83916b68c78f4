"""What a tool is told about the effect that it is to make. Owns the idempotency key."""

from __future__ import annotations

import hashlib
import json

from agent_checkpoint.store.ledger import Effect


class Deed:
    """What a tool is told about the effect that it is to make."""

    def __init__(self, effect: Effect, family: str) -> None:
        self.id = effect.id
        text = json.dumps([family, effect.identity, effect.generation])
        self.key = hashlib.sha256(text.encode()).hexdigest()[:40]
        """The idempotency key: the same for every attempt at the same effect, and no other."""
        self.is_not_done = False

    def not_done(self) -> None:
        """Say that nothing has happened, before an error is raised: it may then be tried again."""
        self.is_not_done = True
