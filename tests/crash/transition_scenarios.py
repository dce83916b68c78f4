"""What moves a directory to another checkpoint: rollback, undo, adopt, merge and `restore`."""

import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path

from agent_checkpoint import Checkpointable, Session
from agent_checkpoint.agents.tracked_dir import open_tracked
from agent_checkpoint.cli.main import main
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.directory_key import key_of
from tests.crash.fault_process import say

KEY = "moved"


class MovedAgent(Checkpointable):
    def __init__(self):
        self.count = 0


def warm_up(scratch):
    """Have everything imported that a run needs."""
    for kind in ("rollback", "undo", "adopt", "merge", "command"):
        place = Path(scratch) / kind
        make(place, kind)
        _move(place, kind)
        _contents(place, kind)


def _write(place, number):
    files = Path(place) / "work"
    (files / "src").mkdir(exist_ok=True)
    (files / "src" / "app.py").write_text(f"print({number})\n")
    (files / f"only-{number}").mkdir()
    (files / f"only-{number}" / "file").write_text("x" * number)


def _session(place):
    return Session(
        KEY, agent=MovedAgent(), workspace=Path(place) / "work", store=Path(place) / "store"
    )


def make(place, kind):
    """Make a session, or a directory with checkpoints, in state 2 with state 1 before it."""
    place = Path(place)
    (place / "work").mkdir(parents=True)
    if kind == "command":
        for number in (1, 2):
            _write(place, number)
            _type(place, "save")
        return
    with _session(place) as session:
        for number in (1, 2):
            _write(place, number)
            session.agent.count = number
            session.save(label=str(number))
        if kind == "undo":
            session.rollback(steps=1)
        if kind in ("adopt", "merge"):
            with session.fork("try", driver="copy") as branch:
                (branch.workspace.path / "only-3").write_text("3")
                (branch.workspace.path / "only-1" / "file").unlink()
                branch.agent.count = 3
        if kind == "merge":
            (place / "work" / "mine").write_text("mine")
            session.save()


def act(place, kind):
    """Move it."""
    _move(place, kind)
    say("done")


def _move(place, kind):
    if kind == "command":
        _type(place, "restore", "@1", "--yes")
    else:
        with _session(place) as session:
            if kind == "rollback":
                session.rollback(to=f"{KEY}@2")
            elif kind == "undo":
                session.undo()
            else:
                session.adopt("try", merge="files" if kind == "merge" else None)


def resume(place, kind):
    """Open it again, and say what it holds."""
    say(json.dumps(_contents(Path(place), kind)))


def _contents(place, kind):
    with CheckpointManager(backend="sqlite", path=place / "store") as manager:
        if kind == "command":
            key = key_of(place / "work")
            with open_tracked(place / "work", manager.store, key) as tracked:
                tree = tree_in(manager.store, manager.store.head(key))
                drift, count = str(tracked.diff(tree)), None
        else:
            agent = MovedAgent()
            with Session(KEY, agent=agent, workspace=place / "work", store=manager) as session:
                drift, count = str(session.drift or ""), agent.count
        is_sound = manager.verify().ok
    root = place / "work"
    files = {
        str(path.relative_to(root)): path.read_text() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }
    return {"files": files, "count": count, "drift": drift, "sound": is_sound}


def _type(place, *words):
    os.chdir(Path(place) / "work")
    os.environ["AGENT_CHECKPOINT_STORE"] = str(Path(place) / "store")
    with redirect_stdout(io.StringIO()):
        assert main([*words]) == 0
