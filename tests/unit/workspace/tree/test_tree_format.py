"""Directories as objects: what they say, what they cost, and what they may never say."""

import hashlib
import random
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, IntegrityError, Workspace
from agent_checkpoint.store.objects.object_format import SplicedRefs, TerminalRef
from agent_checkpoint.workspace.scan.reading import chunking, entry_reader
from agent_checkpoint.workspace.tree.tree_format import (
    Chunks,
    ContentHash,
    Edit,
    EncodedDirectory,
    Item,
    check_name,
    put_chunks,
    put_directory,
    read_chunks,
    read_directory,
)
from tests.unit.workspace.shelf import Shelf, entry

ours = settings(max_examples=150, deadline=None, derandomize=True)


def digest(text: object) -> str:
    return hashlib.sha256(repr(text).encode()).hexdigest()


def is_name(name: bytes) -> bool:
    return name not in (b"", b".", b"..") and not {0, ord("/")} & set(name)


names = st.binary(min_size=1, max_size=255).filter(is_name)
modes = st.integers(0, 0o777)
sizes = st.integers(0, 1 << 60)


def file(name: bytes, mode: int, size: int) -> Item:
    return Item(name, b"f", mode, size, digest(name), digest(name))


def large_file(name: bytes, mode: int, size: int) -> Item:
    return Item(name, b"f", mode, size, digest(name), digest("chunks"))


def folder(name: bytes, mode: int) -> Item:
    return Item(name, b"d", mode, 0, digest(name), digest("object"))


def link(name: bytes, target: bytes) -> Item:
    return Item(name, b"l", 0o777, len(target), target=target)


items = st.one_of(
    st.builds(file, names, modes, sizes),
    st.builds(large_file, names, modes, sizes),
    st.builds(folder, names, modes),
    st.builds(link, names, st.binary(min_size=1, max_size=300).filter(lambda t: 0 not in t)),
)
directories = st.lists(items, max_size=20, unique_by=lambda item: item.name).map(sorted)


def wide(count: int) -> "list[Item]":
    return sorted(file(b"%05d" % n, 0o644, n) for n in range(count))


@ours
@given(directories)
def test_what_is_put_is_read_back(directory: "list[Item]") -> None:
    shelf = Shelf()
    assert read_directory(put_directory(directory, shelf.put).ref, shelf.get) == directory


@pytest.mark.slow
@ours
@given(directories, directories)
def test_ids_are_equal_just_if_the_entries_are(one: "list[Item]", two: "list[Item]") -> None:
    ids = [put_directory(directory, Shelf().put).id for directory in (one, two)]
    seen = [[item._replace(ref="") for item in directory] for directory in (one, two)]
    assert (ids[0] == ids[1]) == (seen[0] == seen[1])


def test_an_id_says_nothing_of_how_a_file_is_stored() -> None:
    whole, cut = file(b"a", 0o644, 9), file(b"a", 0o644, 9)._replace(ref=digest("chunks"))
    stored = [put_directory([item], Shelf().put) for item in (whole, cut)]
    assert stored[0].id == stored[1].id
    assert stored[0].ref != stored[1].ref


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1024, 1025, 5000])
def test_a_directory_of_any_width_is_read_back(count: int) -> None:
    shelf = Shelf()
    assert read_directory(put_directory(wide(count), shelf.put).ref, shelf.get) == wide(count)


def test_a_wide_directory_is_cut_by_names_alone() -> None:
    every, others = wide(5000), [item._replace(mode=0o600) for item in wide(5000)]
    shelf = Shelf()
    tops = [shelf.objects[put_directory(d, shelf.put).ref] for d in (every, others)]
    sizes = [[len(shelf.objects[part].refs) for part in top.refs] for top in tops]
    assert sizes[0] == sizes[1]
    assert max(sizes[0]) <= 1024


@pytest.mark.parametrize("what", ["changed", "added", "removed"])
def test_a_change_in_a_wide_directory_costs_a_part_of_it(what: str) -> None:
    directory, shelf = wide(5000), Shelf()
    put_directory(directory, shelf.put)
    before = shelf.bytes
    if what == "changed":
        directory[2500] = directory[2500]._replace(mode=0o600)
    elif what == "added":
        directory.insert(2500, file(directory[2499].name + b"x", 0o644, 1))
    else:
        del directory[2500]
    put_directory(directory, shelf.put)
    assert 0 < shelf.bytes - before < before / 8


def test_names_that_are_never_cut_at_are_cut_all_the_same() -> None:
    # As one might choose them who wants one huge object.
    chosen = [name for name in map(b"%05d".__mod__, range(4000)) if zlib.crc32(name) % 128]
    shelf = Shelf()
    stored = put_directory([file(name, 0o644, 1) for name in chosen[:3000]], shelf.put)
    sizes = [len(shelf.objects[part].refs) for part in shelf.objects[stored.ref].refs]
    assert sizes == [1024, 1024, 952]


def test_a_list_of_chunks_is_read_back() -> None:
    shelf = Shelf()
    chunks = Chunks(12, digest("all"), (TerminalRef(digest(1)), TerminalRef(digest(2))))
    assert read_chunks(put_chunks(chunks, shelf.put), shelf.get) == chunks


def test_a_content_has_the_id_of_the_object_that_would_hold_all_of_it() -> None:
    whole = ContentHash()
    for piece in (b"some", b"", b"thing"):
        whole.add(piece)
    assert whole.id() == Shelf().put(b"b", b"something", ())


@pytest.mark.parametrize("size", [64, 1000, 4096])
def test_a_tree_has_the_same_id_however_its_files_are_cut(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("one", "two"):
        (root / name).write_bytes(random.Random(name).randbytes(20_000))
    plain = Workspace(root, CheckpointManager().store, watch=False).snapshot()
    monkeypatch.setattr(entry_reader, "CHUNKED_FROM", 100)
    monkeypatch.setattr(chunking, "_CHUNK", size)
    monkeypatch.setattr(chunking, "is_installed", lambda: False)
    store = CheckpointManager().store
    workspace = Workspace(root, store, watch=False)
    cut = workspace.snapshot()
    assert cut.id == plain.id
    assert cut.ref != plain.ref
    one = (root / "one").read_bytes()
    (root / "one").unlink()
    workspace.restore(cut)
    assert (root / "one").read_bytes() == one


# -- what no directory may say ---------------------------------------------------------------------

ID = bytes(32)
REF = TerminalRef(digest("some file"))
NESTED = digest("some object")
CUT = entry(b"a", b"c", rest=ID)
TWO = entry(b"a") + entry(b"b")

MALFORMED: "dict[str, tuple[bytes, list[str]]]" = {
    "the directory above": (entry(b".."), [REF]),
    "the directory itself": (entry(b"."), [REF]),
    "no name": (entry(b""), [REF]),
    "a path": (entry(b"a/b"), [REF]),
    "a path upwards": (entry(b"../../etc/passwd"), [REF]),
    "an absolute path": (entry(b"/etc/passwd"), [REF]),
    "a trailing slash": (entry(b"a/"), [REF]),
    "NUL": (entry(b"a\0b"), [REF]),
    "NUL at the end": (entry(b"a\0"), [REF]),
    "the same name twice": (entry(b"a") * 2, [REF, REF]),
    "the same name with two types": (entry(b"a") + entry(b"a", b"l", rest=b"/etc"), [REF]),
    "names out of order": (entry(b"b") + entry(b"a"), [REF, REF]),
    "an unknown type": (entry(b"a", b"p"), [REF]),
    "a device": (entry(b"a", b"\0"), [REF]),
    "setuid": (entry(b"a", mode=0o4755), [REF]),
    "the sticky bit": (entry(b"a", mode=0o1777), [REF]),
    "a mode with a type in it": (entry(b"a", mode=0o100644), [REF]),
    "a name longer than the rest": (entry(b"a", length=200), [REF]),
    "a name shorter than it is": (entry(b"abc", length=1), [REF]),
    "a cut head": (entry(b"a")[:5], []),
    "a cut name": (entry(b"abcdef")[:-2], [REF]),
    "a cut id": (CUT[:-1], [NESTED]),
    "a cut second entry": (TWO[:-1], [REF, REF]),
    "a folder with a size": (entry(b"a", b"d", size=1, rest=ID), [NESTED]),
    "a folder without an id": (entry(b"a", b"d", size=0), [NESTED]),
    "a link to nothing": (entry(b"a", b"l", size=0), []),
    "a link with NUL in it": (entry(b"a", b"l", size=3, rest=b"a\0b"), []),
    "a link longer than it is": (entry(b"a", b"l", size=9, rest=b"abc"), []),
    "a link longer than any": (entry(b"a", b"l", size=5000, rest=b"x" * 5000), []),
    "a link of endless length": (entry(b"a", b"l", size=(1 << 64) - 1, rest=b"abc"), []),
    "a link with a reference": (entry(b"a", b"l", size=3, rest=b"abc"), [REF]),
    "too few references": (TWO, [REF]),
    "too many references": (entry(b"a"), [REF, REF]),
    "something after the last entry": (entry(b"a") + b"!", [REF]),
    "more entries than a part may have": (
        b"".join(entry(b"%05d" % n) for n in range(1025)),
        [REF] * 1025,
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_directory_is_refused_that_says(what: str) -> None:
    shelf = Shelf()
    payload, refs = MALFORMED[what]
    with pytest.raises(IntegrityError):
        read_directory(shelf.put(b"d", payload, refs), shelf.get)


@pytest.mark.parametrize("what", MALFORMED)
def test_a_part_of_a_wide_directory_is_refused_that_says(what: str) -> None:
    shelf = Shelf()
    payload, refs = MALFORMED[what]
    part = shelf.put(b"d", payload, refs)
    with pytest.raises(IntegrityError):
        read_directory(shelf.put(b"w", b"", [part]), shelf.get)


def test_every_cut_of_a_directory_is_refused() -> None:
    payload = entry(b"a") + entry(b"b", b"c", rest=ID) + entry(b"c", b"l", size=3, rest=b"abc")
    shelf = Shelf()
    for end in range(len(payload)):
        name = shelf.put(b"d", payload[:end], [REF, NESTED])
        if end != len(payload) - len(entry(b"c")) - 3:  # there, two entries are left, and whole
            with pytest.raises(IntegrityError):
                read_directory(name, shelf.get)


@pytest.mark.parametrize("kind", [b"b", b"t", b"w", b"c", b"r", b"?"])
def test_only_a_directory_is_a_part_of_a_wide_one(kind: bytes) -> None:
    shelf = Shelf()
    part = shelf.put(kind, entry(b"a"), [REF])
    with pytest.raises(IntegrityError):
        read_directory(shelf.put(b"w", b"", [part]), shelf.get)


def test_parts_of_a_wide_directory_are_in_order() -> None:
    shelf = Shelf()
    one, two = (shelf.put(b"d", entry(name), [REF]) for name in (b"a", b"b"))
    assert len(read_directory(shelf.put(b"w", b"", [one, two]), shelf.get)) == 2
    for refs in ([two, one], [one, one]):
        with pytest.raises(IntegrityError):
            read_directory(shelf.put(b"w", b"", refs), shelf.get)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(39), bytes(41)])
def test_a_list_of_chunks_has_one_form(payload: bytes) -> None:
    shelf = Shelf()
    with pytest.raises(IntegrityError):
        read_chunks(shelf.put(b"c", payload, [REF]), shelf.get)
    with pytest.raises(IntegrityError):
        read_chunks(shelf.put(b"d", bytes(40), [REF]), shelf.get)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/", b"\0", b"n" * 256])
def test_names_that_no_directory_can_have_are_refused(name: bytes) -> None:
    with pytest.raises(IntegrityError):
        check_name(name)


@pytest.mark.parametrize("name", [b"...", b" ", b"-", b"\xff", b"\n", b"n" * 255])
def test_names_that_are_only_odd_are_fine(name: bytes) -> None:
    assert check_name(name) == name


# -- edits ---------------------------------------------------------------------------------------


def edits_between(before: "list[Item]", after: "list[Item]") -> "list[Edit]":
    old, new = {item.name: item for item in before}, {item.name: item for item in after}
    names = sorted(old)
    return [
        Edit(bisect_left(names, name), new.get(name), is_new=name not in old)
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


@ours
@given(directories, directories, st.lists(directories, max_size=3))
def test_an_edited_directory_is_the_one_that_is_encoded_anew(
    before: "list[Item]", after: "list[Item]", later: "list[list[Item]]"
) -> None:
    encoded = EncodedDirectory(before)
    for one, two in zip([before, after, *later], [after, *later]):
        encoded, edited, fresh = encoded.edited(edits_between(one, two)), Shelf(), Shelf()
        assert encoded.put(edited.put) == put_directory(two, fresh.put)
        assert edited.objects == fresh.objects


@pytest.mark.parametrize("seed", range(12))
def test_an_edited_wide_directory_is_the_one_that_is_encoded_anew(seed: int) -> None:
    chance = random.Random(seed)
    directory, shelf = wide(chance.choice([500, 513, 3000])), Shelf()
    encoded = EncodedDirectory(directory)
    stored = encoded.put(shelf.put)
    for step in range(12):
        before, kept = directory, chance.choice([1.0, 0.999, 0.9, 0.5])
        directory = [item for item in before if chance.random() < kept]
        for _ in range(chance.choice([0, 1, 2, 300])):
            directory.append(file(b"%05d-%d" % (chance.randrange(3000), step), 0o644, step))
        directory = sorted({item.name: item for item in directory}.values())
        if directory and chance.random() < 0.7:
            at = chance.randrange(len(directory))
            directory[at] = directory[at]._replace(mode=step)
        encoded = encoded.edited(edits_between(before, directory))
        # Parts that were not edited are on the shelf already: everything is read from there.
        stored = encoded.put(shelf.put, stored.ref)
        assert stored == put_directory(directory, Shelf().put)
        assert read_directory(stored.ref, shelf.get) == directory


@pytest.mark.parametrize("what", ["changed", "added", "removed"])
def test_an_edit_of_a_wide_directory_puts_its_part_and_the_top(what: str) -> None:
    directory, shelf = wide(5000), Shelf()
    encoded = EncodedDirectory(directory)
    stored = encoded.put(shelf.put)
    middle = directory[2500]
    edit = {
        "changed": Edit(2500, middle._replace(mode=0o600)),
        "added": Edit(2501, middle._replace(name=middle.name + b"x"), is_new=True),
        "removed": Edit(2500, None),
    }[what]
    calls: list[bytes] = []

    def put(kind: bytes, payload: bytes, refs: Sequence[str]) -> str:
        calls.append(kind)
        return shelf.put(kind, payload, refs)

    encoded.edited([edit]).put(put, stored.ref)
    assert calls == [b"d", b"w"]
    calls.clear()
    encoded.edited([edit]).put(put)  # nothing is known to be stored: all parts
    assert len(calls) > 20


@ours
@given(directories, directories)
def test_an_edited_directory_names_the_references_that_it_does_not_share(
    before: "list[Item]", after: "list[Item]"
) -> None:
    shelf, seen = Shelf(), list[Sequence[str]]()

    def put(kind: bytes, payload: bytes, refs: Sequence[str]) -> str:
        seen.append(refs)
        return shelf.put(kind, payload, refs)

    stored = EncodedDirectory(before).put(put)
    EncodedDirectory(before).edited(edits_between(before, after)).put(put, stored.ref)
    old, new = seen
    assert isinstance(new, SplicedRefs)
    assert new.base == stored.ref
    assert set(new.replaced) <= set(old)
    assert set(new.new) <= set(new) <= set(old) | set(new.new)


@pytest.mark.parametrize(("before", "after"), [(511, 512), (512, 511), (600, 601)])
def test_no_part_of_a_wide_directory_counts_as_spliced(before: int, after: int) -> None:
    one, two, seen = wide(600)[:before], wide(601)[:after], list[Sequence[str]]()

    def put(kind: bytes, payload: bytes, refs: Sequence[str]) -> str:
        seen.append(refs)
        return Shelf().put(kind, payload, refs)

    stored = EncodedDirectory(one).put(put)
    EncodedDirectory(one).edited(edits_between(one, two)).put(put, stored.ref)
    assert not any(isinstance(refs, SplicedRefs) for refs in seen)
