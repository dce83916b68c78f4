"""Finds files that usually hold secrets, by name only. Owns the names; reads no contents."""

from __future__ import annotations

import os
import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path

from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.ignore.rule_files import rules_in
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.safe_open import open_root

IGNORE_FILE = ".checkpointignore"
_SECRET = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.keystore",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    ".netrc",
    ".pgpass",
    ".pypirc",
    "credentials.json",
    "service-account*.json",
)
_HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist", "*.pub")
_SKIPPED = frozenset({".git", ".hg", ".jj", ".svn", "node_modules", ".venv", "venv", ".tox"})
_MAX_DEPTH = 4
_MAX_ENTRIES = 20_000
_SPECIAL = re.compile(r"([\\*?\[\]! ])")


def secret_files(root: Path) -> list[str]:
    """Return the paths of files with names of secrets that ignore rules do not exclude, sorted.

    Looks at a bounded number of entries, a few levels deep, and follows no links.

    Raises:
        WorkspaceError: the directory cannot be read.
    """
    try:
        fd = open_root(root)
        try:
            rules = rules_in(b"", fd, Rules.of(()))
        finally:
            os.close(fd)
    except OSError as error:
        raise WorkspaceError(f"Cannot read {short_repr(str(root))}: {error.strerror}.") from error
    found: list[str] = []
    waiting, left = [("", 0)], _MAX_ENTRIES
    while waiting and left > 0:
        place, depth = waiting.pop()
        try:
            with os.scandir(root / place) as entries:
                for entry in entries:
                    left -= 1
                    path = f"{place}/{entry.name}" if place else entry.name
                    is_dir = entry.is_dir(follow_symlinks=False)
                    if rules.excludes(os.fsencode(place), os.fsencode(entry.name), is_dir):
                        continue
                    if is_dir and depth < _MAX_DEPTH and entry.name not in _SKIPPED:
                        waiting.append((path, depth + 1))
                    elif entry.is_file(follow_symlinks=False) and _is_secret(entry.name):
                        found.append(path)
        except OSError:
            continue  # a directory that cannot be read cannot be saved either
    return sorted(found)


def leave_out(root: Path, paths: list[str]) -> None:
    """Add files to the ignore file of a directory, which is created if missing.

    Raises:
        WorkspaceError: the ignore file cannot be written, is not a regular file, or is a link.
    """
    lines = "".join(f"/{_SPECIAL.sub(_escaped, path)}\n" for path in paths if "\n" not in path)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(root / IGNORE_FILE, flags, 0o644)
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                raise OSError("it is not a regular file of yours")
            is_open = about.st_size and os.pread(fd, 1, about.st_size - 1) != b"\n"
            os.write(fd, os.fsencode(("\n" if is_open else "") + lines))
        finally:
            os.close(fd)
    except OSError as error:
        why = error.strerror or str(error)
        raise WorkspaceError(
            f"Cannot write {short_repr(str(root / IGNORE_FILE))}: {why}."
        ) from error


def _is_secret(name: str) -> bool:
    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)

    return matches(_SECRET) and not matches(_HARMLESS)


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"
