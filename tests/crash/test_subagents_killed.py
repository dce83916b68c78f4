"""A session with sub-agents in two threads, and nested ones, killed at random and resumed.

Each ends with the state, conversation, calls and tasks that it has without any kill, and what
cannot be undone was done once, also where two sub-agents make equal calls.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.session.session_record import read_session_record
from tests.crash.fault_process import child_environment
from tests.crash.subagent_program import KEY, NAMES, STEPS

RANDOM = ("ts", "seconds", "effect", "replayed")


def run(place, every, delay=None):
    """Run the program; kill it after a while, if that is wanted. Return how far it came."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.crash.subagent_program"]
        + [str(place / name) for name in ("store", "work", "outside")]
        + [every],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
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
                os.kill(process.pid, signal.SIGKILL)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), errors
    words = (said + rest).split()
    assert words[-1] == "done" or process.returncode
    return words[-1], time.monotonic() - began


def result_of(place):
    """Return what every agent has come to, and the files."""
    with CheckpointManager(backend="sqlite", path=place / "store") as manager:
        assert manager.verify().ok
        head = manager.store.head(KEY)
        record = read_session_record(manager.store, head)
        assert not record.standing
        assert not record.in_flight
        assert not list(record.counts.rows())
        found = {}
        for name, state in manager.state_dict(KEY).items():
            kind = name.rpartition("/")[2]
            if kind == "calls":
                found[name] = [
                    {item: row[item] for item in row if item not in RANDOM} for row in state
                ]
            elif kind == "tasks":
                rows = state["tasks"]
                found[name] = [(row["id"], row["status"], row["result"]) for row in rows]
            elif kind == "messages":
                found[name] = list(state)
            elif kind not in ("session", "workspace"):
                found[name] = state
    files = {
        str(path.relative_to(place / "work")): path.read_text()
        for path in sorted((place / "work").rglob("*.txt"))
    }
    return found, files


def begin(place):
    for name in ("work", "outside"):
        (place / name).mkdir(parents=True)
    return place


def check_outside(place):
    """Each of two agents sends two per task; so does each of its two readers, one per task."""
    sent = list((place / "outside").iterdir())  # one may be empty: killed before it was written
    assert len(sent) == len(NAMES) * (2 * len(STEPS) + 2 * 2)


def kill_and_resume(scratch, tried, every, wanted):
    chance = random.Random(every)
    calm = begin(scratch / "calm")
    phase, seconds = run(calm, every)
    assert phase == "done"
    expected, killed, jobs = result_of(calm), Counter(), 0
    check_outside(calm)
    assert len(expected[0]["subagents/south/calls"]) == 3 * 4
    assert expected[0]["subagents/north/reader 1/status"]["result"] == 2
    while sum(killed.values()) < wanted:
        jobs += 1
        place = begin(scratch / f"job-{jobs}")
        phase = "begun"
        while phase != "done":
            is_enough = sum(killed.values()) >= wanted
            delay = seconds * chance.uniform(0.1, chance.choice((0.4, 0.7, 1.1)))
            phase, _ = run(place, every, None if is_enough else delay)
            killed[phase] += phase != "done"
        found = result_of(place)
        for name in {**expected[0], **found[0]}:  # one by one: the whole is too long to read
            assert found[0].get(name) == expected[0].get(name), name
        assert found == expected
        check_outside(place)
    for phase, number in killed.items():
        tried(f"sub-agents killed while {phase}", number)


def test_killed_and_resumed(scratch, tried):
    kill_and_resume(scratch, tried, "tool", wanted=2)


@pytest.mark.slow
@pytest.mark.parametrize("every", ["tool", "task"])
def test_killed_many_times(scratch, tried, full_faults, every):
    kill_and_resume(scratch, tried, every, wanted=60 if full_faults else 20)
