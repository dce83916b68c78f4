"""Entries put in place, replaced and removed. Owns that nothing is dropped but what is held.

Between a look and a rename anybody may write a file. So what is in the way is not overwritten: it
is exchanged with the new file, or moved into staging, and looked at there, where nobody else finds
it. What the safety checkpoint holds is dropped. All else goes back to its place; if that is taken
by then, it is kept beside it.

The rest of a race is with those who have the old file open for writing. They are waited for, for a
moment; whoever has it open for longer is told of.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from agent_checkpoint.workspace.restore.atomic_rename import (
    Entry,
    ExchangeUnsupported,
    exchange,
    put,
    take,
)
from agent_checkpoint.workspace.restore.plan import Step
from agent_checkpoint.workspace.restore.staging import TAKEN, Staging, partial_name, slot_name
from agent_checkpoint.workspace.safe_open import (
    Changing,
    directory_below,
    is_open_for_writing,
    opened_file,
)
from agent_checkpoint.workspace.tree.dir_state import stamp_of
from agent_checkpoint.workspace.tree.tree_format import (
    FILE,
    FOLDER,
    LINK,
    MODE_BITS,
    ContentHash,
    Item,
)

_PIECE = 1 << 20
_UNNAMED = b"unnamed"
_SLOT = 64
_MOST_KEPT = 1000
_LONGEST_STEM = 230
_ONE_WRITER, _ALL_WRITERS = 0.05, 1.0
"""How long to wait, in seconds, for those who have a file open, and in a whole restore."""


class StoredVersions(NamedTuple):
    """What may be in staging for a path, and may be dropped: both are in the store."""

    path: bytes
    before: Item | None
    after: Item | None


class _CheckedEntry(NamedTuple):
    """An entry that was found to be what the safety checkpoint holds."""

    stat: os.stat_result
    is_told: bool
    """Whether its stamp told that; else its content did, and will have to."""


class EntrySwap:
    """Changes the entries of one workspace, and tells what became of those of others."""

    def __init__(self, root: int) -> None:
        """Prepare for a root directory, which is open."""
        self._root = root
        self._patience = _ALL_WRITERS
        self.kept: dict[str, str] = {}
        """Where a version is kept that was written meanwhile, by path."""
        self.open: list[str] = []
        """What was dropped while somebody had it open for writing."""

    # -- one step --------------------------------------------------------------------------------

    def add(self, step: Step, fd: int, staging: Staging) -> None:
        """Put what is staged where nothing is.

        Raises:
            FileExistsError: something has come there.
            OSError: it cannot be put there.
        """
        self._across(step, fd, staging, lambda slot: put(slot, _place(step, fd)))

    def replace(self, step: Step, fd: int, staging: Staging) -> None:
        """Put what is staged in the place of what the safety checkpoint holds.

        Raises:
            Changing: something else is there, and is left alone.
            FileExistsError: something else came, and is left alone.
            OSError: it cannot be put there.
        """
        try:
            look = check(step, fd)
        except FileNotFoundError:  # it was removed
            self.add(step, fd, staging)
            return
        self._across(step, fd, staging, lambda slot: self._replace(step, fd, slot, look))

    def remove(self, step: Step, fd: int, staging: Staging) -> None:
        """Remove a file or link that the safety checkpoint holds, if it is still there.

        Raises:
            Changing: something else is there, and is left alone.
            OSError: it cannot be removed.
        """
        place = _place(step, fd)
        try:
            look = check(step, fd)
            try:
                slot = _taken(Entry(slot_name(step.path), staging.files))
                take(place, slot)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                slot = Entry(staging.aside, fd)
                take(place, slot)
        except FileNotFoundError:
            return  # somebody was faster
        if not self._is_held(step, slot, look):
            self._give_back(step.path, slot, fd)
            raise Changing
        slot.unlink()

    def _across(self, step: Step, fd: int, staging: Staging, act: Callable[[Entry], None]) -> None:
        """Do it with what is staged; where another file system is mounted, with a copy of it."""
        slot = Entry(slot_name(step.path), staging.files)
        try:
            act(slot)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            staging.copy(slot.name, fd, is_link=step.after is not None and step.after.type == LINK)
            try:
                act(Entry(staging.aside, fd))
            except (Changing, OSError):  # an interrupt leaves it to who recovers the workspace
                held = step.before, step.after
                self._clear_aside(step.path, Entry(staging.aside, fd), held)
                raise

    def _replace(self, step: Step, fd: int, slot: Entry, look: _CheckedEntry) -> None:
        place = _place(step, fd)
        try:
            exchange(slot, place)
        except FileNotFoundError:
            put(slot, place)
            return
        except ExchangeUnsupported:
            self._replace_in_two(step, fd, slot, look)
            return
        if not self._is_held(step, slot, look):
            self._exchange_back(step, fd, slot)
            raise Changing
        slot.unlink()

    def _replace_in_two(self, step: Step, fd: int, slot: Entry, look: _CheckedEntry) -> None:
        """Take the old away, then put the new there: for a moment there is nothing."""
        place, old = _place(step, fd), _taken(slot)
        with suppress(FileNotFoundError):
            take(place, old)
            if not self._is_held(step, old, look):
                self._give_back(step.path, old, fd)
                raise Changing
        try:
            put(slot, place)
        except FileExistsError:
            _drop(old)
            raise
        except OSError:
            with suppress(FileNotFoundError):
                self._give_back(step.path, old, fd)
            raise
        _drop(old)

    # -- what came out ---------------------------------------------------------------------------

    def _is_held(self, step: Step, slot: Entry, look: _CheckedEntry) -> bool:
        """Tell whether what came out of its place is what was found to be held there."""
        was_open = self._wait_for_writers(step.path, slot)
        # A write may set the time long before it changes the content: then only that tells.
        is_told = look.is_told and not was_open
        is_same = is_told and _essence(slot.stat()) == _essence(look.stat)
        return is_same or is_item(step.before, slot)

    def _wait_for_writers(self, path: bytes, slot: Entry) -> bool:
        """Let those finish who have a file open for writing; tell whether there was anybody.

        Once it is here, nobody opens it any more.
        """
        was_open = False
        with suppress(Changing, OSError), opened_file(slot.fd, slot.name) as file:
            until = time.monotonic() + min(_ONE_WRITER, self._patience)
            while is_open_for_writing(file.fd):
                was_open, began = True, time.monotonic()
                if began > until:
                    self.open.append(os.fsdecode(path))
                    break
                time.sleep(0.001)
                self._patience -= time.monotonic() - began
        return was_open

    def _exchange_back(self, step: Step, fd: int, slot: Entry) -> None:
        """Put back what came out of an exchange. Raises OSError."""
        for _ in range(2):
            try:
                exchange(slot, _place(step, fd))
            except FileNotFoundError:  # somebody has removed ours
                self._give_back(step.path, slot, fd)
                return
            self._wait_for_writers(step.path, slot)
            if is_item(step.after, slot):
                slot.unlink()
                return
            # Somebody has written where ours was for a moment: that is the later version.
        self._keep(step.path, slot, fd)

    def _give_back(self, path: bytes, slot: Entry, fd: int) -> None:
        """Put back what was taken away, unless its place is taken. Raises OSError."""
        try:
            put(slot, Entry(path.rpartition(b"/")[2], fd))
        except FileExistsError:
            self._keep(path, slot, fd)

    def _keep(self, path: bytes, slot: Entry, fd: int) -> None:
        """Keep a version beside its place, or in the root if the directory is gone.

        Raises:
            OSError: it stays in staging, and so does the journal.
        """
        directory, _, name = path.rpartition(b"/")
        if fd == self._root:
            directory = b""
        for number in range(1, _MOST_KEPT):
            kept = name[:_LONGEST_STEM] + b".kept-%d" % number
            with suppress(FileExistsError):
                try:
                    put(slot, Entry(kept, fd))
                except (FileNotFoundError, PermissionError):
                    slot.stat()  # it is the directory that is not there
                    directory = b""
                    put(slot, Entry(kept, self._root))
                where = directory + b"/" + kept if directory else kept
                self.kept[os.fsdecode(path)] = os.fsdecode(where)
                return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))

    # -- what was left ---------------------------------------------------------------------------

    def rescue(self, files: int, known: Mapping[bytes, StoredVersions]) -> None:
        """Empty a staging directory: drop what is in the store, put back or keep all else.

        Args:
            files: the directory, open.
            known: what may be dropped, by its name there.

        Raises:
            OSError: something can neither be dropped nor kept.
        """
        for name in map(os.fsencode, os.listdir(files)):
            slot = Entry(name, files)
            if len(name) < _SLOT:  # an earlier version never had anything else there
                slot.unlink()
                continue
            found = known.get(name[:_SLOT])
            self._wait_for_writers(found.path if found else _UNNAMED, slot)
            if found is None:
                self._keep(_UNNAMED, slot, self._root)
            elif any(is_item(item, slot) for item in (found.before, found.after)):
                slot.unlink()
            else:
                self._give_back_below(found.path, slot)

    def rescue_aside(self, aside: bytes, known: Mapping[bytes, StoredVersions]) -> None:
        """Do the same in directories on which another file system is mounted.

        Args:
            aside: the name of what is staged there.
            known: what may be dropped.

        Raises:
            OSError: something can neither be dropped nor kept.
        """
        items: dict[bytes, list[Item | None]] = {}
        for path, before, after in known.values():
            items.setdefault(path.rpartition(b"/")[0], []).extend((before, after))
        for directory, held in items.items():
            gone = suppress(FileNotFoundError, NotADirectoryError, PermissionError)
            with gone, directory_below(self._root, directory) as fd:
                copied = Entry(partial_name(aside), fd)
                with suppress(FileNotFoundError):
                    copied.stat()  # on a read-only disk nothing is removed, not even nothing
                    copied.unlink()
                self._clear_aside(directory + b"/" + _UNNAMED, Entry(aside, fd), held)

    def _clear_aside(self, path: bytes, aside: Entry, held: Iterable[Item | None]) -> None:
        for slot in (aside, _taken(aside)):
            with suppress(FileNotFoundError):
                if any(is_item(item, slot) for item in held):
                    slot.unlink()
                else:
                    self._keep(path, slot, slot.fd)

    def _give_back_below(self, path: bytes, slot: Entry) -> None:
        try:
            with directory_below(self._root, path.rpartition(b"/")[0]) as fd:
                self._give_back(path, slot, fd)
        except OSError:  # there is no such directory any more
            self._keep(path, slot, self._root)


def check(step: Step, fd: int) -> _CheckedEntry:
    """See to it that an entry is still what the safety checkpoint holds.

    Raises:
        Changing: it is not.
        OSError: it cannot be looked at.
    """
    before, place = step.before, _place(step, fd)
    found = place.stat()
    is_told = stamp_of(found) == step.stamp
    if before is None:
        raise Changing
    if before.type == FOLDER:
        if not stat.S_ISDIR(found.st_mode):
            raise Changing
    elif not is_told and not is_item(before, place):
        raise Changing
    return _CheckedEntry(found, is_told)


def is_item(item: Item | None, place: Entry) -> bool:
    """Tell whether an entry is just a file or link of a tree, by its content. Raises OSError."""
    found = place.stat()
    if item is None or item.type == FOLDER:
        return False
    if item.type == LINK:
        is_link = stat.S_ISLNK(found.st_mode)
        return is_link and os.readlink(place.name, dir_fd=place.fd) == item.target
    is_alike = found.st_size == item.size and found.st_mode & MODE_BITS == item.mode
    if not is_alike or item.type != FILE:
        return False
    whole = ContentHash()
    try:
        with opened_file(place.fd, place.name) as file:
            while data := os.read(file.fd, _PIECE):
                whole.add(data)
    except (Changing, PermissionError):  # what nobody may read is somebody else's
        return False
    return whole.id() == item.id


def _place(step: Step, fd: int) -> Entry:
    return Entry(step.path.rpartition(b"/")[2], fd)


def _taken(slot: Entry) -> Entry:
    return Entry(slot.name + TAKEN, slot.fd)


def _drop(slot: Entry) -> None:
    with suppress(FileNotFoundError):
        slot.unlink()


def _essence(found: os.stat_result) -> bytes:
    """Return what tells a change of an entry that was renamed, which sets its ctime."""
    return stamp_of(found)[:16] + stamp_of(found)[24:]
