"""A5: trees that no directory can be are refused when they are parsed, before anything is written.

What is left of a forged tree is then a tree that some directory could have been, and restoring it
does no more harm than any other.
"""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.errors import CheckpointError, IntegrityError, WorkspaceError
from agent_checkpoint.store.objects.object_format import open_object
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.restore import apply as restore_module
from agent_checkpoint.workspace.tree.tree_format import check_name
from tests.attacks.forging_trees import Forger, entry, look


@pytest.fixture
def victim(tmp_path):
    """Somebody's files around the workspace, which must stay as they are."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_bytes(b"mine")
    (tmp_path / "escaped").mkdir()
    before = look(tmp_path / "outside")
    yield tmp_path / "outside"
    assert look(tmp_path / "outside") == before
    assert look(tmp_path / "escaped") == {}
    assert not Path("/escaped").exists()


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def forger(manager):
    return Forger(manager.store)


@pytest.fixture
def ws(tmp_path, manager, victim):
    place = tmp_path / "workspace"
    place.mkdir()
    (place / "mine").write_bytes(b"mine")
    (place / "sub").mkdir()
    (place / "sub" / "mine").write_bytes(b"mine too")
    with Workspace(place, manager.store) as ws:
        yield ws


def check_refused(ws, tree):
    """Nothing is written, not even a staged file, and the workspace can be used as before."""
    before = look(ws.path)
    with pytest.raises(IntegrityError):
        ws.restore(tree)
    with pytest.raises(IntegrityError):
        ws.restore(tree, dry_run=True)
    with pytest.raises(IntegrityError):
        ws.diff(tree)
    assert look(ws.path) == before
    assert ws.restore(ws.snapshot()).steps == []


NAMES = {
    "dots": b"..",
    "dot": b".",
    "empty": b"",
    "slash": b"/",
    "absolute": b"/escaped",
    "below": b"a/b",
    "above": b"../escaped",
    "far above": b"sub/../../escaped",
    "with a slash at its end": b"a/",
    "NUL": b"a\0b",
    "only NUL": b"\0",
    "NUL at its end": b"mine\0",
}


@pytest.mark.parametrize("kind", ["file", "folder", "link", "chunks"])
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("is_deep", [False, True], ids=["at the top", "deep"])
@pytest.mark.slow
def test_names_that_no_entry_can_have(ws, forger, name, kind, is_deep):
    bad = {
        "file": lambda: forger.file(name, b"evil"),
        "folder": lambda: forger.folder(name, forger.file(b"evil", b"evil")),
        "link": lambda: forger.link(name, b"/etc/passwd"),
        "chunks": lambda: forger.chunked(name, [b"evil"], 4),
    }[kind]()
    if is_deep:
        bad = forger.folder(b"sub", forger.folder(b"deeper", bad))
    # In order, so that nothing is wrong but the name.
    entries = [forger.file(b"\x01good", b"good")] if name > b"\x01good" else []
    check_refused(ws, forger.tree(*entries, bad))


def test_names_by_themselves():
    for name in (*NAMES.values(), b"n" * 256, b"n" * 5000):
        with pytest.raises(IntegrityError):
            check_name(name)
    for name in (b"...", b"n" * 255, b"\xff\xfe", b"a b\n", b"-rf", b"..a", b" ", b"\x01"):
        assert check_name(name) == name


@pytest.mark.parametrize(
    "make",
    [
        lambda f: [f.file(b"a"), f.file(b"a", b"other")],
        lambda f: [f.file(b"a"), f.folder(b"a")],
        lambda f: [f.link(b"a", b"/escaped"), f.folder(b"a", f.file(b"evil", b"evil"))],
        lambda f: [f.file(b"b"), f.file(b"a")],
        lambda f: [f.file(b"a"), f.file(b"b"), f.file(b"a")],
    ],
    ids=["files", "file and folder", "link and folder", "out of order", "apart"],
)
def test_names_that_come_twice(ws, forger, make):
    check_refused(ws, forger.tree(*make(forger)))
    check_refused(ws, forger.tree(forger.folder(b"sub", *make(forger))))
    one, *rest = (forger.directory(item) for item in make(forger))
    check_refused(ws, forger.record(forger.wide(one, *rest)))


@pytest.mark.parametrize(
    "bad",
    [
        entry(b"a", mode=0o4755),
        entry(b"a", mode=0o2755),
        entry(b"a", mode=0o1755),
        entry(b"a", mode=0xFFFF),
        entry(b"a", b"p"),
        entry(b"a", b"s"),
        entry(b"a", b"b"),
        entry(b"a", b"\0"),
        entry(b"a", b"h"),
        entry(b"a", length=200),
        entry(b"a", b"l", size=0),
        entry(b"a", b"l", size=5000, rest=b"x" * 5000),
        entry(b"a", b"l", size=1 << 63, rest=b"x"),
        entry(b"a", b"l", size=4, rest=b"a\0bc"),
        entry(b"a", b"d", rest=b"short"),
        entry(b"a", b"d", size=7, rest=bytes(32)),
        entry(b"a", b"c", rest=b"short"),
        entry(b"a")[:-1],
        entry(b"a")[:5],
        b"\0",
        entry(b"a") + b"\0",
    ],
    ids=range(21),
)
def test_entries_that_are_none(ws, forger, bad):
    check_refused(ws, forger.tree((bad, [forger.blob(b"")])))


def test_references_that_do_not_fit(ws, forger):
    blob, file = forger.blob(b""), entry(b"a")
    too_many, too_few = forger.tree((file, [blob, blob])), forger.tree((file, []))
    for tree in (too_many, too_few):
        check_refused(ws, tree)
    link = entry(b"a", b"l", mode=0o777, size=1, rest=b"x")
    check_refused(ws, forger.tree((link, [blob])))


def test_objects_of_another_kind(ws, forger):
    blob = forger.blob(b"no directory")
    folder = (entry(b"a", b"d", mode=0o755, rest=bytes(32)), [blob])
    check_refused(ws, forger.tree(folder))
    check_refused(ws, forger.record(blob))
    check_refused(ws, forger.record(forger.wide(blob)))
    check_refused(ws, forger.record(forger.wide(forger.wide(forger.directory()))))
    for ref in (forger.directory(), blob):
        check_refused(ws, ObjectRef(ref, ws.store.backend))


@pytest.mark.parametrize(
    "make",
    [
        lambda f: (entry(b"mine", size=4), [f.directory()]),
        lambda f: (entry(b"mine", size=99), [f.blob(b"evil")]),
        lambda f: (entry(b"mine", size=4), ["ab" * 32]),
        lambda f: (entry(b"mine", b"c", size=4, rest=bytes(32)), [f.blob(b"evil")]),
    ],
    ids=["a directory", "of another size", "that is missing", "no list of chunks"],
)
def test_contents_that_are_none_are_found_before_anything_is_touched(ws, forger, make):
    before = look(ws.path)
    with pytest.raises(IntegrityError):
        ws.restore(forger.tree(make(forger)))
    assert look(ws.path) == before


def test_any_bytes_are_refused_or_harmless(ws, forger):
    """A tree with some bytes changed, and its names as they should be then."""
    chosen = random.Random(5)
    good = forger.directory(
        forger.file(b"a", b"a"),
        forger.folder(b"b", forger.file(b"c")),
        forger.chunked(b"d", [b"d", b"e"], 2),
        forger.link(b"e", b"mine"),
    )
    (stored,) = ws.store.backend.get_objects([good]).values()
    whole = open_object(good, stored)
    for _ in range(300):
        data = bytearray(whole.payload)
        for _ in range(chosen.choice((1, 1, 2, 8))):
            data[chosen.randrange(len(data))] = chosen.choice((0, 0xFF, chosen.randrange(256)))
        payload = bytes(data[: chosen.choice((len(data), chosen.randrange(len(data))))])
        tree = forger.record(forger.put(b"d", payload, whole.refs))
        before = look(ws.path)
        try:
            ws.restore(tree)
        except CheckpointError:
            if look(ws.path) != before:
                ws.restore(ws.snapshot())
        assert not (ws.path / ".agent-checkpoint-restore").exists()


def test_a_tree_in_an_archive_from_elsewhere(tmp_path, ws, manager):
    elsewhere = CheckpointManager(backend="sqlite", path=tmp_path / "elsewhere")
    forger = Forger(elsewhere.store)
    for number, name in enumerate(NAMES.values()):
        forger.checkpoint(f"evil {number}", forger.tree(forger.file(name, b"evil")))
        elsewhere.export_archive(tmp_path / f"{number}.ckpt", f"evil {number}")
    elsewhere.close()
    before = look(ws.path)
    for number in range(len(NAMES)):
        key = manager.import_archive(tmp_path / f"{number}.ckpt")
        with pytest.raises(IntegrityError):
            manager.load(key, {"workspace": ws})
        check_refused(ws, manager.state_dict(key)["workspace"])
    assert look(ws.path) == before


# -- our own names -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_where_restores_are_staged_nothing_is_restored(ws, forger, victim, kind):
    """Nobody's journal is restored, and nothing that is in our way at the next restore."""
    name = b".agent-checkpoint-restore"
    made = {
        "file": lambda: forger.file(name, b"evil"),
        "folder": lambda: forger.folder(
            name,
            forger.folder(b"files", forger.folder(b"deep", forger.file(b"evil"))),
            forger.file(b"journal", b"{}"),
            forger.folder(b"other", forger.file(b"evil")),
        ),
        "link": lambda: forger.link(name, b"../outside"),
    }[kind]()
    plan = ws.restore(forger.tree(made, forger.file(b"good", b"good")))
    assert look(ws.path) == {"good": (0o100644, b"good")}
    assert name.decode() in plan.leave
    with Workspace(ws.path, ws.store) as again:
        again.restore(plan.safety)
        assert (ws.path / "mine").read_bytes() == b"mine"


# -- targets that know no case -------------------------------------------------------------------


@pytest.fixture
def caseless(tmp_path):
    """A directory in which A and a are the same."""
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    ways = (
        (["mkfs.ext4", "-q", "-O", "casefold", "-E", "encoding=utf8"], ["chattr", "+F"]),
        (["mkfs.vfat"], ["true"]),
    )
    for make, prepare in ways:  # noqa: B007 (it is used below)
        if shutil.which(make[0]) is None:
            continue
        made = subprocess.run([*make, image], capture_output=True)
        if made.returncode == 0:
            mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True)
            if mounted.returncode == 0:
                break
    else:
        pytest.skip("neither ext4 with casefold nor vfat can be mounted here")
    try:
        (place / "workspace").mkdir()
        subprocess.run([*prepare, place / "workspace"], check=True)
        yield place / "workspace"
    finally:
        subprocess.run(["umount", place], check=True)


def collide(forger):
    return forger.tree(forger.file(b"A", b"one"), forger.file(b"a", b"two"))


def test_names_that_collide_where_case_does_not_count(caseless, manager):
    with Workspace(caseless, manager.store) as ws:
        with pytest.raises(WorkspaceError, match=r"'A'.*'a'|'a'.*'A'"):
            ws.restore(collide(Forger(manager.store)))
        assert look(caseless) == {}
        (caseless / "sub").mkdir()
        forger = Forger(manager.store)
        two = forger.folder(b"SUB", forger.file(b"evil")), forger.folder(b"sub")
        assert "SUB" in ws.restore(forger.tree(*two)).leave
        assert list(look(caseless)) == ["sub"]


def test_names_that_would_collide_if_case_did_not_count(ws, forger, monkeypatch):
    """The same where no such file system can be mounted: only the look at the disk is feigned."""
    monkeypatch.setattr(restore_module, "_ignores_case", lambda root: True)
    before = look(ws.path)
    for tree in (
        collide(forger),
        forger.tree(forger.folder(b"d", forger.file("É".encode()), forger.file("é".encode()))),
        forger.tree(forger.folder(b"NEW", forger.file(b"x")), forger.link(b"new", b"mine")),
    ):
        with pytest.raises(WorkspaceError, match="case"):
            ws.restore(tree)
        assert look(ws.path) == before


def test_they_are_two_files_where_case_counts(ws, forger):
    ws.restore(collide(forger))
    assert look(ws.path) == {"A": (0o100644, b"one"), "a": (0o100644, b"two")}
