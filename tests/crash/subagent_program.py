"""Sub-agents in two threads that may be killed at any moment: see `test_subagents_killed`.

Each has tasks, a task that fails once, sub-agents of its own, and effects outside: files whose
names are idempotency keys. Run it again, and it goes on until all is done.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent_checkpoint import Checkpointable, Session, tool

KEY = "delegated"
NAMES = ("north", "south")
STEPS = ("plan", "search", "sum up")

_outside = Path()


class Worker(Checkpointable):
    def __init__(self):
        self.notes = []
        self.results = {}


@tool
def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return len(text)


@tool
def note(worker, text):
    worker.notes.append(text)
    return len(worker.notes)


def find(text, effect):
    return text if (_outside / effect.key).exists() else None


@tool(effect="irreversible", verify=find)
def send(text, *, effect):
    with open(_outside / effect.key, "x") as file:  # a second time is an error
        file.write(text)
    return text


def read(child, number):
    """Run a sub-agent of a sub-agent."""
    worker = Worker()
    with child.subagent(f"reader {number}", agent=worker) as reader:
        for task in reader.tasks(["open", "close"]):
            with task:
                note(worker, task.id)
                send("read")  # as its siblings do, and its parent
        reader.result = len(worker.notes)
    return reader.result


def research(session, name):
    worker = Worker()
    failed = set()
    with session.subagent(name, agent=worker) as child:
        if child.finished:
            return child.result
        for task in child.tasks(STEPS, retries=1):
            with task:
                child.messages.append({"role": "user", "content": task.id})
                note(worker, f"{name}: {task.id}")
                write(f"{name}/{task.id}.txt", task.id * 3)
                send("read")
                if task.id == "search":
                    if not failed:
                        failed.add(task.id)
                        raise ValueError("try again")
                    task.result = [read(child, number) for number in range(2)]
                send("read")  # a second one is meant
                child.messages.append({"role": "assistant", "content": f"{task.id} done"})
        child.result = {"notes": len(worker.notes)}
    return child.result


def main(store, directory, outside, every):
    global _outside
    _outside = Path(outside)
    print("opening", flush=True)
    worker = Worker()
    session = Session(KEY, agent=worker, workspace=directory, store=store, every=every)
    os.chdir(directory)
    with session:
        print("working", flush=True)
        for task in session.tasks(["delegate"], on_resume="continue"):
            with task, ThreadPoolExecutor(len(NAMES)) as pool:
                jobs = {name: pool.submit(research, session, name) for name in NAMES}
                worker.results = {name: job.result() for name, job in jobs.items()}
        for task in session.tasks(["report"]):
            with task:
                write("report.txt", str(worker.results))
        print("closing", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
