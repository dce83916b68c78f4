"""A line of the table: two figures, their ratio and what was promised. Knows no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.figures import Times


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
    floor: bool = False
    """The peer is no product: it does only the part of the work that its name says."""
    ours_times: Times | None = None
    """All the times that `ours` stands for; None: no time, or measured once."""
    peer_times: Times | None = None

    @classmethod
    def of_times(
        cls, id: str, what: str, ours: Times | None, peer: Times | None, figure: str, **rest: Any
    ) -> Row:
        """A row of repeated times: one figure of each side (such as `p50`), and their spread."""
        return cls(
            id=id,
            what=what,
            ours=None if ours is None else ours[figure],
            peer=None if peer is None else peer[figure],
            unit="ms",
            ours_times=ours,
            peer_times=peer,
            **rest,
        )

    @property
    def ratio(self) -> float | None:
        """Ours in units of the peer."""
        if self.ours is None or not self.peer:
            return None
        return self.ours / self.peer

    @property
    def is_comparison(self) -> bool:
        """Whether the peer did the same work, and is not there for scale."""
        is_for_scale = self.absolute or self.difference or self.floor
        return bool(self.peer_name) and not is_for_scale

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

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Row:
        """The row that `as_json` has written."""
        return cls(
            id=found["row"],
            what=found["what"],
            ours=found["ours"],
            peer=found["peer"],
            unit=found["unit"],
            peer_name=found["peer_name"],
            target=found["target"],
            durability=found["durability"],
            difference=found["target_is_on"] == "difference",
            absolute=found["target_is_on"] == "ours",
            waiting=found["waiting"],
            floor=found.get("floor", False),
            ours_times=found["ours_times"],
            peer_times=found["peer_times"],
        )

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
            "floor": self.floor,
            "ours_times": self.ours_times,
            "peer_times": self.peer_times,
        }
