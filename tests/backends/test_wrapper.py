"""A wrapped backend passes the shipped suite, and a wrapper loses no feature of a backend."""

import shutil

import pytest

from agent_checkpoint import (
    Backend,
    CheckpointManager,
    CountingBackend,
    FileBackend,
    MemoryBackend,
    RetryBackend,
    StorageError,
    Workspace,
    WrapperBackend,
)
from agent_checkpoint.backends.base import NO_OBJECTS, Changes
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.cli.progress_backend import ProgressBackend
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.records import Entry, check_object_id, check_stream, is_object_id, is_stream
from agent_checkpoint.store.directory_claims import host_of
from tests.backends.full_disks import fill, small_disk
from tests.backends.test_file import TestFileBackend as FileSuite
from tests.backends.test_memory import TestMemoryBackend as MemorySuite
from tests.backends.test_sqlite import TestSQLiteBackend as SQLiteSuite

SECRET = "correct horse battery staple"
PUBLIC = [name for name in vars(Backend) if not name.startswith("_")]


class Wrapped:
    """Adds a wrapper to the backends of a suite."""

    wrapper = WrapperBackend

    def make(self, place):
        return self.wrapper(super().make(place))

    def reopen(self, backend):
        return self.wrapper(super().reopen(backend.inner))

    def raw_entry(self, backend, stream, seq):
        return super().raw_entry(backend.inner, stream, seq)

    def raw_object(self, backend, object_id):
        return super().raw_object(backend.inner, object_id)


class TestWrappedMemoryBackend(Wrapped, MemorySuite):
    pass


@pytest.mark.slow
class TestWrappedFileBackend(Wrapped, FileSuite):
    pass


@pytest.mark.slow
class TestWrappedSQLiteBackend(Wrapped, SQLiteSuite):
    pass


# -- backends written for version 0.1: ten methods and a few attributes ------------------------


def forward(name):
    return lambda self, *args, **options: getattr(self.inner, name)(*args, **options)


class Version01Backend(Backend):
    """Defines the abstract methods alone."""

    def __init__(self, inner):
        self.inner = inner

    for _name in Backend.__abstractmethods__:
        vars()[_name] = forward(_name)


class TestVersion01Backend(Wrapped, MemorySuite):
    wrapper = Version01Backend


class TestWrappedVersion01Backend(Wrapped, MemorySuite):
    def wrapper(self, inner):
        return WrapperBackend(Version01Backend(inner))

    def raw_entry(self, backend, stream, seq):
        return super().raw_entry(backend.inner, stream, seq)

    def reopen(self, backend):
        return self.wrapper(backend.inner.inner)

    def raw_object(self, backend, object_id):
        return super().raw_object(backend.inner, object_id)


def test_the_contract_is_that_of_version_0_1():
    assert len(Backend.__abstractmethods__) == 10


def test_properties_of_a_plain_backend():
    properties = Version01Backend(MemoryBackend()).properties
    assert set(properties) == {False, None}


def test_properties_come_from_attributes_and_methods(tmp_path):
    class Local(Version01Backend):
        readable = True
        shared = True
        durability = "fast"

        def __init__(self, inner):
            super().__init__(inner)
            self.path = str(tmp_path)
            self.url = f"local://{tmp_path}"

        def scrub(self):
            pass

    for backend in (Local(MemoryBackend()), WrapperBackend(Local(MemoryBackend()))):
        assert backend.properties._asdict() == {
            "readable": True,
            "shared": True,
            "url": f"local://{tmp_path}",
            "path": tmp_path,
            "marker": tmp_path,
            "is_local": True,
            "durability": "fast",
            "compression": None,
            "can_scrub": True,
            "can_repack": False,
            "can_group": False,
        }


# -- forwarding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_a_wrapper_forwards(name):
    assert name in vars(WrapperBackend)


@pytest.mark.parametrize("name", ["readable", "shared", "url", "path", "durability", "compression"])
def test_attributes_follow_the_properties_of_a_subclass(name):
    class Changing(WrapperBackend):
        @property
        def properties(self):
            return self.inner.properties._replace(**{name: "changed"})

    assert getattr(Changing(MemoryBackend()), name) == "changed"


def test_the_repr_names_both():
    assert repr(WrapperBackend(FileBackend("/nowhere/x"))) == (
        "WrapperBackend(FileBackend('/nowhere/x'))"
    )


@pytest.fixture(params=[WrapperBackend, lambda inner: ProgressBackend(inner, lambda *_: None)])
def wrapped(request, tmp_path):
    backend = request.param(SQLiteBackend(tmp_path / "store"))
    yield backend
    backend.close()


def test_the_stat_index_works_in_a_wrapper(wrapped, tmp_path, own_home):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("text")
    indexes = own_home / "store" / "index"
    for backend in (wrapped, wrapped.inner):
        manager = CheckpointManager(backend)
        manager.save("key", Workspace(files, store=manager))
        assert len(list(indexes.iterdir())) == 1  # one index, for both


def test_a_purge_scrubs_in_a_wrapper(wrapped, monkeypatch):
    scrubbed = []
    scrub = SQLiteBackend.scrub
    monkeypatch.setattr(
        SQLiteBackend, "scrub", lambda self: (scrubbed.append(self), scrub(self))[0]
    )
    manager = CheckpointManager(wrapped)
    manager.save("key", {"secret": SECRET})
    manager.purge(SECRET)
    assert scrubbed == [wrapped.inner]
    for file in wrapped.inner.path.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()


def test_claims_in_a_wrapper_are_those_of_a_local_store(wrapped):
    assert host_of(wrapped) == host_of(WrapperBackend(MemoryBackend())) == ""


def test_a_wrapper_tells_that_its_store_was_replaced(wrapped):
    wrapped.append("key/a", b"entry")
    shutil.rmtree(wrapped.inner.path)
    assert wrapped.is_replaced()
    with pytest.raises(StorageError):
        wrapped.read("key/a")


class PositionedBackend(MemoryBackend):
    def changes(self, position=None):
        return Changes([], [], position + 1)


def test_changes_are_forwarded_unless_names_or_ids_may_differ():
    """A wrapper that renames streams must not report the names that the medium has."""
    assert WrapperBackend(PositionedBackend()).changes(7).position == 8
    assert WrapperBackend(WrapperBackend(PositionedBackend())).changes(7).position == 8
    assert RetryBackend(CountingBackend(PositionedBackend())).changes(7).position == 8
    hidden_names = Disguise(PositionedBackend())
    hidden_names.append("key/a", b"1", objects={"ab" * 32: b"x"})
    for backend in (hidden_names, WrapperBackend(hidden_names)):
        streams, objects, position = backend.changes(7)
        assert (list(streams), [info.id for info in objects]) == (["key/a"], ["ab" * 32])
        assert position is None


def test_a_wrapper_deletes_on_a_full_disk(tmp_path):
    with small_disk("tmpfs", tmp_path, 24) as disk:
        manager = CheckpointManager(WrapperBackend(SQLiteBackend(disk / "store", min_free=0)))
        for number in range(5):
            manager.save("key", {"text": f"{number}" * 1000})
        assert (disk / "store" / ".reserve").stat().st_size > 1 << 20
        fill(disk)
        manager.delete("key")
        manager.gc()
        assert manager.list_keys() == []
        manager.close()


# -- a wrapper that changes contents, ids and names ---------------------------------------------


class Disguise(WrapperBackend):
    """Stores contents inverted, ids inverted, and stream names in hex, as encryption would."""

    @property
    def properties(self):
        return self.inner.properties._replace(url=None, can_repack=False)

    def put_objects(self, objects):
        self.inner.put_objects(self._hidden(objects))

    def get_objects(self, ids):
        found = self.inner.get_objects([other_id(name) for name in ids])
        return {other_id(name): inverted(data) for name, data in found.items()}

    def missing_objects(self, ids):
        return {other_id(name) for name in self.inner.missing_objects(map(other_id, ids))}

    def list_objects(self):
        for info in self.inner.list_objects():
            yield info._replace(id=other_id(info.id))

    def delete_objects(self, ids):
        self.inner.delete_objects(other_id(name) for name in ids)

    def append(self, stream, entry, *, after=None, objects=NO_OBJECTS, requires=()):
        try:
            return self.inner.append(
                hidden(check_stream(stream)),
                inverted(entry),
                after=after,
                objects=self._hidden(objects),
                requires=[other_id(name) for name in requires],
            )
        except MissingObjectsError as error:
            raise MissingObjectsError({other_id(name) for name in error.ids}) from error

    def read(self, stream, **window):
        found = self.inner.read(hidden(stream), **window)
        return [Entry(seq, inverted(data)) for seq, data in found]

    def remove(self, stream, seqs):
        self.inner.remove(hidden(stream), seqs)

    def streams(self, prefix=""):
        for name in self.inner.streams():
            kind, _, text = name.partition("/")
            shown = f"{kind}/{bytes.fromhex(text).decode()}"
            if shown.startswith(prefix):
                yield shown

    def _hidden(self, objects):
        return {other_id(check_object_id(name)): inverted(data) for name, data in objects.items()}


def inverted(data):
    return bytes(byte ^ 255 for byte in data)


def other_id(name):
    return "".join(f"{15 - int(digit, 16):x}" for digit in name) if is_object_id(name) else name


def hidden(stream):
    kind, _, text = stream.partition("/")
    return f"{kind}/{text.encode().hex()}" if is_stream(stream) else stream


class TestDisguise(Wrapped, MemorySuite):
    wrapper = Disguise

    def raw_entry(self, backend, stream, seq):
        data = super().raw_entry(backend, hidden(stream), seq)
        return None if data is None else inverted(data)

    def raw_object(self, backend, object_id):
        data = super().raw_object(backend, other_id(object_id))
        return None if data is None else inverted(data)


class Recording(Disguise):
    """Remembers the ids of all objects that were written through it."""

    def __init__(self, inner):
        super().__init__(inner)
        self.written = set()

    def _hidden(self, objects):
        self.written |= set(objects)
        return super()._hidden(objects)


@pytest.mark.parametrize("medium", [SQLiteBackend, FileBackend])
def test_nothing_bypasses_a_wrapper(tmp_path, medium):
    """Every verb writes through it: the medium holds no plain name, entry or object."""
    files = tmp_path / "files"
    files.mkdir()
    inner = medium(tmp_path / "store")
    backend = Recording(inner)
    manager = CheckpointManager(backend)
    for number in range(3):
        (files / "a.txt").write_text(f"{SECRET} {number}")
        state = {"n": number, "long": [f"{SECRET} {n}" for n in range(2000)]}
        manager.save("key", state)
        manager.save("files", Workspace(files, store=manager))
    manager.fork("key", "fork")
    assert manager.state_dict("key")["n"] == 2
    names = {info.id for info in inner.list_objects()}
    assert names
    assert names <= {other_id(name) for name in backend.written}
    assert {name.partition("/")[2].strip("0123456789abcdef") for name in inner.streams()} == {""}
    for stream in inner.streams():
        for entry in inner.read(stream):
            assert inverted(entry.data).startswith(b"{")
    manager.delete("fork")
    manager.gc()
    manager.purge(SECRET)
    assert manager.verify().ok
    assert manager.list_keys() == ["key"]
    assert SECRET not in str(manager.state_dict("key"))
