"""A line of the table: two figures, their ratio and what was promised. Knows no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One comparison. `waiting` says why there are no figures yet."""

    id: str
    what: str
    ours: float | None
    peer: float | None
    unit: str
    """Of both figures: `ms`, `B`, `calls` or `x`."""
    peer_name: str
    target: float | None = None
    """The most that the ratio, the difference or ours may be; None: for information."""
    durability: str = ""
    """Of our side and of the peer's, such as `FULL / FULL`."""
    difference: bool = False
    """The target is on ours less the peer, and not on their ratio."""
    absolute: bool = False
    """The target is on ours alone; the peer is there for scale."""
    waiting: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours in units of the peer."""
        if self.ours is None or not self.peer:
            return None
        return self.ours / self.peer

    @property
    def judged(self) -> float | None:
        """The number that is held against the target."""
        if self.absolute:
            return self.ours
        if self.difference and self.ours is not None and self.peer is not None:
            return self.ours - self.peer
        return self.ratio

    @property
    def verdict(self) -> str:
        """`holds`, `misses`, `waiting`, or nothing where nothing was promised."""
        if self.waiting:
            return "waiting"
        if self.target is None or self.judged is None:
            return ""
        return "holds" if self.judged <= self.target else "misses"

    @property
    def target_is_on(self) -> str:
        """`ratio`, `difference` or `ours`."""
        if self.absolute:
            return "ours"
        return "difference" if self.difference else "ratio"

    def as_json(self) -> dict[str, Any]:
        """The row for a program."""
        return {
            "row": self.id,
            "what": self.what,
            "ours": self.ours,
            "peer": self.peer,
            "unit": self.unit,
            "peer_name": self.peer_name,
            "ratio": self.ratio,
            "target": self.target,
            "target_is_on": self.target_is_on,
            "durability": self.durability,
            "verdict": self.verdict,
            "waiting": self.waiting,
        }
