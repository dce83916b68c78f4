"""Trees with repositories in them: git finds them as they were, and none of its objects is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.workspace.restore.plan import is_git_object
from tests.unit.workspace.disk import describe

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


def git(place: Path, *words: str) -> str:
    """Run git, with no settings but ours."""
    settings = {
        "user.name": "Test",
        "user.email": "test@example.com",
        "init.defaultBranch": "main",
        "protocol.file.allow": "always",
        "commit.gpgsign": "false",
        "gc.auto": "0",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",  # status writes the index anew, else
        "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
    }
    done = subprocess.run(
        ["git", *options, *words], cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def commit(place: Path, name: str, text: str) -> None:
    (place / name).write_text(text)
    git(place, "add", name)
    git(place, "commit", "-q", "-m", f"{name}: {text}")


def repository(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "-q")
    commit(place, "file", "one")
    return place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path / "root")


# -- everything that projects have ---------------------------------------------------------------


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Path:
    """A repository with others in it, in all the ways that there are."""
    repository(root / "vendor" / "nested")
    repository(root / "vendor" / "nested" / "deeper")
    library = repository(tmp_path / "library")
    git(root, "submodule", "--quiet", "add", str(library), "third_party/library")
    git(root, "commit", "-q", "-m", "a submodule")
    git(root, "branch", "side")
    git(root, "worktree", "add", "-q", "trees/side", "side")
    assert (root / "trees" / "side" / ".git").is_file()
    assert (root / "third_party" / "library" / ".git").is_file()
    modules = root / "node_modules"
    package = modules / ".store" / "left-pad@1.0.0" / "node_modules" / "left-pad"
    package.mkdir(parents=True)
    (package / "index.js").write_text("module.exports = 1\n")
    (package / "cli.js").write_text("#!/usr/bin/env node\n")
    (package / "cli.js").chmod(0o755)
    (modules / ".bin").mkdir()
    (modules / "left-pad").symlink_to(".store/left-pad@1.0.0/node_modules/left-pad")
    (modules / ".bin" / "left-pad").symlink_to("../left-pad/cli.js")
    (modules / "workspace-root").symlink_to("..")
    os.link(package / "index.js", modules / "index.js")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / ".venv")], check=True)
    (root / ".gitignore").write_text("node_modules\n.venv\nvendor\ntrees\n")
    commit(root, "staged", "before")
    (root / "staged").write_text("staged and not committed")
    git(root, "add", "staged")
    (root / "file").write_text("changed and not staged")
    (root / "untracked").write_text("not even added")
    return root


def places(project: Path) -> "list[Path]":
    below = [".", "vendor/nested", "vendor/nested/deeper", "third_party/library", "trees/side"]
    return [project / path for path in below]


def said(project: Path) -> "list[str]":
    """Return what git says of all of them."""
    found = []
    for place in places(project):
        found.append(git(place, "status", "--porcelain=v2", "--branch", "--ignored"))
        found.append(git(place, "fsck", "--full", "--strict", "--no-dangling"))
        found.append(git(place, "log", "--all", "--graph", "--format=%H %D %s"))
        found.append(git(place, "diff", "--cached"))
        found.append(git(place, "stash", "list"))
    found.append(git(project, "submodule", "status"))
    found.append(git(project, "worktree", "list", "--porcelain"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_git_finds_everything_as_it_was(project: Path, tmp_path: Path, backend: str) -> None:
    with CheckpointManager(backend=backend, path=tmp_path / "store") as manager:
        git_says, before = said(project), describe(project)
        with Workspace(project, manager.store) as ws:
            tree = ws.snapshot()
        assert not tree.incomplete
        subprocess.run(["find", str(project), "-mindepth", "1", "-delete"], check=True)
        assert describe(project) == {}
        with Workspace(project, manager.store) as ws:
            ws.restore(tree)
        assert describe(project) == before
        assert said(project) == git_says
    python = project / ".venv" / "bin" / "python"
    code = "import sys; print(sys.prefix)"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(project / ".venv")


@pytest.mark.slow
def test_work_in_every_repository_is_taken_back(project: Path) -> None:
    with Workspace(project, CheckpointManager().store) as ws:
        git_says, before, tree = said(project), describe(project), ws.snapshot()
        for place in places(project):
            commit(place, "more", "more")
            git(place, "checkout", "-q", "-b", f"new-{place.name or 'root'}")
            commit(place, "file", "on a branch")
        git(project, "worktree", "remove", "--force", "trees/side")
        git(project / "vendor" / "nested", "gc", "-q", "--prune=now")
        plan = ws.restore(tree)
        assert said(project) == git_says
        after = describe(project)
        assert {path: after[path] for path in before} == before
        # What is more are objects of git, and the directories of those.
        assert all(is_git_object(path) for path in after.keys() - before.keys())
        assert plan.safety is not None
        ws.restore(plan.safety)
        assert git(project / "vendor" / "nested", "branch", "--show-current") == "new-nested\n"


# -- heads and branches --------------------------------------------------------------------------


def test_a_plan_says_which_branch_moves(ws: Workspace) -> None:
    old = git(ws.path, "rev-parse", "HEAD").strip()
    tree = ws.snapshot()
    commit(ws.path, "file", "two")
    new = git(ws.path, "rev-parse", "HEAD").strip()
    words = [f"branch main of this repository moves from {new[:12]} to {old[:12]}"]
    told = ws.restore(tree, dry_run=True)
    assert told.git == words
    assert f"  git: {words[0]}" in str(told).splitlines()
    assert ws.restore(tree).git == words
    assert git(ws.path, "rev-parse", "HEAD").strip() == old
    assert git(ws.path, "status", "--porcelain") == ""


def test_a_plan_says_where_a_head_goes(ws: Workspace) -> None:
    tree = ws.snapshot()
    git(ws.path, "checkout", "-q", "-b", "topic/new")
    commit(ws.path, "file", "two")
    plan = ws.restore(tree)
    assert "HEAD of this repository moves from topic/new to main" in plan.git
    new = next(words for words in plan.git if words.startswith("branch topic/new of "))
    assert new.endswith(" to nothing")
    assert git(ws.path, "branch", "--format=%(refname:short)") == "main\n"


def test_a_plan_knows_branches_that_are_packed(ws: Workspace) -> None:
    git(ws.path, "branch", "side")
    git(ws.path, "pack-refs", "--all")
    old, tree = git(ws.path, "rev-parse", "HEAD").strip(), ws.snapshot()
    commit(ws.path, "file", "two")
    new = git(ws.path, "rev-parse", "HEAD").strip()
    told = ws.restore(tree, dry_run=True).git
    assert told == [f"branch main of this repository moves from {new[:12]} to {old[:12]}"]
    git(ws.path, "pack-refs", "--all")
    git(ws.path, "branch", "-q", "-D", "side")
    ws.restore(tree)
    assert git(ws.path, "rev-parse", "HEAD", "side").split() == [old, old]


def test_a_branch_that_is_only_packed_has_not_moved(ws: Workspace) -> None:
    repository(ws.path / "nested")
    tree = ws.snapshot()
    for place in (ws.path, ws.path / "nested"):
        git(place, "pack-refs", "--all")
    plan = ws.restore(tree, dry_run=True)
    assert ".git/refs/heads/main" in plan.write
    assert plan.git == []


def test_a_plan_names_the_repository(ws: Workspace) -> None:
    repository(ws.path / "vendor" / "nested")
    tree = ws.snapshot()
    commit(ws.path / "vendor" / "nested", "file", "two")
    (words,) = ws.restore(tree, dry_run=True).git
    assert words.startswith("branch main of vendor/nested moves from ")


def test_a_plan_says_nothing_of_git_if_nothing_moves(ws: Workspace) -> None:
    tree = ws.snapshot()
    (ws.path / "file").write_text("changed")
    assert ws.restore(tree).git == []


def test_git_is_left_alone_if_asked_for(ws: Workspace) -> None:
    repository(ws.path / "vendor" / "nested")
    tree = ws.snapshot()
    commit(ws.path, "file", "two")
    commit(ws.path / "vendor" / "nested", "file", "two")
    before = {path: entry for path, entry in describe(ws.path).items() if b".git/" in path}
    plan = ws.restore(tree, exclude=[".git"])
    after = describe(ws.path)
    assert plan.git == []
    assert {path: entry for path, entry in after.items() if b".git/" in path} == before
    assert (ws.path / "file").read_text() == "one"
    assert git(ws.path, "status", "--porcelain", "file") == " M file\n"
    assert git(ws.path, "log", "--format=%s") == "file: two\nfile: one\n"


# -- objects -------------------------------------------------------------------------------------


def objects_of(root: Path) -> "set[Path]":
    return {path for path in root.rglob("*") if path.is_file() and "objects" in path.parts}


def test_objects_of_git_are_never_deleted(ws: Workspace) -> None:
    tree = ws.snapshot()
    commit(ws.path, "file", "two")
    lost = git(ws.path, "rev-parse", "HEAD").strip()
    before = objects_of(ws.path)
    plan = ws.restore(tree)
    assert objects_of(ws.path) >= before
    assert "git objects are never deleted" in plan.leave.values()
    assert not any("/objects/" in path for path in plan.delete)
    assert git(ws.path, "cat-file", "-p", f"{lost}:file") == "two"
    assert git(ws.path, "fsck", "--full", "--strict", "--no-dangling") == ""


def test_objects_stay_also_if_their_repository_was_not_there(ws: Workspace) -> None:
    tree = ws.snapshot()
    repository(ws.path / "new")
    lost = git(ws.path / "new", "rev-parse", "HEAD").strip()
    ws.restore(tree)
    assert not (ws.path / "new" / "file").exists()
    git(ws.path / "new", "init", "-q")
    assert git(ws.path / "new", "cat-file", "-p", f"{lost}:file") == "one"


def test_packed_objects_come_back_as_they_were(ws: Workspace) -> None:
    commit(ws.path, "file", "two")
    tree, before = ws.snapshot(), describe(ws.path)
    git(ws.path, "gc", "-q", "--prune=now")
    ws.restore(tree)
    after = describe(ws.path)
    assert {path: after[path] for path in before} == before
    assert git(ws.path, "fsck", "--full", "--strict", "--no-dangling") == ""
    assert git(ws.path, "log", "--format=%s") == "file: two\nfile: one\n"


@pytest.mark.parametrize(
    ("path", "is_object"),
    [
        (b".git/objects/ab/cdef", True),
        (b"vendor/x/.git/objects/pack/pack-1.idx", True),
        (b".git/modules/library/objects/ab/cdef", True),
        (b".git/HEAD", False),
        (b"objects/ab/cdef", False),
        (b"src/objects/.git", False),
    ],
)
def test_what_is_an_object_of_git(path: bytes, is_object: bool) -> None:
    assert is_git_object(path) == is_object


def test_a_snapshot_writes_nothing_to_a_repository(ws: Workspace) -> None:
    before = {path: path.lstat().st_mtime_ns for path in (ws.path / ".git").rglob("*")}
    ws.snapshot()
    (ws.path / "file").write_text("changed")
    ws.snapshot()
    assert {path: path.lstat().st_mtime_ns for path in (ws.path / ".git").rglob("*")} == before
