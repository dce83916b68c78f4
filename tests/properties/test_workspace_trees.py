"""From any tree to any other: a restore is exact to the byte, the mode and the link."""

import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Workspace
from tests.unit.workspace.disk import (
    IS_ROOT,
    Described,
    Fifo,
    File,
    Folder,
    Link,
    Socket,
    Thing,
    Things,
    captured,
    clear,
    describe,
    make,
    parents,
    restored,
    without_syncs,
)

PLAIN = [b"a", b"b", b"c", b"sub"]
ODD = [
    *(b" ", b"-rf", b"--", b"a\nb", b"\t", b"*", b"~", b"a b", b"...", b"\\", b"'\""),
    *("é".encode(), "e\u0301".encode(), "日本".encode(), "\u202e".encode()),
    *(() if sys.platform == "darwin" else (b"\xff\xfe", b"caf\xe9", b"n" * 255)),
]
MODES = st.integers(0, 0o777).map(lambda mode: mode if IS_ROOT else mode | 0o600)
ours = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


names = st.sampled_from(PLAIN + ODD)
paths = st.lists(names, min_size=1, max_size=4).map(b"/".join)
contents = st.binary(max_size=6) | st.sampled_from([b"x" * 5000, b"", noise(70_000)])
things: "st.SearchStrategy[Thing]" = st.one_of(
    st.builds(File, contents, MODES),
    st.builds(Folder, MODES.map(lambda mode: mode if IS_ROOT else mode | 0o700)),
    st.builds(Link, st.sampled_from([b"a", b"../b", b"/etc/passwd", b".", b"gone", b"\xff"])),
    st.sampled_from([Fifo(), Socket()]),
)


def without_conflicts(drawn: "dict[bytes, Thing]") -> "dict[bytes, Thing]":
    """Leave out what would be below something that is no directory."""
    kept: dict[bytes, Thing] = {}
    for path in sorted(drawn):
        if all(isinstance(kept.get(above, Folder()), Folder) for above in parents(path)):
            kept[path] = drawn[path]
    return kept


trees = st.dictionaries(paths, things, max_size=12).map(without_conflicts)

DEEP = b"/".join([b"%03d-deeper-and-deeper" % depth for depth in range(210)])
assert len(DEEP) > 4096
LARGE = noise(3_500_000)
NAMED: "dict[str, Things]" = {
    "nothing": {},
    "deep": {DEEP + b"/bottom": File(b"far down"), DEEP + b"/link": Link(b"../" * 300)},
    "deep, changed below": {DEEP + b"/bottom": File(b"still far"), DEEP + b"/more/x": File(b"")},
    "wide": {b"wide/%04d" % n: File(b"%d" % n) for n in range(1100)},
    "wide, changed": {
        **{b"wide/%04d" % n: File(b"%d" % (n // 9)) for n in range(0, 1100, 2)},
        **{b"folders/%04d" % n: Folder() for n in range(520)},
    },
    "large": {b"big": File(LARGE), b"sub/big": File(LARGE[:1_000_001])},
    "large, changed": {b"big": File(LARGE[:2_000_000] + b"!" + LARGE[2_000_000:], 0o755)},
    "odd names": {
        **{name: File(name, 0o600) for name in ODD},
        **{b"in/%b/%b" % (name, name): Link(name) for name in ODD},
    },
    "links": {
        b"to-file": Link(b"sub/file"),
        b"to-folder": Link(b"sub"),
        b"dangling": Link(b"nowhere"),
        b"absolute": Link(b"/etc/hostname"),
        b"long": Link(b"x/" * 2000),
        b"sub/file": File(b"#!/bin/sh\n", 0o755),
        b"sub/up": Link(b".."),
    },
    "links turned into what they led to": {
        b"to-file": File(b"#!/bin/sh\n"),
        b"to-folder/file": File(b""),
        b"sub": Link(b"to-folder"),
        b"big": Folder(0o700),
        b"wide": File(b"not wide"),
    },
    "modes": {
        **{b"file-%03o" % mode: File(b"m", mode) for mode in range(0o400, 0o1000, 7)},
        **{b"folder-%03o/x" % mode: File(b"m") for mode in range(0o700, 0o1000, 9)},
        **{b"folder-%03o" % mode: Folder(mode) for mode in range(0o700, 0o1000, 9)},
    },
    "no permissions at all": {
        b"closed": Folder(0o000 if IS_ROOT else 0o700),
        b"closed/below": Folder(0o100 if IS_ROOT else 0o700),
        b"closed/below/file": File(b"secret", 0o000 if IS_ROOT else 0o600),
        b"file-400": File(b"m", 0o777),
    },
}


@contextmanager
def workspace(*, watch: bool, below: Optional[str] = None) -> Iterator[Workspace]:
    with tempfile.TemporaryDirectory(dir=below) as place:
        root = Path(place, "root")
        root.mkdir()
        with Workspace(root, CheckpointManager().store, watch=watch) as workspace:
            yield workspace
        clear(root)  # deeper than the cleaning up of a test goes


def full_scan(root: Path) -> str:
    """Return the id of a tree by one who knows nothing of it."""
    return Workspace(root, CheckpointManager().store, watch=False).snapshot().id


def every_pair(names: Sequence[str]) -> Iterator[str]:
    """Walk from every name to every other."""
    for place, name in enumerate(names):
        for other in names[place + 1 :]:
            yield name
            yield other
        yield name


@pytest.mark.slow
def test_every_kind_of_tree_becomes_every_other() -> None:
    with workspace(watch=True, below=without_syncs()) as ws:
        unwatched = Workspace(ws.path, ws.store, watch=False)
        taken = {}
        for name, things in NAMED.items():
            clear(ws.path)
            make(ws.path, things)
            taken[name] = ws.snapshot(), describe(ws.path)
            assert taken[name][0].id == full_scan(ws.path)
        # All of them take half a minute; each run takes others, and tells which if it fails.
        names = random.sample(list(NAMED), 7)
        steps = list(every_pair(names))
        for one, name in zip(itertools.cycle([ws, unwatched, unwatched, ws]), steps):
            tree, expected = taken[name]
            one.restore(tree)
            assert describe(ws.path) == expected
            assert ws.snapshot().id == unwatched.snapshot().id == tree.id
        assert set(zip(steps, steps[1:])) >= set(itertools.permutations(names, 2))


@ours
@given(trees, trees, st.booleans())
def test_any_tree_is_restored_from_any_other(old: Things, new: Things, watch: bool) -> None:
    with workspace(watch=watch) as ws:
        make(ws.path, old)
        before, first = describe(ws.path), ws.snapshot()
        clear(ws.path)
        make(ws.path, new)
        after = describe(ws.path)
        plan = ws.restore(first)
        assert describe(ws.path) == restored(after, before)
        assert plan.safety is not None
        undone = ws.restore(plan.safety)
        assert describe(ws.path) == after == restored(describe(ws.path), after)
        assert ws.snapshot().id == full_scan(ws.path) == plan.safety.id
        assert undone.safety is not None
        ws.restore(undone.safety)
        assert describe(ws.path) == restored(after, before)


@ours
@given(trees, st.randoms(use_true_random=False))
def test_equal_trees_have_equal_ids_in_whatever_order_they_are_made(
    things: Things, order: random.Random
) -> None:
    shuffled = list(things.items())
    order.shuffle(shuffled)
    with workspace(watch=False) as one, workspace(watch=False) as other:
        make(one.path, things)
        for path, thing in shuffled:
            if not isinstance(thing, Folder):
                make(other.path, {path: thing})
        make(
            other.path, {path: thing for path, thing in things.items() if isinstance(thing, Folder)}
        )
        assert describe(one.path) == describe(other.path)
        assert one.snapshot().id == other.snapshot().id


@ours
@given(trees, trees)
def test_trees_that_differ_have_ids_that_differ(old: Things, new: Things) -> None:
    described: list[Described] = []
    ids = []
    for things in (old, new):
        with workspace(watch=False) as ws:
            make(ws.path, things)
            described.append(captured(describe(ws.path)))
            ids.append(ws.snapshot().id)
    assert (ids[0] == ids[1]) == (described[0] == described[1])
