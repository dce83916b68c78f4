"""A9, for trees: few bytes that stand for very many, and numbers that lie."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, IntegrityError, Workspace
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.store.objects.object_format import BLOB, make_object
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.tree import tree_limits
from agent_checkpoint.workspace.tree.tree_format import DIRECTORY
from tests.attacks.forging_trees import Forger, entry, look
from tests.crash.fault_process import child_environment

ROOM = 400 << 20
LONGEST = 60


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def forger(manager):
    return Forger(manager.store)


@pytest.fixture
def ws(tmp_path, manager):
    place = tmp_path / "workspace"
    place.mkdir()
    (place / "mine").write_bytes(b"mine")
    with Workspace(place, manager.store) as ws:
        yield ws


# -- bombs ---------------------------------------------------------------------------------------


def level(forger, below, fan_out, width=4):
    """A directory with many directories that are all the same one."""
    names = [f"{n:0{width}}".encode() for n in range(fan_out)]
    return forger.directory(
        *((entry(name, b"d", mode=0o755, rest=bytes(32)), [below]) for name in names)
    )


def laughing(forger):
    """A thousand millions of files."""
    name = forger.directory(forger.file(b"f", b"x"))
    for _ in range(3):
        name = level(forger, name, 1000)
    return forger.record(name)


def laughing_alone(forger):
    """The same of empty directories, of which a record counts none."""
    name = forger.directory()
    for _ in range(3):
        name = level(forger, name, 1000)
    return forger.record(name)


def deep(forger, depth=6000, name=b"n" * 255):
    """Paths of a megabyte and more."""
    below = forger.directory(forger.file(b"f", b"x"))
    head, made = entry(name, b"d", mode=0o755, rest=bytes(32)), {}
    for _ in range(depth):
        below, packed = make_object(DIRECTORY, head, [below])
        made[below] = packed.stored()
    forger.store.backend.put_objects(made)
    return forger.record(below)


def wide(forger):
    """A hundred thousand times the same part."""
    part = forger.directory(*(forger.file(b"%04d" % n) for n in range(1000)))
    return forger.record(forger.wide(*[part] * 10**5))


def fat_parts(forger):
    """Parts with as many entries as an object holds."""
    parts = []
    for start in range(6):
        names = (b"%02d%06d" % (start, n) for n in range(300_000))
        payload = b"".join(entry(name, b"l", mode=0o777, size=1, rest=b"x") for name in names)
        parts.append(forger.put(b"d", payload))
    return forger.record(forger.wide(*parts))


def lying_blobs(forger):
    """Files of a few bytes each, as they say, that are the largest objects there may be."""
    blobs = [forger.put(BLOB, bytes([n]) + bytes((1 << 25) - 100)) for n in range(16)]
    return forger.tree(*((entry(b"%03d" % n, size=3), [blob]) for n, blob in enumerate(blobs)))


def endless_chunks(forger):
    """A file of a petabyte, as it says, of which a hundred gigabytes are there in two objects."""
    piece = forger.blob(bytes(1 << 20))
    size = 10**9 << 20
    head = size.to_bytes(8, "little") + bytes(32)
    ref = forger.put(b"c", head, [piece] * 10**5)
    return forger.tree((entry(b"huge", b"c", size=size, rest=bytes(32)), [ref]))


def more_chunks_than_said(forger):
    """A small file, as it says, of a hundred thousand chunks."""
    piece = forger.blob(bytes(1 << 20))
    ref = forger.put(b"c", (5).to_bytes(8, "little") + bytes(32), [piece] * 10**5)
    return forger.tree((entry(b"small", b"c", size=5, rest=bytes(32)), [ref]))


def noted(forger):
    """A record of nothing but notes."""
    notes = [["a", "torn", ""]] * 200_000
    return forger.record(forger.directory(), notes=notes)


def nested(forger):
    """A record that no parser should follow."""
    return forger.record_of(b'{"id":' + b"[" * 10**7, [forger.directory()])


BOMBS = {
    laughing: "IntegrityError",
    laughing_alone: "IntegrityError",
    deep: "IntegrityError",
    wide: "IntegrityError",
    fat_parts: "IntegrityError",
    lying_blobs: "IntegrityError",
    endless_chunks: "WorkspaceError",  # there is no room for it
    more_chunks_than_said: "IntegrityError",
    noted: "done",
    nested: "IntegrityError",
}


def explode(number, place):
    """Run as a process: make a bomb, then bound the memory, and tell what becomes of it."""
    import resource

    place = Path(place)
    (place / "workspace").mkdir()
    (place / "workspace" / "mine").write_bytes(b"mine")
    with CheckpointManager(backend="sqlite", path=place / "store") as manager:
        tree = list(BOMBS)[int(number)](Forger(manager.store))
    manager = CheckpointManager(backend="sqlite", path=place / "store")
    ws = Workspace(place / "workspace", manager.store)
    ws.snapshot()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    began = time.monotonic()
    for act in (
        lambda: ws.restore(ObjectRef(tree.name, manager.store.backend)),
        lambda: str(ws.diff(ObjectRef(tree.name, manager.store.backend))),
    ):
        try:
            act()
            told = "done"
        except CheckpointError as error:
            told = type(error).__name__
        print(told, flush=True)
    print(json.dumps({"seconds": time.monotonic() - began, "left": sorted(look(ws.path))}))


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_few_objects_that_stand_for_many(bomb, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is bounded and measured on Linux only")
    number = list(BOMBS).index(bomb)
    program = f"import {__name__} as here; here.explode({number}, {str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    restored, _, told = done.stdout.splitlines()
    told = json.loads(told)
    assert restored == BOMBS[bomb], done.stdout
    assert told["left"] == ([] if restored == "done" else ["mine"])
    assert told["seconds"] < LONGEST


def test_the_bound_is_one_of_all_that_there_is_to_go_through(ws, forger, monkeypatch):
    monkeypatch.setattr(tree_limits, "_CHECK_AFTER", 10_000)
    tree = forger.record(level(forger, forger.directory(forger.file(b"f", b"x")), 100))
    for most, is_refused in ((100_000, False), (50_000, True)):
        monkeypatch.setattr(tree_limits, "MAX_TREE_BYTES", most)
        if is_refused:
            with pytest.raises(IntegrityError, match="decode limit"):
                ws.restore(tree, dry_run=True)
        else:
            assert len(ws.restore(tree, dry_run=True).write) == 200


# -- numbers that lie ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"files": -1},
        {"files": 10**30},
        {"bytes": 10**300},
        {"files": "1000"},
        {"id": "00"},
        {"id": 5},
        {"notes": [["mine", "no such kind", "x"]]},
        {"notes": [["../outside", "torn", "x"], ["", "torn", ""], ["/", "unreadable", ""]]},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_counts_that_lie_change_nothing(ws, forger, changes):
    """They are for people to read: nothing is reckoned by them."""
    tree = forger.record(forger.directory(forger.file(b"good", b"good")), **changes)
    plan = ws.restore(tree)
    assert look(ws.path) == {"good": (0o100644, b"good")}
    str(plan)
    ws.restore(plan.safety)
    assert look(ws.path) == {"mine": (0o100644, b"mine")}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"id":"a"}',
        b"\xff",
        b'{"id":1,"files":Infinity,"bytes":0,"ignore":[],"gitignore":false,"notes":[]}',
        b'{"id":1,"files":NaN,"bytes":0,"ignore":[],"gitignore":false,"notes":[]}',
        b'{"id":1,"files":1e999,"bytes":0,"ignore":[],"gitignore":false,"notes":[]}',
        b'{"id":1,"files":[],"bytes":0,"ignore":[],"gitignore":false,"notes":[]}',
        b'{"id":1,"files":1,"bytes":0,"ignore":5,"gitignore":false,"notes":[]}',
        b'{"id":1,"files":1,"bytes":0,"ignore":[],"gitignore":false,"notes":[1]}',
        b'{"id":1,"files":1,"bytes":0,"ignore":[],"gitignore":false,"notes":[["a"]]}',
        b'{"id":1,"files":1,"bytes":0,"ignore":[],"gitignore":false,"notes":[["\\ud800","torn",""]]}',
        b'{"id":1,"files":1,"bytes":0,"ignore":["\\ud800"],"gitignore":false,"notes":[]}',
        b'{"id":1,"files":1,"bytes":0,"ignore":["a\\nb"],"gitignore":false,"notes":[]}',
    ],
    ids=range(16),
)
def test_records_that_are_none(ws, forger, payload):
    before = look(ws.path)
    tree = forger.record_of(payload, [forger.directory()])
    with pytest.raises(CheckpointError):
        ws.restore(tree)
    with pytest.raises(CheckpointError):
        ws.load_state_dict(tree)
    assert look(ws.path) == before


def test_a_record_that_names_no_root_or_two(ws, forger):
    good = json.dumps(
        {"id": "a", "files": 0, "bytes": 0, "ignore": [], "gitignore": False, "notes": []}
    ).encode()
    for refs in ([], [forger.directory(), forger.directory()], ["ab" * 32]):
        with pytest.raises(IntegrityError):
            ws.restore(forger.record_of(good, refs))
    assert look(ws.path) == {"mine": (0o100644, b"mine")}


def test_chunks_that_do_not_make_up_the_file(ws, forger):
    before = look(ws.path)
    for bad in (
        forger.chunked(b"f", [b"abc", b"def"], 5),
        forger.chunked(b"f", [b"abc", b"def"], 7),
        forger.chunked(b"f", [b"abc", b"def"], 0),
        forger.chunked(b"f", [b"abc", b"def"], 6, whole=b"abcdeg"),
        forger.chunked(b"f", [], 6, whole=b"abcdef"),
    ):
        with pytest.raises(IntegrityError):
            ws.restore(forger.tree(bad))
        assert look(ws.path) == before
    ws.restore(forger.tree(forger.chunked(b"f", [b"abc", b"def"], 6)))
    assert look(ws.path) == {"f": (0o100644, b"abcdef")}
