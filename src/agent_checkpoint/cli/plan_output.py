"""Formats restore plans as text and JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from agent_checkpoint.cli.output import Output, format_count, json_fields, one_line
from agent_checkpoint.cli.paths import RelativePaths, without_git
from agent_checkpoint.workspace.restore.plan import Plan
from agent_checkpoint.workspace.tree.tree_format import FOLDER

_SHOWN = 15


def show_plan_heading(out: Output, plan: Plan, directory: Path | str) -> None:
    """Show the directory, and the numbers of files to write and to delete."""
    totals = _totals(plan)
    out.line(f"In {one_line(directory)}:{' ' if totals else ''}{totals}")


def _totals(plan: Plan) -> str:
    """Return the numbers of files, such as `2 files to write, 1 to delete`.

    Directories are not counted, unless nothing else is written or deleted.
    """
    found: list[tuple[int, str, str]] = []
    for verb, items in (
        ("write", [step.after for step in plan.steps if not step.keeps_content]),
        ("delete", [step.before for step in plan.steps if step.after is None]),
    ):
        types = [item.type for item in items if item is not None]
        files = sum(each != FOLDER for each in types)
        found.append((files or len(types), "file" if files else "directory", f"to {verb}"))
    found.append((len(plan.mode), "mode", "to set"))
    parts, last = [], ""
    for number, noun, action in found:
        if number:
            words = f"{number:,}" if noun == last else _counted(number, noun)
            parts.append(f"{words} {action}")
            last = noun
    return ", ".join(parts)


def _counted(number: int, noun: str) -> str:
    is_plural = noun == "directory" and number != 1
    return f"{number:,} directories" if is_plural else format_count(number, noun)


def show_plan(
    out: Output,
    plan: Plan,
    paths: RelativePaths,
    *,
    is_foreign: bool = False,
    is_copy: bool = False,
) -> None:
    """Show the paths to write, to delete and to keep, with the reasons.

    Args:
        out: the output.
        plan: the plan.
        paths: how paths are displayed.
        is_foreign: whether the files may come from another user. If so, all executable files, and
            all files that git runs or reads settings from, are listed without a limit.
        is_copy: whether the files go to another directory; many new files are then not listed.
    """
    shown = out.limit(_SHOWN)
    for words, changed, more, style in (
        ("write", plan.write, "more to write", "green"),
        ("delete", plan.delete, "more to delete", "red"),
        ("set the mode of", plan.mode, "more modes to set", ""),
    ):
        if is_copy and words == "write" and len(changed) > _SHOWN:
            continue
        named, of_git = without_git(changed)
        rows = [f"  {words} {one_line(paths.display(path))}" for path in named]
        out.some(rows, shown, f"  … and {{:,}} {more}", style=style)
        for path, number in of_git.items():
            inside = format_count(number, "file")
            out.line(f"  {words} {one_line(paths.display(path))} ({inside})", style=style)
    _show_kept(out, plan, paths)
    show_concurrent_writes(out, plan, paths)
    for line in plan.git[:shown]:
        out.line(f"  git: {one_line(line)}", style="yellow")
    unseen = len(plan.unseen)
    if unseen:
        was, they_are = ("was", "it is") if unseen == 1 else ("were", "they are")
        out.line(
            f"  {unseen:,} of these {was} never saved; {they_are} saved in a safety "
            "checkpoint first.",
            style="yellow",
        )

    if is_foreign:
        show_foreign(out, plan, paths)


def show_foreign(out: Output, plan: Plan, paths: RelativePaths) -> None:
    """List the paths of an untrusted plan that could run code."""
    out.line("  These files are not verified to be yours.", style="yellow")
    for words, found in (
        ("becomes executable", plan.executable),
        ("is run or read by git", plan.git_files),
    ):
        for path in found:
            out.line(f"  {words}: {one_line(paths.display(path))}", style="bold red")


def show_plan_changes(
    out: Output, before: Plan | None, done: Plan | None, paths: RelativePaths
) -> None:
    """Show the differences between the applied plan and the preview."""
    if done is not None:
        shown = {} if before is None else before.leave
        fresh = {path: why for path, why in done.leave.items() if path not in shown}
        _show_kept(out, replace(done, leave=fresh), paths)
        show_concurrent_writes(out, done, paths)


def show_concurrent_writes(out: Output, plan: Plan, paths: RelativePaths) -> None:
    """Show files that other processes wrote, or still have open, during a restore."""
    for path, where in plan.kept.items():
        what = f"{one_line(paths.display(path))} was changed during the restore"
        out.line(
            f"  {what}: that version is kept as {one_line(paths.display(where))}", style="yellow"
        )
    for path in plan.open[: out.limit(_SHOWN)]:
        what = f"another process has {one_line(paths.display(path))} open"
        out.line(f"  {what}: its writes go to the old file", style="yellow")


def _show_kept(out: Output, plan: Plan, paths: RelativePaths) -> None:
    named, _ = without_git(list(plan.leave))
    rows = [
        f"  keep {one_line(paths.display(path))}: {one_line(plan.leave[path])}" for path in named
    ]
    out.some(rows, out.limit(_SHOWN), "  … and {:,} more to keep", style="yellow")
    # Directories that are kept because of their entries are not listed.
    holding = {str(above) for path in plan.leave for above in PurePosixPath(path).parents}
    inside = {path: why for path, why in plan.leave.items() if path not in holding}
    for why in dict.fromkeys(inside.values()):
        _, of_git = without_git([path for path, reason in inside.items() if reason == why])
        for path, number in of_git.items():
            what = f"{one_line(paths.display(path))} ({format_count(number, 'file')})"
            out.line(f"  keep {what}: {one_line(why)}", style="yellow")


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON data."""
    return json_fields(
        plan, "write delete mode leave kept open unseen git executable git_files safety_id"
    )
