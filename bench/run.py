"""Everything in one run: ours and the peers, as a table, as JSON and as pictures.

    make bench                 less than an hour, most of it for the curves and the largest stores
    make bench QUICK=1         less than three minutes: fewer files, steps and checkpoints
    make bench ONLY=P7,P8      some of the subjects: see `bench/subjects.py`
    make bench KEEP=1          also replaces bench/results.json, the pictures, docs/benchmarks.md
                               and a section of the README

The exit status tells whether the measuring worked, not whether the targets hold: that is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import agent_checkpoint
from bench import page
from bench.aside import PREFIX, set_aside
from bench.conversation import TITLES
from bench.figures import summary_ms
from bench.rows import Row
from bench.subjects import SUBJECTS, Run
from bench.table import detail_table, quantity, verdict_table, wants_colour, work_table
from bench.turns import ROOT
from bench.workspaces import rows as workspace_rows
from bench.workspaces.peers import SYNCS

RESULTS = ROOT / "bench" / "results"
LATEST = RESULTS / "latest.json"
NEW_FILES = 1_000
SLOW_US = 100.0
"""From here on a file takes long to make: many were removed in the last minutes."""
SLOW = (
    "The file system makes new files SLOWLY now, since many were removed in the last minutes: the "
    "figures of git and cp are too high. Run it again in ten minutes."
)
PACKAGES = [
    "agent-checkpoint",
    "orjson",
    "isal",
    "backports.zstd",
    "psycopg",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "ormsgpack",
    "processfork",
    "agentfs-sdk",
]


def installed() -> dict[str, str | None]:
    """What is measured: the versions of the packages, and a digest of our source."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    digest = hashlib.sha256()
    for source in sorted(Path(agent_checkpoint.__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return {**versions, "source": digest.hexdigest()[:12]}


def machine(directory: Path) -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "filesystem": _filesystem(directory),
        "sync_ms": _sync_ms(directory),
        "new_file_us": new_file_us(directory),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "versions": installed(),
    }


def measure(run: Run) -> dict[str, Any]:
    """All that is wanted, and the rows of the table."""
    rows: list[Row] = []
    RESULTS.mkdir(exist_ok=True)
    results: dict[str, Any] = {"machine": machine(run.directory), "quick": run.quick}
    if results["machine"]["new_file_us"] > SLOW_US:
        say(SLOW)
    for subject in SUBJECTS:
        if run.only & set(subject.ids):
            say(f"{subject.says} …")
            run.place.mkdir()
            os.sync()  # or what the last subject wrote would slow this one down
            results[subject.name] = found = subject.measure(run)
            set_aside(run.place)
            rows += subject.rows(found, run.only)
            results["changed_meanwhile"] = installed() != results["machine"]["versions"]
            results["rows"] = [row.as_json() for row in rows]
            _write(results, LATEST)  # now: a later subject may fail
    return {"results": results, "rows": rows}


def report(results: dict[str, Any], rows: list[Row]) -> None:
    """Print the table, what is behind it, and the verdict in a line."""
    colour = wants_colour()
    where = results["machine"]
    versions = ", ".join(f"{name} {text}" for name, text in where["versions"].items() if text)
    print()
    print(verdict_table(rows, colour))
    print()
    if "workspaces" in results:
        report_workspaces(results["workspaces"], colour)
    if "conversations" in results:
        print(detail_table(results["conversations"], TITLES, colour))
        print()
        for run in results["conversations"][:2]:
            modes = {
                TITLES[name]: ", ".join(side["pragmas"]) for name, side in run["sides"].items()
            }
            for mode in sorted(set(modes.values())):
                who = "; ".join(name for name, has in modes.items() if has == mode)
                print(f"  {run['durability']}: SQLite says {mode} of: {who}")
        sides = results["conversations"][0]["sides"].items()
        told = {name: side["accelerators"] for name, side in sides if name.endswith("-fast")}
        for names in sorted(set(map(tuple, told.values()))):
            print(f"  fast: {', '.join(names) or 'nothing installed'}")
    print(f"  {versions}")
    print(
        f"  Python {where['python']}, SQLite {where['sqlite']}, {where['system']}, "
        f"{where['cores']} cores, load {where['load_average']:.1f}, {where['filesystem']}, "
        f"fsync of 8 kB {where['sync_ms']['p50']:.2f} ms (p99 {where['sync_ms']['p99']:.1f})"
    )
    if where["new_file_us"] > SLOW_US:
        print(f"  {SLOW}")
    if results["changed_meanwhile"]:
        print("  The source or a package CHANGED while this was measured: run it again.")
    if where["filesystem"] == "tmpfs":
        print("  The stores were in memory (tmpfs): durable saves cost nothing there. Set TMPDIR.")
    verdicts = [row.verdict for row in rows]
    counts = ", ".join(
        f"{verdicts.count(verdict)} {word}"
        for verdict, word in {"holds": "hold", "misses": "missed", "waiting": "waiting"}.items()
        if verdict in verdicts
    )
    print(f"\n  Targets: {counts or 'none measured'}.")
    if results["quick"]:
        print("  A quick run has less data than the targets assume: its verdicts are a hint.")
    for row in rows:
        if row.verdict == "misses":
            mode = f" ({row.durability})" if row.durability else ""
            print(f"  MISSES {row.id} {row.what}{mode}")
    for reason in sorted({row.waiting for row in rows} - {""}):
        print(f"  waiting: {reason}")


def report_workspaces(figures: dict[str, Any], colour: bool) -> None:
    """Print what is behind P1 to P5: every side, how durable each is, and who is not there."""
    if figures["sizes"]:
        print(work_table(*workspace_rows.detail_cells(figures), colour))
        print()
    for size in figures["sizes"]:
        print(
            f"  {size['files']:,} files in {size['directories']:,} directories, "
            f"{quantity(size['raw_bytes'], 'B')}; all sides on one directory, warm caches"
        )
    for size in figures["sizes"][:1]:
        for mode in size["pragmas"]:
            print(f"  SQLite says {mode} of ours")
        for side, names in size["accelerators"].items():
            print(f"  {workspace_rows.SIDES[side]}: {', '.join(names) or 'nothing installed'}")
        for reason in sorted(set(size["absent"].values())):
            print(f"  left out: {reason}")
    modes = [f"{name} {text} {SYNCS[name]}" for name, text in figures["versions"].items()]
    print(f"  as they come: {', '.join([*modes, 'cp unsynced'])}")


def say(text: str) -> None:
    """Tell a person at a terminal what is going on; a file gets the results alone."""
    print(f"  measuring: {text}", file=sys.stderr, flush=True)


def new_file_us(directory: Path) -> float:
    """How long the file system takes to make a file, which depends on what was removed before."""
    place = directory / "files"
    place.mkdir()
    started = time.perf_counter_ns()
    for number in range(NEW_FILES):
        (place / f"{number}").touch()
    return (time.perf_counter_ns() - started) / NEW_FILES / 1e3


def _sync_ms(directory: Path) -> dict[str, float]:
    """How long the disk takes to make 8 kB durable: the floor of every save in mode FULL."""
    taken = []
    with (directory / "probe").open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(bytes(8192))
            started = time.perf_counter_ns()
            os.fsync(file.fileno())
            taken.append(time.perf_counter_ns() - started)
    return summary_ms(taken)


def _filesystem(directory: Path) -> str:
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return "unknown file system"
    place = str(directory.resolve()) + "/"
    found = [(0, "unknown file system")]
    for _, at, kind, *_ in map(str.split, mounts):
        if place.startswith(at.rstrip("/") + "/"):
            found.append((len(at), kind))
    return max(found)[1]


def main() -> int:
    """Measure, print, and write the files."""
    ids = list(dict.fromkeys(name for subject in SUBJECTS for name in subject.ids))
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"some of {','.join(ids)}")
    parser.add_argument("--quick", action="store_true", help="fewer files, steps and checkpoints")
    parser.add_argument("--keep", action="store_true", help="replace the committed results")
    options = parser.parse_args()
    wanted = {name.lower() for name in options.only.replace(",", " ").split()}
    only = {name for name in ids if name.lower() in wanted} or set(ids)
    if wanted - {name.lower() for name in ids}:
        parser.error(f"--only takes some of {','.join(ids)}, not {options.only}")
    if options.keep and (options.only or options.quick):
        parser.error("--keep replaces the committed results: it needs a whole run")
    with tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        found = measure(Run(only, Path(directory), options.quick, say))
    results = found["results"]
    report(results, found["rows"])
    written = [LATEST, *_pictures(results)]
    if options.keep:
        for picture in written[1:]:
            shutil.copyfile(picture, ROOT / "docs" / "images" / picture.name)
        written.append(_write(_snapshot(results), ROOT / "bench" / "results.json"))
        written += page.write()
    print("  Written: " + ", ".join(str(path.relative_to(ROOT)) for path in written))
    return 0


def _pictures(results: dict[str, Any]) -> list[Path]:
    """Draw what was measured."""
    from bench.plot import draw, draw_curves

    pictures = []
    if results.get("conversations") or results.get("workspaces", {}).get("sizes"):
        pictures.append(RESULTS / "bench.svg")
        draw(results, pictures[-1])
    if "curves" in results:
        pictures.append(RESULTS / "bench-curves.svg")
        draw_curves(results["curves"], pictures[-1])
    return pictures


def _snapshot(results: dict[str, Any]) -> dict[str, Any]:
    """The results without the time of every single save."""
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(results),
        object_hook=lambda found: {
            name: value for name, value in found.items() if not name.endswith("_ns")
        },
    )


def _write(results: dict[str, Any], path: Path) -> Path:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
