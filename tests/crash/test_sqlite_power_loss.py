"""F4: an SQLite store after a loss of power, at any moment of a recorded run."""

import shutil

import pytest

from tests.crash.recorded import record, states_between
from tests.crash.scenarios import Failures, check_is_one_of, contents
from tests.crash.survivors import Kept, Lost, NamesKept, Torn

FEW = 40
TORN = 4  # disks a moment


@pytest.fixture(scope="session")
def recordings(fault_process, session_scratch):
    """A recording by durability, made once."""
    made = {}

    def get(durability):
        if durability not in made:
            root = session_scratch / f"recorded-{durability}"
            root.mkdir()
            made[durability] = record(fault_process, root, durability)
        return made[durability]

    return get


def survivors_of(moment):
    yield Lost()
    yield Kept()
    yield NamesKept()
    for number in range(TORN):
        yield Torn(f"{moment.place}/{number}")


def sweep(recording, moments, scratch, allowed, **options):
    """Build the disks of each moment; the store on each must hold one of the allowed states."""
    failures = Failures()
    disk_there = scratch / "disk"
    for moment, disk in recording.disks(moments, **options):
        for survivors in survivors_of(moment):
            disk.build(disk_there, survivors)
            with failures.at(f"{type(survivors).__name__} at {moment}"):
                check_is_one_of(contents(disk_there / "store"), allowed(moment))
            shutil.rmtree(disk_there)
    return failures


def acknowledged(moment):
    """With durability full: all that was acknowledged, and perhaps what was under way."""
    return states_between()[moment.ended : moment.begun + 1]


def prefix(moment):
    """With durability fast: what there was at some step up to here."""
    return states_between()[: moment.begun + 1]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("durability", "allowed"), [("full", acknowledged), ("fast", prefix)])
def test_power_lost(recordings, scratch, sample, tried, durability, allowed, part):
    """Full: nothing acknowledged is lost. Fast: no damage, and at most a tail is lost."""
    recording = recordings(durability)
    moments = sample(recording.moments(), FEW)[part::4]
    failures = sweep(recording, moments, scratch, allowed)
    tried(f"F4 disks after a loss of power, {durability}", failures.tried)
    failures.check()
