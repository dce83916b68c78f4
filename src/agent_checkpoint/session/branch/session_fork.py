"""Forks of a session: a new session from one checkpoint, with its own files."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.checkpointable import Checkpointable
from agent_checkpoint.core.external import External
from agent_checkpoint.core.path_errors import cause_text
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    InvalidInputError,
    StateError,
    WorkspaceError,
)
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint, check_key, parse_checkpoint_id, short_repr
from agent_checkpoint.session.rollback.rollback_target import find_target
from agent_checkpoint.session.session import Session
from agent_checkpoint.workspace.fork.isolated import private_forks_dir
from agent_checkpoint.workspace.fork.workspace_fork import Fork
from agent_checkpoint.workspace.tree_names import tree_in

if TYPE_CHECKING:
    from agent_checkpoint.workspace.workspace import Workspace

EFFECTS = ("refuse", "allow")


class Branch(Session):
    """A session forked from another. Its private directory is removed when it is closed."""

    _keeps_directory = False
    _origin: Session | None = None
    """The parent session in this process, which closes its forks when it is closed."""

    def __repr__(self) -> str:
        return f"<Branch {self.key!r} of {self._record.origin!r}>"

    def close(self) -> None:
        """Save the fork if needed, and remove its files. Idempotent.

        Raises:
            WorkspaceError: something cannot be removed.
            StorageError: the store failed; the files are kept.
        """
        if not self._is_open:
            return
        workspace_error: CheckpointError | None = None
        if not self._is_ended:
            try:
                self._end()
            except (ConflictError, StateError):
                self._save_files()  # the state cannot be saved
            except WorkspaceError as error:
                workspace_error = error
        super().close()
        if self._origin is not None and self in self._origin._branches:
            self._origin._branches.remove(self)
        if workspace_error is not None:
            raise workspace_error

    def _save_files(self) -> None:
        if isinstance(self.workspace, Fork):
            self.workspace.snapshot()

    def _release(self) -> None:
        fork = self.workspace
        if isinstance(fork, Fork):
            fork.close(save=False)
        super()._release()


class SessionForker:
    """Makes forks of one session at one checkpoint."""

    def __init__(
        self,
        session: Session,
        *,
        at: str | None,
        label: str,
        effects: str = "refuse",
        agent: Callable[[], Any] | None = None,
    ) -> None:
        """Choose the fork point, saving the session if `at` is None.

        Args:
            session: the session to fork.
            at: an id or short form; if None, the current state is saved.
            label: the label of that checkpoint.
            effects: `allow` or `refuse` irreversible tools in the forks.
            agent: makes a new agent; the session's is cloned if not given.

        Raises:
            InvalidInputError: an option is invalid.
            NotFoundError: there is no such checkpoint.
            CheckpointError: the session cannot be saved.
        """
        if effects not in EFFECTS:
            raise InvalidInputError(f"effects must be refuse or allow, not {short_repr(effects)}.")
        if agent is not None and not callable(agent):
            raise InvalidInputError("agent must be a function that makes an agent, not an agent.")
        if effects == "allow" and not session._record.irreversible:
            raise InvalidInputError(
                f"{short_repr(session.key)} is a fork that may not run irreversible tools, so its "
                "own forks may not either."
            )
        self.session = session
        self.effects = effects
        self.new_agent = agent
        self.point = self._point(at, label)
        self.tree = tree_in(session.manager.store, self.point)
        """The files at the fork point."""

    def _point(self, at: str | None, label: str) -> Checkpoint:
        session = self.session
        if at is not None:
            return find_target(session, at, 0)
        session._save(label=label[:200])
        if session._writer.head is None:
            raise AssertionError("unreachable: the session was just saved")
        return session._writer.head

    def make(
        self, key: str, *, path: str | os.PathLike[str] | None = None, driver: str = "auto"
    ) -> Branch:
        """Make a fork and open it.

        Args:
            key: the key of the fork.
            path: the directory for its files; a private one if not given.
            driver: how files are forked; see `Workspace.fork`.

        Raises:
            ConflictError: the key exists already.
            StateError: the agent cannot be copied.
            WorkspaceError: the files cannot be forked.
        """
        session, store = self.session, self.session.manager.store
        if store.head(check_key(key)) is not None:
            raise ConflictError(f"The key {short_repr(key)} exists already. Use another one.")
        agent, parts = self.copy_parts()
        origin, files = session.workspace, None
        if origin is not None and self.tree is not None:
            directory = _as_path(path) or private_forks_dir() / _fork_directory_name(origin)
            files = origin.fork(directory, self.tree, driver)
        try:
            branch = open_branch(
                session.manager,
                self.point.id,
                key,
                agent=agent,
                parts=parts,
                workspace=files,
                every=session.every,
                effects=self.effects,
            )
        except BaseException:
            if files is not None:
                files.close(save=False)
            raise
        if files is not None:
            files.belongs_to(branch.close)
        session._branches.append(branch)
        branch._origin = session
        return branch

    def copy_parts(self) -> tuple[Any, dict[str, Any]]:
        """Return a copy of the agent and the parts, for a fork to load its state into.

        Raises:
            StateError: an object cannot be copied.
        """
        agent = self.session.agent
        if self.new_agent is not None:
            agent = self.new_agent()
        elif agent is not None:
            agent = _copy(agent, "The agent")
        return agent, {name: _copy(part, f"The part {name}") for name, part in self.parts.items()}

    @property
    def parts(self) -> dict[str, Any]:
        """The additional parts of a fork."""
        # An external part has a single live instance, which belongs to the session.
        parts = self.session._parts
        return {name: part for name, part in parts.items() if not isinstance(part, External)}


def open_branch(
    manager: CheckpointManager,
    point: str,
    key: str,
    *,
    agent: Any,
    parts: Mapping[str, Any],
    workspace: Workspace | None,
    every: str | int,
    effects: str,
) -> Branch:
    """Fork a checkpoint to a new key, and open it as a session.

    Raises:
        ConflictError: the key exists already.
        CheckpointError: the fork cannot be opened; its key is deleted again.
    """
    parsed = parse_checkpoint_id(point)
    if parsed is None:
        raise InvalidInputError(f"{short_repr(point)} is not a checkpoint id.")
    manager.fork(parsed.key, key, point)
    try:
        branch = Branch(
            key,
            agent=agent,
            workspace=workspace,
            store=manager,
            parts=parts,
            every=every,
            rebind=True,
        )
    except CheckpointError:
        manager.delete(key)
        raise
    branch._record.irreversible = effects == "allow"
    return branch


def _copy(part: Any, name: str) -> Any:
    if isinstance(part, Checkpointable):
        return part.clone()
    try:
        return copy.deepcopy(part)
    except Exception as error:
        raise StateError(
            f"{name} cannot be copied for a fork ({cause_text(error)}). Pass agent= as a function "
            "that makes a new one."
        ) from error


def _as_path(path: str | os.PathLike[str] | None) -> Path | None:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise InvalidInputError(f"path must be a directory, not {short_repr(path)}.")
    return None if path is None else Path(path)


def _fork_directory_name(origin: Workspace) -> str:
    return f"{origin.path.name}-{secrets.token_hex(4)}"
