"""`approvals`: tool calls that need approval, and the decisions on them."""

from __future__ import annotations

import getpass
import os
import shlex
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.cli.effect_output import all_ledgers, match_id, request_json
from agent_checkpoint.cli.output import CommandResult, Output, format_time, masked, one_line
from agent_checkpoint.cli.prompts import add_json
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import CheckpointError, InvalidInputError, StateError
from agent_checkpoint.formatting import shell_quote, value_summary
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import same_json, short_repr
from agent_checkpoint.session.effects.approvals import Approvals, edits_of
from agent_checkpoint.session.effects.edited_arguments import (
    fitting_value,
    read_json,
    typed_value,
)
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest
from agent_checkpoint.store.store import Store

EXAMPLES = """
agent-checkpoint approvals                     pending requests of all sessions
agent-checkpoint approvals list fix-bug-42     pending requests of one session
agent-checkpoint approvals approve approval-3f2a
agent-checkpoint approvals deny approval-3f2a "not on a Friday"
agent-checkpoint approvals revoke approval-3f2a    take the answer back, if it was not used yet
agent-checkpoint approvals edit approval-3f2a --set cents=995 --set 'title=Version 1.2'
agent-checkpoint approvals edit approval-3f2a --set-json 'cents="all of it"'   another type
agent-checkpoint approvals edit approval-3f2a      edit the arguments in $EDITOR
"""
VERBS = ("list", "approve", "deny", "edit", "revoke")


class _Row(NamedTuple):
    data: dict[str, Any]
    status: str
    """The status, for display."""


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "verb",
        nargs="?",
        choices=VERBS,
        default="list",
        help="list (default), approve, deny, edit: approve with changed arguments, or revoke an "
        "answer that was not used yet",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="KEY|ID",
        help="list: the session (default: all); otherwise the request id, or a unique prefix of it",
    )
    parser.add_argument("why", nargs="?", metavar="REASON", help="deny: as --reason")
    parser.add_argument("--all", action="store_true", help="list: include decided requests")
    parser.add_argument("--reason", metavar="TEXT", help="deny: the reason, shown to the agent")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="edit: set an argument to a value of the same type; text needs no quotes; repeatable "
        "(default: open $EDITOR)",
    )
    parser.add_argument(
        "--set-json",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="edit: set an argument to a JSON value of any type; repeatable",
    )
    parser.add_argument(
        "--by", metavar="WHO", help="name of the approver (default: your user name)"
    )
    parser.add_argument(
        "--no-mask",
        action="store_true",
        help="show keys, tokens and passwords instead of masking them",
    )
    add_json(parser)


def run(args: Namespace, location: StoreLocation) -> CommandResult:
    """List requests, or decide on one."""
    if args.why is not None and (args.verb != "deny" or args.reason is not None):
        raise InvalidInputError(
            f"Unexpected argument {short_repr(args.why)}: only `deny` takes one reason."
        )
    with location.manager() as manager:
        approvals = Approvals(manager.store)
        if args.verb == "list":
            rows = [
                row._replace(data=masked(args, row.data))
                for row in _rows(manager.store, approvals, args.name, args.all)
            ]
            return CommandResult([row.data for row in rows], lambda out: _show(out, rows, args.all))
        if args.name is None:
            raise InvalidInputError(
                "No request id given. Run `agent-checkpoint approvals` to list them."
            )
        names = [name for ledger in all_ledgers(manager.store) for name in ledger.state.requests]
        name = match_id(args.name, names, "request")
        by = args.by or _user()
        if args.verb == "deny":
            approvals.deny(name, args.reason or args.why or "", by=by)
        elif args.verb == "revoke":
            approvals.revoke(name, by=by)
        else:
            edit = _edited(args, approvals, name) if args.verb == "edit" else None
            approvals.approve(name, edit=edit, by=by)
        data = request_json(approvals.get(name))
        data = masked(args, {**data, "arguments": _arguments(approvals, name)})

    def show_answer(out: Output) -> None:
        done = "Revoked" if args.verb == "revoke" else data["status"].capitalize()
        out.line(f"{done}: {one_line(data['words'], 200)}", style="green")
        if args.verb == "edit":
            out.line(f"  with {value_summary(data['arguments'], 500)}")
        if args.verb == "revoke":
            out.line("The request waits for another answer.")
        else:
            out.line("The session uses the decision when it is resumed.")
            out.hint("Until then, to revoke it", f"approvals revoke {shell_quote(name)}")

    return CommandResult(data, show_answer)


def _rows(store: Store, approvals: Approvals, key: str | None, answered: bool) -> list[_Row]:
    rows = []
    for request in approvals.pending(key):
        arguments = None if request.status == "unreadable" else _arguments(approvals, request.id)
        rows.append(_row(request, arguments, []))
    known = {row.data["id"] for row in rows}
    for ledger in all_ledgers(store) if answered else ():
        for request in ledger.state.requests.values():
            if request.id not in known and key in (None, request.session):
                edited: list[str] = []
                with suppress(StateError, InvalidInputError):  # as for `_arguments`
                    edited = list(edits_of(ledger, request))
                rows.append(_row(request, _arguments(approvals, request.id), edited))
    return rows


def _row(request: ApprovalRequest, arguments: dict[str, Any] | None, edited: list[str]) -> _Row:
    data = {**request_json(request), "arguments": arguments, "edited": edited}
    answer, then, use = request.status_text.partition(", ")
    by = f" by {one_line(request.by, 60)}" if request.by else ""
    return _Row(data, f"{answer}{by}{then}{use}")


def _arguments(approvals: Approvals, name: str) -> dict[str, Any] | None:
    try:
        return approvals.arguments(name)
    except (StateError, InvalidInputError):  # the class is not importable, or the value purged
        return None


def _edited(args: Namespace, approvals: Approvals, name: str) -> dict[str, Any]:
    current = approvals.arguments(name)
    if not args.set and not args.set_json:
        return _from_editor(current)
    found = {}
    for assignment in args.set:
        argument, text = _split(assignment, "--set", "VALUE")
        # A name that the call does not have is refused below, by `approve`.
        found[argument] = typed_value(argument, current.get(argument, ""), text)
    for assignment in args.set_json:
        argument, text = _split(assignment, "--set-json", "JSON")
        try:
            found[argument] = read_json(text)
        except ValueError:
            raise InvalidInputError(
                f"{short_repr(text)} is not JSON. For text, use --set {argument}=TEXT."
            ) from None
    return found


def _split(assignment: str, option: str, what: str) -> tuple[str, str]:
    argument, equals, text = assignment.partition("=")
    if not equals:
        raise InvalidInputError(f"{option} needs NAME={what}, not {short_repr(assignment)}.")
    return argument, text


def _from_editor(arguments: dict[str, Any]) -> dict[str, Any]:
    """Open the arguments in an editor; return the changed arguments."""
    import json

    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        before = json.dumps(arguments, indent=2, ensure_ascii=False)
        kept = json.loads(before)
    except (TypeError, ValueError):
        raise InvalidInputError(
            "The arguments cannot be represented as JSON. Edit them from Python."
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "arguments.json")
        file.touch(0o600)
        file.write_text(before + "\n", encoding="utf-8")
        try:
            done = subprocess.run([*command, str(file)], check=False)
        except OSError as error:
            raise InvalidInputError(
                f"Cannot run the editor {short_repr(command[0])}: {error}."
            ) from error
        text = file.read_text(encoding="utf-8")
    if done.returncode != 0:
        raise CheckpointError("The editor failed. The request is still pending.")
    try:
        after = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(
            f"The edited text is not JSON ({error}). The request is still pending."
        ) from None
    if not isinstance(after, dict) or kept.keys() - after.keys():
        raise InvalidInputError(
            "Arguments are missing in the edited text. The request is still pending."
        )
    changed = {
        name: value
        for name, value in after.items()
        if name not in kept or not same_json(value, kept[name])
    }
    for name in changed.keys() & arguments.keys():
        changed[name] = _as_before(name, arguments[name], kept[name], changed[name])
    if not changed:
        raise InvalidInputError(
            "No argument was changed. Use `approvals approve` to approve the call unchanged."
        )
    return changed


def _as_before(name: str, current: Any, as_json: Any, edited: Any) -> Any:
    """Return an edited JSON value with the type of the argument, where JSON has no such type.

    Raises:
        InvalidInputError: JSON cannot represent the argument, so types in it would be lost.
    """
    if (list(current) if isinstance(current, tuple) else current) != as_json:
        raise InvalidInputError(
            f"The argument {short_repr(name)} has values that JSON does not have. Edit it from "
            "Python. The request is still pending."
        )
    is_same_kind = isinstance(current, tuple) or type(current) is float
    if is_same_kind and type(edited) in (list, int):
        return fitting_value(name, current, edited)
    return edited


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def _show(out: Output, rows: list[_Row], answered: bool) -> None:
    if not rows:
        out.line("No approval requests." if answered else "No pending approval requests.")
        return
    limit = None if out.columns is None else 200
    for row, text in rows:
        late = f", until {format_time(row['expires'])}" if row["expires"] else ""
        status = "" if text == "pending" else f"  {text}"
        agent = f"  sub-agent {one_line(row['subagent'], 60)}" if row["subagent"] else ""
        out.pieces(
            (one_line(row["id"], 80), "cyan"),
            (f"  {one_line(row['session'], 60)}{agent}  {format_time(row['ts'])}{late}", "dim"),
            (one_line(status), "yellow"),
        )
        out.pieces((f"  {one_line(row['words'], limit)}", "bold"))
        for name, value in (row["arguments"] or {}).items():
            mark = " (edited)" if name in row["edited"] else ""
            shown = value_summary(value, limit or 100_000)
            out.pieces((f"    {one_line(name, 60)}{mark}: {shown}", "yellow" if mark else ""))
        if row["reason"]:
            out.pieces((f"    {one_line(row['reason'], limit)}", "dim"))
    if any(text == "pending" for _, text in rows):
        out.hint("To decide", "approvals approve|deny|edit ID")
