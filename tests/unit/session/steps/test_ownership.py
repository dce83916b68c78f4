"""Whose change it is, where several sessions work in one directory."""

import pytest

from agent_checkpoint import CheckpointManager, Session
from agent_checkpoint.session.steps.ownership import OtherCall, ambiguous, other_calls
from tests.cli.world import run
from tests.unit.trajectory.trajectories import Coding, write

FOREVER = 2**62


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    return place


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


def span(manager, before, after):
    entries = {item.id: item for item in manager.store.newest_first(before.rpartition("_")[0])}
    return entries[before].ts_ns, entries[after].ts_ns


def others_of(manager, place, key, before, after):
    since, until = span(manager, before, after)
    return other_calls(manager.store, str(place), key, since, until)


def test_calls_that_do_not_overlap_make_nothing_ambiguous(manager, place, tmp_path):
    one, two = (Coding(tmp_path / "store", place, name) for name in ("one", "two"))
    before = one.write("a", "1")
    after = one.write("a", "2")
    two.write("b", "3")
    assert others_of(manager, place, one.key, before, after) == []


def test_a_call_that_overlapped_makes_every_change_ambiguous(manager, place, tmp_path):
    one, two = (Coding(tmp_path / "store", place, name) for name in ("one", "two"))
    before = one.write("a", "1")
    two.write("b", "0")
    running = two.before("Bash", command="make")
    (place / "c").write_text("from make")
    after = one.write("a", "2")
    two.after(running)
    found = others_of(manager, place, one.key, before, after)
    reasons = ambiguous(["a", "c"], found)
    assert set(reasons) == {"a", "c"}
    assert reasons["c"].startswith("claude-code/two ran ")


def test_a_call_that_still_runs_counts(manager, place, tmp_path):
    one, two = (Coding(tmp_path / "store", place, name) for name in ("one", "two"))
    before = one.write("a", "1")
    (place / "seen").write_text("so that the checkpoint before the call is saved")
    two.before("Bash", command="sleep 100")
    after = one.write("a", "2")
    (found,) = others_of(manager, place, one.key, before, after)
    assert found.ended > FOREVER


def test_a_call_of_unknown_beginning_counts_for_the_paths_that_it_names():
    call = OtherCall("k", "Edit src/b.py", '{"file_path": "/w/src/b.py"}', 1, None, 5)
    assert set(ambiguous(["src/a.py", "src/b.py", "b.py"], [call])) == {"src/b.py", "b.py"}


@pytest.mark.parametrize("text", ["rm -rf src", "sed -i s/x/y/ src/b.py", "cat ./src/b.py|wc"])
def test_a_shell_command_names_its_paths(text):
    assert OtherCall("k", "Bash", text, 1, None, 5).names("src/b.py")
    assert not OtherCall("k", "Bash", text, 1, None, 5).names("lib/c.py")


def test_calls_of_sessions_have_exact_times(manager, place):
    with Session("one", workspace=place, store=manager) as one:
        write("a", "1")
        before = one.head
    with Session("two", workspace=place, store=manager):
        write("b", "1")
    with Session("one", workspace=place, store=manager) as one:
        write("a", "2")
        after = one.head
    (found,) = others_of(manager, place, "one", before, after)
    assert (found.key, found.began is not None) == ("two", True)
    assert set(ambiguous(["a", "b"], [found])) == {"a", "b"}


def test_sessions_of_other_directories_do_not_count(manager, place, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    one, two = Coding(tmp_path / "store", place, "one"), Coding(tmp_path / "store", other, "two")
    before = one.write("a", "1")
    two.write("a", "1")
    after = one.write("a", "2")
    assert others_of(manager, place, one.key, before, after) == []


def test_a_run_overlaps_from_its_beginning_to_its_end(manager, place, tmp_path):
    one = Coding(tmp_path / "store", place, "one")
    before = one.write("a", "1")
    run("--store", tmp_path / "store", "run", "--", "sh", "-c", "echo 1 > f", at=place)
    after = one.write("a", "2")
    (found,) = others_of(manager, place, one.key, before, after)
    assert found.words == "sh -c echo 1 > f"
    assert set(ambiguous(["a"], [found])) == {"a"}
