"""A session with everything in its ledger, for the golden archive and for who reads it.

    .venv/bin/python -m tests.compat.session_subject

wrote tests/compat/v1/session.ckpt, which stays as it is for ever.
"""

from pathlib import Path
from typing import Any

from agent_checkpoint import Checkpointable, CheckpointManager, Session, Suspended, tool

ARCHIVE = Path(__file__).resolve().parent / "v1" / "session.ckpt"
KEY = "golden session"
DONE: "list[str]" = []
"""What was really done, in this process."""


class Killed(BaseException):
    """As if the process were gone."""


class Clerk(Checkpointable):
    def __init__(self) -> None:
        self.letters = 0


@tool(name="golden_note")
def note(text: str) -> str:
    return text.upper()


@tool(name="golden_mail", effect="irreversible", key=lambda to, **_: to)
def mail(to: str, body: str) -> "dict[str, Any]":
    DONE.append(f"mail {to}")
    if body == "killed":
        raise Killed
    return {"to": to, "bytes": len(body)}


@tool(name="golden_put", effect="idempotent")
def put(name: str) -> int:
    DONE.append(f"put {name}")
    return len(name)


@tool(name="golden_charge", effect="reversible", key=lambda order: order, undo=lambda order: None)
def charge(order: str) -> str:
    DONE.append(f"charge {order}")
    return "charged"


@tool(name="golden_publish", effect="irreversible", key=lambda version: version, approve=True)
def publish(version: str) -> str:
    DONE.append(f"publish {version}")
    return version


def suspended(version: str) -> str:
    try:
        publish(version)
    except Suspended as waiting:
        return waiting.approval_id
    raise AssertionError("nobody was asked")


def fill(manager: CheckpointManager) -> None:
    """Let a session do one of everything."""
    agent = Clerk()
    with Session(KEY, agent=agent, store=manager) as session:
        session.messages.append({"role": "user", "content": "write letters"})
        for task in session.tasks(["first", "second", "third"]):
            if task.id == "third":
                break
            with task:
                agent.letters += 1
                note(f"letter {agent.letters}")
                task.result = ("done", agent.letters)
        put("a")
        before = session.save(label="before the money")
        charge("order 1")
        session.rollback(to=before, effects="compensate")
        charge("order 2")
        mail("ann", "long " * 1000)
        session.rollback(to=before, effects="warn")
        session.approvals.deny(suspended("1.0"), "not today", by="Ann")
        session.approvals.approve(suspended("1.1"), by="Ann")
        publish("1.1")
        suspended("1.2")
        try:
            mail("bob", "killed")
        except Killed:
            session.save()


if __name__ == "__main__":
    ARCHIVE.unlink(missing_ok=True)
    with CheckpointManager() as manager:
        fill(manager)
        print(manager.export_archive(ARCHIVE, KEY), "checkpoints,", ARCHIVE.stat().st_size, "bytes")
