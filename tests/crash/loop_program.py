"""Runs an example with an agent loop, killed at chosen lines and started again until it is done.

    python -m tests.crash.loop_program EXAMPLE SCOPE DIRECTORY [POINT …]

SCOPE is `loop` for the lines of the example, or `session` for those of the session package as well.
Without points it prints how many lines a run executes. With points, a run is killed by SIGKILL at
its n-th executed line and started again. `120+40` kills the second process, too. `@5` stands for
five points at equal distances, `@` for every line. Every process is a fork of this one, which has
no session and no client.
"""

import asyncio
import importlib.util
import inspect
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path

import agent_checkpoint
from agent_checkpoint import Session  # noqa: F401  imported before the forks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SESSION = str(Path(agent_checkpoint.__file__).parent / "session")


def load(name):
    """Import an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trace(scope, at):
    """Count executed lines, and kill this process at one of them; return the counter."""
    counter = itertools.count(1)
    last = [0]

    def is_traced(name):
        return name.startswith(str(EXAMPLES)) or (scope == "session" and name.startswith(SESSION))

    def line(frame, event, _):
        if event == "line":
            last[0] = next(counter)
            if last[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame, event, _):
        return line if is_traced(frame.f_code.co_filename) else None

    threading.settrace(call)
    sys.settrace(call)
    return last


def run(module, scope, directory, at):
    """Run the example in a fork of this process; return how it ended, and the lines executed."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        status = 1
        try:
            counted = trace(scope, at)
            result = module.run(directory)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            sys.settrace(None)
            threading.settrace(None)
            os.write(writable, json.dumps([result, counted[0]]).encode())
            status = 0
        except BaseException:
            sys.settrace(None)
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writable)
    with os.fdopen(readable, "rb") as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert status == 0, status
    return json.loads(text)


def main():
    name, scope, place, *points = sys.argv[1:]
    module = load(name)
    if not points or points[0].startswith("@"):
        last, lines = run(module, scope, Path(place, "whole"), 0)
        step = lines / int(points[0][1:] or lines) if points else 0
        if not points:
            print(json.dumps([last, lines]))
            return
        points = [str(int(number * step) + 1) for number in range(round(lines / step))]
    for point in points:
        directory = Path(place, point)
        kills = [*map(int, point.split("+")), 0]
        ends = [run(module, scope, directory, at) for at in kills]
        row = {
            "point": point,
            "killed": ends.count(None),
            "last": ends[-1][0],
            "files": {file.name: file.read_text() for file in (directory / "work").iterdir()},
            "outbox": (directory / "outbox").read_text().splitlines(),
        }
        print(json.dumps(row), flush=True)
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
