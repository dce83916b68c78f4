"""Effects on the outside: whether one may be made now. Owns the rules, and which are whose.

What a session has done is given back and never done twice. What a relative has done is in the way
and is not given back: it belongs to another line of events. What nobody knows, a person decides.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from agent_checkpoint.errors import (
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
)
from agent_checkpoint.records import show
from agent_checkpoint.session.effects.approvals import check_unused, void_unusable
from agent_checkpoint.session.effects.idempotency import Numbers, Slot, identity_of
from agent_checkpoint.session.effects.outcomes import Outcomes
from agent_checkpoint.session.session_record import Meta
from agent_checkpoint.session.tools.call_arguments import encoded, in_words
from agent_checkpoint.session.tools.tool import IDEMPOTENT, IRREVERSIBLE, Tool, check_same_tool
from agent_checkpoint.store.ledger.ledger import (
    COMMITTED,
    UNDONE,
    UNKNOWN,
    Effect,
    Epoch,
    Ledger,
    Request,
)


class Decision(NamedTuple):
    """What to do about a call: make the effect, or give back what it gave the first time."""

    effect: Effect
    is_replay: bool
    result: Any = None


class Effects(Outcomes):
    """The effects of one session, and what stands in their way."""

    def __init__(
        self, ledger: Ledger, meta: Meta, epoch: Epoch, owner: Callable[[Tool, str | None], Any]
    ) -> None:
        """Keep account of a session; `owner` gives the part that a method is called on."""
        super().__init__(ledger, meta, epoch, owner)
        self._under_way: dict[str, Any] = {}
        """By which call each is made."""
        self._numbers = Numbers()

    # -- names -----------------------------------------------------------------------------------

    def number(self, tool: Tool, digest: str, task: str | None, call: Any) -> Slot | None:
        """Return which one a call is among its like, until it is over; None if it has a key."""
        return self._numbers.take(self.meta, tool, digest, task, call)

    def give_back(self, call: Any, slot: Slot | None) -> None:
        """Have a call be met again by the next of its kind: its result has reached nobody."""
        for effect_id in [name for name, other in self._under_way.copy().items() if other is call]:
            self._under_way.pop(effect_id, None)
        self._numbers.give_back(self.meta, call, slot)

    def release(self, call: Any) -> None:
        """Forget a call that has returned."""
        self._numbers.release(call)

    # -- may it be made? -------------------------------------------------------------------------

    def decide(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        identity: str,
        digest: str,
        task: str | None,
        at: str,
        request: Request | None = None,
        part: str | None = None,
        call: Any = None,
    ) -> Decision:
        """Return what to do; if the effect is to be made, its beginning is durable.

        Args:
            tool: whose effect it is.
            arguments: with which it is called.
            identity: what it is the same as.
            digest: of the arguments that were asked for.
            task: the task under way.
            at: the id of the head.
            request: what a person agreed to; it is used up.
            part: the part of the session whose method it is.
            call: who makes it.

        Raises:
            EffectConflictError: it was made with other arguments, or by a relative.
            EffectUnknownError: nobody knows whether it was made.
            EffectError: a fork may not make it.
            InvalidInputError: the arguments that the approver wants have no key; their answer is
                void then.
            ConflictError: the session was opened elsewhere.
        """
        also = None
        if request is not None and tool.key is not None:
            try:
                also = identity_of(tool, arguments, digest, task, part=part)
            except InvalidInputError as error:
                void_unusable(self.ledger, request, self.epoch, error)
                raise
        found = self.look(tool, identity, digest, call)
        if found is not None:
            return found
        self.check_allowed(tool)
        effect_id = secrets.token_hex(8)

        def guard() -> None:
            names = [identity] if also in (None, identity) else [identity, str(also)]
            taken = [effect for name in names for effect in self._in_the_way(name, digest)]
            if taken:
                raise EffectConflictError(
                    f"{taken[-1].title} was {_done(taken[-1])} by the session "
                    f"{show(taken[-1].session)}: it is not done twice."
                )
            if request is not None:
                check_unused(self.ledger, request)

        before = [effect for effect in self.ledger.of(identity) if effect.status == UNDONE]
        parts = {"arguments": encoded(dict(arguments), f"{tool.name}'s arguments")}
        self._under_way[effect_id] = call  # before others can see it: they would ask about it
        try:
            self.ledger.append(
                "started",
                parts=parts,
                fence=self.epoch,
                guard=guard,
                effect=effect_id,
                session=self.meta.key,
                epoch=self.epoch.number,
                kind=tool.kind,
                tool=tool.name,
                module=tool.module,
                identity=identity,
                also=also if also != identity else None,
                digest=digest,
                task=task,
                at=at,
                part=part,
                words=in_words(tool.name, arguments),
                generation=len(before),
                request=None if request is None else request.id,
            )
        except BaseException as error:
            self._under_way.pop(effect_id, None)
            is_edited = request is not None and also not in (None, identity)
            if request is not None and is_edited and isinstance(error, EffectConflictError):
                void_unusable(self.ledger, request, self.epoch, error)
            raise
        return Decision(self.ledger.effects[effect_id], False)

    def check_allowed(self, tool: Tool) -> None:
        """See to it that a fork does nothing that it may not. Raises EffectError."""
        if tool.kind == IRREVERSIBLE and not self.meta.irreversible:
            raise EffectError(
                f"{show(self.meta.key)} is a fork, and forks may not do what cannot be undone: "
                f"{tool.name}. Do it in the session that it was forked from, "
                'or fork with effects="allow".'
            )

    def look(self, tool: Tool, identity: str, digest: str, call: Any = None) -> Decision | None:
        """Return what to do if such an effect is there already, else None. Raises as `decide`."""
        self.ledger.refresh()
        for effect in reversed(self._in_the_way(identity, digest)):
            check_same_tool(tool, effect, effect.title)
            if not self.is_ours(effect):
                raise EffectConflictError(
                    f"{effect.title} was {_done(effect)} by the session {show(effect.session)}, a "
                    "relative of this one: it is not done twice. Go on in that session, or do "
                    "something else."
                )
            if effect.id in self._under_way:
                raise EffectConflictError(f"{effect.title} is being done at this moment.")
            if effect.digest != digest:
                raise EffectConflictError(
                    f"{effect.title} was {_done(effect)} before under the same key, with other "
                    "arguments. Do it with those, to get its result, or under another key."
                )
            if effect.status == COMMITTED:
                return Decision(effect, True, self.result(effect))
            return self._clear_up(tool, effect, call)
        return None

    def _in_the_way(self, identity: str, digest: str) -> list[Effect]:
        """Return the effects that stand; to repeat an idempotent one of others does no harm."""
        return [
            effect
            for effect in self.ledger.of(identity)
            if effect.stands
            and (self.is_ours(effect) or effect.kind != IDEMPOTENT or effect.digest != digest)
        ]

    def _clear_up(self, tool: Tool, effect: Effect, call: Any) -> Decision | None:
        """Find out about an effect that was begun, and of which no more is known."""
        self.verify(effect, tool)
        if effect.status == COMMITTED:
            return Decision(effect, True, self.result(effect))
        if not effect.stands:
            return None
        if effect.kind == IDEMPOTENT and effect.status == UNKNOWN:
            self.ledger.refresh()
            self.ledger.check(self.epoch)
            self._under_way[effect.id] = call
            return Decision(effect, False)
        raise EffectUnknownError(
            f"{effect.title} was begun before, and nobody knows whether it happened. Find out, and "
            f"say so: session.resolve({effect.id!r}, happened=True or False)."
        )

    def over(self, effect: Effect) -> None:
        """Note that the call is over, however it went."""
        self._under_way.pop(effect.id, None)

    # -- which there are -------------------------------------------------------------------------

    def is_ours(self, effect: Effect) -> bool:
        """Tell whether an effect is of this session's own past."""
        if effect.session == self.meta.key:
            return True
        return any(effect.session == key and effect.seq <= seq for key, seq in self.meta.lineage)

    def since(self, seq: int) -> Iterator[Effect]:
        """Iterate over those of this session that still stand and were begun after a record."""
        for effect in self.ledger.all_effects():
            if effect.seq > seq and effect.stands and self.is_ours(effect):
                yield effect

    def unknown(self) -> Iterator[Effect]:
        """Iterate over those of this session of which nobody knows whether they happened."""
        for effect in self.since(0):
            if effect.status != COMMITTED and effect.id not in self._under_way:
                yield effect

    def find_out(self) -> None:
        """Ask the tools about all effects of which nothing is known; what cannot be told stays."""
        for effect in list(self.unknown()):
            with suppress(EffectUnknownError):  # it stays in the list, which is shown
                self.verify(effect)


def _done(effect: Effect) -> str:
    return "done" if effect.status == COMMITTED else "begun"
