"""The durable order: a store writes an object after all objects that it refers to."""

import os
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    Log,
    MemoryBackend,
    StorageError,
    Workspace,
    WrapperBackend,
)
from agent_checkpoint.store.objects.object_format import BLOB, CHUNKS, make_object, open_object


class OrderedBackend(WrapperBackend):
    """Checks that no object refers to one that is written after it."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.written = 0
        self.fails = False

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        self._check(objects)
        super().put_objects(objects)

    def append(self, stream: str, entry: bytes, **options: Any) -> int:
        self._check(options.get("objects", {}))
        if self.fails and stream.startswith("key/"):
            raise StorageError("no")
        return super().append(stream, entry, **options)

    def _check(self, objects: Mapping[str, bytes]) -> None:
        earlier: set[str] = set()
        for name, data in objects.items():
            assert objects.keys() & set(open_object(name, data).refs) <= earlier
            earlier.add(name)
            self.written += 1


@pytest.fixture
def backend() -> OrderedBackend:
    return OrderedBackend()


def test_states_are_written_children_first(backend: OrderedBackend) -> None:
    log = Log([{"n": n, "text": f"message {n} " * 30} for n in range(500)])
    state = {"log": log, "text": "x" * 9000, "deep": {"a": [{"b": "y" * 5000}] * 40}}
    manager = CheckpointManager(backend)
    manager.save("a", state)
    log.append({"n": -1})
    manager.save("a", state)
    assert manager.verify().ok
    assert backend.written > 20


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_objects_are_flushed_children_first_in_whichever_order_they_came(
    backend: OrderedBackend, order: tuple[int, ...]
) -> None:
    one, first = make_object(BLOB, b"one")
    two, second = make_object(CHUNKS, b"two", [one])
    three, third = make_object(CHUNKS, b"three", [two])
    four, fourth = make_object(CHUNKS, b"four", [three, one, two])
    objects = [(one, first), (two, second), (three, third), (four, fourth)]
    writer = CheckpointManager(backend).store.writer()
    writer.adopt(dict(objects[number] for number in order))
    stored, requires = writer.flush([four])
    assert list(stored) == [one, two, three, four]
    assert not requires


def test_files_are_written_children_first(backend: OrderedBackend, tmp_path: Path) -> None:
    """Also directories that are written again because no checkpoint was committed."""
    for number in range(700):
        (tmp_path / "one" / f"{number % 3}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "one" / f"{number % 3}" / f"{number}.txt").write_text(str(number))
    (tmp_path / "large").write_bytes(os.urandom(5 << 20))
    manager = CheckpointManager(backend)
    workspace = Workspace(tmp_path)
    backend.fails = True
    with pytest.raises(StorageError):
        manager.save("a", {"files": workspace})
    backend.fails = False
    manager.save("a", {"files": workspace})
    (tmp_path / "one" / "1" / "new").write_text("new")
    manager.save("a", {"files": workspace})
    assert manager.verify().ok
    assert backend.written > 700
