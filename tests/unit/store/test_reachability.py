"""Marking follows all references, and holds few bytes at a time."""

from collections.abc import Iterable

from agent_checkpoint.backends.memory import MemoryBackend
from agent_checkpoint.store.objects.object_format import make_object
from agent_checkpoint.store.reachability import RefGraph, mark

LARGE = 4 << 20


class Recording(MemoryBackend):
    """Keeps how many objects and bytes each read has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []

    def get_objects(self, ids: "Iterable[str]") -> "dict[str, bytes]":
        found = super().get_objects(ids)
        self.reads.append((len(found), sum(map(len, found.values()))))
        return found


def stored(backend: Recording, count: int, size: int) -> "list[str]":
    made = dict(make_object(b"b", b"%d" % number + bytes(size)) for number in range(count))
    backend.put_objects({name: b"r" + plain.plain for name, plain in made.items()})
    return list(made)


def test_large_objects_are_read_a_few_at_a_time() -> None:
    backend, seen = Recording(), RefGraph()
    names = stored(backend, 40, LARGE)
    mark(backend, names, seen)
    assert seen.keys() == set(names)
    assert max(size for _, size in backend.reads) < 10 * LARGE


def test_small_objects_are_read_many_at_a_time() -> None:
    backend, seen = Recording(), RefGraph()
    names = stored(backend, 600, 100)
    mark(backend, names, seen)
    assert seen.keys() == set(names)
    assert [count for count, _ in backend.reads] == [4, 256, 256, 84]
