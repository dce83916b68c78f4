"""Store: LangGraph's long-term memory in a store of this library. Owns the keys of its items.

An item is a key, `<prefix><namespace>/<item key>`, each put a checkpoint of it: earlier values stay
readable until they are pruned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from agent_checkpoint.adapters.langgraph.values import ValueCodec
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.manager.async_verbs import in_thread
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import short_repr

if TYPE_CHECKING:
    from agent_checkpoint.store.store_argument import StoreLike

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda found, wanted: bool(found == wanted),
    "$ne": lambda found, wanted: bool(found != wanted),
    "$gt": lambda found, wanted: float(found) > float(wanted),
    "$gte": lambda found, wanted: float(found) >= float(wanted),
    "$lt": lambda found, wanted: float(found) < float(wanted),
    "$lte": lambda found, wanted: float(found) <= float(wanted),
}


class Store(BaseStore):
    """Long-term memory of LangGraph graphs; pass it to `compile(store=…)`.

    Search reads every item of the namespace: meant for some thousands of items.
    """

    def __init__(
        self,
        store: StoreLike | None = None,
        *,
        index: IndexConfig | None = None,
        prefix: str = "langgraph-store/",
    ) -> None:
        """Open a store; without arguments, one in memory.

        Args:
            store: a manager, a path (SQLite), a store URL or a Backend.
            index: how to embed texts, for searches by meaning: `embed`, `dims` and `fields`, as
                LangGraph's own stores take it.
            prefix: the beginning of the keys of all items.

        Raises:
            InvalidInputError: the arguments select no store.
        """
        self._is_ours = not isinstance(store, CheckpointManager)
        self.manager = store if isinstance(store, CheckpointManager) else CheckpointManager(store)
        """The manager of the store."""
        self.prefix = prefix
        self._codec = ValueCodec(JsonPlusSerializer(allowed_msgpack_modules=None))
        self._embeddings = ensure_embeddings(index["embed"]) if index else None
        self._fields = list((index or {}).get("fields") or ["$"])

    def close(self) -> None:
        """Close the store, unless it is that of a manager."""
        if self._is_ours:
            self.manager.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: first all that read, then the puts, of which the last of an item counts.

        Raises:
            InvalidInputError: an operation or a comparison of a filter is unknown.
            StorageError: the medium failed.
        """
        results: list[Result] = []
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            found: Result = None
            if isinstance(op, GetOp):
                found = self._get(op.namespace, op.key)
            elif isinstance(op, SearchOp):
                found = self._search(op)
            elif isinstance(op, ListNamespacesOp):
                found = self._namespaces(op)
            elif isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
            else:
                raise InvalidInputError(f"{short_repr(op)} is not an operation of a store.")
            results.append(found)
        for op in puts.values():
            self._put(op)
        return results

    abatch = in_thread(batch)

    # -- internals -------------------------------------------------------------------------------

    def _key(self, namespace: Sequence[str], *more: str) -> str:
        return self.prefix + "/".join(quote(part, safe="") for part in (*namespace, *more))

    def _items(self, namespace: Sequence[str] = ()) -> list[tuple[tuple[str, ...], str]]:
        """Return namespace and key of all items below a namespace, sorted."""
        found = []
        for name in self.manager.list_keys(self._key(namespace, "")):
            *parts, key = map(unquote, name[len(self.prefix) :].split("/"))
            found.append((tuple(parts), key))
        return found

    def _read(self, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None:
        name = self._key(namespace, key)
        if not self.manager.store.newest(name):
            return None
        try:
            state: dict[str, Any] = self.manager.state_dict(name)
        except NotFoundError:  # deleted meanwhile
            return None
        return state

    def _get(self, namespace: tuple[str, ...], key: str) -> Item | None:
        state = self._read(namespace, key)
        return None if state is None else Item(**self._fields_of(namespace, key, state))

    def _fields_of(
        self, namespace: tuple[str, ...], key: str, state: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "namespace": namespace,
            "key": key,
            "value": self._codec.decode(state["value"]),
            "created_at": state["created_at"],
            "updated_at": state["updated_at"],
        }

    def _put(self, op: PutOp) -> None:
        name = self._key(op.namespace, op.key)
        known = self._read(op.namespace, op.key)
        if op.value is None:
            if known is not None:
                self.manager.delete(name)
            return
        now = datetime.now(timezone.utc)
        state = {
            "value": self._codec.encode(dict(op.value)),
            "vectors": self._vectors(op),
            "created_at": known["created_at"] if known else now,
            "updated_at": now,
        }
        self.manager.save(name, state)

    def _vectors(self, op: PutOp) -> list[list[float]]:
        if self._embeddings is None or op.index is False:
            return []
        texts: list[str] = []
        for path in self._fields if op.index is None else op.index:
            texts += get_text_at_path(op.value, path if path == "$" else tokenize_path(path))
        return self._embeddings.embed_documents(texts) if texts else []

    def _search(self, op: SearchOp) -> list[SearchItem]:
        found: list[tuple[float | None, SearchItem]] = []
        query: list[float] | None = None
        if op.query and self._embeddings is not None:
            query = self._embeddings.embed_query(op.query)
        for namespace, key in self._items(op.namespace_prefix):
            state = self._read(namespace, key)
            if state is None:
                continue
            item = SearchItem(**self._fields_of(namespace, key, state))
            if not all(_matches(item.value.get(at), it) for at, it in (op.filter or {}).items()):
                continue
            if query is not None and state["vectors"]:
                item.score = max(_similarity(query, vector) for vector in state["vectors"])
            found.append((item.score, item))
        if query is not None:  # those without a text come last
            found.sort(key=lambda pair: -math.inf if pair[0] is None else pair[0], reverse=True)
        return [item for _, item in found[op.offset : op.offset + op.limit]]

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {namespace for namespace, _ in self._items()}
        for condition in op.match_conditions or ():
            found = {namespace for namespace in found if _is_at(condition, namespace)}
        if op.max_depth is not None:
            found = {namespace[: op.max_depth] for namespace in found}
        return sorted(found)[op.offset : op.offset + op.limit]


def _matches(found: Any, wanted: Any) -> bool:
    """Return whether a member of a value is as a filter says. Raises InvalidInputError."""
    if isinstance(wanted, dict) and any(name.startswith("$") for name in wanted):
        for name, value in wanted.items():
            if name not in _COMPARE:
                raise InvalidInputError(f"The filter has an unknown comparison {short_repr(name)}.")
            try:
                if not _COMPARE[name](found, value):
                    return False
            except (TypeError, ValueError):  # no number
                return False
        return True
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            _matches(found.get(name), value) for name, value in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(wanted)
            and all(map(_matches, found, wanted))
        )
    return bool(found == wanted)


def _is_at(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(wanted in ("*", given) for given, wanted in zip(part, path))


def _similarity(a: Sequence[float], b: Sequence[float]) -> float:
    lengths = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b)) / lengths if lengths else 0.0
