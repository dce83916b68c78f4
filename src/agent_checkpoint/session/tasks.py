"""Tasks of a session and their progress. Owns their status; the session saves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.path_errors import as_state_error
from agent_checkpoint.errors import InvalidInputError, StateMismatchError
from agent_checkpoint.manager.checkpoint_parts import check_name
from agent_checkpoint.options import OnResume, check_option
from agent_checkpoint.records import Checkpoint, ExactText, same_json, short_repr
from agent_checkpoint.session.agent_scope import (
    CALLS,
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    SUBAGENTS,
    AgentScope,
    is_within,
    split_part,
)
from agent_checkpoint.session.current_session import enclosing_calls, set_task
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES

PENDING, SKIPPED = "pending", "skipped"
_DONE_STATUSES = frozenset({COMPLETED, SKIPPED})


class _TaskRecord:
    """The stored fields of a task."""

    def __init__(
        self,
        id: str,
        status: str = PENDING,
        attempt: int = 0,
        note: str = "",
        result: Any = None,
        began: str | None = None,
    ) -> None:
        self.id = id
        self.status = status
        self.attempt = attempt
        self.note = note
        self.result = result
        self.began = began
        """The checkpoint at the start of the current attempt, once it is saved."""


class Task:
    """One task. `with task:` sets it in progress, and then completed or failed."""

    def __init__(self, tasks: Tasks, row: _TaskRecord) -> None:
        self._tasks = tasks
        self._row = row

    def __repr__(self) -> str:
        return f"<Task {self.id!r}: {self.status}>"

    @property
    def id(self) -> str:
        """The id, stable across runs."""
        return self._row.id

    @property
    def status(self) -> str:
        """The status: pending, in_progress, completed, failed or skipped."""
        return self._row.status

    @property
    def attempt(self) -> int:
        """How many times the task was started."""
        return self._row.attempt

    @property
    def note(self) -> str:
        """A note; the error if the task failed."""
        return self._row.note

    @note.setter
    def note(self, note: str) -> None:
        self._row.note = str(note)

    @property
    def result(self) -> Any:
        """The result, for later tasks and for readers of the checkpoint."""
        return self._row.result

    @result.setter
    def result(self, result: Any) -> None:
        """Set the result. Raises StateError if it cannot be saved."""
        self._row.result = copied_result(result, self.id)

    @property
    def is_done(self) -> bool:
        """Whether the task is completed or skipped."""
        return self.status in _DONE_STATUSES

    def skip(self, reason: str = "") -> None:
        """Skip the task permanently. Raises the same errors as `Session.save`."""
        self._row.status, self._row.note = SKIPPED, str(reason)
        self._tasks._finish(self)

    def __enter__(self) -> Task:
        self._tasks._begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self._tasks._end(self, error)


def copied_result(result: Any, of: str) -> Any:
    """Return a copy of a result. Raises StateError if it cannot be saved."""
    with block_forks():
        from agent_checkpoint.core.copying import copied

    name = f"The result of {of}"
    encode(result, name)
    with as_state_error(name, result):
        return copied(result)


class Tasks:
    """All tasks of an agent, by id; a Stateful. A call with ids returns the unfinished ones."""

    def __init__(self, state: SessionState, scope: AgentScope) -> None:
        self._state = state
        self._scope = scope
        self._rows: dict[str, _TaskRecord] = {}
        self._listed: set[str] = set()
        self._retries: dict[str, int] = {}
        """How many retries a task has left."""
        self._earlier_errors: dict[str, str] = {}
        """The error of the last failed attempt; the note of a task until it is completed."""
        self._begun: set[str] = set()
        self._continuing: set[str] = set()
        self.added: list[str] = []
        """Ids that the code lists and the checkpoint does not have."""

    def __repr__(self) -> str:
        statuses = ", ".join(f"{row.id}: {row.status}" for row in self._rows.values())
        return f"<Tasks {statuses or 'none yet'}>"

    def __call__(
        self, ids: Iterable[str], *, on_resume: OnResume = "restart", retries: int = 0
    ) -> Iterator[Task]:
        """Return an iterator over the unfinished tasks, in the order of `ids`.

        A task that was in progress when the session stopped runs again from its start: state and
        files are rolled back to it.

        Args:
            ids: strings that are stable across runs.
            on_resume: `restart`, or `continue` to keep the state of the last tool call.
            retries: how many times a failing task runs again from its start before the error is
                raised.

        Raises:
            InvalidInputError: an id is duplicated or not a string, or an option is invalid.
            CheckpointError: the session cannot be rolled back to the start of the task.
        """
        if isinstance(ids, str):
            raise InvalidInputError(f"ids must be a list of strings, such as [{ids!r}].")
        names = list(ids)
        for name in names:
            if not isinstance(name, str) or not name or "\0" in name:
                raise InvalidInputError(
                    f"A task id must be a non-empty string without NUL, not {short_repr(name)}."
                )
            check_name(name, "A task id", self._state.manager.policy.redactor)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(f"Task ids must be unique; {short_repr(twice)} is not.")
        check_option("on_resume", on_resume, OnResume)
        self._scope.check_open()
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InvalidInputError(
                f"retries must be an integer from 0, not {short_repr(retries)}."
            )
        self._retries.update(dict.fromkeys(names, retries))
        self._listed.update(names)
        known = bool(self._rows)
        interrupted = [name for name in names if self._status(name) == IN_PROGRESS]
        if on_resume == "continue":
            self._continuing.update(interrupted)
        elif interrupted:
            self._restart(interrupted[0], self._rows[interrupted[0]].began)
        for name in names:
            if name not in self._rows:
                self._rows[name] = _TaskRecord(name)
                if known:
                    self.added.append(name)
        return self._remaining(names)

    def __getitem__(self, task_id: str) -> Task:
        return Task(self, self._rows[task_id])

    def __iter__(self) -> Iterator[Task]:
        return (Task(self, row) for row in list(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def removed(self) -> list[str]:
        """Ids that the checkpoint has and the code has not listed, if it listed any."""
        return [name for name in self._rows if name not in self._listed] if self._listed else []

    def only_one_in_progress(self) -> str | None:
        """Return the id of the task in progress, if there is exactly one."""
        in_progress = [row.id for row in list(self._rows.values()) if row.status == IN_PROGRESS]
        return in_progress[0] if len(in_progress) == 1 else None

    # -- Stateful --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all tasks, in order."""
        rows = [dict(vars(row)) for row in list(self._rows.values())]
        for row in rows:
            row["began"] = None if row["began"] is None else ExactText(row["began"])
        return {"tasks": rows}

    def load_state_dict(self, state: Any) -> None:
        """Load all tasks. Raises StateMismatchError."""
        try:
            rows = [_TaskRecord(**row) for row in state["tasks"]]
        except (TypeError, KeyError) as error:
            raise StateMismatchError(f"The state is not a list of tasks ({error}).") from None
        loaded = {row.id: row for row in rows}
        for name, row in self._rows.items():  # update in place: Task objects refer to these rows
            if name in loaded:
                vars(row).update(vars(loaded[name]))
                loaded[name] = row
        self._rows = loaded

    # -- status changes --------------------------------------------------------------------------

    def _status(self, name: str) -> str | None:
        row = self._rows.get(name)
        return None if row is None else row.status

    def _remaining(self, names: list[str]) -> Iterator[Task]:
        passed: set[str] = set()
        while True:
            for name in names:  # a rollback may have removed them
                self._rows.setdefault(name, _TaskRecord(name))
            left = [name for name in names if name not in passed]
            name = next((name for name in left if self._status(name) not in _DONE_STATUSES), "")
            if not name:
                return
            self._begun.discard(name)
            yield Task(self, self._rows[name])
            if name not in self._begun or self._status(name) in (FAILED, IN_PROGRESS):
                passed.add(name)  # otherwise it is done, or is to be retried

    def _begin(self, task: Task) -> None:
        self._scope.check_open()
        row = task._row = self._rows.setdefault(task.id, task._row)
        self._begun.add(row.id)
        if row.id not in self._continuing:  # a continued task does not repeat its calls
            self._reset_counts(row.id)
        self._continuing.discard(row.id)
        if row.status == FAILED:
            self._earlier_errors[row.id] = row.note
        row.status, row.began = IN_PROGRESS, None
        row.attempt += 1
        set_task(self._scope.tools, row.id)
        self._show_progress(f"{row.id} …")
        row.began = self._save(f"task {row.id}")

    def _end(self, task: Task, error: BaseException | None) -> bool:
        set_task(self._scope.tools, None)
        row = task._row = self._rows.get(task.id, task._row)
        if row.status != IN_PROGRESS:  # skipped, or rolled back to before its start
            return False
        if error is None:
            row.status = COMPLETED
            if row.note and row.note == self._earlier_errors.get(row.id):
                row.note = ""  # the error of an earlier attempt
        elif not isinstance(error, Exception):
            return False  # interrupted, or suspended for an approval: it resumes later
        elif self._retries.get(row.id, 0) > 0:
            self._retries[row.id] -= 1
            note, attempt = self._describe(error), row.attempt
            self._restart(row.id, row.began)
            row = task._row = self._rows.setdefault(row.id, row)
            row.status, row.note, row.attempt = PENDING, note, attempt
            self._earlier_errors[row.id] = note
            return True
        else:
            row.status, row.note = FAILED, self._describe(error)
        row.began = None
        self._finish(task)
        return False

    def _describe(self, error: BaseException) -> str:
        with block_forks():
            from agent_checkpoint.session.tools.call_arguments import describe_error

        return describe_error(error, self._state.manager.policy.redactor)

    def _finish(self, task: Task) -> None:
        self._reset_counts(task.id)
        self._save(f"task {task.id} {task.status}", full=True)
        self._show_progress(f"{task.id} {task.status}")

    def _reset_counts(self, task: str) -> None:
        with self._state.writer.lock:
            self._state.record.counts.reset(self._scope.place(task))

    def _save(self, label: str, *, full: bool = False) -> str:
        state = self._state
        if state.every == "manual":
            return state.writer.head_id
        with state.full_scan(full):
            return state.save(label=self._scope.label(label))

    def _restart(self, task: str, began: str | None) -> None:
        """Roll back to the start of a task."""
        with block_forks():
            from agent_checkpoint.session.rollback.rollback_target import task_start

        target = task_start(self._state, began)
        if target is None:
            self._state.problems.append(
                f"The task {task} continues from the last checkpoint: the checkpoint at its start "
                "was removed."
            )
            return
        self.roll_back(target, label=f"task {task} again", what=f"The task {task}")

    def roll_back(self, target: Checkpoint, *, label: str, what: str) -> None:
        """Roll this agent back to begin something again; answers to approval requests stay valid.

        Args:
            target: the checkpoint at its beginning.
            label: the label of the rollback checkpoint.
            what: what begins again, for a notice.

        Raises the same errors as `Rollback.run`.
        """
        with self._state.writer.lock:  # no other agent begins meanwhile
            self._roll_back(target, self._scope.label(label), what)

    def _roll_back(self, target: Checkpoint, label: str, what: str) -> None:
        parts, path = None, self._scope.path
        if path:  # other agents keep their state, and the files that they may have changed
            parts = [SUBAGENTS + path]
            if FILES in target.parts:
                if self._others_acted_since(target):
                    self._state.add_notice(
                        f"{what} of the sub-agent {path} began again with the files as they are: "
                        "other agents of the session have called tools since it began."
                    )
                else:
                    parts.append(FILES)
        with block_forks():
            from agent_checkpoint.session.rollback.rollback import Rollback

        Rollback(self._state, target, parts=parts, label=label, voids=False).run("warn")

    def _others_acted_since(self, target: Checkpoint) -> bool:
        """Return whether other agents of the session may have changed files since a checkpoint."""
        state, path = self._state, self._scope.path
        head = {} if state.writer.head is None else state.writer.head.parts
        logs = {name for name in {**head, **target.parts} if split_part(name)[1] == CALLS}
        others = {name for name in logs if not is_within(split_part(name)[0], path)}
        around = enclosing_calls()
        return (
            any(not same_json(head.get(name), target.parts.get(name)) for name in others)
            or any(
                call not in around and not is_within(call.subagent, path)
                for call in list(state.running)
            )
            or any(
                not is_within(scope.path, path) and not is_within(path, scope.path)
                for scope in state.entered()
            )
        )

    def _show_progress(self, words: str) -> None:
        with block_forks():
            from agent_checkpoint.session.task_progress import show_progress

        listed = [row for row in self._rows.values() if row.id in self._listed]
        show_progress(sum(row.status in _DONE_STATUSES for row in listed), len(listed), words)
