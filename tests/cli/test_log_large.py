"""A log of many checkpoints, and of many branches: what is not shown is not read."""

import time
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, MemoryBackend
from agent_checkpoint.present.fork_points import Fork, find_forks, origin_of
from agent_checkpoint.records import Entry
from tests.cli.world import opened, run


class Counting(MemoryBackend):
    """Counts the entries that were read."""

    entries = 0

    def read(self, stream: str, **which: Any) -> "list[Entry]":
        found = super().read(stream, **which)
        self.entries += len(found)
        return found


def test_forks_are_found_without_reading_histories() -> None:
    backend = Counting()
    manager = CheckpointManager(backend=backend)
    for number in range(300):
        manager.save("run", {"n": number})
    manager.fork("run", "try", "run@7")
    for number in range(300):
        manager.save("try", {"n": number})
    backend.entries = 0
    assert find_forks(manager.store) == {"run": [Fork(7, "try")]}
    assert backend.entries <= 6


def test_a_fork_whose_beginning_was_pruned_is_still_one(session: Path) -> None:
    assert run("fork", "fix", "try", "--at", "@5", "--into", session.parent / "try").status == 0
    assert run("prune", "try", "--keep-latest", 1, "--yes").status == 0
    with opened() as manager:
        origin = origin_of(manager.store, "try")
    assert origin is not None
    assert (origin.key, origin.seq) == ("fix", 5)


@pytest.mark.slow
def test_ten_thousand_checkpoints(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'store'}?durability=fast"
    with CheckpointManager(store) as manager:
        for number in range(10_000):
            manager.save("run", {"n": number}, label=f"step {number}")
        manager.fork("run", "try", "run@5000")
    began = time.process_time()
    shown = run("--store", store, "log", "run")
    short = time.process_time() - began
    assert shown.out.count("\n") <= 25
    assert short < 1.0
    began = time.process_time()
    shown = run("--store", store, "log", "run", "--all")
    assert shown.out.count("\n") == 10_002
    assert "├─╯" in shown.out
    assert time.process_time() - began < 10.0


def test_many_branches_are_named_and_not_drawn() -> None:
    with opened() as manager:
        manager.save("run", {"n": 1})
        for number in range(40):
            manager.fork("run", f"try-{number}")
    shown = run("log", "run").out
    assert shown.count("fork of run@1") == 7
    assert shown.count("Also forked at @1") == 33
    assert len(run("log", "run", "--json").data["branches"]) == 40
    assert "try-" not in run("log", "run", "--no-branches").out


def test_a_pruned_parent_breaks_nothing() -> None:
    with opened() as manager:
        for number in range(6):
            manager.save("run", {"n": number})
        for number in (2, 4):
            manager.delete("run", f"run@{number}")
    lines = run("log", "run").out.splitlines()
    assert [line.split()[:2] for line in lines] == [["●", f"@{n}"] for n in (6, 5, 3, 1)]


def test_a_clock_that_goes_backwards_breaks_nothing() -> None:
    from unittest import mock

    with opened() as manager:
        manager.save("run", {"n": 1})
        with mock.patch("time.time_ns", return_value=1):
            manager.fork("run", "try")
            manager.save("run", {"n": 2})
    assert run("log", "run", "--all").status == 0
    assert run("log", "try").status == 0


def test_a_line_that_goes_on_below_is_not_joined_to_what_it_passes(session: Path) -> None:
    assert run("rollback", "fix", "--to", "@5", "--yes").status == 0
    lines = run("log", "fix", "-n", 3).out.splitlines()
    assert lines[0].startswith("↶ @")
    assert [line[:3] for line in lines[1:3]] == ["│ ·", "│ ●"]
