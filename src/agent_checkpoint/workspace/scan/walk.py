"""Walks a directory tree, fully or only changed paths. Does not follow symlinks.

A file with an unchanged stat signature is not read again. Every other file is read by the
`FileReader` while its directory is open. After the walk, the states of the directories are
assembled bottom-up.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Optional

from agent_checkpoint.backends.os_support.mounts import pseudo_devices
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.changes.changed_paths import by_parent, with_parents
from agent_checkpoint.workspace.changes.directory_times import DirectoryTimes
from agent_checkpoint.workspace.changes.hard_links import HardLinks
from agent_checkpoint.workspace.ignore.rule_files import rule_texts, rules_at
from agent_checkpoint.workspace.ignore.rules import LARGEST_FILE, Rules
from agent_checkpoint.workspace.safe_open import DirectoryOpener, EntryChanged, directory_below
from agent_checkpoint.workspace.scan.dir_builder import DirBuilder, assemble, in_postorder
from agent_checkpoint.workspace.scan.nested_stores import FORMAT_DIR, STORE_NAMES, is_store
from agent_checkpoint.workspace.scan.reading.entry_reader import ReadRequest, ReadResult
from agent_checkpoint.workspace.scan.reading.file_reader import FileReader
from agent_checkpoint.workspace.tree.dir_state import (
    IGNORED,
    READ_AGAIN,
    RULES,
    SPECIAL,
    STORE,
    UNREADABLE,
    Copied,
    DirState,
    Note,
    is_other_mount,
    load_items,
    signatures_by_name,
    stat_signature,
)
from agent_checkpoint.workspace.tree.tree_format import FILE, ContentHash, Get, Item

if TYPE_CHECKING:
    from agent_checkpoint.workspace.changes.inotify import Watcher
    from agent_checkpoint.workspace.changes.overlay_upper import OverlayUpper

STAGING = b".agent-checkpoint-restore"
"""The staging directory of restores, in the root; never captured."""
_SPECIALS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OLD_RULES = Note(UNREADABLE, "it was removed after its rules were applied")
_STORE = Note(STORE, "a store of agent-checkpoint that is in use", stat.S_IFDIR)
_TRIES = 3
_TYPE, _FILE = 0o170000, stat.S_IFREG


class _StoreFound(Exception):
    """A directory is a store in use."""


class TreeWalk:
    """One walk through a tree, for one checkpoint; `writer` receives the new objects."""

    def __init__(
        self,
        root: int,
        writer: Writer,
        get: Get,
        reader: FileReader,
        *,
        device: int,
        rules: Rules,
        own_inodes: Collection[tuple[int, int]],
        source: Watcher | OverlayUpper | None,
        links: HardLinks | None = None,
        lost: dict[bytes, set[bytes]] | None = None,
    ) -> None:
        self._root = root
        self._writer = writer
        self._get = get
        self._reader = reader
        self._rules = rules
        self._source = source
        self._device = device
        self._by_signature = True
        self._copied: Copied = {}
        self.links = links or HardLinks()
        self._own_inodes = own_inodes
        self._pseudo: frozenset[int] | None = None
        self._times = DirectoryTimes(root)
        self.lost = {} if lost is None else lost
        """Names, by directory, of entries that could not be read consistently."""
        self.has_gaps = False
        """Whether an entry was gone when it was read: it may be at a path listed before."""

    def full(self, old: DirState | None, *, copied: Copied) -> DirState:
        """Return the current state of the tree; stat every entry.

        Args:
            old: its known state.
            copied: the signatures of the files that were copied, if `old` is the state of the
                directory from which this one was copied.

        Raises:
            WorkspaceError: the root cannot be listed.
            StorageError: the store failed.
        """
        self._copied = copied
        top = DirBuilder(b"", old, None)
        builders = list(self._walk(top, self._rules))
        # In postorder: the first directories are read first, the last ones meanwhile.
        return self._rescan_changing(self._assemble(in_postorder(builders)), builders)

    def partial(
        self,
        old: DirState,
        changed: Mapping[bytes, Collection[bytes]],
        replaced: Collection[bytes],
        *,
        by_signature: bool = False,
    ) -> DirState:
        """Return the current state of the tree; stat only the changed names.

        Args:
            old: the previous state.
            changed: the names, by the path of their directory.
            replaced: directories whose known state, and everything below, is invalid.
            by_signature: whether to skip reading a changed file with an unchanged signature. A
                write through a memory map may not change the timestamps.

        Raises the same errors as `full`.
        """
        self._by_signature = by_signature
        builders = list(self._visit(old, changed, replaced))
        load_items([each.old for each in builders if each.old is not None], self._get)
        return self._rescan_changing(self._assemble(builders[::-1]), builders)

    # -- walking ---------------------------------------------------------------------------------

    def _walk(self, top: DirBuilder, rules: Rules) -> Iterator[DirBuilder]:
        """List a directory and its subdirectories, in preorder.

        Raises:
            OSError: the root cannot be listed. Other directories get a result instead.
        """
        with DirectoryOpener(os.dup(self._root)) as opener:
            stack = [(top, rules)]
            while stack:
                builder, rules = stack.pop()
                try:
                    subdirs, rules = self._list(builder, opener.open(builder.path), rules)
                except (OSError, _StoreFound) as error:
                    if builder.parent is None:
                        raise
                    builder.parent.results[builder.path.rpartition(b"/")[2]] = _not_listed(error)
                    continue
                yield builder
                for name, signature in reversed(subdirs):
                    known = _known_subdir(builder.old, name, signature)
                    stack.append((DirBuilder(builder.child(name), known, builder), rules))

    def _list(
        self, builder: DirBuilder, fd: int, rules: Rules
    ) -> tuple[list[tuple[bytes, bytes]], Rules]:
        """Stat every entry of a directory; return its subdirectories and its rules.

        Raises:
            OSError: it cannot be listed.
            _StoreFound: it is a store in use.
        """
        if self._source is not None:
            self._source.add(fd, builder.path)  # before listing, so that no change is missed
        builder.times = self._times.before_listing(fd)
        with os.scandir(fd) as entries:
            rows = sorted([(os.fsencode(entry.name), entry) for entry in entries])
        # Only a directory with such a name can be a store. The root is checked before every walk.
        if builder.path and not STORE_NAMES.isdisjoint([name for name, _ in rows]):
            self._refuse_store(builder.path, fd)
        builder.rule_texts = texts = rule_texts(builder.path, fd, rules)
        rules = rules.within(builder.path, texts) if texts else rules
        _note_invalid_rules(builder, rules)
        subdirs: list[tuple[bytes, bytes]] = []
        files: list[ReadRequest] = []
        names, signatures = builder.names, builder.signatures
        device, has_rules = self._device, bool(rules)
        for name, entry in rows:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            kind = status.st_mode & _TYPE
            # The fast path: most entries are plain files that need no further checks.
            if (
                kind == _FILE
                and status.st_nlink == 1
                and status.st_dev == device
                and not has_rules
                and name != STAGING
            ):
                names.append(name)
                signatures.append(stat_signature(status))
                files.append(ReadRequest(name, status.st_size, is_link=False))
            elif not self._admit(builder, name, status, rules):
                continue
            elif kind == stat.S_IFDIR:
                subdirs.append((name, signatures[-1]))
            else:
                files.append(ReadRequest(name, status.st_size, kind == stat.S_IFLNK))
        old = builder.old
        if old is not None and old.names == names and old.signatures == b"".join(signatures):
            builder.is_same = True
            builder.notes.update(_captured_notes(old))
        else:
            self._read_changed(builder, fd, files)
        return subdirs, rules

    def _refuse_store(self, path: bytes, fd: int) -> None:
        if is_store(fd, b"."):
            if self._source is not None:
                self._source.forget(path)  # others write to it
            raise _StoreFound

    def _admit(
        self, builder: DirBuilder, name: bytes, status: os.stat_result, rules: Rules
    ) -> bool:
        """Add an entry to the builder if it is captured; otherwise add a note.

        Returns whether the entry is captured.
        """
        mode = status.st_mode
        is_dir = stat.S_ISDIR(mode)
        # Rule files are captured even if they match a rule: a restore needs the rules of the tree.
        if (
            rules
            and rules.excludes(builder.path, name, is_dir)
            and name not in rules.files(builder.path)
        ):
            builder.notes[name] = Note(IGNORED, type=stat.S_IFMT(mode))
        elif name == STAGING and not builder.path:
            builder.notes[name] = Note(SPECIAL, "where restores are staged", stat.S_IFMT(mode))
        elif not (is_dir or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            kind = stat.S_IFMT(mode)
            builder.notes[name] = Note(SPECIAL, _SPECIALS.get(kind, "no file"), kind)
        elif is_dir and (status.st_dev, status.st_ino) in self._own_inodes:
            builder.notes[name] = Note(IGNORED, "it belongs to agent-checkpoint")
        elif status.st_dev != self._device and self._is_pseudo(status.st_dev):
            builder.notes[name] = Note(SPECIAL, "a part of the kernel that is mounted there")
        else:
            builder.names.append(name)
            builder.signatures.append(stat_signature(status, self._device))
            if status.st_nlink > 1 and not is_dir:
                self.links.add(status, builder.path, name)
            return True
        return False

    def _is_pseudo(self, device: int) -> bool:
        if self._pseudo is None:
            self._pseudo = pseudo_devices()
        return device in self._pseudo

    def _visit(
        self, old: DirState, changed: Mapping[bytes, Collection[bytes]], replaced: Collection[bytes]
    ) -> Iterator[DirBuilder]:
        """Scan the changed names of a known tree; yield their directories and all parents."""
        builders: dict[bytes, DirBuilder] = {}
        for path in sorted(with_parents(changed)):
            parent = builders.get(path.rpartition(b"/")[0]) if path else None
            known = old if parent is None else parent.subdirs.get(path.rpartition(b"/")[2])
            if known is None or (path and parent is None):
                continue  # the directory was created or deleted, which is a change of its parent
            builder = builders[path] = DirBuilder(path, known, parent)
            builder.subdirs = dict(known.subdirs)
            yield builder
            if path in changed:
                yield from self._scan_names(builder, known, changed[path], replaced)
            else:
                builder.notes, builder.changes = dict(known.notes), {}

    def _scan_names(
        self,
        builder: DirBuilder,
        old: DirState,
        changed: Collection[bytes],
        replaced: Collection[bytes],
    ) -> Iterator[DirBuilder]:
        """Scan the changed names of a known directory, and everything below new directories."""
        builder.notes = dict(old.notes)
        builder.changes = changes = dict[bytes, Optional[bytes]]()
        new_dirs: list[tuple[bytes, DirState | None]] = []
        requests: list[ReadRequest] = []
        with directory_below(self._root, builder.path) as fd:
            rules = rules_at(self._root, builder.path, fd, self._rules)
            if _has_become_store(builder.path, fd, changed):
                raise EntryChanged  # the directory left the tree, which is a change of its parent
            for name in sorted(changed):
                note = builder.notes.pop(name, None)
                changes[name] = None
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    builder.subdirs.pop(name, None)
                    continue
                probe = DirBuilder(builder.path, None, None)
                is_captured = self._admit(probe, name, status, rules)
                if is_captured and stat.S_ISDIR(status.st_mode) and is_store(fd, name):
                    is_captured, probe.notes[name] = False, _STORE
                builder.notes.update(probe.notes)
                if not is_captured:
                    builder.subdirs.pop(name, None)
                    continue
                before = old.signature_of(name)
                changes[name] = signature = probe.signatures[0]
                if not stat.S_ISDIR(status.st_mode):
                    builder.subdirs.pop(name, None)
                    if self._by_signature and self._is_read(builder, name, before, signature):
                        if note is not None and note.is_captured:
                            builder.notes[name] = note
                        continue
                    is_link = stat.S_ISLNK(status.st_mode)
                    requests.append(ReadRequest(name, status.st_size, is_link))
                # An overlay reports replaced directories. A copy-up also changes inodes.
                elif builder.child(name) in replaced or not (
                    before == signature or (self._by_signature and name in builder.subdirs)
                ):
                    new_dirs.append((name, _known_subdir(old, name, signature)))
            _note_invalid_rules(builder, rules)
            if requests:
                builder.batch = self._reader.read(fd, builder.path, requests, builder.results)
        for name, known in new_dirs:
            builder.subdirs.pop(name, None)
            yield from self._walk(DirBuilder(builder.child(name), known, builder), rules)

    def _is_read(
        self, builder: DirBuilder, name: bytes, before: bytes | None, signature: bytes
    ) -> bool:
        """Return whether the content of a file with this signature is already known."""
        if before == signature:
            return True
        return bool(self._copied) and self._copied.get(builder.child(name)) == (before, signature)

    def _read_changed(self, builder: DirBuilder, fd: int, files: list[ReadRequest]) -> None:
        """Read every file and link whose signature differs."""
        old = builder.old
        if old is not None and old.names:
            before, notes = signatures_by_name(old), _captured_notes(old)
            now = dict(zip(builder.names, builder.signatures))
            changed: list[ReadRequest] = []
            for each in files:
                name = each.name
                if not self._is_read(builder, name, before.get(name), now[name]):
                    changed.append(each)
                elif name in notes:
                    builder.notes[name] = notes[name]
            files = changed
        if files:
            builder.batch = self._reader.read(fd, builder.path, files, builder.results, later=True)

    def _assemble(self, builders: Iterable[DirBuilder]) -> DirState:
        """Return the state of the last directory; each comes after its subdirectories."""
        for builder in builders:
            self._reader.wait(builder.batch)
            self._compare_rules(builder)
            state = assemble(builder, self._get, self._writer.put)
            self.has_gaps |= builder.has_gaps
            self.lost.pop(builder.path, None)
            if builder.notes and (lost := {name for name, n in builder.notes.items() if n.is_loss}):
                self.lost[builder.path] = lost
        return state

    def _compare_rules(self, builder: DirBuilder) -> None:
        """Have the next scan apply rule files that changed after they were applied.

        If it found them as they were captured, it would keep the results of the old rules.
        """
        for name in self._rules.files(builder.path):
            text, result = builder.rule_texts.get(name), builder.results.get(name)
            if result is not None and result.item is not None:
                is_applied = (
                    result.item.type != FILE if text is None else _is_text_of(text, result.item)
                )
                if not is_applied:
                    builder.results[name] = ReadResult(result.item, READ_AGAIN, result.note)
            elif text is None or (result is None and name in builder.names):
                continue  # unchanged
            elif result is None:
                builder.notes[name] = _OLD_RULES
            elif result.note is None and not result.is_changing:
                builder.results[name] = ReadResult(None, note=_OLD_RULES)

    def _rescan_changing(self, state: DirState, builders: list[DirBuilder]) -> DirState:
        """Scan again the entries whose type changed during the walk."""
        changing, replaced = _changing(builders), frozenset[bytes]()
        self.has_gaps |= bool(changing)
        for _ in range(_TRIES if changing else 0):
            try:
                builders = list(self._visit(state, changing, replaced))
            except OSError:  # the directory was removed or replaced: scan all of it
                changing, replaced = by_parent(changing), frozenset(changing)
                continue
            state = self._assemble(builders[::-1])
            changing, replaced = _changing(builders), frozenset()
            if not changing:
                break
        return state


def _known_subdir(old: DirState | None, name: bytes, signature: bytes) -> DirState | None:
    """Return the known state of a subdirectory, unless another file system is mounted there."""
    known = None if old is None else old.subdirs.get(name)
    if old is None or known is None or is_other_mount(old.signature_of(name), signature):
        return None
    return known


def _has_become_store(path: bytes, fd: int, changed: Collection[bytes]) -> bool:
    """Return whether a directory below the root, or its parent, has become a store.

    The root is checked before every walk.
    """
    if path.endswith(b"/" + FORMAT_DIR) and is_store(fd, b".."):
        return True
    return bool(path) and not STORE_NAMES.isdisjoint(changed) and is_store(fd, b".")


def _note_invalid_rules(builder: DirBuilder, rules: Rules) -> None:
    """Add a note to the rule files of a directory that have invalid lines."""
    for name in rules.files(builder.path):
        error = rules.errors.get(builder.child(name))
        if error is not None:
            builder.notes[name] = Note(RULES, f"not all of it counts: {error}")


def _is_text_of(text: bytes, item: Item) -> bool:
    """Return whether an entry is a file with this content, as far as that was read."""
    if len(text) > LARGEST_FILE:
        return item.size > LARGEST_FILE
    content = ContentHash()
    content.add(text)
    return content.id() == item.id


def _not_listed(error: OSError | _StoreFound) -> ReadResult:
    """Return the result for a directory that is not listed."""
    if isinstance(error, _StoreFound):
        return ReadResult(None, note=_STORE)
    if isinstance(error, PermissionError):
        return ReadResult(None, note=Note(UNREADABLE, str(error.strerror)))
    return ReadResult(None, is_changing=True)


def _changing(builders: Iterable[DirBuilder]) -> dict[bytes, list[bytes]]:
    """Return, by directory, the names whose type changed during the walk."""
    changing = {
        builder.path: [name for name, result in builder.results.items() if result.is_changing]
        for builder in builders
        if builder.results
    }
    return {path: names for path, names in changing.items() if names}


def _captured_notes(state: DirState) -> dict[bytes, Note]:
    """Return the notes on captured entries."""
    return {name: note for name, note in state.notes.items() if note.is_captured}
