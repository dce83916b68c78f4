"""F1: an SQLite store whose process is killed at any call that changes the disk."""

import shutil

import pytest

from tests.crash.fault_process import places
from tests.crash.scenarios import (
    ACTIONS,
    PACKED,
    Failures,
    check_is_one_of,
    check_usable,
    contents,
    open_manager,
)

FEW = {"small save": 12, "large save": 12, "first save": 12, "import": 12}


def killed(fault_process, pristine, scratch, action, sample):
    """Run once to find the calls, then once for each call to be killed there."""

    def run(inject=None):
        if ACTIONS[action].before:
            shutil.copytree(pristine / "store", scratch / "store")
        shutil.copy(pristine / "packed.ckpt", scratch)
        outcome = fault_process.run(
            "tests.crash.scenarios:act",
            action,
            scratch / "store",
            scratch / "packed.ckpt",
            inject=inject,
        )
        assert outcome.errors == "", outcome.errors
        return outcome

    def clear():
        for item in scratch.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()

    whole = run()
    assert whole.status == 0
    check_is_one_of(contents(scratch / "store"), [ACTIONS[action].after])
    points = places(whole.calls, scratch)
    assert points, "nothing was written"
    for point in sample(points, FEW.get(action, 6)):
        clear()
        outcome = run(f"{point.name}:signal=KILL:when={point.when}")
        assert outcome.was_killed, f"not killed at {point}"
        yield point, outcome


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_killed(fault_process, pristine, scratch, action, sample, tried):
    """The old or the new, never a mix; what was acknowledged is there; the next open works."""
    before, after = ACTIONS[action].before, ACTIONS[action].after
    failures = Failures()
    for point, outcome in killed(fault_process, pristine, scratch, action, sample):
        with failures.at(point):
            present = contents(scratch / "store")
            check_is_one_of(present, [after] if outcome.said else [before, after])
            if action == "export":
                check_archive(scratch, outcome)
            check_usable(scratch / "store", present)
    tried("F1 killed", failures.tried)
    failures.check()


def check_archive(scratch, outcome):
    """An exported file is whole if it is there at all, and it is there if that was said."""
    if not (scratch / "out.ckpt").exists():
        assert not outcome.said
        return
    with open_manager(scratch / "imported") as manager:
        assert manager.import_archive(scratch / "out.ckpt") == "Big"
    check_is_one_of(contents(scratch / "imported"), [{"Big": ACTIONS["export"].after["Big"]}])


def test_the_archive_of_these_tests_is_sound(pristine, scratch):
    with open_manager(scratch / "store") as manager:
        assert manager.import_archive(pristine / "packed.ckpt") == "Packed"
    check_is_one_of(contents(scratch / "store"), [{"Packed": PACKED}])
