"""The layout of a timeline: order, lanes, edges, and incremental cost."""

import time
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.web.diff.side_by_side import side_by_side
from agent_checkpoint.web.timeline.history import CheckpointSummary, Histories, forks_of
from agent_checkpoint.web.timeline.key_catalog import KeyCatalog
from agent_checkpoint.web.timeline.layout import MAX_LANES, TimelineLayout, lay_out
from agent_checkpoint.web.timeline.svg import BINS, drawing, overview


def checkpoint(
    key: str, seq: int, ts: int, kind: str = "save", parents: Any = None
) -> CheckpointSummary:
    if parents is None:
        parents = ((key, seq - 1),) if seq > 1 else ()
    return CheckpointSummary(key, seq, ts, kind, "", tuple(parents), (), f"{key}_{ts}-{seq}", False)


def order(layout: TimelineLayout) -> "list[str]":
    return [f"{row.checkpoint.key}{row.checkpoint.seq}" for row in layout.rows]


def test_rows_are_in_the_order_of_time_and_never_out_of_that_of_a_line() -> None:
    a = [
        checkpoint("a", 1, 10),
        checkpoint("a", 2, 5),
        checkpoint("a", 3, 30),
    ]  # a clock that was set back
    b = [checkpoint("b", 1, 20, "fork", [("a", 2)]), checkpoint("b", 2, 40)]
    assert order(lay_out("a", {"a": a, "b": b})) == ["a1", "a2", "b1", "a3", "b2"]


def test_forks_and_adopts_join_lanes() -> None:
    a = [checkpoint("a", 1, 1), checkpoint("a", 2, 5, "adopt", [("a", 1), ("b", 2)])]
    b = [checkpoint("b", 1, 2, "fork", [("a", 1)]), checkpoint("b", 2, 3)]
    layout = lay_out("a", {"a": a, "b": b})
    found = {(edge.kind, edge.low, edge.high) for edge in layout.edges}
    assert found == {("fork", 0, 1), ("adopt", 2, 3)}
    assert [row.lane for row in layout.rows] == [0, 1, 1, 0]


def test_what_a_rollback_has_passed_over_is_aside() -> None:
    a = [checkpoint("a", 1, 1), checkpoint("a", 2, 2), checkpoint("a", 3, 3)]
    a += [checkpoint("a", 4, 4, "rollback", [("a", 1)]), checkpoint("a", 5, 5)]
    layout = lay_out("a", {"a": a})
    assert [row.is_abandoned for row in layout.rows] == [False, True, True, False, False]
    assert [(edge.kind, edge.low, edge.high) for edge in layout.edges] == [("back", 0, 3)]
    assert [row.is_head for row in layout.rows] == [False] * 4 + [True]


def test_a_safety_checkpoint_before_an_adopt_interrupts_no_line() -> None:
    a = [
        checkpoint("a", 1, 1),
        checkpoint("a", 2, 2, "safety"),
        checkpoint("a", 3, 3, "adopt", [("a", 1)]),
    ]
    b = [*a[:2], checkpoint("a", 3, 3, "rollback", [("a", 1)])]
    assert [part.is_abandoned for part in lay_out("a", {"a": a}).segments[0]] == [False, False]
    assert [part.is_abandoned for part in lay_out("a", {"a": b}).segments[0]] == [True, False]


def test_a_parent_that_was_pruned_is_stood_in_for_by_the_one_before() -> None:
    a = [checkpoint("a", 1, 1), checkpoint("a", 4, 4, parents=[("a", 3)]), checkpoint("a", 5, 5)]
    assert not any(row.is_abandoned for row in lay_out("a", {"a": a}).rows)


def test_lanes_are_used_again_and_are_not_too_many() -> None:
    lines = {"a": [checkpoint("a", seq, seq * 10) for seq in range(1, 100)]}
    for number in range(1, 90):
        lines[f"b{number:02}"] = [
            checkpoint(f"b{number:02}", 1, number * 10 + 1, "fork", [("a", number)])
        ]
    assert lay_out("a", lines).lanes == 2
    for number in range(1, 90):
        first = lines[f"b{number:02}"][0]
        lines[f"b{number:02}"].append(checkpoint(first.key, 2, 2000 + number))
    assert lay_out("a", lines).lanes == MAX_LANES


def test_circles_and_parents_that_never_were_end() -> None:
    a = [
        checkpoint("a", 1, 1, "rollback", [("a", 2)]),
        checkpoint("a", 2, 2, "rollback", [("a", 2), ("a", 1)]),
        checkpoint("a", 3, 3, "adopt", [("x", 99), ("a", 3)]),
    ]
    layout = lay_out("a", {"a": a})
    assert len(drawing(layout, 0, 3).marks) == 3


def test_only_events_keeps_heads_and_ends_of_what_is_special() -> None:
    a = [checkpoint("a", seq, seq) for seq in range(1, 11)]
    a.append(checkpoint("a", 11, 11, "rollback", [("a", 4)]))
    a += [checkpoint("a", seq, seq) for seq in range(12, 20)]
    layout = lay_out("a", {"a": a}, only_events=True)
    assert order(layout) == ["a1", "a4", "a11", "a19"]
    assert [edge.kind for edge in layout.edges] == ["back"]


def test_a_new_checkpoint_moves_no_row() -> None:
    a = [checkpoint("a", seq, seq) for seq in range(1, 50)]
    before = lay_out("a", {"a": a})
    after = lay_out("a", {"a": [*a, checkpoint("a", 50, 50)]})
    assert before.shape == after.shape
    assert order(before) == order(after)[:-1]
    forked = lay_out("a", {"a": a, "b": [checkpoint("b", 1, 60, "fork", [("a", 3)])]})
    assert forked.shape != before.shape


def test_blocks_fit_together() -> None:
    a = [checkpoint("a", seq, seq) for seq in range(1, 300)]
    a.append(checkpoint("a", 300, 300, "rollback", [("a", 2)]))
    layout = lay_out("a", {"a": a})
    for low in (0, 100, 200):
        found = drawing(layout, low, low + 100)
        assert len(found.marks) == 100
        assert any(style == "edge back" for _, style in found.lines)
        assert len(found.lines) <= 103


def test_the_overview_is_short_however_long_the_timeline_is() -> None:
    layout = lay_out("a", {"a": [checkpoint("a", seq, seq) for seq in range(1, 5000)]})
    assert len(overview(layout)) == BINS
    assert overview(layout)[-1].row == 4998
    assert overview(lay_out("a", {"a": []})) == []


def test_ten_thousand_checkpoints_are_drawn_at_once() -> None:
    lines = {"a": [checkpoint("a", seq, seq) for seq in range(1, 10_001)]}
    for number in range(60):
        key = f"b{number}"
        lines[key] = [checkpoint(key, 1, number * 160 + 1, "fork", [("a", number * 160 + 1)])]
    started = time.process_time()
    layout = lay_out("a", lines)
    drawing(layout, 5000, 5100)
    assert time.process_time() - started < 2


# -- reading ---------------------------------------------------------------------------------------


class Counting:
    """Counts what is read of a store."""

    def __init__(self, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries = 0
        backend = manager.store.backend
        read = backend.read

        def counted(*args: Any, **options: Any) -> Any:
            found = read(*args, **options)
            self.entries += len(found)
            return found

        monkeypatch.setattr(backend, "read", counted)


def test_a_history_is_read_once_and_then_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CheckpointManager()
    for number in range(1000):
        manager.save("key", {"n": number})
    count = Counting(manager, monkeypatch)
    histories = Histories(manager.store)
    assert len(histories.get("key").checkpoints) == 1000
    assert count.entries < 1200
    count.entries = 0
    for number in range(20):
        manager.save("key", {"n": -number})
        assert histories.get("key").checkpoints[-1].seq == 1001 + number
    assert count.entries < 20 * 40


def test_forks_are_found_also_by_way_of_others() -> None:
    manager = CheckpointManager()
    manager.save("a", {"n": 1})
    manager.fork("a", "b")
    manager.fork("b", "c")
    manager.fork("a", "d")
    manager.save("other", {"n": 1})
    origins = KeyCatalog(manager.store).origins()
    assert sorted(forks_of(origins, "a", 10)[0]) == ["b", "c", "d"]
    assert forks_of(origins, "b", 10) == (["c"], 0)
    assert forks_of(origins, "a", 1)[1] == 2


# -- two texts -------------------------------------------------------------------------------------


def test_changed_lines_are_beside_each_other_with_what_changed_in_them() -> None:
    found = side_by_side(["a", "one two three", "z"], ["a", "one 2 three", "z", "new"])
    kinds = [row.kind for row in found.rows]
    assert kinds == ["same", "changed", "same", "added"]
    assert [span.text for span in found.rows[1].before if span.is_changed] == ["two"]
    assert [span.text for span in found.rows[1].after if span.is_changed] == ["2"]
    assert (found.added, found.removed) == (2, 1)


def test_what_is_the_same_and_far_is_left_out() -> None:
    lines = [str(number) for number in range(1000)]
    changed = [*lines[:500], "other", *lines[501:]]
    found = side_by_side(lines, changed)
    assert [row.kind for row in found.rows if row.kind != "same"] == ["gap", "changed", "gap"]
    assert found.rows[0].skipped == 497
    assert side_by_side(lines, lines).rows[0].skipped == 1000
    assert side_by_side([], []).rows == []


def test_texts_that_have_nothing_in_common_take_no_minutes() -> None:
    before = [f"{number % 7}" for number in range(20_000)]
    after = [f"{number % 5}" for number in range(20_000)]
    started = time.process_time()
    found = side_by_side(before, after)
    assert time.process_time() - started < 5
    assert found.is_cut
    assert found.is_rough
    assert found.added > 17_000
