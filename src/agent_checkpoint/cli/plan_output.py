"""What is done to files, for people and programs. Owns the words about a plan; decides nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from agent_checkpoint.cli.output import Out, format_count, one_line
from agent_checkpoint.cli.paths import Paths, without_git
from agent_checkpoint.workspace.restore.plan import Plan

_SHOWN = 15


def show_plan(out: Out, plan: Plan, paths: Paths, *, is_foreign: bool = False) -> None:
    """Show what is done to which paths, what is left alone, and why.

    Args:
        out: where to.
        plan: what is shown.
        paths: how paths are called here.
        is_foreign: whether the files may be of somebody else. Then each that can be run, or that
            git runs or takes settings from, is named, however many there are.
    """
    shown = out.limit(_SHOWN)
    for words, changed, style in (
        ("write", plan.write, "green"),
        ("delete", plan.delete, "red"),
        ("set the mode of", plan.mode, ""),
    ):
        named, of_git = without_git(changed)
        for path in named[:shown]:
            out.line(f"  {words} {one_line(paths.shown(path))}", style=style)
        if len(named) > shown:
            out.line(f"  {words} {len(named) - shown:,} more", style=style)
        for path, number in of_git.items():
            inside = format_count(number, "file")
            out.line(f"  {words} {one_line(paths.shown(path))} ({inside})", style=style)
    _show_left(out, plan, paths)
    show_meanwhile(out, plan, paths)
    for line in plan.git[:shown]:
        out.line(f"  git: {one_line(line)}", style="yellow")
    unseen = len(plan.unseen)
    if unseen:
        was, them = ("was", "it") if unseen == 1 else ("were", "them")
        out.line(
            f"  {unseen:,} of these {was} never saved before; the safety checkpoint holds {them}.",
            style="yellow",
        )

    if is_foreign:
        show_foreign(out, plan, paths)


def show_foreign(out: Out, plan: Plan, paths: Paths) -> None:
    """Name what of a plan could run code, of files that may be of somebody else."""
    out.line("  These files are not proven to be yours.", style="yellow")
    for words, found in (
        ("becomes executable", plan.executable),
        ("is run or read by git", plan.git_files),
    ):
        for path in found:
            out.line(f"  {words}: {one_line(paths.shown(path))}", style="bold red")


def show_since(out: Out, before: Plan | None, done: Plan | None, paths: Paths) -> None:
    """Show what became of files otherwise than the preview said."""
    if done is not None:
        shown = {} if before is None else before.leave
        fresh = {path: why for path, why in done.leave.items() if path not in shown}
        _show_left(out, replace(done, leave=fresh), paths)
        show_meanwhile(out, done, paths)


def show_meanwhile(out: Out, plan: Plan, paths: Paths) -> None:
    """Show what became of versions that others wrote, or may still write, during a restore."""
    for path, where in plan.kept.items():
        what = f"a version of {one_line(paths.shown(path))} was written meanwhile"
        out.line(f"  {what}: it is kept as {one_line(paths.shown(where))}", style="yellow")
    for path in plan.open[: out.limit(_SHOWN)]:
        what = f"another process has {one_line(paths.shown(path))} open"
        out.line(f"  {what}: what it still writes goes to the old file", style="yellow")


def _show_left(out: Out, plan: Plan, paths: Paths) -> None:
    shown = out.limit(_SHOWN)
    named, _ = without_git(list(plan.leave))
    for path in named[:shown]:
        why = one_line(plan.leave[path])
        out.line(f"  leave {one_line(paths.shown(path))}: {why}", style="yellow")
    if len(named) > shown:
        out.line(f"  leave {len(named) - shown:,} more", style="yellow")
    # Directories stay for what is left in them: that goes without saying.
    holding = {str(above) for path in plan.leave for above in PurePosixPath(path).parents}
    inside = {path: why for path, why in plan.leave.items() if path not in holding}
    for why in dict.fromkeys(inside.values()):
        _, of_git = without_git([path for path, said in inside.items() if said == why])
        for path, number in of_git.items():
            what = f"{one_line(paths.shown(path))} ({format_count(number, 'file')})"
            out.line(f"  leave {what}: {one_line(why)}", style="yellow")


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "write": plan.write,
        "delete": plan.delete,
        "mode": plan.mode,
        "leave": plan.leave,
        "kept": plan.kept,
        "open": plan.open,
        "unseen": plan.unseen,
        "git": plan.git,
        "executable": plan.executable,
        "git_files": plan.git_files,
        "safety_id": plan.safety_id,
    }
