"""The history of one file in a directory where several sessions may have worked. Read-only.

All checkpoints of a directory are in the order of their times, whatever key they belong to. Those
of a fork that was adopted come after them: they had another directory at that time. Objects are
read level by level and many at a time: a thousand checkpoints share most of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from agent_checkpoint.records import Checkpoint, Kind, parse_checkpoint_id
from agent_checkpoint.session.steps.line import line_of
from agent_checkpoint.store.lookup import read_at
from agent_checkpoint.store.objects.object_format import Object
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree, objects_from
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, Item, find_item
from agent_checkpoint.workspace.tree.tree_reader import pieces

_BATCH, _MOST_AHEAD = 500, 8 << 20


class PathHistory:
    """The checkpoints of a directory, oldest first, those of adopted forks, and the versions."""

    def __init__(self, store: Store, keys: Iterable[str], until: Checkpoint | None = None) -> None:
        """Read the entries of the keys.

        Args:
            store: the store.
            keys: the keys of the directory.
            until: the last checkpoint to consider; all if None.

        Raises:
            IntegrityError: a checkpoint is damaged.
            StorageError: the medium failed.
        """
        self._store = store
        self._get = objects_from(store.backend)
        found: dict[str, Checkpoint] = {}
        for key in keys:
            entries = list(store.newest_first(key, page=_BATCH))
            found.update({item.id: item for item in entries})
            first = entries[-1] if entries else None
            if first is not None and first.kind == Kind.FORK and first.parents:
                point = parse_checkpoint_id(first.parents[0])
                origin = None if point is None else read_at(store, point)
                if origin is not None:
                    found.update({item.id: item for item in line_of(store, origin)})
        chosen = [item for item in found.values() if _has_files(item)]
        # An open copies the files of its parent: others may have changed them since.
        last = None if until is None else until.id
        chosen = [
            item for item in chosen if item.kind != Kind.OPEN or not item.parents or item.id == last
        ]
        if until is not None:
            chosen = [item for item in chosen if item.ts_ns <= until.ts_ns]
        self.entries = sorted(chosen, key=lambda item: (item.ts_ns, item.seq))
        self.last: int | None = len(self.entries) - 1 if self.entries else None
        """The position of the newest entry of the directory itself."""
        self.places = {item.id: index for index, item in enumerate(self.entries)}
        self.adopted: dict[int, int] = {}
        """The position of the adopted checkpoint, by that of the entry that adopted it."""
        self._before_fork: dict[int, int | None] = {}
        """The position of the fork point, by that of the first entry of a fork."""
        for index, item in enumerate(self.entries):  # grows: a fork may have adopted others
            if item.kind == Kind.ADOPT and len(item.parents) > 1:
                self._add_fork(index, item.parents[1])
        self._roots: list[str] | None = None
        self._contents: dict[str, bytes] = {}
        """Contents that were read ahead."""

    def before(self, index: int) -> int | None:
        """Return the position of the entry before an entry; None for the first one."""
        return self._before_fork.get(index, index - 1 if index else None)

    def fork_point(self, index: int) -> Checkpoint | None:
        """Return the checkpoint before the first entry of a fork; None for the directory itself."""
        is_fork = self.last is not None and index > self.last
        place = self.before(index) if is_fork else None
        return None if place is None else self.entries[place]

    def _add_fork(self, index: int, name: str) -> None:
        """Add the entries of a fork that an entry adopted, from the fork point on."""
        parsed = parse_checkpoint_id(name)
        last = None if parsed is None or name in self.places else read_at(self._store, parsed)
        line = [] if last is None else line_of(self._store, last)
        known = [self.places[item.id] for item in line if item.id in self.places]
        new = [item for item in line if item.id not in self.places and _has_files(item)]
        if new and new[-1] is line[-1]:
            # Not a later one: a crafted store may have cycles.
            point = max((place for place in known if place < index), default=None)
            self._before_fork[len(self.entries)] = point
            self.places.update({item.id: len(self.entries) + n for n, item in enumerate(new)})
            self.entries += new
            self.adopted[index] = len(self.entries) - 1

    def tree(self, index: int) -> Tree:
        """Return the files of an entry. Raises IntegrityError, StorageError."""
        tree = tree_in(self._store, self.entries[index])
        if tree is None:
            raise AssertionError("unreachable: entries without files are left out")
        return tree

    def items(self, path: str) -> list[Item | None]:
        """Return the entry at a path for each checkpoint; None where there is none.

        Raises:
            IntegrityError: an object is missing or damaged.
            StorageError: the medium failed.
        """
        refs: list[str | None] = list(self._root_refs())
        items: list[Item | None] = [None] * len(refs)
        for name in os.fsencode(path).split(b"/"):
            known = self._find([ref for ref in refs if ref is not None], name)
            items = [None if ref is None else known[ref] for ref in refs]
            refs = [
                item.ref if item is not None and item.type == FOLDER else None for item in items
            ]
        return items

    def content(self, item: Item, ahead: Iterable[Item | None] = ()) -> bytes:
        """Return the content of a file; read that of further ones ahead.

        Raises IntegrityError, StorageError.
        """
        if item.id != item.ref:  # in chunks
            return b"".join(pieces(self._get, item))
        if item.ref not in self._contents:
            wanted = {item.ref: item.size}
            for other in ahead:
                if len(wanted) == _BATCH or sum(wanted.values()) > _MOST_AHEAD:
                    break
                if other is not None and other.type == FILE and other.id == other.ref:
                    wanted[other.ref] = other.size
            self._contents = {ref: one.payload for ref, one in self._read(list(wanted)).items()}
        return self._contents[item.ref]

    def _root_refs(self) -> list[str]:
        if self._roots is None:
            parts: list[Any] = [item.parts[FILES] for item in self.entries]
            records = self._read([part[OBJECT] for part in parts])
            self._roots = [records[part[OBJECT]].refs[0] for part in parts]
        return self._roots

    def _find(self, refs: Sequence[str], name: bytes) -> dict[str, Item | None]:
        """Return the entry of a name in each of some directories."""
        wanted = list(dict.fromkeys(refs))
        return {ref: find_item(one, name, self._get) for ref, one in zip(wanted, self._get(wanted))}

    def _read(self, names: Sequence[str]) -> dict[str, Object]:
        wanted = list(dict.fromkeys(names))
        return dict(zip(wanted, self._get(wanted)))


def _has_files(checkpoint: Checkpoint) -> bool:
    tag = checkpoint.parts.get(FILES)
    return isinstance(tag, dict) and OBJECT in tag
