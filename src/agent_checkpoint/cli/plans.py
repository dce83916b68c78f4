"""What is done to files, for people and programs. Owns the words about a plan; decides nothing."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.cli.out import Out, inert
from agent_checkpoint.workspace.plan import Plan

_SHOWN = 15


def show_plan(out: Out, plan: Plan) -> None:
    """Show what is done to which paths, what is left alone, and why."""
    if not plan and not plan.leave:
        out.line("Nothing to do: the files are what they were.")
        return
    for words, paths, style in (
        ("write", plan.write, "green"),
        ("delete", plan.delete, "red"),
        ("set the mode of", plan.mode, ""),
    ):
        for path in paths[:_SHOWN]:
            out.line(f"  {words} {inert(path)}", style=style)
        if len(paths) > _SHOWN:
            out.line(f"  {words} {len(paths) - _SHOWN:,} more", style=style)
    for path, why in list(plan.leave.items())[:_SHOWN]:
        out.line(f"  leave {inert(path)}: {inert(why)}", style="yellow")
    if len(plan.leave) > _SHOWN:
        out.line(f"  leave {len(plan.leave) - _SHOWN:,} more", style="yellow")
    for line in plan.git[:_SHOWN]:
        out.line(f"  git: {inert(line)}", style="yellow")
    if plan.unseen:
        out.line(
            f"  {len(plan.unseen):,} of these were never saved before; the safety checkpoint "
            "holds them.",
            style="yellow",
        )


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "write": plan.write,
        "delete": plan.delete,
        "mode": plan.mode,
        "leave": plan.leave,
        "unseen": plan.unseen,
        "git": plan.git,
        "safety_id": plan.safety_id,
    }
