"""F1: an agent with ten tasks whose process is killed at random moments, and resumed each time.

Every task is completed, files and state are what they are without any kill, what cannot be undone
was done once at most, and whatever nobody can know was reported and decided by a person.
"""

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress

import pytest

from agent_checkpoint import CheckpointManager, Log, Workspace
from agent_checkpoint.session.session_record import read_session_record
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.record_stream import RecordStream
from tests.crash.fault_process import child_environment
from tests.crash.session_program import KEY, TASKS, Diary, Worker
from tests.crash.session_server import Outside

EVERY = ("tool", "task", "3")
IRREVERSIBLE = Counter({"news 2": 2, "news 5": 2, "street 3": 1, "street 8": 1})
RANDOM = ("ts", "seconds", "effect", "replayed")


class Job:
    """One session, from its first process to its last."""

    def __init__(self, place, every):
        self.place = place
        self.every = every
        self.workspace = place / "work"
        self.workspace.mkdir(parents=True)
        (self.workspace / "given.txt").write_text("here before\n")
        self.outside = Outside()
        self.killed = Counter()
        """How often it was killed, by what it was doing."""
        self.is_begun = False
        self.moves = 0

    def run(self, delay=None, *, look_first=False):
        """Run a process; kill it after a while, if that is wanted. Tell whether it was done."""
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.crash.session_program"]
            + [str(self.place / "store"), str(self.workspace), self.outside.url]
            + [str(self.place / "reports"), "--every", self.every]
            + ["--look-first"] * look_first,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
            start_new_session=True,  # what it has started is killed with it
        )
        try:
            said = process.stdout.readline()
            began = time.monotonic()
            if delay is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(delay)
        finally:
            if delay is not None:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.killpg(process.pid, signal.SIGKILL)
            rest, errors = process.communicate(timeout=60)
        self.seconds = time.monotonic() - began
        words = (said + rest).split()
        if process.returncode == 0:
            assert words[-1] == "done"
            return True
        assert process.returncode == -signal.SIGKILL, errors
        self.killed[words[-1]] += 1
        self.is_begun = self.is_begun or words[-1] != "opening"
        self.outside.settle()
        return False

    def move(self, luck):
        """Go on on another machine now and then: the files are gone, or the place is another."""
        if not self.is_begun:
            return
        if luck < 0.2:
            shutil.rmtree(self.workspace, ignore_errors=True)  # it may not be there again yet
        if luck < 0.1:
            self.moves += 1
            self.workspace = self.place / f"work-{self.moves}"

    def close(self):
        self.outside.close()


def files_of(root):
    """Return type, permissions and content of everything in a directory."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_dir():
            content = None
        else:
            content = path.read_bytes()
        mode = 0 if path.is_symlink() else stat.S_IMODE(status.st_mode)
        found[str(path.relative_to(root))] = (stat.S_IFMT(status.st_mode), mode, content)
    return found


def result_of(job):
    """Return what a job has come to, in its store and on the disk, and check that they agree."""
    with CheckpointManager(backend="sqlite", path=job.place / "store") as manager:
        parts = {"agent": Worker(), "diary": Diary(), "messages": Log(), "calls": Log()}
        manager.load(KEY, parts)
        head = manager.store.head(KEY)
        tasks = manager.state_dict(KEY)["tasks"]["tasks"]
        with Workspace(job.workspace, manager.store) as workspace:
            assert workspace.recovered is None
            saved = manager.state_dict(KEY)["workspace"]
            assert not workspace.diff(saved)
        assert manager.verify().ok
        record = read_session_record(manager.store, head)
        assert not record.standing
        assert not record.in_flight
    assert not list(job.place.rglob(".agent-checkpoint-restore*"))
    return {
        "agent": vars(parts["agent"]),
        "diary": parts["diary"].lines,
        "messages": list(parts["messages"]),
        "calls": [
            {name: value for name, value in call.items() if name not in RANDOM}
            for call in parts["calls"]
        ],
        "tasks": [(row["id"], row["status"], row["result"], row["note"]) for row in tasks],
        "files": files_of(job.workspace),
    }


def records_of(job):
    """Return the records of the ledger by effect, in order."""
    with CheckpointManager(backend="sqlite", path=job.place / "store") as manager:
        (name,) = manager.store.backend.streams(PREFIX)
        found = {}
        for _, record in RecordStream(manager.store, name).read():
            if "effect" in record:
                found.setdefault(record["effect"], []).append(record)
    return found


def check_outside(job):
    """What cannot be undone was done once; what nobody could know, a person has decided."""
    outside = job.outside
    assert Counter(words for words, _ in outside.mails + outside.parcels) == IRREVERSIBLE
    assert len({key for _, key in outside.mails}) == len(outside.mails)
    assert outside.values == {"value-1": 1, "value-4": 4, "value-9": 9}
    assert len({key for *_, key in outside.puts}) == 3
    assert sorted(outside.rooms) == ["4", "7"]
    assert all(name.startswith("bad") for name, _ in outside.cancellations)
    reported = {}
    if (job.place / "reports").exists():
        for line in (job.place / "reports").read_text().splitlines():
            effect, tool, happened, notice = json.loads(line)
            assert "outcome unknown" in notice
            reported.setdefault(effect, []).append((tool, happened))
    decided = set()
    for effect, records in records_of(job).items():
        types = [record["type"] for record in records]
        tool = records[0]["tool"]
        assert types[0] == "started", types
        assert types[-1] in ("committed", "undone", "failed", "resolved"), types
        assert len(types) > 1
        for record in records:
            if record["type"] == "resolved":  # who reports may be killed before that is noted
                decided.add(effect)
                assert (tool, record["happened"]) in reported[effect]
        if tool in ("mail", "book", "put"):  # nothing can be asked: to say so would be a guess
            assert "failed" not in types
        if tool in ("mail", "send_parcel"):
            assert "undoing" not in types
    assert decided == set(reported)
    return len(decided)


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
def test_killed_and_resumed(scratch, full_faults, tried, every):
    """Every task is completed, and all is as if nobody had killed anything."""
    wanted, chance = 67 if full_faults else 4, random.Random(every)
    with closing(Job(scratch / "calm", every)) as calm:
        assert calm.run()
        expected, seconds = result_of(calm), calm.seconds
        assert check_outside(calm) == 0
    assert [status for _, status, *_ in expected["tasks"]] == ["completed"] * 10
    assert expected["agent"]["done"] == TASKS
    killed, decided, jobs = Counter(), 0, 0
    while sum(killed.values()) < wanted:
        jobs += 1
        with closing(Job(scratch / f"job-{jobs}", every)) as job:
            done = False
            while not done:
                # Most get on by a part of the work; who is killed at once each time never ends.
                delay = chance.uniform(0, seconds * chance.choice((0.2, 0.6, 1.1)))
                is_enough = sum((killed + job.killed).values()) >= wanted
                done = job.run(None if is_enough else delay, look_first=chance.random() < 0.5)
                if not done:
                    job.move(chance.random())
            assert result_of(job) == expected
            decided += check_outside(job)
            killed += job.killed
        shutil.rmtree(job.place)
    for phase, number in killed.items():
        tried(f"F1 session killed while {phase}", number)
    print(f"{jobs} jobs, {decided} unknown outcomes that a person decided")
    assert decided or not full_faults  # else this says nothing about them
