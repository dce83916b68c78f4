"""F14: a workspace whose restore was killed in the middle, and who opens it then.

The restore is rolled forward by the first who opens the workspace or uses it. What changed after
the kill is left alone: the safety checkpoint does not hold it.
"""

import json
import shutil

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.seal import seal_claim
from agent_checkpoint.workspace.restore import atomic_rename
from agent_checkpoint.workspace.workspace import Workspace
from tests.crash.fault_process import OPENS
from tests.crash.sweeping import Failures
from tests.crash.workspace_scenarios import (
    LEFT_OUT,
    PRESENT,
    TARGET,
    captured,
    check_same,
    file,
    folder,
    make_place,
    open_manager,
    open_workspace,
    seen,
    snapshots,
    stored,
)
from tests.crash.workspace_sweeping import CHANGES_OF_FILES

FEW = 3
JOURNAL = ".agent-checkpoint-restore/journal"
MIDDLE = 9
ALL = 16
"""So many renames a whole restore takes."""


# -- killed --------------------------------------------------------------------------------------


@pytest.fixture
def applying(broken_workspace):
    """The calls of a restore at which some files are the old ones and some the new."""
    calls = [call for call in broken_workspace.points("restore") if "/workspace" in str(call.paths)]
    renames = [place for place, call in enumerate(calls) if call.name == "renameat2"]
    return calls[renames[0] : renames[-1]]


def killed(workspace, point):
    inject = f"{point.name}:signal=KILL:when={point.when}"
    outcome = workspace.run("act", "restore", inject=inject)
    assert outcome.was_killed, outcome.errors
    assert (workspace.place / "workspace" / JOURNAL).exists()


def in_the_middle(applying):
    renames = [call for call in applying if call.name == "renameat2"]
    return renames[len(renames) // 2]


@pytest.mark.slow
def test_another_process_finishes_it(broken_workspace, applying):
    killed(broken_workspace, in_the_middle(applying))
    found = {path: what for path, what in broken_workspace.seen().items() if path in TARGET}
    assert found not in (PRESENT, TARGET)
    outcome = broken_workspace.run_next()
    assert outcome.status == 0, outcome.errors
    check_same(broken_workspace.seen(), TARGET)
    broken_workspace.check_recovered("restore", is_done=True)


@pytest.mark.slow
def test_killed_again_in_the_recovery(broken_workspace, applying, sample_calls, tried):
    """However often it is killed, the next one finishes it."""
    failures = Failures()
    for first in (applying[0], in_the_middle(applying), applying[-1]):
        killed(broken_workspace, first)
        broken_workspace.keep()
        for second in sample_calls(broken_workspace.points_of_recovery(), FEW):
            broken_workspace.set_back()
            inject = f"{second.name}:signal=KILL:when={second.when}"
            outcome = broken_workspace.run_next(inject=inject)
            with failures.at(f"{first}, then {second}"):
                assert outcome.was_killed, outcome.errors
                broken_workspace.check_recovered("restore", is_done=True)
    tried("F14 killed, and again in the recovery", failures.tried)
    failures.check()


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EMFILE"])
def test_the_disk_fails_in_the_recovery(broken_workspace, applying, error, sample_calls, tried):
    """A typed error, or the whole of it; and the next one finishes what could not be done."""
    failures = Failures()
    killed(broken_workspace, in_the_middle(applying))
    broken_workspace.keep()
    points = broken_workspace.points_of_recovery(OPENS if error == "EMFILE" else CHANGES_OF_FILES)
    for point in sample_calls(points, FEW):
        broken_workspace.set_back()
        inject = f"{point.name}:error={error}:when={point.when}"
        outcome = broken_workspace.run_next(inject=inject)
        with failures.at(f"{error} at {point}"):
            assert outcome.status == 0, (outcome.said, outcome.errors.splitlines()[-3:])
            if outcome.said[0].startswith("refused RestoreIncompleteError"):
                continue  # it has named what could not be done, and will not try again
            broken_workspace.check_recovered("restore", is_done=True)
    tried(f"F14 {error} in the recovery", failures.tried)
    failures.check()


# -- who opens it then ---------------------------------------------------------------------------


class Interrupted(BaseException):
    """Ends a restore as a kill does, but for the process."""


class Place:
    """A workspace that this process has begun to restore, and its store."""

    def __init__(self, path):
        self.path, self.files = path, path / "workspace"
        make_place(path)

    def interrupt(self, after=MIDDLE, target=None, **wish):
        """Begin to restore the earlier state or another one; stop after so many renames."""
        left = [after]
        rename = atomic_rename._rename

        def stop_here(source, target, flags):
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted
            rename(source, target, flags)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic_rename, "_rename", stop_here)
            with (
                open_manager(self.path) as manager,
                open_workspace(self.path, manager) as ws,
                pytest.raises(Interrupted),
            ):
                ws.restore(target or snapshots(ws)[0][1], **wish)
        assert (self.files / JOURNAL).exists()

    def recovered(self, **options):
        """Open the workspace and return what was done to finish the restore."""
        with (
            open_manager(self.path) as manager,
            Workspace(self.files, manager.store, **options) as ws,
        ):
            assert not (self.files / JOURNAL).parent.exists()
            return ws.recovered

    def seen(self):
        return seen(self.files)


@pytest.fixture
def place(scratch):
    return Place(scratch / "place")


@pytest.mark.parametrize("after", range(ALL))
def test_interrupted_between_any_two_files(place, after):
    place.interrupt(after)
    plan = place.recovered()
    assert plan.leave == {}
    check_same(place.seen(), TARGET)


def test_what_was_edited_since_is_left_alone_and_reported(place):
    place.interrupt()
    mine = {
        "changed": file("mine, in a file that was restored"),
        "mode": file("mine, in a file that was not", 0o755),
        "kept": file("the same in both", 0o640),
        "new": file("mine, in a file that is to go"),
        "gone": folder(),
        "mine": file("mine alone"),
        "my folder": folder(),
        "my folder/deep": folder(),
    }
    before = place.seen()
    for path, what in mine.items():
        where = place.files / path
        if what[0] == "dir":
            where.unlink(missing_ok=True)
            where.mkdir()
        else:
            where.write_bytes(what[2])
            where.chmod(what[1])
    (place.files / "gone" / "mine").write_bytes(b"mine, in the place of a file")
    inner = {"gone/mine": file("mine, in the place of a file")}
    plan = place.recovered()
    check_same(place.seen(), {**TARGET, **mine, **inner})
    assert plan.leave.keys() >= {"changed", "mode", "kept", "new", "mine", "my folder", "gone"}
    assert before != place.seen()


def test_what_was_removed_since_comes_back_as_it_was_to_be(place):
    place.interrupt()
    for path in ("changed", "mode", "kept"):
        (place.files / path).unlink()
    place.recovered()
    check_same(place.seen(), TARGET)


def test_only_the_chosen_paths_are_finished(place):
    paths = ["changed", "file or dir", "gone", "sub"]
    place.interrupt(after=1, paths=paths)
    place.recovered()
    chosen = {path: what for path, what in TARGET.items() if path.split("/")[0] in paths}
    rest = {path: what for path, what in PRESENT.items() if path.split("/")[0] not in paths}
    check_same(place.seen(), {**rest, **chosen})


def test_what_was_to_be_left_alone_is_left_alone(place):
    place.interrupt(after=6, exclude=["changed", "mode", "new*"])
    place.recovered()
    found = place.seen()
    for path in ("changed", "mode", "new", "new dir/below/file"):
        assert found[path] == PRESENT[path]
    assert found["gone"] == TARGET["gone"]


def test_what_no_checkpoint_had_seen_is_kept_if_that_was_asked_for(place):
    place.interrupt(after=1, keep_unseen=True)
    place.recovered()
    found = place.seen()
    for path in ("changed", "new", "new dir/below/file", "mode", "large"):
        assert found[path] == PRESENT[path], path
    assert found["gone"] == TARGET["gone"]


def test_without_a_checkpoint_what_changed_since_the_target_is_kept_if_asked_for(place):
    with open_manager(place.path) as manager, open_workspace(place.path, manager) as ws:
        target = ws.snapshot()
        manager.delete(ws.key)
    (place.files / "changed").write_bytes(b"in no checkpoint")
    for name in ("mode", "kept"):
        (place.files / name).unlink()
    place.interrupt(after=1, target=target, keep_unseen=True)
    place.recovered()
    assert (place.files / "changed").read_bytes() == b"in no checkpoint"
    assert (place.files / "mode").exists()
    assert (place.files / "kept").exists()


@pytest.mark.parametrize(
    "options", [{"ignore": ["new*", "gone", "large"]}, {"limit": 1000}, {"watch": False}]
)
def test_options_of_who_opens_it_do_not_matter(place, options):
    place.interrupt(after=2)
    place.recovered(**options)
    check_same(place.seen(), TARGET)


def test_a_workspace_that_was_open_all_the_time_sees_no_half_of_it(place):
    with open_manager(place.path) as manager, open_workspace(place.path, manager) as ws:
        check_same(stored(ws.snapshot()), captured(PRESENT))
        place.interrupt()
        check_same(stored(ws.snapshot()), captured(TARGET))
        (place.files / "changed").write_bytes(b"again")
        place.interrupt(after=0)
        assert not ws.diff(snapshots(ws)[0][1]).changed
        check_same(place.seen(), TARGET)


def test_the_interrupted_process_itself_goes_on(place):
    with open_manager(place.path) as manager, open_workspace(place.path, manager) as ws:
        earlier = snapshots(ws)[0][1]
        rename = atomic_rename._rename
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic_rename, "_rename", lambda *what: interrupted(rename, what))
            with pytest.raises(KeyboardInterrupt):
                ws.restore(earlier)
        assert (place.files / JOURNAL).exists()
        check_same(stored(ws.snapshot()), captured(TARGET))
        assert not (place.files / JOURNAL).exists()


def interrupted(rename, what):
    rename(*what)
    raise KeyboardInterrupt


# -- from which store ----------------------------------------------------------------------------


def test_the_journal_names_the_store(place):
    place.interrupt()
    with Workspace(place.files) as ws:
        check_same(place.seen(), TARGET)
        assert ws.recovered is not None


def test_the_store_of_the_journal_is_used_beside_another_one(place, scratch):
    place.interrupt()
    with (
        CheckpointManager(backend="sqlite", path=scratch / "other") as manager,
        Workspace(place.files, manager.store) as ws,
    ):
        check_same(place.seen(), TARGET)
        check_same(stored(ws.snapshot()), captured(TARGET))


def test_without_its_store_it_is_refused_and_nothing_is_touched(place, scratch):
    place.interrupt()
    (place.path / "store").rename(scratch / "moved")
    before = place.seen()
    with CheckpointManager(backend="sqlite", path=scratch / "other") as manager:
        for store in (None, manager.store):
            with pytest.raises(WorkspaceError, match="interrupted") as caught:
                Workspace(place.files, store)
            assert str(place.path / "store") in str(caught.value)
    check_same(place.seen(), before)
    assert not (place.path / "store").exists()
    with (
        CheckpointManager(backend="sqlite", path=scratch / "moved") as manager,
        Workspace(place.files, manager.store),
    ):
        check_same(place.seen(), TARGET)


def test_a_target_that_was_collected_is_refused_and_can_be_given_up(place):
    place.interrupt()
    with open_manager(place.path) as manager:
        (key,) = manager.list_keys()
        manager.delete(key, f"{key}@1")
        manager.gc()
        before = place.seen()
        with pytest.raises(WorkspaceError, match=r"\.agent-checkpoint-restore"):
            Workspace(place.files, manager.store)
        check_same(place.seen(), before)
        shutil.rmtree((place.files / JOURNAL).parent)
        with Workspace(place.files, manager.store) as ws:
            kind, safety = snapshots(ws)[-1]
            assert kind == "safety"
            ws.restore(safety)
            check_same(place.seen(), PRESENT)


def test_a_restore_that_was_never_begun_is_forgotten(place):
    staging = (place.files / JOURNAL).parent
    (staging / "files").mkdir(parents=True)
    (staging / "files" / "0").write_bytes(b"staged")
    (staging / "journal.new").write_bytes(b"half a jour")
    seal = seal_claim(json.dumps(["staging of a restore", str(place.files)]).encode())
    (staging / "owner").write_text(str(seal))
    assert place.recovered() is None
    check_same(place.seen(), PRESENT)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"tree": 1}', b"\xff" * 100, b"null"])
def test_a_damaged_journal_is_set_aside_and_told(place, text):
    place.interrupt()
    (place.files / JOURNAL).write_bytes(text)
    before = {path: what for path, what in place.seen().items() if not path.startswith(".agent")}
    with open_manager(place.path) as manager, open_workspace(place.path, manager) as ws:
        assert ws.recovered is None
        assert "journal is damaged" in ws.notices[0]
        (aside,) = place.files.glob(".agent-checkpoint-restore.found-*")
        assert (aside / "journal").read_bytes() == text
        shutil.rmtree(aside)
    check_same(place.seen(), before)
    assert set(LEFT_OUT) <= before.keys()
