"""P17: the most memory that a process needs for large work.

Each figure is the peak resident size of a process that does only that work (`VmHWM` of Linux), less
what it has after its imports, and for a save after its messages are made. The reader processes of a
first snapshot have a row of their own, the largest of them. Files are synthetic: 100 in a
directory, of 2 kB each.

    python -m bench.memory WORK DIRECTORY SIZE     does one work and prints its figures
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.manager.checkpoint_parts import capture
from agent_checkpoint.records import Draft
from bench.rows import Row

KEY = "bench"
BLOB = 4 << 20
MOST = 300e6
MOST_STATES = 4.0
SIZES = {"snapshot": 97_000, "save": 10_000, "load": 10_000, "gc": 1 << 30, "page": 100_000}
QUICK = {"snapshot": 5_000, "save": 10_000, "load": 10_000, "gc": 100 << 20, "page": 2_000}
"""Files, messages, messages, bytes and checkpoints."""


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Make what is needed, and do each work in a process."""
    sizes = QUICK if quick else SIZES
    figures: dict[str, Any] = {}
    _make_files(directory / "files", sizes["snapshot"])
    _fill_pages(directory / "page", sizes["page"])
    for work in ("snapshot", "save", "load", "fill", "verify", "gc", "page"):
        size = sizes["gc" if work in ("fill", "verify") else work]
        command = [sys.executable, "-m", "bench.memory", work, str(directory), str(size)]
        home = {**os.environ, "AGENT_CHECKPOINT_HOME": str(directory / "home")}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=home)
        figures[work] = {"size": size, **json.loads(done.stdout)}
    return figures


def rows(figures: dict[str, Any]) -> list[Row]:
    """The targets, and what else there is to know."""

    def row(work: str, what: str, target: float | None, figure: str = "peak") -> Row:
        return Row(
            id="P17",
            what=f"peak memory: {what}",
            ours=figures[work][figure],
            peer=figures[work]["before"],
            unit="B",
            peer_name="imported",
            target=target,
            absolute=True,
        )

    state = figures["load"]["state"]
    files, messages = figures["snapshot"]["size"], figures["load"]["size"]
    megabytes, checkpoints = figures["gc"]["size"] >> 20, figures["page"]["size"]
    return [
        row("snapshot", f"first snapshot of {files:,} files", MOST),
        row("snapshot", "one of its reader processes", MOST, "reader"),
        row("save", f"save of {messages:,} messages", None),
        row("load", f"load of {messages:,} messages", MOST_STATES * state),
        row("gc", f"gc of a store of {megabytes:,} MB", MOST),
        row("verify", f"verify of a store of {megabytes:,} MB", MOST),
        row("page", f"timeline of {checkpoints:,} checkpoints", MOST),
    ]


# -- the work, in a process ------------------------------------------------------------------------


def _snapshot(directory: Path, size: int) -> dict[str, Any]:
    with Workspace(directory / "files", directory / "first") as workspace:
        assert workspace.snapshot().files == size
    return {"reader": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}


def _save(directory: Path, size: int) -> dict[str, Any]:
    chance = random.Random(size)
    messages = [
        {"role": "user", "content": chance.randbytes(500).hex(), "n": number}
        for number in range(size)
    ]
    before = _resident("VmRSS")
    with CheckpointManager(directory / "messages") as manager:
        manager.save(KEY, {"messages": messages})
    return {"before": before, "peak": _resident("VmHWM") - before}


def _load(directory: Path, size: int) -> dict[str, Any]:
    before = _resident("VmRSS")
    with CheckpointManager(directory / "messages") as manager:
        state: dict[str, Any] = {}
        manager.load(KEY, state)
    peak = _resident("VmHWM") - before
    assert len(state["messages"]) == size
    return {"before": before, "peak": peak, "state": len(json.dumps(state))}


def _fill(directory: Path, size: int) -> dict[str, Any]:
    with CheckpointManager(directory / "blobs") as manager:
        for number in range(size // BLOB):
            manager.save(f"{KEY}-{number % 2}", {"data": os.urandom(BLOB)})
    return {}


def _gc(directory: Path, size: int) -> dict[str, Any]:
    with CheckpointManager(directory / "blobs") as manager:
        manager.delete(f"{KEY}-1")
        manager.gc()
    return {}


def _verify(directory: Path, size: int) -> dict[str, Any]:
    with CheckpointManager(directory / "blobs") as manager:
        assert manager.verify().ok
    return {}


def _page(directory: Path, size: int) -> dict[str, Any]:
    from starlette.requests import Request

    from agent_checkpoint.web.app import GET_ROUTES
    from agent_checkpoint.web.auth import Auth
    from agent_checkpoint.web.rendering import Site

    with CheckpointManager(directory / "page") as manager:
        site = Site(manager, Auth(port=8421), read_only=True, masked=True)
        scope = {"type": "http", "method": "GET", "path": "/timeline", "headers": []}
        for path, query in (("/", b""), ("/timeline", b"key=" + KEY.encode())):
            answer = GET_ROUTES[path](site, Request({**scope, "path": path, "query_string": query}))
            assert answer.status_code == 200
    return {}


_WORK: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "snapshot": _snapshot,
    "save": _save,
    "load": _load,
    "fill": _fill,
    "gc": _gc,
    "verify": _verify,
    "page": _page,
}


def _resident(which: str) -> int:
    """The resident size of this process, `VmRSS`, or its peak, `VmHWM`, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == which:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"The system does not tell {which}.")


def _make_files(root: Path, files: int) -> None:
    chance = random.Random(files)
    for number in range(files):
        folder = root / f"{number // 10_000}" / f"{number // 100}"
        if number % 100 == 0:
            folder.mkdir(parents=True)
        (folder / f"{number}.txt").write_bytes(chance.randbytes(1000) + bytes(1000))


def _fill_pages(store: Path, checkpoints: int) -> None:
    with CheckpointManager(SQLiteBackend(store, durability="fast")) as manager:
        parents: tuple[str, ...] = ()
        for number in range(checkpoints):
            parts = capture({"step": number, "task": "a small state"})
            parents = (manager.store.write(Draft(KEY, parts), parents=parents).id,)


def main() -> int:
    """Do one work."""
    work, directory, size = sys.argv[1:]
    before = _resident("VmRSS")
    found = _WORK[work](Path(directory), int(size))
    print(json.dumps({"before": before, "peak": _resident("VmHWM") - before, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
