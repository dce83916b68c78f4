"""Exploring on a real dask cluster, whose workers share nothing with us but the store."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_checkpoint import Session, explore
from tests.unit.session.explore import strategies
from tests.unit.session.explore.strategies import Spender
from tests.unit.session.places import files_of

distributed = pytest.importorskip("distributed", reason="dask is not made for this Python")

pytestmark = [
    pytest.mark.slow,
    # Of libraries that it stands on, not of ours.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A scheduler and two workers, each in a directory and a home of its own."""
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "one secret for the whole cluster, as it must be")
    address_file = tmp_path / "scheduler.json"
    root = Path(__file__).parents[4]
    processes = []

    def start(name, *arguments):
        home = tmp_path / name
        (home / "empty").mkdir(parents=True)
        environment = {
            **os.environ,
            "HOME": str(home),
            "AGENT_CHECKPOINT_HOME": str(home / "own"),
            "PYTHONPATH": str(root),
        }
        command = [sys.executable, "-W", "ignore", "-m", "distributed.cli.dask_" + arguments[0]]
        with open(tmp_path / f"{name}.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    [*command, *arguments[1:]],
                    cwd=home / "empty",
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )

    start(
        "scheduler", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--scheduler-file", str(address_file),
    )  # fmt: skip
    for number in range(2):
        start(
            f"worker{number}", "worker", "--scheduler-file", str(address_file), "--host",
            "127.0.0.1", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory",
            str(tmp_path / f"worker{number}" / "scratch"),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not address_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with distributed.Client(scheduler_file=str(address_file), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            yield client
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


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
