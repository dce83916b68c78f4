"""Decodes plain JSON to Python values.

Input is untrusted: a tag must be built in, a registered type, or a type in the hints of the class
being loaded.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from agent_checkpoint.core.codec.arrays import decode_array
from agent_checkpoint.core.codec.encode import FACTORIES
from agent_checkpoint.core.codec.leaves import DECODERS
from agent_checkpoint.core.codec.pickles import decode_pickle
from agent_checkpoint.core.codec.structures import FieldMismatch
from agent_checkpoint.core.codec.type_registry import KnownType, type_named
from agent_checkpoint.core.migrations import migrate_value
from agent_checkpoint.core.path_errors import (
    PathError,
    as_state_error,
    cause_text,
    key_segment,
    listed,
    paths_to,
)
from agent_checkpoint.core.stateful import CLASS, StateDict
from agent_checkpoint.errors import IntegrityError, StateMismatchError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.canonical_json import read_json
from agent_checkpoint.store.objects.reader import (
    OBJECT,
    Reader,
    Share,
    is_tag_free,
    resolve_tree,
    tag_of,
)
from agent_checkpoint.store.objects.reader import TAGS as STORED_TAGS
from agent_checkpoint.store.objects.references import ObjectRef, ObjectReference
from agent_checkpoint.store.objects.splitting import OutOfLineValue

Scope = Callable[[object, Mapping[str, type]], Mapping[str, type]]
"""Returns the hinted types of a nested state, from its class name and the outer hinted types."""


class Decoded(NamedTuple):
    """A newly decoded value, and whether it contains states.

    `missing` are the paths of fields of registered types that were not stored; they have their
    defaults.
    """

    value: Any
    has_states: bool
    missing: tuple[str, ...] = ()


def decode(
    tree: JsonValue,
    path: str = "agent",
    *,
    scope: Scope,
    rebuild: Callable[[StateDict], Any],
    trust_pickle: bool = False,
    reader: Reader | None = None,
) -> Decoded:
    """Decode a JSON tree.

    Args:
        tree: a result of `encode`.
        path: the name of the value in messages.
        scope: returns the type hints of a class by its name.
        rebuild: creates an object from a state nested in a value of a registered type.
        trust_pickle: load pickles without verifying their signature.
        reader: reads the objects that the tree refers to, if it comes from a store.

    Raises:
        StateError: a tag is unknown or damaged; the message contains the path.
        StateMismatchError: values have fields that their types do not have; all are listed.
        MigrationError: a value of a registered type cannot be migrated.
        UntrustedDataError: a pickle has no valid signature.
    """
    with as_state_error(path):
        decoder = _Decoder(scope, rebuild, trust_pickle, reader)
        value = decoder.value(tree)
        missing = _missing_fields(value, path, decoder.mismatches) if decoder.mismatches else ()
        return Decoded(value, decoder.states > 0, missing)


class _Mismatch(NamedTuple):
    """A value whose stored fields differ from those of its type."""

    value: Any
    known: KnownType
    fields: FieldMismatch


def _missing_fields(value: Any, root: str, mismatches: list[_Mismatch]) -> tuple[str, ...]:
    """Return the paths of missing fields below the root. Raises StateMismatchError."""
    # Searched only if there is something to report, so that decoding does not keep track of paths.
    paths = paths_to(value, [one.value for one in mismatches])
    missing, unexpected = [], []
    for one in mismatches:
        path = paths.get(id(one.value), f" (a {one.known.name})")
        missing += [f"{path}.{name}".lstrip(".") for name in one.fields.missing]
        if one.fields.unexpected:
            lacks = f" and lacks {', '.join(one.fields.missing)}" if one.fields.missing else ""
            unexpected.append(
                f"{root}{path} does not fit the current type {short_repr(one.known.name)}, which "
                f"has no field {', '.join(one.fields.unexpected)}{lacks}"
            )
    if unexpected:
        first = next(one.known for one in mismatches if one.fields.unexpected)
        raise StateMismatchError(
            f"{listed(unexpected, '; ')}. If the fields were changed, give the type a new version, "
            f"register_type(…, version=…), and call register_migration({first.name!r}, "
            f"from_version={first.version!r}, fn=…)."
        )
    return tuple(missing)


class _Decoder:
    """Decodes one tree recursively.

    `types` are the classes in the type hints of the enclosing state, by name.
    """

    def __init__(
        self,
        scope: Scope,
        rebuild: Callable[[StateDict], Any],
        trust: bool,
        reader: Reader | None,
    ) -> None:
        self.scope = scope
        self.rebuild = rebuild
        self.trust = trust
        self.reader = reader
        self.states = 0
        self.mismatches: list[_Mismatch] = []
        self.types: Mapping[str, type] = {}
        self.inside_type = False

    def value(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is str or kind is int or kind is bool or tree is None:
            return tree
        if kind is list:
            return self.items(tree)
        if kind is dict:
            return self.object(tree)
        if isinstance(tree, float) and tree - tree == 0:
            return float(tree)  # an unwritten tree still has ExponentFloats
        if isinstance(tree, ObjectReference) and tree.source is not None:
            self.states += 1
            return ObjectRef(tree.name, tree.source)
        if isinstance(tree, OutOfLineValue):
            return self.value(tree.inline())
        raise PathError("is damaged: not a JSON value.")

    def items(self, tree: Any, share: Share | None = None) -> list[Any]:
        """Return the items of a list. `share` makes plain JSON items immutable, to be shared."""
        done: list[Any] = []
        if tag_of(tree) == "$list":
            for trees, is_plain in self.stored.arrays(tree["$list"], share):
                self._add(done, trees, is_plain=is_plain)
        else:
            self._add(done, self.listed(tree), is_plain=False)
        return done

    def _add(self, done: list[Any], trees: list[Any], *, is_plain: bool) -> None:
        if is_plain:
            done += trees
            return
        try:
            for tree in trees:
                done.append(self.value(tree))
        except PathError as error:
            raise error.at(f"[{len(done)}]") from error.__cause__

    @property
    def stored(self) -> Reader:
        if self.reader is None:
            raise PathError("refers to stored objects, but it is decoded without a store.")
        return self.reader

    def whole(self, tree: Any) -> Any:
        """Return the complete payload of a scalar, with objects of the store inlined."""
        return tree if type(tree) is str else resolve_tree(tree, self.reader)

    def listed(self, payload: Any) -> list[Any]:
        payload = self.here(payload)
        if type(payload) is not list:
            raise ValueError("not a list")
        return payload

    def here(self, payload: Any) -> Any:
        """Return the payload that a store tag or an OutOfLineValue stands for."""
        if isinstance(payload, OutOfLineValue):
            return payload.inline()
        tag = tag_of(payload)
        return payload if tag is None else self.stored.tree(tag, payload[tag])

    def object(self, tree: dict[str, Any], fresh: set[str] | None = None) -> Any:
        done: dict[str, Any] = {}
        for key, item in tree.items():
            if key[:1] == "$":
                if key[1:2] != "$":
                    return self.tag(tree)
                key = key[1:]
            before = self.states
            try:
                done[key] = self.value(item)
            except PathError as error:
                raise error.at(key_segment(key)) from error.__cause__
            if fresh is not None and self.states == before:
                fresh.add(key)
        return done

    def tag(self, tree: dict[str, Any]) -> Any:
        if len(tree) != 1:
            raise PathError("is damaged: a tag must be the only member.")
        ((tag, payload),) = tree.items()
        handler = TAG_HANDLERS.get(tag)
        simple = DECODERS.get(tag)
        try:
            if handler is not None:
                return handler(self, payload)
            if simple is not None:
                return simple(self.whole(payload))
            if tag in STORED_TAGS:
                return self.outside(tag, payload)
            if tag.startswith("$type:"):
                return self.registered(tag[len("$type:") :], payload)
        except (PathError, RecursionError, MemoryError):
            raise
        except IntegrityError as error:
            raise PathError(f"cannot be read. {error}", IntegrityError) from None
        except Exception as error:
            raise PathError(f"is damaged: invalid {tag} value ({cause_text(error)}).") from error
        raise PathError(f"has the tag {short_repr(tag)}, which this version does not support.")

    def outside(self, tag: str, payload: Any) -> Any:
        if tag == "$list":
            return self.items({tag: payload})
        if tag == "$ref":
            text = self.stored.text(payload)
            return read_json(text) if is_tag_free(text) else self.value(read_json(text))
        found = self.stored.tree(tag, payload)
        return self.object(found) if tag == "$map" else found

    def registered(self, tag: str, payload: Any) -> Any:
        found = type_named(tag, self.types)
        if found is None:
            raise PathError(
                f"is of the type {short_repr(tag)}, which is not registered. Call register_type() "
                "on its class, use the class in the type hints of the class being loaded, or "
                f"call register_alias({short_repr(tag)}, …) if it was renamed."
            )
        outer, self.inside_type = self.inside_type, True
        try:
            fields = self.value(payload)
        finally:
            self.inside_type = outer
        known, saved = found
        name, version = known.name, known.version
        try:
            if saved != version:
                fields = known.structure.migrate(
                    fields,
                    lambda old: migrate_value(old, saved, class_name=name, version=version),
                )
            mismatch = known.structure.compare(fields)
            value = known.structure.decode(fields)
        except PathError:
            raise
        except Exception as error:
            raise PathError(
                f"does not fit the current type {short_repr(name)} ({cause_text(error)}). "
                "Give the type a new version and register a migration, or register it with encode "
                "and decode functions that accept the old form."
            ) from error
        if mismatch.missing or mismatch.unexpected:
            self.mismatches.append(_Mismatch(value, known, mismatch))
        return value

    def state(self, payload: Any) -> Any:
        payload = self.here(payload)
        if not isinstance(payload, dict):
            raise PathError("is damaged: not a state.")
        outer, self.types = self.types, self.scope(payload.get(CLASS), self.types)
        try:
            fresh: set[str] = set()
            fields = self.object(payload, fresh)
            state = StateDict(fields, types=self.types, fresh=fresh)
        finally:
            self.types = outer
        self.states += 1
        return self.rebuild(state) if self.inside_type else state

    def pairs(self, payload: Any) -> list[tuple[Any, Any]]:
        done: list[tuple[Any, Any]] = []
        for pair in self.listed(payload):
            written, item = self.listed(pair)
            key = self.value(written)
            try:
                done.append((key, self.value(item)))
            except PathError as error:
                raise error.at(key_segment(key)) from error.__cause__
        return done

    def pickle(self, payload: Any) -> Any:
        self.states += 1  # it may contain states
        return decode_pickle(self.whole(payload), trust=self.trust)

    def reference(self, payload: Any) -> Any:
        self.states += 1  # a live object may load it
        return ObjectRef(payload, self.stored.source)

    def default_dict(self, payload: Any) -> Any:
        name, pairs = self.here(payload)
        factory = None if name is None else FACTORIES[name]
        return defaultdict(factory, self.pairs(pairs))

    def deque(self, payload: Any) -> Any:
        values, maxlen = self.here(payload)
        return deque(self.items(values), maxlen)


TAG_HANDLERS: dict[str, Callable[[_Decoder, Any], Any]] = {
    "$state": _Decoder.state,
    "$tuple": lambda decoder, payload: tuple(decoder.items(payload)),
    "$set": lambda decoder, payload: set(decoder.items(payload)),
    "$frozenset": lambda decoder, payload: frozenset(decoder.items(payload)),
    "$deque": _Decoder.deque,
    "$dict": lambda decoder, payload: dict(decoder.pairs(payload)),
    "$ordereddict": lambda decoder, payload: OrderedDict(decoder.pairs(payload)),
    "$counter": lambda decoder, payload: _counter(decoder.pairs(payload)),
    "$defaultdict": _Decoder.default_dict,
    "$ndarray": lambda decoder, payload: decode_array(decoder.whole(payload)),
    "$pickle": _Decoder.pickle,
    OBJECT: _Decoder.reference,
}
"""The tags of values with other values inside. `core.log` adds its own."""


def _counter(pairs: list[tuple[Any, Any]]) -> Counter[Any]:
    # Counter(pairs) would count the pairs.
    counter: Counter[Any] = Counter()
    for key, count in pairs:
        counter[key] = count
    return counter
