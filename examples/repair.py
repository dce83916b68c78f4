"""Repair a small program: try several patches at once, run its tests on each, keep the best.

    python examples/repair.py

Each patch is tried in a fork of the session, in its own process, on its own files. The program to
repair is written to a temporary directory first.
"""

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from agent_checkpoint import Checkpointable, Session, explore, tool

PROGRAM = '''\
def merge(intervals):
    """Join the intervals that overlap or touch, and return them in order."""
    merged = []
    for start, end in intervals:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
'''

TESTS = """\
import unittest

from intervals import merge


class TestMerge(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(merge([]), [])

    def test_overlapping(self):
        self.assertEqual(merge([(1, 3), (2, 5)]), [(1, 5)])

    def test_touching(self):
        self.assertEqual(merge([(1, 2), (2, 3)]), [(1, 3)])

    def test_one_in_another(self):
        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])

    def test_any_order(self):
        self.assertEqual(merge([(5, 6), (1, 2)]), [(1, 2), (5, 6)])
"""

# Edits of the program, by name. A real agent would ask a model for them.
SORT = ("in intervals:", "in sorted(intervals):")
TOUCH = ("start < merged", "start <= merged")
LONGER = ("[0], end)", "[0], max(end, merged[-1][1]))")
PATCHES = {
    "sort": [SORT],
    "sort, touch": [SORT, TOUCH],
    "sort, touch, longer": [SORT, TOUCH, LONGER],
    "does not fit": [("while intervals:", "for interval in intervals:")],
}


class Mechanic(Checkpointable):
    """The agent. In this example it only keeps notes."""

    def __init__(self):
        self.notes = []


@tool
def edit(path, old, new):
    """Replace a string in a file."""
    text = Path(path).read_text()
    if old not in text:
        raise ValueError(f"{old!r} is not in {Path(path).name}")
    Path(path).write_text(text.replace(old, new))


def run_tests(directory):
    """Run the tests of a project, and count the results."""
    # -B: without it, Python's bytecode caches would be adopted with the files.
    command = [sys.executable, "-B", "-m", "unittest", "-v"]
    done = subprocess.run(command, cwd=directory, stderr=subprocess.PIPE, text=True)
    results = re.findall(r"\.\.\. (ok|FAIL|ERROR)$", done.stderr, flags=re.M)
    return {"passed": results.count("ok"), "failed": len(results) - results.count("ok")}


def attempt(branch, patch):
    """Try one patch in `branch`, a fork of the session. The session does not change."""
    directory = branch.workspace.path
    for old, new in PATCHES[patch]:
        edit(str(directory / "intervals.py"), old, new)
    branch.agent.notes.append(f"tried: {patch}")
    return run_tests(directory)


def main():
    """Explore the patches, adopt the best one, undo the adoption and redo it."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        project.mkdir()
        (project / "intervals.py").write_text(PROGRAM)
        (project / "test_intervals.py").write_text(TESTS)

        agent, store = Mechanic(), Path(folder, "store")
        with Session("repair", agent=agent, workspace=project, store=store) as session:
            print("before:", run_tests(project))

            variants = [{"patch": name} for name in PATCHES]
            with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
                outcome = explore(session, attempt, variants, executor=processes, timeout=60)
            print(f"\n{outcome.table()}\n")
            print("after exploring:", run_tests(project))

            best = outcome.best("passed")
            print(f"\n{best.file_diff}")
            best.adopt()
            print("adopted:", run_tests(project), agent.notes)

            session.undo()
            print("undone:", run_tests(project), agent.notes)
            session.undo()
            print("redone:", run_tests(project), agent.notes)


if __name__ == "__main__":
    main()
