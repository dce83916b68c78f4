"""`save`: a directory, as it is now."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agent_checkpoint.cli.out import Answer, Out, count, size
from agent_checkpoint.cli.places import Places, existing_directory

EXAMPLES = """
agent-checkpoint save                      this directory
agent-checkpoint save ~/repo -m "it works"   another one, with a label
agent-checkpoint save --ignore '*.log'     all but some files
"""


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("directory", nargs="?", metavar="DIR", help="what; this one if none")
    parser.add_argument("-m", "--label", help="what you call it")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out; repeatable",
    )
    parser.add_argument("--gitignore", action="store_true", help="leave out what .gitignore says")
    parser.add_argument("--force", action="store_true", help="also / or a home directory")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: Namespace, places: Places) -> Answer:
    """Save it."""
    from agent_checkpoint.workspace.workspace import Workspace

    place = existing_directory(args.directory, places.directory)
    with places.manager() as manager:
        options = {"ignore": args.ignore, "gitignore": args.gitignore, "force": args.force}
        with Workspace(place, manager.store, watch=False, **options) as workspace:
            before = manager.store.head(workspace.key)
            tree = workspace.snapshot(label=args.label, full=True)
            head = manager.store.head(workspace.key)
    if head is None:
        raise AssertionError("unreachable: it was just saved")
    is_new = before is None or before.id != head.id
    notes = [f"{note.path}: {note.kind}" for note in tree.notes]
    data = {
        "id": head.id,
        "key": head.key,
        "tree": tree.id,
        "files": tree.files,
        "bytes": tree.bytes,
        "new": is_new,
        "notes": notes,
    }

    def show(out: Out) -> None:
        what = f"{count(tree.files, 'file')}, {size(tree.bytes)}"
        words = "Saved" if is_new else "Nothing has changed since"
        out.line(f"{words} @{head.seq}: {place} ({what})")
        for note in notes[:10]:
            out.line(f"  {note}", style="yellow")
        if is_new:
            out.line(f"Back to it: agent-checkpoint restore @{head.seq}", style="dim")

    return Answer(data, show)
