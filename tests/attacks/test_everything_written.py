"""A14 and A15 for all that is written anywhere: private whatever the umask, and purged."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, Session, Workspace, explore
from tests.cli.scene import scene

SECRET = "sk-very-secret-0123456789"
COPIES = {"files", "upper", "project", "fork"}
"""What is in these has the modes of the workspace that it is a copy of, within what is private."""


@contextmanager
def open_umask() -> Iterator[None]:
    """Have nothing taken from the modes of new files; the places for them are there already."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


class Worker(Checkpointable):
    def __init__(self) -> None:
        self.odd: Any = {1j, 2j}


def strategy(branch: Session, n: int) -> int:
    assert branch.workspace is not None
    (branch.workspace.path / "new").write_text(str(n))
    print("said")
    open_to_others(Path(os.environ["AGENT_CHECKPOINT_HOME"]))
    return n


def open_to_others(*places: Path) -> None:
    """See to it that nothing is, but what lies in a directory that nobody else may enter."""
    wrong = []
    for place in places:
        for directory, names, files in os.walk(place):
            names[:] = [name for name in names if name not in COPIES]
            for path in (directory, *(f"{directory}/{name}" for name in files)):
                mode = os.lstat(path).st_mode
                if not stat.S_ISLNK(mode) and mode & 0o077:
                    wrong.append(f"{path}: {mode & 0o777:o}")
    if wrong:
        raise AssertionError(", ".join(wrong))


def test_nothing_that_is_written_is_open_to_others(tmp_path: Path, own_home: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir(mode=0o755)
    for number in range(100):
        (repo / f"{number}").write_text(f"{number}")
    home = own_home / "store"
    with open_umask(), Session("s", agent=Worker(), workspace=repo, every="manual") as session:
        session.save()
        assert session.workspace is not None
        older = session.workspace.snapshot()
        (repo / "0").write_text("changed")
        session.save()
        with session.workspace.fork(tmp_path / "fork", tree=older, driver="copy"):
            open_to_others(home, own_home / "config")
        session.rollback()
        with ProcessPoolExecutor(1) as pool:
            outcome = explore(session, strategy, [{"n": 1}], executor=pool)
            assert [trial.error for trial in outcome.trials] == [None]
        session.manager.export_archive(tmp_path / "run.ckpt", "s")
    assert (home / "index").is_dir()
    assert stat.S_IMODE((tmp_path / "run.ckpt").stat().st_mode) == 0o600
    open_to_others(home, own_home / "config")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct", "served"])
def test_nothing_that_the_hook_and_the_command_write_is_open_to_others(
    tmp_path: Path, way: str
) -> None:
    with scene(tmp_path, way) as work, open_umask():
        with CheckpointManager(backend="sqlite", path=work.workspace / "data") as other:
            other.save("k", {})
        for number in range(3):
            (work.workspace / "src" / "app.py").write_text(str(number))
            work.tool(number)
        work.command("save")
        work.command("export", work.keys()[0], str(work.home / "archive"))
        assert work.log
        open_to_others(work.home, work.place / "home" / ".config")


def grepped(*places: Path) -> list[Path]:
    return [
        path
        for place in places
        for path in place.rglob("*")
        if SECRET in path.name or (path.is_file() and SECRET.encode() in path.read_bytes())
    ]


def test_after_a_purge_no_file_of_ours_has_the_secret(tmp_path: Path) -> None:
    with scene(tmp_path, "direct") as work:
        for number in range(100):
            (work.workspace / f"{number}").write_text(f"{number}")
        (work.workspace / f"{SECRET}.txt").write_text("the name tells it")
        (work.workspace / "settings").write_text(f"key = {SECRET}")
        (work.workspace / f"{SECRET}-store").mkdir()
        with CheckpointManager(backend="sqlite", path=work.workspace / f"{SECRET}-store") as other:
            other.save("k", {})
        work.tool(1)
        work.command("save")
        with work.manager() as manager, Workspace(work.workspace, manager.store) as ws:
            tree = ws.snapshot()
        places = (work.home, work.place / "home")
        kinds = {path.relative_to(work.home).parts[0] for path in grepped(work.home)}
        assert {"store", "index", "hook"} <= kinds
        for path in (f"{SECRET}.txt", "settings"):
            (work.workspace / path).unlink()
        done = subprocess.run(
            [sys.executable, "-m", "agent_checkpoint", "purge", "--yes"],
            input=SECRET,
            cwd=work.workspace,
            env=work.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert grepped(*places) == []
        with work.manager() as manager:
            assert manager.verify().ok
        assert tree.files > 100
