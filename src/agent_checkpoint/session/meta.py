"""What a session notes about itself in each checkpoint. Owns that part; knows no storage.

It is plain JSON, so that a page or a command can read it without any of the session's code.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import Checkpoint, JsonValue, show
from agent_checkpoint.store.reading import whole
from agent_checkpoint.store.store import Store

PART = "session"
"""The name of the part."""


@dataclass
class Meta:
    """Where a session stands beside its state."""

    key: str
    family: str
    """Names the ledger, which a session shares with its forks."""
    lineage: list[list[Any]] = field(default_factory=list)
    """The sessions it was forked from, each with the last record of the ledger that it has seen."""
    workspace: str | None = None
    ledger: int = 0
    """The last record of the ledger that the state knows of."""
    counts: list[list[Any]] = field(default_factory=list)
    """How often a call without a key of its own was made: [task, name, number].

    Numbers after that are of calls that came to their end before one of the same kind that had
    been begun earlier."""
    standing: list[str] = field(default_factory=list)
    """Effects that a rollback has left standing, and the state does not know of."""
    pending: list[str] = field(default_factory=list)
    """Requests that wait for an answer."""
    under_way: list[str] = field(default_factory=list)
    """Effects that were being made when the checkpoint was taken: the state knows no outcome."""
    in_flight: list[str] = field(default_factory=list)
    """Tools that were running when the checkpoint was taken."""
    irreversible: bool = True
    """Whether it may do what cannot be undone; forks may not, unless they are told so."""
    keep_unseen: bool | None = None
    """Whether a rollback that is under way leaves files alone that nobody has saved."""
    drift: list[str] = field(default_factory=list)
    """Some of the paths that others had changed when the session was opened."""

    @classmethod
    def new(cls, key: str, workspace: str | None) -> Meta:
        """Return the notes of a session that begins; its ledger is of its own."""
        return cls(key, f"{key[:200]}.{secrets.token_hex(6)}", workspace=workspace)

    def dump(self) -> dict[str, JsonValue]:
        """Return the part; what says nothing is left out."""
        return {name: value for name, value in asdict(self).items() if value not in ([], None)}

    def fork(self, key: str) -> Meta:
        """Return the notes of a session that goes on from here under another key."""
        return Meta(
            key,
            self.family,
            lineage=[*self.lineage, [self.key, self.ledger]],
            ledger=self.ledger,
            counts=[list(row) for row in self.counts],
            standing=list(self.standing),
            irreversible=False,
        )

    def next_number(self, task: str | None, name: str, taken: Collection[int]) -> int:
        """Return the lowest number of a call among its like, from 1, that is not used up."""
        _, _, last, *ahead = self._counted(task, name)
        return next(
            number
            for number in itertools.count(int(last) + 1)
            if number not in ahead and number not in taken
        )

    def count(self, task: str | None, name: str, number: int) -> None:
        """Use a number up: the call has come to its end."""
        old = self._counted(task, name)
        last, ahead = old[2], {number, *old[3:]}
        while last + 1 in ahead:
            last += 1
        rest = sorted(n for n in ahead if n > last)
        self.counts = [row for row in self.counts if row is not old]
        self.counts.append([task, name, last, *rest])

    def _counted(self, task: str | None, name: str) -> list[Any]:
        return next((row for row in self.counts if row[:2] == [task, name]), [task, name, 0])

    def forget_counts(self, task: str) -> None:
        """Count the calls of a task from 1 again: it is run from its top."""
        self.counts = [row for row in self.counts if row[0] != task]


def read_meta(store: Store, checkpoint: Checkpoint) -> Meta | None:
    """Return what a session noted in a checkpoint; None if it is none of a session.

    Raises:
        IntegrityError: the part is damaged.
        StorageError: the medium failed.
    """
    tree = checkpoint.parts.get(PART)
    if tree is None:
        return None
    reader = store.reader(checkpoint)
    reader.fetch([tree])
    found = whole(tree, reader)
    known = {name: value for name, value in dict(found).items() if name in Meta.__annotations__}
    try:
        meta = Meta(**known)
        right = isinstance(meta.key, str) and isinstance(meta.family, str)
        right = right and isinstance(meta.ledger, int) and isinstance(meta.lineage, list)
    except TypeError:
        right = False
    if not right:
        raise IntegrityError(f"The checkpoint {show(checkpoint.id, 120)} has a damaged session.")
    return meta
