"""The peers that keep directories: a shadow git, restic and borg, run as their users run them.

A shadow git is what coding agents keep beside a checkout: a repository of its own whose work tree
is that checkout. A snapshot is `git add -A && git commit`. It is left as it is after `git init`,
with one exception: it may not tidy up in the background (`gc.auto=0`), which would cost whoever is
measured next. git 2.39 syncs nothing in a snapshot, unless `core.fsync` is set; restic and borg
sync what they write. (Counted with strace.) All settings of the user and the system are kept out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

SYNCS = {
    "git": "unsynced",
    "git-synced": "synced",
    "git-packed": "synced",
    "git-watched": "unsynced",
    "restic": "synced",
    "borg": "synced",
    "processfork": "synced",
    "agentfs": "synced",
    "floor": "FULL",
    "floor-whole": "FULL",
    "floor-first": "FULL",
    "floor-first-plain": "FULL",
    "floor-first-backend": "FULL",
    "floor-modules": "FULL",
    "floor-own": "FULL",
    "floor-format": "FULL",
    "floor-guarded": "FULL",
    "floor-backend": "FULL",
}
"""How durable the snapshots of each peer are."""
PACKAGES = {
    "git": "git",
    "restic": "restic",
    "borg": "borgbackup",
    "watchman": "watchman",
}
"""The program of each peer, and the package of Debian that has it."""

WATCHMAN_HOOK = "/usr/share/git-core/templates/hooks/fsmonitor-watchman.sample"
"""The program that git brings for asking Watchman."""


def missing() -> dict[str, str]:
    """Which programs are not here, each with what to do about it."""
    return {
        program: f"{program} is not installed (apt-get install {package})"
        for program, package in PACKAGES.items()
        if shutil.which(program) is None
    }


def versions() -> dict[str, str]:
    """What the programs that are here say of themselves."""
    commands = {"git": ["--version"], "restic": ["version"], "borg": ["--version"]}
    found = {}
    for program, arguments in commands.items():
        if program not in missing():
            told = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
            words = told.stdout.split()
            found[program] = next(word for word in words if word[0].isdigit())
    return found


class TreePeer(ABC):
    """One repository of one directory."""

    def __init__(self, path: Path, tree: Path) -> None:
        self.path = path
        self.tree = tree
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GIT_", "RESTIC_", "BORG_"))
        }
        self.environment["LC_ALL"] = "C"

    @abstractmethod
    def make(self) -> None:
        """Make the repository, empty: not measured."""

    @abstractmethod
    def snapshot(self) -> None:
        """Take everything in the directory."""

    def run(self, *command: str) -> None:
        """Run a program in the directory; what it prints is of no interest unless it fails.

        Raises:
            RuntimeError: it failed; the text has what it said.
        """
        done = subprocess.run(
            command,
            cwd=self.tree,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")


class ShadowGit(TreePeer):
    """A git repository apart from its work tree.

    `synced`: all that it writes is made durable. `watched`: it asks Watchman what has changed, and
    remembers which directories hold nothing untracked (git's own daemon does not run on Linux).
    """

    def __init__(
        self, path: Path, tree: Path, *, synced: bool = False, watched: bool = False
    ) -> None:
        super().__init__(path, tree)
        self.synced, self.watched = synced, watched
        self._starts_server = False
        self.environment |= {
            "GIT_DIR": str(path),
            "GIT_WORK_TREE": str(tree),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        for who in ("AUTHOR", "COMMITTER"):
            self.environment[f"GIT_{who}_NAME"] = "bench"
            self.environment[f"GIT_{who}_EMAIL"] = "bench@localhost"

    def make(self) -> None:
        """`git init`, without the sample hooks."""
        self.run("git", "init", "-q", "--template=")
        self.run("git", "config", "gc.auto", "0")
        self.run("git", "config", "maintenance.auto", "false")
        if self.synced:
            self.run("git", "config", "core.fsync", "all")
            self.run("git", "config", "core.fsyncMethod", "batch")  # the faster of the two here

        if self.watched:
            self.run("git", "config", "core.untrackedCache", "true")
            self.run("git", "config", "core.fsmonitor", WATCHMAN_HOOK)
            ask = ["watchman", "--no-spawn", "get-pid"]
            self._starts_server = bool(subprocess.run(ask, capture_output=True).returncode)
            self.run("watchman", "--no-pretty", "watch", str(self.tree))

    def end_watch(self) -> None:
        """Let Watchman forget the directory, and end its server if `make` has started it."""
        self.run("watchman", "--no-pretty", "watch-del", str(self.tree))
        if self._starts_server:
            self.run("watchman", "--no-pretty", "shutdown-server")

    def snapshot(self) -> None:
        """`git add -A && git commit`."""
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "--allow-empty", "-m", "snapshot")

    def undo(self) -> None:
        """`git reset --hard && git clean -fd`."""
        self.run("git", "reset", "-q", "--hard")
        self.run("git", "clean", "-fdq")

    def refresh(self) -> None:
        """Look again at files that somebody else has put back."""
        self.run("git", "update-index", "-q", "--refresh")

    def check_out(self, path: Path) -> None:
        """`git worktree add`: a second work tree, of the last commit."""
        self.run("git", "worktree", "add", "-q", "--detach", str(path), "HEAD")

    def forget_work_trees(self) -> None:
        """Forget the second work trees that were deleted."""
        self.run("git", "worktree", "prune", "--expire=now")

    def pack(self) -> None:
        """`git gc`."""
        self.run("git", "gc", "-q")


class Restic(TreePeer):
    """A restic repository, encrypted as they always are, with a cache of its own."""

    def __init__(self, path: Path, tree: Path) -> None:
        super().__init__(path, tree)
        self.environment["RESTIC_PASSWORD"] = "bench"
        self.environment["RESTIC_REPOSITORY"] = str(path)
        self.environment["RESTIC_CACHE_DIR"] = str(path.with_name(f"{path.name}-cache"))

    def make(self) -> None:
        """`restic init`."""
        self.run("restic", "init", "-q")

    def snapshot(self) -> None:
        """`restic backup`."""
        self.run("restic", "backup", "-q", ".")


class Borg(TreePeer):
    """A borg repository, not encrypted."""

    def __init__(self, path: Path, tree: Path) -> None:
        super().__init__(path, tree)
        self.environment["BORG_REPO"] = str(path)
        self.environment["BORG_BASE_DIR"] = str(path.with_name(f"{path.name}-cache"))
        self.environment["BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK"] = "yes"
        self.archives = 0

    def make(self) -> None:
        """`borg init`."""
        self.run("borg", "init", "--encryption=none")

    def snapshot(self) -> None:
        """`borg create`."""
        self.archives += 1
        self.run("borg", "create", f"::{self.archives}", ".")
