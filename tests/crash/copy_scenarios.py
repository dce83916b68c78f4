"""Copies and key rotations that are killed, and what must hold then: see `test_copy_killed`.

A store is named by its URL here, so that the same is done to every medium.
"""

import shutil
from pathlib import Path

from agent_checkpoint import CheckpointManager, Session, copy, tool
from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.fault_process import say
from tests.crash.scenarios import big_text, large, small

OLD_KEY = bytes(range(32))
NEW_KEY = bytes(range(32, 64))


@tool(effect="irreversible", key=lambda what: what)
def announce(what):
    return f"announced {what}"


def make_source(path):
    """Fill a store with all that a copy has to take along: gaps, a fork, a session, its ledger."""
    with CheckpointManager(path) as manager:
        for state in (small(1), small(2), large(1), small(3)):
            manager.save("Key", state)
        manager.delete("Key", "Key@2")  # a copy uses its number up by a hidden entry
        manager.fork("Key", "Fork", "Key@3")
        manager.save("Fork", large(2))
        with Session("Work", store=manager) as session:
            session.messages.append({"role": "user", "content": big_text(3)})
            announce("version 1")
            announce("version 2")


def opened(url, key=None):
    return CheckpointManager(url, **({} if key is None else {"encryption_key": key}))


def contents(manager):
    """Every state by key and number, and the records of ledgers by their kind; all sound."""
    report = manager.verify()
    assert report.ok, report.problems
    states = {
        key: {
            parse_checkpoint_id(row["id"]).seq: manager.state_dict(key, row["id"])
            for row in manager.history(key)
        }
        for key in manager.list_keys()
    }
    backend = manager.store.backend
    ledgers = {stream: len(backend.read(stream)) for stream in backend.streams("fx/")}
    return states, ledgers


def _key(name):
    return {"none": None, "old": OLD_KEY, "new": NEW_KEY}[name]


def copy_to(source, target, key):
    with opened(target, _key(key)) as manager:
        return copy(source, manager)


def rotate(url):
    """Rotate from the old key to the new one."""
    with opened(url, [NEW_KEY, OLD_KEY]) as manager:
        manager.rotate_key()


def run_copy(source, target, key):
    """Run as a process: copy, and say so."""
    say("copied", copy_to(source, target, key).checkpoints)


def run_rotation(url):
    """Run as a process: rotate the key, and say so."""
    rotate(url)
    say("rotated")


def warm_up(place):
    """Do everything once, so that all that Python loads late is loaded."""
    place = Path(place)
    make_source(place / "source")
    for name in ("sqlite", "file"):
        target = f"{name}://{place / name}"
        copy_to(place / "source", target, "old")
        rotate(target)
        with opened(target, NEW_KEY) as manager:
            contents(manager)
    shutil.rmtree(place)
