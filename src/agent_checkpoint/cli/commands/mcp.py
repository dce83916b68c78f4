"""`mcp`: serve the checkpoints of a directory to an agent by the Model Context Protocol."""

from __future__ import annotations

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.extras import missing_extra
from agent_checkpoint.cli.output import CommandResult
from agent_checkpoint.cli.store_location import StoreLocation, existing_directory

EXAMPLES = """
agent-checkpoint mcp                   serve the current directory on stdin and stdout
agent-checkpoint mcp ~/repo            serve another directory
claude mcp add checkpoints -- agent-checkpoint mcp   add the server to Claude Code
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("directory", "DIR", "the directory (default: the current one)")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Serve until stdin is closed."""
    try:
        from agent_checkpoint.cli.mcp.server import make_server
    except ImportError:
        raise missing_extra("mcp", "The MCP server") from None
    directory = existing_directory(args.directory, location.directory)
    make_server(location.at(directory)).run("stdio")
    return CommandResult({}, lambda out: None)
