"""The options of the fault tests, and what they share.

`--full-faults` (as `make faults` does) breaks the store at every point; otherwise a sample is
taken, always the same one, that leaves `make test` fast. The summary tells how many were tried.
"""

import os
import random
import shutil
import tempfile
from contextlib import closing
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path

import pytest

from tests.crash.fault_process import SECRET, FaultProcess
from tests.crash.recorded import record
from tests.crash.scenarios import make_archive, make_store
from tests.crash.sweeping import BrokenStore
from tests.crash.workspace_sweeping import SCENARIOS as WORKSPACE_SCENARIOS
from tests.crash.workspace_sweeping import BrokenWorkspace

_COUNTED = "faults"


def pytest_addoption(parser):
    parser.addoption("--full-faults", action="store_true", help="break the store at every point")


def pytest_terminal_summary(terminalreporter):
    tried = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, (kind, number) in getattr(report, "user_properties", ()):
                if name == _COUNTED and getattr(report, "when", None) == "call":
                    tried[kind] = tried.get(kind, 0) + number
    if tried:
        terminalreporter.section("faults tried")
        for kind, number in sorted(tried.items()):
            terminalreporter.write_line(f"{number:7,}  {kind}")
        terminalreporter.write_line(f"{sum(tried.values()):7,}  in all")


@pytest.fixture(scope="session")
def full_faults(request):
    """Whether to try every fault."""
    return request.config.getoption("--full-faults", default=False)


@pytest.fixture
def tried(record_property):
    """Call it with a kind of fault and the number that were tried."""

    def count(kind, number=1):
        if number:
            record_property(_COUNTED, (kind, number))

    return count


@pytest.fixture
def sample(full_faults):
    """Return all points in a full run; otherwise a few, of all kinds, and always the same."""

    def choose(points, few, kind=lambda point: None):
        points = list(points)
        if full_faults or len(points) <= few:
            return points
        chosen = random.Random(f"{few} of {len(points)}")
        by_kind = {}
        for place in chosen.sample(range(len(points)), len(points)):
            by_kind.setdefault(kind(points[place]), []).append(place)
        kinds = chosen.sample(list(by_kind.values()), len(by_kind))
        in_turn = (place for turn in zip_longest(*kinds) for place in turn)
        places = islice((place for place in in_turn if place is not None), few)
        return [points[place] for place in sorted(places)]

    return choose


@pytest.fixture
def sample_calls(sample):
    """The same for system calls, of which the rare ones are the interesting ones."""
    return partial(sample, kind=lambda call: (call.name, Path(call.paths[-1]).suffix))


def _memory_disk():
    # A fault is injected, not waited for: the disk need not be a real one, and memory is fast.
    place = Path("/dev/shm")
    return place if place.is_dir() and os.access(place, os.W_OK) else None


@pytest.fixture(scope="session")
def session_scratch():
    place = Path(tempfile.mkdtemp(prefix="agent-checkpoint-faults-", dir=_memory_disk()))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def scratch(session_scratch):
    """An empty directory, in memory where that is possible."""
    place = Path(tempfile.mkdtemp(dir=session_scratch))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def pristine(session_scratch):
    """A store to copy before it is broken, and an archive of another: see `scenarios`."""
    place = session_scratch / "pristine"
    make_store(place / "store")
    make_archive(place / "packed.ckpt", place / "other")
    return place


@pytest.fixture(scope="session")
def fault_process(session_scratch):
    """Runs functions of `scenarios` in processes that break."""
    with closing(FaultProcess("tests.crash.scenarios", session_scratch)) as process:
        yield process


@pytest.fixture
def broken_store(fault_process, pristine, scratch):
    """A store on which actions are broken."""
    return BrokenStore(fault_process, pristine, scratch)


@pytest.fixture(scope="session")
def workspace_process(session_scratch):
    """Runs functions of `workspace_scenarios` in processes that break."""
    with closing(FaultProcess(WORKSPACE_SCENARIOS, session_scratch)) as process:
        yield process


@pytest.fixture
def broken_workspace(workspace_process, scratch, monkeypatch):
    """A workspace on which actions are broken."""
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", SECRET)
    return BrokenWorkspace(workspace_process, scratch)


@pytest.fixture(scope="session")
def recordings(fault_process, session_scratch):
    """Return the recording of a durability, made once: see `recorded`."""
    made = {}

    def get(durability):
        if durability not in made:
            root = session_scratch / f"recorded-{durability}"
            root.mkdir()
            made[durability] = record(fault_process, root, durability)
        return made[durability]

    return get
