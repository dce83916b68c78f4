"""What a rollback passes over, in words. Owns the report and the notices; decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.session.tools.tool import IDEMPOTENT, REVERSIBLE, registered_tool
from agent_checkpoint.store.ledger.ledger import COMMITTED, UNDOING, UNDONE, Effect, Ledger

if TYPE_CHECKING:
    from agent_checkpoint.workspace.restore.plan import Plan

_SHOWN = 20


@dataclass(repr=False)
class RollbackReport:
    """What a rollback did, or would do, and what it cannot take back."""

    target: str
    """The checkpoint that it goes back to."""
    parts: list[str]
    """What goes back; the rest stays."""
    adopts: bool = False
    """Whether it is the end of a fork that the session adopts."""
    id: str | None = None
    """The new head; None if nothing was done."""
    safety_id: str | None = None
    """The checkpoint that holds what was there before."""
    replayable: list[Effect] = field(default_factory=list)
    """They stand, and give their result again when they are asked for."""
    compensable: list[Effect] = field(default_factory=list)
    """They stand, and can be undone."""
    irreversible: list[Effect] = field(default_factory=list)
    unknown: list[Effect] = field(default_factory=list)
    """Nobody knows whether they happened."""
    compensated: list[Effect] = field(default_factory=list)
    """They were undone by this rollback."""
    gone: list[Effect] = field(default_factory=list)
    """They were undone outside, although the state has their results again."""
    failure: str | None = None
    """Why the compensation stopped half-way."""
    void: list[str] = field(default_factory=list)
    """Requests for approval that are void now."""
    files: Plan | None = None
    """What is done to the files."""
    foreign: bool = False
    """Whether the target was imported, or is not proven to be this user's."""
    files_digest: str | None = None
    """What tells whether the files are still those that a preview was made of; None if there were
    none to look at."""
    notices: list[str] = field(default_factory=list)
    """What still stands outside, for the agent to be told."""

    def __repr__(self) -> str:
        return f"<RollbackReport to {self.target}: {'done' if self.id else 'not done'}>"

    @property
    def blocking(self) -> list[Effect]:
        """Those for which a rollback is refused unless somebody says `warn`."""
        return [*self.irreversible, *self.unknown]

    @property
    def effects(self) -> list[Effect]:
        """All effects that it passes over."""
        return [*self.blocking, *self.compensable, *self.replayable, *self.gone]

    def sort(self, effects: Iterable[Effect], is_own: Callable[[str], bool]) -> None:
        """Take in the effects since the target.

        Args:
            effects: those that stand.
            is_own: whether a session's effects are this one's to undo.
        """
        for effect in effects:
            if not is_own(effect.session) and effect.kind == REVERSIBLE:
                self.irreversible.append(effect)
            elif effect.status != COMMITTED:
                self.unknown.append(effect)
            elif effect.kind == IDEMPOTENT:
                self.replayable.append(effect)
            elif effect.kind == REVERSIBLE and can_be_undone(effect):
                self.compensable.append(effect)
            else:
                self.irreversible.append(effect)

    def __str__(self) -> str:
        told = self._told(_row)
        return f"{told}\nThe compensation stopped: {self.failure}" if self.failure else told

    def outline(self) -> str:
        """Return the same without arguments of calls, for the text of an error."""
        return self._told(_short_row)

    def _told(self, row: Callable[[Effect], str]) -> str:
        verbs = (
            ("has adopted", "would adopt") if self.adopts else ("went back to", "would go back to")
        )
        parts = ", ".join(self.parts) or "nothing that is not the same"
        lines = [f"The session {verbs[0 if self.id else 1]} {self.target}: {parts}."]
        lists: list[tuple[str, Iterable[Any]]] = [
            ("Cannot be undone:", self.irreversible),
            ("Nobody knows whether it stands:", self.unknown),
            ("Was undone:", self.compensated),
            ("Was undone outside, although the state has its result again:", self.gone),
            ("Stands, and could be undone:", self._left()),
            ("Stands, and gives its result again when it is asked for:", self.replayable),
        ]
        for heading, effects in lists:
            rows = [row(effect) for effect in effects]
            if rows:
                more = [f"  … and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
                lines += [heading, *rows[:_SHOWN], *more]
        if self.void:
            lines.append(f"Requests for approval that are void now: {', '.join(self.void)}.")
        if self.files is not None:
            lines.append(str(self.files))
        if self.safety_id and self.id:
            lines.append(f"What was there before is {self.safety_id}; session.undo() goes there.")
        return "\n".join(lines)

    def _left(self) -> list[Effect]:
        gone = {effect.id for effect in (*self.compensated, *self.unknown)}
        return [effect for effect in self.compensable if effect.id not in gone]


def refusal(report: RollbackReport) -> str:
    """Return why a rollback is refused, and what can be done about it."""
    number = len(report.blocking)
    hint = ""
    if report.unknown:
        hint = (
            " What nobody knows, a person can find out and say: session.resolve("
            f"{report.unknown[0].id!r}, happened=True if it stands, else False)."
        )
    return (
        f"Not rolled back: {number} thing{'s' if number > 1 else ''} done outside cannot be taken "
        f'back. Roll back all the same with effects="warn", or go back less far.{hint}\n'
        f"{report.outline()}"
    )


def can_be_undone(effect: Effect) -> bool:
    """Tell whether a tool that can undo an effect was imported here."""
    tool = registered_tool(effect)
    return tool is not None and tool.undo is not None


def unseen_effect_notice(effect: Effect) -> str:
    """Return what an agent is told about an effect that its state does not know of."""
    when = _when(effect.ts)
    if effect.status == UNDOING:
        return (
            f"{effect.words}, done at {when}, was being undone when the work stopped: nobody knows "
            f"whether it stands. A person has to say: session.resolve({effect.id!r}, "
            "happened=True if it stands, else False)."
        )
    if effect.status != COMMITTED and effect.kind == IDEMPOTENT:
        return (
            f"{effect.words} was begun at {when}, and nobody knows whether it happened. It may be "
            "done again: twice is as once."
        )
    if effect.status != COMMITTED:
        return (
            f"{effect.words} was begun at {when}, and nobody knows whether it happened. A person "
            f"has to say: session.resolve({effect.id!r}, happened=True or False)."
        )
    return (
        f"{effect.words} was done at {when} and stands, although the session's state knows nothing "
        "of it. Do not do it again: the same call gives the result of the first time."
    )


def still_compensated(ledger: Ledger, names: Iterable[str]) -> list[Effect]:
    """Return those of the effects that were undone, and were not made again since."""
    known = (ledger.effects[name] for name in names if name in ledger.effects)
    undone = [item for item in sorted(known, key=lambda item: item.seq) if item.status == UNDONE]
    standing = [effect for effect in ledger.all_effects() if effect.stands] if undone else []
    return [effect for effect in undone if not any(_is_again(item, effect) for item in standing)]


def _is_again(later: Effect, effect: Effect) -> bool:
    """Tell whether an effect is another one made anew; without a key it has another identity."""
    is_alike = (later.tool, later.module, later.digest) == (
        effect.tool,
        effect.module,
        effect.digest,
    )
    return later.seq > effect.seq and (is_alike or later.identity == effect.identity)


def compensated_notice(effect: Effect) -> str:
    """Return what an agent is told about an effect that only its state has."""
    return (
        f"{effect.words} was done at {_when(effect.ts)} and was undone since: it does not stand, "
        "although the session's state has its result. The same call does it again."
    )


def _row(effect: Effect) -> str:
    return f"  {effect.words} {_about(effect)}"


def _short_row(effect: Effect) -> str:
    return f"  {effect.title} {_about(effect)}"


def _about(effect: Effect) -> str:
    more = ", its undo was begun" if effect.status == UNDOING else ""
    return f"({effect.kind}, {_when(effect.ts)}{more})"


def _when(ts: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts))
