"""Interrupts a program at each of its lines, one after another. Run as a program of its own.

Usage: interrupting.py SCENARIO STORE FIRST STEP. Prints how many lines were tried. A round that
hangs ends the program, with a traceback of where.
"""

from __future__ import annotations

import dis
import faulthandler
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import agent_checkpoint
from agent_checkpoint import CheckpointManager, Session, tool
from agent_checkpoint.errors import ConflictError
from agent_checkpoint.session.current_session import as_current

OURS = str(Path(agent_checkpoint.__file__).parent)
SECONDS = 20
"""After which a round counts as one that hangs."""


class Agent:
    """Something with a state."""

    def __init__(self) -> None:
        self.n = 0

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""
        self.n = state["n"]


@cache
def quiet_places(code: CodeType) -> frozenset[int]:
    """Return where `with` blocks are left: a line for the tracer, but no signal comes in there.

    From Python 3.10 on signals are looked for at calls and jumps back, and the first call there
    is the one that lets go. The word `try` is such a line, too: it does nothing.
    """
    ops = [item for item in dis.get_instructions(code) if item.opname not in ("CACHE", "PRECALL")]
    found = {op.offset for op in ops if op.opname in ("NOP", "SETUP_FINALLY")}
    for at in range(len(ops) - 3):
        nones = [op.opname == "LOAD_CONST" and op.argval is None for op in ops[at : at + 3]]
        dup = ops[at].opname == "LOAD_CONST" and ops[at + 1].opname == "DUP_TOP"  # Python 3.10
        if dup or (all(nones) and ops[at + 3].opname.startswith("CALL")):
            found.add(ops[at].offset)
            if ops[at - 1].opname in ("SWAP", "ROT_TWO"):  # with a value that is returned
                found.add(ops[at - 1].offset)
    return frozenset(found)


def interrupted(work: Callable[[], object], line: int) -> bool:
    """Do some work, but raise KeyboardInterrupt at its so-manieth line; tell whether it has one."""
    left = line

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line" and frame.f_lasti not in quiet_places(frame.f_code):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return left <= 0


def places(manager: CheckpointManager, key: str) -> list[str]:
    """Return the ids of all checkpoints of a key, oldest first."""
    return [row["id"] for row in reversed(manager.history(key))]


def opened(store: Any, key: str) -> Session:
    """Return a new session with an agent."""
    return Session(key, agent=Agent(), store=store)


def check_session(store: Any, key: str, work: Callable[[Session], object], line: int) -> bool:
    """Interrupt what a session does, and look whether it goes on as it should."""
    session = opened(store, key)
    manager, agent = session.manager, session.agent
    agent.n = 1
    saved = [session.head, session.save(label="before")]
    agent.n = 2
    went_on = interrupted(lambda: work(session), line)
    agent.n = 3
    saved.append(session.save(label="after"))
    there = places(manager, key)
    assert [name for name in there if name in saved] == saved, "an acknowledged one is lost"
    assert there[-1] == saved[-1]
    labels = [row["label"] for row in manager.history(key)]
    assert labels.count("between") <= 1
    other = opened(store, key)
    assert other.agent.n == 3
    try:
        session.save()
    except ConflictError:
        pass
    else:
        raise AssertionError("another writer was not noticed")
    other.close()
    session.close()
    return went_on


def check_replaced(store: Any, key: str, line: int) -> bool:
    """Interrupt a save, and have another open the session before the next one."""
    session = opened(store, key)
    went_on = interrupted(lambda: session.save(label="between"), line)
    other = opened(store, key)
    try:
        session.save()
    except ConflictError:
        pass
    else:
        raise AssertionError("another writer was not noticed")
    other.save()
    other.close()
    session.close()
    return went_on


def check_rollback(store: Any, key: str, line: int) -> bool:
    """Interrupt a way back: it is gone, or not at all."""
    session = opened(store, key)
    session.agent.n = 1
    session.save(label="then")
    session.agent.n = 2
    session.save(label="present")
    went_on = interrupted(lambda: session.rollback(steps=1), line)
    assert session.agent.n in (1, 2)
    noted = session.manager.state_dict(key)["agent"]["n"]
    was = session.agent.n
    if was != noted:  # interrupted when it was written, and could not be taken back any more
        assert (was, noted) == (2, 1), (was, noted)
    session.save(label="after")
    session.close()
    other = opened(store, key)
    assert other.agent.n == was
    other.close()
    return went_on


def save(session: Session) -> None:
    """Save."""
    session.save(label="between")


def save_behind(session: Session) -> None:
    """Save while something is being written behind the caller."""
    with session._state.writer.lock:
        session._state.writer.submit(session._state.draft(label="behind"))
    session.save(label="between")


@tool(effect="irreversible")
def send(to: str) -> str:
    """Do something outside."""
    SENT.append(to)
    return to


SENT: list[str] = []


def check_call(store: Any, key: str, line: int) -> bool:
    """Interrupt a call: it is made once, or a person is asked, and the next save works."""
    session = opened(store, key)
    SENT.clear()

    def work() -> None:
        with as_current(session._tools):
            send("a")

    went_on = interrupted(work, line)
    session.save(label="after")
    session.close()
    session = opened(store, key)
    known = [effect.status for effect in session.effects]
    assert len(SENT) <= len(known) <= 1
    assert not SENT or known[0] in ("committed", "unknown")
    session.close()
    return went_on


def check_manager(store: Any, key: str, line: int) -> bool:
    """Interrupt saves of a manager, one of them behind the caller."""
    manager = store if isinstance(store, CheckpointManager) else CheckpointManager(store)
    saved = [manager.save(key, {"n": 0})]
    futures = []

    def work() -> None:
        futures.append(manager.save_in_background(key, {"n": 1}))
        saved.append(manager.save(key, {"n": 2}))

    went_on = interrupted(work, line)
    futures = [future.result() for future in futures]
    saved[1:1] = futures
    saved.append(manager.save(key, {"n": 3}))
    there = places(manager, key)
    assert [name for name in there if name in saved] == saved
    numbers = [manager.state_dict(key, name)["n"] for name in there]
    assert numbers == sorted(numbers), numbers
    assert numbers[-1] == 3
    assert manager.save_in_background(key, {"n": 4}).result() == places(manager, key)[-1]
    if not isinstance(store, CheckpointManager):
        manager.close()
    return went_on


SCENARIOS: dict[str, Callable[[Any, str, int], bool]] = {
    "save": lambda store, key, line: check_session(store, key, save, line),
    "behind": lambda store, key, line: check_session(store, key, save_behind, line),
    "replaced": check_replaced,
    "rollback": check_rollback,
    "call": check_call,
    "manager": check_manager,
}


def main(scenario: str, url: str, first: str, step: str) -> None:
    """Try every so-manieth line."""
    tried = 0
    line = int(first)
    store: Any = CheckpointManager() if url == "memory" else url
    while True:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            went_on = SCENARIOS[scenario](store, f"{scenario}-{line}", line)
        except BaseException as error:
            raise AssertionError(f"interrupted at line {line} of {scenario}") from error
        faulthandler.cancel_dump_traceback_later()
        if not went_on:
            break
        tried += 1
        line += int(step)
    print(tried)


if __name__ == "__main__":
    main(*sys.argv[1:])
