"""What is done to a workspace while it breaks, and what must be on the disk and in the store then.

A place is a directory with a workspace, its store, somebody else's files beside it, and a home for
the index. A state says what is in a workspace: by path, a type and what belongs to it.
"""

import json
import os
import random
import shutil
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Callable

from agent_checkpoint import CheckpointManager
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.tree.snapshot import objects_from, read_record
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, read_chunks, read_directory
from agent_checkpoint.workspace.workspace import Workspace
from tests.crash.fault_process import say

SPECIAL = ("fifo, device or socket",)
OUTSIDE = {"precious": ("file", 0o600, b"nobody writes here")}
OURS = {os.fsdecode(STAGING)}


def file(data, mode=0o644):
    return ("file", mode, data if isinstance(data, bytes) else data.encode())


def folder(mode=0o755):
    return ("dir", mode)


def link(text):
    return ("link", text)


@cache
def noise(seed, size):
    return random.Random(seed).randbytes(size)


LEFT_OUT = {"a.secret": file("not to be captured", 0o600)}
_BOTH = {
    **LEFT_OUT,
    ".checkpointignore": file("*.secret\n"),
    "kept": file("the same in both"),
    "link": link("kept"),
    "sub": folder(),
    "sub/same": file("the same"),
}
TARGET = {
    **_BOTH,
    "changed": file("as it was"),
    "closed": folder(0o500),
    "closed/within": file("as it was, in a closed directory"),
    "dir or file": folder(),
    "dir or file/inner": file("inner"),
    "dir or link": folder(0o700),
    "dir or link/inner": file("inner, not outside"),
    "empty": folder(),
    "file or dir": file("a file"),
    "gone": file("gone by now"),
    "large": file(noise(1, 1_100_000)),
    "link": link("sub"),
    "link or dir": link("kept"),
    "mode": file("only its mode", 0o600),
    "sub/deep": folder(0o711),
    "sub/deep/deeper": folder(),
    "sub/deep/deeper/file": file("deep"),
}
PRESENT = {
    **_BOTH,
    "changed": file("as it is"),
    "closed": folder(0o500),
    "closed/within": file("as it is, in a closed directory"),
    "dir or file": file("a file now"),
    "dir or link": link("../outside"),
    "file or dir": folder(),
    "file or dir/inner": file("a directory now"),
    "large": file(noise(2, 1_100_001)),
    "link": link("../outside/precious"),
    "link or dir": folder(),
    "link or dir/inner": file("inner"),
    "mode": file("only its mode", 0o755),
    "new": file("new"),
    "new dir": folder(),
    "new dir/below": folder(0o700),
    "new dir/below/file": file("new and deep"),
}
MANY = {
    **{f"many/{n}": file(f"file {n}") for n in range(300)},
    "huge": file(noise(3, 5_000_000)),
    "many": folder(),
}


# -- states and disks ----------------------------------------------------------------------------


def build(place, state):
    """Make a directory with just this in it."""
    remove(place)
    place.mkdir()
    for path, (kind, *rest) in sorted(state.items()):
        if kind == "dir":
            (place / path).mkdir()
        elif kind == "link":
            (place / path).symlink_to(rest[0])
        else:
            (place / path).write_bytes(rest[1])
            (place / path).chmod(rest[0])
    for path, (kind, *rest) in sorted(state.items(), reverse=True):
        if kind == "dir":
            (place / path).chmod(rest[0])


def remove(place):
    """Remove a directory, also if parts of it refuse that."""
    if place.is_dir():
        for above, _, _ in os.walk(place):
            os.chmod(above, 0o700)
        shutil.rmtree(place)


def seen(place):
    """Return the state of a directory, with all of our own leftovers in it."""
    state = {}
    for above, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = Path(above, name)
            state[str(path.relative_to(place))] = _seen(path)
    return state


def _seen(path):
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return link(os.readlink(path))
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISREG(found.st_mode):
        return file(path.read_bytes(), mode)
    return folder(mode) if stat.S_ISDIR(found.st_mode) else SPECIAL


def captured(state):
    """Return what of a state is in its snapshot."""
    return {path: what for path, what in state.items() if path not in LEFT_OUT}


def stored(tree):
    """Return the state that a snapshot holds, read from its store past the code that restores."""
    state = {}
    get = objects_from(tree.source)
    waiting = [("", tree.root.ref)]
    while waiting:
        above, ref = waiting.pop()
        for item in read_directory(ref, get):
            path = above + os.fsdecode(item.name)
            if item.type == FOLDER:
                state[path] = folder(item.mode)
                waiting.append((f"{path}/", item.ref))
            elif item.type == FILE:
                names = [item.ref] if item.id == item.ref else read_chunks(item.ref, get).names
                data = b"".join(found.payload for found in get(names))
                assert len(data) == item.size
                state[path] = file(data, item.mode)
            else:
                state[path] = link(os.fsdecode(item.target))
    return state


def check_same(found, wanted):
    """Two states are equal; else say where they differ, without all of their bytes."""
    paths = sorted(p for p in found.keys() | wanted.keys() if found.get(p) != wanted.get(p))
    told = [f"{path}: {_brief(found.get(path))}, not {_brief(wanted.get(path))}" for path in paths]
    assert not paths, "; ".join(told[:8])


def _brief(what):
    return str(what)[:60]


def check_one_of(found, *allowed):
    """A state is one of these, and no mix; return which."""
    for wanted in allowed:
        if found == wanted:
            return wanted
    check_same(found, min(allowed, key=lambda one: len(dict(found.items() ^ one.items()))))
    raise AssertionError("unreachable")


# -- places --------------------------------------------------------------------------------------


def open_manager(place):
    return CheckpointManager(backend="sqlite", path=place / "store")


def open_workspace(place, manager):
    return Workspace(place / "workspace", manager.store)


def snapshots(ws, store=None):
    """Return the trees of a workspace's own key, oldest first, each with its kind."""
    store = ws.store if store is None else store
    found = list(store.newest_first(ws.key))
    return [
        (one.kind, read_record(one.parts["workspace"]["$object"], store.backend))
        for one in reversed(found)
    ]


def make_place(place, *, earlier=TARGET, now=PRESENT):
    """A workspace in one state, and a store that has it in an earlier one if that is given."""
    place.mkdir(parents=True, exist_ok=True)
    build(place / "outside", OUTSIDE)
    with open_manager(place) as manager:
        if earlier is not None:
            build(place / "workspace", earlier)
            with open_workspace(place, manager) as ws:
                tree = ws.snapshot(label="earlier")
                check_same(stored(tree), captured(earlier))
        else:
            manager.list_keys()
    build(place / "workspace", now)


# -- what is done --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Action:
    """Something to do with a workspace; what is on the disk before it, and what it makes of it."""

    do: Callable
    earlier: dict
    before: dict
    after: dict


def _earlier(ws):
    return snapshots(ws)[0][1]


def _restore_earlier(ws):
    return json.dumps(ws.restore(_earlier(ws)).leave)


ACTIONS = {
    "first snapshot": Action(lambda ws: ws.snapshot().ref, None, PRESENT, PRESENT),
    "snapshot": Action(lambda ws: ws.snapshot().ref, TARGET, PRESENT, PRESENT),
    "large snapshot": Action(lambda ws: ws.snapshot().ref, TARGET, MANY, MANY),
    "restore": Action(_restore_earlier, TARGET, PRESENT, TARGET),
}
TAKING = ("first snapshot", "snapshot", "large snapshot")


def warm_up(place):
    """Do everything once, so that all that Python loads late is loaded."""
    place = Path(place)
    for name, action in ACTIONS.items():
        make_place(place / name, earlier=action.earlier, now=action.before)
        with open_manager(place / name) as manager, open_workspace(place / name, manager) as ws:
            action.do(ws)
    remove(place)


def _opened(place):
    os.environ["AGENT_CHECKPOINT_HOME"] = str(place / "home")
    return open_workspace(place, open_manager(place))


def act(name, place):
    """Run as a process: do it, and say so."""
    say("did", ACTIONS[name].do(_opened(Path(place))))


def reopen(place):
    """Run as a process, after another has died: open the workspace, which finishes a restore."""
    try:
        _opened(Path(place))
        say("opened")
    except CheckpointError as error:
        refused(error)


def act_and_go_on(name, place):
    """Run as a process: do it or be refused; then go on, with the same workspace if there is one.

    Each time it says what it did or what refused it, and then what is on the disk.
    """
    place, ws = Path(place), None
    for _ in range(2):
        try:
            ws = ws or _opened(place)
            say("did", ACTIONS[name].do(ws))
        except CheckpointError as error:
            refused(error)
        say(state_of(name, place))


def act_once(name, place):
    """Run as a process: the same, but end then.

    As strace counts, every thread that went on would run into the fault once more.
    """
    try:
        say("did", ACTIONS[name].do(_opened(Path(place))))
    except CheckpointError as error:
        refused(error)


def refused(error):
    """Say what refused it."""
    say("refused", type(error).__name__, str(error).replace("\n", " "))


def state_of(name, place):
    """Say what is in a workspace: what was before, what is to come, or which paths are not so."""
    found = seen(place / "workspace")
    ours = {path for path in found if path.split("/")[0] in OURS}
    before, after = ACTIONS[name].before, ACTIONS[name].after
    rest = {path: what for path, what in found.items() if path not in ours}
    paths = rest.keys() | before.keys() | after.keys()
    told = {
        "staged": bool(ours),
        "not before": sorted(path for path in paths if rest.get(path) != before.get(path)),
        "not after": sorted(path for path in paths if rest.get(path) != after.get(path)),
    }
    return json.dumps(told)
