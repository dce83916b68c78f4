"""Each wrapper, and all together, pass the shipped suite on every backend."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from agent_checkpoint import (
    CacheBackend,
    CountingBackend,
    ReadOnlyBackend,
    RetryBackend,
    WrapperBackend,
)
from agent_checkpoint.testing import BackendMachine
from tests.backends.test_file import TestFileBackend as FileSuite
from tests.backends.test_memory import MemoryHooks
from tests.backends.test_memory import TestMemoryBackend as MemorySuite
from tests.backends.test_sqlite import SQLiteHooks
from tests.backends.test_sqlite import TestSQLiteBackend as SQLiteSuite


class Writable(ReadOnlyBackend):
    """The reads of a read-only backend, with the writes of the wrapped one."""

    properties = WrapperBackend.properties
    for _name in ("put_objects", "delete_objects", "append", "remove", "scrub", "replace_objects"):
        vars()[_name] = vars(WrapperBackend)[_name]


def cached(backend):
    """A small cache, which evicts; suites store more in it."""
    return CacheBackend(backend, Path(os.environ["HOME"], "cache"), max_bytes=1 << 20)


WRAPPERS = [RetryBackend, cached, CountingBackend, Writable]
"""From the inside, in the order of a URL."""


class Wrapped:
    """Adds wrappers to the backends of a suite."""

    wrappers = WRAPPERS

    def wrap(self, backend):
        for wrapper in self.wrappers:
            backend = wrapper(backend)
        return backend

    def unwrap(self, backend):
        for _ in self.wrappers:
            backend = backend.inner
        return backend

    def make(self, place):
        return self.wrap(super().make(place))

    def reopen(self, backend):
        return self.wrap(super().reopen(self.unwrap(backend)))

    def raw_entry(self, backend, stream, seq):
        return super().raw_entry(self.unwrap(backend), stream, seq)

    def raw_object(self, backend, object_id):
        return super().raw_object(self.unwrap(backend), object_id)


class Retrying(Wrapped):
    wrappers = (RetryBackend,)


class Cached(Wrapped):
    wrappers = (cached,)


class Counted(Wrapped):
    wrappers = (CountingBackend,)


class Reading(Wrapped):
    wrappers = (Writable,)


class TestRetryOnMemory(Retrying, MemorySuite):
    pass


class TestCacheOnMemory(Cached, MemorySuite):
    pass


class TestCountingOnMemory(Counted, MemorySuite):
    pass


class TestReadOnlyOnMemory(Reading, MemorySuite):
    pass


class TestAllOnMemory(Wrapped, MemorySuite):
    pass


@pytest.mark.slow
@pytest.mark.long
class TestRetryOnFiles(Retrying, FileSuite):
    pass


@pytest.mark.slow
@pytest.mark.long
class TestCacheOnFiles(Cached, FileSuite):
    pass


@pytest.mark.slow
@pytest.mark.long
class TestCountingOnFiles(Counted, FileSuite):
    pass


@pytest.mark.slow
class TestAllOnFiles(Wrapped, FileSuite):
    pass


@pytest.mark.slow
@pytest.mark.long
class TestRetryOnSQLite(Retrying, SQLiteSuite):
    pass


@pytest.mark.slow
@pytest.mark.long
class TestCacheOnSQLite(Cached, SQLiteSuite):
    pass


@pytest.mark.slow
@pytest.mark.long
class TestCountingOnSQLite(Counted, SQLiteSuite):
    pass


@pytest.mark.slow
class TestAllOnSQLite(Wrapped, SQLiteSuite):
    pass


class AllOnMemoryMachine(Wrapped, MemoryHooks, BackendMachine):
    pass


TestAllOnMemoryMachine = AllOnMemoryMachine.TestCase
TestAllOnMemoryMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


class AllOnSQLiteMachine(Wrapped, SQLiteHooks, BackendMachine):
    pass


TestAllOnSQLiteMachine = AllOnSQLiteMachine.TestCase
TestAllOnSQLiteMachine.pytestmark = [pytest.mark.slow]
TestAllOnSQLiteMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
