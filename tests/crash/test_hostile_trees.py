"""Directories made up at random, with names of this library in them, as a repository may have.

Nothing hangs, nothing outside is read or written, and every file is captured or reported.
"""

import os
import random
import shutil
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint import CheckpointManager, Workspace, WorkspaceError
from agent_checkpoint.store.objects.object_format import open_object
from agent_checkpoint.workspace.tree.tree_reader import find

_SAMPLE, _FULL = 12, 400
_NAMES = (
    "store.db",
    "store.db-wal",
    "store.db-shm",
    ".lock",
    ".meta%2fformat",
    "1.json",
    "objects",
    ".agent-checkpoint-restore",
    ".agent-checkpoint-restore-0123456789abcdef",
    "journal",
    "owner",
    ".checkpointignore",
    ".gitignore",
    ".git",
    "HEAD",
    ".claude",
    "settings.json",
    "a" * 255,
    "line\nend",
    "\udcff",
    "plain.txt",
)
_TEXTS = (
    b"",
    b"*\n",
    b"!*\n",
    b"**/" * 300 + b"x\n",
    b"[" * 1000 + b"\n",
    b"*a*a*a*a*a*a*a*a*a*a*a*b\n" * 50,
    b"\xef\xbb\xbf\0\xff\n",
    b"SQLite format 3\0" + bytes(84),
    b'{"read": 1, "write": 1}',
    b"[" * 5000,
    b"x" * 5000,
)


class Maker:
    """One directory, by its seed."""

    def __init__(self, seed: int, outside: Path) -> None:
        self.random = random.Random(seed)
        self.outside = outside

    def fill(self, place: Path, depth: int = 0) -> None:
        for name in self.random.sample(_NAMES, self.random.randint(1, 6)):
            with suppress(FileExistsError):
                self.make(place / name, depth)

    def make(self, path: Path, depth: int) -> None:
        what = self.random.choice(("file", "file", "file", "folder", "folder", "link", "odd"))
        if what == "folder" and depth < 4:
            path.mkdir()
            self.fill(path, depth + 1)
            if self.random.random() < 0.1:
                path.chmod(self.random.choice((0o000, 0o500, 0o777)))
        elif what == "link":
            targets = (self.outside, self.outside / "secret", "/dev/zero", "..", ".", path.name)
            os.symlink(self.random.choice(targets), path)
        elif what == "odd":
            self.odd(path)
        else:
            path.write_bytes(self.random.choice(_TEXTS))
            path.chmod(self.random.choice((0o600, 0o644, 0o755, 0o000, 0o4755)))

    def odd(self, path: Path) -> None:
        if self.random.random() < 0.7:
            os.mkfifo(path)
            return
        with socket.socket(socket.AF_UNIX) as found:
            parent = os.open(path.parent, os.O_RDONLY)
            try:
                with suppress(OSError, UnicodeError):  # the name is too long for one
                    found.bind(f"/proc/self/fd/{parent}/{path.name}")
            finally:
                os.close(parent)


def lost(place: Path, workspace: Workspace, tree: Any) -> "list[str]":
    """Return the files that are neither in a tree nor reported."""
    told = {note.path for note in tree.notes} | {*workspace.left_out}
    told |= {loss.path for loss in workspace.losses}
    missing = []
    for folder, names, files in os.walk(place):
        for name in [*files, *names]:
            path = os.path.relpath(os.path.join(folder, name), place)
            above = {path, *map(str, Path(path).parents)}
            if not above & told and find(tree, path) is None:
                missing.append(path)
    return missing


def unlock(place: Path) -> None:
    for folder, names, _ in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


def test_all_is_captured_or_reported(tmp_path: Path, full_faults: bool, tried: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"the secret of the user")
    refused = 0
    count = _FULL if full_faults else _SAMPLE
    for seed in range(count):
        place = tmp_path / f"repo-{seed}"
        place.mkdir()
        Maker(seed, outside).fill(place)
        with CheckpointManager() as manager:
            try:
                with Workspace(place, manager.store, watch=False) as workspace:
                    tree = workspace.snapshot()
                    assert lost(place, workspace, tree) == [], seed
                    plan = workspace.restore(tree, dry_run=True)
                    assert not plan, (seed, str(plan))
                    (place / "made later").write_bytes(b"x")
                    workspace.restore(tree)
                    assert not (place / "made later").exists() or "made later" in workspace.left_out
                    assert workspace.snapshot().id == tree.id, seed
            except WorkspaceError:
                refused += 1  # typed, and nothing is said to be saved
            backend = manager.store.backend
            for name, stored in backend.get_objects(
                [one.id for one in backend.list_objects()]
            ).items():
                assert b"the secret" not in open_object(name, stored).payload, seed
        assert os.listdir(outside) == ["secret"]
        assert stat.S_IMODE((outside / "secret").stat().st_mode) & 0o111 == 0
        unlock(place)
        shutil.rmtree(place)
    assert refused < count / 3
    tried("directory made up at random", count)
