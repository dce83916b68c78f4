"""The retry wrapper: repeats what is safe to repeat, with bounded random pauses."""

import errno
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    FileBackend,
    InvalidInputError,
    MemoryBackend,
    RetryBackend,
    StorageError,
    WrapperBackend,
)
from agent_checkpoint.backends import file as file_module
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.records import Entry

ID, OTHER = "ab" * 32, "cd" * 32
BUSY = StorageError("busy", retryable=True)
FATAL = StorageError("the disk failed")
LOST = StorageError("connection lost", retryable=True, outcome_unknown=True)


class Failing(WrapperBackend):
    """Raises planned errors, before or after the call has its effect."""

    def __init__(self, inner, *errors, is_stored=False):
        super().__init__(inner)
        self.errors = list(errors)
        self.is_stored = is_stored
        self.calls = []

    def _fail(self, name, action):
        self.calls.append(name)
        if self.errors:
            error = self.errors.pop(0)
            if error is not None:
                if self.is_stored:
                    action()
                raise error
        return action()


for _name in (
    *("put_objects", "get_objects", "missing_objects", "delete_objects", "find_objects"),
    *("replace_objects", "append", "read", "remove", "scrub", "is_replaced"),
):

    def _method(self, *args, _name=_name, **options):
        return self._fail(_name, lambda: getattr(self.inner, _name)(*args, **options))

    setattr(Failing, _name, _method)


def retrying(*errors, attempts=5, is_stored=False, inner=None):
    """A retry wrapper that does not sleep; `pauses` are the limits of its pauses."""
    pauses = []
    backend = RetryBackend(
        Failing(inner or MemoryBackend(), *errors, is_stored=is_stored),
        attempts=attempts,
        sleep=lambda _: None,
        uniform=lambda low, high: pauses.append((low, high)) or low,
    )
    return backend, pauses


CALLS = {
    "put_objects": lambda backend: backend.put_objects({ID: b"x"}),
    "get_objects": lambda backend: backend.get_objects(iter([ID])),
    "missing_objects": lambda backend: backend.missing_objects(iter([ID])),
    "delete_objects": lambda backend: backend.delete_objects([ID]),
    "append": lambda backend: backend.append("key/a", b"entry", after=0),
    "read": lambda backend: backend.read("key/a"),
    "remove": lambda backend: backend.remove("key/a", iter([1])),
    "scrub": lambda backend: backend.scrub(),
    "is_replaced": lambda backend: backend.is_replaced(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_busy_store_is_asked_again(name):
    expected = CALLS[name](MemoryBackend())
    backend, pauses = retrying(BUSY, BUSY, BUSY, BUSY)
    assert CALLS[name](backend) == expected
    assert backend.inner.calls == [name] * 5
    assert pauses == [(0.0, 0.1), (0.0, 0.2), (0.0, 0.4), (0.0, 0.8)]


@pytest.mark.parametrize("name", CALLS)
def test_it_gives_up_after_the_last_attempt(name):
    backend, pauses = retrying(BUSY, BUSY, BUSY, attempts=3)
    with pytest.raises(StorageError) as caught:
        CALLS[name](backend)
    assert caught.value is BUSY
    assert len(backend.inner.calls) == 3
    assert len(pauses) == 2


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("error", [FATAL, OSError("odd"), InvalidInputError("bad")])
def test_other_errors_are_not_repeated(name, error):
    backend, _ = retrying(error)
    with pytest.raises(type(error)):
        CALLS[name](backend)
    assert backend.inner.calls == [name]


def test_the_pause_is_capped():
    backend, pauses = retrying(*[BUSY] * 40, attempts=41)
    backend.read("key/a")
    assert max(pauses) == (0.0, 10.0)
    assert pauses[-1] == (0.0, 10.0)


def test_the_defaults_sleep_at_random(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    backend = RetryBackend(Failing(MemoryBackend(), *[BUSY] * 3))
    backend._sleep = slept.append
    backend.read("key/a")
    assert len(set(slept)) == 3
    assert all(0 <= pause <= limit for pause, limit in zip(slept, (0.1, 0.2, 0.4)))


@pytest.mark.parametrize("attempts", [0, -1, True, "3", 2.0, None])
def test_invalid_attempts(attempts):
    with pytest.raises(InvalidInputError, match="positive number of attempts"):
        RetryBackend(MemoryBackend(), attempts=attempts)


# -- generators of ids -------------------------------------------------------------------------


def test_a_generator_of_ids_is_not_consumed_twice():
    """The second attempt would delete nothing, and say that it did."""
    backend, _ = retrying(BUSY, is_stored=True)
    backend.put_objects({})
    backend.inner.inner.put_objects({ID: b"x"})
    backend.inner.errors = [BUSY]
    with pytest.raises(StorageError):
        backend.delete_objects(name for name in [ID])
    assert backend.inner.calls == ["put_objects", "put_objects", "delete_objects"]


def test_a_generator_that_has_not_begun_is_used_later():
    backend, _ = retrying(BUSY)
    backend.inner.inner.put_objects({ID: b"x"})
    backend.delete_objects(name for name in [ID])
    assert backend.missing_objects([ID]) == {ID}


# -- listings that fail in the middle ----------------------------------------------------------


class Breaking(MemoryBackend):
    """Its listings break after a number of items, a few times."""

    def __init__(self, *lengths):
        super().__init__()
        self.lengths = list(lengths)

    def _broken(self, items):
        items = list(items)
        if self.lengths:
            yield from items[: self.lengths.pop(0)]
            raise BUSY
        yield from items

    def list_objects(self):
        return self._broken(super().list_objects())

    def streams(self, prefix=""):
        return self._broken(super().streams(prefix))


@given(st.lists(st.integers(0, 5), max_size=4))
@settings(deadline=None)
def test_a_listing_yields_each_item_once(lengths):
    inner = Breaking()
    ids = [f"{number:02x}" * 32 for number in range(4)]
    for number, name in enumerate(ids):
        inner.append(f"key/{number}", b"entry", objects={name: b"x"})
    backend, _ = retrying(inner=inner)
    inner.lengths = list(lengths)
    assert sorted(info.id for info in backend.list_objects()) == ids
    inner.lengths = list(lengths)
    assert sorted(backend.streams("key/")) == [f"key/{number}" for number in range(4)]


def test_a_listing_that_stays_broken_is_an_error_not_a_short_list():
    inner = Breaking(*[0] * 9)
    inner.append("key/a", b"entry")
    backend, _ = retrying(inner=inner)
    with pytest.raises(StorageError):
        list(backend.streams())


def test_a_listing_that_cannot_be_started_again_is_an_error():
    class Once(MemoryBackend):
        starts = 0

        def streams(self, prefix=""):
            self.starts += 1
            if self.starts > 1:
                raise BUSY
            return Breaking._broken(self, super().streams(prefix))

    inner = Once()
    inner.lengths = [1]
    inner.append("key/a", b"entry")
    inner.append("key/b", b"entry")
    backend, _ = retrying(inner=inner)
    with pytest.raises(StorageError):
        list(backend.streams())


# -- appends: no duplicate, no hole ------------------------------------------------------------


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_lost_reply_with_a_condition_is_cleared_up(is_stored):
    backend, _ = retrying(None, LOST, is_stored=is_stored)
    assert backend.append("key/a", b"1", after=0) == 1
    assert backend.append("key/a", b"2", after=1) == 2
    assert backend.read("key/a") == [Entry(1, b"1"), Entry(2, b"2")]


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_lost_reply_without_a_condition_is_raised(is_stored):
    backend, _ = retrying(LOST, is_stored=is_stored)
    with pytest.raises(StorageError) as caught:
        backend.append("key/a", b"1")
    assert caught.value.outcome_unknown
    assert backend.inner.calls == ["append"]


def test_a_busy_store_without_a_condition_is_asked_again():
    backend, _ = retrying(BUSY)
    assert backend.append("key/a", b"1") == 1
    assert len(backend.read("key/a")) == 1


def test_an_entry_of_another_writer_is_a_conflict():
    inner = MemoryBackend()

    class Overtaken(Failing):
        def append(self, stream, entry, **options):
            if not self.calls:
                inner.append(stream, b"theirs")
            return super().append(stream, entry, **options)

    backend = RetryBackend(Overtaken(inner, LOST), sleep=lambda _: None)
    with pytest.raises(ConflictError):
        backend.append("key/a", b"ours", after=0)
    assert inner.read("key/a") == [Entry(1, b"theirs")]


def test_a_conflict_of_the_first_attempt_is_not_examined():
    """The same bytes may be those of another writer."""
    backend, _ = retrying()
    backend.append("key/a", b"1")
    with pytest.raises(ConflictError):
        backend.append("key/a", b"1", after=0)


def test_a_stored_entry_whose_objects_are_gone_is_not_repeated():
    backend, _ = retrying(None, LOST, is_stored=True)
    backend.inner.inner.put_objects({ID: b"x"})
    inner = backend.inner.inner
    append = inner.append

    def then_delete(*args, **options):
        seq = append(*args, **options)
        inner.delete_objects([ID])
        return seq

    inner.append = then_delete
    assert backend.append("key/a", b"1", after=0, requires=[ID]) == 1
    with pytest.raises(MissingObjectsError):
        backend.append("key/a", b"2", after=1, requires=[OTHER])


def test_after_an_unknown_outcome_the_last_error_says_so():
    backend, _ = retrying(LOST, BUSY, BUSY, attempts=3)
    with pytest.raises(StorageError) as caught:
        backend.append("key/a", b"1", after=0)
    assert caught.value.outcome_unknown


def test_a_failed_read_back_is_repeated():
    backend, _ = retrying(LOST, None, BUSY, is_stored=True)  # append, append: conflict, read
    assert backend.append("key/a", b"1", after=0) == 1
    assert backend.inner.calls == ["append", "append", "read", "append", "read"]


ERRORS = st.lists(st.sampled_from([None, BUSY, LOST, FATAL]), max_size=12)


@given(ERRORS, st.lists(st.booleans(), min_size=12, max_size=12), st.integers(1, 4))
@settings(deadline=None, max_examples=200)
def test_an_acknowledged_entry_is_stored_once(errors, stored, attempts):
    """Whatever fails: acknowledged once means stored once; refused means stored at most once."""
    stores = iter(stored + [False] * 99)

    class Random(Failing):
        def _fail(self, name, action):
            self.is_stored = next(stores)
            if self.errors and not self.errors[0]:
                self.is_stored = False
            elif self.errors and not self.errors[0].outcome_unknown:
                self.is_stored = False  # a certain failure stores nothing
            return super()._fail(name, action)

    inner = MemoryBackend()
    backend = RetryBackend(Random(inner, *errors), attempts=attempts, sleep=lambda _: None)
    expected = []
    for number in itertools.count():
        before, is_unknown = len(expected), False
        try:
            assert backend.append("key/a", b"%d" % number, after=before) == before + 1
            expected.append(b"%d" % number)
        except StorageError as error:
            is_unknown = error.outcome_unknown
        found = [entry.data for entry in inner.read("key/a")]
        assert found == expected or (is_unknown and found == [*expected, b"%d" % number])
        expected = found
        if not backend.inner.errors:
            break


def test_a_manager_saves_through_failures(tmp_path):
    backend, _ = retrying(*[BUSY, None, None] * 20, inner=FileBackend(tmp_path))
    manager = CheckpointManager(backend)
    for number in range(5):
        manager.save("a", {"n": number})
    assert [entry.seq for entry in backend.read("key/a")] == [1, 2, 3, 4, 5]
    assert manager.state_dict("a") == {"n": 4}
    assert manager.verify().ok


# -- backends say when the outcome is unknown --------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_file_store_whose_new_entry_may_not_be_durable(tmp_path, monkeypatch, number):
    backend = FileBackend(tmp_path / "store")
    backend.append("key/a", b"1")

    def broken(folder):
        if folder.name != "store":
            raise OSError(number, "broken")

    monkeypatch.setattr(file_module, "sync_directory", broken)
    with pytest.raises(StorageError) as caught:
        RetryBackend(backend).append("key/a", b"2")
    assert caught.value.outcome_unknown
    assert len(backend.read("key/a")) == 2  # not 6


def test_a_file_store_that_wrote_nothing_says_so(tmp_path, monkeypatch):
    backend = FileBackend(tmp_path / "store")
    monkeypatch.setattr(file_module, "write_new", lambda *_: (_ for _ in ()).throw(OSError(24, "")))
    with pytest.raises(StorageError) as caught:
        backend.append("key/a", b"2")
    assert caught.value.retryable
    assert not caught.value.outcome_unknown
