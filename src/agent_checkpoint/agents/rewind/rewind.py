"""Rewinds a session of a coding agent, files and transcript. Owns the order of steps.

plan        changes of the files and of the transcript
stage       write the old transcript next to the current one
safety      a safety checkpoint of the files and the transcript
decide      once the files are staged, too: write the journal of the transcript, then append a
            checkpoint with the contents of the target
files       restore them
transcript  replace it atomically; the previous one is kept next to it

After a crash, the next event of the session or the next `rewind` completes a decided rewind.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import (
    FINDS_BY_PATH,
    NEEDS_MESSAGES,
    PROGRAMS,
    TURN,
    WITHOUT_TRANSCRIPT,
    Event,
    is_prompt,
    moment_of,
)
from agent_checkpoint.agents.directory_keys import keys_of_directory
from agent_checkpoint.agents.hook_redaction import redacted_lines
from agent_checkpoint.agents.moved_directories import moved_hint, present_path
from agent_checkpoint.agents.rewind import rewind_journal
from agent_checkpoint.agents.rewind.line_of_work import LineOfWork, lines_in
from agent_checkpoint.agents.rewind.own_changes import (
    calls_of_others,
    changed_paths,
    own_changes,
)
from agent_checkpoint.agents.rewind.transcript_change import TranscriptChange
from agent_checkpoint.agents.rewind.transcript_cut import cut_at
from agent_checkpoint.agents.session_lock import hold_session_lock
from agent_checkpoint.agents.session_note import PART, REWIND, TRANSCRIPT, SessionNote, read_note
from agent_checkpoint.agents.transcript_file import Transcript, remove_stale_replacement
from agent_checkpoint.agents.transcript_lines import read_conversation
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import (
    UNUSABLE,
    CheckpointError,
    InvalidInputError,
    StorageError,
    WorkspaceError,
)
from agent_checkpoint.formatting import format_count
from agent_checkpoint.records import Checkpoint, CheckpointKind, Draft, Kind, short_repr
from agent_checkpoint.session.steps.ownership import former_directories
from agent_checkpoint.store.directory_identity import identity_of
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.maintenance.safety_checkpoints import prune_safety_checkpoints
from agent_checkpoint.store.objects.references import CapturedState, ReusedPart
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.restore.journal import Decision, Journal
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError
from agent_checkpoint.workspace.restore.transition import SafetySnapshot
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_edit import EditedTree
from agent_checkpoint.workspace.workspace import Workspace, WorkspaceFiles

_MOST_NAMED = 5


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
        mine: bool = False,
    ) -> None:
        """Open the directory of the session.

        Args:
            store: the store.
            target: the checkpoint to rewind to.
            note: the note of the target.
            files: whether to rewind the files.
            conversation: whether to rewind the transcript.
            exclude: patterns of files to keep.
            mine: rewind only files that no one but this session changed, and nothing in `.git`.

        Raises:
            CheckpointError: the checkpoint or the directory cannot be used.
        """
        self._store = store
        self._target = target
        self._note = note
        self._exclude = (*exclude, ".git") if mine else exclude
        self._mine = mine
        self._is_whole = files and conversation and not exclude and not mine
        self._tree = tree_in(store, target) if files else None
        rules: dict[str, Any] = {}
        if self._tree is not None:
            rules = {"ignore": self._tree.ignore, "gitignore": self._tree.gitignore}
        self.directory = _check_not_moved(note.root)
        """The directory of the session."""
        self._workspace = Workspace(note.root, store, watch=False, **rules)
        self._workspace.saved_in = tuple(
            {target.key, *keys_of_directory(store, Path(self.directory))}
        )
        self.transcript_missing = _why_missing(note) if conversation else None
        """The reason why the target has no conversation; None if it has one."""
        self.warning: str | None = None
        """What the conversation will lack, and what the resumed model hears."""
        self._line = LineOfWork(store, target)
        self._live = self._line.transcript_path() or _path_in(note)
        self._change = self._transcript_change() if conversation else None
        self.not_mine: dict[str, str] = {}
        """With `mine`, files that are kept although they differ, each with the reason."""
        self.plan: Plan | None = None
        """The changes of the files."""
        self.transcript_change: str | None = None
        """A description of the change of the transcript."""
        self.previous_transcript: str | None = None
        """The path of the previous transcript."""
        self.safety_id: str | None = None

    def __enter__(self) -> Rewind:
        return self

    def __exit__(self, *error: object) -> None:
        self._workspace.close()

    def preview(self) -> None:
        """Compute the restore plan without changing anything. Raises the same errors as `run`."""
        if self._tree is not None:
            restore = partial(self._workspace.restore, exclude=self._exclude, dry_run=True)
            if self._mine:
                since, all_of_it = restore(self._last_tree(), exclude=()), restore(self._tree)
                paths = self._own_paths(_paths_in(since), _paths_in(all_of_it))
                self.plan = restore(self._tree, paths=paths)
            else:
                self.plan = restore(self._tree)
        self.transcript_change = None if self._change is None else self._change.describe()

    def run(self, only_if: Plan | None = None, *, as_previewed: bool = False) -> None:
        """Rewind the session.

        Args:
            only_if: the plan that the user confirmed; any plan if None.
            as_previewed: whether the user confirmed the change of the transcript, too, as the last
                `preview` described it.

        Raises:
            PlanChangedError: the plan or the transcript has changed since; nothing was changed.
            RestoreIncompleteError: some files could not be restored; the transcript is unchanged.
            ConflictError: another process holds the session lock.
            CheckpointError: nothing was changed.
        """
        with hold_session_lock(self._target.key):
            # First, so that files are not rewound without the conversation.
            if self._change is not None:
                if as_previewed and self._change.describe() != self.transcript_change:
                    raise PlanChangedError("The conversation has")
                self._change.stage()
            try:
                safety = self._save_checkpoint(Kind.SAFETY, "before the rewind to")
                self.safety_id = safety.id
                self.apply(safety, only_if)
            finally:
                if self._change is not None:
                    self._change.discard()
            # Last: the target may be among them.
            prune_safety_checkpoints(self._store, self._target.key)

    def apply(self, safety: Checkpoint, only_if: Plan | None = None) -> None:
        """Apply the rewind, given its safety checkpoint. Raises the same errors as `run`."""
        parents = (self._target.id,) if self._is_whole else (safety.id,)
        decided: list[Checkpoint] = []

        def append(plan: Plan | None) -> Checkpoint:
            self._write_journal(safety, parents)
            decided.append(self._store.write(self._head_draft(safety, plan), parents=parents))
            return decided[0]

        decision, current = Decision(parents, append), tree_in(self._store, safety)
        try:
            if self._tree is None or current is None:
                append(None)
            else:
                last_regular = self._workspace.transition.last_regular(self._store)
                paths = None
                if self._mine:
                    since = changed_paths(self._last_tree(), current)
                    paths = self._own_paths(since, changed_paths(self._tree, current))
                self.plan = self._workspace.restore_held(
                    self._tree,
                    SafetySnapshot(current, safety.id, last_regular),
                    paths=None if paths is None else map(os.fsencode, paths),
                    exclude=self._exclude,
                    only_if=only_if,
                    decision=decision,
                )
            self._put_transcript(safety)
        except Exception:
            if decided:  # the error is reported now, and not retried later
                with suppress(CheckpointError):
                    self._save_checkpoint(Kind.RESTORE, "not finished: the rewind to")
            rewind_journal.remove_entry(self._target.key)
            raise

    @property
    def changes_files(self) -> bool:
        """Whether files are to be rewound."""
        return self._tree is not None

    @property
    def changes_conversation(self) -> bool:
        """Whether the conversation is to be rewound."""
        return self._change is not None

    @property
    def conversation(self) -> list[str]:
        """The lines of the conversation after the rewind; none if it is not rewound."""
        return [] if self._change is None else self._change.lines

    @property
    def starts_anew(self) -> bool:
        """Whether the session has no conversation at the target."""
        return self._change is not None and not self._change.lines

    def _put_transcript(self, safety: Checkpoint) -> None:
        if self._change is not None and not self._change.is_done(self._line.lines_in(safety) or []):
            self.previous_transcript = self._change.put()
        rewind_journal.remove_entry(self._target.key)

    def _line_since(self) -> list[tuple[Checkpoint, SessionNote]]:
        """Return the target and what came next. Raises InvalidInputError if rewound since."""
        found = [(self._target, self._note), *self._line.checkpoints()]
        found = [(checkpoint, note) for checkpoint, note in found if checkpoint.kind == Kind.SAVE]
        if not self._line.is_current or self._target.kind != Kind.SAVE:
            raise InvalidInputError(
                f"The session was rewound since @{self._target.seq}, so its own changes are not "
                "known. Choose a checkpoint after that rewind, or rewind without `--mine`."
            )
        return found

    def _last_tree(self) -> Tree:
        tree = tree_in(self._store, self._line_since()[-1][0])
        if tree is None:
            raise InvalidInputError("The last checkpoint of the session has no files.")
        return tree

    def _own_paths(self, since: Iterable[str], changed: Iterable[str]) -> list[str]:
        """Return the paths that only this session changed; note the others that differ."""
        keys = keys_of_directory(self._store, Path(self.directory))
        line = self._line_since()
        former = former_directories(self._store, (checkpoint for checkpoint, _ in line))
        calls = calls_of_others(self._store, {self.directory, *former}, keys, self._target)
        found = own_changes(self._store, line, since, calls)
        differ = set(changed)
        self.not_mine = {path: why for path, why in sorted(found.others.items()) if path in differ}
        return sorted(found.own & differ)

    def _write_journal(self, safety: Checkpoint, parents: tuple[str, ...]) -> None:
        if self._change is None:
            return
        where = rewind_journal.store_name(self._store)
        journal = Journal(
            self._change.path, self._target.id, "", None, (), where, safety.id, decision=parents
        )
        try:
            rewind_journal.write_entry(self._target.key, journal)
        except OSError as error:
            raise StorageError(
                f"Cannot write the rewind journal ({error}). Nothing was changed."
            ) from error

    def _head_draft(self, safety: Checkpoint, plan: Plan | None) -> Draft:
        """Return the checkpoint that the rewind leads to."""
        target, change = self._target, self._change
        parts: dict[str, Any]
        if self._is_whole:
            parts = {name: ReusedPart(tree) for name, tree in target.parts.items()}
            if change is not None and change.lines != self._line.lines_in(target):
                self._change_conversation(parts, self._note._replace(event=REWIND, time=None))
            elif self._note.rewind is not None:  # of version 0.1: the target is a safety checkpoint
                parts[PART] = self._note._replace(rewind=None).sealed().dump()
            return Draft(target.key, parts, kind=Kind.ROLLBACK, label=target.label)
        parts = {name: ReusedPart(tree) for name, tree in safety.parts.items()}
        current = tree_in(self._store, safety)
        if plan is not None and current is not None:
            files = EditedTree(current, plan.steps, plan.tree)
            parts[FILES] = CapturedState(files, self._store.writer)
        note = read_note(self._store, safety)
        if change is not None and note is not None:
            self._change_conversation(parts, note)
        label = f"after a part of the rewind to @{target.seq}"
        return Draft(target.key, parts, kind=Kind.RESTORE, label=label)

    def _change_conversation(self, parts: dict[str, Any], note: SessionNote) -> None:
        """Put the new conversation into the parts of a checkpoint, and its record into the note."""
        if self._change is None:
            return
        parts.pop(TRANSCRIPT, None)
        if self._change.lines:
            parts[TRANSCRIPT] = encode(Log(self._change.lines), TRANSCRIPT)
        note = note._replace(transcript=self._change.note(), trouble=None, rewind=None)
        parts[PART] = note.sealed().dump()

    def _transcript_change(self) -> TranscriptChange | None:
        """Return the change of the transcript; None if the target says nothing of it."""
        target, note = self._target, self._note
        lines, path = self._line.lines_in(target), _path_in(note)
        if lines is None or path is None:
            # The agent creates the transcript after the first prompt, or even after the first call.
            if note.trouble is not None or self._live is None:
                return None
            if note.event == REWIND:  # a rewind reads the transcript itself: there was none
                return TranscriptChange(self._live, [], live=self._live)
            is_end = moment_of(note.event) == TURN and not is_prompt(note.event)
            if is_end and note.time is None:  # nothing tells what was said then
                return None
            lines, path = [], self._live
        cut = cut_at(target.seq, note, lines, self._line.later, self._line.earlier)
        if note.transcript is None and not cut.lines:
            if is_prompt(note.event):
                return TranscriptChange(path, [], live=path)
            self.transcript_missing = "there was no transcript yet, and later ones lack this moment"
            return None
        said = (cut.warning, _placeholder_warning(cut.lines), self._moved_warning())
        self.warning = " ".join(text for text in said if text) or None
        conversation = read_conversation(note.agent, cut.lines, note.cwd)
        if conversation.is_empty and is_prompt(note.event) and note.agent in NEEDS_MESSAGES:
            return TranscriptChange(path, [], live=self._live or path)
        is_ended = cut.lines != lines or bool(note.transcript and note.transcript["ended"])
        return TranscriptChange(path, cut.lines, is_ended=is_ended, live=self._live or path)

    def _moved_warning(self) -> str | None:
        """Return that the agent does not find the session in a directory that was moved."""
        saved = read_note(self._store, self._target)
        if saved is None or saved.root == self._note.root or saved.agent not in FINDS_BY_PATH:
            return None
        return (
            f"The directory was moved since then, from {saved.root}: {PROGRAMS[saved.agent]} finds "
            "a session only at the path where it began, so it does not resume this one here."
        )

    def _save_checkpoint(self, kind: CheckpointKind, words: str) -> Checkpoint:
        captured: Any = CapturedState(
            WorkspaceFiles(self._workspace, full=True), self._store.writer
        )
        parts: dict[str, Any] = {FILES: captured}
        noted, trouble, redacted = None, None, 0
        try:
            present = None if self._live is None else Transcript(self._live)
            if present is not None and present.read(full=True):
                parts[TRANSCRIPT] = encode(present.lines, TRANSCRIPT)
                noted, redacted = present.note(), present.redacted
        except StorageError as error:
            if kind == Kind.SAFETY and self._change is not None:
                raise  # a transcript that is not saved must not be replaced
            trouble = str(error)
        event = Event(self._note.agent, REWIND, self._note.session, self._note.cwd, None)
        note = SessionNote.from_event(self._store, event, self._note.root, noted, trouble=trouble)
        parts[PART] = note.dump()
        label = f"{words} @{self._target.seq}"
        draft = Draft(self._target.key, parts, kind=kind, label=label, redacted=redacted)
        return self._store.write(draft)


def trusted_note(store: Store, target: Checkpoint, near: Iterable[Path] = ()) -> SessionNote:
    """Return the note of a checkpoint to rewind to, with the present path of its root.

    Args:
        store: the store.
        target: the checkpoint.
        near: directories that may be the root, if it was moved.

    Raises:
        InvalidInputError: the checkpoint has none, or this user's hook did not write it.
        IntegrityError: the note is damaged.
        StorageError: the medium failed.
    """
    note = read_note(store, target)
    name = short_repr(target.id, 120)
    if note is None:
        raise InvalidInputError(f"{name} is not a checkpoint of a coding agent. Use `restore`.")
    if not note.is_ours:
        raise InvalidInputError(
            f"{name} was imported or is not signed with your secret, so its paths are not trusted. "
            "Use `restore --into DIR` to write its files to another directory."
        )
    root = present_path(note.place, near)
    return note if root == note.root else note._replace(root=root, identity=identity_of(root))


def recover_rewind(store: Store, key: str) -> str | None:
    """Complete an interrupted rewind of a session; return a message, or None if there was none.

    Raises:
        CheckpointError: the rewind cannot be completed, and the failure cannot be saved.
    """
    with hold_session_lock(key):
        try:
            head = store.head(key)
            note = None if head is None else read_note(store, head)
        except UNUSABLE:
            return None  # `verify` reports it
        if head is None or note is None:
            return None
        if note.is_ours:
            if note.transcript is not None:
                remove_stale_replacement(note.transcript["path"])
            with suppress(WorkspaceError):  # moved or removed; a rewind reports it
                root = present_path(note.place)
                Workspace(root, store, watch=False).close()  # completes or discards the files
        return finish_rewind(store, key)


def finish_rewind(store: Store, key: str) -> str | None:
    """Complete an interrupted rewind; return a message, or None if there was none.

    The caller holds the session lock.

    Raises:
        CheckpointError: the rewind cannot be completed, and the failure cannot be saved.
    """
    journal = rewind_journal.read_entry(store, key)
    if journal is None:
        return None
    try:
        head = store.head(key)
        if head is None:
            target = None
        elif journal.is_decided_by(head):
            target = _finish_transcript(store, head, find(store, journal.safety_id), journal)
        else:
            target = _finish_legacy(store, head, journal.safety_id)
    except CheckpointError as error:
        return f"Cannot finish an interrupted rewind: {error}"
    if target is None:  # not decided, or version 0.1 has continued the session since
        rewind_journal.remove_entry(key)
        return None
    return (
        f"Finished an interrupted rewind to @{target.seq}. Exit the agent, then resume the session."
    )


def _finish_transcript(
    store: Store, head: Checkpoint, safety: Checkpoint, journal: Journal
) -> Checkpoint | None:
    """Complete a rewind whose checkpoint exists; opening the directory completes the files."""
    target = find(store, journal.tree)
    now, before = read_note(store, head), read_note(store, safety)
    if now is None or before is None or not (now.is_ours and before.is_ours):
        return None
    if target.key != safety.key:
        return None
    lines = lines_in(store, head) or []
    is_ended = bool(now.transcript and now.transcript["ended"])
    path = _path_in(now) or journal.root
    change = TranscriptChange(path, lines, is_ended=is_ended, live=_path_in(before) or path)
    if not change.is_done(lines_in(store, safety) or []):
        change.put()
    rewind_journal.remove_entry(target.key)
    return target


def _finish_legacy(store: Store, head: Checkpoint, safety_id: str) -> Checkpoint | None:
    """Complete a rewind of version 0.1, which has no checkpoint yet, but a note of the intent."""
    held = read_note(store, head)
    if head.id != safety_id or held is None or held.rewind is None or not held.is_ours:
        return None  # completed, or its checkpoints were removed since
    intent = held.rewind
    target = find(store, intent["target"])
    note = read_note(store, target)
    if note is None or not note.is_ours or target.key != head.key:
        return None
    chosen = {name: intent[name] for name in ("files", "conversation")}
    with Rewind(store, target, note, **chosen, exclude=tuple(intent["exclude"])) as rewind:
        rewind.apply(head)
    return target


def _paths_in(plan: Plan) -> list[str]:
    return [*plan.write, *plan.delete, *plan.mode, *plan.leave]


def _why_missing(note: SessionNote) -> str | None:
    return WITHOUT_TRANSCRIPT.get(note.agent, note.trouble)


def _placeholder_warning(lines: list[str]) -> str | None:
    """Return what the model hears instead of secrets; None if nothing was redacted."""
    found = redacted_lines(lines)
    if not found:
        return None
    some = ", ".join(map(str, found[:_MOST_NAMED])) + (" and more" * (len(found) > _MOST_NAMED))
    return (
        f"Secrets in {format_count(len(found), 'line')} of the saved conversation were redacted "
        f"({some}): the resumed model hears placeholders such as [redacted:assignment]."
    )


def _path_in(note: SessionNote) -> str | None:
    return None if note.transcript is None else note.transcript["path"]


def _check_not_moved(root: str) -> str:
    """Return the path of a directory.

    Raises WorkspaceError if it is gone, or now leads to another directory.
    """
    if not os.path.lexists(root):
        raise WorkspaceError(f"There is no directory {short_repr(root, 200)}. {moved_hint(root)}")
    real = os.path.realpath(root)
    if real != root:
        raise WorkspaceError(
            f"{short_repr(root, 200)} is now a link to {short_repr(real, 200)}, not the saved "
            "directory. Use `restore --into DIR` to write the files to another directory."
        )
    return root
