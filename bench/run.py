"""Everything in one run: ours and the peers, as a table, as JSON and as a picture.

    make bench                 about a quarter of an hour: six minutes for P1 to P5, and most of
                               the rest to fill a store with a million checkpoints
    make bench QUICK=1         a hundred thousand checkpoints, and no directory of as many files
    make bench ONLY=P7,P8      some of: P1 P2 P3 P4 P5 P6 P7 P8 P9 P10 P11 P13 P16 P17 P18 help
                               session calls forks changes curves
    make bench KEEP=1          also replaces bench/results.json and docs/images/bench.svg

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
from bench import (
    changes,
    conversation,
    curves,
    explore,
    help_time,
    hook,
    hook_agent,
    import_time,
    memory,
    million,
    postgres,
    round_trips,
    session,
    trajectory,
)
from bench.figures import summary_ms
from bench.ours import has_log
from bench.rows import Row
from bench.table import detail_table, quantity, verdict_table, wants_colour, work_table
from bench.turns import ROOT
from bench.workspaces import measure as workspaces
from bench.workspaces import rows as workspace_rows
from bench.workspaces.peers import SYNCS

STEPS = 1_000
RESULTS = ROOT / "bench" / "results"
PACKAGES = ["agent-checkpoint", "orjson", "backports.zstd"]
PACKAGES += [
    "psycopg",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint",
    "ormsgpack",
]
SUBJECTS = (
    *workspace_rows.SUBJECTS,
    "P6",
    "P7",
    "P8",
    "P9",
    "P10",
    "P11",
    "help",
    "P13",
    "P16",
    "P17",
    "session",
    "calls",
    "forks",
    "changes",
    "P18",
    "curves",
)


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
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "versions": installed(),
    }


def measure(only: set[str], checkpoints: int, directory: Path, quick: bool) -> dict[str, Any]:
    """All that is wanted, and the rows of the table."""
    rows: list[Row] = []
    results: dict[str, Any] = {"machine": machine(directory), "conversations": []}
    if only & set(workspace_rows.SUBJECTS):
        results["workspaces"] = workspaces.measure(only, directory, quick=quick, say=say)
        rows += workspace_rows.workspace_rows(results["workspaces"], only)
    with_log = has_log()
    if only & {"P6", "P7", "P8", "changes"}:
        runs = [("varied", "FULL")]
        if "P7" in only:
            runs.append(("varied", "NORMAL"))
        if "P6" in only:
            runs.append(("noise", "FULL"))
        for kind, durability in runs:
            say(f"a conversation of {STEPS:,} steps, {kind}, {durability} …")
            figures = conversation.measure(
                kind,
                durability,
                STEPS,
                directory,
                with_log=with_log,
                thorough=(kind, durability) == runs[0] and bool(only & {"P8", "changes"}),
            )
            results["conversations"].append(figures)
            shutil.rmtree(directory / f"{kind}-{durability}")
        rows += conversation_rows(results["conversations"], only)
    if "P9" in only:
        say("import time …")
        results["import_time_ms"] = import_time.measure(import_time.LEAST_RUNS)
        rows += import_rows(results["import_time_ms"])
    if "help" in only:
        say("the help of the command …")
        results["help_time_ms"] = help_time.measure(import_time.LEAST_RUNS)
        rows.append(help_row(results["help_time_ms"]))
    if "P10" in only:
        say(f"{checkpoints:,} checkpoints in one store; filling it takes minutes …")
        place = directory / "million"
        place.mkdir()
        results["million"] = million.measure(place, checkpoints)
        shutil.rmtree(place)
        rows += million.rows(results["million"])
    if "P11" in only:
        say("PostgreSQL …")
        results["postgres"] = postgres.measure(quick=quick)
        rows += postgres.rows(results["postgres"])
    if "P13" in only:
        say("the hook of a coding agent …")
        results["hook"] = hook.measure(directory, quick=quick)
        rows += hook.rows(results["hook"])
        say("a coding agent with the hook …")
        results["hook_agent"] = hook_agent.measure(directory, quick=quick)
        rows += hook_agent.rows(results["hook_agent"])
    if "session" in only:
        say("a session that saves message after message …")
        place = directory / "session"
        place.mkdir()
        results["session"] = session.measure(place, quick=quick)
        shutil.rmtree(place)
        rows += session.rows(results["session"])
    if "calls" in only:
        say("calls of the backend …")
        results["calls"] = round_trips.measure()
        rows += round_trips.rows(results["calls"])
    if "forks" in only:
        say("forks of a session with many files …")
        place = directory / "forks"
        place.mkdir()
        results["forks"] = explore.measure(place, quick=quick)
        rows += explore.rows(results["forks"])
    if "P18" in only:
        say("a LangGraph graph …")
        from bench import langgraph  # only here: it needs LangGraph itself

        place = directory / "langgraph"
        place.mkdir()
        results["langgraph"] = langgraph.measure(place, quick=quick)
        shutil.rmtree(place)
        rows += langgraph.rows(results["langgraph"])
    if "P17" in only:
        say("memory …")
        place = directory / "memory"
        place.mkdir()
        results["memory"] = memory.measure(place, quick=quick)
        shutil.rmtree(place)
        rows += memory.rows(results["memory"])
    if "P16" in only:
        say("a trajectory of many steps …")
        place = directory / "trajectory"
        place.mkdir()
        results["trajectory"] = trajectory.measure(place, quick=quick)
        rows += trajectory.rows(results["trajectory"])
    if "curves" in only:
        place = directory / "curves"
        place.mkdir()
        results["curves"] = curves.measure(place, quick=quick, say=say)
        shutil.rmtree(place)
    if "changes" in only:
        rows += changes.change_rows(results["conversations"][0])
    results["changed_meanwhile"] = installed() != results["machine"]["versions"]
    results["rows"] = [row.as_json() for row in rows]
    return {"results": results, "rows": rows}


def conversation_rows(runs: list[dict[str, Any]], only: set[str]) -> list[Row]:
    """The rows of P6, P7 and P8."""
    rows: list[Row] = []
    first = runs[0]
    if "P6" in only:
        rows += conversation.size_rows(first, conversation.WHOLE)
        rows += conversation.size_rows(runs[-1], ["log-fast", "list-fast"])
    if "P7" in only:
        for run in runs:
            if run["kind"] == "varied":
                rows += conversation.save_rows(run)
    if "P8" in only:
        rows += conversation.load_rows(first)
    return rows


def import_rows(figures: dict[str, float]) -> list[Row]:
    """P9: the imports above a bare Python."""
    return [
        Row(
            id="P9",
            what=f"python -c '{import_time.WORK[name]}'",
            ours=figures[name],
            peer=figures["bare Python"],
            unit="ms",
            peer_name="bare",
            target=target,
            difference=True,
        )
        for name, target in import_time.TARGETS_MS.items()
    ]


def help_row(figures: dict[str, float]) -> Row:
    """The help of the command above a bare Python: commands are loaded when they are wanted."""
    return Row(
        id="help",
        what="agent-checkpoint --help",
        ours=figures["agent-checkpoint --help"],
        peer=figures["bare Python"],
        unit="ms",
        peer_name="bare",
        target=help_time.TARGET_MS,
        difference=True,
    )


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
    if results["conversations"]:
        print(detail_table(results["conversations"], conversation.TITLES, colour))
        print()
        for run in results["conversations"][:2]:
            modes = {
                conversation.TITLES[name]: ", ".join(side["pragmas"])
                for name, side in run["sides"].items()
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
    if results["changed_meanwhile"]:
        print("  The source or a package CHANGED while this was measured: run it again.")
    if where["filesystem"] == "tmpfs":
        print("  The stores were in memory (tmpfs): durable saves cost nothing there. Set TMPDIR.")
    verdicts = [row.verdict for row in rows]
    counts = ", ".join(
        f"{verdicts.count(word)} {word}"
        for word in ("holds", "misses", "waiting")
        if word in verdicts
    )
    print(f"\n  Targets: {counts or 'none measured'}.")
    for row in rows:
        if row.verdict == "misses":
            print(f"  MISSES {row.id} {row.what} ({row.durability or 'reads only'})")
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
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"some of {','.join(SUBJECTS)}")
    parser.add_argument(
        "--quick", action="store_true", help="fewer files, and a smaller store for P10"
    )
    parser.add_argument("--keep", action="store_true", help="replace the committed snapshot")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(","))) or set(SUBJECTS)
    if not only <= set(SUBJECTS):
        parser.error(f"--only takes some of {','.join(SUBJECTS)}, not {options.only}")
    default = million.QUICK if options.quick else million.LARGE
    checkpoints = int(os.environ.get("BENCH_MILLION") or default)
    with tempfile.TemporaryDirectory(prefix="agent-checkpoint-bench-") as directory:
        found = measure(only, checkpoints, Path(directory), options.quick)
    results = found["results"]
    report(results, found["rows"])
    RESULTS.mkdir(exist_ok=True)
    written = [_write(results, RESULTS / "latest.json")]
    pictures = []
    if results["conversations"] or results.get("workspaces", {}).get("sizes"):
        from bench.plot import draw

        pictures.append(RESULTS / "bench.svg")
        draw(results, pictures[-1])
    if "curves" in results:
        from bench.plot import draw_curves

        pictures.append(RESULTS / "bench-curves.svg")
        draw_curves(results["curves"], pictures[-1])
    written += pictures
    for picture in pictures if options.keep else ():
        target = ROOT / "docs" / "images" / picture.name
        shutil.copyfile(picture, target)
        written.append(target)
    if options.keep:
        written.append(_write(_snapshot(results), ROOT / "bench" / "results.json"))
    print("  Written: " + ", ".join(str(path.relative_to(ROOT)) for path in written))
    return 0


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
