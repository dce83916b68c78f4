"""F1 and F2 while `gc` repacks zstd objects for every installation.

An object keeps its name, so that a repack may be interrupted anywhere: whatever is left holds the
same bytes as before, in one codec or the other.
"""

import base64
import random
import shutil
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.store.objects import compression
from agent_checkpoint.store.objects.object_format import BLOB, make_object
from agent_checkpoint.store.store import Store
from tests.backends.full_disks import fill, small_disk
from tests.crash.fault_process import CHANGES, OPENS, FaultProcess, places, say
from tests.crash.sweeping import Failures

pytestmark = pytest.mark.skipif(compression.load_zstd() is None, reason="zstd is not installed")
HERE = "tests.crash.test_repack_faults"
BACKENDS = ["sqlite", "file"]
FAULTS = {
    "signal=KILL": CHANGES,
    "error=ENOSPC": CHANGES,
    "error=EIO": CHANGES,
    "error=EDQUOT": CHANGES,
    "error=EMFILE": OPENS,
}
FEW = 6
NOISE = base64.b64encode(random.Random(1).randbytes(160_000)).decode()
STATE = {"small": "some text that packs well, " * 400, "large": NOISE}
BLOBS = [make_object(BLOB, text.encode()) for text in STATE.values()]
UNUSED = make_object(BLOB, b"needed by nothing, " * 20)
NAMES = {name for name, _ in BLOBS}


def opened(backend, path):
    return CheckpointManager(backend=backend, path=path)


def make_store(backend, path):
    """A store as version 0.1 left it where zstd was installed, one object of which is large."""
    as_then = mock.patch.object(Store, "_compression", return_value="zstd")
    with opened(backend, path) as manager, as_then:
        manager.save("key", STATE)
        manager.store.backend.put_objects(
            {name: packed.stored("zstd") for name, packed in [*BLOBS, UNUSED]}
        )


def warm_up(place):
    """Do everything once, so that all that Python loads late is loaded."""
    for backend in BACKENDS:
        path = Path(place) / backend
        make_store(backend, path)
        check(backend, path)
    shutil.rmtree(place)


def act(backend, path):
    """Run as a process: repack, and say so."""
    say("repacked", opened(backend, path).store.codecs.repack())


def act_and_go_on(backend, path):
    """Run as a process: repack or be refused; then do it again in the same process."""
    manager = opened(backend, path)
    try:
        say("repacked", manager.store.codecs.repack())
    except CheckpointError as error:
        say("refused", type(error).__name__, str(error).replace("\n", " "))
    say("again", manager.store.codecs.repack())
    say("state", manager.state_dict("key") == STATE)


def stored_in(manager):
    backend = manager.store.backend
    return backend.get_objects([info.id for info in backend.list_objects()])


def check(backend, path):
    """Everything is there, and the next process repacks the rest."""
    with opened(backend, path) as manager:
        assert stored_in(manager).keys() >= NAMES
        assert manager.state_dict("key") == STATE
        manager.store.codecs.repack()
        assert {data[:1] for data in stored_in(manager).values()} <= {b"r", b"z"}
        assert manager.state_dict("key") == STATE
    for item in path.rglob("*"):
        assert item.stat().st_mode & 0o077 == 0, item


@pytest.fixture(scope="module")
def process(session_scratch):
    """Runs functions of this file in processes that break."""
    with closing(FaultProcess(HERE, session_scratch)) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_repacking_may_stop_anywhere(process, scratch, backend, fault, sample_calls, tried):
    make_store(backend, scratch / "old")
    path = scratch / "store"

    def run(function, inject=None):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(scratch / "old", path)
        return process.run(
            f"{HERE}:{function}", backend, path, inject=inject, trace=CHANGES + OPENS
        )

    whole = run("act")
    assert whole.status == 0, whole.errors
    assert int(whole.said[0].split()[1]) >= 2
    calls = places(whole.calls_before_it_said_anything(), scratch, FAULTS[fault])
    failures = Failures()
    for point in sample_calls(calls, FEW):
        is_kill = fault == "signal=KILL"
        function = "act" if is_kill else "act_and_go_on"
        outcome = run(function, f"{point.name}:{fault}:when={point.when}")
        with failures.at(f"{fault} at {point}"):
            assert outcome.was_killed if is_kill else outcome.status == 0, outcome
            if not is_kill:
                assert outcome.said[-1] == "state True"
            check(backend, path)
    tried("F1, F2 repack", failures.tried)
    failures.check()


@pytest.mark.parametrize("min_free", [None, 0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gc_on_a_full_disk_leaves_the_repack_for_later(tmp_path, backend, min_free):
    with small_disk("tmpfs", tmp_path, 24) as disk:
        make_store(backend, disk / "store")
        filler = fill(disk)
        options = {"path": disk / "store", "min_free": min_free}
        with CheckpointManager(backend=backend, **options) as manager:
            assert manager.store.codecs.repack() == 0
            report = manager.gc()
            assert report.objects >= 1
            assert report.repacked == 0
            assert UNUSED[0] not in stored_in(manager)
            assert manager.state_dict("key") == STATE
            filler.unlink()
            assert manager.gc().objects == 0
            assert {data[:1] for data in stored_in(manager).values()} <= {b"r", b"z"}
            assert manager.state_dict("key") == STATE
