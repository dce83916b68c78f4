"""The point at which a session is forked: a checkpoint, and copies of objects and files."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_checkpoint.core.checkpointable import Checkpointable
from agent_checkpoint.core.external_snapshot import External
from agent_checkpoint.core.path_errors import cause_text
from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.options import Driver, ForkEffects, check_option
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.session.rollback.rollback_target import find_target
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.fork.isolated import private_forks_dir
from agent_checkpoint.workspace.workspace import Fork


class ForkPoint:
    """A checkpoint of a session to fork, with copies of its live objects and files."""

    def __init__(
        self,
        state: SessionState,
        *,
        at: str | None,
        label: str,
        effects: ForkEffects = "refuse",
        agent: Callable[[], Any] | None = None,
    ) -> None:
        """Choose the fork point, saving the session if `at` is None.

        Args:
            state: the session to fork.
            at: an id or short form; if None, the current state is saved.
            label: the label of the saved checkpoint; unused if `at` is given.
            effects: whether forks may run irreversible tools: `allow` or `refuse`.
            agent: creates a new agent; by default, the session's agent is cloned.

        Raises:
            InvalidInputError: an option is invalid.
            NotFoundError: there is no such checkpoint.
            CheckpointError: the session cannot be saved.
        """
        check_option("effects", effects, ForkEffects)
        if agent is not None and not callable(agent):
            raise InvalidInputError("agent must be a function that returns an agent, not an agent.")
        if effects == "allow" and not state.record.irreversible:
            raise InvalidInputError(
                f"{short_repr(state.key)} is a fork that may not run irreversible tools, so its "
                "own forks may not either."
            )
        self.state = state
        self.effects = effects
        self.new_agent = agent
        self.checkpoint = self._find(at, label)
        self.tree = tree_in(state.manager.store, self.checkpoint)
        """The files at the fork point."""

    def _find(self, at: str | None, label: str) -> Checkpoint:
        state = self.state
        if at is not None:
            return find_target(state, at, 0)
        state.save(label=label[:200])
        if state.writer.head is None:
            raise AssertionError("unreachable: the session was just saved")
        return state.writer.head

    def fork_files(self, path: str | os.PathLike[str] | None, driver: Driver) -> Fork | None:
        """Fork the files to a directory, by default a private one; None without files.

        Raises:
            InvalidInputError: `path` is not a path.
            WorkspaceError: the files cannot be forked.
        """
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise InvalidInputError(f"path must be a directory, not {short_repr(path)}.")
        origin = self.state.workspace
        if origin is None or self.tree is None:
            return None
        private = private_forks_dir() / f"{origin.path.name}-{secrets.token_hex(4)}"
        return origin.fork(private if path is None else Path(path), self.tree, driver)

    def copy_parts(self) -> tuple[Any, dict[str, Any]]:
        """Return a copy of the agent and the parts, for a fork to load its state into.

        Raises:
            StateError: an object cannot be copied.
        """
        agent = self.state.root.agent
        if self.new_agent is not None:
            agent = self.new_agent()
        elif agent is not None:
            agent = _copy(agent, "The agent")
        return agent, {name: _copy(part, f"The part {name}") for name, part in self.parts.items()}

    @property
    def parts(self) -> dict[str, Any]:
        """The additional parts of a fork."""
        # An external part has a single live instance, which belongs to the session.
        parts = self.state.parts
        return {name: part for name, part in parts.items() if not isinstance(part, External)}


def _copy(part: Any, name: str) -> Any:
    if isinstance(part, Checkpointable):
        return part.clone()
    try:
        return copy.deepcopy(part)
    except Exception as error:
        raise StateError(
            f"{name} cannot be copied for a fork ({cause_text(error)}). Pass agent= as a function "
            "that returns a new agent."
        ) from error
