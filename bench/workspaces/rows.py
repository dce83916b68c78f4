"""The rows of P1 to P5 and P14, and what lies behind them. Measures nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.figures import Times
from bench.rows import Row
from bench.table import quantity
from bench.workspaces.peers import SYNCS

SUBJECTS = ("P1", "P2", "P3", "P4", "P5", "P14")
MOST_OVERLAY_MS = 20
SERVED = 5.0
"""How much more a snapshot of a new process may take, beside a daemon, than one that watches."""
FLAT = 2.0
"""How much more a snapshot may take in a directory of many files, for `flat`: as in P10."""
COPY = "least"
"""The figure of copies: the disk makes some runs of each side up to ten times as long."""
OURS = "FULL"
SCRATCH = "scratch"
"""Of forks: nobody promises to keep them."""
PEERS = {
    "git": "git",
    "git-synced": "git, fsync=all",
    "git-packed": "git after gc",
    "git-worktree": "git worktree",
    "restic": "restic",
    "borg": "borg",
    "cp": "cp -a",
    "git-watched": "git, Watchman",
    "processfork": "ProcessFork",
    "agentfs": "AgentFS",
    "floor": "floor",
    "floor-whole": "watch, list, read, hash, pack, directories, all rows",
    "floor-format": "straight-line: events, file, objects of the format, one commit",
    "floor-guarded": "straight-line: the same, with the checks and locks of a save",
    "floor-backend": "straight-line: the same checks, stored by our SQLite backend",
    "floor-modules": "Python: modules of the standard library, lstat of known paths, one commit",
    "floor-own": "Python: all modules that ours loads, lstat of known paths, one commit",
    "floor-first": "straight-line: the same tree, with the guarantees of a snapshot",
    "floor-first-plain": "straight-line: the same tree, packed by zlib",
    "floor-first-backend": "straight-line: the same tree, stored by our SQLite backend",
}
FLOORS = {
    "first": "read, hash and pack all, one commit",
    "watching": "read and hash one file, one commit",
    "changed": "bare Python, lstat of known paths, one commit",
    "copy": "straight-line: make and fill known files, on all cores",
    "served": "ask, hash blocks of the index and one file, one commit",
}
SIDES = {"ours": "ours, fast", "ours-plain": "ours, plain", "ours with .git": "ours, .git too"}
WORK = {
    "first": "first snapshot",
    "first with .git": "first snapshot, .git too",
    "watching": "1 changed, watching",
    "changed": "1 changed, new process",
    "same": "0 changed, new process",
    "served": "1 changed, the call in a new process, daemon",
    "served process": "1 changed, new process, daemon",
    "undo": "undo 1 change, watching",
    "hold": "hold()",
    "overlay": "fork, overlay, after hold()",
    "close": "close() of the overlay",
    "copy": "fork, copy",
}


def workspace_rows(figures: dict[str, Any], only: set[str]) -> list[Row]:
    """The rows of what was asked for, and was measured."""
    if figures["waiting"]:
        return [_no_checkout(name, figures["waiting"]) for name in SUBJECTS if name in only]
    sizes = [_Size(size) for size in figures["sizes"]]
    rows: dict[str, list[Row]] = {name: [] for name in SUBJECTS}
    for size in sizes:
        many = size is not sizes[0]
        rows["P1"] += _first_rows(size, many)
        rows["P2"].append(size.time("P2", "watching", target=1 / 200 if many else 1 / 50))
        rows["P3"].append(size.time("P3", "changed", target=1.2 if many else 1.0))
        rows["P2"].append(size.floor("P2", "watching"))
        rows["P2"].append(size.floor("P2", "watching", peer="floor-format"))
        rows["P2"].append(size.floor("P2", "watching", peer="floor-guarded"))
        rows["P2"].append(size.floor("P2", "watching", peer="floor-backend"))
        rows["P3"].append(size.floor("P3", "changed"))
        rows["P3"].append(size.floor("P3", "changed", peer="floor-modules"))
        rows["P3"].append(size.floor("P3", "changed", peer="floor-own"))
        rows["P3"].append(size.time("P3", "same"))
        rows["P2"].append(size.time("P2", "watching", peer="git-watched"))
        for peer in () if many else ("processfork", "agentfs"):
            rows["P1"].append(size.time("P1", "first", peer=peer))
            rows["P2"].append(size.time("P2", "watching", peer=peer))
        for peer in () if many else ("restic", "borg"):
            rows["P3"].append(size.time("P3", "changed", peer=peer))
        rows["P4"].append(size.time("P4", "undo", target=1.2))
        rows["P5"] += _fork_rows(size, many)
        rows["P14"] += [_served_row(size), size.floor("P14", "served")]
        rows["P14"].append(size.time("P14", "served process"))
    if len(sizes) > 1:
        rows["P2"].append(_flat_row(*sizes))
    return [row for name in rows if name in only for row in rows[name] if _tells(row)]


class _Size:
    """The figures of one directory."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self.figures = figures
        self.files = f"{figures['files']:,}"

    def times(self, work: str, side: str) -> Times | None:
        """The times, if they were measured."""
        found = self.figures["work"].get(work, {}).get(side)
        return None if found is None else found["ms"]

    def stored(self, side: str) -> float | None:
        """What a side has stored, if it was measured."""
        found: int | None = self.figures["stored_bytes"].get(side)
        return found

    def why(self, *names: str) -> str:
        """Why there are no figures of these sides, or this work."""
        absent = self.figures["absent"]
        return next((absent[name] for name in names if name in absent), "")

    def time(
        self,
        row: str,
        work: str,
        *,
        ours: str = "ours",
        peer: str = "git",
        against: str = "",
        target: float | None = None,
        absolute: bool = False,
        figure: str = "p50",
    ) -> Row:
        """A row of times; `against` is what the peer did, if it was something else."""
        plain = ", plain" if ours == "ours-plain" else ""
        return Row.of_times(
            row,
            f"{WORK[work]}{plain}, {self.files} files",
            self.times(work, ours),
            self.times(against or work, peer),
            figure,
            peer_name=PEERS[peer],
            target=target,
            absolute=absolute,
            durability=SCRATCH if row == "P5" else f"{OURS} / {SYNCS[peer]}",
            waiting=self.why("ours", work, peer, peer.partition("-")[0]),
        )

    def floor(
        self, row: str, work: str, ours: str = "ours", peer: str = "floor", figure: str = "p50"
    ) -> Row:
        """A row of times beside those of a floor."""
        times = self.time(row, work, ours=ours, peer=peer, figure=figure)
        name = FLOORS[work] if peer == "floor" else PEERS[peer]
        return replace(times, peer_name=name, floor=True)

    def alone(self, row: str, work: str) -> Row:
        """A row of ours that has no peer."""
        what = f"{WORK[work]}, {self.files} files"
        times = self.times(work, "ours")
        return Row.of_times(row, what, times, None, "p50", peer_name="", durability=SCRATCH)

    def size(self, ours: str, peer: str, target: float | None = None) -> Row:
        """A row of bytes on disk."""
        plain = ", plain" if ours == "ours-plain" else ""
        return Row(
            id="P1",
            what=f"stored{plain}, {self.files} files",
            ours=self.stored(ours),
            peer=self.stored(peer),
            unit="B",
            peer_name=PEERS[peer],
            target=target,
            durability=f"{OURS} / {SYNCS[peer]}",
            waiting=self.why("ours", peer.partition("-")[0]),
        )


def _first_rows(size: _Size, many: bool) -> list[Row]:
    sides = ["ours"] if many else ["ours", "ours-plain"]
    rows = [size.time("P1", "first", ours=side, target=1 / 4) for side in sides]
    rows += [size.size(side, "git", target=1 / 2) for side in sides]
    rows += [size.floor("P1", "first", ours=side) for side in sides]
    for floor in ("floor-whole", "floor-first", "floor-first-backend"):
        found = [size.time("P1", "first", ours=side, peer=floor) for side in sides]
        rows += [replace(row, floor=True) for row in found]
    plain = size.time("P1", "first", ours="ours-plain", peer="floor-first-plain")
    rows += [] if many else [replace(plain, floor=True)]
    rows += [size.time("P1", "first", peer=peer) for peer in ("git-synced", "restic", "borg")]
    rows.append(size.time("P1", "first with .git", against="first"))
    rows += [size.size("ours", peer) for peer in ("git-packed", "restic", "borg")]
    return rows


def _fork_rows(size: _Size, many: bool) -> list[Row]:
    overlay: dict[str, Any] = {"target": MOST_OVERLAY_MS, "absolute": True}
    rows = [
        size.time("P5", "overlay", peer="cp", against="copy", **overlay),
        size.alone("P5", "hold"),
        size.alone("P5", "close"),
        size.time("P5", "copy", peer="cp", target=1.0, figure=COPY),
        size.floor("P5", "copy", figure=COPY),
    ]
    if not many:
        rows.append(size.time("P5", "copy", peer="git-worktree", figure=COPY))
    return rows


def _served_row(size: _Size) -> Row:
    return Row.of_times(
        "P14",
        f"{WORK['served']}, {size.files} files",
        size.times("served", "ours"),
        size.times("watching", "ours"),
        "p50",
        peer_name="watching",
        target=SERVED,
        durability=OURS,
        waiting=size.why("ours"),
    )


def _flat_row(small: _Size, large: _Size) -> Row:
    return Row.of_times(
        "P2",
        f"{WORK['watching']}, {large.files} files",
        large.times("watching", "ours"),
        small.times("watching", "ours"),
        "p50",
        peer_name=f"at {small.files}",
        target=FLAT,
        durability=OURS,
        waiting=large.why("ours"),
    )


def _tells(row: Row) -> bool:
    """Whether a row is worth a line: ours was measured, and what it is compared with."""
    ours = row.ours is not None or bool(row.waiting)
    return ours and (row.target is not None or row.peer is not None or not row.peer_name)


def _no_checkout(name: str, reason: str) -> Row:
    return Row(name, "workspaces", None, None, "ms", "git", waiting=reason)


def detail_cells(figures: dict[str, Any]) -> tuple[list[dict[str, str]], list[str]]:
    """Every side of every kind of work in absolute figures, and the group of each line."""
    cells, groups = [], []
    for size in figures["sizes"]:
        for work, says in WORK.items():
            for side, found in size["work"].get(work, {}).items():
                named = "ours with .git" if work == "first with .git" else side
                stored = size["stored_bytes"].get(named) if work.startswith("first") else None
                cells.append(
                    {
                        "files": f"{size['files']:,}",
                        "work": says,
                        "side": SIDES.get(side) or PEERS[side],
                        **{
                            figure: quantity(found["ms"][figure], "ms")
                            for figure in ("p50", "least", "p90", "most")
                        },
                        "cpu": quantity(found["cpu_ms"], "ms"),
                        "rounds": str(found["ms"]["runs"]),
                        "stored": "" if stored is None else quantity(stored, "B"),
                    }
                )
                groups.append(f"{size['files']} {work}")
    return cells, groups
