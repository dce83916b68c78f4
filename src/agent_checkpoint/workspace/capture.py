"""A capture of a workspace for a checkpoint. Owns turning a scan into a snapshot record."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import Draft
from agent_checkpoint.store.claims import make_claim
from agent_checkpoint.store.objects.references import CapturedState
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import Tree, put_record
from agent_checkpoint.workspace.tree_names import PART
from agent_checkpoint.workspace.workspace_lock import RootLock


class Capture:
    """Captures a directory, and keeps the result of its last capture."""

    folder: DirState
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
        self, key: str, store: Store, *, kind: str = "save", label: str | None = None
    ) -> Draft:
        """Return a draft of a checkpoint of the directory, claimed by this user.

        Raises:
            StateError: the secret that seals the claim cannot be read at the moment.
            CheckpointError: as `checkpoint_to` does.
        """
        captured: Any = CapturedState(self, store.writer)
        claim = make_claim(store.backend, key, self._root.path)
        return Draft(key, {PART: captured}, kind=kind, label=label, claim=claim)

    def checkpoint_to(self, writer: Writer) -> str:
        """Scan the directory and put the objects that the store lacks; return the snapshot's name.

        Raises:
            WorkspaceError: the directory cannot be read, or exceeds the limit.
            StorageError: the store failed.
        """
        if writer.backend is None:
            raise WorkspaceError("No store to capture the workspace into: pass store=.")
        self._writer = writer
        with self._root.held(exclusive=False) as root:
            self.dir_state = self._scanner.scan(root, writer, full=self._full)
        self.tree = put_record(self.dir_state, writer.put, writer.backend, **self._rules)
        return self.tree.ref

    def confirm(self) -> None:
        """Confirm that the store already has a checkpoint of the captured tree."""
        self._writer.committed()
