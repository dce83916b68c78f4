"""The report of a rollback, and notices about effects. Owns their text; decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import Hint, RollbackRefusedError
from agent_checkpoint.session.agent_scope import part_groups
from agent_checkpoint.session.tools.effect_kinds import behaviour_of
from agent_checkpoint.session.tools.tool import registered_tool
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.store.ledger.ledger_status import COMMITTED, UNDOING, UNDONE

if TYPE_CHECKING:
    from agent_checkpoint.workspace.restore.plan import Plan

_SHOWN = 20


@dataclass(repr=False)
class RollbackReport:
    """The changes of a rollback, and the external side effects that it cannot undo."""

    target: str
    """The checkpoint to roll back to."""
    parts: list[str]
    """The parts that are rolled back."""
    adopts: bool = False
    """Whether this is the adoption of a fork."""
    id: str | None = None
    """The rollback checkpoint; None if nothing was changed."""
    safety_id: str | None = None
    """The safety checkpoint saved before the rollback."""
    replayable: list[Effect] = field(default_factory=list)
    """Idempotent effects: a repeated call returns the recorded result."""
    compensable: list[Effect] = field(default_factory=list)
    """Effects with a compensation (`undo=`) available."""
    irreversible: list[Effect] = field(default_factory=list)
    unknown: list[Effect] = field(default_factory=list)
    """Effects whose outcome is unknown."""
    compensated: list[Effect] = field(default_factory=list)
    """Effects that this rollback compensated."""
    gone: list[Effect] = field(default_factory=list)
    """Compensated effects whose results the restored state contains."""
    failure: str | None = None
    """Why the compensation stopped."""
    void: list[str] = field(default_factory=list)
    """Approval requests that became void."""
    files: Plan | None = None
    """The plan for the files."""
    foreign: bool = False
    """Whether the target was imported, or has no valid HMAC under this user's secret."""
    files_digest: str | None = None
    """A digest of the file plan, to detect changes after a preview; None without files."""
    notices: list[str] = field(default_factory=list)
    """Messages for the agent about effects that its restored state does not reflect."""

    def __repr__(self) -> str:
        return f"<RollbackReport to {self.target}: {'done' if self.id else 'not done'}>"

    @property
    def blocking(self) -> list[Effect]:
        """Effects for which a rollback is refused unless the policy is `warn`."""
        return [*self.irreversible, *self.unknown]

    @property
    def effects(self) -> list[Effect]:
        """All effects that the rollback concerns."""
        return [*self.blocking, *self.compensable, *self.replayable, *self.gone]

    def classify(self, effects: Iterable[Effect], is_own: Callable[[str], bool]) -> None:
        """Classify the effects since the target.

        Args:
            effects: the effects that remain.
            is_own: returns whether this session may compensate effects of a session.
        """
        for effect in effects:
            behaviour = behaviour_of(effect.kind)
            if not is_own(effect.session) and behaviour.is_compensable:
                self.irreversible.append(effect)
            elif effect.status != COMMITTED:
                self.unknown.append(effect)
            elif behaviour.is_repeatable:
                self.replayable.append(effect)
            elif behaviour.is_compensable and can_be_undone(effect):
                self.compensable.append(effect)
            else:
                self.irreversible.append(effect)

    def __str__(self) -> str:
        text = self._text(_row)
        return f"{text}\nThe compensation failed: {self.failure}" if self.failure else text

    def _repr_html_(self) -> str:
        with block_forks():
            from agent_checkpoint import notebook  # only in notebooks

        title, _, rest = str(self).partition("\n")
        return notebook.section(title, notebook.lines(rest)) if rest else notebook.text(title)

    def outline(self) -> str:
        """Return the report without call arguments, for the text of an error."""
        return self._text(_short_row)

    def _text(self, row: Callable[[Effect], str]) -> str:
        verbs = (
            ("adopted", "would adopt") if self.adopts else ("rolled back to", "would roll back to")
        )
        parts = ", ".join(part_groups(self.parts)) or "no changed parts"
        lines = [f"The session {verbs[0 if self.id else 1]} {self.target}: {parts}."]
        lists: list[tuple[str, Iterable[Any]]] = [
            ("Irreversible external side effects:", self.irreversible),
            ("Outcome unknown:", self.unknown),
            ("Compensated:", self.compensated),
            ("Compensated earlier, although the restored state has the result:", self.gone),
            ("Still in place, can be compensated:", self._not_compensated()),
            ("Still in place, a repeated call returns the recorded result:", self.replayable),
        ]
        for heading, effects in lists:
            rows = [row(effect) for effect in effects]
            if rows:
                more = [f"  … and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
                lines += [heading, *rows[:_SHOWN], *more]
        if self.void:
            lines.append(f"Voided approval requests: {', '.join(self.void)}.")
        if self.files is not None:
            lines.append(str(self.files))
        if self.safety_id and self.id:
            lines.append(f"Safety checkpoint: {self.safety_id}; session.undo() returns to it.")
        return "\n".join(lines)

    def _not_compensated(self) -> list[Effect]:
        tried = {effect.id for effect in (*self.compensated, *self.unknown)}
        return [effect for effect in self.compensable if effect.id not in tried]


def refusal(report: RollbackReport) -> RollbackRefusedError:
    """Return the error for effects that the rollback cannot undo: the reason, and the options."""
    number = len(report.blocking)
    hint = Hint('Pass effects="warn" to roll back anyway, or choose a later checkpoint.', "effects")
    if report.unknown:
        effect = report.unknown[0].id
        hint = Hint(
            f"{hint} Record an unknown outcome with session.resolve("
            f"{effect!r}, happened=True if the effect is in place, else False).",
            "effects_unknown",
            effect=effect,
        )
    return RollbackRefusedError(
        f"Not rolled back: {number} external side effect{'s' if number > 1 else ''} since the "
        f"target {'are' if number > 1 else 'is'} irreversible or in doubt.\n{report.outline()}",
        report,
        hint=hint,
    )


def can_be_undone(effect: Effect) -> bool:
    """Return whether a registered tool has an `undo=` for an effect."""
    tool = registered_tool(effect)
    return tool is not None and tool.undo is not None


def unseen_effect_notice(effect: Effect) -> str:
    """Return the notice about an effect that the state does not contain."""
    when = _when(effect.ts)
    if effect.status == UNDOING:
        return (
            f"{effect.words}, executed at {when}: its compensation was interrupted, outcome "
            f"unknown. A person must record it with session.resolve({effect.id!r}, "
            "happened=True if the effect is in place, else False)."
        )
    if effect.status != COMMITTED and behaviour_of(effect.kind).is_repeatable:
        return (
            f"{effect.words} was started at {when}, outcome unknown. It is idempotent: the call "
            "may be repeated."
        )
    if effect.status != COMMITTED:
        return (
            f"{effect.words} was started at {when}, outcome unknown. A person must record it "
            f"with session.resolve({effect.id!r}, happened=True or False)."
        )
    return (
        f"{effect.words} was executed at {when} and is still in place, although the session's "
        "state does not contain it. Do not repeat it: the same call returns the recorded result."
    )


def still_compensated(ledger: Ledger, names: Iterable[str]) -> list[Effect]:
    """Return the effects that were compensated and not repeated since."""
    known = (ledger.state.effects[name] for name in names if name in ledger.state.effects)
    undone = [item for item in sorted(known, key=lambda item: item.seq) if item.status == UNDONE]
    standing = [effect for effect in ledger.all_effects() if effect.stands] if undone else []
    return [effect for effect in undone if not any(_is_again(item, effect) for item in standing)]


def _is_again(later: Effect, effect: Effect) -> bool:
    """Return whether an effect repeats another; without a key it has another identity."""
    is_alike = (later.tool, later.module, later.digest) == (
        effect.tool,
        effect.module,
        effect.digest,
    )
    return later.seq > effect.seq and (is_alike or later.identity == effect.identity)


def compensated_notice(effect: Effect) -> str:
    """Return the notice about a compensated effect whose result the state contains."""
    return (
        f"{effect.words} was executed at {_when(effect.ts)} and compensated since. It is no longer "
        "in place, although the session's state contains its result. The same call executes it "
        "again."
    )


def _row(effect: Effect) -> str:
    return f"  {effect.words} {_about(effect)}"


def _short_row(effect: Effect) -> str:
    return f"  {effect.title} {_about(effect)}"


def _about(effect: Effect) -> str:
    more = ", compensation started" if effect.status == UNDOING else ""
    return f"({effect.kind}, {_when(effect.ts)}{more})"


def _when(ts: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts))
