"""The command `bisect`."""

import subprocess
import sys

import pytest

from agent_checkpoint import CheckpointManager, Session
from tests.cli.world import run
from tests.unit.trajectory.trajectories import write
from tests.unit.workspace.fork.test_namespace_view import is_running, wait_until


@pytest.fixture
def place(tmp_path, monkeypatch):
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "store"))
    (place / "app").write_text("fine\n")
    with (
        CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager,
        Session("s", workspace=place, store=manager) as session,
    ):
        session.messages.append({"role": "user", "content": "Make it so."})
        write("x", "1")
        write("app", "bug password = hunter2hunter2\n")
        write("x", "2")
    return place


TEST = ["--", "sh", "-c", "! grep -q bug app"]


def test_it_shows_each_test_and_the_step(place):
    done = run("bisect", *TEST, at=place)
    assert done.status == 0
    assert "Only files are isolated" in done.out
    assert "@4  bad" in done.out
    assert "@1  good" in done.out
    assert "First bad step: @3 of s" in done.out
    assert "write(name=" in done.out
    assert "prompt: Make it so." in done.out
    assert "-fine" in done.out
    assert "The test failed there and passed one step before" in done.out


def test_secrets_are_masked(place):
    assert "hunter2" not in run("bisect", *TEST, at=place).out
    assert "hunter2" not in run("bisect", "--json", *TEST, at=place).out
    assert "hunter2" in run("bisect", "--no-mask", *TEST, at=place).out


def test_as_json(place):
    data = run("bisect", "s", "--good", "@2", "--json", *TEST, at=place).data
    assert data["first_bad"].endswith("-3")
    assert data["step"]["at"] == "@3"
    assert data["certain"] is True
    assert [probe["verdict"] for probe in data["tested"]] == ["bad", "good", "bad"]


def test_several_at_once_and_repeated(place):
    done = run("bisect", "--jobs", "2", "--repeat", "2", *TEST, at=place)
    assert "First bad step: @3" in done.out
    assert "2 runs each" in done.out


def test_options_of_the_test_belong_to_the_test(place):
    done = run("bisect", "s", "--", "grep", "-q", "--", "fine", "app", at=place)
    assert "First bad step: @3" in done.out


@pytest.mark.parametrize(
    ("typed", "status", "message"),
    [
        (["bisect"], 2, "No test given"),
        (["bisect", "--"], 2, "No test given"),
        (["bisect", "--jobs", "0", *TEST], 2, "--jobs must be at least 1"),
        (["bisect", "nokey", *TEST], 3, "nokey"),
        (["bisect", "--good", "@99", *TEST], 3, "@99"),
        (["bisect", "--", "true"], 2, "passes at the bad end"),
        (["bisect", "--timeout", "0.1", "--", "sleep", "100"], 2, "did not end within"),
    ],
)
def test_what_cannot_be_searched_is_told(place, typed, status, message):
    done = run(*typed, at=place)
    assert (done.status, message in done.err) == (status, True)


def test_a_good_end_after_the_bad_one_is_told(place):
    done = run("bisect", "--good", "@4", "--bad", "@3", *TEST, at=place)
    assert done.status == 2
    assert "comes after the bad end" in done.err


def test_a_killed_search_leaves_no_test_running(place, tmp_path):
    """Also what the test has started, in the background and in another process group."""
    pids = tmp_path / "pids"
    script = f"setsid sh -c 'sleep 60 & echo $! >> {pids}; sleep 60' & echo $! >> {pids}; wait"
    search = subprocess.Popen(
        [sys.executable, "-m", "agent_checkpoint", "bisect", "--", "sh", "-c", script],
        cwd=place,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        search.kill()
        search.wait()
        wait_until(lambda: not any(map(is_running, map(int, pids.read_text().split()))))
    finally:
        search.kill()
        search.communicate()
