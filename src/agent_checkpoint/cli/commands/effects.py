"""`effects`: what was done outside, and what a person says became of it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from agent_checkpoint.cli.effect_output import all_ledgers, effect_data, named
from agent_checkpoint.cli.output import Answer, Out, format_time, one_line
from agent_checkpoint.cli.prompts import add_json
from agent_checkpoint.cli.store_location import Places
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.session.effects.outcomes import EffectOutcomes
from agent_checkpoint.session.session_record import SessionRecord, read_session_record
from agent_checkpoint.store.ledger.ledger import Effect, Epoch, Ledger

EXAMPLES = """
agent-checkpoint effects                       of this directory's session
agent-checkpoint effects fix-bug-42            of another
agent-checkpoint effects --all --unknown       of which nobody knows whether they happened
agent-checkpoint effects resolve 3f2a --happened   it did: the mail has arrived
agent-checkpoint effects resolve 3f2a --not        it did not: it may be done again
"""
_STYLES = {"unknown": "red", "undoing": "red", "failed": "dim", "undone": "dim"}
_UNKNOWN = ("unknown", "undoing")


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument(
        "what",
        nargs="?",
        metavar="KEY",
        help="which session; this directory's if none. `resolve` says what became of one",
    )
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="after `resolve`: the effect, or how its id begins"
    )
    parser.add_argument("--all", action="store_true", help="of all sessions")
    parser.add_argument("--unknown", action="store_true", help="those of which nobody knows")
    answer = parser.add_mutually_exclusive_group()
    answer.add_argument("--happened", action="store_true", help="resolve: it stands")
    answer.add_argument("--not", action="store_true", dest="did_not", help="resolve: it does not")
    parser.add_argument("--note", default="", metavar="TEXT", help="resolve: how you know")
    add_json(parser)


def run(args: Namespace, places: Places) -> Answer:
    """List or resolve them."""
    with places.manager() as manager:
        if args.what == "resolve":
            return _resolve(args, manager)
        if args.id is not None or args.happened or args.did_not:
            raise InvalidInputError(
                "Say `agent-checkpoint effects resolve ID --happened`, or --not."
            )
        if args.all:
            found = [item for ledger in all_ledgers(manager.store) for item in ledger.all_effects()]
        else:
            key = places.key(manager, args.what, sessions=True)
            found = _of_session(manager, key)
    chosen = [item for item in found if not args.unknown or item.status in _UNKNOWN]
    rows = [effect_data(item) for item in sorted(chosen, key=lambda item: item.ts)]
    return Answer(rows, lambda out: _show(out, rows))


def _of_session(manager: CheckpointManager, key: str) -> list[Effect]:
    head = manager.store.head(key)
    meta = None if head is None else read_session_record(manager.store, head)
    if meta is None:
        return []
    ledger = Ledger(manager.store, meta.family)
    ledger.refresh()
    if meta.key != key:
        meta = meta.fork(key, None)
    return [effect for effect in ledger.all_effects() if _is_of(meta, effect)]


def _is_of(meta: SessionRecord, effect: Effect) -> bool:
    """Tell whether an effect is of a session's own past."""
    if effect.session == meta.key:
        return True
    return any(effect.session == key and effect.seq <= seen for key, seen in meta.lineage)


def _resolve(args: Namespace, manager: CheckpointManager) -> Answer:
    if args.id is None:
        raise InvalidInputError("Name the effect: `agent-checkpoint effects --unknown` lists them.")
    if not (args.happened or args.did_not):
        raise InvalidInputError("Say --happened if it stands, or --not.")
    ledgers = list(all_ledgers(manager.store))
    name = named(args.id, [name for ledger in ledgers for name in ledger.effects], "effect")
    ledger = next((ledger for ledger in ledgers if name in ledger.effects), None)
    if ledger is None:
        raise NotFoundError(f"There is no effect {name}.")
    effect = ledger.effects[name]
    # Nobody is fenced off by it: whoever has the session open goes on, and sees the answer.
    meta, epoch = SessionRecord(effect.session, ledger.lineage), Epoch(effect.session, 0)
    outcomes = EffectOutcomes(ledger, meta, epoch, lambda tool, part: None)
    outcomes.resolve(name, happened=args.happened, note=args.note)
    data = effect_data(ledger.effects[name])

    def show(out: Out) -> None:
        words = "stands" if args.happened else "did not happen, and may be done again"
        out.line(f"Noted: {one_line(data['words'], 200)} {words}.", style="green")

    return Answer(data, show)


def _show(out: Out, rows: list[dict[str, Any]]) -> None:
    if not rows:
        out.line("Nothing was done outside, as far as tools have said.")
        return
    for row in rows:
        style = _STYLES.get(row["status"], "")
        note = f"  {one_line(row['note'], 200)}" if row["note"] else ""
        limit = None if out.columns is None else 200
        # On a terminal the beginning will do, as it does for `resolve`.
        name = one_line(row["id"], 40) if out.columns is None else one_line(row["id"][:8])
        out.pieces(
            (name, "cyan"),
            (f"  {one_line(row['status'], 20):9}", style or "green"),
            (f"  {format_time(row['ts'])}", "dim"),
            (f"  {one_line(row['words'], limit)}", ""),
            (f"  {one_line(row['kind'], 20)}{note}", "dim"),
        )
    unknown = [row for row in rows if row["status"] in _UNKNOWN]
    if unknown:
        out.line("Of some nobody knows whether they happened.")
        name = one_line(unknown[0]["id"], 40)
        out.hint(
            "Find out, and say --happened or --not", f"effects resolve {name} --happened", style=""
        )
