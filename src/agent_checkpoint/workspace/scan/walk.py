"""A directory tree as it is now, given what it was before. Owns the walk; follows no symlink.

What has its old stamp is not read again. Everything else is read by `contents` while its directory
is open, and when the walk is done the folders are put together, from the deepest up.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.changes.changed_paths import above, with_parents
from agent_checkpoint.workspace.changes.hard_links import Links
from agent_checkpoint.workspace.ignore.rule_files import rules_at, rules_in
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.safe_open import Changing, directory_below, open_directory
from agent_checkpoint.workspace.scan.dir_builder import Node, assemble
from agent_checkpoint.workspace.scan.entry_filter import Admission, Excluded
from agent_checkpoint.workspace.scan.file_reader import Contents, Found, Wanted
from agent_checkpoint.workspace.scan.nested_stores import MARKS, RECORDS, is_store
from agent_checkpoint.workspace.tree.dir_state import (
    READ_AGAIN,
    RULES,
    STAMP,
    UNREADABLE,
    Folder,
    Note,
    is_copied,
    stamp_of,
    stamps_by_name,
)
from agent_checkpoint.workspace.tree.tree_format import Get

_TRIES = 3
_TYPE = 0o170000
_MOST_OPEN = 128


class Watches(Protocol):
    """Told of every directory before it is listed."""

    def add(self, fd: int, path: bytes) -> None:
        """Watch a directory."""


class _Frame:
    """A directory that is being walked through."""

    __slots__ = ("fd", "names", "node", "rules")

    def __init__(self, node: Node, fd: int) -> None:
        self.node = node
        self.fd = fd
        self.names: Iterator[bytes] = iter(())
        self.rules: Rules

    def begin(self, names: list[bytes], rules: Rules) -> None:
        self.names = iter(names)
        self.rules = rules

    def open(self, root: int, name: bytes) -> int:
        if self.fd < 0:  # it was closed, since there are deeper trees than a process has files
            with directory_below(root, self.node.path) as fd:
                return open_directory(name, fd)
        return open_directory(name, self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Scan:
    """One look at a tree. Made for one checkpoint; `writer` takes what is new."""

    def __init__(
        self,
        root: int,
        writer: Writer,
        get: Get,
        contents: Contents,
        *,
        rules: Rules,
        excluded: Excluded,
        watches: Watches | None = None,
        links: Links | None = None,
        lost: dict[bytes, set[bytes]] | None = None,
    ) -> None:
        self._root = root
        self._writer = writer
        self._get = get
        self._contents = contents
        self._rules = rules
        self._own_name = excluded.in_root
        self._watches = watches
        self._device = os.fstat(root).st_dev
        self._by_stamp = True
        self._is_copy = False
        self.links = links or Links()
        self._take = Admission(self._device, excluded, self.links).take
        self.lost = {} if lost is None else lost
        """What could not be read, or not in one piece: names by directory."""

    def full(self, old: Folder | None, *, is_copy: bool = False) -> Folder:
        """Return the tree as it is now, looking at every entry.

        Args:
            old: what is known of it.
            is_copy: whether that was seen in the directory that this one was just copied from:
                then files with the same size, mode and time of content are the same.

        Raises:
            WorkspaceError: the root cannot be listed.
            StorageError: the store failed.
        """
        self._is_copy = is_copy
        top = Node(b"", old, None)
        with directory_below(self._root, b"") as fd:
            nodes = list(self._walk(top, fd, self._rules))
        return self._settle(self._assemble(nodes), nodes)

    def partial(
        self,
        old: Folder,
        touched: Mapping[bytes, Collection[bytes]],
        replaced: Collection[bytes],
        *,
        by_stamp: bool = False,
    ) -> Folder:
        """Return the tree as it is now, looking only at names that were touched.

        Args:
            old: the tree before.
            touched: the names, by the path of their directory.
            replaced: paths of directories of which nothing below can be taken for known.
            by_stamp: whether a touched file that has its old stamp need not be read. A store
                through a memory map may leave the times as they were.

        Raises as `full` does.
        """
        self._by_stamp = by_stamp
        nodes = list(self._visit(old, touched, replaced))
        return self._settle(self._assemble(nodes), nodes)

    # -- looking ---------------------------------------------------------------------------------

    def _walk(self, top: Node, fd: int, rules: Rules) -> Iterator[Node]:
        """List a directory and all below it; yield each before those below it."""
        frames = [_Frame(top, os.dup(fd))]
        try:
            frames[0].begin(*self._list(top, fd, rules))
            yield top
            while frames:
                frame = frames[-1]
                name = next(frame.names, None)
                if name is None:
                    frames.pop().close()
                    continue
                node = frame.node
                child = Node(node.child(name), node.old and node.old.folders.get(name), node)
                try:
                    frames.append(_Frame(child, frame.open(self._root, name)))
                    frames[-1].begin(*self._list(child, frames[-1].fd, frame.rules))
                except OSError as error:
                    node.found[name] = _not_listed(error)
                    if frames[-1] is not frame:
                        frames.pop().close()
                    continue
                yield child
                if len(frames) > _MOST_OPEN:
                    frames[-_MOST_OPEN].close()
        finally:
            for frame in frames:
                frame.close()

    def _list(self, node: Node, fd: int, rules: Rules) -> tuple[list[bytes], Rules]:
        """Look at every entry of a directory; return those that are directories, and the rules."""
        if self._watches is not None:
            self._watches.add(fd, node.path)  # first, so that nothing is missed
        with os.scandir(fd) as entries:
            rows = sorted((os.fsencode(entry.name), entry) for entry in entries)
        rules = rules_in(node.path, fd, rules)
        _note_flaws(node, rules)
        folders: list[bytes] = []
        own, device = self._own_name, self._device
        for name, entry in rows:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            kind = found.st_mode & _TYPE
            # Nearly all are plain files of which there is nothing to be said.
            if (
                kind == stat.S_IFREG
                and found.st_nlink == 1
                and found.st_dev == device
                and not rules
                and name != own
            ):
                node.names.append(name)
                node.stamps.append(stamp_of(found))
            elif self._take(node, name, found, rules, fd) and kind == stat.S_IFDIR:
                folders.append(name)
        old = node.old
        if old is not None and old.names == node.names and old.stamps == b"".join(node.stamps):
            node.is_same = True
            node.notes.update(_captured_notes(old))
        else:
            self._want(node, fd)
        return folders, rules

    def _visit(
        self, old: Folder, touched: Mapping[bytes, Collection[bytes]], replaced: Collection[bytes]
    ) -> Iterator[Node]:
        nodes: dict[bytes, Node] = {}
        for path in sorted(with_parents(touched)):
            parent = nodes.get(path.rpartition(b"/")[0]) if path else None
            known = old if parent is None else parent.below.get(path.rpartition(b"/")[2])
            if known is None or (path and parent is None):
                continue  # it came or went as a whole, which its parent tells
            node = nodes[path] = Node(path, known, parent)
            node.below = dict(known.folders)
            yield node
            if path in touched:
                yield from self._revisit(node, known, touched[path], replaced)
            else:
                node.names, node.stamps = list(known.names), known.all_stamps()
                node.notes, node.is_same = dict(known.notes), True

    def _revisit(
        self,
        node: Node,
        old: Folder,
        touched: Collection[bytes],
        replaced: Collection[bytes],
    ) -> Iterator[Node]:
        """Look again at some names of a known directory, and at all below those that are new."""
        stamps = stamps_by_name(old)
        node.notes = dict(old.notes)
        fresh: list[bytes] = []
        with directory_below(self._root, node.path) as fd:
            rules = rules_at(self._root, node.path, fd, self._rules)
            if _has_become_store(node.path, fd, touched):
                raise Changing  # it is no part of the tree any more, which its parent tells
            for name in touched:
                before = stamps.pop(name, None)
                node.notes.pop(name, None)
                look = Node(node.path, None, None)
                try:
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    node.below.pop(name, None)
                    continue
                if self._take(look, name, found, rules, fd):
                    stamps[name] = look.stamps[0]
                    # A layer tells which directories are others; inodes change by writing, too.
                    is_known = node.child(name) not in replaced and (
                        before == stamps[name] or (self._by_stamp and name in node.below)
                    )
                    if stat.S_ISDIR(found.st_mode) and not is_known:
                        fresh.append(name)
                        continue
                else:
                    node.below.pop(name, None)
                node.notes.update(look.notes)
                if not stat.S_ISDIR(found.st_mode):
                    node.below.pop(name, None)
            _note_flaws(node, rules)
            node.names = sorted(stamps)
            node.stamps = [stamps[name] for name in node.names]
            self._want(node, fd, () if self._by_stamp else touched)
            for name in fresh:
                known = node.below.pop(name, None)
                child = Node(node.child(name), known, node)
                try:
                    below = open_directory(name, fd)
                except OSError as error:
                    node.found[name] = _not_listed(error)
                    continue
                try:
                    yield from self._walk(child, below, rules)
                finally:
                    os.close(below)

    def _want(self, node: Node, fd: int, touched: Collection[bytes] = ()) -> None:
        """Have everything read that was touched, or has not its old stamp."""
        before = {} if node.old is None else stamps_by_name(node.old)
        for name in touched:
            before.pop(name, None)
        notes = {} if node.old is None else _captured_notes(node.old)
        wanted: list[Wanted] = []
        for name, stamp in zip(node.names, node.stamps):
            if before and (
                before.get(name) == stamp
                or (self._is_copy and is_copied(before.get(name, READ_AGAIN), stamp))
            ):
                if name in notes:
                    node.notes[name] = notes[name]
                continue
            size, _, _, _, mode = STAMP.unpack(stamp)
            if mode & _TYPE != stat.S_IFDIR:
                wanted.append(Wanted(name, size, mode & _TYPE == stat.S_IFLNK))
        if wanted:
            self._contents.read(fd, node.path, wanted, node.found)

    def _assemble(self, nodes: list[Node]) -> Folder:
        folder = assemble(nodes, self._get, self._writer.put)
        for node in nodes:
            self.lost.pop(node.path, None)
            if node.notes and (few := {name for name, n in node.notes.items() if n.is_loss}):
                self.lost[node.path] = few
        return folder

    def _settle(self, folder: Folder, nodes: list[Node]) -> Folder:
        """Look again where an entry took on another type while we looked."""
        changing, replaced = _changing(nodes), frozenset[bytes]()
        for _ in range(_TRIES if changing else 0):
            try:
                nodes = list(self._visit(folder, changing, replaced))
            except OSError:  # a directory itself is gone, or another one: look at it as a whole
                changing, replaced = above(changing), frozenset(changing)
                continue
            folder = self._assemble(nodes)
            changing, replaced = _changing(nodes), frozenset()
            if not changing:
                break
        return folder


def _has_become_store(path: bytes, fd: int, touched: Collection[bytes]) -> bool:
    """Tell whether a directory below the root, or the one above it, is a store by what was touched.

    The root is asked before every look.
    """
    if path.endswith(b"/" + RECORDS) and is_store(fd, b".."):
        return True
    return bool(path) and not MARKS.isdisjoint(touched) and is_store(fd, b".")


def _note_flaws(node: Node, rules: Rules) -> None:
    """Note of the files of rules in a directory what of them does not count."""
    for name in rules.files(node.path):
        flaw = rules.flaws.get(node.child(name))
        if flaw is not None:
            node.notes[name] = Note(RULES, f"not all of it counts: {flaw}")


def _not_listed(error: OSError) -> Found:
    """Return what is found where a directory cannot be listed."""
    if isinstance(error, PermissionError):
        return Found(None, note=Note(UNREADABLE, str(error.strerror)))
    return Found(None, is_changing=True)


def _changing(nodes: Iterable[Node]) -> dict[bytes, list[bytes]]:
    """Return, by directory, the names whose type changed as they were looked at."""
    found = {
        node.path: [name for name, found in node.found.items() if found.is_changing]
        for node in nodes
        if node.found
    }
    return {path: names for path, names in found.items() if names}


def _captured_notes(folder: Folder) -> dict[bytes, Note]:
    """Return what was said of entries that are captured."""
    return {name: note for name, note in folder.notes.items() if note.is_captured}
