"""The tag `$object`: a reference from a state to an object that is not JSON.

An example is a workspace snapshot. The part of the checkpoint writes such an object itself. gc,
verify and export follow the reference; load does not resolve it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import JsonValue, check_object_id
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.objects.object_format import RECORD, Object
from agent_checkpoint.store.objects.reader import OBJECT, ObjectSource, object_names
from agent_checkpoint.store.objects.splitting import BlobValue, OutOfLineValue
from agent_checkpoint.store.objects.writer import Writer


class SelfStoring(Protocol):
    """A part that writes its own objects."""

    def checkpoint_to(self, writer: Writer) -> str:
        """Add the objects of the current state to a writer; return the id of the root object."""


class ObjectRef:
    """The loaded state of a part that writes its own objects: its root object id and the source."""

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
        # gc finds references by tags; inside a pickle they would be invisible to it.
        raise TypeError("an ObjectRef, such as the state of a workspace, cannot be pickled")

    def __copy__(self) -> ObjectRef:
        return self

    def __deepcopy__(self, memo: object) -> ObjectRef:
        return self  # immutable; and copying would copy the backend


class ObjectReference(OutOfLineValue):
    """A reference to a stored object, to be written into an entry."""

    def __init__(self, name: str, source: ObjectSource | None) -> None:
        self.name = name
        self.source = source

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Add the object id to `refs`; the object must already exist."""
        tag = self.inline(writer)
        refs.append(self.name)
        return write_json(tag)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the tag. Such an object is never inlined."""
        return {OBJECT: self.name}


class CapturedState(ObjectReference):
    """The objects of a part, captured when the save starts and kept until the entry is written."""

    def __init__(self, part: SelfStoring, new_writer: Callable[[], Writer]) -> None:
        """Capture the state now. Raises the same errors as `checkpoint_to`."""
        self._part = part
        self._captured = new_writer()
        super().__init__(part.checkpoint_to(self._captured), self._captured.backend)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Add the objects to the writer; capture again if gc removed objects that they share."""
        if writer is not None and writer.trust_cache:
            writer.merge(self._captured)
        elif writer is not None:
            self.name = self._part.checkpoint_to(writer)
        return super().inline(writer)


class ReusedPart(OutOfLineValue):
    """A part of another checkpoint of the same store, reused in its stored form."""

    def __init__(self, tree: JsonValue) -> None:
        self._tree = tree

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Add the object ids to `refs`; the objects must already exist."""
        refs += object_names([self._tree])
        return write_json(self.inline(writer))

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the stored form."""
        if writer is not None:
            writer.is_partial = True
        return self._tree


def files_size(found: Object) -> int:
    """Return the declared total file size of a workspace snapshot; 0 for any other object."""
    if found.kind != RECORD:
        return 0
    try:
        record = read_json(found.payload)
    except IntegrityError:
        return 0
    size = record.get("bytes") if isinstance(record, dict) else None
    return size if type(size) is int and size > 0 else 0


def with_references(tree: Any, source: ObjectSource) -> Any:
    """Return a resolved tree, ready to be split: `ObjectReference` for `$object`, no raw bytes."""
    if isinstance(tree, bytes):
        return BlobValue(tree)
    if isinstance(tree, list):
        return [with_references(item, source) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1 and OBJECT in tree:
        return ObjectReference(str(tree[OBJECT]), source)
    return {key: with_references(item, source) for key, item in tree.items()}
