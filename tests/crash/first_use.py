"""Run as a program: the first save and load of everything, by a thread; tells what it imported.

Prints the modules whose import another thread could have forked in the middle of.
"""

import os
import sys
import threading
import uuid
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from agent_checkpoint import CheckpointManager, KeepLatest, Session, Workspace
from agent_checkpoint.backends.os_support import os_fork

STATE = {
    "list": [{"role": "user", "content": "x" * 50}] * 40,
    "long": "y" * 300_000,
    "bytes": os.urandom(200_000),
    "values": [Decimal("1.5"), Fraction(1, 3), uuid.UUID(int=5), Path("a/b"), 1 + 2j, {1, 2}],
    "when": datetime(2026, 1, 2, tzinfo=timezone.utc),
}


class Spy:
    """Sees every module that is looked for, and lets others find it."""

    def __init__(self):
        self.ungated = set()

    def find_spec(self, name, path=None, target=None):
        if not getattr(os_fork._gate.mine, "depth", 0):
            self.ungated.add(name)


def opened(what, url, folder):
    """Open something; return what is then to be done by a thread."""
    if what == "session":
        return using(Session("job", store=url))
    manager = CheckpointManager(url)
    if what == "load":
        return lambda: [manager.state_dict(key) for key in manager.list_keys()]
    if what == "save":
        return lambda: save(manager)
    (folder / "file").write_text("content")
    (folder / "large").write_bytes(os.urandom(3_000_000))
    workspace = Workspace(folder, store=manager.store)
    return lambda: snapshot(workspace)


def save(manager):
    manager.save("key", dict(STATE))
    manager.state_dict("key")
    manager.history("key")
    manager.load("key", {})
    manager.save_in_background("key", {"n": 2}).result()
    manager.prune("key", KeepLatest(1))
    manager.gc()
    manager.verify()


def snapshot(workspace):
    tree = workspace.snapshot()
    (workspace.path / "file").write_text("changed")
    workspace.snapshot()
    workspace.restore(tree)


def using(session):
    session.__enter__()

    def work():
        session.messages.append({"role": "user", "content": "hello"})
        for task in session.tasks(["read", "edit"]):
            with task:
                session.save()

    return work


def main(what, url, folder):
    work = opened(what, url, Path(folder))
    spy = Spy()
    sys.meta_path.insert(0, spy)
    failures = []

    def run():
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    sys.meta_path.remove(spy)
    if failures:
        raise failures[0]
    print(*sorted(spy.ungated))


if __name__ == "__main__":
    main(*sys.argv[1:])
