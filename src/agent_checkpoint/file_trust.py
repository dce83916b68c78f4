"""File trust: whether other users own or can write a file or directory.

The content of a file that another user can write is untrusted. Root can write every file, so files
owned by root are trusted where only write access matters.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agent_checkpoint.errors import Hint, InvalidInputError

_ROOT = 0


def other_owner(path: object, status: os.stat_result, *, or_root: bool = False) -> str | None:
    """Return a message if another user owns a file or directory; None if this user does.

    Args:
        path: its name in the message.
        status: its stat result, from a descriptor where possible.
        or_root: accept root as the owner.
    """
    user = os.geteuid()
    if status.st_uid == user or (or_root and status.st_uid == _ROOT):
        return None
    return f"{path} is owned by uid {status.st_uid}, but you are uid {user}"


def other_writer(path: object, status: os.stat_result) -> str | None:
    """Return a message if other users can write a file or directory; None if they cannot.

    Write access by root is ignored.

    Args:
        path: its name in the message.
        status: its stat result.
    """
    owner = other_owner(path, status, or_root=True)
    if owner is not None:
        return owner
    if status.st_mode & stat.S_IWOTH:
        return f"all users can write {path} (fix: chmod go-w {path})"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        return f"group {status.st_gid} can write {path} (fix: chmod g-w {path})"
    return None


def why_replaceable(path: Path) -> str | None:
    """Return a message if other users can replace a path; None if they cannot.

    Raises:
        OSError: the file system failed.
    """
    for parent in path.parents:
        try:
            mode = parent.stat().st_mode
        except FileNotFoundError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"all users can write {parent}, and so replace {path} (fix: chmod o-w {parent})"
    return None


def check_own(path: Path, *files: Path) -> None:
    """Check that no other user owns, can write or can replace a directory or files in it.

    Missing files are accepted.

    Raises:
        InvalidInputError: another user owns, can write or can replace one of them.
        OSError: the file system failed.
    """
    why = why_replaceable(path)
    if why is not None:
        raise _untrusted(path, why)
    check_writers(path, *files)


def check_writers(path: Path, *files: Path) -> None:
    """Do the checks of `check_own`, except those of the parent directories.

    Raises:
        InvalidInputError: another user owns or can write one of them.
        OSError: the file system failed.
    """
    for each in (path, *files):
        try:
            why = other_writer(each, each.stat())
        except (FileNotFoundError, NotADirectoryError):
            continue
        if why is not None:
            raise _untrusted(path, why)


def _untrusted(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Refusing to use {path}: {why}. Other users could change what you load.",
        hint=Hint(
            "For a shared store pass shared=True, which loads only checkpoints signed with your "
            "secret; otherwise choose a directory that only you can write.",
            "shared",
        ),
    )


def _is_private_group(gid: int) -> bool:
    """Return whether a group is the user's private group: same name, and no other members."""
    import grp  # slow to import, and rarely needed
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    is_own = user.pw_gid == gid and group.gr_name == user.pw_name
    return is_own and set(group.gr_mem) <= {user.pw_name}
