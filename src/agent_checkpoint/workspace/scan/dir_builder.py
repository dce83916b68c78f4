"""Directories that are being looked at, until they are folders. Owns putting those together."""

from __future__ import annotations

from collections.abc import Sequence

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.scan.file_reader import Found
from agent_checkpoint.workspace.tree.dir_state import (
    IGNORED,
    NO_NOTES,
    RULES,
    STAMP,
    UNREADABLE,
    Folder,
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


class Node:
    """A directory that is being looked at."""

    __slots__ = ("below", "found", "is_same", "names", "notes", "old", "parent", "path", "stamps")

    def __init__(self, path: bytes, old: Folder | None, parent: Node | None) -> None:
        self.path = path
        self.old = old
        self.parent = parent
        self.names: list[bytes] = []
        self.stamps: list[bytes] = []
        self.notes: dict[bytes, Note] = {}
        self.found: dict[bytes, Found] = {}
        self.below: dict[bytes, Folder] = {}
        self.is_same = False
        """Whether the listing is the one of old; what is below may differ."""

    def child(self, name: bytes) -> bytes:
        """Return the path of an entry."""
        return self.path + b"/" + name if self.path else name


def assemble(nodes: Sequence[Node], get: Get, put: Put) -> Folder:
    """Return the folder of the first node; those below a node come after it.

    Args:
        nodes: what was looked at; all contents are read.
        get: reads what is known of directories by their objects alone.
        put: takes the objects of directories that are new.

    Raises:
        IntegrityError: what is known of a directory cannot be read.
    """
    for node in reversed(nodes):
        made = _folder(node, get, put)
        if node.parent is not None:
            node.parent.below[node.path.rpartition(b"/")[2]] = made
    return made


def _folder(node: Node, get: Get, put: Put) -> Folder:
    old = node.old
    if (
        node.is_same
        and old is not None
        and old.notes == node.notes
        and all(node.below.get(name) is old.folders[name] for name in old.folders)
    ):
        return old
    items, stamps = _items(node, get)
    is_same = old is not None and old.has_items and items == old.items(get)
    below = node.below
    folders = (
        {item.name: below[item.name] for item in items if item.type == FOLDER} if below else {}
    )
    files, size = len(items) - len(folders), sum([item.size for item in items])
    is_noted = bool(node.notes) and any(note.kind != IGNORED for note in node.notes.values())
    for folder in folders.values():
        files += folder.files
        size += folder.bytes
        is_noted = is_noted or folder.is_noted
    return Folder(
        packed_names=b"/".join([item.name for item in items]),
        stamps=b"".join(stamps),
        folders=folders,
        notes=node.notes or NO_NOTES,
        stored=old.stored if old is not None and is_same else put_directory(items, put),
        files=files,
        size=size,
        is_noted=is_noted,
        is_stored=old is not None and is_same and old.is_stored,
        items=items,
    )


def _items(node: Node, get: Get) -> tuple[list[Item], list[bytes]]:
    """Return the entries of a node that are captured, and a stamp each."""
    before = {} if node.old is None else {item.name: item for item in node.old.items(get)}
    items: list[Item] = []
    stamps: list[bytes] = []
    for name, stamp in zip(node.names, node.stamps):
        found = node.found.get(name)
        item: Item | None
        if found is not None:
            _note(node, name, found)
            item, stamp = found.item, found.stamp
            if item is None:
                continue
        elif name in node.below:
            stored = node.below[name].stored
            mode = STAMP.unpack(stamp)[4] & MODE_BITS
            item = Item(name, FOLDER, mode, 0, stored.id, stored.ref)
        else:
            item = before.get(name)
            if item is None:
                raise IntegrityError("What is remembered of the workspace does not fit together.")
        items.append(item)
        stamps.append(stamp)
    return items, stamps


def _note(node: Node, name: bytes, found: Found) -> None:
    if name in node.notes and node.notes[name].kind != RULES:
        del node.notes[name]
    if found.note is not None:
        node.notes[name] = found.note
    elif found.is_changing:
        node.notes[name] = Note(UNREADABLE, "it changed its type as it was read")
