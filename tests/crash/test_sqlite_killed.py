"""F1: an SQLite store whose process is killed at any call that changes the disk."""

import pytest

from tests.crash.scenarios import (
    ACTIONS,
    PACKED,
    check_is_one_of,
    check_usable,
    contents,
    open_manager,
)
from tests.crash.sweeping import Failures

FEW = {"small save": 12, "large save": 12, "first save": 12, "import": 12}


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_killed(broken_store, scratch, action, sample_calls, tried):
    """The old or the new, never a mix; what was acknowledged is there; the next open works."""
    failures = Failures()
    for point in sample_calls(broken_store.points(action), FEW.get(action, 6)):
        outcome = broken_store.run(
            "act", action, inject=f"{point.name}:signal=KILL:when={point.when}"
        )
        with failures.at(point):
            assert outcome.was_killed, outcome.errors
            present = contents(broken_store.path)
            allowed = [ACTIONS[action].after] if outcome.said else []
            check_is_one_of(present, allowed or [ACTIONS[action].before, ACTIONS[action].after])
            if action == "export":
                check_archive(scratch, outcome)
            check_usable(broken_store.path, present)
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
