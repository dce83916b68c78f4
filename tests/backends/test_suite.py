"""The shipped suite itself: what its users get, and that it sees what is wrong."""

import subprocess
import sys
import time
from contextlib import closing
from inspect import signature
from pathlib import Path

import pytest

import agent_checkpoint.testing
from agent_checkpoint import MemoryBackend
from agent_checkpoint.errors import ConflictError
from agent_checkpoint.testing import BackendMachine, BackendTests
from agent_checkpoint.testing.crowd import Crowd, ProcessCrowd, processes_or_threads
from tests.backends.test_file import FileHooks
from tests.backends.test_memory import MemoryHooks
from tests.backends.test_sqlite import SQLiteHooks
from tests.backends.test_wrappers import Wrapped

pytestmark = pytest.mark.slow

SUITE = """
from agent_checkpoint import MemoryBackend
from agent_checkpoint.testing import BackendTests

class TestMine(BackendTests):
    def make(self, place):
        return MemoryBackend()
    def reopen(self, backend):
        return backend
    def raw_entry(self, backend, stream, seq):
        return backend._streams.get(stream, {}).get(seq)
"""


def run_pytest(tmp_path, source, *options):
    (tmp_path / "test_mine.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)


def test_a_forgotten_hook_is_loud(tmp_path):
    """Not a class that pytest passes over."""
    done = run_pytest(tmp_path, SUITE, "-k", "counts or numbers_count or any_name", "--tb=line")
    assert done.returncode == 1
    assert "TestMine does not implement the hooks raw_object." in done.stdout
    assert "passed" not in done.stdout.splitlines()[-1]


def test_the_suite_needs_pytest_alone(tmp_path):
    """Somebody without hypothesis can test a backend."""
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not installed')\n")
    source = SUITE + (
        "    def raw_object(self, backend, object_id):\n"
        "        return backend._objects.get(object_id, (None, 0))[0]\n"
        "def test_that_hypothesis_is_away():\n"
        "    import pytest, agent_checkpoint.testing\n"
        "    with pytest.raises(ImportError, match='not installed'):\n"
        "        agent_checkpoint.testing.BackendMachine\n"
    )
    done = run_pytest(tmp_path, source, "-p", "no:hypothesispytest", "-k", "append or away")
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout.splitlines()[-1]


def test_a_failed_assert_of_the_suite_shows_both_sides(tmp_path):
    source = SUITE + (
        "    def raw_object(self, backend, object_id):\n        return b'something else'\n"
    )
    done = run_pytest(tmp_path, source, "-k", "left_as_it_is")
    assert done.returncode == 1
    assert "b'something else' == b'first'" in done.stdout


def test_a_machine_without_hooks_is_refused():
    with pytest.raises(TypeError, match="does not implement the hooks make, reopen"):
        BackendMachine()


def test_the_public_names():
    assert agent_checkpoint.testing.__all__ == ["BackendMachine", "BackendTests"]
    assert agent_checkpoint.testing.BackendTests is BackendTests
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        agent_checkpoint.testing.Other  # noqa: B018


class Reusing(MemoryBackend):
    """Gives a number out again when the newest entry was removed."""

    def remove(self, stream, seqs):
        super().remove(stream, seqs)
        self._last[stream] = max(self._streams.get(stream, {0: b""}))


class Committing(MemoryBackend):
    """Appends first and looks afterwards."""

    def append(self, stream, entry, *, after=None, **options):
        newest = max(self._streams.get(stream, {0: b""}))
        seq = super().append(stream, entry, **options)
        if after is not None and after != newest:
            raise ConflictError("too late")
        return seq


class Overwriting(MemoryBackend):
    """Takes the last bytes of an object for the right ones."""

    def put_objects(self, objects):
        self.delete_objects(objects)
        super().put_objects(objects)


class Listing(MemoryBackend):
    """Lists streams that have no entries any more."""

    def streams(self, prefix=""):
        return iter([name for name in self._last if name.startswith(prefix)])


class Windowing(MemoryBackend):
    """Takes the limit before it turns the order round."""

    def read(self, stream, *, newest_first=False, **window):
        found = super().read(stream, **window)
        return found[::-1] if newest_first else found


@pytest.mark.parametrize("broken", [Reusing, Committing, Overwriting, Listing, Windowing])
@pytest.mark.slow
def test_the_machine_finds_a_broken_backend(broken):
    class Machine(BackendMachine):
        def make(self, place):
            return broken()

        def reopen(self, backend):
            return backend

    from hypothesis import Phase, Verbosity, settings
    from hypothesis.stateful import run_state_machine_as_test

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=500,
                stateful_step_count=40,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                verbosity=Verbosity.quiet,
            ),
        )


class Early(MemoryBackend):
    """Takes the ids before it keeps writers out."""

    def delete_objects(self, ids):
        super().delete_objects(list(ids))


class Eager(MemoryBackend):
    """Deletes each object when its id comes."""

    def delete_objects(self, ids):
        with self._lock:
            for name in ids:
                self._objects.pop(name, None)


class Late(MemoryBackend):
    """Lets writers in between the last id and the deletion."""

    def delete_objects(self, ids):
        with self._lock:
            doomed = list(ids)
        time.sleep(0.1)
        super().delete_objects(doomed)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Early, "test_no_append_commits_while_ids_are_taken"),
        (Early, "test_no_put_commits_while_ids_are_taken"),
        (Late, "test_no_append_commits_while_ids_are_taken"),
        (Late, "test_no_put_commits_while_ids_are_taken"),
        (Eager, "test_reading_from_inside_sees_all_that_is_committed"),
        (Eager, "test_ids_that_raise_delete_nothing"),
    ],
)
def test_the_suite_finds_a_broken_sweep(broken, test):
    with pytest.raises(AssertionError):
        backend = broken()
        run = getattr(BackendTests(), test)
        run(backend, Crowd(backend)) if "crowd" in signature(run).parameters else run(backend)


BROKEN = """
from tests.backends.broken_openers import Snapshotting, ThreadLocked, TrustingCache
from tests.backends.broken_order import ChildrenFirst, EntryFirst, ParentsFirst
from agent_checkpoint import FileBackend
from agent_checkpoint.testing import BackendTests

class TestMine(BackendTests):
    def make(self, place):
        return MAKE
    def reopen(self, backend):
        return backend.reopened()
    def raw_entry(self, backend, stream, seq):
        return next((e.data for e in backend.read(stream) if e.seq == seq), None)
    def raw_object(self, backend, object_id):
        return backend.get_objects([object_id]).get(object_id)
"""


@pytest.mark.parametrize(
    ("make", "losing"),
    [
        ("Snapshotting(place / 'store')", 7),
        ("TrustingCache(FileBackend(place / 'store'))", 1),
    ],
)
def test_the_suite_finds_a_backend_that_loses_data_between_openers(tmp_path, make, losing):
    """The tests with one instance at a time do not."""
    failed = failed_tests(tmp_path, make)
    assert len(failed) == losing, failed
    assert all("opener" in name for name in failed), failed


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite", "postgres"])
@pytest.mark.parametrize("wrapper", [None, Wrapped, "encrypted"])
def test_processes_are_used_if_they_reach_the_data(request, tmp_path, kind, wrapper):
    """Also if the backend has no URL, as one that is encrypted with a key in Python."""
    if wrapper == "encrypted":
        pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")
        from tests.backends.encrypted_stores import Encrypted as wrapper
    hooks = {"memory": MemoryHooks, "file": FileHooks, "sqlite": SQLiteHooks}.get(kind)
    if hooks is None:
        server = request.getfixturevalue("server")
        from tests.backends.test_postgres import PostgresHooks as hooks

        hooks.server = server
    suite = type("Suite", (wrapper, hooks) if wrapper else (hooks,), {})()
    with closing(suite.make(tmp_path)) as backend:
        crowd = processes_or_threads(backend, suite.reopen)
        assert type(crowd) is (Crowd if kind == "memory" else ProcessCrowd)
        assert list(backend.streams("key/")) == []
        assert backend.append("key/a", b"entry", after=0) == 1


def test_the_suite_finds_a_backend_whose_lock_is_of_one_process(tmp_path):
    """The tests with threads do not."""
    chosen = ("-k", "appending or opener or taken")
    failed = failed_tests(tmp_path, "ThreadLocked(place / 'store')", *chosen)
    assert "test_appending_to_one_stream[processes]" in failed
    assert all("processes" in name for name in failed), failed


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        ("ParentsFirst", "test_killed_in_put_objects"),
        ("EntryFirst", "test_killed_in_append"),
        ("ChildrenFirst", "test_killed_in_delete_objects"),
    ],
)
def test_the_suite_finds_a_backend_that_writes_in_another_order(tmp_path, broken, test):
    """Only if a process is killed between two writes does it matter."""
    failed = failed_tests(tmp_path, f"{broken}(place / 'store')", "-k", "killed or objects")
    assert failed == [test]


def failed_tests(tmp_path, make, *options):
    source = BROKEN.replace("MAKE", make)
    found = ("-o", f"pythonpath={Path(__file__).parents[2]}")
    done = run_pytest(tmp_path, source, "-rf", "--tb=no", *found, *options)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return [line.split("::")[-1].split()[0] for line in lines]
