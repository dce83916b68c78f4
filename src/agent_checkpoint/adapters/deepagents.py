"""Deep Agents: a workspace as the backend of an agent's file tools. Needs the extra `deepagents`.

Owns the rules that a workspace adds to Deep Agents' own backend for directories. The checkpoints
are those of the agent's checkpointer, which has the same workspace.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agent_checkpoint.adapters import needs_extra
from agent_checkpoint.errors import InvalidInputError

with needs_extra("deepagents"):
    from deepagents.backends import FilesystemBackend, LocalShellBackend
    from deepagents.backends.protocol import (
        DeleteResult,
        EditResult,
        FileUploadResponse,
        GlobResult,
        LsResult,
        ReadResult,
        WriteResult,
    )

if TYPE_CHECKING:
    from agent_checkpoint.workspace.workspace import Workspace


class WorkspaceBackend(FilesystemBackend):
    """The files of a workspace, for `create_deep_agent(backend=…)`. The workspace is the root.

    Behaves as `FilesystemBackend(virtual_mode=True)`, except that a path outside the workspace,
    also through a symbolic link, is an error that the model is told and not the end of the run;
    that the root cannot be deleted; and that a snapshot contains a change as a whole or not at all.
    """

    def __init__(self, workspace: Workspace | None, **options: Any) -> None:
        """Use the directory of a workspace, such as `saver.workspace`.

        Args:
            workspace: the workspace. The agent's checkpointer must have the same one.
            options: those of `FilesystemBackend`, without `root_dir` and `virtual_mode`.

        Raises:
            InvalidInputError: there is no workspace.
        """
        if workspace is None:
            raise InvalidInputError("The saver has no workspace: pass workspace= to it.")
        super().__init__(root_dir=workspace.path, virtual_mode=True, **options)
        self.workspace = workspace
        """The workspace."""

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        try:
            return super().ls(path)
        except ValueError:
            return LsResult(error=_outside(path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a file."""
        try:
            return super().read(file_path, offset, limit)
        except ValueError:
            return ReadResult(error=_outside(file_path))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name."""
        try:
            return super().glob(pattern, path)
        except ValueError:
            return GlobResult(error=_outside(path), matches=[])

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file."""
        with self.workspace.changing():
            try:
                return super().write(file_path, content)
            except ValueError:
                return WriteResult(error=_outside(file_path))

    def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        """Replace text in a file."""
        with self.workspace.changing():
            try:
                return super().edit(file_path, old_string, new_string, replace_all)
            except ValueError:
                return EditResult(error=_outside(file_path))

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with all that it contains, but not the root."""
        with self.workspace.changing():
            try:
                # The base class follows links: one to "." is the root, too.
                if os.path.realpath(f"{self.cwd}/{file_path}") == str(self.cwd):
                    return DeleteResult(error=f"Error: '{file_path}' is the workspace itself")
                return super().delete(file_path)
            except ValueError:
                return DeleteResult(error=_outside(file_path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files."""
        with self.workspace.changing():
            return super().upload_files(files)


class WorkspaceShellBackend(WorkspaceBackend, LocalShellBackend):
    """A `WorkspaceBackend` with shell commands, which run in its directory.

    Commands run on this machine, are not isolated, and may change files outside the workspace. The
    options are those of `LocalShellBackend`.
    """

    @property
    def id(self) -> str:
        """The identity of the sandbox: the key of the workspace.

        Raises StateError, StorageError.
        """
        return self.workspace.key


def _outside(path: str | None) -> str:
    return f"Error: '{path}' is not a path in the workspace"
