"""F2: an SQLite store on a full or failing disk, or in a process out of descriptors.

One call fails in each run. What is asked of the store is a typed error or success, everything that
was acknowledged, and that the same process as well as a new one can go on.
"""

import pytest

from tests.crash.fault_process import CHANGES, OPENS
from tests.crash.scenarios import ACTIONS
from tests.crash.sweeping import Failures

FEW = 2
AIMED_AT = {"ENOSPC": CHANGES, "EIO": CHANGES, "EDQUOT": CHANGES, "EMFILE": OPENS}
SPARSE = {"EDQUOT": 4}  # SQLite knows no difference from EIO: every fourth call is enough


@pytest.mark.slow
@pytest.mark.parametrize("error", AIMED_AT)
@pytest.mark.parametrize("action", ACTIONS)
def test_refused_by_the_disk(broken_store, action, error, sample_calls, tried):
    """Nothing that was acknowledged is lost, whichever call fails."""
    failures = Failures()
    points = broken_store.points(action, AIMED_AT[error])[:: SPARSE.get(error, 1)]
    chosen = sample_calls(points, FEW)
    for point, outcome in broken_store.broken_runs(action, chosen, f"error={error}"):
        with failures.at(f"{error} at {point}"):
            broken_store.check_went_on(action, outcome)
    tried(f"F2 {error}", failures.tried)
    failures.check()
