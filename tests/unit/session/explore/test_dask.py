"""Exploring on a real dask cluster, whose workers share nothing with us but the store."""

from pathlib import Path

import pytest

from agent_checkpoint import Session, explore
from tests.unit.session.explore import strategies
from tests.unit.session.explore.strategies import Spender
from tests.unit.session.places import files_of

pytest.importorskip("distributed", reason="dask is not made for this Python")

pytestmark = [
    pytest.mark.slow,
    # Of libraries that it stands on, not of ours.
    pytest.mark.filterwarnings("ignore"),
]


def test_the_same_as_here(cluster, tmp_path, place, own_home):
    with Session("work", agent=Spender(), workspace=place, store=tmp_path / "store") as session:
        session.agent.memory.append("before")
        session.save()
        variants = [{"n": n} for n in range(4)]
        here = explore(session, strategies.edit, variants)
        with cluster.get_executor() as executor:
            there = explore(session, strategies.edit, variants, executor=executor)
            failed = explore(session, strategies.fail, variants, executor=executor)
        assert [trial.error for trial in there] == [None] * 4
        assert [trial.metrics for trial in there] == [trial.metrics for trial in here]
        for one, other in zip(here, there):
            assert one.file_diff.to_dict() == other.file_diff.to_dict()
            assert _state(one) == _state(other)
        assert [trial.ok for trial in failed] == [True, False, True, False]
        there.best().adopt()
        assert files_of(place)["src/app.py"][0] == "way(3)\n"
        assert session.agent.memory == ["before", "way 3"]
    for number in range(2):
        home = tmp_path / f"worker{number}"
        assert list((home / "empty").iterdir()) == []
        branches = home / "own/branches"
        assert not branches.exists() or list(branches.iterdir()) == []


def test_files_come_from_the_store(cluster, tmp_path, place, monkeypatch):
    """As for workers of another machine, which do not see our directories at all."""
    from agent_checkpoint.workspace.fork import isolated

    monkeypatch.setattr(isolated, "can_view", lambda place: False)
    with Session("work", agent=Spender(), workspace=place, store=tmp_path / "store") as session:
        with cluster.get_executor() as executor:
            outcome = explore(session, strategies.edit, [{"n": 1}, {"n": 2}], executor=executor)
        assert [trial.error for trial in outcome] == [None] * 2
        assert all("/own/branches/" in trial.place for trial in outcome)
        assert not any(Path(trial.place).exists() for trial in outcome)
        outcome.best().adopt()
        assert files_of(place)["src/app.py"][0] == "way(2)\n"


def _state(trial):
    found = trial.state_diff
    del found["added"]["calls[0]"]  # which has the time and the place
    return found
