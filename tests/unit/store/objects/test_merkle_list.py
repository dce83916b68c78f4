"""Long lists as objects: what a change costs, and what is no list."""

import json
import zlib
from typing import Any

import pytest

from agent_checkpoint import IntegrityError
from agent_checkpoint.store.objects import merkle_list
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder
from agent_checkpoint.store.objects.object_format import BLOB, LEAF, NODE, SPINE, TAIL, TEXT
from agent_checkpoint.store.objects.varint import write_varint
from tests.unit.store.shelves import Shelf


def message(n: int) -> bytes:
    return json.dumps({"role": "user", "n": n, "text": f"message {n} " * 12}).encode()


MESSAGES = [message(n) for n in range(5000)]


@pytest.fixture(scope="module")
def whole() -> Shelf:
    shelf = Shelf()
    shelf.build(MESSAGES)
    return shelf


@pytest.mark.parametrize(
    "changed",
    [
        MESSAGES[1:],
        MESSAGES[40:],
        [message(-1), *MESSAGES],
        [*MESSAGES[:2500], message(-1), *MESSAGES[2500:]],
        [*MESSAGES[:2500], message(-1), *MESSAGES[2501:]],
        [*MESSAGES[:2500], *MESSAGES[2530:]],
        MESSAGES[:4000],
    ],
    ids=["trim 1", "trim 40", "prepend", "insert", "edit", "cut out", "truncate"],
)
def test_a_change_writes_little_of_a_long_list(whole: Shelf, changed: "list[bytes]") -> None:
    shelf = Shelf()
    shelf.objects.update(whole.objects)
    root = shelf.build(changed)
    assert shelf.bytes < whole.bytes * 0.05
    assert len(shelf.objects) - len(whole.objects) < 100  # most of them tails, of 512 bytes each
    assert shelf.read(root) == list(map(json.loads, changed))


def test_an_append_costs_the_same_at_any_length() -> None:
    shelf, builder, cost = Shelf(), MerkleListBuilder(), []
    for text in MESSAGES:
        objects, size = len(shelf.objects), shelf.bytes
        builder.add(text, (), shelf.put)
        builder.finish(shelf.put)
        cost.append((len(shelf.objects) - objects, shelf.bytes - size))
    assert max(objects for objects, _ in cost) <= 4
    early, late = cost[100:1000], cost[-900:]
    mean_early, mean_late = (sum(size for _, size in some) / 900 for some in (early, late))
    assert mean_late < mean_early * 1.3
    assert mean_late < 8 * len(MESSAGES[0])


@pytest.mark.parametrize("cuts", [True, False], ids=["all cut", "never cut"])
def test_equal_items_stay_bounded(cuts: bool) -> None:
    def ends(text: bytes) -> bool:
        return zlib.crc32(text) * merkle_list.LEAF_BYTES < (len(text) + 1) << 32

    text = next(b for n in range(10**6) if ends(b := b'"%d"' % n) == cuts)
    shelf = Shelf()
    root = shelf.build([text] * 100_000)
    assert shelf.read(root) == [json.loads(text)] * 100_000
    assert (
        max(len(found.payload) for found in shelf.objects.values()) <= merkle_list.LARGEST_LEAF + 9
    )
    assert (
        max(len(found.refs) for found in shelf.objects.values()) <= merkle_list.LARGEST_FAN_OUT * 4
    )
    assert shelf.bytes < 400_000  # equal leaves are one


def test_a_hundred_thousand_numbers() -> None:
    shelf = Shelf()
    assert shelf.read(shelf.build([b"%d" % n for n in range(100_000)])) == list(range(100_000))
    assert len(shelf.objects) < 200


# -- what is no list ------------------------------------------------------------------------------


def tail(shelf: Shelf, number: int, before: int, refs: "tuple[str, ...]", text: bytes) -> str:
    return shelf.put(TAIL, write_varint(number) + write_varint(before) + text, refs)


def wrong_kind(shelf: Shelf) -> str:
    return shelf.put(TEXT, b"[1]")


def wrong_kind_below(shelf: Shelf) -> str:
    return shelf.put(NODE, write_varint(1), [shelf.put(BLOB, b"[1]")])


def tail_in_a_node(shelf: Shelf) -> str:
    return shelf.put(NODE, write_varint(1), [tail(shelf, 1, 0, (), b"[1]")])


def leaf_as_a_tail(shelf: Shelf) -> str:
    return tail(shelf, 2, 0, (shelf.put(LEAF, b"[1]"),), b"[2]")


def tail_zero(shelf: Shelf) -> str:
    return tail(shelf, 0, 0, (), b"[1]")


def tail_without_references(shelf: Shelf) -> str:
    return tail(shelf, 3, 0, (), b"[1]")


def tail_without_spine(shelf: Shelf) -> str:
    return tail(shelf, 1, 7, (), b"[1]")


def first_tail_missing(shelf: Shelf) -> str:
    second = tail(shelf, 2, 0, (tail(shelf, 2, 0, (shelf.put(BLOB, b""),), b"[0]"),), b"[1]")
    return tail(shelf, 3, 0, (second,), b"[2]")


def two_spines(shelf: Shelf) -> str:
    spines = [shelf.put(SPINE, write_varint(1), [shelf.put(LEAF, b"[%d]" % n)]) for n in (1, 2)]
    return tail(shelf, 2, 1, (tail(shelf, 1, 1, (spines[0],), b"[3]"), spines[1]), b"[4]")


def spine_only_for_one(shelf: Shelf) -> str:
    spine = shelf.put(SPINE, write_varint(1), [shelf.put(LEAF, b"[1]")])
    return tail(shelf, 2, 1, (tail(shelf, 1, 0, (), b"[3]"), spine), b"[4]")


def huge_number(shelf: Shelf) -> str:
    return tail(shelf, 2**62, 0, (), b"[1]")


def cut_numbers(shelf: Shelf) -> str:
    return shelf.put(TAIL, b"\x80", ())


def missing_object(shelf: Shelf) -> str:
    return shelf.put(SPINE, write_varint(1), ["ab" * 32])


@pytest.mark.parametrize(
    "forge",
    [
        wrong_kind,
        wrong_kind_below,
        tail_in_a_node,
        leaf_as_a_tail,
        tail_zero,
        tail_without_references,
        tail_without_spine,
        first_tail_missing,
        two_spines,
        spine_only_for_one,
        huge_number,
        cut_numbers,
        missing_object,
    ],
)
def test_what_is_no_list_is_refused(forge: Any) -> None:
    shelf = Shelf()
    root = forge(shelf)
    with pytest.raises(IntegrityError):
        shelf.read(root)
    assert shelf.gets < 10


def test_a_very_deep_list_is_read_without_recursion() -> None:
    shelf = Shelf()
    name = shelf.put(LEAF, b"[1]")
    for _ in range(20_000):
        name = shelf.put(NODE, write_varint(1), [name])
    assert shelf.read(name) == [1]


def test_a_tree_of_nothing_ends_soon() -> None:
    shelf = Shelf()
    name = shelf.put(NODE, write_varint(0), [])
    for _ in range(2):  # 8 of them would be walked through for a million years
        name = shelf.put(NODE, write_varint(0), [name] * 256)
    with pytest.raises(IntegrityError):
        shelf.read(name)
    assert shelf.gets < 10_000


# -- what is new in one list after another --------------------------------------------------------


def test_what_was_not_seen_is_read_once_and_is_all_of_it() -> None:
    shelf, builder, looked = Shelf(), MerkleListBuilder(), 0
    seen: set[str] = set()
    found: set[bytes] = set()

    def get(name: str) -> Any:
        nonlocal looked
        looked += 1
        return shelf.get(name)

    for text in MESSAGES[:1000]:
        builder.add(text, (), shelf.put)
        root = builder.finish(shelf.put)
        for array in merkle_list.read_new_arrays(root, get, seen):
            found.update(json.dumps(item).encode() for item in json.loads(array))
    assert found == set(MESSAGES[:1000])
    assert looked < 1500  # and not a thousand times all leaves
    assert list(merkle_list.read_new_arrays(root, get, seen)) == []


def test_what_is_no_list_is_refused_there_too() -> None:
    shelf = Shelf()
    text = shelf.put(TEXT, b"{}", ())
    with pytest.raises(IntegrityError, match="unexpected kind"):
        list(merkle_list.read_new_arrays(shelf.put(NODE, b"", [text]), shelf.get, set()))
