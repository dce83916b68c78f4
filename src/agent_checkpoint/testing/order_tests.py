"""Conformance tests for the durable order: what a process leaves if it is killed while it writes.

Each test repeats a call in a child process, which is killed after the first call into the operating
system or a driver, then after the second, and so on, until the call returns.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from typing import Any

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.testing.backend_hooks import BackendHooks, named, object_id

_MODULES_WITHOUT_WRITES = frozenset(
    {"builtins", "sys", "time", "re", "zlib", "math", "collections", "itertools", "_thread"}
    | {"_stat", "_struct", "_hashlib", "_json", "_pickle", "_weakref"}
)
_CALLS_WITHOUT_WRITES = frozenset(
    {"stat", "lstat", "fstat", "statvfs", "scandir", "listdir", "is_file", "is_dir", "fspath"}
    | {"getpid", "geteuid", "getuid", "urandom", "close", "read", "fetchone", "fetchall"}
)

_LEAF = b"leaf"
_LARGE = b"refers to " + object_id(_LEAF).encode() + bytes(200_000)
"""A medium may store objects of this size elsewhere than small ones."""
_OBJECTS = named(_LEAF, _LARGE, *(b"%d refers to both" % number for number in range(3)))
_ENTRY = b"refers to all"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
class OrderTests(BackendHooks):
    """An object is durable before any object or entry that refers to it.

    Callers pass objects in that order: an object comes after all objects that it refers to.
    """

    def test_killed_in_put_objects(self, backend: Backend) -> None:
        """An object is stored only if all objects before it are stored."""
        for opened in self._killed(backend, lambda child: child.put_objects(_OBJECTS)):
            opened.delete_objects(self._stored(opened))

    def test_killed_in_append(self, backend: Backend) -> None:
        """The same holds for `append`, and the entry exists only if all objects do."""

        def append(child: Backend) -> object:
            return child.append("key/a", _ENTRY, objects=_OBJECTS)

        for opened in self._killed(backend, append):
            stored = self._stored(opened)
            entries = opened.read("key/a")
            assert not entries or stored == list(_OBJECTS)
            opened.remove("key/a", [entry.seq for entry in entries])
            opened.delete_objects(stored)

    def test_killed_in_delete_objects(self, backend: Backend) -> None:
        """Objects that are given before the objects they refer to are deleted before them."""
        backend.put_objects(_OBJECTS)
        ids = list(reversed(_OBJECTS))
        for opened in self._killed(backend, lambda child: child.delete_objects(ids)):
            self._stored(opened)
            opened.put_objects(_OBJECTS)

    def _killed(self, backend: Backend, job: Callable[[Backend], object]) -> Iterator[Backend]:
        """Run a job, killed after each of its writes in turn; yield the backend after each kill."""
        is_done = False
        writes = 0
        while not is_done:
            writes += 1
            is_done = self._run_killed(backend, job, writes)
            with closing(self.reopen(backend)) as opened:
                yield opened

    def _run_killed(self, backend: Backend, job: Callable[[Backend], object], writes: int) -> bool:
        """Run a job in a child process that dies after some writes; return whether it finished."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads do not matter here
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                opened = self.reopen(backend)
                _kill_after(writes)
                job(opened)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the child failed"
        return os.WIFEXITED(status)

    def _stored(self, opened: Backend) -> list[str]:
        """Check that the stored objects are the first ones; return their ids."""
        found = opened.get_objects(_OBJECTS)
        stored = [name for name in _OBJECTS if name in found]
        assert stored == list(_OBJECTS)[: len(stored)]
        assert opened.missing_objects(_OBJECTS) == _OBJECTS.keys() - found.keys()
        for name in stored:
            assert found[name] == _OBJECTS[name] == self.raw_object(opened, name)
        return stored


def _kill_after(writes: int) -> None:
    """Kill this process after its n-th call of C code that may write."""
    left = writes

    def on_event(frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        if event in ("c_return", "c_exception") and _may_write(called):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(on_event)
    sys.setprofile(on_event)


def _may_write(called: Any) -> bool:
    module = getattr(called, "__module__", None) or type(called.__self__).__module__
    return module not in _MODULES_WITHOUT_WRITES and called.__name__ not in _CALLS_WITHOUT_WRITES
