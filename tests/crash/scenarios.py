"""What is done to an SQLite store while it breaks, and what must be in it then.

Everything goes through the manager: how the store keeps its bytes is no business of these tests.
"""

import base64
import random
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Callable

from agent_checkpoint import CheckpointManager, KeepLatest
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.fault_process import say


@cache
def big_text(number):
    """Text that takes more than 100 kB, however well it is compressed."""
    return base64.b64encode(random.Random(number).randbytes(120_000)).decode()


def small(n):
    return {"n": n}


def large(n):
    """About 320 kB: a text that all large states share, and one of its own."""
    return {"n": n, "shared": big_text(0), "own": [big_text(n), {"deep": "x" * 1000}]}


def open_manager(path):
    return CheckpointManager(backend="sqlite", path=path)


def contents(path):
    """Every state in a store, by key and number; all must be readable and sound."""
    with open_manager(path) as manager:
        report = manager.verify()
        assert report.ok, report.problems
        found = {}
        for key in manager.list_keys():
            rows = manager.history(key)
            assert manager.state_dict(key) == manager.state_dict(key, rows[0]["id"])
            found[key] = {
                parse_checkpoint_id(row["id"]).seq: manager.state_dict(key, row["id"])
                for row in rows
            }
        return found


OLD = {
    "Key": {1: small(1), 2: small(2), 3: small(3)},
    "Big": {1: large(1), 2: large(2)},
    "Doomed": {3: large(13), 4: large(14), 5: small(15)},
}
PACKED = {1: small(21), 2: large(22), 3: small(23), 4: large(1)}


def make_store(path):
    """A store with OLD in it, and something for gc to delete."""
    with open_manager(path) as manager:
        for key in ("Key", "Big"):
            for state in OLD[key].values():
                manager.save(key, state)
        for state in (large(11), large(12), *OLD["Doomed"].values()):
            manager.save("Doomed", state)
        manager.delete("Doomed", "Doomed@1")
        manager.delete("Doomed", "Doomed@2")


def make_archive(path, place):
    """An archive of the key Packed."""
    with open_manager(place) as manager:
        for state in PACKED.values():
            manager.save("Packed", state)
        manager.export_archive(path, "Packed")


# -- what is done --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Action:
    """Something to do to a store with a manager, and what the store holds once it is done."""

    do: Callable
    after: dict
    before: dict
    then_close: bool = False


def _with(**keys):
    return {**OLD, **keys}


ACTIONS = {
    "first save": Action(lambda m, a: m.save("Key", small(1)), {"Key": {1: small(1)}}, {}),
    "first large save": Action(lambda m, a: m.save("Key", large(1)), {"Key": {1: large(1)}}, {}),
    "small save": Action(
        lambda m, a: m.save("Key", small(4)), _with(Key={**OLD["Key"], 4: small(4)}), OLD
    ),
    "large save": Action(
        lambda m, a: m.save("Key", large(4)), _with(Key={**OLD["Key"], 4: large(4)}), OLD
    ),
    "save and close": Action(
        lambda m, a: m.save("Key", small(4)), _with(Key={**OLD["Key"], 4: small(4)}), OLD, True
    ),
    "delete one": Action(lambda m, a: m.delete("Big", "Big@2"), _with(Big={1: OLD["Big"][1]}), OLD),
    "delete key": Action(
        lambda m, a: m.delete("Big"), {k: v for k, v in OLD.items() if k != "Big"}, OLD
    ),
    "prune": Action(
        lambda m, a: m.prune("Doomed", KeepLatest(1)), _with(Doomed={5: OLD["Doomed"][5]}), OLD
    ),
    "gc": Action(lambda m, a: m.gc(), OLD, OLD),
    "fork": Action(lambda m, a: m.fork("Big", "Other"), _with(Other={1: OLD["Big"][2]}), OLD),
    "import": Action(lambda m, a: m.import_archive(a), _with(Packed=PACKED), OLD),
    "export": Action(lambda m, a: m.export_archive(a.with_name("out.ckpt"), "Big"), OLD, OLD),
}


def warm_up(place):
    """Do everything once, so that all that Python loads late is loaded."""
    place = Path(place)
    make_store(place / "store")
    make_archive(place / "packed.ckpt", place / "other")
    for name, action in ACTIONS.items():
        copy = place / name
        if action.before:
            shutil.copytree(place / "store", copy)
        with open_manager(copy) as manager:
            manager.stats()
            action.do(manager, place / "packed.ckpt")
        contents(copy)
    shutil.rmtree(place)


def act(name, path, archive):
    """Run as a process: do it, and say so."""
    manager = open_manager(path)
    say("did", ACTIONS[name].do(manager, Path(archive)))
    if ACTIONS[name].then_close:
        manager.close()


def act_and_go_on(name, path, archive):
    """Run as a process: do it or be refused; then go on in the same process."""
    manager = open_manager(path)
    try:
        done = ACTIONS[name].do(manager, Path(archive))
        if ACTIONS[name].then_close:
            manager.close()
        say("did", done)
    except CheckpointError as error:
        say("refused", type(error).__name__, str(error).replace("\n", " "))
    except KeyboardInterrupt:
        say("interrupted")
    for key in manager.list_keys():
        for row in manager.history(key):
            manager.state_dict(key, row["id"])
    say("then", manager.save("Key", large(5)))
    manager.gc()
    say("verified", manager.verify().ok)
    manager.close()


def check_is_one_of(present, allowed):
    """The store holds just one of these; else say how it differs, without all of its text."""
    assert present in allowed, (
        f"the store holds {_brief(present)}, not {list(map(_brief, allowed))}"
    )


def _brief(found):
    return {
        key: {
            seq: state["n"] if state in (small(state["n"]), large(state["n"])) else "altered"
            for seq, state in sorted(states.items())
        }
        for key, states in found.items()
    }


def go_on(path):
    """Run as a process, after another has died: save, and say so."""
    say("then", open_manager(path).save("Key", large(5)))


def check_usable(path, present):
    """Whoever opens the store next can save, delete and collect; nothing else changes."""
    with open_manager(path) as manager:
        cid = manager.save("Key", large(6))
        seq = parse_checkpoint_id(cid).seq
        assert seq > max(present.get("Key", {0: 0}))
        manager.gc()
        manager.save("Key", small(7))
        manager.delete("Key", cid)
        manager.gc()
    expected = {**present, "Key": {**present.get("Key", {}), seq + 1: small(7)}}
    check_is_one_of(contents(path), [expected])
