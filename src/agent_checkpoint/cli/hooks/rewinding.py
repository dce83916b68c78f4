"""A coding agent's session, set back: its files and its conversation together. Owns the order.

look     what would be done to the files, and to the transcript
write    the transcript of then, beside the one of now
hold     one safety checkpoint of the files and of the whole transcript, in the session's key
files    restored, with that checkpoint as the evidence
words    the transcript replaced by that at once; the one before stays beside it
turn     a checkpoint with the content of the target: the head of a key is always its present
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from agent_checkpoint.cli.hooks.events import Event
from agent_checkpoint.cli.hooks.note import PART, TRANSCRIPT, Note
from agent_checkpoint.cli.hooks.transcripts import Replacement, Transcript, text_of
from agent_checkpoint.core.codec import decode_part
from agent_checkpoint.core.encode import encode
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import Checkpoint, Draft, again, show
from agent_checkpoint.store.references import Captured
from agent_checkpoint.store.safety import SAFETY, forget_old_safety
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.writing import Writer
from agent_checkpoint.wording import count
from agent_checkpoint.workspace.naming import PART as FILES
from agent_checkpoint.workspace.naming import tree_in
from agent_checkpoint.workspace.plan import Plan
from agent_checkpoint.workspace.restoring import Held
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
        self._is_whole = files and conversation and not exclude
        self._tree = tree_in(store, target) if files else None
        rules: dict[str, Any] = {}
        if self._tree is not None:
            rules = {"ignore": self._tree.ignore, "gitignore": self._tree.gitignore}
        self._workspace = Workspace(note.root, store, watch=False, force=True, **rules)
        self._lines = self._saved_lines() if conversation else None
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
        if self._tree is not None:
            self.plan = self._workspace.restore(self._tree, exclude=self._exclude, dry_run=True)
        self.words = self._words()

    def run(self) -> None:
        """Go back.

        Raises:
            RestoreIncompleteError: some files could not be restored; the conversation is as it was.
            CheckpointError: nothing was done.
        """
        text = self._replacement()  # first: files must not go back without the conversation
        try:
            safety = self._hold()
            self.safety_id = safety.id
            self._restore_files(safety)
            self.kept = None if text is None else text.put()
        finally:
            if text is not None:
                text.discard()
        if self._is_whole:
            draft = again(self._target, self._target.key, "rollback")
            self._store.write(draft, parents=(self._target.id,))

    def _replacement(self) -> Replacement | None:
        if self._lines is None or self._present is None or self.words is None:
            return None
        ended = bool(self._note.transcript and self._note.transcript["ended"])
        return Replacement(self._present.path, text_of(self._lines, is_ended=ended))

    def _restore_files(self, safety: Checkpoint) -> None:
        present = tree_in(self._store, safety)
        if self._tree is None or present is None:
            return
        if self._exclude:
            self.plan = self._workspace.restore(self._tree, exclude=self._exclude)
        else:
            self.plan = self._workspace.restore_held(self._tree, Held(present, safety.id))

    def _hold(self) -> Checkpoint:
        captured: Any = Captured(_AllFiles(self._workspace), self._store.writer)
        parts: dict[str, Any] = {FILES: captured}
        noted = None
        if self._present is not None and self._present.read(again=True):
            parts[TRANSCRIPT] = encode(self._present.lines, TRANSCRIPT)
            noted = self._present.note()
        event = Event(self._note.agent, "rewind", self._note.session, self._note.cwd, None)
        parts[PART] = Note.of(event, self._note.root, noted).dump()
        label = f"before the rewind to @{self._target.seq}"
        saved = self._store.write(Draft(self._target.key, parts, kind=SAFETY, label=label))
        forget_old_safety(self._store, self._target.key)
        return saved

    def _words(self) -> str | None:
        if self._lines is None or self._present is None:
            return None
        path, then = self._present.path, len(self._lines)
        if not self._present.read(again=True):
            return f"write {path} again, which is gone: {count(then, 'line')}"
        now = list(self._present.lines)
        if now == self._lines:
            return None
        if now[:then] == self._lines:
            return f"cut {path} from {count(len(now), 'line')} to {then:,}"
        if self._lines[: len(now)] == now:
            return f"put {count(then - len(now), 'line')} back at the end of {path}"
        was = count(then, "line")
        return f"replace {path}, which has been written anew since, by what it was: {was}"

    def _saved_lines(self) -> list[str] | None:
        tree = self._target.parts.get(TRANSCRIPT)
        if tree is None:
            return None
        reader = self._store.reader(self._target)
        reader.fetch([tree])
        found = decode_part(tree, TRANSCRIPT, reader=reader).value
        if not isinstance(found, Log) or not all(isinstance(line, str) for line in found):
            raise IntegrityError(f"{show(self._target.id, 120)} has a damaged transcript.")
        return list(found)


class _AllFiles:
    """Captures a workspace with a look at every file."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def checkpoint_to(self, writer: Writer) -> str:
        return self._workspace.checkpoint_to(writer, full=True)
