"""Sides that take turns. Owns the worker processes; knows nothing of what they measure.

One process works at a time and the order changes every round, so that a busy moment of the machine
and a busy disk hit all sides alike. Only ratios within one run mean anything.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.sides import SideName

ROOT = Path(__file__).resolve().parent.parent


class Turns:
    """The worker processes of several sides."""

    def __init__(self, processes: dict[str, subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._rounds = 0

    def ask(
        self, name: str, do: str, *, limit: float | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """Let one side do one thing and return its answer, within `limit` seconds.

        Raises:
            RuntimeError: the process died; its traceback is on stderr.
            TimeoutError: it took longer than the limit, and was killed.
        """
        process = self._processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        process.stdin.flush()
        if limit is not None and not select.select([process.stdout], [], [], limit)[0]:
            process.kill()
            raise TimeoutError(f"stopped after {limit / 60:g} minutes")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"The side {name} died while asked to {do}.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask_all(
        self, do: str, only: Sequence[str] | None = None, **arguments: Any
    ) -> dict[str, dict[str, Any]]:
        """Let the sides do one thing in turn; another one begins each time."""
        names = list(self._processes if only is None else only)
        first = self._rounds % len(names)
        self._rounds += 1
        answers = {
            name: self.ask(name, do, **arguments) for name in [*names[first:], *names[:first]]
        }
        return {name: answers[name] for name in names}


def serve(worker: Any) -> int:
    """In a worker process: do what each line of the pipe asks, until it is closed."""
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(worker, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)
    return 0


@contextmanager
def taking_turns(
    sides: Sequence[SideName], kind: str, steps: int, directory: Path
) -> Iterator[Turns]:
    """Start a worker process for each side; they end with the block, and only by their pipe."""
    with ExitStack() as stack:
        processes = {}
        for side in sides:
            extra = "fast" if side.fast else "plain"
            place = str(directory / str(side))
            arguments = [side.side, extra, side.durability, kind, str(steps), place]
            processes[str(side)] = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.worker", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
        yield Turns(processes)
