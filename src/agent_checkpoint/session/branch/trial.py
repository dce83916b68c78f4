"""A trial: one run of one variant in a fork. Owns reading its changes and effects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.options import Merge
from agent_checkpoint.records import Checkpoint, safe_repr, short_repr
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tools.call_arguments import describe_call
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.store.lookup import find
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in

if TYPE_CHECKING:
    from agent_checkpoint.records import Changes
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff

SCORE = "score"
"""The metric that a strategy returns as a bare number."""


@dataclass
class Trial:
    """One run of one variant, in its own fork."""

    variant: dict[str, Any]
    number: int
    """The index of the variant, from 0."""
    repeat: int
    """The index of the run of this variant, from 0."""
    key: str
    """The key of the fork."""
    head: str | None = None
    """The last checkpoint of the fork; None if the fork was not created."""
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    """The reason why the trial failed; None if it succeeded."""
    seconds: float = 0.0
    ready: float = 0.0
    """Seconds until the strategy was called."""
    steps: int = 0
    """The number of tool calls."""
    place: str | None = None
    """The workspace path of the trial."""
    output: str = ""
    """The end of stdout and stderr, if the trial had its own process."""
    _inspection: TrialInspection | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the trial succeeded."""
        return self.error is None

    @property
    def score(self) -> float | None:
        """The metric `score`, if there is one."""
        return self.metrics.get(SCORE)

    @property
    def state_diff(self) -> Changes:
        """Changes of the state since the fork, by path. Raises CheckpointError."""
        return self._require_inspection.state(self._require_head)

    @property
    def file_diff(self) -> WorkspaceDiff | None:
        """Changes of the files since the fork, if there are files. Raises CheckpointError."""
        return self._require_inspection.files(self._require_head)

    @property
    def effects(self) -> list[Effect]:
        """The external side effects of the trial. Raises CheckpointError."""
        return self._require_inspection.effects(self.key)

    def adopt(self, *, merge: Merge | None = None) -> RollbackReport:
        """Adopt the trial in the explored session; see `Session.adopt`.

        Raises the same errors as `Session.adopt`.
        """
        return self._require_inspection.adopt(self, merge=merge)

    def set_result(self, result: dict[str, Any]) -> None:
        """Set the fields from the JSON result of the run. Raises StorageError."""
        for name in ("metrics", "error", "seconds", "ready", "steps", "place", "output", "head"):
            if name in result:
                setattr(self, name, result[name])
        if self.head is None and self._inspection is not None:  # its process died before reporting
            self.head = self._inspection.head(self.key)

    def in_words(self) -> str:
        """Return the variant and its metrics or error, on one line."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        end = "done" if self.error is None else self.error.splitlines()[0]
        return f"{variant_label(self)}: {values or end}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, without reading the store."""
        return {
            "variant": {str(name): _plain(value) for name, value in self.variant.items()},
            "number": self.number,
            "repeat": self.repeat,
            "key": self.key,
            "head": self.head,
            "ok": self.ok,
            "metrics": dict(self.metrics),
            "error": self.error,
            "seconds": self.seconds,
            "ready": self.ready,
            "steps": self.steps,
            "place": self.place,
            "output": self.output,
        }

    @property
    def _require_inspection(self) -> TrialInspection:
        if self._inspection is None:
            raise NotFoundError(f"The trial {short_repr(self.key)} is not attached to a session.")
        return self._inspection

    @property
    def _require_head(self) -> str:
        if self.head is None:
            raise NotFoundError(f"The trial {short_repr(self.key)} was not started: {self.error}")
        return self.head


def variant_label(trial: Trial) -> str:
    """Return the variant of a trial, on one line."""
    return describe_call("", trial.variant)[1:-1] or f"#{trial.number}"


class TrialInspection:
    """Compares the trials of one exploration with their fork point."""

    def __init__(
        self, state: SessionState, point: Checkpoint, adopt: Callable[..., RollbackReport]
    ) -> None:
        """Compare with a fork point; `adopt` is the method of the explored session."""
        self._state = state
        self._store = state.manager.store
        self._point = point
        self._adopt = adopt

    def head(self, key: str) -> str | None:
        """Return the last checkpoint of a fork, if it has any. Raises CheckpointError."""
        head = self._store.head(key)
        return None if head is None else head.id

    def state(self, head: str) -> Changes:
        """Return the state changes between the fork point and `head`. Raises CheckpointError."""
        point = self._point
        changes = self._state.manager.diff(
            point.key, checkpoint_id_a=point.id, checkpoint_id_b=head, deep=True
        )
        for paths in changes.values():
            for path in [path for path in paths if _is_internal(path)]:
                del paths[path]
        return changes

    def files(self, head: str) -> WorkspaceDiff | None:
        """Return the file changes since the fork; None without files. Raises CheckpointError."""
        with block_forks():
            from agent_checkpoint.workspace.tree.compare import Side
            from agent_checkpoint.workspace.tree.workspace_diff import compare  # slow to load

        end = find(self._store, head)
        before, after = (tree_in(self._store, item) for item in (self._point, end))
        if before is None or after is None:
            return None
        return compare(Side(before.root.ref, before.get), Side(after.root.ref, after.get))

    def effects(self, key: str) -> list[Effect]:
        """Return the external side effects of a fork. Raises CheckpointError."""
        ledger = Ledger(self._store, self._state.record.family)
        ledger.refresh()
        return [effect for effect in ledger.all_effects() if effect.session == key]

    def adopt(self, trial: Trial, **options: Any) -> RollbackReport:
        """Adopt a trial in the explored session.

        Takes the same options and raises the same errors as `Session.adopt`.
        """
        if not self._state.is_open:
            raise InvalidInputError(
                f"The session {short_repr(self._state.key)} is closed. Open it again, then call "
                f"session.adopt({trial.key!r})."
            )
        return self._adopt(trial, **options)


def _is_internal(path: str) -> bool:
    """Return whether a path belongs to the session record or the workspace, not to user state."""
    return path.partition(".")[0].partition("[")[0] in (SESSION_PART, FILES)


def _plain(value: Any) -> Any:
    """Return a value, or its repr if JSON cannot represent it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return safe_repr(value)
    return value
