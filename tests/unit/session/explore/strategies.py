"""Strategies that tests explore with; in a module of their own, for other processes to import."""

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from agent_checkpoint import tool
from tests.agents import Agent


class Spender(Agent):
    """An agent that tells what it used."""

    def __init__(self):
        super().__init__()
        self.tokens = 0
        self.cost = 0.0


@tool
def write(path, text):
    Path(path).write_text(text)
    return len(text)


@tool(effect="irreversible", key=lambda place, to: to)
def send(place, to):
    with open(place, "a") as file:
        file.write(f"{to}\n")
    return f"sent {to}"


@tool(effect="reversible", key=lambda place, to: to, undo=lambda place, to: None)
def book(place, to):
    with open(place, "a") as file:
        file.write(f"{to}\n")
    return f"booked {to}"


def edit(branch, n):
    """Change state, conversation, tasks and files; the score is n."""
    branch.agent.memory.append(f"way {n}")
    branch.agent.tokens += 10 * n
    branch.messages.append({"role": "assistant", "content": f"way {n}"})
    for task in branch.tasks(["write"]):
        with task:
            write(str(branch.workspace.path / "src/app.py"), f"way({n})\n")
            (branch.workspace.path / f"new-{n}").write_text(str(n))
            (branch.workspace.path / "run.sh").unlink()
    return {"score": n, "lines": 1}


def score(branch, n=0):
    return n


async def awaited(branch, n):
    import asyncio

    await asyncio.sleep(0)
    branch.agent.memory.append(n)
    return n


def fail(branch, n):
    branch.agent.memory.append("before it failed")
    if n % 2:
        raise LookupError(f"no way {n}")
    return n


def leave(branch, how):
    """End in every way that is not an exception."""
    # Its last argument tells which test it belongs to.
    sleep = [
        sys.executable,
        "-c",
        "import time; time.sleep(600)",
        str(branch.manager.store.backend.path),
    ]
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "real time":
        os.kill(os.getpid(), signal.SIGRTMIN + 5)
        time.sleep(600)
    if how == "exit":
        sys.exit("enough")
    if how == "vanish":
        os._exit(3)
    if how == "hang":
        subprocess.Popen(sleep)
        time.sleep(600)
    if how == "memory":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        return len(bytearray(8 << 30))
    if how == "daemon":
        subprocess.Popen(sleep, start_new_session=True)
    return 1


def tell_place(branch):
    """Write where things are seen, by absolute path, and look at what others have done."""
    path = branch.workspace.path
    (path / "mine").write_text(branch.key)
    time.sleep(0.2)
    assert (path / "mine").read_text() == branch.key
    return {"same_path": float(str(path) == branch.agent.memory[0]), "files": len(os.listdir(path))}


def tell_surroundings(branch, file):
    """Write what a process is given to a file, as JSON."""
    opened = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[3:-1])
    umask = os.umask(0)
    os.umask(umask)
    Path(file).write_text(
        json.dumps(
            {
                "environment": dict(os.environ),
                "cwd": os.getcwd(),
                "arguments": len(sys.argv),
                "flags": str(sys.flags),
                "path": sys.path,
                "stdin": sys.stdin.read(),
                "encodings": [sys.stdout.encoding, sys.stdout.line_buffering],
                "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
                "opened": [name for name in opened if "store" not in name],
                "threads": threading.active_count(),
                "tasks": len(os.listdir("/proc/self/task")),
                "umask": umask,
                "limits": Path("/proc/self/limits").read_text(),
                "signals": [str(signal.getsignal(each)) for each in (2, 13, 15, 17)],
                "level": len(inspect.stack()) < 20,
            }
        )
    )
    return {"parent": os.getppid()}


def draw(branch):
    import tempfile

    import numpy

    names = tempfile._get_candidate_names()
    print(random.random(), numpy.random.random(), uuid.uuid4(), uuid.uuid1().clock_seq, next(names))
    return 1


def kill_parent(branch, how):
    if how == "kill":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    return {"parent": os.getppid()}


def speak(branch):
    print("to be heard")
    print("and seen", file=sys.stderr)
    return 1


def act(branch, what, place):
    return len({"send": send, "book": book}[what](place, "ann"))


def nonsense(branch, what):
    return {"text": "good", "pair": (1, 2), "inner": {"score": "x"}, "none": None}[what]


def many_files(branch, n):
    for number in range(n):
        (branch.workspace.path / f"file-{number}").write_text(str(number))
    branch.save()
    return n


def odd_metrics(branch, what):
    branch.agent.memory.append("its end")
    return {"good": 1, {"name": "x" * 5000}.get(what, "odd"): float(what) if what != "name" else 1}


async def awaits_tools(branch):
    write(str(branch.workspace.path / "awaited"), "x")
    return 1


def which_module(branch):
    import twice_there

    return len(twice_there.where)


def no():
    raise LookupError("no agent today")


def tried_before(branch, place, parent=None):
    """Tell what is there of an earlier attempt; the first one may kill its worker."""
    path = branch.workspace.path
    seen = {"files": len(os.listdir(path)), "memory": len(branch.agent.memory)}
    branch.agent.memory.append("tried")
    (path / "tried").write_text(branch.key)
    (path / "run.sh").unlink()
    branch.save()
    book(place, branch.key)
    marker = Path(place).with_name("killed")
    if parent is not None and not marker.exists():
        marker.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    return seen


def modules(branch, path):
    """Write the loaded modules of the package to a file outside the workspace."""
    found = [name for name in sys.modules if name.startswith("agent_checkpoint")]
    Path(path).write_text(" ".join(found))
    return 1.0


def kill_worker(job):
    """In place of what a worker runs."""
    os.kill(os.getpid(), signal.SIGKILL)
