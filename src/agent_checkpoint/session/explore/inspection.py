"""Reads the changes and effects of a trial from the store, on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.ledger.ledger import Effect, Ledger
from agent_checkpoint.store.lookup import find
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in

if TYPE_CHECKING:
    from agent_checkpoint.core.state_diff import Changes
    from agent_checkpoint.session.explore.outcome import Trial
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff


class TrialInspection:
    """Compares the trials of one exploration with their fork point."""

    def __init__(self, session: Session, point: Checkpoint) -> None:
        self._session = session
        self._store = session.manager.store
        self._family = session._record.family
        self._point = point

    def head(self, key: str) -> str | None:
        """Return the last checkpoint of a fork, if it has any. Raises CheckpointError."""
        head = self._store.head(key)
        return None if head is None else head.id

    def state(self, head: str) -> Changes:
        """Return the state changes between the fork point and `head`. Raises CheckpointError."""
        point = self._point
        changes = self._session.manager.diff(
            point.key, checkpoint_id_a=point.id, checkpoint_id_b=head, deep=True
        )
        return {
            kind: {path: value for path, value in paths.items() if not _is_internal(path)}
            for kind, paths in changes.items()
        }

    def files(self, head: str) -> WorkspaceDiff | None:
        """Return the file changes since the fork point, if any files. Raises CheckpointError."""
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
        ledger = Ledger(self._store, self._family)
        ledger.refresh()
        return [effect for effect in ledger.all_effects() if effect.session == key]

    def adopt(self, trial: Trial, **options: Any) -> RollbackReport:
        """Adopt a trial in the explored session. Takes and raises what `Session.adopt` does."""
        if not self._session._is_open:
            raise InvalidInputError(
                f"The session {short_repr(self._session.key)} is closed. Open it again, then call "
                f"session.adopt({trial.key!r})."
            )
        return self._session.adopt(trial, **options)


def _is_internal(path: str) -> bool:
    """Tell whether a path belongs to the session record or the workspace, not to user state."""
    return path.partition(".")[0].partition("[")[0] in (SESSION_PART, FILES)
