"""The MCP server: its tools, and a person's confirmation of a restore. Needs the extra `mcp`.

Answers have secrets masked. A restore needs the confirmation of the shown plan, for which the
client must support elicitation. Annotations are evaluated, because `mcp` reads the signatures.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Optional

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from agent_checkpoint import __version__
from agent_checkpoint.cli.hints import error_text
from agent_checkpoint.cli.mcp.tools import MOST_TEXT, CheckpointTools, ShownRestore
from agent_checkpoint.cli.output import one_line
from agent_checkpoint.cli.plan_output import plan_json
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.redaction import mask, mask_json
from agent_checkpoint.workspace.restore.plan import PlanChangedError

_MOST_PLANS = 16
_INSTRUCTIONS = (
    "Checkpoints of the files in {directory}. list_checkpoints lists them, show_checkpoint and "
    "diff_checkpoint look into one, save_checkpoint saves the files as they are. "
    "restore_checkpoint asks the user first. Checkpoints are named @17 (number 17), @~1 (the one "
    "before the latest) or by their id."
)

Id = Annotated[str, Field(description="a checkpoint: @17, @~1, or an id", max_length=2000)]


class Confirmation(BaseModel):
    """The answer of the person."""

    restore: bool = Field(description="Restore these files? This overwrites the current ones.")


class ShownPlans:
    """The plans that were shown to a person, by request."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, ShownRestore] = OrderedDict()

    def put(self, ctx: Context, found: ShownRestore) -> None:
        """Keep the plan of a request; old ones are forgotten."""
        self._plans[str(ctx.request_id)] = found
        while len(self._plans) > _MOST_PLANS:
            self._plans.popitem(last=False)

    def take(self, ctx: Context) -> ShownRestore:
        """Return the plan of a request, once. Raises ToolError if there is none."""
        found = self._plans.pop(str(ctx.request_id), None)
        if found is None:
            raise ToolError("Nothing was restored: the plan was not shown. Call the tool again.")
        return found


def make_server(location: StoreLocation) -> MCPServer:
    """Return the server for the directory and the store of a command."""
    tools, shown = CheckpointTools(location), ShownPlans()
    instructions = _INSTRUCTIONS.format(directory=location.directory)
    server = MCPServer("agent-checkpoint", instructions=instructions, version=__version__)
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    adds = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    changes = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)

    @server.tool(annotations=reads)
    def list_checkpoints(key: Optional[str] = None, limit: int = 20) -> dict[str, Any]:
        """List the newest checkpoints of this directory and its sessions."""
        with _answering(), location.manager() as manager:
            return _bounded(tools.list_checkpoints(manager, key, limit))

    @server.tool(annotations=reads)
    def show_checkpoint(id: Id, path: Optional[str] = None) -> dict[str, Any]:
        """Show the contents of a checkpoint; with a path, a file or directory in it."""
        with _answering(), location.manager() as manager:
            return _bounded(tools.show(manager, id, path))

    @server.tool(annotations=reads)
    def diff_checkpoint(id: Id, other: Optional[str] = None) -> dict[str, Any]:
        """Show the changes from a checkpoint to another one, or to the current files."""
        with _answering(), location.manager() as manager:
            return _bounded(tools.diff(manager, id, other))

    @server.tool(annotations=adds)
    def save_checkpoint(label: Optional[str] = None) -> dict[str, Any]:
        """Save the files of this directory as they are now."""
        with _answering():
            return _bounded(tools.save(label))

    @server.tool(annotations=adds)
    def fork_checkpoint(id: Id, name: str) -> dict[str, Any]:
        """Start a new branch, under a new key, from a checkpoint. Changes no files."""
        with _answering(), location.manager() as manager:
            return _bounded(tools.fork(manager, id, name))

    def confirmation(ctx: Context, id: str, paths: list[str]) -> Any:
        with _answering(), location.manager() as manager:
            found = tools.plan(manager, id, paths)
            command = tools.command_for(found)
        shown.put(ctx, found)
        if not found.plan:
            return Confirmation(restore=True)  # there is nothing to ask
        if not _can_ask(ctx):
            raise ToolError(
                "Nothing was restored: this client cannot ask a person for confirmation. Ask the "
                f"user to run: {command}"
            )
        # An answer counts only for the same message, and so for the same plan.
        return Elicit(
            f"Restore {one_line(location.directory)} from {one_line(found.checkpoint.id)}?\n"
            f"{mask(found.text)}Plan {found.plan.digest[:16]}.",
            Confirmation,
        )

    @server.tool(annotations=changes)
    def restore_checkpoint(
        ctx: Context,
        id: Id,
        answer: Annotated[ElicitationResult[Confirmation], Resolve(confirmation)],
        paths: list[str] = [],  # noqa: B006 - never changed
    ) -> dict[str, Any]:
        """Restore files of this directory from a checkpoint, after the user has confirmed it."""
        found = shown.take(ctx)
        if not isinstance(answer, AcceptedElicitation) or not answer.data.restore:
            raise ToolError("Nothing was restored: the user declined.")
        if not found.plan:
            return {"id": found.checkpoint.id, "done": False, **plan_json(found.plan)}
        with _answering(), location.manager() as manager:
            try:
                return _bounded(tools.apply(manager, found))
            except PlanChangedError:
                raise ToolError(
                    "Nothing was restored: files have changed since the plan was shown. Call the "
                    "tool again."
                ) from None

    return server


@contextmanager
def _answering() -> Iterator[None]:
    """Turn errors into answers for the client, with secrets masked."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        raise ToolError(mask(error_text(error))) from error
    except SystemExit:  # of the parser of a command
        raise ToolError("Invalid arguments.") from None


def _can_ask(ctx: Context) -> bool:
    """Return whether the client can ask a person."""
    declared = ctx.client_capabilities
    asks = None if declared is None else declared.elicitation
    return asks is not None and (asks.form is not None or asks.url is None)


def _bounded(data: Any) -> dict[str, Any]:
    """Return data with secrets masked, cut off if it is very large."""
    masked = mask_json(data)
    text = json.dumps(masked, ensure_ascii=False, default=str)
    if len(text) <= MOST_TEXT:
        return {"result": masked} if not isinstance(masked, dict) else masked
    return {"cut_off_at": MOST_TEXT, "json": text[:MOST_TEXT]}
