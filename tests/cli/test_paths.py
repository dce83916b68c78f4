"""Paths as people type and read them, and the files of a checkpoint without a restore."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.world import opened, run, run_process


@pytest.fixture
def below(repo: Path) -> Path:
    """A directory in a saved one, with a file that was changed since @3."""
    (repo / "src").mkdir()
    (repo / "src" / "lib.py").write_text("one\n")
    assert run("save", at=repo).status == 0
    (repo / "src" / "lib.py").write_text("two\n")
    (repo / "notes.md").write_text("second\n")
    return repo / "src"


def test_what_is_shown_can_be_typed(below: Path) -> None:
    lines = run("diff", "--stat", at=below).out.splitlines()[1:]
    assert lines == ["  ~ ../notes.md (content)", "  ~ lib.py (content)"]
    told = run("restore", "@3", "--dry-run", at=below).out.splitlines()
    assert told[:3] == [
        f"In {below.parent}: 2 files to write",
        "  write ../notes.md",
        "  write lib.py",
    ]
    assert run("restore", "@3", "../notes.md", "lib.py", "--yes", at=below).status == 0
    assert (below / "lib.py").read_text() == "one\n"
    assert (below.parent / "notes.md").read_text() == "first\n"


def test_programs_get_paths_of_the_directory(below: Path) -> None:
    assert set(run("diff", "--json", at=below).data["files"]["changed"]) == {
        "notes.md",
        "src/lib.py",
    }
    plan = run("restore", "@3", "--dry-run", "--json", at=below).data
    assert plan["write"] == ["notes.md", "src/lib.py"]


def test_a_path_that_is_nowhere(below: Path) -> None:
    lost = run("restore", "@3", "nowhere.txt", "--yes", at=below)
    assert lost.status == 3
    assert "'src/nowhere.txt'" in lost.err
    assert "(@3)" in lost.err
    assert "relative" not in lost.err
    meant = run("restore", "@3", "src/lib.py", "--yes", at=below)
    assert meant.status == 3
    assert "did you mean 'lib.py'?" in meant.err
    assert run("diff", "--path", "nowhere.txt", at=below).status == 3
    assert run("show", "@3", "nowhere.txt", at=below).status == 3
    assert (below / "lib.py").read_text() == "two\n"


def test_a_path_that_is_only_there_now_is_deleted(repo: Path) -> None:
    (repo / "new.txt").write_text("new\n")
    assert run("restore", "@2", "new.txt", "--yes", at=repo).status == 0
    assert not (repo / "new.txt").exists()


def test_a_part_that_is_everything(repo: Path) -> None:
    assert "Restored" in run("restore", "@1", ".", "--yes", at=repo).out
    assert (repo / "app.py").read_text() == "print('hello')\n"


def test_a_restore_of_a_part_says_so(repo: Path) -> None:
    (repo / "notes.md").write_text("other\n")
    done = run("restore", "@1", "app.py", "--yes", at=repo)
    assert f"Restored app.py in {repo.resolve()} from @1." in done.out


def test_diff_of_some_paths(below: Path) -> None:
    at = below.parent
    assert run("diff", "--path", "src", "--stat", at=at).out.splitlines() == [
        "files: 1 changed",
        "  ~ src/lib.py (content)",
    ]
    both = run("diff", "--path", "src", "--path", "notes.md", "--json", at=at).data["files"]
    assert set(both["changed"]) == {"notes.md", "src/lib.py"}
    assert "+two" in run("diff", "--path", "lib.py", at=below).out
    assert "second" not in run("diff", "--path", "lib.py", at=below).out
    assert run("diff", "--path", "app.py", "--exit-code", at=at).status == 0
    between = run("diff", "@1", "@2", "--path", "app.py", "--json", at=at).data
    assert list(between["files"]["changed"]) == ["app.py"]


def test_git_is_one_line(repo: Path) -> None:
    git = repo / ".git"
    (git / "refs").mkdir(parents=True)
    for name in ("HEAD", "config", "refs/main"):
        (git / name).write_text("old\n")
    assert run("save", at=repo).status == 0
    for name in ("HEAD", "config", "refs/main"):
        (git / name).write_text("new\n")
    (repo / "app.py").write_text("new\n")
    assert run("diff", "--stat", at=repo).out.splitlines()[1:] == [
        "  ~ app.py (content)",
        "  ~ .git (3 files)",
    ]
    shown = run("diff", at=repo).out
    assert "  ~ .git (3 files)" in shown
    assert "refs" not in shown
    told = run("restore", "@3", "--dry-run", at=repo).out.splitlines()
    assert told[:3] == [
        f"In {repo}: 4 files to write",
        "  write app.py",
        "  write .git (3 files)",
    ]
    assert len(run("diff", "--json", at=repo).data["files"]["changed"]) == 4
    assert ".git/HEAD" in run("restore", "@3", "--dry-run", "--json", at=repo).data["write"]


def test_show_lists_files(below: Path) -> None:
    at = below.parent
    (at / "link").symlink_to("app.py")
    (at / "app.py").chmod(0o755)
    assert run("save", at=at).status == 0
    assert run("show", "@4", "--files", at=at).out.splitlines() == [
        "755  16  app.py",
        "777   6  link -> app.py",
        "644   7  notes.md",
        "644   4  src/lib.py",
    ]
    assert run("show", "@4", "--files", at=below).out.splitlines()[-1].endswith("  lib.py")
    rows = run("show", "@4", "--files", "--json", at=at).data
    assert [row["path"] for row in rows] == ["app.py", "link", "notes.md", "src", "src/lib.py"]
    assert set(rows[0]) == {"path", "type", "mode", "size", "id", "target"}
    assert run("show", "@4", "src", at=at).out == "644  4  src/lib.py\n"


def test_show_prints_a_file(repo: Path) -> None:
    data = bytes(range(256)) * 8000  # more than is stored in one piece
    (repo / "big.bin").write_bytes(data)
    assert run("save", at=repo).status == 0
    assert run("show", "@1", "app.py", at=repo).out == "print('hello')\n"
    command = [sys.executable, "-m", "agent_checkpoint", "show", "@3", "big.bin"]
    done = subprocess.run(command, cwd=repo, capture_output=True, check=True, timeout=60)
    assert done.stdout == data
    assert run("show", "@1", "app.py", "--part", "workspace", at=repo).status == 2
    assert run("show", "@1", "app.py", "--json", at=repo).data[0]["size"] == 15


def test_nothing_of_a_plan_is_cut_in_a_pipe(repo: Path) -> None:
    for number in range(40):
        (repo / f"f{number}").write_text("x")
    told = run_process("restore", "@1", "--dry-run", at=repo).out
    assert told.count("  delete f") == 40
    assert "more" not in told


def test_an_archive_is_not_written_over_a_file(repo: Path) -> None:
    key = run("log", "--json", at=repo).data["key"]
    (repo / "x.ckpt").write_text("mine")
    refused = run("export", key, "x.ckpt", at=repo)
    assert refused.status == 4
    assert f"{repo.resolve() / 'x.ckpt'} exists." in refused.out
    assert (repo / "x.ckpt").read_text() == "mine"


def test_a_restore_that_fails_names_the_file(repo: Path) -> None:
    lost = run("show", "@1", "app.py", "--json", at=repo).data[0]["id"]
    with opened() as manager:
        manager.store.backend.delete_objects([lost])
    failed = run("restore", "@1", "--yes", at=repo)
    assert failed.status == 1
    assert "'app.py' cannot be restored" in failed.err
    assert (repo / "app.py").read_text() == "print('better')\n"
