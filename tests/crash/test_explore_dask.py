"""Many trials on a dask cluster with a store in PostgreSQL; a worker is killed among them."""

from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="dask is not made for this Python")
pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from agent_checkpoint import Session, explore
from agent_checkpoint.workspace.fork import isolated
from agent_checkpoint.workspace.fork.fork_directory import clean_up_all
from tests.unit.session.explore import strategies
from tests.unit.session.explore.strategies import Spender
from tests.unit.session.places import files_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("has_view", [False, True])
def test_a_worker_is_killed(
    cluster,
    postgres_server,
    tmp_path,
    own_home,
    monkeypatch,
    full_faults,
    tried,
    has_view,
):
    """The results are complete, each trial counts once, and nothing is left."""
    if not has_view:  # as on other machines, which do not see our directories
        monkeypatch.setattr(isolated, "can_view", lambda place: False)
    place, outbox = tmp_path / "work", tmp_path / "outbox"
    (place / "src").mkdir(parents=True)
    (place / "run.sh").write_text("echo\n")
    trials = 100 if full_faults and not has_view else 8
    variants = [
        {"place": str(outbox), "parent": True if n == trials // 2 else None} for n in range(trials)
    ]
    store = postgres_server.url(postgres_server.new_schema())
    with Session("work", agent=Spender(), workspace=place, store=store) as session:
        before = files_of(place)
        with cluster.get_executor() as executor:
            outcome = explore(session, strategies.tried_before, variants, executor=executor)
        assert (tmp_path / "killed").exists()
        assert [trial.error for trial in outcome] == [None] * trials
        assert {(row.metrics["files"], row.metrics["memory"]) for row in outcome} == {(2, 0)}
        assert files_of(place) == before
        # An effect of the attempt that was killed is replayed, not repeated.
        assert sorted(outbox.read_text().split()) == sorted(trial.key for trial in outcome)
        assert sorted(session.manager.list_keys()) == sorted(
            ["work", *(trial.key for trial in outcome)]
        )
        outcome.trials[trials // 2].adopt()
        assert (place / "tried").read_text() == outcome.trials[trials // 2].key
    for home in (own_home / "store", *(tmp_path / f"worker{n}" / "own" for n in range(2))):
        monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(home))
        clean_up_all()  # as the next process does on the host of the killed worker
        for name in ("branches", "forks", "bases"):
            assert not (home / name).exists() or not list((home / name).iterdir()), (home, name)
    assert str(own_home) not in Path("/proc/self/mountinfo").read_text()
    tried("trials on a cluster whose worker is killed", trials)
