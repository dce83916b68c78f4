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
    assert text.endswith("most of all:\n\n- first load: 3.00 x LangGraph")


def sections(*rows, forget=()):
    """The sections of the page of these rows, by their titles."""
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
    text = page({"rows": found, "machine": machine, "curves": {"steps": {}}})
    return dict(part.split("\n", 1) for part in text.split("\n## ")[1:])


def lines_of(section):
    return [line for line in section.splitlines() if line.startswith("| ")]


def test_a_missed_target_has_the_ratio_of_the_floor_to_the_same_peer():
    rows = (MISSED, FLOOR, IMPORT, IMPORT_FLOOR, NO_FLOOR)
    head, *missed = lines_of(sections(*rows)["Missed targets"])
    assert head.endswith("| floor | beyond it |")
    assert [line.split(" | ")[0] for line in missed] == [
        "| first snapshot",
        "| session",
        "| first load",
    ]
    assert [line.split(" | ")[-2:] for line in missed] == [
        ["0.27 x read and hash all", "it misses, too |"],
        ["+40.0 ms modules alone", "35.0 ms more |"],
        ["-", "- |"],
    ]
    assert {line.count(" |") for line in missed} == {head.count(" |")}


def test_several_floors_of_a_missed_target_are_all_named():
    more = replace(FLOOR, peer=290.0, peer_name="the trees too")
    (_, missed) = lines_of(sections(MISSED, FLOOR, more)["Missed targets"])
    assert missed.endswith("| 0.27 x read and hash all; 0.29 x the trees too | it misses, too |")


def test_what_ours_takes_beyond_the_highest_floor():
    low = replace(FLOOR, peer=100.0)
    (_, missed) = lines_of(sections(MISSED, low, replace(low, peer=240.0))["Missed targets"])
    assert missed.endswith("| 60.0 ms more |")


def test_a_floor_is_shown_with_its_group_and_is_no_faster_peer():
    found = sections(MISSED, FLOOR)
    assert "read and hash all" in found["All figures"]
    assert "None in this run." in found["Slower or larger than a peer"]


def test_results_without_floors_still_make_a_page():
    (_, missed) = lines_of(sections(MISSED, forget=["floor"])["Missed targets"])
    assert missed.endswith("| - | - |")
