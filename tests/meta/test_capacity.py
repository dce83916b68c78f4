"""The model of cost and load: its fit, and the tables of the operations page."""

import json
from pathlib import Path

import pytest
from bench import capacity

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "operations.md"


def rounds(cost):
    """Rounds as `measure` returns them, of a store where everything costs `cost(steps)`."""
    made = [*[("fit", 10, 100)] * 3, *[("fit", 2, 1000)] * 2, ("check", 4, 300)]
    return [
        {"kind": kind, "sessions": n, "steps": steps, "added": {"rows": n * cost(steps)}}
        for kind, n, steps in made
    ]


def test_a_linear_cost_is_found_again():
    fitted = capacity.model(rounds(lambda steps: 70 + 3 * steps))["rows"]
    assert fitted["per_session"] == pytest.approx(70)
    assert fitted["per_save"] == pytest.approx(3)
    assert max(fitted["fit_error"], fitted["check_error"]) < 1e-9
    assert capacity.at({"rows": fitted}, 10**6, 1000)["rows"] == pytest.approx(3_070_000_000)


def test_a_cost_that_is_not_linear_is_told_by_the_check():
    fitted = capacity.model(rounds(lambda steps: steps**1.5))["rows"]
    assert fitted["fit_error"] < 1e-9
    assert fitted["check_error"] > 0.1


def test_the_tables_of_the_page_are_those_of_the_results():
    results = json.loads(capacity.RESULTS.read_text())
    text = PAGE.read_text()
    assert set(results) == {"postgresql", "sqlite"}
    for kind, result in results.items():
        assert capacity.table(result) in text, kind
        assert capacity.growth(result) in text, kind
