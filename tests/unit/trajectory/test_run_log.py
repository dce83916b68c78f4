"""Recorded results of `bisect` and `replay`: how many there are, also after a kill."""

import pytest

from agent_checkpoint import CheckpointManager, MemoryBackend, WrapperBackend
from agent_checkpoint.trajectory.run_log import BISECT, MOST_RUNS, record_run, recorded_runs


class Killed(BaseException):
    pass


class KilledBackend(WrapperBackend):
    """Fails at the n-th write."""

    writes_left = 10**9

    def _write(self):
        self.writes_left -= 1
        if self.writes_left < 0:
            raise Killed

    def append(self, *args, **kwargs):
        self._write()
        return super().append(*args, **kwargs)

    def remove(self, *args, **kwargs):
        self._write()
        return super().remove(*args, **kwargs)


def names(manager):
    return [run.values["test"] for run in recorded_runs(manager, "k")]


def test_the_last_ones_are_kept(manager):
    for number in range(MOST_RUNS + 3):
        assert record_run(manager, "k", BISECT, {"test": number}) is None
    assert names(manager) == list(range(3, MOST_RUNS + 3))[::-1]
    assert recorded_runs(manager, "k")[0].number == MOST_RUNS + 3


@pytest.mark.parametrize("at", range(5))
def test_a_kill_while_they_are_trimmed_loses_none(at):
    backend = KilledBackend(MemoryBackend())
    with CheckpointManager(backend=backend) as manager:
        for number in range(MOST_RUNS):
            record_run(manager, "k", BISECT, {"test": number})
        backend.writes_left = at
        try:
            record_run(manager, "k", BISECT, {"test": MOST_RUNS})
        except Killed:
            assert at < 2
        backend.writes_left = 10**9
        assert set(names(manager)) >= set(range(1, MOST_RUNS))
        record_run(manager, "k", BISECT, {"test": "next"})
        assert len(names(manager)) == MOST_RUNS
