"""P1: the first snapshot of a directory, into a store that is new.

Ours is timed from opening the store to the end of `snapshot()`, with the watches that are set up;
the peers without their `init`. Every round has a new store and, of ours, a new process and no
index. Bytes are what the disk gives away when the store is closed, of ours with the index and the
room that is kept back for a full disk, of restic and borg without their caches.

The floor opens, reads and hashes every file in as many processes as cores, and nothing else, then
commits as many random bytes as our store has, without that room. It is told the paths beforehand.
The whole floor is the least program in plain Python with our result: it watches and lists, reads
each file between two looks at it, builds directories, and stores all of it by hash (`floors.py`).
The guarded floor makes the same tree with the same guarantees (`first_floor.py`): packed by isal;
packed by zlib, as without the extra `fast`; and stored by our SQLite backend.

For information: restic and borg, also when one file has changed; ProcessFork and AgentFS, likewise,
which are stopped after LIMIT seconds; a git that syncs, and what is left of it after `git gc`; and
a checkout with a `.git` of its own, which ours captures and no shadow git does.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from bench.aside import set_aside
from bench.worker import RESERVE
from bench.workspaces import library_peers
from bench.workspaces.peers import Borg, Restic, ShadowGit, TreePeer
from bench.workspaces.stage import Sides, Stage, Taken, disk_usage, processes, store_of, told

LIMIT = 300.0
SNAPSHOTS = 5
"""Of a peer that is a library, after its first."""


def measure_first(stage: Stage, *, thorough: bool) -> None:
    """Take first snapshots; the last store of ours and the last git serve all that follows."""
    tree, place = stage.checkout.path, stage.place
    for turn in range(stage.rounds.first if thorough else 1):
        sides = stage.present(
            ours=lambda: _ours(stage, "ours", stage.home),
            git=lambda: _peer(stage, "git", stage.git),
        )
        if thorough:
            sides["floor"] = lambda: _floor(stage)
            sides["floor-whole"] = lambda: _whole_floor(stage)
            sides["floor-first"] = lambda: _first_floor(stage, "fast")
            sides["floor-first-backend"] = lambda: _first_floor(stage, "backend")
        if thorough and stage.rounds.extras:
            sides["floor-first-plain"] = lambda: _first_floor(stage, "plain")
            sides["ours-plain"] = lambda: _ours(stage, "ours-plain", place / "plain")
        if thorough and turn < stage.rounds.few:
            sides |= _backups(stage, Restic(place / "restic", tree), Borg(place / "borg", tree))
        stage.take_turns("first", turn, sides)
    if thorough and stage.rounds.extras:
        for _ in range(stage.rounds.first):
            _parts(stage)
        for name in library_peers.MODULES:
            if name not in stage.absent:
                _library_peer(stage, name)
        if stage.has_git:
            _other_gits(stage)


def _ours(stage: Stage, side: str, home: Path) -> Taken:
    set_aside(home)
    home.mkdir()
    os.sync()
    with stage.worker("plain" if side == "ours-plain" else "fast", home) as worker:
        answer = worker.ask("ours", "first")
        worker.ask("ours", "close")
    stage.pragmas = answer["pragmas"]
    stage.accelerators[side] = answer["accelerators"]
    stage.first_tree = answer["id"]
    stage.stored[side] = disk_usage(home)
    return told(answer)


def _parts(stage: Stage) -> None:
    home = stage.place / "parts"
    set_aside(home)
    home.mkdir()
    os.sync()
    with stage.worker("fast", home) as worker:
        worker.ask("ours", "watch_parts")
        worker.ask("ours", "first")
        stage.note_parts("first", worker.ask("ours", "taken_parts"))


def _peer(stage: Stage, side: str, peer: TreePeer) -> Taken:
    set_aside(peer.path)
    peer.make()
    os.sync()
    taken = processes(peer.snapshot)
    stage.stored[side] = disk_usage(peer.path)
    return taken


def _floor(stage: Stage) -> Taken:
    files = [path for path in store_of(stage.home).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if path.name != RESERVE)
    with stage.floor() as floor:
        os.sync()
        return told(floor.ask("floor", "first", size=size))


def _whole_floor(stage: Stage) -> Taken:
    with stage.floor() as floor:
        os.sync()
        return told(floor.ask("floor", "whole"))


def _first_floor(stage: Stage, how: str) -> Taken:
    with stage.floor() as floor:
        os.sync()
        answer = floor.ask("floor", "first_guarded", tree=stage.first_tree, how=how)
    if how == "backend":
        stage.note_parts("floor-first-backend", answer["parts"])
    return told(answer)


def _backups(stage: Stage, restic: Restic, borg: Borg) -> Sides:
    peers: dict[str, TreePeer] = {"restic": restic, "borg": borg}

    def first_and_next(name: str, peer: TreePeer) -> Taken:
        taken = _peer(stage, name, peer)
        if stage.rounds.extras:
            stage.change()
            stage.note("changed", name, processes(peer.snapshot))
        return taken

    return {
        name: partial(first_and_next, name, peer)
        for name, peer in peers.items()
        if name not in stage.absent
    }


def _library_peer(stage: Stage, name: str) -> None:
    os.sync()
    with stage.library_peer(name) as peer:
        try:
            stage.note("first", name, told(peer.ask(name, "first", limit=LIMIT)))
            for _ in range(SNAPSHOTS):
                changed = str(stage.change()[0].relative_to(stage.checkout.path))
                answer = peer.ask(name, "snapshot", limit=LIMIT, changed=changed)
                stage.note("watching", name, told(answer))
        except TimeoutError as error:
            stage.absent[name] = f"{name}: {error}"
    stage.stored[name] = disk_usage(stage.place / name)


def _other_gits(stage: Stage) -> None:
    other = ShadowGit(stage.place / "other-git", stage.checkout.path, synced=True)
    stage.note("first", "git-synced", _peer(stage, "git-synced", other))
    other.pack()
    stage.stored["git-packed"] = disk_usage(other.path)
    inside = stage.checkout.path / ".git"
    other.path.rename(inside)  # one pack, as after `git clone`
    try:
        for _ in range(stage.rounds.few):
            taken = _ours(stage, "ours with .git", stage.place / "with-git")
            stage.note("first with .git", "ours", taken)
    finally:
        set_aside(inside)
