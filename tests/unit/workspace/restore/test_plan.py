"""What a restore would do, and what it leaves alone: told before, and kept to."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError, Workspace
from agent_checkpoint.workspace.restore.plan import is_git_setting
from agent_checkpoint.workspace.tree.snapshot import Tree
from tests.unit.workspace.disk import Entry, File, Folder, Link, clear, describe, make

THINGS = {
    b"src/app.py": File(b"print(1)\n"),
    b"src/lib/util.py": File(b"pass\n"),
    b"docs/index.md": File(b"# Docs\n"),
    b"docs/link": Link(b"index.md"),
    b"run": File(b"#!/bin/sh\n", 0o755),
    b"empty": Folder(),
}


def edit(root: Path) -> None:
    """Change something of every kind."""
    (root / "src" / "app.py").write_text("print(2)\n")
    (root / "run").chmod(0o600)
    (root / "docs" / "link").unlink()
    (root / "empty").rmdir()
    (root / "new").mkdir()
    (root / "new" / "file").write_text("new")
    shutil.rmtree(root / "src" / "lib")
    (root / "src" / "lib").write_text("a file now")


# -- telling -------------------------------------------------------------------------------------


def test_a_plan_tells_everything_and_changes_nothing(
    ws: Workspace, tree: Tree, manager: CheckpointManager
) -> None:
    edit(ws.path)
    before, history = describe(ws.path), manager.history(ws.key)
    plan = ws.restore(tree, dry_run=True)
    assert describe(ws.path) == before
    assert manager.history(ws.key) == history
    assert plan.safety is plan.safety_id is None
    assert sorted(plan.write) == ["docs/link", "empty", "src/app.py", "src/lib", "src/lib/util.py"]
    assert sorted(plan.delete) == ["new", "new/file"]
    assert plan.mode == ["run"]
    assert plan.leave == {}
    assert sorted(plan.unseen) == ["new/file", "run", "src/app.py", "src/lib"]


def test_what_is_done_is_what_was_told(ws: Workspace, tree: Tree) -> None:
    edit(ws.path)
    told, done = ws.restore(tree, dry_run=True), ws.restore(tree)
    assert (told.write, told.delete, told.mode, told.leave, told.unseen) == (
        done.write,
        done.delete,
        done.mode,
        done.leave,
        done.unseen,
    )


def test_a_plan_can_be_read(ws: Workspace, tree: Tree) -> None:
    edit(ws.path)
    lines = str(ws.restore(tree, dry_run=True)).splitlines()
    assert lines[0].startswith(f"Restore to tree {tree.id[:12]}: ")
    for line in (
        "  write src/app.py",
        "  delete new/file",
        "  set the mode of run",
        "  in no other checkpoint: src/app.py",
    ):
        assert line in lines


def test_a_plan_says_if_there_is_nothing_to_do(ws: Workspace, tree: Tree) -> None:
    plan = ws.restore(tree, dry_run=True)
    assert not plan
    assert "nothing to do" in str(plan)


# -- a part of it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["src/app.py", Path("src/app.py"), "./src/../src/app.py", "src//app.py"]
)
def test_one_file_is_restored(ws: Workspace, tree: Tree, path: Any) -> None:
    edit(ws.path)
    before = describe(ws.path)
    plan = ws.restore(tree, paths=[path])
    assert plan.write == ["src/app.py"]
    assert describe(ws.path) == {**before, b"src/app.py": Entry("file", 0o644, b"print(1)\n")}


def test_an_absolute_path_within_the_workspace_will_do(ws: Workspace, tree: Tree) -> None:
    edit(ws.path)
    assert ws.restore(tree, paths=[ws.path / "src" / "app.py"]).write == ["src/app.py"]


def test_a_directory_is_restored_with_all_below_it(ws: Workspace, tree: Tree) -> None:
    then = describe(ws.path)
    edit(ws.path)
    (ws.path / "src" / "more").mkdir()
    (ws.path / "src-not").write_text("only begins alike")
    now = describe(ws.path)
    ws.restore(tree, paths=["src", "empty"])
    expected = {path: entry for path, entry in now.items() if not path.startswith(b"src/")}
    expected.update((path, entry) for path, entry in then.items() if path.startswith(b"src/"))
    assert describe(ws.path) == {**expected, b"empty": then[b"empty"]}


def test_what_was_not_there_is_deleted(ws: Workspace, tree: Tree) -> None:
    edit(ws.path)
    assert sorted(ws.restore(tree, paths=["new"]).delete) == ["new", "new/file"]
    assert not (ws.path / "new").exists()


def test_a_directory_stays_if_only_one_file_of_it_is_to_go(ws: Workspace, tree: Tree) -> None:
    edit(ws.path)
    (ws.path / "new" / "other").write_text("stays")
    plan = ws.restore(tree, paths=["new/file"])
    assert plan.delete == ["new/file"]
    assert plan.leave == {"new": "it holds entries that are left alone"}
    assert [path.name for path in (ws.path / "new").iterdir()] == ["other"]


def test_a_file_comes_back_into_a_directory_that_is_gone(ws: Workspace, tree: Tree) -> None:
    clear(ws.path)
    ws.restore(tree, paths=["src/lib/util.py"])
    assert sorted(describe(ws.path)) == [b"src", b"src/lib", b"src/lib/util.py"]


def test_a_path_that_is_nowhere_is_no_error(ws: Workspace, tree: Tree) -> None:
    edit(ws.path)
    before = describe(ws.path)
    assert not ws.restore(tree, paths=["nowhere"])
    assert not ws.restore(tree, paths=[])
    assert describe(ws.path) == before


@pytest.mark.parametrize("path", ["..", "../x", "/etc/passwd", "src/../../x", ".", ""])
def test_a_path_outside_is_refused(ws: Workspace, tree: Tree, path: str) -> None:
    edit(ws.path)
    before = describe(ws.path)
    with pytest.raises(InvalidInputError, match="within"):
        ws.restore(tree, paths=["src/app.py", path])
    assert describe(ws.path) == before


def test_what_is_excluded_is_left_as_it_is(ws: Workspace, tree: Tree) -> None:
    edit(ws.path)
    before = describe(ws.path)
    ws.restore(tree, exclude=["src", "new"])
    after = describe(ws.path)
    for path in before:
        if path.startswith((b"src", b"new")):
            assert after[path] == before[path]
    assert (ws.path / "docs" / "link").is_symlink()
    assert (ws.path / "empty").is_dir()


def test_a_directory_that_holds_what_is_excluded_stays(ws: Workspace, tree: Tree) -> None:
    (ws.path / "new" / "cache").mkdir(parents=True)
    (ws.path / "new" / "cache" / "data").write_text("expensive")
    (ws.path / "new" / "file").write_text("new")
    told = ws.restore(tree, exclude=["cache"], dry_run=True)
    plan = ws.restore(tree, exclude=["cache"])
    assert told.delete == plan.delete == ["new/file"]
    assert told.leave == plan.leave == {"new": "it holds entries that are left alone"}
    assert (ws.path / "new" / "cache" / "data").read_text() == "expensive"


def test_nothing_takes_the_place_of_a_directory_with_something_excluded(
    ws: Workspace, tree: Tree
) -> None:
    (ws.path / "run").unlink()
    (ws.path / "run" / "cache").mkdir(parents=True)
    (ws.path / "run" / "file").write_text("new")
    before = describe(ws.path)
    told = ws.restore(tree, exclude=["cache"], dry_run=True)
    plan = ws.restore(tree, exclude=["cache"])
    assert told.leave == plan.leave
    assert set(plan.leave) == {"run", "run/file"}
    assert describe(ws.path) == before


def test_a_pattern_that_makes_no_sense_is_refused(ws: Workspace, tree: Tree) -> None:
    with pytest.raises(InvalidInputError):
        ws.restore(tree, exclude=["a\nb"])


# -- what nobody has seen ------------------------------------------------------------------------


def test_what_no_checkpoint_holds_is_kept_if_asked_for(ws: Workspace, tree: Tree) -> None:
    (ws.path / "src" / "app.py").write_text("print(2)\n")
    seen = ws.snapshot()
    (ws.path / "docs" / "index.md").write_text("unsaved")
    (ws.path / "new").mkdir()
    (ws.path / "new" / "file").write_text("unsaved")
    (ws.path / "run").unlink()
    plan = ws.restore(tree, keep_unseen=True)
    assert sorted(plan.unseen) == ["docs/index.md", "new/file"]
    assert sorted(plan.leave) == ["docs/index.md", "new", "new/file"]
    assert (ws.path / "src" / "app.py").read_text() == "print(1)\n"
    assert (ws.path / "docs" / "index.md").read_text() == "unsaved"
    assert (ws.path / "new" / "file").read_text() == "unsaved"
    assert (ws.path / "run").exists()
    ws.restore(seen)
    assert not (ws.path / "new").exists()


def test_a_file_that_is_kept_keeps_out_what_was_a_directory(ws: Workspace, tree: Tree) -> None:
    shutil.rmtree(ws.path / "src")
    (ws.path / "src").write_text("unsaved")
    (ws.path / "run").unlink()
    plan = ws.restore(tree, keep_unseen=True)
    assert sorted(plan.leave) == ["src"]
    assert plan.write == ["run"]
    assert (ws.path / "src").read_text() == "unsaved"


def test_everything_else_is_unseen_if_there_is_no_checkpoint_of_its_own(
    ws: Workspace, manager: CheckpointManager
) -> None:
    manager.save("key", {"workspace": ws})
    state = manager.state_dict("key")["workspace"]
    (ws.path / "run").write_text("unsaved")
    (ws.path / "docs" / "index.md").unlink()
    plan = ws.restore(state, keep_unseen=True)
    assert plan.unseen == ["run"]
    assert plan.write == ["docs/index.md"]
    assert (ws.path / "run").read_text() == "unsaved"


def test_a_safety_checkpoint_is_not_one_that_has_seen_it(ws: Workspace, tree: Tree) -> None:
    (ws.path / "run").write_text("unsaved")
    ws.restore(tree, paths=["nowhere"])
    assert ws.restore(tree, dry_run=True).unseen == ["run"]


# -- rules ---------------------------------------------------------------------------------------


def opened(root: Path, manager: CheckpointManager, *ignore: str, **options: bool) -> Workspace:
    return Workspace(root, manager.store, ignore=ignore, **options)


def test_what_is_ignored_is_left_alone(root: Path, manager: CheckpointManager) -> None:
    (root / "build").mkdir()
    (root / "build" / "out").write_text("1")
    ws = opened(root, manager, "build", "*.log")
    tree = ws.snapshot()
    assert tree.files == 5
    (root / "build" / "out").write_text("2")
    (root / "src" / "new.log").write_text("noise")
    (root / "run").unlink()
    before = describe(root)
    plan = ws.restore(tree)
    assert plan.write == ["run"]
    assert plan.delete == []
    assert describe(root) == {**before, b"run": Entry("file", 0o755, b"#!/bin/sh\n")}


def test_a_directory_that_holds_what_is_ignored_stays(
    root: Path, manager: CheckpointManager
) -> None:
    ws = opened(root, manager, "*.log")
    tree = ws.snapshot()
    make(root, {b"new/deep/x.log": File(b"noise"), b"new/deep/file": File(b"")})
    plan = ws.restore(tree)
    assert plan.delete == ["new/deep/file"]
    assert set(plan.leave) == {"new", "new/deep"}
    assert (root / "new" / "deep" / "x.log").read_text() == "noise"


def test_nothing_takes_the_place_of_a_directory_with_something_ignored(
    root: Path, manager: CheckpointManager
) -> None:
    ws = opened(root, manager, "*.log")
    tree = ws.snapshot()
    (root / "run").unlink()
    make(root, {b"run/x.log": File(b"noise"), b"run/file": File(b"")})
    before = describe(root)
    plan = ws.restore(tree)
    assert set(plan.leave) == {"run", "run/file"}
    assert describe(root) == before


def test_what_was_ignored_then_is_not_deleted_now(root: Path, manager: CheckpointManager) -> None:
    tree = opened(root, manager, "docs", "*.log").snapshot()
    (root / "src" / "a.log").write_text("noise")
    (root / "src" / "a.txt").write_text("new")
    (root / "docs" / "new").write_text("new")
    ws = opened(root, manager)
    before = describe(root)
    plan = ws.restore(tree)
    why = "it was excluded when the checkpoint was taken"
    assert plan.leave == {"docs": why, "src/a.log": why}
    assert plan.delete == ["src/a.txt"]
    del before[b"src/a.txt"]
    assert describe(root) == before


def test_what_is_ignored_now_is_not_overwritten(root: Path, manager: CheckpointManager) -> None:
    tree = opened(root, manager).snapshot()
    (root / "docs" / "index.md").write_text("2")
    (root / "src" / "app.py").write_text("2")
    ws = opened(root, manager, "docs")
    plan = ws.restore(tree)
    assert plan.leave == {"docs": "it is excluded"}
    assert plan.write == ["src/app.py"]
    assert (root / "docs" / "index.md").read_text() == "2"


def test_what_is_ignored_now_and_gone_comes_back(root: Path, manager: CheckpointManager) -> None:
    tree = opened(root, manager).snapshot()
    before = describe(root)
    shutil.rmtree(root / "docs")
    opened(root, manager, "docs").restore(tree)
    assert describe(root) == before


def test_files_of_rules_count_as_they_were(root: Path, manager: CheckpointManager) -> None:
    (root / ".checkpointignore").write_text("*.log\n")
    ws = opened(root, manager)
    tree = ws.snapshot()
    (root / "a.log").write_text("noise")
    (root / ".checkpointignore").write_text("*.tmp\n")
    (root / "b.tmp").write_text("noise")
    (root / "src" / "c.txt").write_text("new")
    plan = ws.restore(tree)
    assert plan.delete == ["src/c.txt"]
    assert plan.write == [".checkpointignore"]
    assert plan.leave == {"a.log": "it was excluded when the checkpoint was taken"}
    assert (root / "a.log").exists()
    assert (root / "b.tmp").exists()


def test_git_rules_count_as_they_were(root: Path, manager: CheckpointManager) -> None:
    (root / "src" / ".gitignore").write_text("/cache\n")
    tree = opened(root, manager, gitignore=True).snapshot()
    (root / "src" / "cache").mkdir()
    (root / "src" / "cache" / "x").write_text("expensive")
    (root / "cache").write_text("elsewhere")
    plan = opened(root, manager).restore(tree)
    assert plan.delete == ["cache"]
    assert set(plan.leave) == {"src/cache"}
    assert (root / "src" / "cache" / "x").read_text() == "expensive"


def test_specials_are_left_alone_and_reported(ws: Workspace, tree: Tree) -> None:
    (ws.path / "run").unlink()
    os.mkfifo(ws.path / "run")
    plan = ws.restore(tree)
    assert plan.leave == {"run": "it is a fifo, which a restore never changes"}


# -- what could run ------------------------------------------------------------------------------


def test_a_plan_names_what_becomes_executable(ws: Workspace, tree: Tree) -> None:
    (ws.path / "run").chmod(0o600)
    assert ws.restore(tree, dry_run=True).executable == ["run"]
    (ws.path / "run").write_text("other")
    (ws.path / "run").chmod(0o755)
    assert ws.restore(tree, dry_run=True).executable == ["run"]
    (ws.path / "run").unlink()
    assert ws.restore(tree, dry_run=True).executable == ["run"]
    ws.restore(tree)
    (ws.path / "run").chmod(0o711)
    assert ws.restore(tree, dry_run=True).executable == []  # it was, with the same content


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (b".git/hooks/post-checkout", True),
        (b".git/config", True),
        (b".GIT/config", True),
        (b".git", True),
        (b"vendor/lib/.git/config.worktree", True),
        (b".git/info/attributes", True),
        (b".git/modules/lib/hooks/pre-commit", True),
        (b".git/modules/objects/hooks/pre-commit", True),
        (b".git/objects/.git/hooks/pre-commit", True),
        (b".git/new-in-a-later-git", True),
        (b".git/HEAD", False),
        (b".git/index", False),
        (b".git/refs/heads/main", False),
        (b".git/objects/ab/" + b"c" * 38, False),
        (b".git/modules/lib/objects/ab/" + b"c" * 38, False),
        (b".github/workflows/ci.yml", False),
        (b"src/config", False),
    ],
)
def test_what_git_runs_or_takes_settings_from(path: bytes, is_one: bool) -> None:
    assert is_git_setting(path) is is_one
