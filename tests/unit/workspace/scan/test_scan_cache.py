"""What a scan leaves to the garbage collector."""

import gc

import pytest

from agent_checkpoint.workspace.scan import scan_cache


def test_what_a_large_scan_creates_is_not_visited_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan_cache, "_MANY_OBJECTS", 0)
    with scan_cache.collection_paused():
        created: list[list[int]] = [[] for _ in range(5_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert gc.get_count()[0] < len(created)
    young = gc.get_objects(generation=0)
    assert not any(each is created[0] for each in young)


def test_objects_that_the_program_froze_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_cache, "_MANY_OBJECTS", 0)
    gc.freeze()
    try:
        with scan_cache.collection_paused():
            created: list[list[int]] = [[] for _ in range(5_000)]
        assert gc.get_freeze_count() > 0
        assert created
    finally:
        gc.unfreeze()
