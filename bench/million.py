"""A million checkpoints in one store against a thousand (target P10).

The thousand are spread over 10 keys and the million over 1,000, saved in turn, as many sessions at
work would. Filling takes short cuts that leave the same rows in the same order: a round of all keys
is one transaction, its state is encoded once, and the parent of each checkpoint is remembered and
not read. What is measured takes none: the two stores take turns in one process at `save`, `load` of
the latest and `history(n=5)`, each of a key chosen at random, so that what SQLite and the system
keep in memory does not hide a large store. They are measured in `fast` durability (NORMAL): a wait
for the disk would hide the rest.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_checkpoint import Backend, CheckpointManager, WrapperBackend
from agent_checkpoint.backends.base import NO_OBJECTS, Append
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.manager.checkpoint_parts import capture
from agent_checkpoint.records import Draft
from bench.figures import summary_ms
from bench.ours import open_manager
from bench.rows import Row

SMALL = 1_000
LARGE = 1_000_000
QUICK = 100_000
OPERATIONS = 1_000
TARGET = 2.0
MODE = "NORMAL"


class GroupingBackend(WrapperBackend):
    """Commits many appends, each of another stream, at once."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._seqs: dict[str, int] = {}
        self._group: list[Append] | None = None

    @contextmanager
    def group(self) -> Iterator[None]:
        """Commit what is appended within the block at its end."""
        self._group = group = []
        yield
        self._group = None
        seqs = self.inner.append_all(group)
        assert seqs == [self._seqs[append.stream] for append in group]

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Append, or note what is to be appended: its number is the next of its stream."""
        if self._group is None:
            seq = self.inner.append(stream, entry, after=after, objects=objects, requires=requires)
        else:
            self._group.append(Append(stream, entry, after, objects, requires))
            seq = self._seqs[stream] + 1
        self._seqs[stream] = seq
        return seq


def fill(path: Path, keys: int, rounds: int) -> float:
    """Write `rounds` checkpoints of each of the keys; the seconds it took."""
    started = time.perf_counter()
    backend = GroupingBackend(SQLiteBackend(path, durability="fast"))
    with CheckpointManager(backend) as manager:
        parents: dict[str, tuple[str, ...]] = {}
        for number in range(keys):  # real saves: they also make the store
            parents[_key(number)] = (manager.save(_key(number), _state(0)),)
        for turn in range(1, rounds):
            parts = capture(_state(turn))
            with backend.group():
                for key, came_from in parents.items():
                    written = manager.store.write(Draft(key, parts), parents=came_from)
                    parents[key] = (written.id,)
        newest, before = manager.history(_key(0), n=2)
        assert newest["parents"] == [before["id"]]
    return time.perf_counter() - started


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Fill both stores and let them take turns; deletes nothing."""
    checkpoints = QUICK if quick else LARGE
    sizes = {"small": (10, SMALL), "large": (1_000, checkpoints)}
    managers: dict[str, CheckpointManager] = {}
    figures: dict[str, Any] = {"checkpoints": checkpoints, "mode": MODE}
    for name, (keys, count) in sizes.items():
        path = directory / name
        seconds = fill(path, keys, count // keys)
        managers[name] = open_manager(path, MODE)
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        figures[name] = {"keys": keys, "fill_seconds": seconds, "bytes": stored}
    times: dict[str, dict[str, list[int]]] = {name: {} for name in sizes}
    rng = random.Random("keys")
    for turn in range(-20, OPERATIONS):
        for name, (keys, _) in sorted(sizes.items(), reverse=bool(turn % 2)):
            for verb, work in _verbs(managers[name], rng, keys, turn).items():
                started = time.perf_counter_ns()
                work()
                taken = time.perf_counter_ns() - started
                if turn >= 0:  # the first turns open connections and fill caches
                    times[name].setdefault(verb, []).append(taken)
    for name, manager in managers.items():
        manager.close()
        figures[name]["ms"] = {verb: summary_ms(taken) for verb, taken in times[name].items()}
    return figures


def rows(figures: dict[str, Any]) -> list[Row]:
    """P10: the median of each verb, a large store against a small one."""
    count = figures["checkpoints"]
    verbs = {"save": "save", "load": "load the latest", "history": "history(n=5)"}
    return [
        Row.of_times(
            "P10",
            f"{says}, {count:,} checkpoints, p50",
            figures["large"]["ms"][verb],
            figures["small"]["ms"][verb],
            "p50",
            peer_name=f"at {SMALL:,}",
            target=TARGET,
            durability=figures["mode"],
        )
        for verb, says in verbs.items()
    ]


def _verbs(
    manager: CheckpointManager, rng: random.Random, keys: int, turn: int
) -> dict[str, Callable[[], Any]]:
    saved, loaded, told = (_key(rng.randrange(keys)) for _ in range(3))
    state = _state(turn)
    return {
        "save": lambda: manager.save(saved, state),
        "load": lambda: manager.load(loaded, {}),
        "history": lambda: manager.history(told, n=5),
    }


def _key(number: int) -> str:
    return f"session-{number:04}"


def _state(step: int) -> dict[str, Any]:
    return {"step": step, "task": "a small state", "score": step / 7, "done": False}
