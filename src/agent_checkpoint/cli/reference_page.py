"""Generates `docs/cli.md` from the help of the commands.

`python -m agent_checkpoint.cli.reference_page` writes it to stdout.
"""

from __future__ import annotations

import sys

from agent_checkpoint.cli.args import parser_of, root_parser
from agent_checkpoint.cli.command_table import COMMANDS

_WIDTH = 96
_BEGIN = """\
# Command-line reference

Generated from the help of the commands by `python -m agent_checkpoint.cli.reference_page`;
edit the help, not this page. For a tour see [Use the command line](how-to/command-line.md).
"""


def page() -> str:
    """Return the whole page."""
    blocks = [_BEGIN, _fenced(root_parser().format_help(_WIDTH))]
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            blocks.append(f"## {group[0].upper()}{group[1:]}\n")
        blocks.append(f"### {command.name}\n")
        blocks.append(_fenced(parser_of(command.name).format_help(_WIDTH)))
    return "\n".join(blocks)


def _fenced(text: str) -> str:
    return f"```text\n{text}```\n"


if __name__ == "__main__":
    sys.stdout.write(page())
