"""F2 and F3: an SQLite store on a full or failing disk, or in a process out of descriptors.

One call fails in each run. What is asked of the store is a typed error or success, everything that
was acknowledged, and that the same process as well as a new one can go on.
"""

import shutil

import pytest

from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.fault_process import CHANGES, OPENS, SYNCS, places
from tests.crash.scenarios import (
    ACTIONS,
    Failures,
    check_is_one_of,
    check_usable,
    contents,
    large,
)

FEW = 4
AIMED_AT = {"ENOSPC": CHANGES, "EIO": CHANGES, "EDQUOT": CHANGES, "EMFILE": OPENS}
SPARSE = {"EDQUOT": 4}  # SQLite knows no difference from EIO: every fourth call is enough


@pytest.fixture
def broken(fault_process, pristine, scratch, sample):
    """Run an action with one call failing, once for each call of some names."""

    def run(function, action, inject=None):
        for item in scratch.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()
        if ACTIONS[action].before:
            shutil.copytree(pristine / "store", scratch / "store")
        shutil.copy(pristine / "packed.ckpt", scratch)
        return fault_process.run(
            f"tests.crash.scenarios:{function}",
            action,
            scratch / "store",
            scratch / "packed.ckpt",
            inject=inject,
            trace=CHANGES + OPENS,
        )

    def sweep(action, error, names, every=1):
        whole = run("act", action)
        assert whole.status == 0
        points = places(whole.calls, scratch, names)
        for point in sample(points[::every], FEW):
            yield point, run("act_and_go_on", action, f"{point.name}:error={error}:when={point.when}")

    return sweep


def check_went_on(scratch, action, outcome):
    """Old or new; the process went on to save and verify; so can the next."""
    assert outcome.status == 0, (outcome.said, outcome.errors.splitlines()[-1])
    first, then, verified = outcome.said
    assert verified == "verified True"
    before, after = ACTIONS[action].before, ACTIONS[action].after
    present = contents(scratch / "store")
    allowed = [after] if first.startswith("did") else [before, after]
    seq = parse_checkpoint_id(then.split()[1]).seq
    check_is_one_of(
        present, [{**old, "Key": {**old.get("Key", {}), seq: large(5)}} for old in allowed]
    )
    check_usable(scratch / "store", present)


@pytest.mark.slow
@pytest.mark.parametrize("error", AIMED_AT)
@pytest.mark.parametrize("action", ACTIONS)
def test_refused_by_the_disk(broken, scratch, action, error, tried):
    """Nothing that was acknowledged is lost, whichever call fails."""
    failures = Failures()
    for point, outcome in broken(action, error, AIMED_AT[error], SPARSE.get(error, 1)):
        with failures.at(f"{error} at {point}"):
            check_went_on(scratch, action, outcome)
    tried(f"F2 {error}", failures.tried)
    failures.check()
