"""Collects the entries of directories during a walk and assembles them bottom-up to `DirState`s."""

from __future__ import annotations

from collections.abc import Sequence

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.scan.file_reader import ReadResult
from agent_checkpoint.workspace.tree.dir_state import (
    IGNORED,
    NO_NOTES,
    RULES,
    SIGNATURE,
    UNREADABLE,
    DirState,
    Note,
)
from agent_checkpoint.workspace.tree.tree_format import (
    FOLDER,
    MODE_BITS,
    Get,
    Item,
    Put,
    put_directory,
)


class DirBuilder:
    """A directory that is being walked."""

    __slots__ = (
        "is_same",
        "names",
        "notes",
        "old",
        "parent",
        "path",
        "results",
        "signatures",
        "subdirs",
    )

    def __init__(self, path: bytes, old: DirState | None, parent: DirBuilder | None) -> None:
        self.path = path
        self.old = old
        self.parent = parent
        self.names: list[bytes] = []
        self.signatures: list[bytes] = []
        self.notes: dict[bytes, Note] = {}
        self.results: dict[bytes, ReadResult] = {}
        self.subdirs: dict[bytes, DirState] = {}
        self.is_same = False
        """Whether names and signatures equal the old ones; subdirectories may have changed."""

    def child(self, name: bytes) -> bytes:
        """Return the path of an entry."""
        return self.path + b"/" + name if self.path else name


def assemble(builders: Sequence[DirBuilder], get: Get, put: Put) -> DirState:
    """Return the state of the first directory.

    Args:
        builders: the directories, each before its subdirectories, with all contents read.
        get: reads objects of directories whose entries are not loaded.
        put: receives the objects of changed directories.

    Raises:
        IntegrityError: the object of a known directory cannot be read.
    """
    for builder in reversed(builders):
        state = _dir_state(builder, get, put)
        if builder.parent is not None:
            builder.parent.subdirs[builder.path.rpartition(b"/")[2]] = state
    return state


def _dir_state(builder: DirBuilder, get: Get, put: Put) -> DirState:
    old = builder.old
    if (
        builder.is_same
        and old is not None
        and old.notes == builder.notes
        and all(builder.subdirs.get(name) is old.subdirs[name] for name in old.subdirs)
    ):
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
        items=items,
    )


def _items(builder: DirBuilder, get: Get) -> tuple[list[Item], list[bytes]]:
    """Return the captured entries of a directory and their signatures."""
    before = {} if builder.old is None else {item.name: item for item in builder.old.items(get)}
    items: list[Item] = []
    signatures: list[bytes] = []
    for name, signature in zip(builder.names, builder.signatures):
        result = builder.results.get(name)
        item: Item | None
        if result is not None:
            _add_note(builder, name, result)
            item, signature = result.item, result.signature
            if item is None:
                continue
        elif name in builder.subdirs:
            stored = builder.subdirs[name].stored
            mode = SIGNATURE.unpack(signature)[4] & MODE_BITS
            item = Item(name, FOLDER, mode, 0, stored.id, stored.ref)
        else:
            item = before.get(name)
            if item is None:
                raise IntegrityError("The scan cache of the workspace is inconsistent.")
        items.append(item)
        signatures.append(signature)
    return items, signatures


def _add_note(builder: DirBuilder, name: bytes, result: ReadResult) -> None:
    if name in builder.notes and builder.notes[name].kind != RULES:
        del builder.notes[name]
    if result.note is not None:
        builder.notes[name] = result.note
    elif result.is_changing:
        builder.notes[name] = Note(UNREADABLE, "it changed its type as it was read")
