"""F1: a copy or the rotation of a key is killed at any call; run again, it is done.

On a disk each call that changes it; on PostgreSQL each message to the server.
"""

import shutil
from contextlib import closing

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from agent_checkpoint import CheckpointManager, EncryptionKeyError, Session, copy
from tests.crash import copy_scenarios
from tests.crash.copy_scenarios import NEW_KEY, OLD_KEY, announce, contents, make_source, opened
from tests.crash.fault_process import CHANGES, SECRET, FaultProcess, places
from tests.crash.sweeping import Failures

SENDS = ("sendto", "sendmsg")
SCENARIOS = copy_scenarios.__name__


@pytest.fixture(scope="module")
def copy_process(session_scratch):
    """Runs functions of `copy_scenarios` in processes that break."""
    with closing(FaultProcess(SCENARIOS, session_scratch)) as process:
        yield process


@pytest.fixture(scope="module")
def source(session_scratch):
    path = session_scratch / "source to copy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", SECRET)
        patch.setenv("AGENT_CHECKPOINT_HOME", str(session_scratch / "home"))
        make_source(path)
    return path


@pytest.fixture(autouse=True)
def same_secret(monkeypatch):
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", SECRET)


class Disk:
    """A store in files: a run begins with a copy of what the store was before."""

    few = 12
    trace = CHANGES

    def __init__(self, scheme, scratch):
        self._pristine, self._path = scratch / "pristine", scratch / "target"
        self._scheme = scheme
        self.url = f"{scheme}://{self._path}"

    def fill(self, make):
        """Make the store that each run begins with."""
        make(f"{self._scheme}://{self._pristine}")

    def fresh(self):
        shutil.rmtree(self._path, ignore_errors=True)
        if self._pristine.exists():
            shutil.copytree(self._pristine, self._path)
        return self.url

    def points(self, calls):
        return places(calls, self._path)


class Postgres:
    """A schema of a server: a run begins with a new one, filled again if need be."""

    few = 8
    trace = SENDS

    def __init__(self, server):
        self._server, self._make, self.url, self._schema = server, None, None, None

    def fill(self, make):
        self._make = make

    def fresh(self):
        if self._schema is not None:
            self._server.execute(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE")
        self._schema = self._server.new_schema()
        self.url = self._server.url(self._schema, more="&sslmode=disable&gssencmode=disable")
        if self._make is not None:
            self._make(self.url)
        return self.url

    def points(self, calls):
        return [call for call in calls if call.name in SENDS]


@pytest.fixture(params=["sqlite", "file", "postgres"])
def medium(request, scratch):
    if request.param == "postgres":
        return Postgres(request.getfixturevalue("postgres_server"))
    return Disk(request.param, scratch)


def kills(process, medium, sample, function, arguments):
    """Run the function once, then kill it at each of its calls, each time on a fresh store."""
    whole = process.run(f"{SCENARIOS}:{function}", *arguments(medium.fresh()), trace=medium.trace)
    assert whole.status == 0, whole.errors
    points = sample(medium.points(whole.calls_before_it_said_anything()), medium.few)
    missed = []
    for point in points:
        outcome = process.run(
            f"{SCENARIOS}:{function}",
            *arguments(medium.fresh()),
            inject=f"{point.name}:signal=KILL:when={point.when}",
            trace=medium.trace,
        )
        if outcome.was_killed:
            yield point
        else:  # a run may make a call less, such as the second part of a message
            assert outcome.status == 0, outcome.errors
            missed.append(point)
    assert len(missed) <= max(1, len(points) // 10), missed


@pytest.mark.slow
@pytest.mark.parametrize("key", ["none", "old"])
def test_a_killed_copy_is_completed_by_the_next(copy_process, medium, source, key, sample, tried):
    """What is there is a prefix of the source and sound; then all is there, and nothing twice."""
    secret = {"none": None, "old": OLD_KEY}[key]
    with CheckpointManager(source) as manager:
        states, ledgers = contents(manager)
    failures = Failures()
    for point in kills(copy_process, medium, sample, "run_copy", lambda url: (source, url, key)):
        with failures.at(point), opened(medium.url, secret) as target:
            partial, records = contents(target)
            for name, found in partial.items():
                numbers = sorted(states[name])[: len(found)]
                assert found == {number: states[name][number] for number in numbers}, name
            # The ledger comes first: a session that is resumed here must not repeat an effect.
            assert records == ledgers or "Work" not in partial
            copy(source, target)
            assert contents(target) == (states, ledgers)
            assert not copy(source, target).keys
            assert target.gc().objects == 0 or not partial
            assert not list(target.store.backend.read("meta/import"))
            with Session("Work", store=target):
                assert announce("version 1") == "announced version 1"  # recorded, not made again
            assert target.verify().ok
    tried("F1 copy killed", failures.tried)
    failures.check()


@pytest.mark.slow
def test_a_killed_rotation_leaves_a_key_that_opens_the_store(
    copy_process, medium, source, sample, tried
):
    """One of both keys opens all of it; run again, only the new one does."""

    def make(url):
        with opened(url, OLD_KEY) as target:
            copy(source, target)

    medium.fill(make)
    with CheckpointManager(source) as manager:
        expected = contents(manager)
    failures = Failures()
    for point in kills(copy_process, medium, sample, "run_rotation", lambda url: (url,)):
        with failures.at(point):
            valid = [key for key in (OLD_KEY, NEW_KEY) if opens(medium.url, key)]
            assert len(valid) == 1
            for keys in (valid, [NEW_KEY, OLD_KEY], [OLD_KEY, NEW_KEY]):
                with opened(medium.url, keys) as target:
                    assert contents(target) == expected
            with opened(medium.url, valid) as target:
                target.save("Key", {"saved": "in between"})
            with opened(medium.url, [NEW_KEY, OLD_KEY]) as target:
                target.rotate_key()
                assert len(target.store.backend.inner.read("meta/format")) == 1
            assert not opens(medium.url, OLD_KEY)
            with opened(medium.url, NEW_KEY) as target:
                assert target.state_dict("Key") == {"saved": "in between"}
                target.delete("Key", "Key")
                assert contents(target) == expected
    tried("F1 rotation killed", failures.tried)
    failures.check()


def opens(url, key):
    try:
        with opened(url, key) as manager:
            return bool(manager.list_keys())
    except EncryptionKeyError:
        return False
