"""A coding agent's session, set back: its files and its conversation together. Owns the order.

look     what would be done to the files, and to the transcript
write    the transcript of then, beside the one of now
hold     one safety checkpoint of the files and of the whole transcript, in the session's key, that
         says what is about to be done, and a mark outside of the store that it has begun: from
         here on it is done, by whoever comes next if need be
files    restored, with that checkpoint as the evidence
words    the transcript replaced by that at once; the one before stays beside it
turn     a checkpoint with the content of the target: the head of a key is always its present
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Any

from agent_checkpoint.agents.agent_events import Event
from agent_checkpoint.agents.rewind import rewind_journal
from agent_checkpoint.agents.session_lock import alone
from agent_checkpoint.agents.session_note import PART, TRANSCRIPT, Note, read_note
from agent_checkpoint.agents.transcript_file import (
    Replacement,
    Transcript,
    own_place,
    remove_stray,
    text_of,
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


class Rewinding:
    """One way back of one session."""

    def __init__(
        self,
        store: Store,
        target: Checkpoint,
        note: Note,
        *,
        files: bool = True,
        conversation: bool = True,
        exclude: tuple[str, ...] = (),
    ) -> None:
        """Open the directory of the session.

        Args:
            store: where the checkpoint is.
            target: where to go back to.
            note: what it says of the session.
            files: whether the files go back.
            conversation: whether the transcript does.
            exclude: patterns of files that stay as they are.

        Raises:
            CheckpointError: the checkpoint, or the directory, cannot be used.
        """
        self._store = store
        self._target = target
        self._note = note
        self._exclude = exclude
        self._decision = {
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
        self.directory = _unmoved(note.root)
        """Where the files are."""
        self._workspace = Workspace(note.root, store, watch=False, **rules)
        self._workspace.saved_in = (target.key,)
        self._lines = self._lines_in(target) if conversation else None
        self.missing = note.trouble if conversation else None
        """Why the conversation of then was not saved, if it was not."""
        self._present = Transcript(note.transcript["path"]) if note.transcript else None
        self.plan: Plan | None = None
        """What is done to the files."""
        self.words: str | None = None
        """What is done to the transcript."""
        self.kept: str | None = None
        """Where the transcript before is."""
        self.safety_id: str | None = None

    def __enter__(self) -> Rewinding:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._workspace.close()

    def preview(self) -> None:
        """Find out what would be done. Raises as `run` does."""
        self.plan = self._planned()
        self.words = self._words()

    def _planned(self) -> Plan | None:
        if self._tree is None:
            return None
        return self._workspace.restore(self._tree, exclude=self._exclude, dry_run=True)

    def run(self, only_if: Plan | None = None) -> None:
        """Go back.

        Args:
            only_if: what somebody was shown to be done to files, and has agreed to.

        Raises:
            PlanChangedError: it is something else by now; nothing was done.
            RestoreIncompleteError: some files could not be restored; the conversation is as it was.
            ConflictError: another process works on the session.
            CheckpointError: nothing was done.
        """
        with alone(self._target.key):
            text = self._replacement()  # first: files must not go back without the conversation
            try:
                safety = self._save_present(SAFETY, "before the rewind to", self._decision)
                self.safety_id = safety.id
                if only_if is not None:
                    present = self._planned()
                    if present is None or present.digest != only_if.digest:
                        raise PlanChangedError
                try:
                    rewind_journal.begin(self._store, safety)
                except OSError as error:
                    raise StorageError(f"Nothing was done: {error}.") from error
                self.follow(safety, text)
            finally:
                if text is not None:
                    text.discard()
            prune_safety_checkpoints(self._store, self._target.key)  # the target may be one of them

    def follow(self, safety: Checkpoint, text: Replacement | None = None) -> None:
        """Do what a safety checkpoint says; also again, after a crash. Raises as `run` does."""
        try:
            self._restore_files(safety)
            if not self._has_words_of_then(safety):
                text = text or self._replacement()
                self.kept = None if text is None else text.put()
        except Exception:
            with suppress(CheckpointError):  # what is told now is not tried again later
                self._save_present("restore", "not finished: the rewind to")
            rewind_journal.end(self._target.key)
            raise
        self._turn()
        rewind_journal.end(self._target.key)

    def _turn(self) -> None:
        """Save what there is now: it is the head of the session from here on."""
        if not self._is_whole:
            self._save_present("restore", "after a part of the rewind to")
            return
        parts: dict[str, Any] = {
            name: ReusedPart(tree) for name, tree in self._target.parts.items()
        }
        if self._note.rewind is not None:  # it is a safety checkpoint itself
            parts[PART] = self._note._replace(rewind=None).sealed().dump()
        draft = Draft(self._target.key, parts, kind="rollback", label=self._target.label)
        self._store.write(draft, parents=(self._target.id,))

    def _replacement(self) -> Replacement | None:
        if self._lines is None or self._present is None:
            return None
        ended = bool(self._note.transcript and self._note.transcript["ended"])
        return Replacement(self._present.path, text_of(self._lines, is_ended=ended))

    def _has_words_of_then(self, safety: Checkpoint) -> bool:
        """Tell whether the transcript need not be replaced, or was before a crash."""
        then = self._lines
        if then is None or self._present is None:
            return True
        if not self._present.read(again=True):
            return False
        now, held = list(self._present.lines), self._lines_in(safety) or []
        if len(held) > len(then) and now[: len(held)] == held:
            return False
        return now[: len(then)] == then  # the agent may have gone on from there

    def _restore_files(self, safety: Checkpoint) -> None:
        present = tree_in(self._store, safety)
        if self._tree is None or present is None:
            return
        if self._exclude:
            self.plan = self._workspace.restore(self._tree, exclude=self._exclude)
        else:
            self.plan = self._workspace.restore_held(self._tree, SafetySnapshot(present, safety.id))

    def _save_present(
        self, kind: str, words: str, decision: dict[str, Any] | None = None
    ) -> Checkpoint:
        captured: Any = CapturedState(_AllFiles(self._workspace), self._store.writer)
        parts: dict[str, Any] = {FILES: captured}
        noted, trouble = None, None
        try:
            if self._present is not None and self._present.read(again=True):
                parts[TRANSCRIPT] = encode(self._present.lines, TRANSCRIPT)
                noted = self._present.note()
        except StorageError as error:
            if decision is not None and self._lines is not None:
                raise  # what is not saved is not replaced
            trouble = str(error)
        event = Event(self._note.agent, "rewind", self._note.session, self._note.cwd, None)
        note = Note.of(self._store, event, self._note.root, noted, trouble=trouble, rewind=decision)
        parts[PART] = note.dump()
        label = f"{words} @{self._target.seq}"
        return self._store.write(Draft(self._target.key, parts, kind=kind, label=label))

    def _words(self) -> str | None:
        if self._lines is None or self._present is None:
            return None
        path, then = own_place(self._present.path), len(self._lines)
        if not self._present.read(again=True):
            return f"write {path} again, which is gone: {format_count(then, 'line')}"
        now = list(self._present.lines)
        if now == self._lines:
            return None
        if now[:then] == self._lines:
            return f"cut {path} from {format_count(len(now), 'line')} to {then:,}"
        if self._lines[: len(now)] == now:
            return f"put {format_count(then - len(now), 'line')} back at the end of {path}"
        was = format_count(then, "line")
        return f"replace {path}, which has been written anew since, by what it was: {was}"

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


def make_good(store: Store, key: str) -> str | None:
    """Carry out what was interrupted in a session, if anything was; return it in words.

    Raises:
        CheckpointError: it cannot be finished, nor can that be noted.
    """
    with alone(key):
        try:
            head = store.head(key)
            note = None if head is None else read_note(store, head)
        except UNUSABLE:
            return None  # `verify` tells about it
        if head is None or note is None:
            return None
        if note.is_ours and note.transcript is not None:
            remove_stray(note.transcript["path"])
        return finish(store, head, note)


def finish(store: Store, safety: Checkpoint, note: Note) -> str | None:
    """Carry out a rewind that was interrupted; return what was done, in words.

    The session must be this process's alone.

    Args:
        store: where the session is.
        safety: the head of the session.
        note: what it says.

    Raises:
        CheckpointError: it cannot be finished, nor can that be noted.
    """
    said = note.rewind
    if said is None or safety.kind != SAFETY or not note.is_ours:
        return None  # nobody's word but the user's own changes files
    if not rewind_journal.is_under_way(store, safety):
        return None  # it ended, and what came after is deleted; or it is the story of another store
    try:
        target = find(store, said["target"])
        then = read_note(store, target)
        if then is None or not then.is_ours or target.key != safety.key:
            return None
        chosen = {name: said[name] for name in ("files", "conversation")}
        with Rewinding(store, target, then, **chosen, exclude=tuple(said["exclude"])) as work:
            work.follow(safety)
    except CheckpointError as error:
        return f"A rewind was interrupted, and cannot be finished: {error}"
    return (
        f"A rewind to @{target.seq} was interrupted, and is finished now: end the agent, and "
        "resume the session from there."
    )


def _unmoved(root: str) -> str:
    """Return a directory if it is the one that was noted. Raises WorkspaceError."""
    real = os.path.realpath(root)
    if real != root:
        raise WorkspaceError(
            f"{short_repr(root, 200)} leads to {short_repr(real, 200)} now, which is not the "
            "directory that was saved. `restore --into DIR` puts its files where you say."
        )
    return root


class _AllFiles:
    """Captures a workspace with a look at every file."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def checkpoint_to(self, writer: Writer) -> str:
        return self._workspace.checkpoint_to(writer, full=True)
