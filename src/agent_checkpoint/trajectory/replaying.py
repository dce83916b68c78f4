"""`replay`: runs the loop of an agent again on a recorded trajectory. Owns files and comparison.

The replay is a fork of the first checkpoint in a private directory. Its tool calls are answered
from the record, with the file changes of each; its model calls, too. Nothing happens outside.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import InvalidInputError, Suspended
from agent_checkpoint.manager.checkpoint_parts import restore_parts
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.options import OnDivergence, check_option
from agent_checkpoint.records import Checkpoint, Kind, same_json, short_repr
from agent_checkpoint.session.agent_scope import CALLS, MODEL_CALLS, OPEN_CALLS, TASKS, split_part
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.loop.model_calls import whole_requests
from agent_checkpoint.session.session import Branch, open_branch
from agent_checkpoint.session.session_open import manager_for
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.steps.line import line_of, original
from agent_checkpoint.session.steps.step import StepReader
from agent_checkpoint.session.subagent import state_of
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.session.tools.invoke import run_if_awaitable
from agent_checkpoint.session.tools.recorded_calls import (
    Divergence,
    RecordedCall,
    RecordedCalls,
    ReplayStopped,
    first_difference,
)
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.objects.reader import resolve_tree
from agent_checkpoint.trajectory.run_log import REPLAY, as_text, record_run
from agent_checkpoint.transcripts.fields import plain
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.fork.drivers import ForkPaths, begin_fork, end_fork
from agent_checkpoint.workspace.fork.isolated import private_forks_dir
from agent_checkpoint.workspace.fork.overlay_mount import wrap_errors
from agent_checkpoint.workspace.fork.tree_update import TreeUpdate
from agent_checkpoint.workspace.tree.compare import Change, tree_changes
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, LINK, ContentHash, Item
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.store.store_argument import StoreLike

_NOT_COMPARED = frozenset({CALLS, OPEN_CALLS, MODEL_CALLS})
_LONGEST_KEY = 900


@dataclass
class StateDifference:
    """A part of the state that differs from the record, though all calls matched."""

    checkpoint: str
    """The id of the recorded checkpoint."""
    part: str
    words: str
    """Where it differs, with both values."""


@dataclass(repr=False)
class ReplayOutcome:
    """The result of a replay; close it to remove its files."""

    session: Branch
    """The fork in which the loop ran."""
    matched: int = 0
    """The number of tool calls that were answered from the record."""
    recorded: int = 0
    """The number of recorded tool calls up to `until`, without those that other tools made."""
    divergence: Divergence | None = None
    differences: list[StateDifference] = field(default_factory=list)
    """Differences of the state, such as of clocks and random numbers."""
    result: Any = None
    """What the loop returned; None if it was stopped."""
    error: BaseException | None = None
    """What the loop raised after the divergence."""
    not_recorded: str | None = None
    """Why the outcome was not recorded for the web UI; None if it was."""
    _paths: ForkPaths | None = None
    _manager: CheckpointManager | None = None
    """The manager to close."""
    _has_own_work: bool = False
    """Whether calls were made for real: the key is kept."""
    _is_closed: bool = False

    def __repr__(self) -> str:
        end = "no divergence" if self.divergence is None else str(self.divergence)
        return f"<ReplayOutcome {self.matched} of {self.recorded} calls matched: {end}>"

    def close(self) -> None:
        """Close the session, and remove its files and its key; the key of a live one stays.

        May be called twice.

        Raises:
            WorkspaceError: a file cannot be removed.
            StorageError: the store failed.
        """
        self.session.close()
        if not (self._is_closed or self._has_own_work):
            self.session.manager.delete(self.session.key)
        self._is_closed = True
        if self._paths is not None:
            end_fork(self._paths)
        if self._manager is not None:
            self._manager.close()

    def __enter__(self) -> ReplayOutcome:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def replay(
    key: str,
    run: Callable[[Branch], Any],
    *,
    store: StoreLike | None = None,
    until: str | None = None,
    on_divergence: OnDivergence = "stop",
    agent: Any = None,
    parts: Mapping[str, Any] | None = None,
) -> ReplayOutcome:
    """Run the loop of an agent on a recorded trajectory; no tool and no model is called.

    A tool call that matches the record returns the recorded result, and its file changes are made
    in a private copy of the workspace. Nothing is written to the ledger of side effects.

    Args:
        key: the session whose record is used.
        run: the loop; called with the fork. It may be a coroutine function.
        store: a path, a store URL, a Backend or a CheckpointManager.
        until: the last checkpoint to replay; by default, the last one.
        on_divergence: `stop` at the first call that differs, or go on `live`: with real calls in
            the fork, where irreversible tools are refused.
        agent: the agent of the fork, which gets the state of the first checkpoint.
        parts: further Statefuls, by part name.

    Raises:
        NotFoundError: there is no such key or checkpoint.
        InvalidInputError: the key is not a session.
        CheckpointError: the fork cannot be created.
        Exception: what `run` raises before a divergence.
    """
    check_option("on_divergence", on_divergence, OnDivergence)
    if not callable(run):
        raise InvalidInputError(f"run must be a function of a session, not {short_repr(run)}.")
    manager, owns = manager_for(store)
    paths: ForkPaths | None = None
    try:
        last = find(manager.store, key if until is None else until, base=key)
        line = line_of(manager.store, original(manager.store, last))
        if SESSION_PART not in line[0].parts:
            raise InvalidInputError(f"{short_repr(key)} is not a session.")
        workspace, paths = _private_workspace(manager, line[0])
        name = (
            f"{key.encode()[:_LONGEST_KEY].decode(errors='ignore')}/replay-{secrets.token_hex(4)}"
        )
        branch = open_branch(
            manager,
            line[0].id,
            name,
            effects="refuse",
            agent=agent,
            parts=parts,
            workspace=workspace,
        )
    except BaseException:
        if paths is not None:
            end_fork(paths)
        if owns:
            manager.close()
        raise
    outcome = ReplayOutcome(branch, _paths=paths, _manager=manager if owns else None)
    try:
        _Replay(manager, line, outcome, on_divergence, is_whole=until is None).run(run)
        values = _record(outcome, name, line[-1].id)
        outcome.not_recorded = record_run(manager, key, REPLAY, values)
    except BaseException:
        outcome.close()
        raise
    return outcome


def _private_workspace(
    manager: CheckpointManager, first: Checkpoint
) -> tuple[Workspace | None, ForkPaths | None]:
    """Return a private directory with the files of the first checkpoint."""
    tree = tree_in(manager.store, first)
    if tree is None:
        return None, None
    beside = private_forks_dir()
    paths = begin_fork(beside.parent / "forks", beside)
    try:
        with wrap_errors(f"create {str(paths.files)!r}"):
            paths.files.mkdir(mode=0o700)
        TreeUpdate(paths.files).run(tree_changes(None, tree), tree.get)
        workspace = Workspace(
            paths.files, manager.store, ignore=tree.ignore, gitignore=tree.gitignore
        )
        return workspace, paths
    except BaseException:
        end_fork(paths)
        raise


class _Replay:
    """One replay: the record, and what was made of it."""

    def __init__(
        self,
        manager: CheckpointManager,
        line: list[Checkpoint],
        outcome: ReplayOutcome,
        on_divergence: OnDivergence,
        *,
        is_whole: bool,
    ) -> None:
        self._is_whole = is_whole
        self._store = manager.store
        self._line = line
        self._outcome = outcome
        self._on_divergence = on_divergence
        record = read_session_record(self._store, line[-1])
        self._recorded_root = None if record is None else record.workspace
        workspace = outcome.session.workspace
        self._root = None if workspace is None else workspace.path
        self._at: dict[int, list[RecordedCall]] = {}
        """The tool calls by their position in the line."""
        self._complete: list[int] = []
        """Positions whose calls are all matched, and whose state is to be compared."""
        self._calls = RecordedCalls(
            self._rows(CALLS),
            self._rows(MODEL_CALLS),
            as_recorded=self._as_recorded,
            matched=self._matched,
            diverged=self._diverged,
            name_of=lambda place: line[place].id,
        )
        self._calls.saved = self._compare
        for rows in self._calls.tools.values():
            for one in rows:
                self._at.setdefault(one.place, []).append(one)

    def run(self, run: Callable[[Branch], Any]) -> None:
        """Run the loop, and note how it ended."""
        outcome, state = self._outcome, state_of(self._outcome.session)
        state.replay = self._calls
        try:
            with as_current(state.root.tools):
                outcome.result = run_if_awaitable(run(outcome.session))
        except BaseException as error:
            is_stop = _is_stop(error)
            has_diverged = self._calls.is_stopped or outcome.divergence is not None
            is_of_loop = isinstance(error, (Exception, Suspended))
            if not (is_stop or (has_diverged and is_of_loop)):
                raise
            outcome.error = None if is_stop else error
        else:
            outcome.divergence = outcome.divergence or self._calls.at_end()
        finally:
            self._calls.end()
            outcome._has_own_work = self._calls.is_live
            calls = [one for rows in self._calls.tools.values() for one in rows]
            outcome.recorded = sum(one.is_matched or not one.is_optional for one in calls)

    def _rows(self, part: str) -> dict[str, list[RecordedCall]]:
        """Return the rows of the lists of calls of all agents, with their positions."""
        found: dict[str, list[RecordedCall]] = {}
        last, reader = self._line[-1], StepReader(self._store)
        for name in last.parts:
            agent, kind = split_part(name)
            if kind != part:
                continue
            log: Log[Any] = Log()
            restore_parts({name: last.parts[name]}, {name: log}, reader=self._store.reader(last))
            rows = log.to_list()
            given: list[Any]
            if part == CALLS:
                given = [row["arguments"] for row in rows]
            else:
                given = [plain(request) for request in whole_requests(rows)]
            calls = [RecordedCall(row, one) for row, one in zip(rows, given)]
            done = 0
            for place, checkpoint in enumerate(self._line):
                size = reader.count(checkpoint, name)
                for one in calls[done:size]:
                    one.place = place
                done = max(done, size)
            found[agent] = calls
        return found

    def _as_recorded(self, value: Any) -> Any:
        """Return a value in which the private directory has the path of the recorded one."""
        if self._root is None or self._recorded_root is None:
            return value
        return _replaced(value, str(self._root), self._recorded_root)

    def _diverged(self, divergence: Divergence) -> None:
        if self._is_whole or divergence.expected is not None:  # otherwise `until` is reached
            self._outcome.divergence = divergence
        if self._on_divergence == "stop":
            raise ReplayStopped

    def _matched(self, call: RecordedCall) -> Divergence | None:
        """Make the file changes of a call, once all calls of its checkpoint are matched."""
        self._outcome.matched += 1
        open_calls = [
            one for one in self._at[call.place] if not (one.is_matched or one.is_optional)
        ]
        if open_calls or call.place == 0:
            return None
        self._complete.append(call.place)
        before, after = self._trees(call.place)
        if before is None or after is None or self._root is None:
            return None
        changes = tree_changes(before, after)
        wrong: dict[str, str] = {}
        todo: list[Change] = []
        for change in changes:
            now = _entry(self._root, change.path)
            if _is_same(now, change.after):
                continue  # the code of the loop wrote it, as then
            if _is_same(now, change.before):
                todo.append(change)
            else:
                wrong[os.fsdecode(change.path)] = _described(now)
        if wrong:
            self._outcome.matched -= 1
            expected = {
                os.fsdecode(change.path): _described(change.before)
                for change in changes
                if os.fsdecode(change.path) in wrong
            }
            name = next(iter(wrong))
            words = (
                f"{name} is not as it was before {call.words}: {expected[name]} then, "
                f"{wrong[name]} now."
            )
            checkpoint = self._line[call.place].id
            return Divergence("files", "", expected, wrong, checkpoint, words)
        TreeUpdate(self._root).run(todo, after.get)
        return None

    def _trees(self, place: int) -> tuple[Tree | None, Tree | None]:
        """Return the files after the calls before, and after these: others wrote files between."""
        before = max((one for one in self._at if one < place), default=0)
        return tree_in(self._store, self._line[before]), tree_in(self._store, self._line[place])

    def _compare(self) -> None:
        """Compare the state of the replay with the recorded checkpoint of the last calls."""
        head = state_of(self._outcome.session).writer.head
        places, self._complete = self._complete, []
        if head is None or head.kind == Kind.IN_FLIGHT:
            return
        for place in places:
            recorded = self._line[place]
            for name in recorded.parts:
                if split_part(name)[1] in _NOT_COMPARED or name == SESSION_PART:
                    continue
                if same_json(recorded.parts[name], head.parts.get(name)):
                    continue
                words = self._difference(recorded, head, name)
                if words is not None:
                    self._outcome.differences.append(StateDifference(recorded.id, name, words))

    def _difference(self, recorded: Checkpoint, head: Checkpoint, name: str) -> str | None:
        if name == FILES:
            before, after = tree_in(self._store, recorded), tree_in(self._store, head)
            if before is None or after is None or before.id == after.id:
                return None
            paths = [os.fsdecode(change.path) for change in tree_changes(before, after)]
            return f"files differ: {', '.join(paths[:5])}"
        if name not in head.parts:
            return "the replay has no such part"
        values = []
        for checkpoint in (recorded, head):
            reader = self._store.reader(checkpoint)
            reader.fetch([checkpoint.parts[name]])
            values.append(_comparable(resolve_tree(checkpoint.parts[name], reader), name))
        return None if same_json(*values) else first_difference(*values)


def _is_stop(error: BaseException) -> bool:
    """Return whether an error is the stop of a replay, or a group of tasks that it stopped."""
    inner = getattr(error, "exceptions", ())
    return isinstance(error, ReplayStopped) or (bool(inner) and all(map(_is_stop, inner)))


def _record(outcome: ReplayOutcome, fork: str, end: str) -> dict[str, Any]:
    """Return what is recorded of an outcome."""
    found = outcome.divergence
    return {
        "fork": fork,
        "end": end,
        "matched": outcome.matched,
        "recorded": outcome.recorded,
        "divergence": None
        if found is None
        else {
            "kind": found.kind,
            "agent": found.agent,
            "expected": "" if found.expected is None else as_text(found.expected),
            "actual": "" if found.actual is None else as_text(found.actual),
            "checkpoint": found.checkpoint,
            "words": found.words[:2000],
        },
        "error": None if outcome.error is None else describe_error(outcome.error)[:2000],
        "differences": [
            {"checkpoint": one.checkpoint, "part": one.part, "words": one.words[:500]}
            for one in outcome.differences[:50]
        ],
        "all_differences": len(outcome.differences),
    }


def _comparable(state: Any, name: str) -> Any:
    """Return a state without the checkpoint ids in it, which no two sessions share."""
    rows = state.get("tasks") if split_part(name)[1] == TASKS and isinstance(state, dict) else None
    if not isinstance(rows, list):
        return state
    return {**state, "tasks": [{**row, "began": None} for row in rows if isinstance(row, dict)]}


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {name: _replaced(item, old, new) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(item, old, new) for item in value)
    return value


def _entry(root: Path, path: bytes) -> Item | None:
    """Return the entry at a path of a directory, with the id of its content."""
    place, name = root / os.fsdecode(path), path.rpartition(b"/")[2]
    try:
        found = place.lstat()
        mode = found.st_mode & 0o777
        if place.is_symlink():
            target = os.fsencode(place.readlink())
            return Item(name, LINK, 0o777, len(target), target=target)
        if place.is_dir():
            return Item(name, FOLDER, mode)
        digest = ContentHash()
        with place.open("rb") as file:
            while data := file.read(1 << 20):
                digest.add(data)
        return Item(name, FILE, mode, found.st_size, digest.id())
    except OSError:
        return None


def _is_same(now: Item | None, then: Item | None) -> bool:
    if now is None or then is None:
        return now is then
    if now.type == LINK:
        return then.type == LINK and now.target == then.target
    if now.type == FOLDER:
        return then.type == FOLDER and now.mode == then.mode
    return (now.type, now.mode, now.id) == (then.type, then.mode, then.id)


def _described(item: Item | None) -> str:
    if item is None:
        return "nothing"
    if item.type == FILE:
        return f"a file of {item.size:,} bytes, {item.id[:12]}"
    return "a directory" if item.type == FOLDER else "a link"
