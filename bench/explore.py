"""Forks of a session with many files: sixteen at once, and what one costs with a long history.

The scale is what a fork costs that copies the files: `cp -a`, once.
"""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from agent_checkpoint import Session, explore
from agent_checkpoint.session.branch.session_fork import ForkPoint
from agent_checkpoint.session.session import create_branch, state_of
from agent_checkpoint.workspace.fork.drivers import end_fork
from agent_checkpoint.workspace.fork.isolated import IsolatedForks
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace
from bench.rows import Row
from bench.strategy import tell_time

FORKS = 16
FILES = 99_000
QUICK_FILES = 9_000
MESSAGES = (100, 10_000)
REPEATS = 9
TARGET_MS = 1000.0


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Fork a session in every way; the times in milliseconds."""
    files = QUICK_FILES if quick else FILES
    place = directory / "workspace"
    make_files(place, files)
    # Beside the files, for the forks to be on the same file system.
    with patch.dict(os.environ, {"AGENT_CHECKPOINT_HOME": str(directory / "home")}):
        found: dict[str, Any] = {"files": files}
        with Session("bench", workspace=place, store=directory / "store") as session:
            session.save()
            found["views_ms"] = _views(session)
            found["mounts_ms"] = _mounts(session)
            found["all_at_work_ms"] = _all_at_work(session)
            found["by_messages_ms"] = [_one(session, number) for number in MESSAGES]
        began = time.perf_counter()
        subprocess.run(["cp", "-a", place, directory / "copy"], check=True)
        found["copy_ms"] = _ms(began)
    return found


def rows(figures: dict[str, Any]) -> list[Row]:
    """The promise of sixteen forks, and what else there is to know."""
    files, copy = figures["files"], figures["copy_ms"]

    def row(what: str, ours: float, target: float | None = None) -> Row:
        return Row(
            id="forks",
            what=what,
            ours=ours,
            peer=copy,
            unit="ms",
            peer_name="one cp -a",
            target=target,
            absolute=True,
        )

    few, many = figures["by_messages_ms"]
    return [
        row(f"{FORKS} forks of {files:,} files, for processes", figures["views_ms"], TARGET_MS),
        row(f"{FORKS} forks of {files:,} files, mounted", figures["mounts_ms"], TARGET_MS),
        row(
            f"{FORKS} strategies in processes, until the last is called", figures["all_at_work_ms"]
        ),
        Row(
            id="forks",
            what=f"a fork with {MESSAGES[1]:,} messages",
            ours=many,
            peer=few,
            unit="ms",
            peer_name=f"with {MESSAGES[0]:,}",
        ),
    ]


def _moment(session: Session) -> tuple[ForkPoint, Workspace, Tree]:
    forking = ForkPoint(state_of(session), at=None, label="bench")
    if session.workspace is None or forking.tree is None:
        raise AssertionError("unreachable: the session has files")
    return forking, session.workspace, forking.tree


def _views(session: Session) -> float:
    """Prepare what sixteen processes need to have a view each."""
    _, workspace, tree = _moment(session)
    began = time.perf_counter()
    with workspace.hold(tree):
        stage = IsolatedForks(workspace.fork_origin, tree)
        places = [stage.fork()[0] for _ in range(FORKS)]
        taken = _ms(began)
        for one in places:
            end_fork(one)
        stage.close()
    return taken


def _mounts(session: Session) -> float:
    """Make sixteen forks that this process works in."""
    forking, workspace, tree = _moment(session)
    began = time.perf_counter()
    with workspace.hold(tree):
        branches = [create_branch(forking, f"mounted-{number}") for number in range(FORKS)]
        taken = _ms(began)
        for branch in branches:
            branch.close()
    return taken


def _all_at_work(session: Session) -> float:
    with ProcessPoolExecutor(FORKS) as pool:
        list(pool.map(_nothing, range(FORKS)))
        began = time.time()
        outcome = explore(session, tell_time, [{}] * FORKS, executor=pool)
    return 1000 * (max(trial.metrics["at"] for trial in outcome) - began)


def _one(session: Session, messages: int) -> float:
    """Make one fork of a session with so many messages, in the same files; several times."""
    session.messages.extend({"n": number} for number in range(len(session.messages), messages))
    session.save()
    forking, workspace, tree = _moment(session)
    taken = []
    with workspace.hold(tree):
        for number in range(REPEATS):
            began = time.perf_counter()
            branch = create_branch(forking, f"one-{messages}-{number}")
            taken.append(_ms(began))
            branch.close()
    return median(taken)


def _nothing(number: int) -> None:
    """Have a worker started."""


def _ms(began: float) -> float:
    return 1000 * (time.perf_counter() - began)


def make_files(workspace: Path, files: int) -> None:
    """Make small files, a hundred in a directory."""
    for folder in range(files // 100):
        place = workspace / f"part{folder // 25:02d}" / f"folder{folder:03d}"
        place.mkdir(parents=True)
        for number in range(100):
            (place / f"file{number:02d}.txt").write_text(f"{folder} {number}\n")
