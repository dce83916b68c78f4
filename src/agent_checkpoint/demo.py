"""A short show on a scripted agent: save, crash, resume, roll back, compare, fork.

Owns the story that `make demo` tells and what it prints; must not know anything below the public
names, so that it shows only what every user can do.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_checkpoint import Checkpointable, CheckpointManager

KEY = "trip"
WORK, STOP = "work", "stop"  # how the story starts its own processes
LIMIT = 6000
THINGS = {  # grams, and how much we would like to have it
    "tent": (2600, 9),
    "stove": (900, 5),
    "rope": (1500, 2),
    "boots": (1400, 8),
    "lamp": (300, 4),
    "camera": (1200, 7),
    "book": (700, 3),
}


class Packer(Checkpointable):
    """An agent that packs a rucksack, one thing a step, and keeps its conversation."""

    def __init__(self) -> None:
        self.bag: list[str] = []
        self.grams = 0
        self.messages: list[dict[str, str]] = []

    def pack(self, thing: str) -> None:
        """Take one more thing along.

        Raises:
            ValueError: the rucksack is now too heavy; the agent is left in that state.
        """
        self.think(f"I pack the {thing}.")
        self.bag.append(thing)
        self.grams += THINGS[thing][0]
        if self.grams > LIMIT:
            raise ValueError(f"{self.grams} g is more than the {LIMIT} g that we can carry")

    def think(self, thought: str) -> None:
        """Add to the conversation."""
        self.messages.append({"role": "assistant", "content": thought})

    def fits(self, thing: str) -> bool:
        """Tell whether the thing is not packed yet and not too heavy."""
        return thing not in self.bag and self.grams + THINGS[thing][0] <= LIMIT

    def worth(self) -> int:
        """Return how much we like what is packed."""
        return sum(THINGS[thing][1] for thing in self.bag)


def main(arguments: list[str]) -> int:
    """Tell the story, or play the part of one of its processes; return the exit status."""
    if arguments[:1] == [WORK] and len(arguments) in (2, 3):
        _work(Path(arguments[1]), stop_in_the_middle=arguments[2:] == [STOP])
        return 0
    if arguments:
        print("usage: python -m agent_checkpoint.demo", file=sys.stderr)
        return 2
    print("A small scripted agent, on a store of plain files. Everything below really happens.")
    path = Path(tempfile.mkdtemp(prefix="agent-checkpoint-demo-"))
    with CheckpointManager(backend="file", path=path) as manager:
        _saves(manager)
        _crash_and_resume(path)
        agent = _mistake(manager)
        _differences(manager, agent)
        _forks(manager)
        _past(manager)
        _files(manager, path)
    return 0


def _saves(manager: CheckpointManager) -> None:
    _title("1. Save", "An agent packs a rucksack. It is saved after every step.")
    agent = Packer()
    for thing in ("tent", "stove"):
        agent.pack(thing)
        _say(f"packed the {thing}, saved as {manager.save(KEY, agent, label=thing)}")


def _crash_and_resume(path: Path) -> None:
    _title("2. Crash and resume", "Another process goes on. We kill it in the middle of a step.")
    command = [sys.executable, "-m", "agent_checkpoint.demo", WORK, str(path)]
    _run([*command, STOP], kill_at="not saved yet")
    print()
    _run(command)


def _run(command: list[str], *, kill_at: str | None = None) -> None:
    """Run a process and show its lines; kill it with SIGKILL when it says `kill_at`."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        for line in worker.stdout or ():
            _say(f"[process {worker.pid}] {line.rstrip()}")
            if kill_at is not None and kill_at in line:
                worker.send_signal(signal.SIGKILL)
    expected = 0 if kill_at is None else -signal.SIGKILL
    if worker.returncode != expected:
        raise SystemExit(f"process {worker.pid} ended with {worker.returncode}, not {expected}")
    if kill_at is not None:
        _say(f"[process {worker.pid}] ended by signal {signal.SIGKILL:d}, SIGKILL")


def _work(path: Path, *, stop_in_the_middle: bool) -> None:
    # What the two processes of chapter 2 run: load, then a step and a save at a time.
    agent = Packer()
    with CheckpointManager(backend="file", path=path) as manager:
        manager.load(KEY, agent)
        print(f"resumed with {_list(agent.bag)}", flush=True)
        for thing in ("rope", "lamp"):
            if thing in agent.bag:
                continue
            agent.pack(thing)
            if stop_in_the_middle and thing == "lamp":
                print(f"packed the {thing}, not saved yet", flush=True)
                sys.stdin.read()  # until the signal, or until the parent is gone
                return
            manager.save(KEY, agent, label=thing)
            print(f"packed the {thing}, saved", flush=True)


def _mistake(manager: CheckpointManager) -> Packer:
    _title("3. Roll back", "The agent has a bad idea. rollback_context takes the block back.")
    agent = Packer()
    manager.load(KEY, agent)
    _say(f"before  {_list(agent.bag)}, {agent.grams} g")
    try:
        with manager.rollback_context(KEY, agent, label="before the idea"):
            agent.think("Let us take everything!")
            manager.save(KEY, agent, label="a bad idea")
            _say("saved   one checkpoint inside the block; it stays in the history, see 6")
            for thing in THINGS:
                if thing not in agent.bag:
                    agent.pack(thing)
    except ValueError as error:
        _say(f"raised  ValueError: {error}")
    _say(f"after   {_list(agent.bag)}, {agent.grams} g")
    return agent


def _differences(manager: CheckpointManager, agent: Packer) -> None:
    _title("4. Compare", "One more step, not saved. What changed since the last checkpoint?")
    agent.pack("book")
    for how, found in manager.diff(KEY, agent=agent, deep=True).items():
        for name, value in found.items():
            _say(f"{how:8} {name:12} {_change(value)}")


def _forks(manager: CheckpointManager) -> None:
    _title("5. Fork", f"Two ways to go on from {KEY}@2, each in a key of its own.")
    _say('"light" packs the lightest things first, "liked" those that we like most.')
    _say('"worth" adds up how much we like what is packed, up to 9 for a thing.')
    print()
    ways = {
        "light": sorted(THINGS, key=lambda thing: THINGS[thing][0]),
        "liked": sorted(THINGS, key=lambda thing: -THINGS[thing][1]),
    }
    for way, order in ways.items():
        manager.fork(KEY, way, checkpoint_id=f"{KEY}@2")
        agent = Packer()
        manager.load(way, agent)
        for thing in order:
            if agent.fits(thing):
                agent.pack(thing)
        manager.save(way, agent, metrics={"worth": agent.worth(), "grams": agent.grams})
    for way in ways:
        (newest,) = manager.history(way, n=1)
        worth, grams = newest["metrics"]["worth"], newest["metrics"]["grams"]
        bag = manager.state_dict(way)["bag"]
        _say(f"{way}:  worth {worth:.0f}, {grams:.0f} g  ({_list(bag)})")
    changes = manager.diff("light", checkpoint_id_a="light", checkpoint_id_b="liked", deep=True)
    for how, found in changes.items():
        for name, value in found.items():
            if name.startswith("bag"):
                _say(f"light -> liked:  {how} {name} {_change(value)}")


def _past(manager: CheckpointManager) -> None:
    _title("6. History", "Newest first. A rollback is added, and nothing is rewritten.")
    for row in manager.history(KEY):
        number = row["id"].rpartition("-")[2]
        parent = "".join(parent.rpartition("-")[2] for parent in row["parents"])
        origin = f"from {KEY}@{parent}" if parent else "the first"
        _say(f"{KEY}@{number}  {row['kind']:9} {row['label'] or '':16} {origin}")


def _files(manager: CheckpointManager, path: Path) -> None:
    report = manager.verify()
    verdict = "all intact" if report.ok else "DAMAGED"
    _title("7. Look for yourself", "Every checkpoint is a JSON file that you can read.")
    _say(f"{report.checkpoints} checkpoints read back and checked: {verdict}.")
    newest = manager.history(KEY, n=1)[0]["id"].rpartition("-")[2]
    _say("The directory is kept for you. Delete it when you have seen enough:")
    print(f"\n{path}\n")  # paths stand at the margin: easy to copy
    _say("Open the newest checkpoint of the trip, for example:")
    print(f"\n{path / KEY / newest}.json")


def _title(title: str, what: str) -> None:
    print(f"\n{title}\n   {what}\n")


def _say(line: str) -> None:
    print(f"   {line}")


def _list(things: Iterable[str]) -> str:
    return ", ".join(things) or "nothing"


def _change(value: Any) -> str:
    if isinstance(value, tuple):
        before, after = value
        return f"{before!r} -> {after!r}"
    return repr(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
