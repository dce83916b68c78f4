"""Which files and directories are this user's own. Owns that rule; knows nothing of their use.

What another user owns, or may write, says what that user likes. Root owns the machine: there is no
guarding against it, so what it owns counts as the user's own where only writing matters.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agent_checkpoint.errors import InvalidInputError

_ROOT = 0


def other_owner(path: object, found: os.stat_result, *, or_root: bool = False) -> str | None:
    """Return whose a file or directory is if it is not this user's; None if it is.

    Args:
        path: what it is called in the answer.
        found: its status, from a descriptor where that is possible.
        or_root: whether it may be root's as well.
    """
    user = os.geteuid()
    if found.st_uid == user or (or_root and found.st_uid == _ROOT):
        return None
    return f"{path} is owned by uid {found.st_uid}, and you are uid {user}"


def other_writer(path: object, found: os.stat_result) -> str | None:
    """Return who else may write a file or directory; None if only this user, and root, may.

    Args:
        path: what it is called in the answer.
        found: its status.
    """
    owner = other_owner(path, found, or_root=True)
    if owner is not None:
        return owner
    if found.st_mode & stat.S_IWOTH:
        return f"all users may write {path} (chmod go-w {path} ends that)"
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid):
        return f"the group {found.st_gid} may write {path} (chmod g-w {path} ends that)"
    return None


def why_replaceable(path: Path) -> str | None:
    """Return why others could put something else in the place of a path; None if they cannot.

    Raises:
        OSError: the file system refuses to tell.
    """
    for above in path.parents:
        try:
            mode = above.stat().st_mode
        except FileNotFoundError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"all users may write {above}, and so replace {path} (chmod o-w {above})"
    return None


def check_own(path: Path, *files: Path) -> None:
    """Refuse a directory, and files in it, that are not this user's own. What is missing is fine.

    Raises:
        InvalidInputError: another user owns one of them or may write it; it says who.
        OSError: the file system refuses to tell.
    """
    why = why_replaceable(path)
    if why is not None:
        raise _not_used(path, why)
    check_writers(path, *files)


def check_writers(path: Path, *files: Path) -> None:
    """Refuse them as `check_own` does, without looking at what is above again.

    Raises:
        InvalidInputError: another user owns one of them or may write it; it says who.
        OSError: the file system refuses to tell.
    """
    for each in (path, *files):
        try:
            why = other_writer(each, each.stat())
        except (FileNotFoundError, NotADirectoryError):
            continue
        if why is not None:
            raise _not_used(path, why)


def _not_used(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} is not used: {why}. Whoever can write there chooses what you load. If that is "
        "meant, open it with shared=True, which takes only checkpoints sealed under your "
        "secret; else name a directory of your own."
    )


def _is_private_group(gid: int) -> bool:
    """Tell whether a group has this user as its only member, as many systems make one a user."""
    import grp  # both are slow to load, and seldom needed
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    is_own = user.pw_gid == gid and group.gr_name == user.pw_name
    return is_own and set(group.gr_mem) <= {user.pw_name}
