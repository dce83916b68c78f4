"""Agent loops with real clients, killed at every line: no call is repeated or skipped.

The scripted model refuses a conversation that the API would refuse, so a loop that goes on from a
broken one fails here.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.crash.fault_process import child_environment
from tests.scripted_model import FILES, LAST, OUTBOX, RESULTS, scripted_model

PROGRAM = "tests.crash.loop_program"
CLIENTS = {"anthropic_loop": "anthropic", "openai_loop": "openai"}


@pytest.fixture
def model():
    with scripted_model() as server:
        yield server


@pytest.fixture
def run(model, scratch):
    """Run an example at points of a scope; return what came of each."""

    def run(example, scope, *points):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", PROGRAM, example, scope, str(scratch), *points],
            env={**child_environment(), **os.environ, **model.environment},
            capture_output=True,
            text=True,
            timeout=6 * 3600,  # ends a hang; a busy machine takes long
        )
        assert done.returncode == 0, (done.stdout[-300:], done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def check(row):
    assert row["last"] == LAST, row
    assert row["files"] == FILES, row
    assert sorted(line.split(" ", 1)[1] for line in row["outbox"]) == sorted(OUTBOX), row
    assert len({line.split(" ")[0] for line in row["outbox"]}) == len(OUTBOX), row


def sweep(run, model, example, scope, points):
    rows = run(example, scope, *points)
    for row in rows:
        check(row)
    assert model.problems == []
    last = model.requests[-1]["messages"]
    assert sum(map(len, RESULTS)) == json.dumps(last).count('tool_result"') + sum(
        message["role"] == "tool" for message in last
    )
    return sum(row["killed"] for row in rows)


@pytest.mark.parametrize("example", CLIENTS)
def test_killed_at_every_line_of_the_loop(run, model, example, full_faults, tried):
    pytest.importorskip(CLIENTS[example])
    killed = sweep(run, model, example, "loop", ["@" if full_faults else "@4"])
    assert killed >= 3
    tried("lines of a loop", killed)


@pytest.mark.parametrize("example", CLIENTS)
@pytest.mark.slow
def test_killed_at_lines_of_the_session(run, model, example, full_faults, sample, tried):
    pytest.importorskip(CLIENTS[example])
    ((_, lines),) = run(example, "session")
    every = range(1, lines + 1, 10 if full_faults else 1)
    points = [str(n) for n in sample(every, 24)]
    tried("lines of the session package", sweep(run, model, example, "session", points))


@pytest.mark.slow
def test_killed_again_while_it_resumes(run, model, full_faults, sample, tried):
    pytest.importorskip("anthropic")
    ((_, lines),) = run("anthropic_loop", "session")
    step = lines // (60 if full_faults else 9)
    points = [
        f"{first}+{second}"
        for first in range(step, lines, step)
        for second in range(step // 2, lines, 5 * step)
    ]
    tried("lines, twice", sweep(run, model, "anthropic_loop", "session", sample(points, 12)))
