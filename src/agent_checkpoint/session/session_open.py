"""Opens a session: new, or resumed from its last checkpoint. Owns the order of the steps.

1. Load the objects of this process. If this fails, the previous owner can continue.
2. Append the `open` checkpoint and the new epoch. They fence off the previous owner.
3. Restore the parts that only one owner may change: the files, and external parts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint import telemetry
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.errors import (
    ConflictError,
    Hint,
    InvalidInputError,
    RestoreIncompleteError,
    WorkspaceError,
)
from agent_checkpoint.manager.checkpoint_parts import restore_parts
from agent_checkpoint.manager.manager import CheckpointManager, with_policy
from agent_checkpoint.options import OnDrift, Pickles, check_option
from agent_checkpoint.records import Checkpoint, Kind, draft_from, short_repr
from agent_checkpoint.session.agent_scope import MODEL_CALLS, OPEN_CALLS, SUBAGENTS
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.session_record import (
    SessionRecord,
    read_session_record,
    record_for_key,
)
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.workspace_part import WorkspacePart, choose_directory, is_empty
from agent_checkpoint.store.directory_claims import IMPORTED, host_of
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_state import Epoch
from agent_checkpoint.store.ledger.ledger_status import COMMITTED
from agent_checkpoint.store.objects.reader import OBJECT, resolve_tree
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.redaction import Redact
    from agent_checkpoint.store.store_argument import StoreLike

_MAX_ATTEMPTS = 10
_MAX_NAMED = 20


def manager_for(
    store: StoreLike | None, pickles: Pickles | None = None, redact: Redact | None = None
) -> tuple[CheckpointManager, bool]:
    """Return the manager for a `store=` argument, and whether the session has to close it.

    Args:
        store: the argument.
        pickles: the policy of the session; None for that of a given manager, or the default.
        redact: likewise.

    Raises:
        InvalidInputError: the argument is not a store, or the policy is invalid.
    """
    if isinstance(store, CheckpointManager):
        return with_policy(store, pickles, redact), False
    if pickles is not None:
        check_option("pickles", pickles, Pickles)  # before the store is opened
    if redact is not None:
        with block_forks():
            from agent_checkpoint.redaction import redactor_of

        redactor_of(redact)
    named = open_named(None) if store is None else store
    return CheckpointManager(named, pickles=pickles or "warn", redact=redact), True


class SessionOpener:
    """Opens a session. Single use."""

    def __init__(
        self, state: SessionState, *, on_drift: OnDrift, rebind: bool, only_at: str | None = None
    ) -> None:
        check_option("on_drift", on_drift, OnDrift)
        self._state = state
        self._store = state.manager.store
        self._on_drift = on_drift
        state.drops_drift = on_drift == "restore"
        self._rebind = rebind
        self._only_at = only_at
        self._is_empty = False

    def run(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        """Open the session: load its parts, take ownership, restore its files.

        Raises:
            InvalidInputError: the session is bound to another workspace.
            WorkspaceError: the workspace cannot be used, or it changed and `on_drift` is `raise`.
            StateError: a part cannot be loaded.
            ConflictError: the head is not `only_at`, or other processes opened the session in each
                of the attempts.
        """
        for attempt in range(_MAX_ATTEMPTS):
            head = self._store.head(self._state.key)
            if self._only_at is not None and (head is None or head.id != self._only_at):
                raise ConflictError(
                    f"The session {short_repr(self._state.key)} has changed: its head is not "
                    f"{short_repr(self._only_at, 120)}; nothing was done."
                )
            try:
                if head is None:
                    self._begin(workspace)
                else:
                    self._resume(head, workspace)
                    telemetry.count("resumed", key=head.key, checkpoint=head.id)
                return
            except ConflictError:
                # Another process opened it first. The last one to open it becomes the owner, so try
                # again; with `only_at`, the next attempt finds the new head and refuses.
                if attempt == _MAX_ATTEMPTS - 1:
                    raise

    # -- new -------------------------------------------------------------------------------------

    def _begin(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        state = self._state
        directory = None if workspace is None else _path(workspace)
        if directory is not None and not directory.is_dir():
            what = "is not a directory" if directory.exists() else "does not exist"
            raise WorkspaceError(
                f"{short_repr(str(directory), 200)} {what}.",
                hint=Hint("Pass workspace= with an existing directory.", "existing_directory"),
            )
        self._open_files(directory, workspace)
        state.record = SessionRecord.new(state.key)
        state.record.bind(
            None if directory is None else str(directory), host_of(self._store.backend)
        )
        state.writer = CheckpointWriter(state.manager, state.record, None)
        draft = state.writer.draft(state.live_parts(), kind=Kind.OPEN)
        opened = state.writer.write(draft)
        state.ledger = Ledger(self._store, state.record.family)
        self._claim_epoch(opened)

    # -- resumed ---------------------------------------------------------------------------------

    def _resume(
        self, head: Checkpoint, workspace: str | os.PathLike[str] | Workspace | None
    ) -> None:
        state = self._state
        stored = read_session_record(self._store, head)
        stored_binding = None if stored is None else _binding(stored)
        record = record_for_key(head, stored or SessionRecord.new(state.key))
        record.token = head.token  # also for a key without a record, or with a copied one
        given = None if workspace is None else _path(workspace)
        tree = tree_in(self._store, head)
        self._check_directory_seal(record, given)
        self._check_external_parts(record, head)
        directory = choose_directory(
            given, record.workspace, rebind=self._rebind, has_files=tree is not None
        )
        self._open_files(directory, workspace)  # completes an interrupted restore
        self._is_empty = directory is not None and is_empty(directory)
        state.ledger = Ledger(self._store, record.family)
        state.ledger.refresh()
        unfinished = self._unfinished_rollback(record, directory)
        # Files that an interrupted rollback has yet to restore are not drift.
        drift = self._drift(tree) if unfinished is None else None
        if drift and self._on_drift == "raise":
            raise WorkspaceError(
                f"{directory} changed since the last checkpoint of "
                f"{short_repr(state.key)}. To continue, pass on_drift='keep' or 'restore'."
                f"\n{drift}"
            )
        recorded_path = None if directory is None or not state.keeps_directory else str(directory)
        is_here = record.is_bound
        if record.workspace != recorded_path or not is_here:
            record.bind(recorded_path, host_of(self._store.backend), head.token)
        record.in_flight, record.drift, record.keep_unseen = [], [], None
        state.record = record
        state.writer = CheckpointWriter(state.manager, record, head)
        state.root.has_model_calls = MODEL_CALLS in head.parts
        state.root.has_open_calls = OPEN_CALLS in head.parts
        self._load(head)  # before taking ownership: on failure the current owner continues
        self._check_loaded_later(head, is_elsewhere=not is_here)
        # The `open` checkpoint must record ledger and workspace, whatever happens after it.
        opened = self._append_open(head, has_new_binding=stored_binding != _binding(record))
        if record.token is not None:  # later checkpoints are this user's, not the archive's
            record.bind(recorded_path, host_of(self._store.backend))
        self._claim_epoch(opened)
        state.resumed = True
        state.root.counted_model_calls = len(state.root.model_calls)
        if head.token is not None:
            state.add_notice(
                "This session was imported from an archive or copied from another store. Its state "
                "and the recorded results of its external side effects come from there."
            )
        self._note_unseen_effects()
        self._load(head, external=True)
        if unfinished is not None:
            self._roll_forward(*unfinished)
            drift = self._drift(tree)
        self._restore_files(tree, drift)

    def _check_directory_seal(self, record: SessionRecord, given: Path | None) -> None:
        """Refuse a directory with files for a session without a valid seal of this user.

        The seal is an HMAC under the user's secret. A record without a seal was written without a
        secret: then passing the directory is enough, unless the session was imported.

        Raises:
            InvalidInputError: the directory was not passed, or it is not empty.
        """
        if record.is_bound:
            return
        key = short_repr(self._state.key)
        if given is None and record.workspace is not None:
            raise InvalidInputError(
                f"The session {key} records {short_repr(record.workspace, 200)} as its workspace, "
                "but the record is not signed with your secret on this host.",
                hint=Hint("Pass workspace= to choose the directory.", "directory"),
            )
        if given is None or self._rebind or not given.exists() or is_empty(given):
            return
        if record.is_imported or record.seal is not None:
            why = (
                IMPORTED
                if record.is_imported
                else "it was signed with another secret, or on another host"
            )
            raise InvalidInputError(
                f"The session {key} cannot use {short_repr(str(given), 200)}, which is not empty: "
                f"{why}.",
                hint=Hint(
                    "Pass an empty directory, or rebind=True if you trust the session.", "rebind"
                ),
            )

    def _check_external_parts(self, record: SessionRecord, head: Checkpoint) -> None:
        """Refuse external parts of an imported session: a handle may refer to an image to run.

        Raises:
            InvalidInputError: the session was imported and has an external part.
        """
        if not record.is_imported or self._rebind:
            return
        live = self._state.live_parts()
        for name, part in live.items():
            if _is_external(part) and name in head.parts:
                raise InvalidInputError(
                    f"The session {short_repr(self._state.key)} has a snapshot of the "
                    f"external part {short_repr(name)}, but {IMPORTED}. Pass rebind=True if you "
                    "trust the session."
                )

    def _unfinished_rollback(
        self, record: SessionRecord, directory: Path | None
    ) -> tuple[Checkpoint, Checkpoint] | None:
        """Return the safety checkpoint and the rollback whose restore of this directory stopped.

        The rollback itself may have been made elsewhere: this directory was opened after it.
        """
        if not _is_recorded_place(record, directory):
            return None
        with block_forks():
            from agent_checkpoint.session.rollback.rollback_target import unfinished_rollback

        found = unfinished_rollback(self._state)
        made_at = None if found is None else read_session_record(self._store, found[1])
        return found if made_at is None or _is_recorded_place(made_at, directory) else None

    def _roll_forward(self, safety: Checkpoint, moved: Checkpoint) -> None:
        """Complete an interrupted rollback. A failure is added as a notice."""
        with block_forks():
            from agent_checkpoint.session.rollback.rollback import Rollback

        rollback = Rollback(self._state, moved)
        try:
            rollback.roll_forward(safety, moved)
        except WorkspaceError as error:
            rollback.finish(moved)
            self._state.problems.append(f"An interrupted rollback could not be completed: {error}")

    def _append_open(self, head: Checkpoint, *, has_new_binding: bool) -> Checkpoint:
        """Append the `open` checkpoint, which fences off the previous owner.

        It repeats the parts of the head, and therefore its import token.
        """
        saving = self._state.writer
        if has_new_binding:
            draft = saving.draft({}, kind=Kind.OPEN)._replace(token=head.token)
            return saving.write(draft, parents=(head.id,))
        draft = draft_from(head, head.key, Kind.OPEN)._replace(label=None)
        return saving.write(draft, parents=(head.id,))

    def _claim_epoch(self, opened: Checkpoint) -> None:
        """Append the new epoch to the ledger: it fences off effects of the previous owner."""
        state, epoch = self._state, Epoch(self._state.key, opened.seq)
        state.own(state.ledger, epoch)
        state.ledger.append("epoch", session=epoch.session, epoch=epoch.number)
        state.ledger.check(epoch)

    def _note_unseen_effects(self) -> None:
        """Record the effects committed after the checkpoint: its state does not contain them."""
        state, record = self._state, self._state.record
        effects = state.ledger.state.effects
        later = [effect.id for effect in state.effects.since(record.ledger)] if effects else []
        committed = [
            name
            for name in (*record.under_way, *later)
            if name in effects
            and effects[name].status == COMMITTED  # an unknown outcome gets a notice anyway
        ]
        record.standing = list(dict.fromkeys([*record.standing, *committed]))
        record.under_way = []

    def _load(self, head: Checkpoint, *, external: bool = False) -> None:
        """Load the objects of this process, or the external parts, which have one owner."""
        live = self._state.live_parts()
        live.pop(FILES, None)
        targets = {
            name: part
            for name, part in live.items()
            if name in head.parts and _is_external(part) == external
        }
        results = restore_parts(head.parts, targets, reader=self._store.reader(head))
        for name, result in results.items():
            self._state.note_mismatch(name, result)
        self._state.new_parts = [name for name in live if name not in head.parts]

    def _check_loaded_later(self, head: Checkpoint, *, is_elsewhere: bool) -> None:
        """Verify the pickles that are loaded after taking ownership.

        They may be signed with the secret of another host: then this one cannot continue. Those of
        sub-agents are verified on another host than before only, because this reads their states.

        Raises:
            StateError: a part cannot be loaded.
        """
        for name, part in self._state.live_parts().items():
            tag = head.parts.get(name)
            if _is_external(part) and isinstance(tag, dict) and OBJECT in tag:
                part.handle_in(ObjectRef(str(tag[OBJECT]), self._store.backend))
        theirs = {name: tree for name, tree in head.parts.items() if name.startswith(SUBAGENTS)}
        if theirs and is_elsewhere:
            reader = self._store.reader(head)
            reader.fetch(theirs.values())
            with block_forks():
                from agent_checkpoint.core.codec.pickles import check_pickles

            for name, tree in theirs.items():
                check_pickles(resolve_tree(tree, reader), name)

    # -- files -----------------------------------------------------------------------------------

    def _open_files(self, directory: Path | None, given: Any) -> None:
        state = self._state
        if directory is None:
            state.files = None
            return
        if state.files is not None and state.files.workspace.path == directory:
            return
        try:
            workspace = self._workspace(directory, given)
        except RestoreIncompleteError as error:  # the rest was restored: the session must open
            state.problems.append(f"An interrupted rollback could not be completed: {error}")
            workspace = self._workspace(directory, given)
        state.files = WorkspacePart(workspace)

    def _workspace(self, directory: Path, given: Any) -> Workspace:
        if not isinstance(given, Workspace):
            return Workspace(directory, self._store)
        if given.given_store is None or given.given_store.backend is self._store.backend:
            return given
        # Its files belong in the store of the checkpoints.
        return Workspace(directory, self._store, force=True, **given.options)

    def _drift(self, tree: Tree | None) -> Any:
        files = self._state.files
        if tree is None or files is None or self._is_empty:
            return None
        drift = files.workspace.diff(tree)
        return drift or None

    def _restore_files(self, tree: Tree | None, drift: Any) -> None:
        state = self._state
        if tree is None or state.files is None:
            return
        if self._is_empty:
            if state.files.workspace.diff(tree):
                state.files.workspace.restore(tree)
        elif drift and self._on_drift == "restore":
            state.drift = drift
            state.files.workspace.restore(tree)
        elif drift:
            state.drift, state.has_kept_drift = drift, True
            state.record.drift = [*drift.added, *drift.removed, *drift.changed][:_MAX_NAMED]
            state.save(kind=Kind.DRIFT, label="files that others have changed")
            state.record.drift = []


def _is_external(part: Any) -> bool:
    with block_forks():
        from agent_checkpoint.core.external_snapshot import External  # slow to load

    return isinstance(part, External)


def _binding(record: SessionRecord) -> tuple[str, str | None, str | None]:
    """Return the fields that the `open` checkpoint must record."""
    return record.key, record.workspace, record.seal


def _is_recorded_place(record: SessionRecord, directory: Path | None) -> bool:
    """Tell whether the session was last opened in this directory, on this host.

    Only there may a rollback be unfinished: any other directory has its own journal, if any.
    """
    is_here = record.seal is None or record.is_bound
    return directory is None or (is_here and record.workspace == str(directory))


def _path(workspace: str | os.PathLike[str] | Workspace) -> Path:
    if isinstance(workspace, Workspace):
        return workspace.path
    return Path(os.path.realpath(workspace))
