"""OpenAI Agents SDK: conversation, run state and files in one checkpoint; sandbox snapshots.

Needs the extra `openai-agents`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

from agent_checkpoint.adapters import needs_extra
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import CheckpointError, InvalidInputError, NotFoundError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.session.session import Session
from agent_checkpoint.transcripts import repair

with needs_extra("openai-agents"):
    from agents import FunctionTool, RunHooks, RunState, SessionSettings
    from agents.memory.session_settings import resolve_session_limit
    from agents.sandbox.errors import SnapshotNotRestorableError, SnapshotPersistError
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec
    from agents.tool_context import ToolContext
    from anyio.to_thread import run_sync

if TYPE_CHECKING:
    from pathlib import Path

    from agents import Agent, ModelResponse, RunContextWrapper, Tool, TResponseInputItem
    from agents.sandbox.session.dependencies import Dependencies

_UNSETTLED = "agent_checkpoint.unsettled"
"""The type of an item of a turn that the SDK has not added to the conversation yet."""
_RUN_STATE = "agent_checkpoint.run_state"
_OURS = (_UNSETTLED, _RUN_STATE)
_CHUNK = 1 << 20


class CheckpointSession:
    """The conversation of a Session, as a session of the SDK. Each change saves a checkpoint.

    Pass it as `Runner.run(…, session=s, hooks=s.hooks)`. The hooks save each reply of the model and
    each tool result, so that a killed run continues in the middle of a turn. After a rollback, make
    a new one.
    """

    session_settings: SessionSettings | None = None

    def __init__(self, session: Session) -> None:
        """Continue the conversation of a session.

        If an earlier process was killed in a turn, call `finish_turn`. Otherwise the next run tells
        the model which calls have no result.
        """
        self.session = session
        """The Session with the checkpoints."""
        self.session_id = session.key
        self.hooks: RunHooks[Any] = _CheckpointHooks(self)
        """The hooks of `Runner.run`."""
        self._noted = 0
        """How many items of the running turn this object has saved."""

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest `limit` items of the conversation, or all, oldest first."""
        if len(self._unsettled()) > self._noted:  # of a run that was killed
            self._settle()
        items = [item for item in self.session.messages.to_list() if item.get("type") not in _OURS]
        most = resolve_session_limit(limit, self.session_settings)
        return items if most is None or most < 0 else items[len(items) - min(most, len(items)) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, and save. Raises CheckpointError."""
        if items:
            self._drop_unsettled()
            self.session.messages.extend(items)
            await self.session.asave(label=_label(items[-1]))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the newest item, and save. Raises CheckpointError."""
        items = await self.get_items(-1)
        if not items:
            return None
        messages = self.session.messages
        places = [n for n, item in enumerate(messages) if item.get("type") not in _OURS]
        messages.truncate(places[-1])
        await self.session.asave(label="removed an item")
        return items[-1]

    async def clear_session(self) -> None:
        """Remove all items, and save. Earlier checkpoints keep them. Raises CheckpointError."""
        self.session.messages.truncate(0)
        await self.session.asave(label="cleared")

    # -- approvals -------------------------------------------------------------------------------

    async def save_state(self, state: RunState[Any, Any]) -> str:
        """Save a run that waits for an approval; return the id of the checkpoint.

        Raises:
            CheckpointError: the checkpoint could not be saved.
        """
        self._drop_unsettled()
        self.session.messages.append({"type": _RUN_STATE, "state": state.to_json()})
        waiting = ", ".join(str(item.name) for item in state.get_interruptions())
        return await self.session.asave(label=f"waits for approval: {waiting}"[:200])

    async def load_state(self, agent: Agent[Any]) -> RunState[Any, Any] | None:
        """Return the run that waits for an approval, in any process; None if none does.

        Approve or reject its interruptions, and pass it to `Runner.run` instead of an input.
        """
        last = self.session.messages[-1] if self.session.messages else {}
        if last.get("type") != _RUN_STATE:
            return None
        return await RunState.from_json(agent, self.session.messages.to_list()[-1]["state"])

    # -- the turn that is running ----------------------------------------------------------------

    async def finish_turn(self, agent: Agent[Any], context: Any = None) -> list[str]:
        """Make the calls of a turn in which an earlier process was killed; return their tools.

        Calls that have a result are not made again. Calls that need an approval, and those of other
        tools than function tools, are not made: the model is told. Then continue with
        `Runner.run(agent, [], session=…)`.

        Args:
            agent: the agent that runs.
            context: the context of the run, for its tools.

        Raises:
            CheckpointError: a checkpoint could not be saved.
        """
        unsettled, made = self._unsettled(), []
        ended = {item["call_id"] for item in unsettled if item["type"] == "function_call_output"}
        tools = {one.name: one for one in agent.tools if isinstance(one, FunctionTool)}
        for call in [item for item in unsettled if item["type"] == "function_call"]:
            found = tools.get(call["name"])
            if call["call_id"] in ended or found is None or found.needs_approval is not False:
                continue
            given = call["arguments"]
            wrapper = ToolContext(
                context, tool_name=found.name, tool_call_id=call["call_id"], tool_arguments=given
            )
            result = await found.on_invoke_tool(wrapper, given)
            await self.note([_output(call["call_id"], result)], found.name)
            made.append(found.name)
        self._settle()
        return made

    async def note(self, items: list[Any], label: str) -> None:
        """Save items of a turn that the SDK has not added yet. Raises CheckpointError."""
        self._noted += len(items)
        self.session.messages.extend([{"type": _UNSETTLED, "item": item} for item in items])
        await self.session.asave(label=label[:200])

    def _unsettled(self) -> list[Any]:
        """Return the items at the end that the SDK has not added."""
        messages, start = self.session.messages, len(self.session.messages)
        while start and messages[start - 1].get("type") == _UNSETTLED:
            start -= 1
        return [deepcopy(item["item"]) for item in messages[start:]]

    def _drop_unsettled(self) -> None:
        count = len(self._unsettled())
        self.session.messages.truncate(len(self.session.messages) - count)
        self._noted = 0

    def _settle(self) -> None:
        """Make the items of a turn part of the conversation; calls without a result get one."""
        unsettled, messages = self._unsettled(), self.session.messages
        self._drop_unsettled()
        before = [item for item in messages.to_list() if item.get("type") not in _OURS]
        try:
            whole = repair([*before, *unsettled], provider="openai-responses", session=self.session)
        except InvalidInputError:  # of another API: then the turn is repeated
            return
        if whole[: len(before)] == before:
            messages.extend(whole[len(before) :])
        else:
            messages.replace(whole)


class _CheckpointHooks(RunHooks[Any]):
    """Saves a checkpoint after each reply of the model, and after each tool."""

    def __init__(self, owner: CheckpointSession) -> None:
        self._owner = owner
        self._running = 0

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        await self._owner.note(list(response.to_input_items()), f"{agent.name}: reply")

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Any, tool: Tool) -> None:
        self._running += 1

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Any, tool: Tool, result: object
    ) -> None:
        self._running -= 1
        call_id, label = getattr(context, "tool_call_id", None), tool.name
        beside = f" (beside {self._running} running tools)" if self._running > 0 else ""
        output = [] if call_id is None else [_output(call_id, result)]
        await self._owner.note(output, label + beside)


def _output(call_id: str, result: object) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": call_id, "output": str(result)}


def _label(item: Any) -> str:
    return str(item.get("role") or item.get("type") or "items")[:200]


class CheckpointSnapshot(SnapshotBase):
    """A snapshot of a sandbox in a store: files that did not change are stored once."""

    type: Literal["agent-checkpoint"] = "agent-checkpoint"
    store: str
    """A path or a store URL."""

    @property
    def key(self) -> str:
        """The key of its checkpoints; each `persist` adds one."""
        return f"sandbox/{self.id}"

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        """Save the archive of a sandbox. Raises SnapshotPersistError."""
        chunks, found = Log[bytes](), await run_sync(list, _chunks(data))
        try:
            with CheckpointManager(self.store) as manager:
                await manager.aupdate(self.key, chunks, lambda: chunks.replace(found))
        except CheckpointError as error:
            raise SnapshotPersistError(
                snapshot_id=self.id, path=self._path(), cause=error
            ) from error

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        """Return the last archive. Raises SnapshotNotRestorableError, CheckpointError."""
        chunks = Log[bytes]()
        with CheckpointManager(self.store) as manager:
            try:
                await manager.aload(self.key, chunks)
            except NotFoundError as error:
                raise SnapshotNotRestorableError(snapshot_id=self.id, path=self._path()) from error
        return io.BytesIO(b"".join(chunks))

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        """Return whether there is an archive. Raises StorageError."""
        with CheckpointManager(self.store) as manager:
            return self.key in await manager.alist_keys(self.key)

    def _path(self) -> Path:
        from pathlib import Path

        return Path(f"<{self.store}: {self.key}>")


class CheckpointSnapshotSpec(SnapshotSpec):
    """Makes the snapshots of sandboxes in a store: a path or a store URL."""

    type: Literal["agent-checkpoint"] = "agent-checkpoint"
    store: str

    def build(self, snapshot_id: str) -> SnapshotBase:
        """Return the snapshot of a sandbox."""
        return CheckpointSnapshot(id=snapshot_id, store=self.store)


def _chunks(data: io.IOBase) -> Iterator[bytes]:
    """Cut an archive at its members, so that equal files are equal chunks."""
    whole, cuts = data.read(), set[int]()
    try:
        with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as archive:
            for member in archive:
                cuts |= {member.offset, member.offset_data + -(-member.size // 512) * 512}
    except tarfile.TarError:  # compressed, or no archive: equal chunks at the beginning
        pass
    start = 0
    for end in (*sorted(cuts), len(whole)):
        for place in range(start, end, _CHUNK):
            yield whole[place : min(place + _CHUNK, end)]
        start = end
