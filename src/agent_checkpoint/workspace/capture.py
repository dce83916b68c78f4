"""Captures a workspace for a checkpoint. Owns the conversion of a scan into a snapshot record."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import CheckpointKind, Draft, Kind
from agent_checkpoint.store.directory_claims import make_claim
from agent_checkpoint.store.objects.references import CapturedState
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.tree.snapshot import Tree, put_record, sorted_notes
from agent_checkpoint.workspace.workspace_lock import RootLock


class Capture:
    """Captures a directory and caches the result of the last capture."""

    tree: Tree
    _writer: Writer

    def __init__(
        self,
        root: RootLock,
        scanner: Scanner,
        *,
        ignore: tuple[str, ...],
        gitignore: bool,
        full: bool = False,
    ) -> None:
        self._root = root
        self._scanner = scanner
        self._rules: dict[str, Any] = {"ignore": ignore, "gitignore": gitignore}
        self._full = full

    def draft(
        self,
        key: str,
        store: Store,
        *,
        kind: CheckpointKind = Kind.SAVE,
        label: str | None = None,
        tags: tuple[str, ...] = (),
    ) -> Draft:
        """Return a draft checkpoint of the directory, with a claim signed by this user.

        Raises:
            StateError: the secret that signs the claim cannot be read.
            CheckpointError: the same errors as `checkpoint_to`.
        """
        captured: Any = CapturedState(self, store.writer)
        known = self._scanner.known_identity
        claim = make_claim(store.backend, key, self._root.path, known)
        return Draft(key, {PART: captured}, kind=kind, label=label, tags=tags, claim=claim)

    def checkpoint_to(self, writer: Writer) -> str:
        """Scan the directory and write the missing objects; return the id of the snapshot object.

        Raises:
            WorkspaceError: the directory cannot be read, or exceeds the limit.
            StorageError: the store failed.
        """
        if writer.backend is None:
            raise WorkspaceError("Cannot capture the workspace: no store configured. Pass store=.")
        self._writer = writer
        with self._root.held(exclusive=False) as root:
            state = self._scanner.scan(root, writer, full=self._full)
        tree = Tree(
            id=state.stored.id,
            ref="",
            root=state.stored,
            files=state.files,
            bytes=state.bytes,
            notes=sorted_notes(state.all_notes()),
            source=writer.backend,
            **self._rules,
        )
        self.tree = put_record(tree, writer.put)
        return self.tree.ref

    def confirm(self) -> None:
        """Confirm that the store already has a checkpoint of the captured tree.

        Raises StorageError.
        """
        self._writer.confirm()
