"""`blame`: shows which step wrote each line of a file."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    format_time,
    masked,
    one_line,
)
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.trajectory.line_origins import blame, parse_range

EXAMPLES = """
agent-checkpoint blame src/app.py              every line, with the step that wrote it
agent-checkpoint blame src/app.py -L 10,40     some lines
agent-checkpoint blame src/app.py --at @17     as it was at a checkpoint
agent-checkpoint blame src/app.py --key fix-bug-42   the history of one session only
"""
_STEP_WIDTH, _WORDS_WIDTH = 24, 40


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("file", "FILE", "the file")
    parser.add_argument(
        "-L", dest="lines", metavar="FIRST,LAST", help="only these lines: 10,40, 10 or 10,+5"
    )
    parser.add("--key", "KEY", "only this key (default: all keys of the directory)")
    parser.add("--at", "ID", "the file at a checkpoint (default: the present file)")
    parser.flag("--prompts", "show the prompt of each step")
    parser.no_mask()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Show the lines."""
    with location.manager() as manager:
        at = None if args.at is None else location.checkpoint(manager, args.at, args.key).id
        # The default of --key and of the file's directory is that of the file, not of the store.
        path = location.directory / args.file if args.key is None and at is None else args.file
        found = blame(path, store=manager, key=args.key, at=at)
    if args.lines is not None:
        chosen = parse_range(args.lines, len(found))
        found = found[chosen.start - 1 : chosen.stop - 1]
    data: list[dict[str, Any]] = masked(args, [line.to_dict() for line in found])
    return CommandResult(data, lambda out: _show(out, data, with_prompts=args.prompts))


def _show(out: Output, lines: list[dict[str, Any]], *, with_prompts: bool) -> None:
    before: Any = None
    wide = len(str(lines[-1]["number"])) if lines else 1
    for line in lines:
        step = line["step"]
        name = None if step is None else step["checkpoint"]
        if name != before or line is lines[0]:
            who, words = _heading(step, line["first"])
            prompt = one_line(step["prompt"], 80) if step and with_prompts else ""
        else:
            who, words, prompt = "", "", ""
        before = name
        if prompt:
            out.pieces((f"{'':{_STEP_WIDTH + _WORDS_WIDTH + 2}}  prompt: {prompt}", "dim"))
        out.pieces(
            (f"{_cut(who, _STEP_WIDTH, end=True)}  ", "cyan"),
            (f"{_cut(words, _WORDS_WIDTH)}  ", ""),
            (f"{line['number']:>{wide}} ", "dim"),
            (one_line(line["text"]), ""),
        )


def _heading(step: dict[str, Any] | None, is_first: bool) -> tuple[str, str]:
    if step is None:
        return "not saved yet", ""
    who = f"{one_line(step['key'])}{step['at']}"
    if is_first:
        return who, f"first checkpoint, {format_time(step['ts'])}"
    words = one_line(step["words"])
    outside = "" if step["calls"] else "outside of a call: "
    return who, f"{format_time(step['ts'])}  {outside}{words}"


def _cut(text: str, width: int, *, end: bool = False) -> str:
    """Return a text of a width; of a long one, its beginning or its end."""
    if len(text) <= width:
        return f"{text:{width}}"
    return f"…{text[1 - width :]}" if end else f"{text[: width - 1]}…"
