"""One directory, a store of every side, and the times so far. Knows how sides take turns, and not
what is measured.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.aside import set_aside
from bench.figures import median_ms, summary_ms, timed
from bench.turns import ROOT, Turns
from bench.workspaces import library_peers
from bench.workspaces.checkouts import Checkout
from bench.workspaces.peers import ShadowGit, missing

WARM_UP = "warm-up"
"""Work whose times do not count."""


@dataclass(frozen=True)
class Taken:
    """How long a piece of work took, and for how long processors worked on it."""

    ns: int
    cpu_ns: int


Sides = dict[str, Callable[[], Taken]]
"""What each side does; the answer is the time of that part of it which counts."""


@dataclass(frozen=True)
class Rounds:
    """How often each thing is done."""

    first: int
    few: int
    """Of what takes long, and is there for information."""
    watching: int
    process: int
    undo: int
    overlay: int
    copy: int
    extras: bool
    """Also what takes longest, and is there for information."""


class Stage:
    """Where the sides take turns."""

    def __init__(self, checkout: Checkout, rounds: Rounds, place: Path) -> None:
        self.checkout = checkout
        self.rounds = rounds
        self.place = place
        self.home = place / "ours"
        """What `AGENT_CHECKPOINT_HOME` is for us: the store and the index are below."""
        self.git = ShadowGit(place / "git", checkout.path)
        self.times: dict[str, dict[str, list[Taken]]] = {}
        self.parts: dict[str, dict[str, list[int]]] = {}
        """The nanoseconds of each part of ours, by work."""
        self.stored: dict[str, int] = {}
        self.pragmas: list[str] = []
        self.first_tree = ""
        """The id of the last first snapshot of ours, until a file is changed."""
        self.accelerators: dict[str, list[str]] = {}
        self.absent: dict[str, str] = missing() | library_peers.missing()
        """Why a side has no figures, or a kind of work no figures of ours."""
        self._changes = 0

    @property
    def has_git(self) -> bool:
        """Whether there is a git to measure against."""
        return "git" not in self.absent

    def change(self) -> tuple[Path, bytes]:
        """Add a line to a source file, another one each time; which one, and what it was before."""
        self._changes += 1
        self.first_tree = ""
        path = self.checkout.path / self.checkout.source(self._changes)
        before = path.read_bytes()
        path.write_bytes(before + f"# change {self._changes}\n".encode())
        return path, before

    def present(self, ours: Callable[[], Taken], git: Callable[[], Taken]) -> Sides:
        """The two that nearly everything is measured with, if they are here."""
        sides = {"ours": ours, "git": git}
        return {name: work for name, work in sides.items() if name not in self.absent}

    def take_turns(self, work: str, turn: int, sides: Sides) -> None:
        """Let each side do the work once and note its time; another one begins each turn."""
        names = list(sides)
        first = turn % max(1, len(names))
        for name in [*names[first:], *names[:first]]:
            self.note(work, name, sides[name]())

    def note(self, work: str, side: str, taken: Taken) -> None:
        """Remember one time."""
        if work != WARM_UP:
            self.times.setdefault(work, {}).setdefault(side, []).append(taken)

    def note_parts(self, work: str, taken: dict[str, int]) -> None:
        """Remember what the parts of a work took."""
        parts = self.parts.setdefault(work, {})
        for part, nanoseconds in taken.items():
            parts.setdefault(part, []).append(nanoseconds)

    @contextmanager
    def worker(self, extra: str, home: Path) -> Iterator[Turns]:
        """A process of ours called `ours`, with all that it keeps below `home`; see `worker.py`."""
        arguments = [extra, str(self.checkout.path), str(store_of(home))]
        with self._process("ours", "bench.workspaces.worker", arguments, home) as worker:
            yield worker

    @contextmanager
    def library_peer(self, name: str) -> Iterator[Turns]:
        """The process of a peer that is a library; see `library_peers.py`."""
        arguments = [name, str(self.checkout.path), str(self.place / name)]
        with self._process(name, "bench.workspaces.library_peers", arguments, self.home) as peer:
            yield peer

    @contextmanager
    def floor(self) -> Iterator[Turns]:
        """A process called `floor` with a new database; see `floors.py`."""
        database = self.place / "floor" / "rows.db"
        set_aside(database.parent)
        database.parent.mkdir()
        arguments = [str(self.checkout.path), str(database)]
        with self._process("floor", "bench.workspaces.floors", arguments, self.home) as floor:
            yield floor

    @contextmanager
    def _process(self, name: str, module: str, arguments: list[str], home: Path) -> Iterator[Turns]:
        with ExitStack() as stack:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    env=environment_of(home),
                )
            )
            yield Turns({name: process})

    def figures(self) -> dict[str, Any]:
        """All that was measured, for a program."""
        return {
            "files": len(self.checkout.files),
            "directories": self.checkout.directories,
            "raw_bytes": self.checkout.bytes,
            "absent": self.absent,
            "pragmas": self.pragmas,
            "accelerators": self.accelerators,
            "stored_bytes": self.stored,
            "parts_ms": {
                work: {part: median_ms(taken) for part, taken in parts.items()}
                for work, parts in self.parts.items()
            },
            "work": {
                work: {side: _summary(taken) for side, taken in sides.items()}
                for work, sides in self.times.items()
            },
        }


def processes(work: Callable[[], Any]) -> Taken:
    """The time of work that is done by processes which end within it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    nanoseconds = timed(work)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Taken(nanoseconds, round(seconds * 1e9))


def told(answer: dict[str, Any]) -> Taken:
    """The time that our worker tells of its work."""
    return Taken(answer["ns"], answer["cpu_ns"])


def store_of(home: Path) -> Path:
    """Where our store is."""
    return home / "store"


def environment_of(home: Path) -> dict[str, str]:
    """The environment of a process of ours: all that it keeps is below `home`.

    Python finds its modules compiled, as it does those of an installed package, from the second
    process on: beside `home`, whatever the environment says about writing them.
    """
    environment = {**os.environ, "AGENT_CHECKPOINT_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(home.with_name("compiled"))
    return environment


def disk_usage(path: Path) -> int:
    """The bytes that the disk gives away for everything below the path, as `du` counts."""
    os.sync()
    return sum(place.lstat().st_blocks * 512 for place in (path, *path.rglob("*")))


def unmount_below(place: Path) -> None:
    """Take away the mounts that a failed run has left: deleting must not go through them."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():  # not Linux
        return
    for line in mounts.read_text(encoding="utf-8").splitlines():
        at = line.split()[1]
        if at.startswith(f"{place}/"):
            subprocess.run(["umount", "--lazy", at], check=True)


def _summary(taken: list[Taken]) -> dict[str, Any]:
    times = [each.ns for each in taken]
    return {
        "taken_ns": times,
        "ms": summary_ms(times),
        "cpu_ms": median_ms([each.cpu_ns for each in taken]),
    }
