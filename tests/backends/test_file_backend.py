"""What the file backend promises beyond the contract: its layout, its modes, its manners."""

import hashlib
import os
import stat
import sys
import threading

import pytest

from agent_checkpoint import CheckpointManager, FileBackend
from agent_checkpoint.backends import file
from agent_checkpoint.backends.file_names import directory_name
from agent_checkpoint.backends.os_support import posix
from agent_checkpoint.backends.os_support.posix import store_lock, write_new
from agent_checkpoint.errors import ConflictError, StorageError
from agent_checkpoint.records import Entry

OBJECT = hashlib.sha256(b"object").hexdigest()


@pytest.fixture
def backend(tmp_path):
    return FileBackend(tmp_path / "store")


@pytest.fixture
def open_umask():
    usual = os.umask(0)
    yield
    os.umask(usual)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


# -- durable order -------------------------------------------------------------------------------


def test_each_name_is_durable_before_the_next_one_appears(backend, monkeypatch):
    """Not only written in order: a machine that loses power keeps any names that are not synced."""
    objects = {hashlib.sha256(data).hexdigest(): data for data in (b"1", b"2", b"3", b"4")}
    ids = list(objects)
    backend.put_objects({ids[1]: b"2"})
    calls = []
    link, sync = os.link, file.sync_directory

    def sync_directory(path):
        calls.append(path)
        sync(path)

    monkeypatch.setattr(os, "link", lambda old, new: calls.append(new) or link(old, new))
    monkeypatch.setattr(file, "sync_directory", sync_directory)
    monkeypatch.setattr(posix, "sync_directory", sync_directory)
    backend.append("key/a", b"entry", objects=objects)
    paths = [backend.path / "objects" / name[:2] / name for name in ids]
    steps = [call for call in calls if call in (*paths, *(path.parent for path in paths))]
    one, two, three, four = paths
    assert steps == [
        *(one, one.parent, two.parent),  # the second was there, perhaps not yet durable
        *(three, three.parent),
        *(four, four.parent),
    ]
    assert calls.index(four.parent) < calls.index(backend.path / "a" / "1.json")


# -- layout --------------------------------------------------------------------------------------


def test_layout(backend):
    backend.append("key/session_1", b"one", objects={OBJECT: b"object"})
    backend.append("key/session_1", b"two")
    backend.append("fx/session_1", b"effect")
    assert (backend.path / "session_1" / "1.json").read_bytes() == b"one"
    assert (backend.path / "session_1" / "2.json").read_bytes() == b"two"
    assert (backend.path / ".fx%2fsession_1" / "1.json").read_bytes() == b"effect"
    assert (backend.path / "objects" / OBJECT[:2] / OBJECT).read_bytes() == b"object"
    assert sorted(item.name for item in backend.path.iterdir()) == [
        ".fx%2fsession_1",
        ".lock",
        ".tmp",
        "objects",
        "session_1",
    ]
    assert os.listdir(backend.path / "session_1") != []
    assert os.listdir(backend.path / ".tmp") == []


def test_a_short_plain_name_has_no_names_file_and_no_last(backend):
    backend.append("key/plain", b"one")
    assert os.listdir(backend.path / "plain") == ["1.json"]


@pytest.mark.parametrize("key", ["Capitals", "k" * 500, "objects", "A\r\nB"])
def test_a_name_that_was_cut_is_kept_in_a_file(backend, key):
    backend.append(f"key/{key}", b"one")
    folder = backend.path / directory_name(f"key/{key}")
    assert sorted(os.listdir(folder)) == ["1.json", "name"]
    assert (folder / "name").read_bytes() == f"key/{key}".encode()
    assert list(FileBackend(backend.path).streams()) == [f"key/{key}"]


def test_last_is_the_highest_number_that_was_removed(backend):
    for _ in range(4):
        backend.append("key/a", b"x")
    last = backend.path / "a" / "last"
    backend.remove("key/a", [2])
    assert not last.exists()
    backend.remove("key/a", [4])
    assert last.read_bytes() == b"4\n"
    backend.remove("key/a", [3])
    assert last.read_bytes() == b"4\n"
    assert backend.append("key/a", b"x") == 5
    backend.remove("key/a", [1, 5])
    assert last.read_bytes() == b"5\n"
    assert sorted(os.listdir(backend.path / "a")) == ["last"]


def test_a_manager_writes_readable_files(tmp_path):
    manager = CheckpointManager(backend="file", path=tmp_path / "store")
    manager.save("session_1", {"notes": ["hello"]})
    text = (tmp_path / "store" / "session_1" / "1.json").read_text()
    assert '"notes"' in text
    assert '"hello"' in text
    assert text.count("\n") > 5


def test_nothing_is_kept_in_memory(backend):
    """Two openings of one directory are one store."""
    other = FileBackend(backend.path)
    assert backend.append("key/a", b"one") == 1
    assert other.append("key/a", b"two", after=1) == 2
    with pytest.raises(ConflictError):
        backend.append("key/a", b"three", after=1)
    other.remove("key/a", [1, 2])
    assert backend.read("key/a") == []
    assert backend.append("key/a", b"three", after=0) == 3


def test_a_relative_path_is_bound_when_it_is_opened(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    backend = FileBackend("store")
    monkeypatch.chdir(tmp_path / "there")
    backend.append("key/a", b"one")
    assert (tmp_path / "here" / "store" / "a" / "1.json").exists()
    assert os.listdir(tmp_path / "there") == []


# -- A14: modes ----------------------------------------------------------------------------------


def test_everything_is_private_also_under_umask_0(tmp_path, open_umask):
    backend = FileBackend(tmp_path / "new" / "parents" / "store")
    backend.append("key/a", b"one", objects={OBJECT: b"object"})
    backend.append("key/Cut", b"one")
    backend.append("key/a", b"two")
    backend.remove("key/a", [2])
    backend.put_objects({hashlib.sha256(b"x").hexdigest(): b"x"})
    seen = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert {mode(item) for item in seen if item.is_dir()} == {0o700}
    assert {mode(item) for item in seen if item.is_file()} == {0o600}
    assert {".lock", "last", "name", "1.json", OBJECT} <= {item.name for item in seen}


def test_temporary_files_are_private_from_the_start(tmp_path, open_umask):
    path = write_new(tmp_path, b"data")
    assert mode(path) == 0o600
    assert path.read_bytes() == b"data"


def test_the_mode_of_a_directory_that_was_there_is_left_alone(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o750)
    FileBackend(tmp_path / "store").append("key/a", b"one")
    assert mode(tmp_path / "store") == 0o750
    assert mode(tmp_path / "store" / "a") == 0o700


# -- what others put there -----------------------------------------------------------------------


def test_foreign_files_in_the_store_are_ignored(backend, tmp_path):
    backend.append("key/a", b"one")
    (backend.path / "README").write_bytes(b"mine")
    (backend.path / ".DS_Store").write_bytes(b"\0")
    (backend.path / "notes").mkdir()
    (backend.path / "Capitals").mkdir()
    (backend.path / "Capitals" / "1.json").write_bytes(b"{}")
    (backend.path / ".git").mkdir()
    (backend.path / ".git" / "1.json").write_bytes(b"{}")
    (backend.path / "x~0123").mkdir()
    (backend.path / "x~0123" / "1.json").write_bytes(b"{}")
    (backend.path / "%zz").mkdir()
    (backend.path / "%zz" / "1.json").write_bytes(b"{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1.json").write_bytes(b"{}")
    (backend.path / "link").symlink_to(outside)
    (backend.path / "broken").symlink_to(tmp_path / "nowhere")
    assert list(backend.streams()) == ["key/a"]
    assert backend.append("key/a", b"two") == 2


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS allows no such names")
def test_a_foreign_name_that_is_not_utf_8_is_ignored(backend):
    backend.append("key/a", b"one")
    folder = os.fsencode(backend.path) + b"/\xff\xfe"
    os.mkdir(folder)
    with open(folder + b"/1.json", "wb"):
        pass
    assert list(backend.streams()) == ["key/a"]


@pytest.mark.parametrize("name", ["key/other", "bad", "", "key/\ud800"])
def test_a_names_file_that_does_not_fit_its_directory_is_not_believed(backend, name):
    backend.append("key/Cut", b"one")
    folder = backend.path / directory_name("key/Cut")
    (folder / "name").write_bytes(name.encode("utf-8", "surrogatepass"))
    assert list(backend.streams()) == []
    assert backend.read("key/Cut") == [Entry(1, b"one")]


def test_foreign_files_in_a_stream_are_ignored(backend, tmp_path):
    backend.append("key/a", b"one")
    secret = tmp_path / "secret"
    secret.write_bytes(b"not for this store")
    folder = backend.path / "a"
    for name in ("0.json", "02.json", "-3.json", "4.json.bak", "x.json", "5", ".6.json", "7.JSON"):
        (folder / name).write_bytes(b"foreign")
    (folder / "8.json").symlink_to(secret)
    (folder / "9.json").mkdir()
    os.mkfifo(folder / "10.json")
    (folder / "11.json").symlink_to(tmp_path / "nowhere")
    assert backend.read("key/a") == [Entry(1, b"one")]
    assert backend.read("key/a", newest_first=True, limit=1) == [Entry(1, b"one")]
    # Their numbers are not used, or a writer would try the same one for ever.
    assert backend.append("key/a", b"two", after=1) == 12
    backend.remove("key/a", range(20))
    assert backend.read("key/a") == []
    assert secret.read_bytes() == b"not for this store"
    assert (folder / "8.json").is_symlink()
    assert backend.append("key/a", b"three", after=0) == 13


def test_a_number_beyond_all_that_were_given_out_stops_appends(backend):
    """Else the next entry would get a number that is not read back."""
    backend.append("key/a", b"one")
    (backend.path / "a" / ("9" * 18 + ".json")).write_bytes(b"foreign")
    with pytest.raises(StorageError, match="number"):
        backend.append("key/a", b"two")


def test_foreign_files_among_the_objects_are_ignored(backend):
    backend.put_objects({OBJECT: b"object"})
    (backend.path / "objects" / "README").write_bytes(b"mine")
    (backend.path / "objects" / OBJECT[:2] / ".DS_Store").write_bytes(b"mine")
    (backend.path / "objects" / OBJECT[:2] / ("ab" * 32)).mkdir()
    (backend.path / "objects" / "zz").symlink_to(backend.path)
    assert [info.id for info in backend.list_objects()] == [OBJECT]
    manager = CheckpointManager(backend)
    manager.save("a", {})
    assert manager.gc().objects == 1
    assert list(backend.list_objects()) == []


@pytest.mark.parametrize("content", [b"", b"x", b"-4\n", b"4.5", b"1_0", b"\xff", b"9" * 30])
def test_a_damaged_last_stops_appends_and_says_what_to_do(backend, content):
    """Guessing could give a number out twice."""
    for _ in range(3):
        backend.append("key/a", b"x")
    backend.remove("key/a", [3])
    last = backend.path / "a" / "last"
    last.write_bytes(content)
    with pytest.raises(StorageError, match="damaged; write the highest number") as caught:
        backend.append("key/a", b"x")
    assert str(last) in str(caught.value)
    assert [entry.seq for entry in backend.read("key/a")] == [1, 2]
    assert backend.append("key/b", b"x") == 1
    last.write_bytes(b"3")
    assert backend.append("key/a", b"x") == 4


def test_objects_go_in_the_given_order(backend, monkeypatch):
    """Not in one step: whoever dies in between has deleted parents before what they name."""
    names = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(20)]
    backend.put_objects(dict.fromkeys(names, b"x"))
    gone = []
    usual = type(backend.path).unlink
    monkeypatch.setattr(
        type(backend.path),
        "unlink",
        lambda path, **options: gone.append(path.name) or usual(path, **options),
    )
    backend.delete_objects(iter(names))
    assert gone == names


# -- leftovers of writers that died ---------------------------------------------------------------


LEFTOVERS = ["0a" * 12, "1b" * 12]


def leave_behind(backend):
    """What a writer leaves that dies while it writes a file, and while it begins a stream."""
    file, folder = (backend.path / ".tmp" / name for name in LEFTOVERS)
    file.write_bytes(b"half")
    folder.mkdir()
    (folder / "name").write_bytes(b"key/Half")


@pytest.mark.parametrize("sweep", ["remove", "delete_objects"])
def test_leftovers_are_swept_by_what_holds_the_lock_alone(backend, sweep):
    backend.append("key/a", b"one")
    leave_behind(backend)
    backend.append("key/a", b"two")
    backend.append("key/New", b"one")
    backend.put_objects({OBJECT: b"object"})
    assert sorted(os.listdir(backend.path / ".tmp")) == LEFTOVERS
    if sweep == "remove":
        backend.remove("key/a", [1])
    else:
        backend.delete_objects([])
    assert os.listdir(backend.path / ".tmp") == []


def test_nothing_is_swept_while_a_writer_holds_the_lock(backend):
    backend.append("key/a", b"one")
    leave_behind(backend)
    remover = threading.Thread(target=backend.remove, args=("key/a", [1]))
    with store_lock(backend.path / ".lock", exclusive=False):
        remover.start()
        remover.join(0.2)
        assert remover.is_alive()
        assert sorted(os.listdir(backend.path / ".tmp")) == LEFTOVERS
        assert [entry.seq for entry in backend.read("key/a")] == [1]
        assert backend.append("key/a", b"two") == 2  # writers share
    remover.join()
    assert os.listdir(backend.path / ".tmp") == []
    assert [entry.seq for entry in backend.read("key/a")] == [2]


def test_a_failed_append_leaves_no_temporary_file(backend):
    backend.append("key/a", b"one")
    with pytest.raises(ConflictError):
        backend.append("key/a", b"two", after=7, objects={OBJECT: b"object"})
    assert os.listdir(backend.path / ".tmp") == []
