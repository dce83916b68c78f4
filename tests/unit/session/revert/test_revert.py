"""`session.revert`: one step is taken out, later work stays."""

import os

import pytest

from agent_checkpoint import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RevertConflictError,
    Session,
    Workspace,
)
from agent_checkpoint.agents.directory_revert import preview_revert
from agent_checkpoint.errors import StorageError
from agent_checkpoint.session.revert.revert import own_pairs, step_pairs
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.workspace.restore.apply import PlanExecutor
from tests.unit.trajectory.trajectories import Coding, delete, mail, rename, shell, write

LINES = "1\n2\n3\n4\n5\n"


@pytest.fixture
def session(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        write("f", LINES)
        yield session


def files(place):
    return {
        str(path.relative_to(place)): path.read_text()
        for path in place.rglob("*")
        if path.is_file()
    }


def test_a_hunk_is_taken_out_and_later_work_stays(session, place):
    write("f", LINES.replace("2", "two"))
    step = session.head
    write("f", LINES.replace("2", "two").replace("4", "four"))
    write("g", "new")
    report = session.revert(step)
    assert files(place) == {"f": LINES.replace("4", "four"), "g": "new"}
    assert report.id == session.head
    assert report.files.write == ["f"]
    assert (report.conflicts, report.ambiguous) == ([], {})
    assert [step.at for step in report.steps] == ["@3"]


def test_it_is_a_checkpoint_of_its_own_and_can_be_undone(session, place, manager):
    write("f", "changed\n")
    write("g", "later")
    session.messages.append({"role": "user", "content": "kept"})
    session.revert("@3")
    head = manager.store.head("s")
    assert (head.kind, head.label) == ("restore", 'reverted @3: write(name="f", text="changed\\n")')
    assert list(session.messages) == [{"role": "user", "content": "kept"}]
    assert session.notices == [
        'The file changes of @3: write(name="f", text="changed\\n") were taken out.'
    ]
    session.undo()
    assert session.notices == []
    assert files(place) == {"f": "changed\n", "g": "later"}
    assert list(session.messages) == [{"role": "user", "content": "kept"}]


def test_the_notice_stays_until_the_session_works_again(manager, place):
    with Session("s", workspace=place, store=manager):
        write("f", LINES)
        write("f", "changed\n")
    with Session("s", store=manager, every="manual") as session:
        session.revert("@3")
    for works in (False, True):
        with Session("s", store=manager) as session:
            (notice,) = session.notices
            assert notice.startswith("The file changes of @3: write(")
            if works:
                write("g", "x")
    with Session("s", store=manager) as session:
        assert session.notices == []


def test_a_dry_run_changes_nothing(session, place, manager):
    write("f", "changed\n")
    before = session.head
    report = session.revert("@3", dry_run=True)
    assert (report.id, report.files.write, report.files.unseen) == (None, ["f"], [])
    assert session.head == before == manager.store.head("s").id
    assert files(place) == {"f": "changed\n"}


def test_only_what_was_previewed(session, place):
    write("f", LINES.replace("2", "two"))
    report = session.revert("@3", dry_run=True)
    (place / "f").write_text(LINES.replace("2", "two") + "by a person\n")
    with pytest.raises(ConflictError, match="changed since the preview"):
        session.revert("@3", only_if=report)
    assert "two" in files(place)["f"]
    session.revert("@3", only_if=session.revert("@3", dry_run=True))
    assert files(place) == {"f": LINES + "by a person\n"}


def test_unsaved_work_stays(session, place):
    write("f", LINES.replace("2", "two"))
    (place / "f").write_text(LINES.replace("2", "two").replace("5", "five"))
    (place / "unsaved").write_text("x")
    session.revert("@3")
    assert files(place) == {"f": LINES.replace("5", "five"), "unsaved": "x"}


def test_files_of_a_person_between_two_calls_are_not_the_steps(session, place):
    (place / "by-a-person").write_text("x\n")
    (place / "f").write_text(LINES.replace("5", "five"))
    write("g", "mine")
    session.revert(session.head)
    assert files(place) == {"f": LINES.replace("5", "five"), "by-a-person": "x\n"}


def test_a_whole_session_without_what_a_person_changed_between(manager, place):
    with Session("s", workspace=place, store=manager):
        write("a", "1")
        (place / "by-a-person").write_text("x\n")
        write("b", "2")
    with Workspace(place, store=manager) as workspace:
        report = preview_revert(workspace, own_pairs(manager.store, "s"), "refuse")
    assert sorted(report.files.delete) == ["a", "b"]


def test_overlapping_work_is_a_conflict_and_nothing_is_applied(session, place):
    write("f", LINES.replace("2", "two"))
    write("g", "a file of the same step is not touched either")
    write("f", LINES.replace("2", "zwei"))
    head, before = session.head, files(place)
    with pytest.raises(RevertConflictError, match="later work overlaps @3 in 1 path") as caught:
        session.revert("@3")
    (conflict,) = caught.value.report.conflicts
    assert conflict.hunks == ((2, [b"zwei\n"], [b"two\n"], [b"2\n"]),)
    assert "the step wrote" in str(conflict)
    assert (session.head, files(place)) == (head, before)


def test_markers_when_asked_for(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "zwei"))
    report = session.revert("@3", conflicts="markers")
    assert len(report.conflicts) == 1
    assert files(place)["f"] == (
        "1\n<<<<<<< now\nzwei\n||||||| after @3\ntwo\n=======\n2\n>>>>>>> before @3\n3\n4\n5\n"
    )
    session.undo()
    assert files(place)["f"] == LINES.replace("2", "zwei")


def test_a_change_that_was_overlapped_for_a_while_conflicts(session):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "zwei"))
    write("f", LINES.replace("2", "two").replace("5", "five"))
    with pytest.raises(RevertConflictError):
        session.revert("@3")


def test_a_file_that_the_step_created_is_removed(session, place):
    write("d/new", "x")
    write("f", "later\n")
    session.revert("@3")
    assert files(place) == {"f": "later\n"}
    assert not (place / "d").exists()


def test_a_directory_with_later_work_stays(session, place):
    write("d/new", "x")
    write("d/other", "y")
    session.revert("@3")
    assert files(place) == {"f": LINES, "d/other": "y"}


def test_a_file_that_the_step_removed_comes_back(session, place):
    write("d/e/g", "deep")
    shell("rm -r d")
    write("f", "later\n")
    session.revert("@4")
    assert files(place) == {"f": "later\n", "d/e/g": "deep"}


@pytest.mark.parametrize(
    "later",
    [
        lambda: write("n", "changed since"),
        lambda: shell("rm n; mkdir n"),
        lambda: shell("ln -sf f n"),
    ],
)
def test_a_created_file_with_later_work_conflicts(session, later):
    write("n", "x")
    later()
    with pytest.raises(RevertConflictError, match="'n'"):
        session.revert("@3")


def test_a_changed_file_that_was_removed_conflicts(session):
    write("f", "changed\n")
    delete("f")
    with pytest.raises(RevertConflictError, match="'f'"):
        session.revert("@3")


def test_a_file_deleted_and_made_again_conflicts(session):
    delete("f")
    write("f", "another one\n")
    with pytest.raises(RevertConflictError):
        session.revert("@3")


def test_a_file_deleted_and_made_again_as_it_was_needs_nothing(session, place):
    delete("f")
    write("f", LINES)
    assert not session.revert("@3").files
    assert files(place) == {"f": LINES}


def test_what_is_gone_already_needs_nothing(session, place):
    write("n", "x")
    delete("n")
    assert not session.revert("@3").files


def test_a_file_in_a_directory_that_is_gone_conflicts(session):
    write("d/a", "1")
    write("d/b", "2")
    delete("d/a")
    shell("rm -r d")
    with pytest.raises(RevertConflictError, match="'d/a'"):
        session.revert("@5")


def test_a_rename_is_taken_back_with_later_edits(session, place):
    rename("f", "g")
    write("g", LINES + "6\n")
    session.revert("@3")
    assert files(place) == {"f": LINES + "6\n"}


def test_a_rename_whose_old_name_is_in_use_conflicts(session):
    rename("f", "g")
    write("f", "another")
    with pytest.raises(RevertConflictError, match="'g'"):
        session.revert("@3")


def test_an_edit_is_taken_out_of_a_file_that_was_renamed(session, place):
    write("f", LINES.replace("2", "two"))
    rename("f", "g")
    write("g", LINES.replace("2", "two") + "6\n")
    rename("g", "h")
    report = session.revert("@3")
    assert files(place) == {"h": LINES + "6\n"}
    assert report.renamed == {"f": "h"}


def test_another_file_with_the_old_name_of_a_renamed_one_conflicts(session, place):
    write("f", LINES.replace("2", "two"))
    rename("f", "g")
    write("f", "other\ntwo\n3\n")
    with pytest.raises(RevertConflictError):
        session.revert("@3")
    assert files(place)["f"] == "other\ntwo\n3\n"


def test_a_later_decision_conflicts_beside_a_step_of_another_file(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "second"))
    write("f", LINES.replace("2", "two").replace("5", "five"))
    write("g", "new")
    with pytest.raises(RevertConflictError):
        session.revert(["@3", "@6"])
    assert files(place) == {"f": LINES.replace("2", "two").replace("5", "five"), "g": "new"}


def test_a_later_decision_conflicts_beside_another_step_of_the_file(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "second"))
    write("f", LINES.replace("2", "two").replace("5", "five"))
    write("f", LINES.replace("2", "two").replace("5", "five").replace("4", "four"))
    before = files(place)
    with pytest.raises(RevertConflictError) as caught:
        session.revert(["@3", "@6"])
    (conflict,) = caught.value.report.conflicts
    assert [hunk.texts for hunk in conflict.hunks] == [(["two"], ["two"], ["2"])]
    assert files(place) == before
    session.revert(["@3", "@6"], conflicts="markers")
    assert "<<<<<<< now\ntwo\n" in files(place)["f"]


def test_a_later_decision_conflicts_if_the_other_steps_leave_what_the_step_wrote(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "second"))
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "two").replace("4", "four"))
    with pytest.raises(RevertConflictError):
        session.revert(["@3", "@6"])


def test_steps_of_one_file_that_overlap_each_other(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "two").replace("5", "five"))
    write("f", LINES.replace("2", "zwei").replace("5", "five"))
    session.revert(["@3", "@5"])
    assert files(place) == {"f": LINES.replace("5", "five")}


def test_binary_versions_of_several_steps(session, place):
    for number in "1234":
        shell(f"printf '\\000{number}' > b")
        write("g", number)
    with pytest.raises(RevertConflictError, match="'b'"):
        session.revert(["@5", "@9"])
    session.revert(["@7", "@9"])
    assert (place / "b").read_bytes() == b"\0002"


@pytest.mark.parametrize(
    ("before", "step", "later"),
    [
        ("a\nb\n", "a\nb\nc", "a\nb\nc\nd\n"),
        ("a\nb", "a\nb\n", "a\nb\nc\n"),
        ("a\nb\n", "a\nb", "a\nb\nc"),
        ("a", "a\nb\n", "a\nb\nc\n"),
    ],
)
def test_a_final_newline_is_not_a_line(session, place, before, step, later):
    for text in (before, step, later):
        write("n", text)
    with pytest.raises(RevertConflictError, match="'n'"):
        session.revert("@4")
    assert files(place)["n"] == later


def test_a_final_newline_that_only_the_step_changed(session, place):
    write("n", "a\nb")
    write("n", "a\nb\n")
    write("n", "A\nb\n")
    session.revert("@4")
    assert files(place)["n"] == "A\nb"


def test_markers_cannot_show_a_file_that_conflicts_as_a_whole(session, place):
    write("n", "x")
    write("n", "changed since")
    head = session.head
    with pytest.raises(RevertConflictError, match="Conflict markers cannot show"):
        session.revert("@3", conflicts="markers")
    assert session.head == head


def test_a_created_file_that_was_renamed_is_removed(session, place):
    write("n", "text\n")
    rename("n", "m")
    session.revert("@3")
    assert files(place) == {"f": LINES}


def test_modes_are_taken_back(session, place):
    shell("chmod 755 f")
    write("f", LINES + "6\n")
    session.revert("@3")
    assert (place / "f").stat().st_mode & 0o777 == 0o644
    assert files(place) == {"f": LINES + "6\n"}


def test_a_mode_that_was_changed_twice_conflicts(session):
    shell("chmod 755 f")
    shell("chmod 700 f")
    with pytest.raises(RevertConflictError):
        session.revert("@3")


def test_links_and_binary_files(session, place):
    (place / "b").write_bytes(b"\0\1")
    session.save()
    shell("printf '\\0\\2' > b; ln -s f link")
    write("f", "later\n")
    session.revert("@4")
    assert (place / "b").read_bytes() == b"\0\1"
    assert not os.path.lexists(place / "link")


def test_a_binary_file_with_later_work_conflicts(session, place):
    shell("printf '\\0\\1' > b")
    shell("printf '\\0\\2' > b")
    shell("printf '\\0\\3' > b")
    with pytest.raises(RevertConflictError, match="'b'") as caught:
        session.revert("@4")
    assert "binary or large" in caught.value.report.conflicts[0].why


def test_a_range_of_steps_that_overlap_each_other(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "zwei"))
    write("g", "x")
    write("f", LINES.replace("2", "zwei").replace("5", "five"))
    report = session.revert("@3..@5")
    assert files(place) == {"f": LINES.replace("5", "five")}
    assert report.words == "@3..@5"


def test_several_steps_that_do_not_follow_each_other(session, place):
    write("f", LINES.replace("2", "two"))
    write("g", "x")
    write("f", LINES.replace("2", "two").replace("5", "five"))
    session.revert(["@3", "@5"])
    assert files(place) == {"f": LINES, "g": "x"}


def test_a_step_is_reverted_once(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "two").replace("4", "four"))
    session.revert("@3")
    with pytest.raises(InvalidInputError, match=r"@3 was already reverted by @\d+"):
        session.revert("@3", conflicts="markers")
    session.undo()
    reverted = session.revert("@3").id
    assert files(place) == {"f": LINES.replace("4", "four")}
    session.revert(reverted)
    assert files(place) == {"f": LINES.replace("2", "two").replace("4", "four")}
    with pytest.raises(RevertConflictError):  # later work, the two reverts, overlaps it
        session.revert("@3")


def test_each_step_of_a_range_is_reverted_once(session, place):
    write("f", LINES.replace("2", "two"))
    write("f", LINES.replace("2", "two").replace("4", "four"))
    write("g", "x")
    session.revert("@3..@4")
    for step in ("@3", "@4", "@3..@5"):
        with pytest.raises(InvalidInputError, match="was already reverted by"):
            session.revert(step)
    session.revert("@5")
    assert files(place) == {"f": LINES}


def test_a_revert_can_be_reverted(session, place):
    write("f", LINES.replace("2", "two"))
    report = session.revert("@3")
    session.revert(report.id)
    assert files(place) == {"f": LINES.replace("2", "two")}


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("@99", NotFoundError),
        ("@1", InvalidInputError),
        ("@3..@2", InvalidInputError),
        ("", InvalidInputError),
        ([], InvalidInputError),
        (3, InvalidInputError),
    ],
)
def test_what_is_not_a_step_is_refused(session, step, error):
    write("f", "x")
    with pytest.raises(error):
        session.revert(step)


def test_a_step_that_a_rollback_passed_over_is_refused(session):
    write("f", "x")
    over = session.head
    session.rollback(steps=1)
    with pytest.raises(InvalidInputError, match="a rollback passed over it"):
        session.revert(over)


def test_a_step_before_a_fork_can_be_reverted_in_the_fork(session, place):
    write("f", LINES.replace("2", "two"))
    step = session.head
    with session.fork("branch") as branch:
        write("g", "x")
        branch.revert(step)
        assert (branch.workspace.path / "f").read_text() == LINES
    assert files(place) == {"f": LINES.replace("2", "two")}


def test_a_session_without_files_has_nothing_to_revert(manager):
    with (
        Session("bare", store=manager) as session,
        pytest.raises(InvalidInputError, match="no files"),
    ):
        session.revert("@1")


def test_the_option_is_checked(session):
    with pytest.raises(InvalidInputError, match="conflicts must be 'refuse' or 'markers'"):
        session.revert("@2", conflicts="merge")


def test_external_side_effects_of_the_step_are_reported(session):
    mail("ann")
    report = session.revert("@3")
    assert [effect.tool for effect in report.effects.irreversible] == ["mail"]
    assert "External side effects of the steps, which stay:" in str(report)
    write("f", "x")
    assert not session.revert(session.head).effects.effects


def test_changes_of_another_session_at_the_same_time_are_kept(manager, place, tmp_path):
    other = Coding(tmp_path / "store", place, "other")
    with Session("s", workspace=place, store=manager) as session:
        write("f", LINES)
        (place / "seen").write_text("")
        running = other.before("Bash", command="make g")
        (place / "g").write_text("by the other one\n")
        write("f", "mine\n")
        step = session.head
        other.after(running)
        report = session.revert(step)
    assert set(report.ambiguous) == {"f"}
    assert files(place)["g"] == "by the other one\n"
    assert files(place)["f"] == "mine\n"


@pytest.mark.parametrize("where", ["sub", ".."])
def test_changes_of_a_session_in_a_directory_below_or_above_are_kept(
    manager, place, tmp_path, where
):
    own, others = (place, place / "sub") if where == "sub" else (place / "sub", place)
    (place / "sub").mkdir()
    other = Coding(tmp_path / "store", others, "other")
    with Session("s", workspace=own, store=manager) as session:
        write("f", LINES)
        running = other.before("Bash", command="make g")
        (place / "sub/g").write_text("by the other one\n")
        write("f", "mine\n")
        other.after(running)
        session.revert("@3")
    assert (place / "sub/g").read_text() == "by the other one\n"


@pytest.mark.parametrize("ts", [1e300, float("nan"), -1.0])
def test_a_time_that_is_none_refuses_nothing(manager, place, ts):
    with Session("other", workspace=place, store=manager) as session:
        session.calls.append({"tool": "t", "arguments": {}, "ts": ts, "seconds": ts})
        session.save()
    with Session("s", workspace=place, store=manager) as session:
        write("f", LINES)
        write("f", "mine\n")
        session.save()
    with Session("other", workspace=place, store=manager) as session:
        session.save()
    with Session("s", workspace=place, store=manager) as session:
        session.revert("@3", dry_run=True)


def test_what_a_person_changed_during_a_call_that_writes_another_file_is_kept(
    manager, place, tmp_path
):
    agent = Coding(tmp_path / "store", place)
    agent.write("f", LINES)
    call = agent.before("Write", file_path=str(place / "f"), content="mine")
    (place / "f").write_text("mine")
    (place / "by-hand").write_text("human")
    step = agent.after(call)
    with Workspace(place, store=manager.store, watch=False) as workspace:
        pairs = step_pairs(manager.store, agent.key, step)
        report = preview_revert(workspace, pairs, "refuse")
    assert report.ambiguous == {"by-hand": "the call that ran then names other files"}
    assert (report.files.write, report.files.delete) == (["f"], [])


def test_a_crash_before_the_commit_changes_nothing(session, place, manager, monkeypatch):
    write("f", "changed\n")

    def fail(*args, **options):
        raise StorageError("full")

    with monkeypatch.context() as patch:
        patch.setattr(type(session._state.writer), "write", fail)
        with pytest.raises(StorageError):
            session.revert("@3")
    assert files(place) == {"f": "changed\n"}
    assert sorted(os.listdir(place)) == ["f"]


def test_a_crash_after_the_commit_is_completed_at_the_next_open(manager, place, monkeypatch):
    session = Session("s", workspace=place, store=manager)
    with session:
        write("f", LINES)
        write("f", LINES.replace("2", "two"))
        write("g", "x")

    class Killed(BaseException):
        pass

    def killed(*args):
        raise Killed

    session = Session("s", workspace=place, store=manager, every="manual")
    with monkeypatch.context() as patch:
        patch.setattr(PlanExecutor, "_do", killed)
        patch.setattr(Rollback, "_abort", killed)
        with pytest.raises(Killed):
            session.revert("@3")
    assert "two" in files(place)["f"]
    session.close()
    with Session("s", workspace=place, store=manager):
        assert (place / "f").read_text() == LINES
        assert (place / "g").read_text() == "x"
