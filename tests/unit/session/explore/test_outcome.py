"""What is told of trials: tables, the best, and how much runs differ."""

import json
import math

import pytest

from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.session.branch.trial import Trial
from agent_checkpoint.session.explore.outcome import Outcome


def trial(number, repeat=0, error=None, **metrics):
    return Trial(
        {"n": number},
        number,
        repeat,
        f"k-{number}.{repeat}",
        head="h",
        metrics=metrics,
        error=error,
        seconds=1.5,
        steps=3,
    )


def test_the_best_of_single_runs():
    outcome = Outcome([trial(0, score=1, cost=5), trial(1, score=3, cost=9), trial(2, score=2)])
    assert outcome.best().number == 1
    assert outcome.best("cost", mode="min").number == 0
    assert outcome.best("score", mode="min").number == 0


def test_the_first_of_equals():
    assert Outcome([trial(0, score=1), trial(1, score=1)]).best().number == 0


def test_the_best_on_average_wins_not_the_luckiest():
    runs = [trial(0, 0, score=10), trial(0, 1, score=0), trial(1, 0, score=6), trial(1, 1, score=7)]
    best = Outcome(runs).best()
    assert (best.number, best.repeat) == (1, 1)


def test_failures_and_nan_never_win():
    outcome = Outcome([trial(0, error="bad", score=9), trial(1, score=math.nan), trial(2, score=1)])
    assert outcome.best().number == 2


@pytest.mark.parametrize("trials", [[], [trial(0, error="it broke")], [trial(0, cost=1)]])
def test_no_best(trials):
    with pytest.raises(NotFoundError, match="score"):
        Outcome(trials).best()


def test_modes():
    with pytest.raises(InvalidInputError, match="'max' or 'min'"):
        Outcome([trial(0, score=1)]).best(mode="most")


def test_the_spread_of_runs():
    outcome = Outcome([trial(0, repeat, score=score) for repeat, score in enumerate([1, 2, 3])])
    found = outcome.summary(0)
    assert (found.n, found.mean, found.spread) == (3, 2, 1)
    assert str(found) == "2 ± 1"
    single = Outcome([trial(0, score=2)]).summary(0)
    assert single.spread is None
    assert str(single) == "2"
    assert outcome.summary(0, "cost") is None


def test_the_table():
    outcome = Outcome(
        [
            trial(0, 0, score=1),
            trial(0, 1, score=2),
            trial(1, 0, error="LookupError: no\nmore"),
            trial(1, 1, score=4, cost=1),
        ]
    )
    assert outcome.table().splitlines() == [
        "variant  runs  score       cost  seconds  steps  error",
        "-------  ----  ----------  ----  -------  -----  ---------------",
        "n=0      2/2   1.5 ± 0.71        1.50     3",
        "n=1      1/2   4           1     1.50     3      LookupError: no",
    ]


def test_what_goes_to_json():
    outcome = Outcome([trial(0, score=1)])
    assert json.loads(json.dumps(outcome.to_dict())) == outcome.to_dict()
    assert outcome.to_dict()["trials"][0]["metrics"] == {"score": 1}


def test_a_trial_in_a_line():
    assert trial(1, score=2).in_words() == "n=1: score 2"
    assert trial(1, error="bad\nworse").in_words() == "n=1: bad"
    assert trial(1).in_words() == "n=1: done"
