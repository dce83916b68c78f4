"""Collects the entries of directories during a walk and assembles them bottom-up to `DirState`s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.scan.reading.entry_reader import ReadResult
from agent_checkpoint.workspace.tree.dir_state import (
    IGNORED,
    NO_NOTES,
    NO_TIMES,
    RULES,
    SIGNATURE,
    UNREADABLE,
    DirState,
    Note,
)
from agent_checkpoint.workspace.tree.tree_format import (
    FOLDER,
    MODE_BITS,
    Edit,
    Get,
    Item,
    Put,
    put_directory,
    spliced,
)


class DirBuilder:
    """A directory that is being walked."""

    __slots__ = (
        "assembled",
        "batch",
        "changes",
        "has_gaps",
        "is_same",
        "names",
        "notes",
        "old",
        "parent",
        "path",
        "results",
        "rule_texts",
        "signatures",
        "subdirs",
        "times",
    )

    def __init__(self, path: bytes, old: DirState | None, parent: DirBuilder | None) -> None:
        self.path = path
        self.old = old
        self.parent = parent
        self.names: list[bytes] = []
        self.signatures: list[bytes] = []
        self.notes: dict[bytes, Note] = {}
        self.results: dict[bytes, ReadResult] = {}
        self.batch = 0
        """The number under which its files are read; see `FileReader.wait`."""
        self.subdirs: dict[bytes, DirState] = {}
        self.rule_texts: dict[bytes, bytes] = {}
        """The contents of its rule files, as they were applied."""
        self.times = NO_TIMES
        """Its times before it was listed."""
        self.is_same = False
        """Whether names and signatures equal the old ones; subdirectories may have changed."""
        self.changes: dict[bytes, bytes | None] | None = None
        """If only changed names are scanned: their signatures, None for an entry that is gone.

        Then `names` and `signatures` are unused.
        """
        self.has_gaps = False
        """Whether a listed entry was gone when it was read."""
        self.assembled: list[bytes] = []
        """The subdirectories that were scanned."""

    def child(self, name: bytes) -> bytes:
        """Return the path of an entry."""
        return self.path + b"/" + name if self.path else name


def in_postorder(builders: Iterable[DirBuilder]) -> Iterator[DirBuilder]:
    """Iterate over directories after their subdirectories, given them in preorder."""
    path: list[DirBuilder] = []
    for builder in builders:
        while path and path[-1] is not builder.parent:
            yield path.pop()
        path.append(builder)
    yield from reversed(path)


def assemble(builder: DirBuilder, get: Get, put: Put) -> DirState:
    """Return the state of a directory, and pass it on to the directory above.

    Args:
        builder: the directory, with all contents read and its subdirectories assembled.
        get: reads objects of directories whose entries are not loaded.
        put: receives the objects of changed directories.

    Raises:
        IntegrityError: the object of a known directory cannot be read.
    """
    if builder.old is not None and builder.changes is not None:
        state = _changed_state(builder, builder.old, builder.changes, get, put)
    else:
        state = _dir_state(builder, get, put)
    if builder.parent is not None:
        name = builder.path.rpartition(b"/")[2]
        builder.parent.subdirs[name] = state
        builder.parent.assembled.append(name)
    return state


def _dir_state(builder: DirBuilder, get: Get, put: Put) -> DirState:
    old = builder.old
    if (
        builder.is_same
        and old is not None
        and old.notes == builder.notes
        and builder.subdirs == old.subdirs
    ):
        old.times = builder.times
        return old
    items, signatures = _items(builder, get)
    is_same = old is not None and old.has_items and items == old.items(get)
    known = builder.subdirs
    subdirs = (
        {item.name: known[item.name] for item in items if item.type == FOLDER} if known else {}
    )
    files, size = len(items) - len(subdirs), sum([item.size for item in items])
    has_notes = bool(builder.notes) and any(note.kind != IGNORED for note in builder.notes.values())
    for subdir in subdirs.values():
        files += subdir.files
        size += subdir.bytes
        has_notes = has_notes or subdir.has_notes
    builder.has_gaps = not _has_all(builder, items)
    return DirState(
        packed_names=b"/".join([item.name for item in items]),
        signatures=b"".join(signatures),
        subdirs=subdirs,
        notes=builder.notes or NO_NOTES,
        stored=old.stored if old is not None and is_same else put_directory(items, put),
        files=files,
        size=size,
        has_notes=has_notes,
        is_stored=old is not None and is_same and old.is_stored,
        times=NO_TIMES if builder.has_gaps else builder.times,
        items=items,
    )


def _has_all(builder: DirBuilder, items: Sequence[Item]) -> bool:
    """Return whether each listed entry is captured or has a note: one may have been gone."""
    if len(items) == len(builder.names):
        return True
    return {*builder.names} == {item.name for item in items} | (
        builder.notes.keys() & builder.names
    )


def _items(builder: DirBuilder, get: Get) -> tuple[list[Item], list[bytes]]:
    """Return the captured entries of a directory and their signatures."""
    before = {} if builder.old is None else {item.name: item for item in builder.old.items(get)}
    items: list[Item] = []
    signatures: list[bytes] = []
    results = {} if builder.notes else builder.results
    for name, signature in zip(builder.names, builder.signatures):
        result = results.get(name)
        if result is not None and result.item is not None and result.note is None:  # most entries
            items.append(result.item)
            signatures.append(result.signature)
            continue
        item, signature = _item(builder, name, signature, before.get(name))
        if item is not None:
            items.append(item)
            signatures.append(signature)
    return items, signatures


def _item(
    builder: DirBuilder, name: bytes, signature: bytes, before: Item | None
) -> tuple[Item | None, bytes]:
    """Return an entry and its signature; None if it is not captured.

    Args:
        builder: its directory.
        name: its name.
        signature: its signature at the walk.
        before: the entry at the last scan.
    """
    result = builder.results.get(name)
    if result is not None:
        _add_note(builder, name, result)
        return result.item, result.signature
    if name in builder.subdirs:
        stored = builder.subdirs[name].stored
        mode = SIGNATURE.unpack(signature)[4] & MODE_BITS
        return Item(name, FOLDER, mode, 0, stored.id, stored.ref), signature
    if before is None:
        raise IntegrityError("The scan cache of the workspace is inconsistent.")
    return before, signature


def _changed_state(
    builder: DirBuilder, old: DirState, changes: Mapping[bytes, bytes | None], get: Get, put: Put
) -> DirState:
    """Return the state of a directory of which only some names were scanned.

    The cost in Python depends on the number of changes; the rest of the entries is copied.
    """
    edits, signatures = _edits(builder, old, changes, get)
    if not edits and old.notes == builder.notes and builder.subdirs == old.subdirs:
        return old
    before = old.items(get)
    files, size, has_notes = old.files, old.bytes, old.has_notes
    gone = [before[edit.at] for edit in edits if not edit.is_new]
    came = [edit.item for edit in edits if edit.item is not None]
    for items, subdirs, sign in ((gone, old.subdirs, -1), (came, builder.subdirs, 1)):
        for item in items:
            below = subdirs[item.name] if item.type == FOLDER else None
            files += sign * (1 if below is None else below.files)
            size += sign * (item.size if below is None else below.bytes)
    if has_notes or builder.notes:
        own = any(note.kind != IGNORED for note in builder.notes.values())
        has_notes = own or any(below.has_notes for below in builder.subdirs.values())
    else:
        scanned = (builder.subdirs.get(name) for name in builder.assembled)
        has_notes = any(below is not None and below.has_notes for below in scanned)
    # A changed signature alone, such as that of a file that was written with the same content.
    is_same = gone == came
    items = before if is_same else spliced(before, edits, came)
    is_renamed = len(gone) != len(came) or any(edit.is_new for edit in edits)
    names = spliced(old.names, edits, [item.name for item in came]) if is_renamed else old.names
    encoded = old.encoded(get) if is_same else old.encoded(get).edited(edits)
    base = old.stored.ref if old.is_stored else None
    return DirState(
        packed_names=b"/".join(names) if is_renamed else old.packed_names,
        signatures=_spliced_signatures(old.signatures, edits, signatures),
        subdirs=builder.subdirs,
        notes=builder.notes or NO_NOTES,
        stored=old.stored if is_same else encoded.put(put, base),
        files=files,
        size=size,
        has_notes=has_notes,
        is_stored=is_same and old.is_stored,
        times=NO_TIMES if is_renamed or old.notes.keys() != builder.notes.keys() else old.times,
        items=items,
        names=names,
        encoded=encoded,
    )


def _edits(
    builder: DirBuilder, old: DirState, changes: Mapping[bytes, bytes | None], get: Get
) -> tuple[list[Edit], list[bytes]]:
    """Return what the changes do to the entries, sorted by position, and the new signatures."""
    before = old.items(get)
    edits: list[Edit] = []
    signatures: list[bytes] = []
    for name in sorted({*changes, *builder.assembled}):
        at, is_known = old.position_of(name)
        signature = changes.get(name, old.signature_at(at) if is_known else None)
        item = None
        if signature is not None:
            item, signature = _item(builder, name, signature, before[at] if is_known else None)
        if item is None or item.type != FOLDER:
            builder.subdirs.pop(name, None)
        is_same = is_known and item == before[at] and signature == old.signature_at(at)
        if is_same or (item is None and not is_known):
            continue
        edits.append(Edit(at, item, is_new=not is_known))
        if item is not None and signature is not None:
            signatures.append(signature)
    return edits, signatures


def _spliced_signatures(old: bytes, edits: Iterable[Edit], new: Iterable[bytes]) -> bytes:
    """Return concatenated signatures after some edits; see `spliced`."""
    pieces: list[bytes] = []
    values, start = iter(new), 0
    for at, item, is_new in edits:
        pieces.append(old[start : at * SIGNATURE.size])
        if item is not None:
            pieces.append(next(values))
        start = (at if is_new else at + 1) * SIGNATURE.size
    return b"".join([*pieces, old[start:]])


def _add_note(builder: DirBuilder, name: bytes, result: ReadResult) -> None:
    if name in builder.notes and builder.notes[name].kind != RULES:
        del builder.notes[name]
    if result.note is not None:
        builder.notes[name] = result.note
    elif result.is_changing:
        builder.notes[name] = Note(UNREADABLE, "it changed its type as it was read")
