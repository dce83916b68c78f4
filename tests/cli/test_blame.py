"""The command `blame`."""

import pytest

from agent_checkpoint import CheckpointManager, Session
from tests.cli.world import run
from tests.unit.trajectory.trajectories import write

pytestmark = pytest.mark.usefixtures("no_session_is_left")


@pytest.fixture
def place(tmp_path, monkeypatch):
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "store"))
    with (
        CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager,
        Session("s", workspace=place, store=manager) as session,
    ):
        session.messages.append({"role": "user", "content": "Make it so."})
        write("src/app.py", "a = 1\nb = 2\n")
        write("src/app.py", "a = 1\npassword = 'hunter2hunter2'\n")
    return place


def test_it_shows_the_step_of_each_line(place):
    (place / "src/app.py").write_text("a = 1\npassword = 'hunter2hunter2'\nnew\n")
    done = run("blame", "app.py", at=place / "src")
    assert (done.status, done.err) == (0, "")
    first, second, third = done.out.splitlines()
    assert first.startswith("s@2 ")
    assert first.endswith("1 a = 1")
    assert second.startswith("s@3 ")
    assert "hunter2" not in done.out
    assert third.startswith("not saved yet")
    assert "hunter2" in run("blame", "src/app.py", "--no-mask", at=place).out


def test_some_lines_as_json_and_with_prompts(place):
    (line,) = run("blame", "src/app.py", "-L", "2", "--json", at=place).data
    assert (line["number"], line["step"]["at"]) == (2, "@3")
    assert line["step"]["prompt"] == "Make it so."
    assert "prompt: Make it so." in run("blame", "src/app.py", "--prompts", at=place).out


def test_at_a_checkpoint_and_of_a_key(place):
    shown = run("blame", "src/app.py", "--at", "@2", at=place).out
    assert [line.split()[0] for line in shown.splitlines()] == ["s@2", "2"]
    assert "s@3" in run("blame", "src/app.py", "--key", "s", at=place).out


@pytest.mark.parametrize(
    ("typed", "status"),
    [(["nofile"], 3), (["src/app.py", "-L", "x"], 2), (["src/app.py", "--at", "@99"], 3), ([], 2)],
)
def test_what_cannot_be_shown_is_told(place, typed, status):
    done = run("blame", *typed, at=place)
    assert (done.status, bool(done.err)) == (status, True)
