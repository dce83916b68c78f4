"""A store unpacked from elsewhere: its links, pipes and huge files do no harm."""

import hashlib
import os
import signal

import pytest

from agent_checkpoint import CheckpointManager, FileBackend
from agent_checkpoint.errors import InvalidInputError, NotFoundError, StorageError
from agent_checkpoint.records import Entry

OBJECT = hashlib.sha256(b"object").hexdigest()
OUR_NAME = "ab" * 12


@pytest.fixture(autouse=True)
def nothing_hangs():
    def give_up(number, frame):
        raise AssertionError("it hangs")

    usual = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


@pytest.fixture
def backend(tmp_path):
    backend = FileBackend(tmp_path / "store")
    backend.append("key/a", b"one")
    backend.append("key/a", b"two")
    return FileBackend(tmp_path / "store")  # opened anew: it knows nothing of what was there


@pytest.fixture
def victim(tmp_path):
    """Somebody's directory, with names such as ours, which must stay as it is."""
    place = tmp_path / "victim"
    (place / OBJECT[:2]).mkdir(parents=True)
    names = ["mine.txt", "1.json", "2.json", "name", OUR_NAME, OBJECT, f"{OBJECT[:2]}/{OBJECT}"]
    for name in names:
        (place / name).write_bytes(b"mine")
    before = contents(place)
    yield place
    assert contents(place) == before


def contents(place):
    return {
        item: item.read_bytes() if item.is_file() else None for item in sorted(place.rglob("*"))
    }


def put_link(backend, name, victim):
    link = backend.path / name
    if link.is_dir():
        for item in link.iterdir():
            item.unlink()
        link.rmdir()
    link.unlink(missing_ok=True)
    link.symlink_to(victim)


def changes(backend):
    return [
        lambda: backend.append("key/a", b"x", objects={OBJECT: b"object"}),
        lambda: backend.put_objects({OBJECT: b"object"}),
        lambda: backend.remove("key/a", [1]),
        lambda: backend.delete_objects([OBJECT]),
    ]


@pytest.mark.parametrize("name", [".tmp", "objects"])
def test_a_link_in_place_of_a_folder_is_refused(backend, victim, name):
    put_link(backend, name, victim)
    for change in changes(backend):
        with pytest.raises(StorageError, match=r"symbolic link.*remove it") as caught:
            change()
        assert str(backend.path / name) in str(caught.value)
    manager = CheckpointManager(backend)
    with pytest.raises(StorageError):
        manager.save("new", {"x": 1})
    assert backend.read("key/a") == [Entry(1, b"one"), Entry(2, b"two")]


def test_objects_behind_a_link_are_not_there(backend, victim):
    put_link(backend, "objects", victim)
    assert backend.get_objects([OBJECT]) == {}
    assert backend.missing_objects([OBJECT]) == {OBJECT}
    assert list(backend.list_objects()) == []


def test_a_folder_of_objects_that_is_a_link(backend, victim):
    put_link(backend, f"objects/{OBJECT[:2]}", victim)
    assert backend.get_objects([OBJECT]) == {}
    assert backend.missing_objects([OBJECT]) == {OBJECT}
    assert list(backend.list_objects()) == []
    for change in [
        lambda: backend.append("key/a", b"x", objects={OBJECT: b"object"}),
        lambda: backend.put_objects({OBJECT: b"object"}),
        lambda: backend.delete_objects([OBJECT]),
    ]:
        with pytest.raises(StorageError, match="remove it"):
            change()


@pytest.mark.parametrize("name", [".lock", ".gate"])
@pytest.mark.parametrize("there", [True, False])
def test_a_lock_that_is_a_link(backend, victim, name, there):
    put_link(backend, name, victim / ("mine.txt" if there else "new"))
    for change in changes(backend):
        with pytest.raises(StorageError, match="remove it"):
            change()


@pytest.mark.parametrize("name", [".lock", ".gate"])
def test_a_lock_that_is_a_pipe(backend, name):
    (backend.path / name).unlink(missing_ok=True)
    os.mkfifo(backend.path / name)
    for change in changes(backend):
        with pytest.raises(StorageError, match="not a regular file"):
            change()


@pytest.mark.parametrize("key", ["evil", "Evil"])
def test_a_key_that_is_a_link(backend, victim, key):
    (victim / "name").write_bytes(f"key/{key}".encode())  # as a cut name would have it
    backend.append(f"key/{key}", b"one")
    [name] = {item.name for item in backend.path.iterdir() if item.name.lower().startswith("evil")}
    put_link(backend, name, victim)
    before = contents(victim)
    manager = CheckpointManager(backend)
    with pytest.raises(StorageError, match="remove it"):
        backend.append(f"key/{key}", b"x")
    with pytest.raises(StorageError, match="remove it"):
        backend.remove(f"key/{key}", [1, 2])
    with pytest.raises(StorageError, match="remove it"):
        manager.save(key, {"x": 1})
    with pytest.raises(NotFoundError):
        manager.delete(key)
    assert backend.read(f"key/{key}") == []
    assert f"key/{key}" not in backend.streams()
    assert contents(victim) == before
    (victim / "name").write_bytes(b"mine")


def test_only_our_own_leftovers_are_swept(backend, victim):
    tmp = backend.path / ".tmp"
    (tmp / OUR_NAME).symlink_to(victim)
    (tmp / ("cd" * 12)).write_bytes(b"half")
    (tmp / ("ef" * 12)).mkdir()
    (tmp / ("ef" * 12) / "name").symlink_to(victim / "name")
    (tmp / ("01" * 12)).mkdir()
    (tmp / ("01" * 12) / "deep").mkdir()
    (tmp / "notes.txt").write_bytes(b"not ours")
    (tmp / "link").symlink_to(victim)
    backend.remove("key/a", [1])
    assert sorted(os.listdir(tmp)) == ["01" * 12, "link", "notes.txt"]


def test_the_store_itself_may_be_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    backend = FileBackend(tmp_path / "link")
    for stream in ("key/a", "key/Cut"):
        backend.append(stream, b"one", objects={OBJECT: b"object"})
        backend.append(stream, b"two")
        backend.remove(stream, [1])
        assert backend.read(stream) == [Entry(2, b"two")]
    assert sorted(backend.streams()) == ["key/Cut", "key/a"]
    assert backend.get_objects([OBJECT]) == {OBJECT: b"object"}


# -- what is not a plain small file --------------------------------------------------------------


def huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no space on the disk, but all of the memory


KINDS = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link": lambda path: path.symlink_to(path.parent / "1.json"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.fixture(params=KINDS)
def odd(request):
    return KINDS[request.param]


def check_damaged_last(backend):
    with pytest.raises(StorageError, match="damaged"):
        backend.append("key/a", b"three")
    with pytest.raises(StorageError, match="damaged"):
        backend.remove("key/a", [2])
    assert backend.read("key/a") == [Entry(1, b"one"), Entry(2, b"two")]


def test_an_odd_last_is_damaged(backend, odd):
    odd(backend.path / "a" / "last")
    check_damaged_last(backend)


def test_a_huge_last_is_damaged(backend):
    huge(backend.path / "a" / "last")
    check_damaged_last(backend)


@pytest.mark.parametrize("make", [*KINDS.values(), huge], ids=[*KINDS, "huge"])
def test_a_folder_with_an_odd_name_is_not_ours(backend, make):
    backend.append("key/Cut", b"one")
    [folder] = backend.path.glob("Cut~*")
    (folder / "name").unlink()
    make(folder / "name")
    assert list(backend.streams()) == ["key/a"]


def test_an_odd_entry_is_not_there(backend, odd):
    odd(backend.path / "a" / "3.json")
    assert [entry.seq for entry in backend.read("key/a")] == [1, 2]
    backend.remove("key/a", [3])
    assert backend.append("key/a", b"four") == 4


def test_an_odd_object_is_not_there_and_not_taken_for_written(backend, odd):
    folder = backend.path / "objects" / OBJECT[:2]
    folder.mkdir()
    odd(folder / OBJECT)
    assert backend.get_objects([OBJECT]) == {}
    assert backend.missing_objects([OBJECT]) == {OBJECT}
    assert list(backend.list_objects()) == []
    with pytest.raises(StorageError, match="not a regular file"):
        backend.append("key/a", b"x", objects={OBJECT: b"object"})
    assert [entry.seq for entry in backend.read("key/a")] == [1, 2]
    assert os.listdir(backend.path / ".tmp") == []


# -- paths ---------------------------------------------------------------------------------------


class BytesPath:
    def __fspath__(self):
        return b"store"


@pytest.mark.parametrize(
    "path", ["", b"", b"store", "a\ud800b", f"a{chr(0xDCFF)}b", BytesPath(), 7, None]
)
def test_what_is_not_a_path_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError):
        FileBackend(path)
    with pytest.raises(InvalidInputError):
        CheckpointManager(backend="file", path=path)
    assert os.listdir(tmp_path) == []


def test_the_home_of_nobody_is_refused():
    with pytest.raises(InvalidInputError):
        FileBackend("~no-such-user/store")


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_database_or_a_log_that_is_no_file(tmp_path, end, kind):
    place = tmp_path / "store"
    with CheckpointManager(backend="sqlite", path=place) as manager:
        manager.save("k", {"x": 1})
    path = place / f"store.db{end}"
    path.rename(tmp_path / "mine") if path.exists() else (tmp_path / "mine").write_bytes(b"mine")
    before = (tmp_path / "mine").read_bytes()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(tmp_path / "mine")
    with CheckpointManager(backend="sqlite", path=place) as manager:
        for use in (lambda: manager.load("k", {}), lambda: manager.save("k", {"x": 2})):
            with pytest.raises(StorageError, match="not a regular file; remove it"):
                use()
    assert (tmp_path / "mine").read_bytes() == before
