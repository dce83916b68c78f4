"""One host of several that share a store: obeys the lines of JSON on its standard input.

Started by `tests.crash.hosts.Host`, with its own home, host name and directories. The world outside
is a file with a line for each mail.
"""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from agent_checkpoint import (
    Approvals,
    Checkpointable,
    CheckpointManager,
    External,
    Session,
    Suspended,
    list_sessions,
    tool,
)
from agent_checkpoint.backends.postgres import PostgresBackend
from agent_checkpoint.errors import CheckpointError

KEY = "work"
_OUTBOX = Path(os.environ["OUTBOX"])
_COUNTED = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.chmod", "os.symlink")

session = None


class Opaque:
    """Saved as a pickle."""

    def __init__(self, n):
        self.n = n


class HostAgent(Checkpointable):
    def __init__(self):
        self.count = 0


class OpaqueAgent(Checkpointable):
    def __init__(self):
        self.count = 0
        self.opaque = Opaque(0)


@tool
def write(path, text):
    (session.workspace.path / path).parent.mkdir(parents=True, exist_ok=True)
    (session.workspace.path / path).write_text(text)


@tool(effect="irreversible", key=lambda to: to)
def mail(to, *, effect):
    if os.environ.get("PAUSED") == "before":
        os.kill(os.getpid(), signal.SIGSTOP)
    with open(_OUTBOX, "a") as outbox:
        outbox.write(f"{to}\n")
    if os.environ.get("PAUSED") == "after":
        os.kill(os.getpid(), signal.SIGSTOP)
    return f"sent to {to}"


@tool(effect="irreversible", key=lambda to: to, approve=True)
def deploy(to, *, effect):
    with open(_OUTBOX, "a") as outbox:
        outbox.write(f"{to}\n")
    return f"deployed to {to}"


# -- what a host can be asked for ------------------------------------------------------------------


def open_session(agent="HostAgent", die_at=None, external=False, **options):
    global session
    parts = {}
    if external:
        parts["image"] = External("image", take=lambda: Opaque(1), restore=lambda handle: None)
    if die_at is not None:
        arm(die_at)
    session = Session(
        KEY, agent=globals()[agent](), store=os.environ["STORE"], parts=parts, pickles="allow",
        **options,
    )  # fmt: skip
    return session.resumed


def delegate():
    """Have a sub-agent in progress, with a pickle in its state."""
    session.subagent("helper", agent=OpaqueAgent()).__enter__()
    session.save()


def arm(die_at):
    """Have this process be killed at a step that changes a directory or the store."""
    left = [die_at]

    def step(event, args=()):
        if event in _COUNTED:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    append = PostgresBackend.append

    def appended(self, *args, **options):
        step("os.mkdir")
        seq = append(self, *args, **options)
        step("os.mkdir")
        return seq

    PostgresBackend.append = appended


def work(step):
    """A step in a task that is left in progress: file, state, conversation, and a mail."""
    session.agent.count += 1
    session.messages.append({"role": "user", "content": f"step {step}"})
    write("src/app.py", f"step {step}\n")
    return mail(f"step {step}")


def tasks(run=None):
    """Run the tasks up to one, which is left in progress."""
    done = []
    for task in session.tasks(["one", "two", "three"]):
        task.__enter__()
        work(task.id)
        done.append(task.id)
        if task.id == run:
            break
        task.__exit__(None, None, None)
    return done


def send(to):
    return mail(to)


def ask(to):
    with suppress(Suspended):
        return deploy(to)
    return "suspended"


def carry_out():
    return [str(result) for result in session.carry_out()]


def save():
    return session.save()


def rollback(die_at=None, **options):
    if die_at is not None:
        arm(die_at)
    return session.rollback(effects="warn", **options).id


def pending():
    with Approvals(os.environ["STORE"]) as approvals:
        return [request.id for request in approvals.pending()]


def state():
    (row,) = list_sessions(os.environ["STORE"])
    return {
        "count": session.agent.count,
        "messages": [item["content"] for item in session.messages],
        "tasks": row.tasks,
        "effects": {effect.words: effect.status for effect in session.effects},
        "pending": len(row.pending),
        "drift": None if session.drift is None else sorted(session.drift.changed),
    }


def head():
    with CheckpointManager(os.environ["STORE"]) as manager:
        return manager.history(KEY)[0]["id"]


def command(*arguments):
    """Run the command on this host."""
    run = [sys.executable, "-m", "agent_checkpoint", "--store", os.environ["STORE"]]
    done = subprocess.run([*run, *arguments], capture_output=True, text=True)
    return [done.returncode, done.stdout, done.stderr]


def approve_on_page():
    """Approve the only request on the page of this host."""
    from tests.web.visitor import Visitor

    with CheckpointManager(os.environ["STORE"]) as manager:
        visitor = Visitor(manager)
        (request,) = set(re.findall("approval-[0-9a-f]+", visitor.text("/approvals")))
        return visitor.approve(request).status_code


def main():
    for line in sys.stdin:
        verb, arguments, options = json.loads(line)
        try:
            reply = ["ok", globals()[verb](*arguments, **options)]
        except CheckpointError as error:
            reply = [type(error).__name__, str(error)]
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
