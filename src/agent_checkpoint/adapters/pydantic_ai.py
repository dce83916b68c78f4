"""Pydantic AI: conversations in a store, checkpoints of a run with its files, the workspace.

Needs the extra `pydantic-ai`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agent_checkpoint.adapters import needs_extra
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.session.session import Session
from agent_checkpoint.store.maintenance.retention import KeepLatest

with needs_extra("pydantic-ai"):
    from anyio.to_thread import run_sync
    from pydantic import TypeAdapter
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, WorkspaceRef
    from pydantic_ai.workspaces import LocalWorkspaceBackend

if TYPE_CHECKING:
    from agent_checkpoint.store.store_argument import StoreLike

_PREFIX = "conversation/"
_RECORD = TypeAdapter(ConversationRecord)
_RESULT = "agent_checkpoint.tool_result"
"""The kind of an item with the result of a tool call whose turn is not over."""
_PROVIDER = "agent-checkpoint"
"""The provider of a workspace: that of the session whose key is its id."""
_MAX_KNOWN = 100_000


class CheckpointConversationStore(ConversationStore):
    """Conversations in a store: one key per conversation, each with all entries of its history.

    Concurrent writers of one conversation conflict, as the interface says. A fork shares the stored
    messages of its origin, and outlives it. `delete` removes a conversation with all its
    checkpoints; `CheckpointManager.gc` frees the space of its messages.
    """

    def __init__(self, store: StoreLike) -> None:
        """Open the conversations of a store: a path, a store URL, a Backend or a manager.

        Raises:
            InvalidInputError: the argument is not a store.
            StorageError: the store cannot be opened.
        """
        self.manager = store if isinstance(store, CheckpointManager) else CheckpointManager(store)
        """The manager of the store."""
        self._known: dict[str, str] = {}
        """The keys of some entries, by entry id."""

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None. Raises StorageError."""
        return await run_sync(self._read_record_at, _name(conversation_id))

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope, newest first. Raises StorageError."""

        def read() -> list[ConversationRecord]:
            found = map(self._read_record_at, self.manager.list_keys(_PREFIX))
            records = [one for one in found if one is not None and scope in (None, one.scope)]
            return sorted(records, key=lambda one: one.updated_at, reverse=True)[:limit]

        return await run_sync(read)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record with its new entries, in one checkpoint.

        Raises:
            ConversationConflict: the stored revision is another one, or an entry is missing.
            StorageError: the store failed.
        """
        name, added = _name(record.conversation_id), [_dump(entry) for entry in new_entries]
        dumped, stored, entries = _RECORD.dump_python(record, mode="json"), Log[Any](), Log[Any]()
        links = {entry["id"]: entry["parent_id"] for entry in added}
        first = record.head_id
        while first in links:
            first = links[first]

        def change() -> None:
            self._check(record.conversation_id, stored, expected_revision)
            known = {entry["id"] for entry in entries}
            if first is not None and first not in known:  # a fork: it has all that it needs
                try:
                    inherited = self._history(first)
                except LookupError:
                    raise ConversationConflict(record.conversation_id) from None
                entries.extend(entry for entry in inherited if entry["id"] not in known)
            entries.extend(entry for entry in added if entry["id"] not in known)
            stored.replace([dumped])

        parts = {"record": stored, "entries": entries}
        await run_sync(self.manager.update, name, parts, change)
        self._remember(name, [record.head_id, *record.branches])

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its checkpoints; forks of it are kept.

        Raises:
            ConversationConflict: the stored revision is another one.
            StorageError: the store failed.
        """
        name, stored, entries = _name(conversation_id), Log[Any](), Log[Any]()

        def change() -> None:
            self._check(conversation_id, stored, expected_revision)
            stored.truncate(0)
            entries.truncate(0)

        def delete() -> None:
            # An empty head, and not a deleted key: a concurrent write conflicts with it.
            self.manager.update(name, {"record": stored, "entries": entries}, change)
            self.manager.prune(name, KeepLatest(1))

        await run_sync(delete)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. Raises LookupError, StorageError."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to one, oldest first, or the last `limit` of them.

        Raises LookupError, StorageError.
        """
        if head_id is None:
            return []
        found = await run_sync(self._history, head_id)
        return [_load(entry) for entry in (found if limit is None else found[len(found) - limit :])]

    # -- internals -------------------------------------------------------------------------------

    def _read_record_at(self, name: str) -> ConversationRecord | None:
        stored = Log[Any]()
        try:
            self.manager.load(name, {"record": stored})
        except NotFoundError:
            return None
        if not stored:  # deleted
            return None
        record = _RECORD.validate_python(stored.to_list()[0])
        self._remember(name, [record.head_id, *record.branches])
        return record

    def _check(self, conversation_id: str, stored: Log[Any], expected: str | None) -> None:
        if (stored[0]["revision"] if stored else None) != expected:
            raise ConversationConflict(conversation_id)

    def _remember(self, name: str, entry_ids: Iterable[str | None]) -> None:
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known.update({entry: name for entry in entry_ids if entry is not None})

    def _history(self, head_id: str) -> list[Any]:
        """Return the stored entries up to one, oldest first. Raises KeyError, StorageError."""
        known = self._known.get(head_id)
        names = self.manager.list_keys(_PREFIX)
        for name in ([known] if known in names else []) + [n for n in names if n != known]:
            entries = Log[Any]()
            try:
                self.manager.load(name, {"entries": entries})
            except NotFoundError:  # deleted meanwhile
                continue
            by_id = {entry["id"]: entry for entry in entries.to_list()}
            if head_id in by_id:
                self._remember(name, [head_id])
                return list(_chain(by_id, head_id))
        raise KeyError(f"There is no entry {head_id!r} in the store.")


def _chain(by_id: Mapping[str, Any], head_id: str | None) -> list[Any]:
    found = []
    while head_id is not None:
        found.append(by_id[head_id])
        head_id = by_id[head_id]["parent_id"]
    return found[::-1]


def _name(conversation_id: str) -> str:
    return _PREFIX + quote(conversation_id, safe="")


def _dump(entry: ConversationEntry) -> dict[str, Any]:
    message = dump_messages([entry.message])[0]
    return {"id": entry.id, "parent_id": entry.parent_id, "kind": entry.kind, "message": message}


def _load(entry: dict[str, Any]) -> ConversationEntry:
    message = ModelMessagesTypeAdapter.validate_python([entry["message"]])[0]
    return ConversationEntry(**{**entry, "message": message})


def dump_messages(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return messages as JSON."""
    found: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return found


def message_history(session: Session) -> list[ModelMessage]:
    """Return the conversation of a session, for `agent.run(message_history=…)`.

    Without a prompt, such a run continues where the last one was killed: in the middle of a turn,
    `Checkpoints` gives the results of the calls that had ended, and the others are made.
    """
    items = [item for item in session.messages.to_list() if item.get("kind") != _RESULT]
    for item in items:
        # A fork continues a conversation that was begun in the workspace of its origin.
        if (item.get("workspace_ref") or {}).get("provider") == _PROVIDER:
            item["workspace_ref"]["id"] = session.key
    return ModelMessagesTypeAdapter.validate_python(items)


class Checkpoints(AbstractCapability[Any]):
    """Saves a checkpoint after each reply of the model and each tool: conversation and files.

    Pass it as `Agent(…, capabilities=[Checkpoints(session)])`, or to a run. The workspace of the
    session is the workspace of the run.
    """

    def __init__(self, session: Session) -> None:
        """Save the checkpoints of runs in a session."""
        self.id = "agent_checkpoint"
        self.session = session
        self._seen: list[ModelMessage] = []
        """The messages of the last checkpoint, by identity."""

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: a session has no specification."""
        return None

    def get_workspace(self, ctx: Any, *, ref: WorkspaceRef | None) -> Any:
        """Return the workspace of the session, if it has one and it is the one asked for."""
        if self.session.workspace is None:
            return None
        backend = SessionWorkspaceBackend(self.session)
        return backend if ref in (None, backend.ref) else None

    async def after_node_run(self, ctx: Any, *, node: Any, result: Any) -> Any:
        """Save the messages after a reply, and after a turn of tools."""
        request = getattr(result, "request", None)  # of the tools: not in the messages yet
        messages = [*ctx.messages, *([] if request is None else [request])]
        if messages:
            await self._save(messages, type(node).__name__)
        return result

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        """Return the saved result of a call, or make the call and save its result."""
        log, place = self.session.messages, len(self.session.messages)
        while place and log[place - 1].get("kind") == _RESULT:
            place -= 1
            if log[place]["tool_call_id"] == call.tool_call_id:
                return deepcopy(log[place]["result"])
        result = await handler(args)
        item = {"kind": _RESULT, "tool_call_id": call.tool_call_id, "result": result}
        log.append(item)
        await self.session.asave(label=call.tool_name[:200])
        return result

    async def _save(self, messages: list[ModelMessage], label: str) -> None:
        log, same = self.session.messages, 0
        for old, new in zip(self._seen, messages):
            if old is not new:
                break
            same += 1
        end = next((n for n, item in enumerate(log) if item.get("kind") == _RESULT), len(log))
        same = min(max(same - 1, 0), end)  # the last message may have been completed in place
        dumped = dump_messages(messages[same:])
        if log[same:end] != dumped:
            log.truncate(same)
            log.extend(dumped)
            await self.session.asave(label=label)
        self._seen = messages


class SessionWorkspaceBackend(LocalWorkspaceBackend):
    """The workspace of a session, as a workspace of Pydantic AI; in a fork, that of the fork.

    Commands run on this machine and are not isolated.
    """

    def __init__(self, session: Session, *, env: Mapping[str, str] | None = None) -> None:
        """Use the directory of a session. Raises InvalidInputError if it has no workspace."""
        if session.workspace is None:
            raise InvalidInputError("The session has no workspace. Open it with workspace=.")
        super().__init__(session.workspace.path, env=env)
        self._session_ref = WorkspaceRef(provider=_PROVIDER, id=session.key)

    @property
    def ref(self) -> WorkspaceRef:
        """The identity of the workspace: the key of the session."""
        return self._session_ref
