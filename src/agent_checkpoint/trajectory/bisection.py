"""`bisect`: finds the step of a line after which a test fails. Owns the search.

Each probe tests the files of one checkpoint in isolation; the session and its directory are not
changed. Only the result is recorded in the store, for the web UI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.formatting import format_count, shell_quote
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.session.session_open import manager_for
from agent_checkpoint.session.steps.line import line_of, original
from agent_checkpoint.session.steps.step import Step, StepReader
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.store import Store
from agent_checkpoint.trajectory.file_history import FileHistory
from agent_checkpoint.trajectory.kept_diff import kept_diff
from agent_checkpoint.trajectory.probe_directory import ProbeBase, original_directory
from agent_checkpoint.trajectory.probes import BAD, GOOD, SKIP, Probe, Prober, Test
from agent_checkpoint.trajectory.run_log import BISECT, MOST_ITEMS, record_run
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES

if TYPE_CHECKING:
    from agent_checkpoint.store.store_argument import StoreLike
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff


@dataclass
class Bisection:
    """The result of `bisect`."""

    first_bad: str | None
    """The id of the first bad checkpoint; None if skipped checkpoints leave several candidates."""
    last_good: str
    """The id of the last checkpoint before it that has good files."""
    step: Step | None
    """The step that ends with the first bad checkpoint."""
    diff: WorkspaceDiff
    """The file changes of the step; of all candidates, if there are several."""
    tested: list[Probe]
    """The probes, in order."""
    candidates: list[str] = field(default_factory=list)
    """The ids of the checkpoints of which one is the first bad one."""
    non_monotonic: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of a bad checkpoint and a later good one."""
    not_recorded: str | None = None
    """Why the result was not recorded for the web UI; None if it was."""

    @property
    def flaky(self) -> list[Probe]:
        """The probes whose runs had different results."""
        return [probe for probe in self.tested if probe.is_flaky]

    @property
    def is_certain(self) -> bool:
        """Whether the test contradicted itself nowhere, and left one candidate."""
        return self.first_bad is not None and not self.flaky and not self.non_monotonic

    @property
    def certainty(self) -> str:
        """How certain the result is, in words."""
        runs = max(len(probe.runs) for probe in self.tested)
        words = [
            f"The test failed there and passed one step before, {format_count(runs, 'run')} each."
            if self.first_bad is not None
            else f"The test was skipped at {format_count(len(self.candidates) - 1, 'checkpoint')}: "
            f"the first bad step is one of {len(self.candidates)}."
        ]
        if runs == 1:
            words.append("Repeat the runs to notice a flaky test.")
        words += [
            f"The test is flaky: {probe.at} failed {probe.runs.count(BAD)} of {len(probe.runs)} "
            "runs on the same files."
            for probe in self.flaky
        ]
        words += [
            f"The results are not monotonic: {_at(bad)} is bad and the later {_at(good)} is good. "
            "There may be several bad steps; this is the first one found."
            for bad, good in self.non_monotonic
        ]
        return " ".join(words)


def bisect(
    key: str,
    test: Test,
    *,
    store: StoreLike | None = None,
    good: str | None = None,
    bad: str | None = None,
    repeats: int = 1,
    executor: ThreadPoolExecutor | None = None,
    jobs: int | None = None,
    setup: str | None = None,
    timeout: float | None = None,
    on_probe: Callable[[Probe], object] | None = None,
) -> Bisection:
    """Find the first checkpoint of a key at which a test fails, and the step that led to it.

    Both ends are tested first. The search follows the history of the bad end across forks, and not
    what a rollback passed over. A file has the time of the checkpoint that last changed it.

    Args:
        key: the key: a session, a coding agent's session, or a directory's own key.
        test: a command (exit status 0: good; 1 to 124: bad; 125: skip), as a string for the shell
            or a list of arguments; or a function of a `ProbeBranch` that returns True (good), False
            (bad) or None (skip).
        store: a path, a store URL, a Backend or a CheckpointManager.
        good: a checkpoint at which the test passes; by default, the first one.
        bad: a checkpoint at which it fails; by default, the last one.
        repeats: how many times the test runs on each checkpoint, to recognize a flaky test.
        executor: tests several checkpoints at once.
        jobs: how many; by default, the number of processors.
        setup: a command for the shell that runs before each test; if it fails, the test is skipped.
        timeout: seconds after which a command is killed, which ends the search.
        on_probe: called with each probe.

    Raises:
        InvalidInputError: the test passes at the bad end, fails at the good end, or could not run.
        NotFoundError: there is no such checkpoint.
        WorkspaceError: the files cannot be written.
        StorageError: the store failed.
    """
    _check(test, repeats, executor, jobs)
    manager, owns = manager_for(store, None, None)
    try:
        last = find(manager.store, key if bad is None else bad, base=key)
        line = line_of(manager.store, last)
        first = None if good is None else find(manager.store, good, base=key)
        chosen = _candidates(
            line, _position(manager.store, line, first), by_files=not callable(test)
        )
        directory = original_directory(manager.store, key)
        prober = Prober(
            manager, test, repeats=repeats, setup=setup, timeout=timeout, directory=directory
        )
        width = 1 if executor is None else jobs or os.cpu_count() or 1
        with ExitStack() as stack:
            history = FileHistory(manager.store, line)
            bases = [ProbeBase(history) for _ in range(min(width, max(len(chosen) - 1, 2)))]
            for base in bases:
                stack.callback(base.close)
            search = _Search(line, chosen, prober, bases, executor, on_probe)
            search.run()
        found = _result(manager.store, line, chosen, search)
        words = test if isinstance(test, str) else _test_words(test)
        found.not_recorded = record_run(manager, key, BISECT, _record(found, words, line[-1].id))
        return found
    finally:
        if owns:
            manager.close()


def _check(test: object, repeats: object, executor: object, jobs: object) -> None:
    is_list = isinstance(test, (list, tuple)) and all(isinstance(word, str) for word in test)
    if not callable(test) and not (test and (isinstance(test, str) or is_list)):
        raise InvalidInputError(f"test must be a command or a function, not {short_repr(test)}.")
    for name, number in (("repeats", repeats), ("jobs", 1 if jobs is None else jobs)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidInputError(f"{name} must be a number from 1, not {short_repr(number)}.")
    if executor is not None and not isinstance(executor, ThreadPoolExecutor):
        raise InvalidInputError(
            f"executor must be a ThreadPoolExecutor, not {short_repr(executor)}. Test commands run "
            "in processes of their own."
        )


def _position(store: Store, line: list[Checkpoint], wanted: Checkpoint | None) -> int:
    """Return the position of the good end in the line."""
    if wanted is None:
        return 0
    name = original(store, wanted).id
    found = [index for index, checkpoint in enumerate(line) if checkpoint.id in (name, wanted.id)]
    if not found:
        bad = line[-1].id
        if any(checkpoint.id == bad for checkpoint in line_of(store, wanted)):
            raise InvalidInputError(
                f"The good end {wanted.id} comes after the bad end {bad}. Choose an earlier one."
            )
        raise InvalidInputError(
            f"{wanted.id} is not in the history of {line[-1].id}: a rollback passed over it, or it "
            "belongs to another key."
        )
    return found[0]


def _candidates(line: list[Checkpoint], start: int, *, by_files: bool) -> list[int]:
    """Return the positions to search: the first of each run of checkpoints with equal files."""
    found: list[int] = []
    for index in range(start, len(line)):
        parts = line[index].parts
        if FILES in parts and not (
            by_files and found and line[found[-1]].parts[FILES] == parts[FILES]
        ):
            found.append(index)
    if len(found) < 2:
        raise InvalidInputError(
            f"{line[-1].id} has no earlier checkpoint with other files to compare with."
        )
    return found


class _Search:
    """The search for the first bad one of some positions; of these, the first is good."""

    def __init__(
        self,
        line: list[Checkpoint],
        chosen: list[int],
        prober: Prober,
        bases: list[ProbeBase],
        executor: ThreadPoolExecutor | None,
        on_probe: Callable[[Probe], object] | None,
    ) -> None:
        self._line = line
        self._chosen = chosen
        self._prober = prober
        self._bases = bases
        self._executor = executor
        self._on_probe = on_probe
        self.found: dict[int, Probe] = {}
        """The probes by number."""
        self.good, self.bad = 0, len(chosen) - 1

    def run(self) -> None:
        """Narrow down until nothing is left to test. Raises InvalidInputError."""
        self._test([self.bad, self.good] if len(self._bases) > 1 else [self.bad])
        self._check_end(self.bad, BAD, "bad", "passes")
        if self.good not in self.found:
            self._test([self.good])
        self._check_end(self.good, GOOD, "good", "fails")
        while True:
            left = [n for n in range(self.good + 1, self.bad) if n not in self.found]
            if not left:
                return
            width = len(self._bases)
            marks = [len(left) * (number + 1) // (width + 1) for number in range(width)]
            self._test(sorted({left[mark] for mark in marks}))
            self.bad = min(n for n in self._numbers(BAD) if n > self.good)
            self.good = max(n for n in self._numbers(GOOD) if n < self.bad)

    def _numbers(self, verdict: str) -> Iterator[int]:
        return (number for number, probe in self.found.items() if probe.verdict == verdict)

    def contradictions(self) -> list[tuple[str, str]]:
        """Return the bad checkpoints with the first later good one."""
        return [
            (self.found[bad].checkpoint, self.found[later[0]].checkpoint)
            for bad in sorted(self._numbers(BAD))
            if (later := sorted(good for good in self._numbers(GOOD) if good > bad))
        ]

    def _test(self, numbers: list[int]) -> None:
        probes: Iterable[Probe]
        if self._executor is None:
            probes = (self._probe(number, self._bases[0]) for number in numbers)
        else:
            futures = [
                self._executor.submit(self._probe, number, base)
                for number, base in zip(numbers, self._bases)
            ]
            try:
                for future in futures:
                    future.exception()  # wait for all: their directories are removed afterwards
            finally:
                for future in futures:
                    future.cancel()
            probes = (future.result() for future in futures)
        for number, probe in zip(numbers, probes):
            self.found[number] = probe
            if self._on_probe is not None:
                self._on_probe(probe)

    def _probe(self, number: int, base: ProbeBase) -> Probe:
        index = self._chosen[number]
        return self._prober.run(base, index, self._line[index])

    def _check_end(self, number: int, wanted: str, name: str, does: str) -> None:
        probe = self.found[number]
        if probe.verdict == wanted:
            return
        output = f"\n{probe.output}" if probe.output else ""
        if probe.is_flaky:
            raise InvalidInputError(
                f"The test is flaky: at the {name} end, {probe.checkpoint}, it failed "
                f"{probe.runs.count(BAD)} of {len(probe.runs)} runs on the same files. Make it "
                f"deterministic, or choose another {name} end.{output}"
            )
        does = "was skipped" if probe.verdict == SKIP else does
        raise InvalidInputError(
            f"The test {does} at the {name} end, {probe.checkpoint}. Choose another {name} end, "
            f"with {name}= or --{name}.{output}"
        )


def _result(store: Store, line: list[Checkpoint], chosen: list[int], search: _Search) -> Bisection:
    bad, is_exact = chosen[search.bad], search.bad - search.good == 1
    # Between the last good files and the first bad ones there may be checkpoints with equal files.
    with_files = [index for index in range(bad) if FILES in line[index].parts]
    before = line[with_files[-1] if is_exact else chosen[search.good]]
    step = StepReader(store).step(before, line[bad]) if is_exact else None
    return Bisection(
        line[bad].id if is_exact else None,
        before.id,
        step,
        kept_diff(store, before, line[bad]),
        list(search.found.values()),
        [line[chosen[number]].id for number in range(search.good + 1, search.bad + 1)],
        search.contradictions(),
    )


def _test_words(test: Any) -> str:
    if callable(test):
        return str(getattr(test, "__name__", type(test).__name__))
    return " ".join(map(shell_quote, test))


def _record(found: Bisection, test: str, end: str) -> dict[str, Any]:
    """Return what is recorded: the probes, without most of their output."""
    ends = (found.first_bad, found.last_good)
    return {
        "test": test[:2000],
        "end": end,
        "first_bad": found.first_bad,
        "last_good": found.last_good,
        "candidates": found.candidates[:MOST_ITEMS],
        "is_certain": found.is_certain,
        "certainty": found.certainty,
        "tested": [
            {
                "checkpoint": probe.checkpoint,
                "verdict": probe.verdict,
                "runs": list(probe.runs),
                "seconds": probe.seconds,
                "output": probe.output if probe.checkpoint in ends else "",
            }
            for probe in found.tested[:MOST_ITEMS]
        ],
    }


def _at(name: str) -> str:
    return f"@{name.rpartition('-')[2]}"
