"""The command `revert`."""

import pytest

from agent_checkpoint import CheckpointManager, Session
from tests.cli.world import run
from tests.unit.trajectory.trajectories import Coding, write

pytestmark = pytest.mark.usefixtures("no_session_is_left")

LINES = "1\n2\n3\n4\n5\n"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    return place


@pytest.fixture
def worked(store, place):
    """A session: @3 changes line 2, @4 changes line 4, @5 changes line 4 again."""
    with (
        CheckpointManager(backend="sqlite", path=store) as manager,
        Session("s", workspace=place, store=manager),
    ):
        write("f", LINES)
        write("f", LINES.replace("2", "two"))
        write("f", LINES.replace("2", "two").replace("4", "four"))
        write("f", LINES.replace("2", "two").replace("4", "vier"))
    return place


def test_it_is_previewed_and_undone(worked):
    shown = run("revert", "@3", "--dry-run", at=worked)
    assert (shown.status, "Would revert @3: write(" in shown.out) == (0, True)
    assert "write f" in shown.out
    assert "two" in (worked / "f").read_text()
    refused = run("revert", "@3", at=worked)
    assert (refused.status, "Pass --yes" in refused.out) == (4, True)
    done = run("revert", "@3", "--yes", at=worked)
    assert (done.status, "Reverted @3 of s." in done.out) == (0, True)
    assert (worked / "f").read_text() == LINES.replace("4", "vier")
    undone = run("undo", "--yes", at=worked)
    assert "reverted @3" in undone.out
    assert "two" in (worked / "f").read_text()


def test_the_log_names_the_revert(worked):
    run("revert", "@3", "--yes", at=worked)
    shown = run("log", at=worked).out
    assert "reverted @3: write(" in shown
    assert "restore to" not in shown


def test_a_conflict_is_shown_hunk_by_hunk(worked):
    before = (worked / "f").read_text()
    done = run("revert", "@4", "--yes", at=worked)
    assert done.status == 4
    for words in ("conflict in f", "line 4", "now  | vier", "step | four", "was  | 4"):
        assert words in done.out
    assert "Nothing was changed: 1 conflict" in done.out
    assert (worked / "f").read_text() == before
    run("revert", "@4", "--yes", "--conflicts", "markers", at=worked)
    assert "<<<<<<< now\nvier\n" in (worked / "f").read_text()


def test_markers_for_a_file_that_conflicts_as_a_whole_change_nothing_and_fail(worked):
    done = run("revert", "@2", "--yes", "--conflicts", "markers", at=worked)
    assert done.status == 4
    assert "Nothing was changed: 1 conflict. Conflict markers cannot show" in done.out


def test_a_preview_with_markers_shows_the_plan(worked):
    done = run("revert", "@4", "--dry-run", "--conflicts", "markers", at=worked)
    assert done.status == 0
    assert "Nothing was changed" not in done.out
    assert "write f" in done.out


def test_a_range_and_json(worked):
    data = run("revert", "@4..@5", "--json", "--yes", at=worked).data
    assert data["done"] is True
    assert [step["at"] for step in data["steps"]] == ["@4", "@5"]
    assert data["files"]["write"] == ["f"]
    assert (worked / "f").read_text() == LINES.replace("2", "two")


def test_a_coding_agent_in_a_directory(store, place):
    agent = Coding(store, place)
    agent.write("f", LINES)
    step = agent.write("f", LINES.replace("2", "two"))
    agent.write("f", LINES.replace("2", "two").replace("5", "five"))
    number = step.rpartition("-")[2]
    done = run("revert", f"@{number}", "--yes", at=place)
    assert (done.status, done.err) == (0, "")
    assert (place / "f").read_text() == LINES.replace("5", "five")
    assert run("undo", "--yes", at=place).status == 0
    assert "two" in (place / "f").read_text()


def test_everything_of_one_session_and_nothing_of_another(store, place):
    one, two = Coding(store, place, "one"), Coding(store, place, "two")
    (place / "mine").write_text("by a person\n")
    one.write("a", "1\n")
    two.write("b", "1\n")
    one.write("a", "2\n")
    (place / "mine").write_text("changed by a person\n")
    one.write("c", "3\n")
    two.write("b", "2\n")
    done = run("revert", "--session", one.key, "--yes", at=place)
    assert (done.status, done.err) == (0, "")
    files = {path.name: path.read_text() for path in place.iterdir()}
    assert files == {"b": "2\n", "mine": "changed by a person\n"}


def test_everything_of_a_session_of_ours(worked):
    (worked / "by hand").write_text("x")
    done = run("revert", "--session", "s", "--yes", at=worked)
    assert (done.status, done.err) == (0, "")
    assert [path.name for path in worked.iterdir()] == ["by hand"]


def test_a_directory_that_was_saved(store, place):
    for number in (2, 3):
        (place / "f").write_text(LINES if number == 2 else LINES.replace("2", "two"))
        run("save", at=place)
    (place / "f").write_text(LINES.replace("2", "two") + "6\n")
    assert run("revert", "@2", "--yes", at=place).status == 0
    assert (place / "f").read_text() == LINES + "6\n"


@pytest.mark.parametrize(
    ("typed", "status"),
    [([], 2), (["@99"], 3), (["@1"], 2), (["--session", "nokey"], 3)],
)
def test_what_cannot_be_reverted_is_told(worked, typed, status):
    done = run("revert", *typed, "--yes", at=worked)
    assert (done.status, bool(done.err)) == (status, True)
