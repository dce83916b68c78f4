"""`blame`: the step that wrote each line of a file. Owns how lines are followed back.

From the present backwards through the versions of the file: a line that the older version does not
have was written by the step between them. A rollback, a restore and an adopted fork continue at the
checkpoint that they took the file from. A file that does not exist in the older version is followed
to the file that the step renamed.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.agents.directory_keys import find_directory_keys, keys_of_directory
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import (
    ROLLBACK_KINDS,
    SAME_CONTENT,
    Checkpoint,
    Kind,
    short_repr,
)
from agent_checkpoint.session.revert.step_removal import exact_renames
from agent_checkpoint.session.revert.text_merge import edits
from agent_checkpoint.session.session_open import manager_for
from agent_checkpoint.session.steps.step import Step, StepReader
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.store import Store
from agent_checkpoint.trajectory.path_history import PathHistory
from agent_checkpoint.trajectory.probe_directory import original_directory
from agent_checkpoint.workspace.tree.compare import tree_changes
from agent_checkpoint.workspace.tree.tree_format import FILE, Item

if TYPE_CHECKING:
    from agent_checkpoint.store.store_argument import StoreLike

_LARGEST, _MOST_LINES, _PROBE = 16 << 20, 200_000, 8000
_SIMILAR = 0.5
_MOST_COMPARED = 20
_AHEAD = 200
_MOST_CACHED = 64

_cache: OrderedDict[tuple[Any, ...], list[BlameLine]] = OrderedDict()
"""Results by store, heads of the keys, path and content."""


@dataclass(frozen=True)
class BlameLine:
    """A line of a file, and the step that wrote it."""

    number: int
    """From 1."""
    text: str
    """Without its line end."""
    step: Step | None
    """None if the line is not in a checkpoint yet."""
    is_first: bool = False
    """Whether the line is as old as the first checkpoint of the directory."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        step = None if self.step is None else self.step.to_dict()
        return {"number": self.number, "text": self.text, "first": self.is_first, "step": step}


def blame(
    path: str | os.PathLike[str],
    *,
    store: StoreLike | None = None,
    key: str | None = None,
    at: str | None = None,
) -> list[BlameLine]:
    """Return, for each line of a file, the step that wrote it.

    Args:
        path: the file; with `key` or `at`, also relative to the directory of the key.
        store: a path, a store URL, a Backend or a CheckpointManager.
        key: only the history of this key; by default, that of all keys of the directory.
        at: a checkpoint whose version of the file is shown; by default, the present file.

    Raises:
        NotFoundError: the directory has no checkpoints, or there is no such file.
        InvalidInputError: the file is binary or too large.
        StorageError: the store failed.
    """
    manager, owns = manager_for(store)
    try:
        return _blame(manager.store, os.fspath(path), key, at)
    finally:
        if owns:
            manager.close()


def blame_at(store: Store, checkpoint: Checkpoint, name: str) -> list[BlameLine]:
    """Return, for each line of a file of a checkpoint, the step that wrote it.

    The history is that of all keys of the directory, if it is this user's. No file is read.

    Args:
        store: the store.
        checkpoint: the checkpoint.
        name: the file, relative to the directory.

    Raises the same errors as `blame`.
    """
    directory = original_directory(store, checkpoint.key)
    keys = [] if directory is None else keys_of_directory(store, directory)
    return _traced(store, sorted({checkpoint.key, *keys}), name, checkpoint, None)


def _blame(store: Store, path: str, key: str | None, at: str | None) -> list[BlameLine]:
    until = None if at is None else find(store, at, base=key)
    key = until.key if until is not None and key is None else key
    directory, keys = _directory(store, Path(path), key)
    name = _relative(Path(path), directory)
    text = None if until is not None or directory is None else _present(directory / name)
    return _traced(store, keys, name, until, text)


def _traced(
    store: Store, keys: list[str], name: str, until: Checkpoint | None, text: bytes | None
) -> list[BlameLine]:
    """Return the lines of a file, from the cache if nothing was saved since."""
    heads = tuple(head.id for one in keys if (head := store.head(one)) is not None)
    digest = None if text is None else hashlib.sha256(text).hexdigest()
    place = store.backend.properties.url
    cached = (place, heads, name, None if until is None else until.id, digest)
    if place is not None and cached in _cache:
        _cache.move_to_end(cached)
        return list(_cache[cached])
    history = PathHistory(store, keys, until)
    lines = _Origins(store, history, name).run(text)
    if place is not None:
        _cache[cached] = lines
        while len(_cache) > _MOST_CACHED:
            _cache.popitem(last=False)
    return list(lines)


def _directory(store: Store, path: Path, key: str | None) -> tuple[Path | None, list[str]]:
    """Return the directory of a file, and the keys with its history."""
    if key is not None:
        if store.head(key) is None:
            raise NotFoundError(f"There is no key {short_repr(key)}.")
        return original_directory(store, key), [key]
    file = Path(os.path.realpath(path.parent)) / path.name
    around = list(file.parents)
    found = find_directory_keys(store, around)
    for directory in around:
        if directory in found:
            return directory, [entry.key for entry in found[directory]]
    raise NotFoundError(
        f"No directory above {short_repr(str(file), 200)} has checkpoints in this store."
    )


def _relative(path: Path, directory: Path | None) -> str:
    """Return a path relative to the directory."""
    file = Path(os.path.realpath(path.parent)) / path.name
    if directory is not None and directory in file.parents:
        return str(file.relative_to(directory))
    if path.is_absolute() or ".." in path.parts:
        raise InvalidInputError(f"{short_repr(str(path), 200)} is not within {directory}.")
    return str(path)


def _present(file: Path) -> bytes | None:
    try:
        return file.read_bytes() if file.is_file() and not file.is_symlink() else None
    except OSError as error:
        raise NotFoundError(f"{short_repr(str(file), 200)} cannot be read ({error}).") from error


class _Run(NamedTuple):
    """Lines that follow each other in the result and in an older version."""

    line: int
    """The number of the first line in the result, from 0."""
    at: int
    """Its position in the older version."""
    size: int


class _Origins:
    """Follows the lines of one file back."""

    def __init__(self, store: Store, history: PathHistory, path: str) -> None:
        self._store = store
        self._history = history
        self._path = path
        self._items = history.items(path)
        self._found: dict[int, int | None] = {}
        """The entry that brought each line; None for lines that are not saved."""
        self._first: set[int] = set()
        """The lines that are as old as the first entry."""
        self._last: tuple[str, list[bytes]] = ("", [])
        """The last version that was read: its content id and its lines."""

    def run(self, present: bytes | None) -> list[BlameLine]:
        """Return the lines of the present content, or of the last version if it is None.

        Raises:
            NotFoundError: there is no such file.
            InvalidInputError: the file is binary or too large.
        """
        index = self._history.last
        if present is None:
            item = None if index is None else self._items[index]
            if item is None or item.type != FILE:
                raise NotFoundError(f"There is no file {short_repr(self._path, 200)}.")
            present = self._history.content(item)
        lines = _lines(present, self._path)
        runs, current = [_Run(0, 0, len(lines))], lines
        newer: int | None = None  # the present, which may have unsaved changes
        while index is not None and runs:
            older = self._version(newer, index)
            if older is None:
                break  # the newer entry created the file
            if older is not current:
                runs = self._attribute(runs, older, current, newer)
                current = older
            newer, index = index, self._before(index)
        for run in runs:
            numbers = range(run.line, run.line + run.size)
            self._found.update(dict.fromkeys(numbers, newer))
            self._first.update(numbers if index is None else ())
        return self._result(lines)

    def _version(self, newer: int | None, index: int) -> list[bytes] | None:
        """Return the lines of an older version; follow a rename. None if the file is new."""
        item = self._items[index]
        if item is None or item.type != FILE:
            old = self._renamed(newer, index)
            if old is None:
                return None
            self._path = old
            self._items = self._history.items(old)
            item = self._items[index]
        if item is None or item.type != FILE:
            return None
        if self._last[0] == item.id:
            return self._last[1]
        try:
            ahead = self._items[max(index - _AHEAD, 0) : index][::-1]
            found = _lines(self._history.content(item, ahead), self._path)
        except InvalidInputError:  # an older version was binary: the file began anew
            return None
        self._last = item.id, found
        return found

    def _attribute(
        self, runs: list[_Run], older: list[bytes], current: list[bytes], newer: int | None
    ) -> list[_Run]:
        """Attribute the lines that the older version lacks; return the others."""
        changes = edits(older, current)
        if not changes:
            return runs
        bounds: list[tuple[int, int, int]] = []  # unchanged: start, end, shift to the older version
        at, shift = 0, 0
        for edit in changes:
            start = edit.start + shift
            bounds.append((at, start, shift))
            at = start + len(edit.new)
            shift += len(edit.new) - (edit.end - edit.start)
        bounds.append((at, len(current), shift))
        # Most runs lie before or after all changes.
        low = next((n for n, run in enumerate(runs) if run.at + run.size > bounds[0][1]), len(runs))
        high = next((n for n in range(low, len(runs)) if runs[n].at >= at), len(runs))
        kept, rest = runs[:low], runs[high:]
        for run in runs[low:high]:
            done, end = run.at, run.at + run.size
            for start, stop, by in bounds:
                first, last = max(start, done), min(stop, end)
                if first < last:
                    self._mark(run, done, first, newer)
                    kept.append(_Run(run.line + first - run.at, first - by, last - first))
                    done = last
            self._mark(run, done, end, newer)
        return kept + (rest if not shift else [run._replace(at=run.at - shift) for run in rest])

    def _mark(self, run: _Run, start: int, end: int, newer: int | None) -> None:
        offset = run.line - run.at
        self._found.update(dict.fromkeys(range(start + offset, end + offset), newer))

    def _before(self, index: int) -> int | None:
        """Return the entry whose version the entry at a position continues."""
        checkpoint, item = self._history.entries[index], self._items[index]
        if checkpoint.kind in ROLLBACK_KINDS or checkpoint.kind in SAME_CONTENT:
            places = [self._history.places.get(name) for name in reversed(checkpoint.parents)]
            known = [place for place in places if place is not None and place < index]
            if index in self._history.adopted:
                known.insert(0, self._history.adopted[index])
            for place in known:
                other = self._items[place]
                if item is not None and other is not None and other.id == item.id:
                    return place
        return self._history.before(index)

    def _renamed(self, newer: int | None, index: int) -> str | None:
        """Return the old name of a file that does not exist in an older version."""
        if newer is None:
            return None
        changes = tree_changes(self._history.tree(index), self._history.tree(newer))
        path = os.fsencode(self._path)
        exact = {new: old for old, new in exact_renames(changes).items()}
        if path in exact:
            return os.fsdecode(exact[path])
        gone = [
            (change.path, change.before)
            for change in changes
            if change.after is None and change.before is not None and change.before.type == FILE
        ]
        item = self._items[newer]
        if item is None or len(gone) > _MOST_COMPARED:
            return None
        best = max(((self._similarity(old, item), name) for name, old in gone), default=None)
        return os.fsdecode(best[1]) if best is not None and best[0] >= _SIMILAR else None

    def _similarity(self, old: Item, new: Item) -> float:
        try:
            one = _lines(self._history.content(old), self._path)
            other = _lines(self._history.content(new), self._path)
        except InvalidInputError:
            return 0.0
        changed = sum(edit.end - edit.start for edit in edits(one, other))
        return (len(one) - changed) / max(len(one), len(other), 1)

    def _result(self, lines: list[bytes]) -> list[BlameLine]:
        steps = self._steps({place for place in self._found.values() if place is not None})
        found = []
        for number, line in enumerate(lines):
            place = self._found[number]
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
            step = None if place is None else steps[place]
            found.append(BlameLine(number + 1, text, step, number in self._first))
        return found

    def _steps(self, places: set[int]) -> dict[int, Step]:
        """Return the steps that end with some entries, each after the one before of its key."""
        entries, reader = self._history.entries, StepReader(self._store, by_time=True)
        by_key: dict[str, list[Checkpoint]] = {}
        positions: dict[int, int] = {}
        for index, checkpoint in enumerate(entries):
            line = by_key.setdefault(checkpoint.key, [])
            if checkpoint.kind != Kind.SAFETY or index in places:
                positions[index] = len(line)
                line.append(checkpoint)
        needed = {entries[place].key for place in places}
        prompts = {key: reader.prompts(by_key[key]) for key in needed}
        steps = {}
        for place in places:
            key, position = entries[place].key, positions[place]
            line = by_key[key]
            steps[place] = reader.step(
                line[position - 1] if position else self._history.fork_point(place),
                line[position],
                end=line[-1],
                prompt=prompts[key][position],
                with_messages=False,
            )
        return steps


def _lines(text: bytes, path: str) -> list[bytes]:
    """Return the lines of a text with their line ends. Raises InvalidInputError."""
    if b"\0" in text[:_PROBE] or len(text) > _LARGEST or text.count(b"\n") > _MOST_LINES:
        raise InvalidInputError(f"{short_repr(path, 200)} is binary, or too large for blame.")
    found = [line + b"\n" for line in text.split(b"\n")]
    last = found.pop()[:-1]
    return [*found, last] if last else found


def parse_range(text: str, size: int) -> range:
    """Return the numbers of the lines of a range: `10,40`, `10`, `,40` or `10,+5`.

    Raises:
        InvalidInputError: it is not a range.
    """
    first, comma, last = text.partition(",")
    try:
        start = int(first) if first else 1
        if not comma:
            end = start
        elif last.startswith("+"):
            end = start + int(last) - 1
        else:
            end = int(last) if last else size
    except ValueError:
        start, end = 0, 0
    if not 1 <= start <= end:
        raise InvalidInputError(f"{short_repr(text)} is not a range of lines, such as 10,40.")
    return range(start, min(end, size) + 1)
