"""Makes tool calls in parallel, in threads or on an event loop. Owns when to save between them.

A checkpoint while a local call is running would hold a part of its changes, and the call would be
made again on top of them. So checkpoints are taken between calls, on the thread of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.loop.toolbox import BoundTool
from agent_checkpoint.session.open_calls import OpenCall
from agent_checkpoint.session.tool_runner import ToolRunner

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

_MAX_WORKERS = 32
_MAX_LABEL = 120


class PlannedCall(NamedTuple):
    """A call to make."""

    opened: OpenCall
    name: str
    arguments: dict[str, Any]
    found: BoundTool

    @property
    def is_asked(self) -> bool:
        """Whether a person is asked first."""
        return self.found.tool.approve is not False

    @property
    def is_local(self) -> bool:
        """Whether the call changes state and files: no checkpoint may be taken meanwhile."""
        return self.found.tool.kind == "local"

    def is_same_effect(self, other: PlannedCall) -> bool:
        """Whether the calls have one idempotency key: the second gets the result of the first."""
        tool = self.found.tool
        is_equal = other.found.tool is tool and other.arguments == self.arguments
        return tool.key is not None and is_equal


class Schedule:
    """The order of parallel calls, and when to save between them."""

    def __init__(
        self, calls: list[PlannedCall], workers: int, scope: AgentScope, runner: ToolRunner
    ) -> None:
        self.asked = [call for call in calls if call.is_asked]
        """The calls that wait for a person, who is asked before other calls run: the session is
        saved with the question."""
        self.workers = workers
        self._others = [call for call in calls if not call.is_asked]
        self._scope, self._runner = scope, runner
        self._saved = scope.finished_calls
        self._order = calls
        self._ended: list[PlannedCall] = []
        """The calls that have ended since the last save."""

    @property
    def has_more(self) -> bool:
        """Whether calls are left to begin."""
        return bool(self._others)

    def take(self, running: Iterable[PlannedCall]) -> list[PlannedCall]:
        """Return the next calls to begin."""
        taken: list[PlannedCall] = []
        busy = list(running)
        for call in list(self._others):
            if len(busy) < self.workers and not any(map(call.is_same_effect, busy)):
                self._others.remove(call)
                taken.append(call)
                busy.append(call)
        return taken

    def due(self, ended: list[PlannedCall], running: Iterable[PlannedCall]) -> str | None:
        """Return the label if a save is due while these calls are running; else None."""
        self._ended += ended
        is_new = self._scope.finished_calls > self._saved  # else all wait for an approval
        if any(call.is_local for call in running) or not is_new:
            return None
        if not self._runner.is_due(self._saved):
            return None
        self._saved, step, self._ended = self._scope.finished_calls, self._ended, []
        return self._scope.label(label_of(call.name for call in self._order if call in step))


def run_parallel(left: Schedule, make: Callable[..., None], save: Callable[..., Any]) -> None:
    """Make calls in threads. Raises what `make` and `save` raise, when no call is running."""
    with block_forks():
        from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

    for call in left.asked:
        make(call)
    running: dict[Future[None], PlannedCall] = {}
    with ThreadPoolExecutor(left.workers) as pool:
        while left.has_more or running:
            for call in left.take(running.values()):
                begin = partial(make, call, is_saved=False)
                running[pool.submit(copy_context().run, begin)] = call
            done = wait(running, return_when=FIRST_COMPLETED).done
            ended = [running.pop(future) for future in done]
            for future in done:
                future.result()
            label = left.due(ended, running.values())
            if label is not None:
                save(label=label)


async def arun_parallel(
    left: Schedule,
    make: Callable[..., Awaitable[None]],
    save: Callable[..., Awaitable[Any]],
    *,
    waits: Callable[[], bool],
) -> None:
    """Make calls on the event loop; see `run_parallel`.

    After an error the calls that are running are cancelled, unless `waits` says that they may end.
    """
    with block_forks():
        import asyncio

    for call in left.asked:
        await make(call)
    running: dict[asyncio.Future[None], PlannedCall] = {}
    try:
        while left.has_more or running:
            for call in left.take(running.values()):
                running[asyncio.ensure_future(make(call, is_saved=False))] = call
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            ended = [running.pop(task) for task in done]
            for task in done:
                task.result()
            label = left.due(ended, running.values())
            if label is not None:
                await save(label=label)
    finally:
        cancelled: asyncio.CancelledError | None = None
        while not all(task.done() for task in running):  # also if it is cancelled again
            for task in running if cancelled or not waits() else ():
                task.cancel()
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


def workers_of(parallel: bool | int) -> int:
    """Return how many calls to make at once. Raises InvalidInputError if it is not a count."""
    if not isinstance(parallel, int) or (parallel is not False and parallel < 1):
        raise InvalidInputError(
            f"parallel must be True, False or a number of workers, not {short_repr(parallel)}."
        )
    return _MAX_WORKERS if parallel is True else max(1, int(parallel))


def label_of(names: Iterable[str]) -> str:
    """Return the label of a checkpoint after calls of these tools."""
    text = ", ".join(names)
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
