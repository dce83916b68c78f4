"""F4: an SQLite store after a loss of power, at any moment of a recorded run."""

import pytest

from tests.crash.recorded import acknowledged, lose_power, prefix

FEW = 40
PARTS = 4  # tests that share the moments, so that they can run at once


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("durability", "allowed"), [("full", acknowledged), ("fast", prefix)])
def test_power_lost(recordings, scratch, sample, tried, durability, allowed, part):
    """Full: nothing acknowledged is lost. Fast: no damage, and at most a tail is lost."""
    recording = recordings(durability)
    moments = sample(recording.moments(), FEW)[part::PARTS]
    failures = lose_power(recording, moments, scratch, allowed)
    tried(f"F4 disks after a loss of power, {durability}", failures.tried)
    failures.check()
