"""Rewind a session of a coding agent: files and transcript together. Owns the order of steps.

plan        changes of the files and of the transcript
stage       write the old transcript next to the current one
save        a safety checkpoint of the files and the transcript, with the intended rewind in its
            note, then the journal entry outside of the store: from here on the rewind is finished,
            by the next process after a crash
files       restore them; the safety checkpoint has the present ones
transcript  replace it atomically; the previous one is kept next to it
head        save a checkpoint with the contents of the target: the head always matches the present
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Any

from agent_checkpoint.agents.agent_events import Event
from agent_checkpoint.agents.rewind import rewind_journal
from agent_checkpoint.agents.session_lock import hold_session_lock
from agent_checkpoint.agents.session_note import PART, TRANSCRIPT, SessionNote, read_note
from agent_checkpoint.agents.transcript_file import (
    Replacement,
    Transcript,
    join_lines,
    remove_stale_replacement,
    replaceable_path,
)
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.log import Log
from agent_checkpoint.core.state_codec import decode_part
from agent_checkpoint.errors import (
    UNUSABLE,
    CheckpointError,
    IntegrityError,
    StorageError,
    WorkspaceError,
)
from agent_checkpoint.formatting import format_count
from agent_checkpoint.records import Checkpoint, Draft, short_repr
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.maintenance.safety_checkpoints import SAFETY, prune_safety_checkpoints
from agent_checkpoint.store.objects.references import CapturedState, ReusedPart
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.operation import SafetySnapshot
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in
from agent_checkpoint.workspace.workspace import Workspace


class Rewind:
    """One rewind of one session."""

    def __init__(
        self,
        store: Store,
        target: Checkpoint,
        note: SessionNote,
        *,
        files: bool = True,
        conversation: bool = True,
        exclude: tuple[str, ...] = (),
    ) -> None:
        """Open the directory of the session.

        Args:
            store: the store.
            target: the checkpoint to rewind to.
            note: the note of the target.
            files: whether to rewind the files.
            conversation: whether to rewind the transcript.
            exclude: patterns of files to keep.

        Raises:
            CheckpointError: the checkpoint or the directory cannot be used.
        """
        self._store = store
        self._target = target
        self._note = note
        self._exclude = exclude
        self._intent = {
            "target": target.id,
            "files": files,
            "conversation": conversation,
            "exclude": list(exclude),
        }
        self._is_whole = files and conversation and not exclude
        self._tree = tree_in(store, target) if files else None
        rules: dict[str, Any] = {}
        if self._tree is not None:
            rules = {"ignore": self._tree.ignore, "gitignore": self._tree.gitignore}
        self.directory = _check_not_moved(note.root)
        """The directory of the session."""
        self._workspace = Workspace(note.root, store, watch=False, **rules)
        self._workspace.saved_in = (target.key,)
        self._lines = self._lines_in(target) if conversation else None
        self.transcript_missing = note.trouble if conversation else None
        """Why the target has no conversation, if it has none."""
        self._present = Transcript(note.transcript["path"]) if note.transcript else None
        self.plan: Plan | None = None
        """The changes of the files."""
        self.transcript_change: str | None = None
        """The change of the transcript, as text."""
        self.previous_transcript: str | None = None
        """The path of the previous transcript."""
        self.safety_id: str | None = None

    def __enter__(self) -> Rewind:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._workspace.close()

    def preview(self) -> None:
        """Compute the plan. Raises as `run` does."""
        self.plan = self._plan()
        self.transcript_change = self._describe_transcript_change()

    def _plan(self) -> Plan | None:
        if self._tree is None:
            return None
        return self._workspace.restore(self._tree, exclude=self._exclude, dry_run=True)

    def run(self, only_if: Plan | None = None) -> None:
        """Rewind.

        Args:
            only_if: the plan that the user confirmed; any plan if None.

        Raises:
            PlanChangedError: the plan has changed since; nothing was changed.
            RestoreIncompleteError: some files could not be restored; the transcript is unchanged.
            ConflictError: another process holds the session lock.
            CheckpointError: nothing was changed.
        """
        with hold_session_lock(self._target.key):
            text = self._replacement()  # first: files are not rewound without the conversation
            try:
                safety = self._save_checkpoint(SAFETY, "before the rewind to", self._intent)
                self.safety_id = safety.id
                if only_if is not None:
                    present = self._plan()
                    if present is None or present.digest != only_if.digest:
                        raise PlanChangedError
                try:
                    rewind_journal.write_entry(self._store, safety)
                except OSError as error:
                    raise StorageError(
                        f"Cannot write the rewind journal ({error}). Nothing was changed."
                    ) from error
                self.apply(safety, text)
            finally:
                if text is not None:
                    text.discard()
            prune_safety_checkpoints(
                self._store, self._target.key
            )  # last: the target may be among them

    def apply(self, safety: Checkpoint, text: Replacement | None = None) -> None:
        """Apply the rewind of a safety checkpoint; repeatable after a crash. Raises as `run`."""
        try:
            self._restore_files(safety)
            if not self._has_old_transcript(safety):
                text = text or self._replacement()
                self.previous_transcript = None if text is None else text.put()
        except Exception:
            with suppress(CheckpointError):  # the error is reported now, and not retried later
                self._save_checkpoint("restore", "not finished: the rewind to")
            rewind_journal.remove_entry(self._target.key)
            raise
        self._save_head()
        rewind_journal.remove_entry(self._target.key)

    def _save_head(self) -> None:
        """Save the present as the new head of the session."""
        if not self._is_whole:
            self._save_checkpoint("restore", "after a part of the rewind to")
            return
        parts: dict[str, Any] = {
            name: ReusedPart(tree) for name, tree in self._target.parts.items()
        }
        if self._note.rewind is not None:  # the target is itself a safety checkpoint
            parts[PART] = self._note._replace(rewind=None).sealed().dump()
        draft = Draft(self._target.key, parts, kind="rollback", label=self._target.label)
        self._store.write(draft, parents=(self._target.id,))

    def _replacement(self) -> Replacement | None:
        if self._lines is None or self._present is None:
            return None
        ended = bool(self._note.transcript and self._note.transcript["ended"])
        return Replacement(self._present.path, join_lines(self._lines, is_ended=ended))

    def _has_old_transcript(self, safety: Checkpoint) -> bool:
        """Tell whether the transcript already has the old contents, or was replaced before."""
        then = self._lines
        if then is None or self._present is None:
            return True
        if not self._present.read(full=True):
            return False
        now, held = list(self._present.lines), self._lines_in(safety) or []
        if len(held) > len(then) and now[: len(held)] == held:
            return False
        return now[: len(then)] == then  # the agent may have appended since

    def _restore_files(self, safety: Checkpoint) -> None:
        present = tree_in(self._store, safety)
        if self._tree is None or present is None:
            return
        if self._exclude:
            self.plan = self._workspace.restore(self._tree, exclude=self._exclude)
        else:
            self.plan = self._workspace.restore_held(self._tree, SafetySnapshot(present, safety.id))

    def _save_checkpoint(
        self, kind: str, words: str, intent: dict[str, Any] | None = None
    ) -> Checkpoint:
        captured: Any = CapturedState(_AllFiles(self._workspace), self._store.writer)
        parts: dict[str, Any] = {FILES: captured}
        noted, trouble = None, None
        try:
            if self._present is not None and self._present.read(full=True):
                parts[TRANSCRIPT] = encode(self._present.lines, TRANSCRIPT)
                noted = self._present.note()
        except StorageError as error:
            if intent is not None and self._lines is not None:
                raise  # a transcript that is not saved must not be replaced
            trouble = str(error)
        event = Event(self._note.agent, "rewind", self._note.session, self._note.cwd, None)
        note = SessionNote.from_event(
            self._store, event, self._note.root, noted, trouble=trouble, rewind=intent
        )
        parts[PART] = note.dump()
        label = f"{words} @{self._target.seq}"
        return self._store.write(Draft(self._target.key, parts, kind=kind, label=label))

    def _describe_transcript_change(self) -> str | None:
        if self._lines is None or self._present is None:
            return None
        path, then = replaceable_path(self._present.path), len(self._lines)
        if not self._present.read(full=True):
            return f"create {path}, which is missing: {format_count(then, 'line')}"
        now = list(self._present.lines)
        if now == self._lines:
            return None
        if now[:then] == self._lines:
            return f"truncate {path} from {format_count(len(now), 'line')} to {then:,}"
        if self._lines[: len(now)] == now:
            return f"append {format_count(then - len(now), 'line')} to {path}"
        was = format_count(then, "line")
        return f"replace {path}, which was rewritten since, with the saved version: {was}"

    def _lines_in(self, checkpoint: Checkpoint) -> list[str] | None:
        tree = checkpoint.parts.get(TRANSCRIPT)
        if tree is None:
            return None
        reader = self._store.reader(checkpoint)
        reader.fetch([tree])
        found = decode_part(tree, TRANSCRIPT, reader=reader).value
        if not isinstance(found, Log) or not all(isinstance(line, str) for line in found):
            raise IntegrityError(f"{short_repr(checkpoint.id, 120)} has a damaged transcript.")
        return list(found)


def recover_rewind(store: Store, key: str) -> str | None:
    """Finish an interrupted rewind of a session; return a message, or None if there was none.

    Raises:
        CheckpointError: it cannot be finished, nor can the failure be saved.
    """
    with hold_session_lock(key):
        try:
            head = store.head(key)
            note = None if head is None else read_note(store, head)
        except UNUSABLE:
            return None  # `verify` reports it
        if head is None or note is None:
            return None
        if note.is_ours and note.transcript is not None:
            remove_stale_replacement(note.transcript["path"])
        return finish_rewind(store, head, note)


def finish_rewind(store: Store, safety: Checkpoint, note: SessionNote) -> str | None:
    """Finish an interrupted rewind; return a message, or None if there was none.

    The caller holds the session lock.

    Args:
        store: the store.
        safety: the head of the session.
        note: the note of the head.

    Raises:
        CheckpointError: it cannot be finished, nor can the failure be saved.
    """
    intent = note.rewind
    if intent is None or safety.kind != SAFETY or not note.is_ours:
        return None  # only a note sealed by this user may change files
    if not rewind_journal.has_entry(store, safety):
        return None  # finished, with later checkpoints deleted; or a rewind in another store
    try:
        target = find(store, intent["target"])
        then = read_note(store, target)
        if then is None or not then.is_ours or target.key != safety.key:
            return None
        chosen = {name: intent[name] for name in ("files", "conversation")}
        with Rewind(store, target, then, **chosen, exclude=tuple(intent["exclude"])) as work:
            work.apply(safety)
    except CheckpointError as error:
        return f"Cannot finish an interrupted rewind: {error}"
    return (
        f"Finished an interrupted rewind to @{target.seq}. Exit the agent, then resume the session."
    )


def _check_not_moved(root: str) -> str:
    """Return a directory if its path leads to no other one now. Raises WorkspaceError."""
    real = os.path.realpath(root)
    if real != root:
        raise WorkspaceError(
            f"{short_repr(root, 200)} is now a link to {short_repr(real, 200)}, not the saved "
            "directory. Use "
            "`restore --into DIR` to write the files to another directory."
        )
    return root


class _AllFiles:
    """Captures a workspace with a full stat pass."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def checkpoint_to(self, writer: Writer) -> str:
        return self._workspace.checkpoint_to(writer, full=True)
