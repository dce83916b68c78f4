"""The page of the benchmarks: floors beside the missed targets, and results without floors."""

import json
from dataclasses import replace

from bench.page import PAGE, README, RESULTS, page, summary, with_summary
from bench.rows import Row

MISSED = Row("P1", "first snapshot", 300.0, 1000.0, "ms", "git", target=0.25)
FLOOR = Row("P1", "first snapshot", 300.0, 270.0, "ms", "read and hash all", floor=True)
IMPORT = Row("P9", "session", 95.0, 20.0, "ms", "bare", target=70.0, difference=True)
IMPORT_FLOOR = Row("P9", "session", 95.0, 60.0, "ms", "modules alone", difference=True, floor=True)
NO_FLOOR = Row("P8", "first load", 3.0, 1.0, "ms", "LangGraph", target=1.5)


def test_page_and_readme_agree_with_the_committed_results():
    results = json.loads(RESULTS.read_text())
    assert PAGE.read_text() == page(results), "run `python -m bench.page`"
    readme = README.read_text()
    assert readme == with_summary(readme, results), "run `python -m bench.page`"


def test_the_readme_has_the_first_row_of_a_target_and_what_is_slower():
    other = Row("P1", "first snapshot, large", 1.0, 2.0, "ms", "git", target=0.25)
    text = summary({"rows": [row.as_json() for row in (FLOOR, MISSED, other, NO_FLOOR)]})
    lines = [line for line in text.splitlines() if line.startswith("| first")]
    assert [line.split(" | ")[0] for line in lines] == ["| first snapshot", "| first load"]
    assert text.endswith("The largest differences:\n\n- first load: 3.00 x LangGraph")


def results_of(*rows, forget=()):
    """Results with these rows."""
    found = [row.as_json() for row in rows]
    for name in forget:
        for row in found:
            del row[name]
    machine = {
        "when": "2026-01-01T00:00:00Z",
        "system": "Linux",
        "cores": 2,
        "load_average": 0.1,
        "filesystem": "ext4",
        "sync_ms": {"p50": 0.5},
        "python": "3.11.7",
        "sqlite": "3.45.1",
        "versions": {"agent-checkpoint": "1.0"},
    }
    return {"rows": found, "machine": machine, "curves": {"steps": {}}}


def sections(*rows, forget=()):
    """The sections of the page of these rows, by their titles."""
    text = page(results_of(*rows, forget=forget))
    return dict(part.split("\n", 1) for part in text.split("\n## ")[1:])


def lines_of(section):
    return [line for line in section.splitlines() if line.startswith("| ")]


def test_a_missed_target_has_the_ratio_of_the_floor_to_the_same_peer():
    rows = (MISSED, FLOOR, IMPORT, IMPORT_FLOOR, NO_FLOOR)
    head, _, *missed = lines_of(sections(*rows)["Missed targets"])
    assert head.endswith("| slowest floor | above it |")
    assert [line.split(" | ")[0] for line in missed] == [
        "| first snapshot",
        "| session",
        "| first load",
    ]
    assert [line.split(" | ")[-2:] for line in missed] == [
        ["0.27 x read and hash all", "30.0 ms; it misses, too |"],
        ["+40.0 ms modules alone", "35.0 ms |"],
        ["-", "- |"],
    ]
    assert {line.count(" |") for line in missed} == {head.count(" |")}


def test_the_slowest_floor_is_shown():
    low = replace(FLOOR, peer=100.0)
    found = sections(MISSED, replace(low, peer=240.0, peer_name="the trees too"), low)
    (_, _, missed) = lines_of(found["Missed targets"])
    assert missed.endswith("| 0.24 x the trees too | 60.0 ms |")


def test_a_program_that_takes_longer_than_ours_is_no_floor():
    found = sections(MISSED, replace(FLOOR, peer=310.0), replace(FLOOR, peer=200.0))
    (_, _, missed) = lines_of(found["Missed targets"])
    assert missed.endswith("| 0.20 x read and hash all | 100 ms |")


def test_missed_targets_have_a_reason_and_others_none():
    text = sections(MISSED, replace(NO_FLOOR, ours=1.0))["Missed targets"]
    assert [line[:5] for line in text.splitlines() if line.startswith("- ")] == ["- P1:"]


def test_figures_for_scale_have_no_ratio():
    row = Row("P17", "peak memory", 40.0, 20.0, "B", "imported", target=300.0, absolute=True)
    (*_, line) = lines_of(sections(row)["All figures"])
    assert line == "| peak memory | 40 B | 20 B imported |  | ≤ 300 B | holds |  |  |  |"


def test_the_parts_of_a_snapshot():
    parts = {"first": {"commit": 20.0, "scan": 300.0}, "watching": {"commit": 0.5}}
    results = results_of(MISSED) | {"workspaces": {"sizes": [{"files": 7000, "parts_ms": parts}]}}
    lines = lines_of(page(results).split("## Missed targets")[1].split("\n## ")[0])
    assert lines[-4:] == [
        "| part, 7,000 files | first snapshot | 1 changed, watching |",
        "| --- | --- | --- |",
        "| commit | 20.0 ms | 0.50 ms |",
        "| scan | 300 ms | - |",
    ]


def test_a_floor_is_shown_with_its_group_and_is_no_faster_peer():
    found = sections(MISSED, FLOOR)
    assert "read and hash all" in found["All figures"]
    assert "None in this run." in found["Slower or larger than a peer by more than 5%"]


def test_results_without_floors_still_make_a_page():
    (_, _, missed) = lines_of(sections(MISSED, forget=["floor"])["Missed targets"])
    assert missed.endswith("| - | - |")
