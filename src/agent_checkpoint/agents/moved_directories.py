"""Finds directories that were moved or renamed since they were saved. Owns the record of moves.

A checkpoint has the identity of its directory, signed by this user. A directory with the same
identity at another path is the saved one, if the old path does not lead to it any more. Where the
identity changes, as between file systems, the user says what was moved (`save --moved-from`). The
record is in the user's state directory: nobody else can write there, and no archive contains it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.agents.state_dir import open_state_dir
from agent_checkpoint.errors import StorageError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.directory_identity import identity_of

_FILE = "moved-directories"
_MAX_BYTES = 1 << 20


class SavedPlace(NamedTuple):
    """Where a directory was when it was saved."""

    path: str
    identity: str
    """Its identity; empty if it is not known."""


class MovedDirectories:
    """Where saved directories are now, as far as that is known."""

    def __init__(self, near: Iterable[Path] = ()) -> None:
        """Read the record of moves.

        Args:
            near: directories that may have been moved.
        """
        self._near = {identity_of(place): str(place) for place in near}
        self._near.pop("", None)
        self._moves = _moves()

    def may_be_moved(self, place: SavedPlace) -> bool:
        """Return whether a directory may have been moved. A quick check: nothing is verified."""
        return place.identity in self._near or place in self._moves

    def has_left(self, place: SavedPlace) -> bool:
        """Return whether a directory was elsewhere since it was saved; it may be back."""
        return place in self._moves

    def present_path(self, place: SavedPlace) -> str:
        """Return where a directory is now; its old path if nothing else is known.

        `place` must have this user's signature.
        """
        if is_still_at(place):
            return place.path
        seen: set[SavedPlace] = set()
        step = place
        while step not in seen:  # it may have been moved back and forth
            seen.add(step)
            following = self._moves.get(step, step)
            if is_still_at(following):
                return following.path
            found = self._near.get(step.identity)
            if found is not None:
                with suppress(StorageError):  # it is found again next time
                    record_move(place, found)
                return found
            step = following
        return place.path


def present_path(place: SavedPlace, near: Iterable[Path] = ()) -> str:
    """Return where a directory is now, as `MovedDirectories.present_path` does."""
    return place.path if is_still_at(place) else MovedDirectories(near).present_path(place)


def is_still_at(place: SavedPlace) -> bool:
    """Return whether a directory is where it was saved; without an identity, whether one is."""
    if not place.identity:
        return os.path.isdir(place.path)
    return identity_of(place.path) == place.identity


def moved_hint(path: str) -> str:
    """Return what to do if a directory that is gone was moved."""
    return (
        "If it was moved to another file system, run `agent-checkpoint save --moved-from "
        f"{shell_quote(path)}` in its new place."
    )


def record_move(place: SavedPlace, new: str) -> None:
    """Record where a directory is now. Raises StorageError if that cannot be written."""
    line = json.dumps([*place, new, identity_of(new)])
    directory = open_state_dir()
    if directory is None:
        raise StorageError("Cannot record the move: there is no private state directory.")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(_FILE, flags, 0o600, dir_fd=directory)
        try:
            os.write(fd, f"\n{line}\n".encode())  # a line that a crash cut off stays alone
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(
            f"Cannot record the move of {short_repr(place.path, 200)} ({error})."
        ) from error
    finally:
        os.close(directory)


def _moves() -> dict[SavedPlace, SavedPlace]:
    """Return where directories went."""
    directory = open_state_dir()
    if directory is None:
        return {}
    try:
        fd = os.open(_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        with os.fdopen(fd, "rb") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError:
        return {}
    finally:
        os.close(directory)
    moves = {}
    for line in lines:
        with suppress(ValueError, TypeError):  # empty, or cut off by a crash
            old, was, new, now = map(str, json.loads(line))
            moves[SavedPlace(old, was)] = SavedPlace(new, now)
    return moves
