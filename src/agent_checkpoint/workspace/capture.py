"""One capture of a workspace, on its way into a checkpoint. Owns turning a look into a snapshot."""

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
    """Captures a directory whenever it is asked to, and remembers what it captured last."""

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
        """Capture the directory now, for a checkpoint of its line.

        Raises:
            StateError: the secret that proves whose line it is cannot be read just now.
            CheckpointError: as `checkpoint_to` does.
        """
        captured: Any = CapturedState(self, store.writer)
        claim = make_claim(store.backend, key, self._root.path)
        return Draft(key, {PART: captured}, kind=kind, label=label, claim=claim)

    def checkpoint_to(self, writer: Writer) -> str:
        """Hand what a store does not have yet to a writer; return the name of the snapshot.

        Raises:
            WorkspaceError: the directory cannot be read, or has more than the limit.
            StorageError: the store failed.
        """
        if writer.backend is None:
            raise WorkspaceError("A workspace is captured for a store, and there is none.")
        self._writer = writer
        with self._root.held(exclusive=False) as root:
            self.dir_state = self._scanner.scan(root, writer, full=self._full)
        self.tree = put_record(self.dir_state, writer.put, writer.backend, **self._rules)
        return self.tree.ref

    def confirm(self) -> None:
        """Say that the store has a checkpoint of just what was captured, and needs no other."""
        self._writer.committed()
