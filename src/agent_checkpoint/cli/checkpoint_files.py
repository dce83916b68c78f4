"""Lists or prints the files of a checkpoint without restoring them."""

from __future__ import annotations

import os
from typing import Any

from agent_checkpoint.agents.directory_keys import directory_of_files
from agent_checkpoint.cli.args import Args
from agent_checkpoint.cli.output import CommandResult, Output, format_count, format_size, one_line
from agent_checkpoint.cli.paths import RelativePaths, holds
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER, LINK, Item
from agent_checkpoint.workspace.tree.tree_reader import find, pieces, walk

_SHOWN = 200
_PROBE = 8000
_TYPES = {FOLDER: "directory", LINK: "link"}


def show_files(
    args: Args, location: StoreLocation, store: Store, checkpoint: Checkpoint
) -> CommandResult:
    """Return the list of a checkpoint's files, or print the contents of one file.

    Raises:
        NotFoundError: the checkpoint has no files, or no file at this path.
        InvalidInputError: a binary file would be printed to a terminal.
        IntegrityError: data of the checkpoint is missing or damaged.
    """
    tree = tree_in(store, checkpoint)
    if tree is None:
        raise NotFoundError(f"The checkpoint {short_repr(checkpoint.id, 120)} has no files.")
    paths = RelativePaths(
        directory_of_files(store, checkpoint, location.directory), location.directory
    )
    chosen = None if args.path is None else paths.resolve([args.path])
    path = "" if chosen is None else chosen[0]
    if not holds(tree, path):
        raise paths.not_found(args.path, path, tree, checkpoint)
    item = find(tree, path)
    if item is None or item.type == FOLDER or args.files or args.json:
        return _list(tree, path, paths)
    return _content(tree, item, args.path, args.out)


def _list(tree: Tree, path: str, paths: RelativePaths) -> CommandResult:
    rows = [_row(place, item) for place, item in walk(tree, path)]
    files = [row for row in rows if row["type"] != "directory"]

    def tell(out: Output) -> None:
        shown = out.limit(_SHOWN)
        wide = max((len(str(row["size"])) for row in files[:shown]), default=0)
        for row in files[:shown]:
            link = f" -> {one_line(row['target'])}" if row["type"] == "link" else ""
            name = one_line(paths.display(row["path"]))
            out.line(f"{row['mode']}  {row['size']:>{wide}}  {name}{link}")
        if len(files) > shown:
            left = format_count(len(files) - shown, "file")
            out.line(f"and {left} more (pipe to less to see all)", style="dim")

    return CommandResult(rows, tell)


def _row(path: str, item: Item) -> dict[str, Any]:
    return {
        "path": path,
        "type": _TYPES.get(item.type, "file"),
        "mode": f"{item.mode:03o}",
        "size": item.size,
        "id": item.id or None,
        "target": os.fsdecode(item.target) if item.type == LINK else None,
    }


def _content(tree: Tree, item: Item, typed: str, out: Output) -> CommandResult:
    if item.type == LINK:
        target = os.fsdecode(item.target)
        return CommandResult(target, lambda out: out.line(one_line(target)))
    data = pieces(tree, item)
    if out.is_terminal:
        begin = next(data, b"")
        if b"\0" in begin[:_PROBE]:
            raise InvalidInputError(
                f"{short_repr(typed, 200)} is a binary file ({format_size(item.size)}). "
                "Redirect the output to a file: > FILE"
            )
        text = b"".join([begin, *data]).decode("utf-8", "replace")
        return CommandResult(None, lambda out: out.line(text.removesuffix("\n")))
    out.write(data)  # streamed while the store is open, because a file may not fit in memory
    return CommandResult(None, lambda out: None)
