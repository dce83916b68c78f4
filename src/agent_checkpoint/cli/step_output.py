"""Shows a step of a trajectory: its calls, prompt, time and the part of the conversation."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.cli.output import Output, format_time, one_line
from agent_checkpoint.present.message_line import message_line

_MESSAGES, _WIDTH = 6, 200


def show_step(out: Output, step: dict[str, Any]) -> None:
    """Show a step, given as `Step.to_dict` returns it."""
    room = out.limit(_WIDTH)
    who = f", {one_line(step['agent'], 40)}" if step["agent"] else ""
    out.line(f"  {format_time(step['ts'])}{who}", style="dim")
    for call in step["calls"]:
        out.pieces((f"  {one_line(call['words'], room)}", "cyan"))
        if call["error"] is not None:
            out.pieces((f"    failed: {one_line(call['error'], room)}", "red"))
    if not step["calls"]:
        out.pieces((f"  outside of a tool call: {one_line(step['words'], room)}", "yellow"))
    if step["prompt"]:
        out.pieces((f"  prompt: {one_line(step['prompt'], room)}", ""))
    for message in step["messages"][-out.limit(_MESSAGES) :]:
        out.pieces((f"    {message_line(message, room, out.limit)}", "dim"))


def show_diff(out: Output, text: str) -> None:
    """Show a unified diff."""
    for line in text.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        out.pieces((one_line(line), style))
