"""The scanner of a directory. Owns the change source and the choice of the kind of scan.

A scan is partial if a watcher, an overlay or the change service of a daemon reports the changed
paths, a stat pass if the tree is known, and a full walk otherwise. The result of the last scan is
in the `ScanCache`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.os_support.mounts import MountTable
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import IntegrityError, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.directory_identity import identity_of
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths, WatchError
from agent_checkpoint.workspace.changes.hard_links import HardLinks
from agent_checkpoint.workspace.changes.served import Token, changes_since
from agent_checkpoint.workspace.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, Rules
from agent_checkpoint.workspace.safe_open import EntryChanged
from agent_checkpoint.workspace.scan.nested_stores import is_store
from agent_checkpoint.workspace.scan.reading.file_reader import FileReader
from agent_checkpoint.workspace.scan.scan_cache import ScanCache, collection_paused
from agent_checkpoint.workspace.scan.snapshot_limit import SnapshotLimit
from agent_checkpoint.workspace.scan.walk import TreeWalk
from agent_checkpoint.workspace.tree.dir_state import Copied, DirState
from agent_checkpoint.workspace.tree.snapshot import objects_from

if TYPE_CHECKING:
    from agent_checkpoint.workspace.changes.inotify import Watcher
    from agent_checkpoint.workspace.changes.overlay_upper import OverlayUpper

PARALLEL_FROM_FILES = 20_000
"""Stat processes are used from here on: below, starting them takes as long as they save."""
_FULL_SCAN_AFTER = 60.0
"""Seconds between full scans. Writes by mmap and through hard links outside raise no event."""

NamesByDir = Mapping[bytes, set[bytes]]


class Scanner:
    """Scans one directory and caches the result."""

    def __init__(self, path: Path, rules: Rules, limit: SnapshotLimit, *, watch: bool) -> None:
        """Start with an empty cache.

        Args:
            path: the directory.
            rules: the ignore rules.
            limit: counts the bytes read.
            watch: whether to watch the directory with inotify.
        """
        self._path = path
        self._rules = rules
        self._watch = watch
        self._limit = limit
        self._cache = ScanCache(path, rules)
        self._source: Watcher | OverlayUpper | None = None
        self.known_identity = ""
        """The identity of the scanned directory, if the change service has kept it open since."""
        self._token: Token | None = None
        """The moment before this scan in the journal of the change service, if there is one."""
        self._mounts: MountTable | None = None
        """Tells of mounts during such a scan."""
        self._links = HardLinks()
        self._lost: dict[bytes, set[bytes]] = {}
        self._last_full_scan = 0.0
        self._watches_all = False
        self._is_full_scan_due = False
        """Whether a stat pass follows the partial scan."""
        self.watch_trouble: str | None = None if watch else "watching is turned off (watch=False)"
        """The reason why the directory is not watched."""

    def with_rules(self, rules: Rules) -> Scanner:
        """Return a scanner of the same directory with other rules, no limit and no watcher."""
        return Scanner(self._path, rules, SnapshotLimit(None, None), watch=False)

    def scan(
        self,
        root: int,
        writer: Writer,
        *,
        full: bool = False,
        ahead: bool = False,
        changed: NamesByDir | None = None,
    ) -> DirState:
        """Return the current state of the directory; write objects that the store lacks.

        Args:
            root: the descriptor of the directory.
            writer: receives the objects.
            full: whether to stat every entry, even if all changed paths are known.
            ahead: whether to store contents immediately, because a checkpoint may not follow.
            changed: names that this process changed; used if there is no change source.

        Raises:
            WorkspaceError: the directory cannot be listed.
            StorageError: the store failed.
        """
        try:
            status = os.fstat(root)
            directory = status.st_dev, status.st_ino
            if not self._cache.is_for(writer, directory):
                self.close()
                self._begin(writer, directory)
            if ahead and not self._cache.has_contents:
                # The last checkpoint was not committed, and nobody stores these files after us.
                self.close()
                self._cache.drop(writer)
            self._cache.directory = directory
            return self._scan(root, writer, full=full, ahead=ahead, changed=changed)
        except BaseException:
            # The drained events are lost, and newly watched directories were never compared with
            # the cache: the next scan must cover everything.
            self.close()
            raise
        finally:
            if self._mounts is not None:
                os.close(self._mounts.fd)
                self._mounts = None

    def close(self) -> None:
        """Stop watching. May be called twice."""
        self._watches_all = False
        self._cache.position = None
        if self._source is not None:
            self._source.close()
            self._source = None

    def forget_index(self) -> None:
        """Remove the stat index of a directory that is about to be deleted."""
        self._cache.forget_index()

    def adopt(
        self,
        state: DirState,
        backend: Backend,
        upper: OverlayUpper | None,
        copied: Copied | None,
    ) -> None:
        """Cache the state of the directory from which this one was forked.

        Args:
            state: the state of that directory.
            backend: the store that holds it.
            upper: reports the changes since the fork; None for a copy.
            copied: the signatures of the copied files; None for an overlay.
        """
        self.close()
        self._cache.adopt(state, backend, copied)
        self._source = upper

    @property
    def dir_state(self) -> DirState | None:
        """The state found by the last scan."""
        return self._cache.dir_state

    def _begin(self, writer: Writer, directory: tuple[int, int]) -> None:
        """Load what an earlier process knew of the directory."""
        self._cache.begin(writer, directory)
        known, position = self._cache.dir_state, self._cache.position
        if known is not None and position is not None:
            self._last_full_scan, self._links = position.full_scan, position.links
            self._lost = {}
            try:
                notes = list(known.all_notes())
            except IntegrityError:
                self._cache.drop(writer)
                return
            for path, note in notes:
                if note.is_loss:
                    parent, _, name = path.rpartition(b"/")
                    self._lost.setdefault(parent, set()).add(name)

    def _scan(
        self, root: int, writer: Writer, *, full: bool, ahead: bool, changed: NamesByDir | None
    ) -> DirState:
        known = self._cache.dir_state
        events = self._events(root, full)
        if events is None and not full and known is not None and changed is not None:
            events = ChangedPaths({path: set(names) for path, names in changed.items()}, set())
            self._token = None  # changes of others before it are not among these
        self._limit.begin(is_limited=changed is None)
        with collection_paused(), FileReader(root, writer, self._limit, ahead=ahead) as reader:
            state = None
            try:
                if known is not None and events is not None:
                    state = self._scan_changed(root, writer, reader, known, events)
                    if self._links.has_new:
                        state = None  # other links of that file are unknown
                if state is not None and self._is_full_scan_due:  # finds changes without an event
                    self._cache.dir_state, state = state, None
                if state is None:
                    state = self._scan_all(root, writer, reader)
            except IntegrityError:  # a damaged index, or one that refers to a missing object
                self.close()
                self._cache.drop(writer)
                state = self._scan_all(root, writer, reader)
            reader.finish()
        position = None
        # A mount that was there for a moment may have hidden files from the scan.
        if self._token and self._mounts and not self._mounts.have_changed():
            with block_forks():
                from agent_checkpoint.workspace.scan.index_position import Position

            identity = identity_of(self._path, self.known_identity)
            position = Position(self._token, self._last_full_scan, self._links, identity)
        is_watching = self._source is not None
        self._cache.keep(
            state,
            writer,
            read=reader.count,
            ahead=ahead,
            is_watching=is_watching,
            position=position,
        )
        return state

    # -- kinds of scan ---------------------------------------------------------------------------

    def _events(self, root: int, full: bool) -> ChangedPaths | None:
        """Return the changed paths from the change source; None if a full scan is needed."""
        self._is_full_scan_due = False
        self._token, self.known_identity = None, ""
        if self._source is None:
            events = self._served_events(root)
        else:
            events = self._source.drain()
            if events is None:
                self.close()
            elif self._source.is_exact:
                return events
        if events is None:
            return None
        if self._has_rule_file(events.names):
            self._watches_all = False  # with other rules, other directories are watched
            return None
        since = time.monotonic() - self._last_full_scan  # negative if the clocks differ
        self._is_full_scan_due = full or not 0 <= since <= _FULL_SCAN_AFTER
        return events

    def _served_events(self, root: int) -> ChangedPaths | None:
        """Ask the change service; None if there is none, or if it does not know all changes."""
        if not self._watch:
            return None
        position = self._cache.position
        try:
            self._mounts = MountTable()  # before the answer, so that no mount is missed
        except OSError:
            return None
        answer = changes_since(root, None if position is None else position.token)
        if answer is None:
            return None
        self._token = answer.token
        if position is not None and answer.changed is not None:
            self.known_identity = position.identity
        return None if position is None else answer.changed

    @staticmethod
    def _has_rule_file(changed: NamesByDir) -> bool:
        return any(CHECKPOINTIGNORE in names or GITIGNORE in names for names in changed.values())

    def _scan_changed(
        self, root: int, writer: Writer, reader: FileReader, known: DirState, events: ChangedPaths
    ) -> DirState | None:
        """Scan only changed paths; None if that fails."""
        self._links.has_new = False
        linked = self._links.changed(root, known)
        if self._has_rule_file(linked) or self._has_rule_file(self._lost):
            return None
        for path, names in linked.items():
            events.names.setdefault(path, set()).update(names)
        for path, names in self._lost.items():  # becoming readable raises no event
            events.names.setdefault(path, set()).update(names)
        if not events.names:
            return known
        if self._source is not None:
            for path in events.replaced:
                self._source.forget(path)  # before it is watched again, perhaps elsewhere
        try:
            walk = self._tree_walk(root, writer, reader, self._links, self._lost)
            by_signature = self._source is not None and self._source.is_exact
            return walk.partial(known, events.names, events.replaced, by_signature=by_signature)
        except (OSError, EntryChanged, WatchError):  # the tree changed during the scan
            self.close()
            return None

    def _scan_all(self, root: int, writer: Writer, reader: FileReader) -> DirState:
        """Scan every entry: by a stat pass if the tree is known, else by a full walk."""
        if self._watch and self._source is None and self._token is None:
            try:
                with block_forks():
                    from agent_checkpoint.workspace.changes.inotify import Watcher  # slow to load

                self._source = Watcher()
                self.watch_trouble = None
            except (ImportError, WatchError) as error:  # some Python builds lack ctypes
                self.watch_trouble = str(error)
        now = time.monotonic()
        known, state = self._cache.dir_state, None
        if known is not None and self._cache.copied is None:
            state = self._stat_pass(root, writer, reader, known)
        if state is not None:
            self._last_full_scan = now
            return self._catch_up(root, writer, reader, state)
        try:
            walk = self._tree_walk(root, writer, reader)
            state = walk.full(known, copied=self._cache.copied or {})
        except WatchError as error:
            self.close()
            self.watch_trouble = str(error)
            self._watch = False  # it would fail again
            return self._scan_all(root, writer, reader)
        except OSError as error:
            raise WorkspaceError(
                f"{short_repr(str(self._path))} cannot be listed ({error})."
            ) from error
        self._last_full_scan = now
        self._cache.copied = None
        self._watches_all = self._source is not None
        self._links, self._lost = walk.links, walk.lost
        if self._source is None and walk.has_gaps:
            return self._stat_pass(root, writer, reader, state) or state
        return self._catch_up(root, writer, reader, state)

    def _catch_up(self, root: int, writer: Writer, reader: FileReader, state: DirState) -> DirState:
        """Scan what changed during a walk: a file that was moved may be missing at both paths.

        Needs watches, which are set before a directory is listed. Later changes stay in the queue.
        """
        if self._source is None or self._source.is_exact:
            return state
        events, found = self._source.drain(), None
        if events is not None and not events.names:
            return state
        if events is not None and not self._has_rule_file(events.names):
            found = self._scan_changed(root, writer, reader, state, events)
        if found is None or self._links.has_new:
            self.close()  # the next scan covers everything
        if found is None:
            found = self._stat_pass(root, writer, reader, state)
        return found or state

    def _stat_pass(
        self, root: int, writer: Writer, reader: FileReader, known: DirState
    ) -> DirState | None:
        """Stat every entry of a known tree and scan those that differ; None if that fails."""
        source = None if self._watches_all else self._source
        try:
            with block_forks():
                from agent_checkpoint.workspace.scan.stat_pass import (
                    StatPass,  # not in a first scan
                )

            stat_pass = StatPass(root, None if source is None else source.add)
            index = self._cache.index_file(known) if source is None else None
            if index is not None and known.files >= PARALLEL_FROM_FILES:
                with block_forks():
                    from agent_checkpoint.workspace.scan.stat_pool import (
                        run_in_parallel,  # slow to load
                    )

                run_in_parallel(stat_pass, root, index)
            else:
                stat_pass.run(known)
            stat_pass.keep_learned(known)
            names, replaced = stat_pass.changed
            if self._has_rule_file(names):
                return None
            self._watches_all = self._source is not None
            self._links = stat_pass.links
            self._cache.note_learned(len(stat_pass.learned))
            if not names:
                return known
            walk = self._tree_walk(root, writer, reader, self._links, self._lost)
            return walk.partial(known, names, replaced, by_signature=True)
        except (OSError, EntryChanged, WatchError):  # the tree changed during the scan
            return None

    def _tree_walk(
        self,
        root: int,
        writer: Writer,
        reader: FileReader,
        links: HardLinks | None = None,
        lost: dict[bytes, set[bytes]] | None = None,
    ) -> TreeWalk:
        stat, own_inodes = os.fstat(root), self._cache.own_inodes()
        if (stat.st_dev, stat.st_ino) in own_inodes or is_store(root, b"."):
            raise WorkspaceError(
                f"{short_repr(str(self._path), 1000)} is a store and cannot be a workspace: a "
                "restore would delete its checkpoints. Move the store to another directory or "
                "to a subdirectory."
            )
        return TreeWalk(
            root,
            writer,
            objects_from(writer.backend) if writer.backend is not None else _no_objects,
            reader,
            device=stat.st_dev,
            rules=self._rules,
            own_inodes=own_inodes,
            source=self._source,
            links=links,
            lost=lost,
        )


def _no_objects(names: object) -> list[Any]:
    raise WorkspaceError("No store to read objects from.")
