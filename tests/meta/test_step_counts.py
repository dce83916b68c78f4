"""How often each operation scans, plans, commits, reads the ledger and asks for objects.

The numbers are what the operation needs. A change that adds a step has to say so here.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    Session,
    Workspace,
    explore,
    tool,
)
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.cli.main import main
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.workspace.restore.plan import Planner
from agent_checkpoint.workspace.scan.scanner import Scanner

FILES = 200


class StepAgent(Checkpointable):
    def __init__(self) -> None:
        self.step = 0


@tool(effect="irreversible")
def send_mail(to: str) -> str:
    return to


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return a counter of steps, of whichever store they concern."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, note: Callable[..., None]) -> None:
        real = getattr(owner, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            note(*args, **options)
            return real(self, *args, **options)

        monkeypatch.setattr(owner, name, call)

    def note_append(*args: Any, requires: Collection[str] = (), **options: Any) -> None:
        counts["commits"] += 1
        counts["objects asked for"] += len(requires)

    def note_read(stream: str, *args: Any, **options: Any) -> None:
        counts["ledger reads" if stream.startswith(PREFIX) else "stream reads"] += 1

    def note_missing(ids: Collection[str]) -> None:
        counts["objects asked for"] += len(ids)

    count(SQLiteBackend, "append", note_append)
    count(SQLiteBackend, "read", note_read)
    count(SQLiteBackend, "missing_objects", note_missing)
    count(Scanner, "scan", lambda *args, **options: counts.update(scans=1))
    count(Planner, "plan", lambda *args, **options: counts.update(plans=1))
    return counts


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a directory with many files."""
    work = tmp_path / "work"
    work.mkdir()
    for number in range(FILES):
        (work / f"file-{number}").write_text(str(number))
    return work


def steps(counts: Counter[str]) -> dict[str, int]:
    return {name: number for name, number in sorted(counts.items()) if number}


def test_save(counts: Counter[str], tmp_path: Path) -> None:
    agent = StepAgent()
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        manager.save("key", agent)
        agent.step = 1
        counts.clear()
        manager.save("key", agent)
    assert steps(counts) == {"commits": 1, "stream reads": 1}


def test_snapshot_in_a_new_process(counts: Counter[str], tmp_path: Path, work: Path) -> None:
    with Workspace(work, tmp_path / "store") as workspace:
        workspace.snapshot()
    (work / "file-1").write_text("changed")
    with Workspace(work, tmp_path / "store") as workspace:
        counts.clear()
        workspace.snapshot()
    # Once for each file that it shares; later saves trust the last checkpoint.
    assert counts.pop("objects asked for") < FILES
    assert steps(counts) == {"commits": 1, "scans": 1, "stream reads": 3}


def test_rollback_with_files(counts: Counter[str], tmp_path: Path, work: Path) -> None:
    with Session("job", agent=StepAgent(), workspace=work, store=tmp_path / "store") as session:
        session.save()
        (work / "file-1").write_text("changed")
        session.save()
        counts.clear()
        session.rollback()
        assert steps(counts) == {
            "commits": 3,
            "ledger reads": 4,
            "objects asked for": 3,
            "plans": 2,
            "scans": 2,
            "stream reads": 4,
        }


def test_irreversible_call(counts: Counter[str], tmp_path: Path, work: Path) -> None:
    with Session("job", agent=StepAgent(), workspace=work, store=tmp_path / "store"):
        send_mail("ann")
        counts.clear()
        send_mail("bob")
        assert steps(counts) == {
            "commits": 3,
            "ledger reads": 1,
            "objects asked for": 1,
            "scans": 2,  # before the call and after it
        }


def test_restore_command(
    counts: Counter[str], tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "store"))
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["save"]) == 0
        (work / "file-1").write_text("changed")
        assert main(["save"]) == 0
        counts.clear()
        assert main(["restore", "@1", "--yes"]) == 0
    # The process is new: the safety checkpoint asks for each file once.
    assert counts.pop("objects asked for") < 2 * FILES
    assert steps(counts) == {"commits": 2, "plans": 3, "scans": 3, "stream reads": 14}


def test_explore(counts: Counter[str], tmp_path: Path, work: Path) -> None:
    with Session("job", agent=StepAgent(), workspace=work, store=tmp_path / "store") as session:
        session.save()
        counts.clear()
        explore(session, _strategy, [{"number": 1}, {"number": 2}])
        assert steps(counts) == {
            "commits": 11,
            "ledger reads": 2,
            "objects asked for": 9,
            "scans": 8,
            "stream reads": 9,
        }


def _strategy(session: Session, number: int) -> float:
    return number
