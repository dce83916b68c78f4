"""The operations that a client of the MCP server may use. Owns what it may see.

A client sees only the keys of one directory and their forks.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.directory_keys import directory_key, find_directory_keys, is_foreign
from agent_checkpoint.agents.tracked_dir import open_tracked, restore_and_save
from agent_checkpoint.cli.args import parse
from agent_checkpoint.cli.output import Output, one_line
from agent_checkpoint.cli.paths import RelativePaths, files_of, holds
from agent_checkpoint.cli.plan_output import plan_json, show_plan
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.present.fork_points import origin_of
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.workspace.restore.plan import Plan
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE
from agent_checkpoint.workspace.tree.tree_reader import find, pieces
from agent_checkpoint.workspace.workspace import Workspace

MOST_TEXT = 200_000
"""The length of the longest answer, and of the text of a file in it."""
_MOST_ROWS = 200


class ShownRestore(NamedTuple):
    """A restore, with the plan that a person is asked about."""

    checkpoint: Checkpoint
    tree: Tree
    paths: list[str] | None
    """None: all files."""
    plan: Plan
    text: str
    """The preview."""


class CheckpointTools:
    """The tools, for one directory and store."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._directory: Path = location.directory

    def list_checkpoints(self, manager: CheckpointManager, key: str | None, limit: int) -> Any:
        """Return the newest checkpoints of the directory's keys, or of one key."""
        if not 1 <= limit <= _MOST_ROWS:
            raise InvalidInputError(f"limit must be from 1 to {_MOST_ROWS}.")
        keys = self._keys(manager)
        if key is not None and key not in keys:
            raise self._not_here(key)
        found: list[dict[str, Any]] = []
        for name in keys if key is None else [key]:
            found += [{"key": name, **row} for row in manager.history(name, n=limit)]
        found.sort(key=lambda row: row["ts"] or 0.0, reverse=True)
        return {"keys": keys, "checkpoints": found[:limit]}

    def show(self, manager: CheckpointManager, id: str, path: str | None) -> Any:
        """Return the contents of a checkpoint, or of one of its files."""
        checkpoint = self._checkpoint(manager, id)
        if path is None:
            return self._command("show", checkpoint.id)
        data = self._command("show", checkpoint.id, _plain(path))  # checks the path
        tree = files_of(manager.store, checkpoint)
        chosen = RelativePaths(self._directory, self._directory).resolve([path])
        item = None if chosen is None else find(tree, chosen[0])
        if item is None or item.type != FILE:
            return {"files": data}
        text, left = b"", MOST_TEXT
        for piece in pieces(tree.get, item):
            text, left = text + piece[:left], left - len(piece)
            if left <= 0:
                break
        is_text = b"\0" not in text
        return {**data[0], "text": text.decode("utf-8", "replace") if is_text else None}

    def diff(self, manager: CheckpointManager, id: str, other: str | None) -> Any:
        """Return the changes from a checkpoint to another one, or to the current files."""
        names = [self._checkpoint(manager, name).id for name in (id, other) if name is not None]
        return self._command("diff", *names)

    def save(self, label: str | None) -> Any:
        """Save the files of the directory."""
        if label is not None and "\0" in label:
            raise InvalidInputError("The label has a NUL character.")
        option = [] if label is None else [f"--label={label}"]
        return self._command("save", str(self._directory), *option)

    def fork(self, manager: CheckpointManager, id: str, name: str) -> Any:
        """Start a new key from a checkpoint."""
        point = self._checkpoint(manager, id)
        return {"key": name, "id": manager.fork(point.key, name, point.id), "from": point.id}

    def plan(self, manager: CheckpointManager, id: str, paths: list[str]) -> ShownRestore:
        """Return what a restore would do."""
        checkpoint = self._checkpoint(manager, id)
        store, directory = manager.store, self._directory
        tree = files_of(store, checkpoint)
        relative = RelativePaths(directory, directory)
        chosen = relative.resolve(paths) if paths else None
        for name, path in zip(paths, chosen or ()):
            if not ((directory / path).exists() or holds(tree, path)):
                raise relative.not_found(name, path, tree, checkpoint)
        with self._opened(manager, checkpoint, tree) as workspace:
            plan = workspace.restore(tree, paths=chosen, dry_run=True)
        text = io.StringIO()
        of_others = is_foreign(store, checkpoint)
        show_plan(Output(text), plan, relative, is_foreign=of_others and bool(plan))
        return ShownRestore(checkpoint, tree, chosen, plan, text.getvalue())

    def apply(self, manager: CheckpointManager, found: ShownRestore) -> Any:
        """Restore the files if the plan is still the one that was shown."""
        with self._opened(manager, found.checkpoint, found.tree) as workspace:
            done = restore_and_save(
                workspace, found.checkpoint, found.tree, found.paths, only_if=found.plan
            )
        return {"id": found.checkpoint.id, "done": True, **plan_json(done)}

    def command_for(self, found: ShownRestore) -> str:
        """Return the command line that does the same restore."""
        words = ["agent-checkpoint", "restore", found.checkpoint.id, *(found.paths or [])]
        return " ".join(map(shell_quote, words))

    # -- internals -------------------------------------------------------------------------------

    def _opened(self, manager: CheckpointManager, checkpoint: Checkpoint, tree: Tree) -> Workspace:
        store = manager.store
        key = directory_key(store, self._directory)
        rules: dict[str, Any] = {"ignore": tree.ignore, "gitignore": tree.gitignore}
        workspace = open_tracked(self._directory, store, key, **rules)
        workspace.saved_in = (checkpoint.key,)
        return workspace

    def _keys(self, manager: CheckpointManager) -> list[str]:
        """Return the keys of the directory, and the forks of them."""
        store = manager.store
        found = find_directory_keys(store, [self._directory]).get(self._directory, [])
        keys = [entry.key for entry in found]
        others = {key: origin_of(store, key) for key in manager.list_keys() if key not in keys}
        is_growing = True
        while is_growing:
            forks = [key for key, at in others.items() if at is not None and at.key in keys]
            is_growing = bool(forks)
            keys += forks
            for key in forks:
                del others[key]
        return keys

    def _checkpoint(self, manager: CheckpointManager, name: str) -> Checkpoint:
        """Return a checkpoint of the directory. Raises NotFoundError for any other one."""
        found = self._location.checkpoint(manager, _plain(name))
        if found.key not in self._keys(manager):
            raise self._not_here(name)
        return found

    def _not_here(self, name: str) -> NotFoundError:
        where = one_line(self._directory)
        return NotFoundError(f"{short_repr(name)} is no checkpoint or key of {where}.")

    def _command(self, name: str, *arguments: str) -> Any:
        """Return the data of a command of the command line, with secrets masked."""
        args = parse([name, *arguments, "--json"])
        args.out = Output(io.StringIO())
        if args.command is None:
            raise AssertionError("unreachable: the name of a command")
        return args.command.load().run(args, self._location).data


def _plain(text: str) -> str:
    """Return an argument of a command. Raises InvalidInputError if it would be an option."""
    if not text or text.startswith("-") or "\0" in text:
        raise InvalidInputError(f"{short_repr(text)} is not a valid id, key or path.")
    return text
