"""Looks at one directory. Owns the watcher, and the choice of how to look again.

What is remembered from the last look is in `memory`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import IntegrityError, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.changes.changed_paths import Touched, WatchError
from agent_checkpoint.workspace.changes.hard_links import Links
from agent_checkpoint.workspace.changes.overlay_upper import Layer
from agent_checkpoint.workspace.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, Rules
from agent_checkpoint.workspace.restore.staging import STAGING
from agent_checkpoint.workspace.safe_open import Changing
from agent_checkpoint.workspace.scan.entry_filter import Excluded
from agent_checkpoint.workspace.scan.file_reader import Contents
from agent_checkpoint.workspace.scan.nested_stores import is_store
from agent_checkpoint.workspace.scan.scan_cache import Memory, collection_paused
from agent_checkpoint.workspace.scan.snapshot_limit import Meter
from agent_checkpoint.workspace.scan.stat_pass import Recheck
from agent_checkpoint.workspace.scan.walk import Scan
from agent_checkpoint.workspace.tree.dir_state import Folder, FolderRows
from agent_checkpoint.workspace.tree.snapshot import objects_from

if TYPE_CHECKING:
    from agent_checkpoint.workspace.changes.inotify import Watcher

_LOOK_AT_ALL_AFTER = 60.0
"""Stores through a memory map and links from outside raise no event: in seconds."""

Touches = Mapping[bytes, set[bytes]]


class Sight:
    """Looks at one directory, and remembers what it saw."""

    def __init__(self, path: Path, rules: Rules, meter: Meter, *, watch: bool) -> None:
        """Remember nothing yet.

        Args:
            path: the directory.
            rules: what to leave out.
            meter: counts what is read.
            watch: whether to watch it.
        """
        self._path = path
        self._rules = rules
        self._watch = watch
        self._meter = meter
        self._memory = Memory(path, rules)
        self._watcher: Watcher | Layer | None = None
        self._links = Links()
        self._lost: dict[bytes, set[bytes]] = {}
        self._looked_at_all = 0.0
        self._watches_all = False
        self._is_due = False
        """Whether to look at everything once more, after what the watcher knows."""
        self.watch_trouble: str | None = None if watch else "watching was not asked for"
        """Why nothing is watched."""

    def with_rules(self, rules: Rules) -> Sight:
        """Return another that looks once at the same directory, by other rules, with no limit."""
        return Sight(self._path, rules, Meter(None, None), watch=False)

    @property
    def is_watching(self) -> bool:
        """Whether the next look can be a short one."""
        return self._watcher is not None

    def look(
        self,
        root: int,
        writer: Writer,
        *,
        full: bool = False,
        ahead: bool = False,
        touched: Touches | None = None,
    ) -> Folder:
        """Return the directory as it is now; the writer gets what its store lacks.

        Args:
            root: the directory, open.
            writer: of the store that it is for.
            full: whether to look at every entry, also if all changes are known.
            ahead: whether to store contents right away, since no entry may follow.
            touched: names that were changed by ourselves, if nothing is watched.

        Raises:
            WorkspaceError: it cannot be listed.
            StorageError: the store failed.
        """
        try:
            self._face(writer)
            return self._look(root, writer, full=full, ahead=ahead, touched=touched)
        except BaseException:
            # What was told of changes is lost, and what is watched was never compared with what is
            # known: the next look is at everything.
            self.close()
            raise

    def close(self) -> None:
        """Stop watching. Twice is fine."""
        self._watches_all = False
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def forget_index(self) -> None:
        """Remove the index, of a directory that is to be no more."""
        self._memory.forget_index()

    def adopt(self, folder: Folder, backend: Any, layer: Layer | None = None) -> None:
        """Take for known what was seen in the directory that this one was made from.

        Args:
            folder: what was seen there.
            backend: the store that has it.
            layer: tells what has changed here since, if there is one; else this is a copy, whose
                files have other inodes and the same times.
        """
        self.close()
        self._memory.adopt(folder, backend, is_copy=layer is None)
        self._watcher = layer

    @property
    def folder(self) -> Folder | None:
        """What was seen last."""
        return self._memory.folder

    def _look(
        self, root: int, writer: Writer, *, full: bool, ahead: bool, touched: Touches | None
    ) -> Folder:
        known = self._memory.folder
        events = self._events(full) if known is not None else None
        if events is None and not full and known is not None and touched is not None:
            events = Touched({path: set(names) for path, names in touched.items()}, set())
        self._meter.begin(is_limited=touched is None)
        with collection_paused(), Contents(writer, self._meter, ahead=ahead) as contents:
            folder = None
            try:
                if known is not None and events is not None:
                    folder = self._look_at_some(root, writer, contents, known, events)
                if folder is not None and self._is_due:  # for what no event tells
                    self._memory.folder, folder = folder, None
                if folder is None:
                    folder = self._look_at_all(root, writer, contents)
            except IntegrityError:  # of what is remembered something is gone: look with new eyes
                self.close()
                self._memory.folder = None
                folder = self._look_at_all(root, writer, contents)
            contents.finish()
        self._memory.keep(folder, writer, read=contents.count)
        return folder

    # -- how to look -----------------------------------------------------------------------------

    def _face(self, writer: Writer) -> None:
        """See to it that what is remembered is about the store of the writer."""
        if not self._memory.is_for(writer):
            self.close()
            self._memory.begin(writer)

    def _events(self, full: bool) -> Touched | None:
        """Return what the watcher knows; None if that is of no use."""
        self._is_due = False
        if self._watcher is None:
            return None
        events = self._watcher.drain()
        if events is None:
            self.close()
            return None
        if self._watcher.is_exact:
            return events
        if self._are_rules_among(events.names):
            self._watches_all = False  # nor is it known what of all that has to be watched
            return None
        self._is_due = full or time.monotonic() - self._looked_at_all > _LOOK_AT_ALL_AFTER
        return events

    @staticmethod
    def _are_rules_among(touched: Touches) -> bool:
        rules = {CHECKPOINTIGNORE, GITIGNORE}
        return any(not rules.isdisjoint(names) for names in touched.values())

    def _look_at_some(
        self, root: int, writer: Writer, contents: Contents, known: Folder, events: Touched
    ) -> Folder | None:
        for path, names in self._links.touched(root, known).items():
            events.names.setdefault(path, set()).update(names)
        for path, names in self._lost.items():  # no event tells that they can be read by now
            events.names.setdefault(path, set()).update(names)
        if not events.names:
            return known
        if self._watcher is not None:
            for path in events.replaced:
                self._watcher.forget(path)  # before it is watched again, perhaps elsewhere
        try:
            self._links.has_new = False
            scan = self._scan(root, writer, contents, self._watcher, self._links, self._lost)
            by_stamp = self._watcher is not None and self._watcher.is_exact
            folder = scan.partial(known, events.names, events.replaced, by_stamp=by_stamp)
            return None if self._links.has_new else folder  # it has names that are not known
        except (OSError, Changing, WatchError):  # it changes as we look: then look at everything
            self.close()
            return None

    def _look_at_all(self, root: int, writer: Writer, contents: Contents) -> Folder:
        if self._watch and self._watcher is None:
            try:
                with block_forks():
                    from agent_checkpoint.workspace.changes.inotify import Watcher  # slow to load

                self._watcher = Watcher()
                self.watch_trouble = None
            except (ImportError, WatchError) as error:  # a Python may lack ctypes
                self.watch_trouble = str(error)
        now = time.monotonic()
        known = self._recheck(root, writer, contents)
        if known is not None:
            self._looked_at_all = now
            return known
        try:
            try:
                scan = self._scan(root, writer, contents, self._watcher)
                folder = scan.full(self._memory.folder, is_copy=self._memory.is_copy)
            except WatchError as error:
                self.close()
                self.watch_trouble = str(error)
                self._watch = False  # what was refused once will be refused again
                scan = self._scan(root, writer, contents, None)
                folder = scan.full(self._memory.folder, is_copy=self._memory.is_copy)
        except OSError as error:
            raise WorkspaceError(
                f"{short_repr(str(self._path))} cannot be listed ({error})."
            ) from error
        self._looked_at_all = now
        self._memory.is_copy = False
        self._watches_all = self._watcher is not None
        self._links, self._lost = scan.links, scan.lost
        return folder

    def _recheck(self, root: int, writer: Writer, contents: Contents) -> Folder | None:
        """Look at every entry of a tree that is known, and at what differs; None if that fails."""
        known = self._memory.folder
        if known is None or self._memory.is_copy:
            return None
        watch = None if self._watches_all else self._watch_directory
        index = self._memory.index
        try:
            check: Recheck[Any]
            if index is not None:
                check = Recheck(root, index, watch)
            else:
                check = Recheck(root, FolderRows(known), watch)
            check.run()
            names, replaced = check.touched
            if self._are_rules_among(names):
                return None
            self._watches_all = self._watcher is not None
            self._links = check.links
            if not names:
                return known
            scan = self._scan(root, writer, contents, self._watcher, self._links, self._lost)
            return scan.partial(known, names, replaced, by_stamp=True)
        except (OSError, Changing, WatchError):  # it changes as we look
            return None

    def _watch_directory(self, fd: int, path: bytes) -> None:
        if self._watcher is not None:
            self._watcher.add(fd, path)

    def _scan(
        self,
        root: int,
        writer: Writer,
        contents: Contents,
        watcher: Watcher | Layer | None,
        links: Links | None = None,
        lost: dict[bytes, set[bytes]] | None = None,
    ) -> Scan:
        found, places = os.fstat(root), self._memory.own_places()
        if (found.st_dev, found.st_ino) in places or is_store(root, b"."):
            raise WorkspaceError(
                f"{short_repr(str(self._path), 1000)} is a store itself: to restore it would take "
                "away the history that is in it. Use a store elsewhere, or in a directory below."
            )
        return Scan(
            root,
            writer,
            objects_from(writer.backend) if writer.backend is not None else _nothing,
            contents,
            rules=self._rules,
            excluded=Excluded(STAGING, places),
            watches=watcher,
            links=links,
            lost=lost,
        )


def _nothing(names: object) -> list[Any]:
    raise WorkspaceError("There is no store to read from.")
