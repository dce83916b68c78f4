"""A7: fifos, devices, sockets and setuid bits in a workspace: skipped, reported, never restored."""

import os
import signal
import socket
import stat

import pytest

from agent_checkpoint import CheckpointManager, IntegrityError, Workspace
from tests.attacks.forging_trees import Forger, entry, look


@pytest.fixture(autouse=True)
def nothing_hangs():
    def give_up(number, frame):
        raise AssertionError("it hangs")

    usual = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def ws(tmp_path, manager):
    place = tmp_path / "workspace"
    (place / "d").mkdir(parents=True)
    (place / "f").write_bytes(b"ours")
    (place / "d" / "f").write_bytes(b"ours too")
    with Workspace(place, manager.store) as ws:
        yield ws


def make_socket(path):
    bound = socket.socket(socket.AF_UNIX)
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)  # the name of a socket must be short
        bound.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)
        bound.close()


def make_device(kind, major, minor):
    def make(path):
        try:
            os.mknod(path, kind | 0o600, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("devices can be made by root only")

    return make


SPECIALS = {
    "a fifo": os.mkfifo,
    "a socket": make_socket,
    "a device": make_device(stat.S_IFCHR, 1, 5),  # /dev/zero: whoever reads it never ends
    "a block device": make_device(stat.S_IFBLK, 7, 250),
}


@pytest.fixture(params=SPECIALS)
def special(request):
    return SPECIALS[request.param]


def kind(path):
    return stat.S_IFMT(path.lstat().st_mode)


def test_it_is_skipped_and_reported(ws, special):
    special(ws.path / "odd")
    special(ws.path / "d" / "odd")
    tree = ws.snapshot()
    assert [(note.path, note.kind) for note in tree.notes] == [
        ("d/odd", "special"),
        ("odd", "special"),
    ]
    assert tree.files == 2
    assert not tree.incomplete  # nothing that could have been captured is missing
    assert ws.restore(tree).steps == []


def test_it_is_left_alone_by_a_restore(ws, special):
    tree = ws.snapshot()
    special(ws.path / "odd")
    special(ws.path / "d" / "odd")
    made = kind(ws.path / "odd")
    (ws.path / "f").write_bytes(b"changed")
    plan = ws.restore(tree)
    assert (ws.path / "f").read_bytes() == b"ours"
    assert kind(ws.path / "odd") == kind(ws.path / "d" / "odd") == made
    assert "odd" not in plan.delete


def test_it_is_left_alone_in_the_place_of_a_file(ws, special):
    tree = ws.snapshot()
    (ws.path / "f").unlink()
    special(ws.path / "f")
    made = kind(ws.path / "f")
    plan = ws.restore(tree)
    assert "f" in plan.leave
    assert kind(ws.path / "f") == made
    assert "f" in ws.restore(tree, dry_run=True).leave


def test_it_is_left_alone_in_the_place_of_a_directory(ws, special):
    tree = ws.snapshot()
    (ws.path / "d" / "f").unlink()
    (ws.path / "d").rmdir()
    special(ws.path / "d")
    made = kind(ws.path / "d")
    assert "d" in ws.restore(tree).leave
    assert kind(ws.path / "d") == made


def test_a_directory_that_holds_it_stays(ws, special):
    tree = ws.snapshot()
    (ws.path / "new" / "deep").mkdir(parents=True)
    (ws.path / "new" / "deep" / "f").write_bytes(b"new")
    special(ws.path / "new" / "deep" / "odd")
    plan = ws.restore(tree)
    assert "new" in plan.leave
    assert sorted(os.listdir(ws.path / "new" / "deep")) == ["odd"]


@pytest.mark.parametrize("watch", [True, False])
def test_a_file_that_became_one_is_no_longer_captured(ws, special, watch):
    with Workspace(ws.path, ws.store, watch=watch) as again:
        assert again.snapshot().files == 2
        (ws.path / "f").unlink()
        special(ws.path / "f")
        tree = again.snapshot()
        assert tree.files == 1
        assert [note.path for note in tree.notes] == ["f"]
        (ws.path / "f").unlink()
        (ws.path / "f").write_bytes(b"a file again")
        tree = again.snapshot()
        assert (tree.files, tree.notes) == (2, ())


@pytest.mark.parametrize("name", [".checkpointignore", ".gitignore"])
def test_it_says_nothing_in_the_place_of_a_file_of_rules(ws, special, name):
    special(ws.path / name)
    with Workspace(ws.path, ws.store, gitignore=True) as again:
        tree = again.snapshot()
        assert tree.files == 2
        again.restore(tree)


@pytest.mark.parametrize("letter", [b"p", b"s", b"c", b"b", b"n"])
def test_it_is_refused_in_a_tree(ws, letter):
    forger, before = Forger(ws.store), look(ws.path)
    with pytest.raises(IntegrityError):
        ws.restore(forger.tree((entry(b"odd", letter), [forger.blob(b"")])))
    assert look(ws.path) == before


# -- bits ----------------------------------------------------------------------------------------


BITS = [0o4755, 0o2755, 0o6755, 0o1644, 0o7777]


@pytest.mark.parametrize("mode", BITS, ids=oct)
def test_setuid_bits_are_reported_and_not_restored(ws, mode):
    (ws.path / "f").chmod(mode)
    tree = ws.snapshot()
    assert [(note.path, note.kind) for note in tree.notes] == [("f", "setuid")]
    (ws.path / "f").unlink()
    ws.restore(tree)
    assert stat.S_IMODE((ws.path / "f").stat().st_mode) == mode & 0o777
    assert (ws.path / "f").read_bytes() == b"ours"


@pytest.mark.parametrize("mode", BITS, ids=oct)
def test_setuid_bits_do_not_survive_a_restored_content(ws, mode):
    tree = ws.snapshot()
    (ws.path / "f").write_bytes(b"changed")
    (ws.path / "f").chmod(mode)
    ws.restore(tree)
    assert stat.S_IMODE((ws.path / "f").stat().st_mode) == 0o644


@pytest.mark.parametrize("mode", BITS, ids=oct)
def test_setuid_bits_in_a_tree_are_refused(ws, mode):
    forger, before = Forger(ws.store), look(ws.path)
    for bad in (
        forger.file(b"f", b"evil", mode=mode),
        forger.folder(b"g", mode=mode),
        forger.link(b"h", b"f", mode=mode),
    ):
        with pytest.raises(IntegrityError):
            ws.restore(forger.tree(bad))
    assert look(ws.path) == before


@pytest.mark.parametrize("mode", [0o2775, 0o1777, 0o2500, 0o3555], ids=oct)
def test_bits_of_a_directory_that_is_there_stay(ws, mode):
    """They are not the business of a restore, which neither gives nor takes them."""
    (ws.path / "d").chmod(mode)
    tree = ws.snapshot()
    (ws.path / "d" / "f").write_bytes(b"changed")
    (ws.path / "d").chmod(mode & 0o7000 | 0o711)
    ws.restore(tree)
    assert stat.S_IMODE((ws.path / "d").stat().st_mode) == mode
    assert (ws.path / "d" / "f").read_bytes() == b"ours too"
