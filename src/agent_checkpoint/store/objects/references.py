"""Objects that a Stateful stores for itself. Owns the value that stands for them in a state.

{"$object": name}       an object that is none of the state's own kinds, such as a snapshot of
a workspace; gc, verify and archives follow it, a load does not
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import JsonValue, check_object_id
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.objects.object_format import RECORD, Object
from agent_checkpoint.store.objects.reader import OBJECT, ObjectSource, object_names
from agent_checkpoint.store.objects.splitting import OutOfLineValue
from agent_checkpoint.store.objects.writer import Writer


class SelfStoring(Protocol):
    """What hands objects of its own to a store."""

    def checkpoint_to(self, writer: Writer) -> str:
        """Hand the present state to a writer; return the name of the topmost object."""


class ObjectRef:
    """The state of something that stores objects of its own: their name, and where they are."""

    __slots__ = ("name", "source")

    def __init__(self, name: str, source: ObjectSource) -> None:
        self.name = check_object_id(name)
        self.source = source

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, ObjectRef) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"ObjectRef({self.name[:12]}…)"

    def __reduce__(self) -> NoReturn:
        # gc finds what a checkpoint needs by its tags, and does not look into pickles.
        raise TypeError("what a workspace or the like is made of cannot be pickled")

    def __copy__(self) -> ObjectRef:
        return self

    def __deepcopy__(self, memo: object) -> ObjectRef:
        return self  # it never changes, and a backend is not to be copied


class ObjectReference(OutOfLineValue):
    """An object, on its way into an entry."""

    def __init__(self, name: str, source: ObjectSource | None) -> None:
        self.name = name
        self.source = source

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Add the name; the object has to be there already."""
        tag = self.inline(writer)
        refs.append(self.name)
        return write_json(tag)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the tag: what it stands for is never text."""
        return {OBJECT: self.name}


class CapturedState(ObjectReference):
    """What a Stateful handed over when its state was taken, until the entry is written."""

    def __init__(self, subject: SelfStoring, new_writer: Callable[[], Writer]) -> None:
        """Take the state now. Raises what `checkpoint_to` raises."""
        self._subject = subject
        self._taken = new_writer()
        super().__init__(subject.checkpoint_to(self._taken), self._taken.backend)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Hand over the objects; take the state again if what it relied on was collected."""
        if writer is not None and writer.trust_cache:
            writer.merge(self._taken)
        elif writer is not None:
            self.name = self._subject.checkpoint_to(writer)
        return super().inline(writer)


class ReusedPart(OutOfLineValue):
    """A part of another checkpoint of the same store, taken over just as it is stored."""

    def __init__(self, tree: JsonValue) -> None:
        self._tree = tree

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Add the names; the objects have to be there already."""
        refs += object_names([self._tree])
        return write_json(self._tree)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the part as it is."""
        return self._tree


def files_size(found: Object) -> int:
    """Return the bytes of all files that a snapshot of a workspace stands for, as it says.

    0 of an object that is none, or says nothing.
    """
    if found.kind != RECORD:
        return 0
    try:
        record = read_json(found.payload)
    except IntegrityError:
        return 0
    size = record.get("bytes") if isinstance(record, dict) else None
    return size if type(size) is int and size > 0 else 0


def with_references(tree: Any, source: ObjectSource) -> Any:
    """Return a tree that is whole with references in the place of their tags, to be cut again."""
    if isinstance(tree, list):
        return [with_references(item, source) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1 and OBJECT in tree:
        return ObjectReference(str(tree[OBJECT]), source)
    return {key: with_references(item, source) for key, item in tree.items()}
