"""Calls of the backend by a save and a load: what a store in a network has to answer.

Counted, not timed: the figures are the same on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_checkpoint import (
    CacheBackend,
    Checkpointable,
    CheckpointManager,
    CountingBackend,
    Log,
    MemoryBackend,
)
from bench.rows import Row

MESSAGES = 1_000
TARGET_CALLS = 2


class Talk(Checkpointable):
    """A conversation."""

    def __init__(self) -> None:
        self.messages = Log[Any]()


def measure(place: Path, *, quick: bool) -> dict[str, Any]:
    """Save a conversation message by message, then load it, also with a cache that has it all."""
    backend = CountingBackend(MemoryBackend())
    manager, talk = CheckpointManager(backend), Talk()
    saves = []
    for number in range(MESSAGES):
        talk.messages.append({"role": "user", "content": f"message {number} " * 20})
        backend.reset()
        manager.save("talk", talk)
        saves.append(backend.total)
    found: dict[str, Any] = {"saves": saves[-1]._asdict(), "early": saves[10]._asdict()}
    cached = CacheBackend(backend, place)
    for name, store in (("load", backend), ("filling", cached), ("cached", cached)):
        backend.reset()
        CheckpointManager(store).load("talk", Talk())
        found[name] = backend.total._asdict()
    return found


def rows(figures: dict[str, Any]) -> list[Row]:
    """A save after many messages beside an early one; a load with a cache beside one without."""
    save, early = figures["saves"], figures["early"]
    load, cached = figures["load"], figures["cached"]
    return [
        Row(
            id="calls",
            what=f"{what}, {MESSAGES:,} messages",
            ours=ours,
            peer=peer,
            unit=unit,
            peer_name=peer_name,
            target=target,
            absolute=target is not None,
        )
        for what, ours, peer, unit, peer_name, target in (
            ("calls of a save", save["calls"], early["calls"], "calls", "at first", TARGET_CALLS),
            ("bytes of a save", save["bytes"], early["bytes"], "B", "at first", None),
            (
                "calls of a load, cached",
                cached["calls"],
                load["calls"],
                "calls",
                "not cached",
                None,
            ),
        )
    ]
