"""`effects`: external side effects of sessions, and the outcomes that users record."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.effect_output import all_ledgers, effect_json, match_id
from agent_checkpoint.cli.output import CommandResult, Output, format_time, masked, one_line
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.present.fork_points import session_record_of
from agent_checkpoint.session.effects.outcomes import resolve_effect
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import Effect

EXAMPLES = """
agent-checkpoint effects                       session of the current directory
agent-checkpoint effects fix-bug-42            another session
agent-checkpoint effects --all --unknown       effects with unknown outcome, all sessions
agent-checkpoint effects resolve 3f2a --happened   record that the effect happened
agent-checkpoint effects resolve 3f2a --not        record that it did not: it may be retried
"""
_STYLES = {"unknown": "red", "undoing": "red", "failed": "dim", "undone": "dim"}
_UNKNOWN = ("unknown", "undoing")


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional(
        "what",
        "KEY",
        "the session (default: that of the current directory); or `resolve`, to record the "
        "outcome of an effect",
    )
    parser.optional("id", "ID", "resolve: the effect id, or a unique prefix of it")
    parser.flag("--all", "list the effects of all sessions")
    parser.flag("--unknown", "list only effects with unknown outcome")
    answer = parser.add_mutually_exclusive_group()
    answer.add_argument("--happened", action="store_true", help="resolve: the effect happened")
    answer.add_argument(
        "--not", action="store_true", dest="did_not", help="resolve: the effect did not happen"
    )
    parser.add("--note", "TEXT", "resolve: a note, such as the evidence", default="")
    parser.no_mask()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """List effects, or record the outcome of one."""
    with location.manager() as manager:
        if args.what == "resolve":
            return _resolve(args, manager)
        if args.id is not None or args.happened or args.did_not:
            raise InvalidInputError(
                "To record an outcome, run `agent-checkpoint effects resolve ID --happened`, or "
                "--not."
            )
        if args.all:
            found = [item for ledger in all_ledgers(manager.store) for item in ledger.all_effects()]
        else:
            key = location.key(manager, args.what, sessions=True)
            found = _of_session(manager, key)
    chosen = [item for item in found if not args.unknown or item.status in _UNKNOWN]
    found_rows = [effect_json(item) for item in sorted(chosen, key=lambda item: item.ts)]
    rows: list[dict[str, Any]] = masked(args, found_rows)
    return CommandResult(rows, lambda out: _show(out, rows))


def _of_session(manager: CheckpointManager, key: str) -> list[Effect]:
    meta = session_record_of(manager.store, key)
    if meta is None:
        return []
    ledger = Ledger(manager.store, meta.family)
    ledger.refresh()
    if meta.key != key:
        meta = meta.fork(key, None)
    return [
        effect
        for effect in ledger.all_effects()
        if effect.session == meta.key or meta.knows(effect.session, effect.seq)
    ]


def _resolve(args: Args, manager: CheckpointManager) -> CommandResult:
    if args.id is None:
        raise InvalidInputError(
            "No effect id given. Run `agent-checkpoint effects --unknown` to list them."
        )
    if not (args.happened or args.did_not):
        raise InvalidInputError("Pass --happened or --not.")
    ledgers = {
        name: ledger for ledger in all_ledgers(manager.store) for name in ledger.state.effects
    }
    name = match_id(args.id, ledgers, "effect")
    ledger = ledgers[name]
    resolve_effect(ledger, name, happened=args.happened, note=args.note)
    data: dict[str, Any] = masked(args, effect_json(ledger.state.effects[name]))

    def show(out: Output) -> None:
        outcome = "happened" if args.happened else "did not happen, may be retried"
        out.line(f"Recorded: {one_line(data['words'], 200)}: {outcome}.", style="green")

    return CommandResult(data, show)


def _show(out: Output, rows: list[dict[str, Any]]) -> None:
    if not rows:
        out.line("No external side effects recorded.")
        return
    for row in rows:
        style = _STYLES.get(row["status"], "")
        note = f"  {one_line(row['note'], 200)}" if row["note"] else ""
        # `resolve` accepts a prefix, so a terminal shows only that.
        name = one_line(row["id"], 40) if out.columns is None else one_line(row["id"][:8])
        out.pieces(
            (name, "cyan"),
            (f"  {one_line(row['status'], 20):9}", style or "green"),
            (f"  {format_time(row['ts'])}", "dim"),
            (f"  {one_line(row['subagent'], 60)}:" if row["subagent"] else "", "dim"),
            (f"  {one_line(row['words'], out.limit(200))}", ""),
            (f"  {one_line(row['kind'], 20)}{note}", "dim"),
        )
    unknown = [row for row in rows if row["status"] in _UNKNOWN]
    if unknown:
        out.line("The outcome of some effects is unknown.")
        name = one_line(unknown[0]["id"], 40)
        out.hint(
            "To record the outcome (--happened or --not)",
            f"effects resolve {name} --happened",
            style="",
        )
