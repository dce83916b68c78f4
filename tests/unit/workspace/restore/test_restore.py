"""Restores: exact, undone by their safety checkpoint, and careful with what others do meanwhile."""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    RestoreIncompleteError,
    Workspace,
    WorkspaceError,
)
from agent_checkpoint.workspace.restore import apply as module
from agent_checkpoint.workspace.restore import atomic_rename
from agent_checkpoint.workspace.restore.apply import PlanExecutor
from agent_checkpoint.workspace.scan.reading import entry_reader
from agent_checkpoint.workspace.tree.snapshot import Tree
from tests.unit.workspace.disk import File, Folder, Link, clear, describe, make
from tests.unit.workspace.nobody import as_nobody, place_of_nobody

THINGS = {
    b"a/x": File(b"x"),
    b"a/b/y": File(b"y", 0o755),
    b"a/b/link": Link(b"../x"),
    b"file": File(b"file"),
    b"link": Link(b"a"),
    b"empty": Folder(),
}


def left_over(root: Path) -> "list[str]":
    return [path.name for path in root.iterdir() if "agent-checkpoint" in path.name]


# -- exactness -----------------------------------------------------------------------------------

REPLACEMENTS: "dict[str, Callable[[Path], object]]" = {
    "a file": lambda path: path.write_text("other"),
    "a link": lambda path: path.symlink_to("elsewhere"),
    "a link to a directory": lambda path: path.symlink_to("/etc"),
    "an empty directory": lambda path: path.mkdir(),
    "a full directory": lambda path: make(path.parent, {os.fsencode(path.name) + b"/1/2": File()}),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("mode", [0o755, 0o555, 0o500, 0o000])
@pytest.mark.parametrize("what", REPLACEMENTS)
@pytest.mark.parametrize("name", ["file", "link", "a", "a/b", "empty"])
@pytest.mark.slow
def test_everything_turns_into_what_it_was(
    ws: Workspace, tree: Tree, name: str, what: str, mode: int
) -> None:
    if os.geteuid() != 0 and mode < 0o500:
        pytest.skip("only root can look into such a directory")
    before, path = describe(ws.path), ws.path / name
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    REPLACEMENTS[what](path)
    if path.is_dir() and not path.is_symlink():
        path.chmod(mode)
    after = describe(ws.path)
    plan = ws.restore(tree)
    assert describe(ws.path) == before
    assert plan.safety is not None
    ws.restore(plan.safety)
    assert describe(ws.path) == after
    assert left_over(ws.path) == []


def test_a_tree_is_restored_into_an_empty_directory(
    ws: Workspace, tree: Tree, tmp_path: Path, manager: CheckpointManager
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    Workspace(other, manager.store).restore(tree)
    assert describe(other) == describe(ws.path)


def test_a_tree_is_restored_from_another_store(root: Path, tmp_path: Path) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "one") as one:
        tree = Workspace(root, one.store).snapshot()
        before = describe(root)
        clear(root)
        with CheckpointManager(backend="sqlite", path=tmp_path / "two") as two:
            workspace = Workspace(root, two.store)
            plan = workspace.restore(tree)
            assert describe(root) == before
            assert plan.safety is not None
            workspace.restore(plan.safety)
            assert describe(root) == {}


def test_a_mode_is_set_without_a_new_file(ws: Workspace, tree: Tree) -> None:
    (ws.path / "file").chmod(0o600)
    inode = (ws.path / "file").stat().st_ino
    assert ws.restore(tree).mode == ["file"]
    assert (ws.path / "file").stat().st_ino == inode


def test_another_name_of_a_file_keeps_its_mode(ws: Workspace, tmp_path: Path) -> None:
    make(ws.path, {b"one": File(b"same", 0o600), b"two": File(b"same", 0o644)})
    tree, before = ws.snapshot(), describe(ws.path)
    for name in ("one", "two"):
        (ws.path / name).unlink()
    (tmp_path / "outside").write_text("same")
    (tmp_path / "outside").chmod(0o640)
    for name in ("one", "two"):
        os.link(tmp_path / "outside", ws.path / name)
    ws.restore(tree)
    assert describe(ws.path) == before
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o640
    assert ws.snapshot().id == tree.id


def test_another_name_of_a_file_keeps_its_content(
    ws: Workspace, tree: Tree, tmp_path: Path
) -> None:
    (ws.path / "file").write_text("changed")
    os.link(ws.path / "file", tmp_path / "outside")
    ws.restore(tree)
    assert (ws.path / "file").read_text() == "file"
    assert (tmp_path / "outside").read_text() == "changed"


def test_a_directory_keeps_bits_that_are_not_captured(ws: Workspace) -> None:
    (ws.path / "a").chmod(0o2555)
    if not (ws.path / "a").stat().st_mode & 0o2000:
        pytest.skip("the bit is not given here")
    tree = ws.snapshot()
    (ws.path / "a").chmod(0o2755)
    (ws.path / "a" / "x").unlink()
    ws.restore(tree)
    assert stat.S_IMODE((ws.path / "a").stat().st_mode) == 0o2555
    (ws.path / "a" / "x").unlink() if os.geteuid() == 0 else None
    ws.restore(tree)
    assert stat.S_IMODE((ws.path / "a").stat().st_mode) == 0o2555


def test_one_without_privileges_changes_what_is_in_closed_directories() -> None:
    with place_of_nobody() as root, as_nobody():
        make(root, {b"ro/deep/file": File(b"1"), b"ro/deep": Folder(0o555), b"ro": Folder(0o500)})
        ws = Workspace(root, CheckpointManager().store)
        tree, before = ws.snapshot(), describe(root)
        (root / "ro").chmod(0o700)
        (root / "ro" / "deep").chmod(0o700)
        (root / "ro" / "deep" / "file").write_text("2")
        (root / "ro" / "new").mkdir()
        (root / "ro" / "deep").chmod(0o500)
        (root / "ro").chmod(0o500)
        after = describe(root)
        plan = ws.restore(tree)
        assert describe(root) == before
        assert plan.safety is not None
        ws.restore(plan.safety)
        assert describe(root) == after
        for path in (root / "ro", root / "ro" / "deep", root / "ro" / "new"):
            path.chmod(0o700)


def test_an_argument_of_another_type_is_named(ws: Workspace) -> None:
    with pytest.raises(InvalidInputError, match=r"with a workspace, not int\.$"):
        ws.restore(42)  # type: ignore[arg-type]


def test_a_restore_of_the_present_touches_nothing(ws: Workspace, tree: Tree) -> None:
    before = {path: path.lstat().st_ctime_ns for path in ws.path.rglob("*")}
    plan = ws.restore(tree)
    assert not plan
    assert {path: path.lstat().st_ctime_ns for path in ws.path.rglob("*")} == before


# -- safety --------------------------------------------------------------------------------------


def test_an_undo_is_undone(ws: Workspace, tree: Tree) -> None:
    old = describe(ws.path)
    clear(ws.path)
    make(ws.path, {b"a": Link(b"b"), b"new/file": File(b"new")})
    new = describe(ws.path)
    plan = ws.restore(tree)
    for expected in (new, old, new, old):
        assert plan.safety is not None
        plan = ws.restore(plan.safety)
        assert describe(ws.path) == expected


def test_the_newest_ten_safety_checkpoints_are_kept(
    ws: Workspace, tree: Tree, manager: CheckpointManager
) -> None:
    plans = []
    for number in range(13):
        (ws.path / "file").write_text(f"{number}")
        plans.append(ws.restore(tree))
    kinds = [entry["kind"] for entry in manager.history(ws.key, n=100)]
    assert kinds == ["safety"] * 10 + ["save"]
    manager.gc()
    for number, plan in enumerate(plans[3:], 3):
        assert plan.safety is not None
        ws.restore(plan.safety, paths=["file"])
        assert (ws.path / "file").read_text() == f"{number}"


def test_a_safety_checkpoint_is_there_before_anything_is_touched(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ws.path / "file").write_text("changed")
    now = describe(ws.path)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.Staging, "begin", fail)
        ws.restore(tree)
    assert describe(ws.path) == now
    head = ws.store.head(ws.key)
    assert head is not None
    assert head.kind == "safety"


def test_only_what_was_previewed_is_done(ws: Workspace, tree: Tree) -> None:
    (ws.path / "file").write_text("changed")
    plan = ws.restore(tree, dry_run=True)
    (ws.path / "new").write_text("not seen")
    before = describe(ws.path)
    with pytest.raises(ConflictError, match="changed since the preview"):
        ws.restore(tree, only_if=plan)
    assert describe(ws.path) == before
    assert ws.restore(tree, only_if=ws.restore(tree, dry_run=True)).delete == ["new"]


# -- what others do meanwhile --------------------------------------------------------------------


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> "Callable[[Callable[[], Any]], None]":
    """Have something done when all is staged, right before the first step."""

    def plan(act: "Callable[[], Any]") -> None:
        begin = module.Staging.begin

        def interrupted(*args: Any) -> None:
            begin(*args)
            act()

        monkeypatch.setattr(module.Staging, "begin", interrupted)

    return plan


Meanwhile = Callable[[Callable[[], Any]], None]


def test_a_file_that_changes_meanwhile_is_left_alone(
    ws: Workspace, tree: Tree, meanwhile: Meanwhile
) -> None:
    (ws.path / "file").write_text("changed")
    (ws.path / "a" / "x").write_text("changed")
    meanwhile(lambda: (ws.path / "file").write_text("unsaved"))
    plan = ws.restore(tree)
    assert plan.leave == {"file": "it changed during the restore"}
    assert (ws.path / "file").read_text() == "unsaved"
    assert (ws.path / "a" / "x").read_text() == "x"


def test_a_new_file_that_changes_meanwhile_is_not_deleted(
    ws: Workspace, tree: Tree, meanwhile: Meanwhile
) -> None:
    (ws.path / "new").write_text("new")
    meanwhile(lambda: (ws.path / "new").write_text("unsaved"))
    assert set(ws.restore(tree).leave) == {"new"}
    assert (ws.path / "new").read_text() == "unsaved"


def test_what_comes_meanwhile_is_not_overwritten(
    ws: Workspace, tree: Tree, meanwhile: Meanwhile
) -> None:
    for name in ("file", "link"):
        (ws.path / name).unlink()
    (ws.path / "a" / "b" / "link").unlink()
    meanwhile(lambda: [(ws.path / name).write_text("unsaved") for name in ("file", "link")])
    plan = ws.restore(tree)
    assert set(plan.leave) == {"file", "link"}
    assert (ws.path / "file").read_text() == (ws.path / "link").read_text() == "unsaved"
    assert os.readlink(ws.path / "a" / "b" / "link") == "../x"


@pytest.mark.parametrize("watch", [True, False])
def test_a_directory_into_which_something_comes_meanwhile_stays(
    ws: Workspace, tree: Tree, meanwhile: Meanwhile, watch: bool
) -> None:
    (ws.path / "new").mkdir()
    meanwhile(lambda: (ws.path / "new" / "file").write_text("unsaved"))
    with Workspace(ws.path, ws.store, watch=watch) as opened:
        assert set(opened.restore(tree).leave) == {"new", "new/file"}
    assert (ws.path / "new" / "file").read_text() == "unsaved"


def test_what_comes_elsewhere_meanwhile_is_no_failure(
    ws: Workspace, tree: Tree, meanwhile: Meanwhile
) -> None:
    (ws.path / "file").unlink()
    meanwhile(lambda: (ws.path / "a" / "new").write_text("unsaved"))
    assert set(ws.restore(tree).leave) <= {"a/new"}
    assert (ws.path / "a" / "new").read_text() == "unsaved"
    assert (ws.path / "file").read_text() == "file"


def test_what_goes_meanwhile_need_not_be_removed(
    ws: Workspace, tree: Tree, meanwhile: Meanwhile
) -> None:
    (ws.path / "new").write_text("new")
    meanwhile(lambda: (ws.path / "new").unlink())
    assert ws.restore(tree).leave == {}


# -- what goes wrong -----------------------------------------------------------------------------


def test_a_damaged_tree_is_found_before_anything_is_touched(
    ws: Workspace, tree: Tree, manager: CheckpointManager
) -> None:
    content = next(item.ref for item in ws._scan(ws.store).items(tree.get) if item.name == b"file")
    clear(ws.path)
    (ws.path / "file").write_text("present")
    now = describe(ws.path)
    manager.store.backend.delete_objects([content])
    with pytest.raises(IntegrityError, match=content):
        ws.restore(tree)
    assert describe(ws.path) == now


def test_what_cannot_be_restored_is_named_and_the_rest_is_restored(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear(ws.path)
    rename = atomic_rename._rename

    def refuse(source: atomic_rename.Entry, target: atomic_rename.Entry, flags: int) -> None:
        if target.name == b"y":
            raise PermissionError(1, "Operation not permitted")
        rename(source, target, flags)

    with monkeypatch.context() as patch, pytest.raises(RestoreIncompleteError) as caught:
        patch.setattr(atomic_rename, "_rename", refuse)
        ws.restore(tree)
    assert "a/b/y" in str(caught.value)
    assert "safety checkpoint" in str(caught.value)
    assert (ws.path / "a" / "x").read_text() == "x"
    assert not (ws.path / "a" / "b" / "y").exists()
    assert left_over(ws.path) == []
    ws.restore(tree)
    assert (ws.path / "a" / "b" / "y").read_text() == "y"


def test_a_file_in_our_place_keeps_nobody_from_working(
    root: Path, manager: CheckpointManager
) -> None:
    (root / ".agent-checkpoint-restore").write_text("whose is this?")
    ws = Workspace(root, manager.store)
    tree, before = ws.snapshot(), describe(root)
    (root / "file").write_text("changed")
    ws.restore(tree)
    assert describe(root) == before
    (aside,) = root.glob(".agent-checkpoint-restore.found-*")
    assert aside.read_text() == "whose is this?"


# -- finishing what was interrupted --------------------------------------------------------------


def test_who_has_no_more_files_to_open_leaves_the_finishing_to_the_next(
    ws: Workspace, tree: Tree, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def no_more_files(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = describe(ws.path)
    for name in ("file", "a/x"):
        (ws.path / name).write_text("changed")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(atomic_rename, "_rename", stop)
        ws.restore(tree)
    with monkeypatch.context() as patch, pytest.raises(WorkspaceError, match="again retries it"):
        patch.setattr(entry_reader, "read_whole", no_more_files)
        Workspace(ws.path, manager.store)
    with Workspace(ws.path, manager.store) as again:
        assert again.recovered is not None
        assert again.recovered.leave == {}
    assert describe(ws.path) == before


def test_the_oldest_safety_checkpoint_is_kept_until_it_is_restored(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes when there are enough of later ones: not as long as it is needed."""
    plans = []
    for number in range(10):
        (ws.path / "file").write_text(f"unsaved {number}")
        plans.append(ws.restore(tree))
    oldest = plans[0].safety_id

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(PlanExecutor, "_check_free_space", no_room)
        with pytest.raises(WorkspaceError):
            ws.restore(str(oldest))
    ws.restore(str(oldest))
    assert (ws.path / "file").read_text() == "unsaved 0"
