"""Whose change it is, where several sessions work in one directory."""

import pytest

from agent_checkpoint import Session
from agent_checkpoint.records import Draft
from agent_checkpoint.session.steps.line import line_of
from agent_checkpoint.session.steps.ownership import (
    CallSpan,
    OtherCall,
    call_span,
    other_calls,
    path_words,
    why_not_own,
)
from tests.cli.world import run
from tests.unit.trajectory.trajectories import Coding, write

FOREVER = 2**62


def span(manager, before, after):
    entries = {item.id: item for item in manager.store.newest_first(before.rpartition("_")[0])}
    return entries[before].ts_ns, entries[after].ts_ns


def others_of(manager, place, key, before, after):
    since, until = span(manager, before, after)
    return other_calls(manager.store, {str(place)}, [key], since, until)


def ambiguous(manager, before, after, paths, others):
    call = CallSpan(*span(manager, before, after))
    return {path: why for path in paths if (why := why_not_own(path, call, others))}


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
    reasons = ambiguous(manager, before, after, ["a", "c"], found)
    assert set(reasons) == {"a", "c"}
    assert reasons["c"].startswith("claude-code/two ran at the same time: ")


def test_a_call_that_still_runs_counts(manager, place, tmp_path):
    one, two = (Coding(tmp_path / "store", place, name) for name in ("one", "two"))
    before = one.write("a", "1")
    (place / "seen").write_text("so that the checkpoint before the call is saved")
    two.before("Bash", command="sleep 100")
    after = one.write("a", "2")
    (found,) = others_of(manager, place, one.key, before, after)
    assert found.ended > FOREVER


def test_a_call_that_the_agent_dropped_ended_with_its_turn(manager, place, tmp_path):
    one, two = (Coding(tmp_path / "store", place, name) for name in ("one", "two"))
    (place / "seen").write_text("so that the checkpoint before the call is saved")
    two.before("Bash", command="sleep 100")
    two.prompt("never mind")
    before = one.write("a", "1")
    after = one.write("a", "2")
    assert others_of(manager, place, one.key, before, after) == []


def test_a_call_of_unknown_beginning_may_have_begun_at_the_checkpoint_before_it(
    manager, place, tmp_path
):
    one, two = (Coding(tmp_path / "store", place, name) for name in ("one", "two"))
    two.write("b", "0")
    before = one.write("a", "1")
    after = one.write("a", "2")
    call = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "toolu_lost"}
    two.after(call)  # its beginning was not reported
    found = others_of(manager, place, one.key, before, after)
    assert set(ambiguous(manager, before, after, ["a", "b"], found)) == {"a", "b"}


def test_a_call_at_another_time_counts_for_the_paths_that_it_names():
    words = path_words("Edit src/b.py", '{"file_path": "/w/src/b.py"}')
    others = [OtherCall("k", "Edit src/b.py", words, 1, 5)]
    paths = ["src/a.py", "src/b.py", "b.py"]
    assert [path for path in paths if why_not_own(path, CallSpan(6, 7), others)] == paths[1:]


@pytest.mark.parametrize("text", ["rm -rf src", "sed -i s/x/y/ src/b.py", "cat ./src/b.py|wc"])
def test_a_shell_command_names_its_paths(text):
    assert OtherCall("k", "Bash", path_words(text), 1, 5).names("src/b.py")
    assert not OtherCall("k", "Bash", path_words(text), 1, 5).names("lib/c.py")


def test_a_tool_for_files_changes_no_others_than_it_names(manager, place, tmp_path):
    one = Coding(tmp_path / "store", place, "one")
    one.write("a", "1")
    call = one.before("Write", file_path=str(place / "below/mine"), content="2")
    (place / "below").mkdir()
    (place / "below/mine").write_text("2")
    (place / "by-hand").write_text("human")
    one.after(call)
    first, before, after = line_of(manager.store, manager.store.head(one.key))[-3:]
    found = call_span(manager.store, before, after)
    assert first.ts_ns < found.since < found.until == after.ts_ns
    paths = ["below", "below/mine", "below/m", "by-hand"]
    assert [path for path in paths if why_not_own(path, found, [])] == ["below/m", "by-hand"]


@pytest.mark.parametrize("calls", [7, [1], [[]], {"a": 1}, [["Bash"]]])
def test_forged_metadata_of_another_key_raises_nothing(calls, manager, place, tmp_path):
    one = Coding(tmp_path / "store", place, "one")
    before = one.write("a", "1")
    for name in ("PreToolUse", "PostToolUse"):
        note = {"agent": "claude-code", "root": str(place), "calls": calls, "named": 3}
        draft = Draft("claude-code/forged", {"hook": note}, tags=(f"event:{name}",))
        manager.store.write(draft)
    after = one.write("a", "2")
    assert others_of(manager, place, one.key, before, after) == []


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
    since, until = span(manager, before, after)
    assert (found.key, since < found.since < found.ended < until) == ("two", True)
    assert set(ambiguous(manager, before, after, ["a", "b"], [found])) == {"a", "b"}


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
    assert set(ambiguous(manager, before, after, ["a"], [found])) == {"a"}
