"""Creates, replaces and removes entries without losing concurrent edits.

Owns the rule that an entry is deleted only if the safety checkpoint holds it. Another process may
write to a file between the check and the rename. So the old entry is not overwritten: it is
exchanged with the new one, or moved into staging, and checked there, where no other process opens
it. If the safety checkpoint holds it, it is deleted. Otherwise it is moved back; if a new entry
exists at its path, it is kept beside the path under another name.

A process may still have the old file open for writing. The swap waits for it up to a timeout, then
continues and reports the path.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.restore.atomic_rename import (
    Entry,
    ExchangeUnsupported,
    exchange,
    put,
    take,
)
from agent_checkpoint.workspace.restore.staging import TAKEN, Staging, partial_name, slot_name
from agent_checkpoint.workspace.safe_open import (
    EntryChanged,
    content_id,
    directory_below,
    is_open_for_writing,
    opened_file,
)
from agent_checkpoint.workspace.tree.compare import Change
from agent_checkpoint.workspace.tree.dir_state import stat_signature
from agent_checkpoint.workspace.tree.tree_format import (
    FILE,
    FOLDER,
    LINK,
    MODE_BITS,
    Item,
)

_UNNAMED = b"unnamed"
_SLOT_LENGTH = 64
_MAX_KEPT = 1000
_MAX_STEM_BYTES = 230
_WRITER_SECONDS, _ALL_WRITERS_SECONDS = 0.05, 1.0
"""Seconds to wait for the writers of one file, and of all files of a restore."""


class _CheckedEntry(NamedTuple):
    """An entry that matches the safety checkpoint."""

    stat: os.stat_result
    by_signature: bool
    """Whether its stat signature matched.

    If not, its content was compared and must be compared again.
    """


class EntrySwap:
    """Swaps entries of one workspace; records concurrent versions that were kept."""

    def __init__(self, root: int) -> None:
        """Prepare swaps in a workspace, given the descriptor of its root."""
        self._root = root
        self._patience = _ALL_WRITERS_SECONDS
        self.kept: dict[str, str] = {}
        """Versions written by other processes during the restore: maps a path to the kept copy."""
        self.open: list[str] = []
        """Paths whose old file was deleted while a process had it open for writing."""

    # -- one step --------------------------------------------------------------------------------

    def add(self, step: Change, fd: int, staging: Staging) -> None:
        """Move a staged entry to a path where nothing exists.

        Raises:
            FileExistsError: another process created an entry there.
            OSError: the entry cannot be moved.
        """
        self._with_slot(step, fd, staging, lambda slot: put(slot, Entry(step.name, fd)))

    def replace(self, step: Change, fd: int, staging: Staging) -> None:
        """Replace an entry that the safety checkpoint holds with a staged entry.

        Raises:
            EntryChanged: the entry differs from the safety checkpoint and was kept.
            FileExistsError: another process created an entry there, which was kept.
            OSError: the entry cannot be replaced.
        """
        try:
            checked = check(step, fd)
        except FileNotFoundError:  # it was removed
            self.add(step, fd, staging)
            return
        self._with_slot(step, fd, staging, lambda slot: self._replace(step, fd, slot, checked))

    def remove(self, step: Change, fd: int, staging: Staging) -> None:
        """Remove a file or link that the safety checkpoint holds, if it still exists.

        Raises:
            EntryChanged: the entry differs from the safety checkpoint and was kept.
            OSError: the entry cannot be removed.
        """
        place = Entry(step.name, fd)
        try:
            checked = check(step, fd)
            try:
                slot = _taken(Entry(slot_name(step.path), staging.files))
                take(place, slot)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                slot = Entry(staging.aside, fd)
                take(place, slot)
        except FileNotFoundError:
            return  # already removed
        if not self._is_protected(step, slot, checked):
            self._move_back(step.path, slot, fd)
            raise EntryChanged
        slot.unlink()

    def _with_slot(
        self, step: Change, fd: int, staging: Staging, act: Callable[[Entry], None]
    ) -> None:
        """Call a function with a staged entry. On another mounted file system, use a copy there."""
        slot = Entry(slot_name(step.path), staging.files)
        try:
            act(slot)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            staging.copy(slot.name, fd, is_link=step.after is not None and step.after.type == LINK)
            try:
                act(Entry(staging.aside, fd))
            except (EntryChanged, OSError):  # after an interruption, crash recovery does this
                stored = step.before, step.after
                self._clear_aside(step.path, Entry(staging.aside, fd), stored)
                raise

    def _replace(self, step: Change, fd: int, slot: Entry, checked: _CheckedEntry) -> None:
        place = Entry(step.name, fd)
        try:
            exchange(slot, place)
        except FileNotFoundError:
            put(slot, place)
            return
        except ExchangeUnsupported:
            self._replace_in_two_steps(step, fd, slot, checked)
            return
        if not self._is_protected(step, slot, checked):
            self._undo_exchange(step, fd, slot)
            raise EntryChanged
        slot.unlink()

    def _replace_in_two_steps(
        self, step: Change, fd: int, slot: Entry, checked: _CheckedEntry
    ) -> None:
        """Remove the old entry, then move the new one to its path.

        In between, the path does not exist.
        """
        place, old = Entry(step.name, fd), _taken(slot)
        with suppress(FileNotFoundError):
            take(place, old)
            if not self._is_protected(step, old, checked):
                self._move_back(step.path, old, fd)
                raise EntryChanged
        try:
            put(slot, place)
        except FileExistsError:
            _drop(old)
            raise
        except OSError:
            with suppress(FileNotFoundError):
                self._move_back(step.path, old, fd)
            raise
        _drop(old)

    # -- the old entry ---------------------------------------------------------------------------

    def _is_protected(self, step: Change, slot: Entry, checked: _CheckedEntry) -> bool:
        """Return whether the entry moved to staging is the one that was checked."""
        was_open = self._wait_for_writers(step.path, slot)
        # A write may set the mtime long before it changes the content: compare the content then.
        by_signature = checked.by_signature and not was_open
        is_same = by_signature and _renamed_signature(slot.stat()) == _renamed_signature(
            checked.stat
        )
        return is_same or matches_item(step.before, slot)

    def _wait_for_writers(self, path: bytes, slot: Entry) -> bool:
        """Wait until no process has the file open for writing; return whether any had.

        Gives up after a timeout. The file was moved away from its path, so no new writer opens it.
        """
        was_open = False
        with suppress(EntryChanged, OSError), opened_file(slot.fd, slot.name) as file:
            until = time.monotonic() + min(_WRITER_SECONDS, self._patience)
            while is_open_for_writing(file.fd):
                was_open, began = True, time.monotonic()
                if began > until:
                    self.open.append(os.fsdecode(path))
                    break
                time.sleep(0.001)
                self._patience -= time.monotonic() - began
        return was_open

    def _undo_exchange(self, step: Change, fd: int, slot: Entry) -> None:
        """Undo an exchange. Raises OSError."""
        for _ in range(2):
            try:
                exchange(slot, Entry(step.name, fd))
            except FileNotFoundError:  # another process has removed the new entry
                self._move_back(step.path, slot, fd)
                return
            self._wait_for_writers(step.path, slot)
            if matches_item(step.after, slot):
                slot.unlink()
                return
            # Another process wrote to the new entry in between, so that is the later version.
        self._keep(step.path, slot, fd)

    def _move_back(self, path: bytes, slot: Entry, fd: int) -> None:
        """Move an entry back to its path; if the path is in use, keep it beside. Raises OSError."""
        try:
            put(slot, Entry(path.rpartition(b"/")[2], fd))
        except FileExistsError:
            self._keep(path, slot, fd)

    def _keep(self, path: bytes, slot: Entry, fd: int) -> None:
        """Move a file from staging to `<name>.kept-<n>` beside its path.

        If that directory is missing or not writable, the file is moved to the root.

        Raises:
            OSError: the version cannot be moved; it and the journal stay in staging.
        """
        directory, _, name = path.rpartition(b"/")
        if fd == self._root:
            directory = b""
        for number in range(1, _MAX_KEPT):
            kept = name[:_MAX_STEM_BYTES] + b".kept-%d" % number
            with suppress(FileExistsError):
                try:
                    put(slot, Entry(kept, fd))
                except (FileNotFoundError, PermissionError):
                    slot.stat()  # raises unless it is the directory that is missing
                    directory = b""
                    put(slot, Entry(kept, self._root))
                where = directory + b"/" + kept if directory else kept
                self.kept[os.fsdecode(path)] = os.fsdecode(where)
                return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))

    # -- leftovers in staging --------------------------------------------------------------------

    def rescue(self, files: int, stored: Mapping[bytes, Change]) -> None:
        """Empty a staging directory: delete entries that are in the store, move the others back.

        Args:
            files: the descriptor of the directory.
            stored: the versions in the store, by slot name.

        Raises:
            OSError: an entry could be neither deleted nor moved.
        """
        for name in map(os.fsencode, os.listdir(files)):
            slot = Entry(name, files)
            if len(name) < _SLOT_LENGTH:  # written by an earlier release; always disposable
                slot.unlink()
                continue
            versions = stored.get(name[:_SLOT_LENGTH])
            self._wait_for_writers(versions.path if versions else _UNNAMED, slot)
            if versions is None:
                self._keep(_UNNAMED, slot, self._root)
            elif any(matches_item(item, slot) for item in (versions.before, versions.after)):
                slot.unlink()
            else:
                self._move_back_to(versions.path, slot)

    def rescue_aside(self, aside: bytes, stored: Mapping[bytes, Change]) -> None:
        """Remove staged entries in directories on other mounted file systems, as `rescue` does.

        Args:
            aside: the name of the staged entry in each directory.
            stored: the versions in the store, by slot name.

        Raises:
            OSError: an entry could be neither deleted nor moved.
        """
        items: dict[bytes, list[Item | None]] = {}
        for change in stored.values():
            directory = change.path.rpartition(b"/")[0]
            items.setdefault(directory, []).extend((change.before, change.after))
        for directory, versions in items.items():
            gone = suppress(FileNotFoundError, NotADirectoryError, PermissionError)
            with gone, directory_below(self._root, directory) as fd:
                copied = Entry(partial_name(aside), fd)
                with suppress(FileNotFoundError):
                    copied.stat()  # on a read-only disk unlink fails even if the entry is missing
                    copied.unlink()
                self._clear_aside(directory + b"/" + _UNNAMED, Entry(aside, fd), versions)

    def _clear_aside(self, path: bytes, aside: Entry, stored: Iterable[Item | None]) -> None:
        for slot in (aside, _taken(aside)):
            with suppress(FileNotFoundError):
                if any(matches_item(item, slot) for item in stored):
                    slot.unlink()
                else:
                    self._keep(path, slot, slot.fd)

    def _move_back_to(self, path: bytes, slot: Entry) -> None:
        try:
            with directory_below(self._root, path.rpartition(b"/")[0]) as fd:
                self._move_back(path, slot, fd)
        except OSError:  # the directory does not exist
            self._keep(path, slot, self._root)


def check(step: Change, fd: int) -> _CheckedEntry:
    """Check that an entry still equals the safety checkpoint.

    Raises:
        EntryChanged: the entry differs.
        OSError: the entry cannot be read.
    """
    before, place = step.before, Entry(step.name, fd)
    found = place.stat()
    by_signature = stat_signature(found) == step.stamp
    if before is None:
        raise EntryChanged
    if before.type == FOLDER:
        if not stat.S_ISDIR(found.st_mode):
            raise EntryChanged
    elif not by_signature and not matches_item(before, place):
        raise EntryChanged
    return _CheckedEntry(found, by_signature)


def matches_item(item: Item | None, place: Entry) -> bool:
    """Return whether an entry is this file, with its mode, or this link. Raises OSError."""
    found = place.stat()
    if item is None or item.type == FOLDER:
        return False
    if item.type == LINK:
        is_link = stat.S_ISLNK(found.st_mode)
        return is_link and os.readlink(place.name, dir_fd=place.fd) == item.target
    is_alike = found.st_size == item.size and found.st_mode & MODE_BITS == item.mode
    if not is_alike or item.type != FILE:
        return False
    try:
        with opened_file(place.fd, place.name) as file:
            return content_id(file.fd, sys.maxsize) == item.id
    except (EntryChanged, PermissionError):  # a restore writes no unreadable files
        return False


def _taken(slot: Entry) -> Entry:
    return Entry(slot.name + TAKEN, slot.fd)


def _drop(slot: Entry) -> None:
    with suppress(FileNotFoundError):
        slot.unlink()


def _renamed_signature(found: os.stat_result) -> bytes:
    """Return the stat signature without ctime, which a rename sets."""
    return stat_signature(found)[:16] + stat_signature(found)[24:]
