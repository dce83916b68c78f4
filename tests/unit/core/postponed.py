"""Classes whose annotations are texts, for the tests of hints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_checkpoint import Checkpointable

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


@dataclass
class Item:
    number: int


class Postponed(Checkpointable):
    items: list[Item]

    def __init__(self) -> None:
        self.items = []


class HalfReadable(Checkpointable):
    client: Missing
    items: list[Item]
    maybe: Item | Missing | None

    def __init__(self) -> None:
        self.items = []


class FurtherDown(HalfReadable):
    more: Any


@dataclass
class Chain:
    ring: Ring


class Ring(Checkpointable):
    chain: Chain
