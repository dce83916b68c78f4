"""`fork`: creates a key that starts at a checkpoint, optionally with a copy of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_checkpoint.agents.directory_keys import is_foreign
from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.agents.tracked_dir import open_tracked
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    ProgressCallback,
    files_written,
    format_count,
    one_line,
)
from agent_checkpoint.cli.paths import RelativePaths, files_of
from agent_checkpoint.cli.plan_output import show_foreign
from agent_checkpoint.cli.store_location import HERE, StoreLocation, create_directory
from agent_checkpoint.errors import ConflictError, InvalidInputError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint, Draft, Kind, check_key, short_repr
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.session.workspace_part import is_empty
from agent_checkpoint.store.archive.importer import remove_dead_imports
from agent_checkpoint.store.directory_claims import make_claim
from agent_checkpoint.store.objects.references import ReusedPart
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.restore.plan import Plan
from agent_checkpoint.workspace.restore.transition import SafetySnapshot
from agent_checkpoint.workspace.tree.snapshot import Tree

EXAMPLES = """
agent-checkpoint fork fix-bug-42 try-a                    from the latest checkpoint
agent-checkpoint fork fix-bug-42 try-b --at @7            from an earlier checkpoint
agent-checkpoint fork fix-bug-42 try-c --into ../try-c    with the files in a new directory
agent-checkpoint fork @3 try-d --into ../try-d            the current directory at checkpoint 3
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("key", "KEY", "the key or checkpoint to fork; . for the current directory")
    parser.add("name", "NAME", "the new key")
    parser.add("--at", "ID", "the checkpoint (default: the latest)")
    parser.add("--into", "DIR", "write the files to this new or empty directory")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Create the fork."""
    with location.manager() as manager:
        key, at = _resolve(args, location, manager)
        point = location.checkpoint(manager, at, key)
        directory = None if args.into is None else _empty(Path(location.directory, args.into))
        tree = (tree_in if directory is None else files_of)(manager.store, point)
        of_others = is_foreign(manager.store, point)
        if point.key != key:
            raise InvalidInputError(
                f"{short_repr(point.id, 120)} is not a checkpoint of {short_repr(key)}."
            )
        try:
            first = _forked(manager, args.name, point, directory)
        except ConflictError:
            raise ConflictError(
                f"The key {short_repr(args.name)} already exists. Choose another name."
            ) from None
        files, plan = 0, None
        if directory is not None and tree is not None:
            files, is_session = tree.files, SESSION_PART in point.parts
            try:
                with args.out.progress("Forking") as forking:
                    plan = _put_files(
                        manager, args.name, first, tree, directory, is_session, forking
                    )
            except BaseException:
                # Including Ctrl-C: the key must not belong to a partial directory.
                manager.delete(args.name)
                raise
    data: dict[str, Any] = {
        "key": args.name,
        "id": first,
        "from": point.id,
        "directory": None if directory is None else str(directory),
        "files": files,
    }

    def tell(out: Output) -> None:
        _show(out, data, point, args.store, tree is not None)
        if plan is not None and directory is not None and of_others:
            show_foreign(out, plan, RelativePaths(directory, directory))

    return CommandResult(data, tell)


def _resolve(
    args: Args, location: StoreLocation, manager: CheckpointManager
) -> tuple[str, str | None]:
    """Return the key to fork, and the checkpoint if one was given. Raises NotFoundError."""
    name: str = args.key
    if args.at is None and name != HERE and name not in manager.list_keys():
        found = location.checkpoint(manager, name)
        return found.key, found.id
    return location.key(manager, name), args.at


def _empty(directory: Path) -> Path:
    if directory.exists() and not is_empty(directory):
        raise InvalidInputError(f"{short_repr(str(directory), 200)} is not an empty directory.")
    return directory.resolve()


def _forked(
    manager: CheckpointManager, name: str, point: Checkpoint, directory: Path | None
) -> str:
    """Write the first checkpoint of the fork, and return its id.

    If the files go to `directory` and the key is not a session, the checkpoint has a claim that
    binds the fork to that directory.

    Raises:
        ConflictError: the key already exists.
    """
    if directory is None or SESSION_PART in point.parts:
        return manager.fork(point.key, name, point.id)
    parts: dict[str, Any] = {part: ReusedPart(tree) for part, tree in point.parts.items()}
    parts.pop(HOOK, None)  # its note contains the path of the original directory
    claim = make_claim(manager.store.backend, check_key(name), directory)
    draft = Draft(name, parts, Kind.FORK, point.label, token=point.token, claim=claim)
    remove_dead_imports(manager.store)
    return manager.store.write(draft, parents=(point.id,), after=0).id


def _put_files(
    manager: CheckpointManager,
    key: str,
    first: str,
    tree: Tree,
    directory: Path,
    is_session: bool,
    tell: ProgressCallback,
) -> Plan | None:
    """Write the files of the fork; a session records the directory as its workspace."""
    from agent_checkpoint.session.session import Session

    create_directory(directory)
    if is_session:
        Session(key, store=manager, workspace=directory, every="manual").close()
        return None
    rules: dict[str, Any] = {"ignore": tree.ignore, "gitignore": tree.gitignore}
    with open_tracked(directory, manager.store, key, **rules) as tracked:
        # The directory is empty, so it needs no safety checkpoint.
        held = SafetySnapshot(tree, first)
        return tracked.restore_held(tree, held, progress=files_written(tell))


def _show(
    out: Output, data: dict[str, Any], point: Checkpoint, store: str | None, has_files: bool
) -> None:
    name = one_line(data["key"])
    more = "" if store is None else f", store={store!r}"
    out.line(f"Forked {name} from {one_line(point.key)}@{point.seq}.", style="green")
    if data["directory"] is not None:
        out.line(f"{format_count(data['files'], 'file')} in {one_line(data['directory'])}")
        if SESSION_PART in point.parts:
            out.line(f"To resume: Session({data['key']!r}, agent=…{more})")
    elif has_files and SESSION_PART in point.parts:
        out.line(f"To resume: Session({data['key']!r}, agent=…, workspace=…{more})")
    out.hint("To see both", f"log {shell_quote(point.key)}")
