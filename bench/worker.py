"""One side in a process of its own: reads a command a line, answers with a line of JSON.

    python -m bench.worker SIDE {fast|plain} {FULL|NORMAL} {varied|noise} STEPS DIRECTORY

Times are wall nanoseconds of the work alone; nothing is written to the pipe while a clock runs.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import timed
from bench.sides import FAST_MODULES, Side, pragmas
from bench.texts import Message, conversation
from bench.turns import serve

TRIMMED = 10  # messages at a time
RESERVE = ".reserve"  # room that our store keeps back for a full disk
KEPT = 100  # messages that are never trimmed or edited


def make_side(name: str, path: Path, durability: str) -> Side:
    """The side of this name; imports only what it needs."""
    if name == "langgraph":
        from bench.peers import LangGraph

        return LangGraph(path, durability)
    from bench.ours import Ours, OursWithLog, OursWithPart

    return {"list": Ours, "log": OursWithLog, "part": OursWithPart}[name](path, durability)


class Worker:
    """Does to one side what it is told, and says how long it took."""

    def __init__(self, side: Side, messages: list[Message]) -> None:
        self.side = side
        self.input = messages
        self.forks = 0

    def open(self) -> dict[str, Any]:
        """Open the store."""
        self.side.open()
        return {}

    def close(self) -> dict[str, Any]:
        """Close the store."""
        self.side.close()
        reserve = self.side.path / RESERVE
        kept_back = reserve.stat().st_size if reserve.exists() else 0
        return {"bytes": _size(self.side.path), "kept_back": kept_back}

    def resume(self) -> dict[str, Any]:
        """Make the latest checkpoint the live conversation."""
        self.side.resume()
        return {}

    def steps(self, start: int, stop: int) -> dict[str, Any]:
        """Append and save these messages; the time of each, and of the processor for all."""
        # A copy: no side may gain from messages that another part of this process holds.
        messages = [dict(message) for message in self.input[start:stop]]
        gc.collect()
        before = time.process_time_ns()
        times = [timed(partial(self.side.append_and_save, message)) for message in messages]
        spent = time.process_time_ns() - before
        return {
            "ns": times,
            "cpu_ns": spent,
            "bytes": _size(self.side.path),
            "pragmas": pragmas(),
            "accelerators": [name for name in FAST_MODULES if sys.modules.get(name)],
        }

    def load(self, how: str) -> dict[str, Any]:
        """Load the latest checkpoint, `again`, `first` or `fresh`: see `conversation.py`."""
        if how != "again":
            self.side.close()
        if how == "first":
            self.side.open()
            self.side.touch()
        gc.collect()
        loaded: list[Message] = []

        def work() -> None:
            if how == "fresh":
                self.side.open()
            loaded.extend(self.side.load())
            for message in loaded:
                len(message["content"])

        nanoseconds = timed(work)
        assert loaded == self.input, "what was loaded is not what was saved"
        return {"ns": nanoseconds}

    def floor(self) -> dict[str, Any]:
        """Do the least that a verified load must: `Ours.floor`."""
        side: Any = self.side
        nanoseconds, loaded = _timed_load(side.floor())
        assert len(loaded) == len(self.input), "the floor has not read every message"
        return {"ns": nanoseconds}

    def straight(self) -> dict[str, Any]:
        """Load without the library: `Ours.straight`."""
        side: Any = self.side
        nanoseconds, loaded = _timed_load(side.straight())
        assert loaded == self.input, "what the floor has loaded is not what was saved"
        return {"ns": nanoseconds}

    def unchanged(self) -> dict[str, Any]:
        """Save a conversation in which nothing changed."""
        return self._written(self.side.save)

    def fork(self) -> dict[str, Any]:
        """Fork the conversation."""
        self.forks += 1
        return self._written(lambda: self.side.fork(f"fork-{self.forks}"))

    def trim(self) -> dict[str, Any]:
        """Drop messages from the front, and save."""
        del self.side.messages[:TRIMMED]
        return self._written(self.side.save)

    def edit(self, where: float) -> dict[str, Any]:
        """Replace a message in the middle, and save."""
        messages = self.side.messages
        index = KEPT + int(where * (len(messages) - 2 * KEPT))
        messages[index] = {**messages[index], "content": messages[index]["content"][::-1]}
        return self._written(self.side.save)

    def _written(self, work: Callable[[], None]) -> dict[str, Any]:
        gc.collect()
        before = _bytes_written()
        nanoseconds = timed(work)
        after = _bytes_written()
        return {"ns": nanoseconds, "written": None if after is None else after - (before or 0)}


def _timed_load(work: Callable[[], list[Message]]) -> tuple[int, list[Message]]:
    gc.collect()
    loaded: list[Message] = []
    return timed(lambda: loaded.extend(work())), loaded


def _size(path: Path) -> int:
    """The bytes of all files below the path."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _bytes_written() -> int | None:
    """How many bytes this process has handed to the system so far; None where that is not told."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in lines)["wchar"])


def main() -> int:
    """Serve until the pipe is closed."""
    side, extra, durability, kind, steps, directory = sys.argv[1:]
    if extra == "plain":
        for module in FAST_MODULES:
            sys.modules[module] = None  # type: ignore[assignment]
    messages = conversation(kind, int(steps))
    return serve(Worker(make_side(side, Path(directory), durability), messages))


if __name__ == "__main__":
    sys.exit(main())
