"""What is known of a directory from the last look, and the choice of how to look again.

Owns the remembered folders, the watcher and the index; one store at a time, since what is
remembered says which objects that store has.
"""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.places import default_store
from agent_checkpoint.errors import IntegrityError, InvalidInputError, WorkspaceError
from agent_checkpoint.records import show
from agent_checkpoint.store.writing import Writer
from agent_checkpoint.workspace.beneath import Changing
from agent_checkpoint.workspace.contents import Contents
from agent_checkpoint.workspace.folders import Folder, FolderRows
from agent_checkpoint.workspace.ignoring import CHECKPOINTIGNORE, GITIGNORE, Rules
from agent_checkpoint.workspace.index import Index, open_index, write_index
from agent_checkpoint.workspace.layer import Layer
from agent_checkpoint.workspace.links import Links
from agent_checkpoint.workspace.meter import Meter
from agent_checkpoint.workspace.recheck import Recheck
from agent_checkpoint.workspace.scan import Excluded, Scan
from agent_checkpoint.workspace.snapshots import objects_from
from agent_checkpoint.workspace.staging import BESIDE, STAGING
from agent_checkpoint.workspace.touched import Touched, WatchError
from agent_checkpoint.workspace.tree import put_directory

if TYPE_CHECKING:
    from agent_checkpoint.workspace.watch import Watcher

_LOOK_AT_ALL_AFTER = 60.0
"""Stores through a memory map and links from outside raise no event: in seconds."""
_WORTH_AN_INDEX = 64
"""So many files have to be read again by a new process before the index is written anew."""

Touches = Mapping[bytes, set[bytes]]


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep Python from looking for garbage among the many objects that a look makes at once."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


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
        self._backend: Any = None
        self._folder: Folder | None = None
        self._index_read: Index | None = None
        self._watcher: Watcher | Layer | None = None
        self._is_copy = False
        self._links = Links()
        self._lost: dict[bytes, set[bytes]] = {}
        self._looked_at_all = 0.0
        self._watches_all = False
        self._is_due = False
        """Whether to look at everything once more, after what the watcher knows."""
        self._not_in_index = 0
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
        self._face(writer)
        known = self._folder
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
                    self._folder, folder = folder, None
                if folder is None:
                    folder = self._look_at_all(root, writer, contents)
            except IntegrityError:  # of what is remembered something is gone: look with new eyes
                self._folder = None
                folder = self._look_at_all(root, writer, contents)
            try:
                contents.finish()
            except BaseException:
                self.close()  # what was told of changes is lost: the next look is at everything
                raise
        self._not_in_index += contents.count
        self._put_again(folder, writer)
        self._folder = folder
        writer.on_commit(lambda: self._committed(folder))
        return folder

    def close(self) -> None:
        """Stop watching. Twice is fine."""
        self._watches_all = False
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def forget_index(self) -> None:
        """Remove the index, of a directory that is to be no more."""
        index = self._index()
        if index is not None:
            index.unlink(missing_ok=True)

    def adopt(self, folder: Folder, backend: Any, layer: Layer | None = None) -> None:
        """Take for known what was seen in the directory that this one was made from.

        Args:
            folder: what was seen there.
            backend: the store that has it.
            layer: tells what has changed here since, if there is one; else this is a copy, whose
                files have other inodes and the same times.
        """
        self.close()
        self._folder = folder
        self._backend = backend
        self._watcher = layer
        self._is_copy = layer is None

    @property
    def folder(self) -> Folder | None:
        """What was seen last."""
        return self._folder

    # -- how to look -----------------------------------------------------------------------------

    def _face(self, writer: Writer) -> None:
        """See to it that what is remembered is about the store of the writer."""
        if writer.backend is not self._backend or not writer.trust_memory:
            self.close()
            self._folder = self._index_read = None
            self._backend = writer.backend
            index = self._index()
            if writer.trust_memory and index is not None:
                with collection_paused():
                    self._index_read = open_index(index)
                if self._index_read is not None:
                    self._folder = self._index_read.root
            self._not_in_index = 0 if self._folder is not None else _WORTH_AN_INDEX

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
        except BaseException:
            self.close()  # what it told is lost: the next look is at everything
            raise

    def _look_at_all(self, root: int, writer: Writer, contents: Contents) -> Folder:
        if self._watch and self._watcher is None:
            from agent_checkpoint.workspace.watch import Watcher  # slow to load

            try:
                self._watcher = Watcher()
                self.watch_trouble = None
            except WatchError as error:
                self.watch_trouble = str(error)
        now = time.monotonic()
        known = self._recheck(root, writer, contents)
        if known is not None:
            self._looked_at_all = now
            return known
        try:
            try:
                scan = self._scan(root, writer, contents, self._watcher)
                folder = scan.full(self._folder, is_copy=self._is_copy)
            except WatchError as error:
                self.close()
                self.watch_trouble = str(error)
                self._watch = False  # what was refused once will be refused again
                scan = self._scan(root, writer, contents, None)
                folder = scan.full(self._folder, is_copy=self._is_copy)
        except OSError as error:
            self.close()
            raise WorkspaceError(f"{show(str(self._path))} cannot be listed ({error}).") from error
        except BaseException:
            self.close()
            raise
        self._looked_at_all = now
        self._is_copy = False
        self._watches_all = self._watcher is not None
        self._links, self._lost = scan.links, scan.lost
        return folder

    def _recheck(self, root: int, writer: Writer, contents: Contents) -> Folder | None:
        """Look at every entry of a tree that is known, and at what differs; None if that fails."""
        if self._folder is None or self._is_copy:
            return None
        watch = None if self._watches_all else self._watch_directory
        index = self._index_read
        try:
            check: Recheck[Any]
            if index is not None and index.root is self._folder:
                check = Recheck(root, index, watch)
            else:
                check = Recheck(root, FolderRows(self._folder), watch)
            check.run()
            names, replaced = check.touched
            if self._are_rules_among(names):
                return None
            self._watches_all = self._watcher is not None
            self._links = check.links
            if not names:
                return self._folder
            scan = self._scan(root, writer, contents, self._watcher, self._links, self._lost)
            return scan.partial(self._folder, names, replaced, by_stamp=True)
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
        return Scan(
            root,
            writer,
            objects_from(writer.backend) if writer.backend is not None else _nothing,
            contents,
            rules=self._rules,
            excluded=Excluded({STAGING, BESIDE}, self._own_places()),
            watches=watcher,
            links=links,
            lost=lost,
        )

    def _own_places(self) -> set[tuple[int, int]]:
        """Return where the store and the indexes are, which may be below the workspace."""
        places = set()
        index = self._index()
        for path in (getattr(self._backend, "path", None), index and index.parent):
            try:
                found = os.stat(path) if path is not None else None
            except OSError:
                continue  # not made yet
            if found is not None:
                places.add((found.st_dev, found.st_ino))
        return places

    # -- what the store has ----------------------------------------------------------------------

    def _put_again(self, folder: Folder, writer: Writer) -> None:
        """Put the objects of directories that were made for a checkpoint that came to nothing."""
        stack = [folder]
        while stack:
            folder = stack.pop()
            if folder.is_stored or writer.backend is None:
                continue
            if not writer.holds(folder.stored.ref):
                put_directory(folder.items(objects_from(writer.backend)), writer.put)
            stack += folder.folders.values()

    def _committed(self, folder: Folder) -> None:
        stack = [folder]
        while stack:
            below = stack.pop()
            if not below.is_stored:
                below.is_stored = True
                stack += below.folders.values()
        if self._not_in_index < _WORTH_AN_INDEX:
            return
        index = self._index()
        if index is not None:
            try:
                write_index(index, folder)
            except OSError:  # it only saves time; the checkpoint is durable without it
                return
            self._not_in_index = 0

    def _index(self) -> Path | None:
        """Return where the index is; None if the store ends with the process."""
        place = getattr(self._backend, "path", None)
        if place is None:
            return None
        try:
            home = default_store().parent
        except InvalidInputError:
            return None
        # By other rules other files are known.
        whose = os.fsencode(place), os.fsencode(self._path), self._rules.key
        return home / "index" / hashlib.sha256(b"\0".join(whose)).hexdigest()[:32]


def _nothing(names: object) -> list[Any]:
    raise WorkspaceError("There is no store to read from.")
