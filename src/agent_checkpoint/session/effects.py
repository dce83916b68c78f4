"""Effects on the outside: whether one may be made now. Owns the rules; runs `verify` and `undo`.

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
    NotFoundError,
)
from agent_checkpoint.records import show
from agent_checkpoint.session.approvals import arguments_of, check_unused, decoded
from agent_checkpoint.session.arguments import encoded, in_words, recorded
from agent_checkpoint.session.deed import Deed
from agent_checkpoint.session.fitting import fitted, settled, wants_owner
from agent_checkpoint.session.identity import Numbers, Slot, identity_of
from agent_checkpoint.session.meta import Meta
from agent_checkpoint.session.tools import IDEMPOTENT, IRREVERSIBLE, Tool, check_same_tool, tool_of
from agent_checkpoint.store.ledger import (
    BEFORE,
    COMMITTED,
    FAILED,
    UNDOING,
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


class Effects:
    """The effects of one session, and what stands in their way."""

    def __init__(
        self, ledger: Ledger, meta: Meta, epoch: Epoch, owner: Callable[[Tool, str | None], Any]
    ) -> None:
        """Keep account of a session; `owner` gives the part that a method is called on."""
        self._owner = owner
        self.ledger = ledger
        self.meta = meta
        self.epoch = epoch
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
            ConflictError: the session was opened elsewhere.
        """
        also = None
        if request is not None and tool.key is not None:
            also = identity_of(tool, arguments, digest, task, part=part)
        found = self.look(tool, identity, digest, call)
        if found is not None:
            return found
        if tool.kind == IRREVERSIBLE and not self.meta.irreversible:
            raise EffectError(
                f"{show(self.meta.key)} is a fork, and forks may not do what cannot be undone: "
                f"{in_words(tool.name, arguments)}. Do it in the session that it was forked from."
            )
        effect_id = secrets.token_hex(8)

        def guard() -> None:
            names = [identity] if also in (None, identity) else [identity, str(also)]
            taken = [effect for name in names for effect in self._in_the_way(name, digest)]
            if taken:
                raise EffectConflictError(
                    f"{taken[-1].words} was {_done(taken[-1])} by the session "
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
        except BaseException:
            self._under_way.pop(effect_id, None)
            raise
        return Decision(self.ledger.effects[effect_id], False)

    def look(self, tool: Tool, identity: str, digest: str, call: Any = None) -> Decision | None:
        """Return what to do if such an effect is there already, else None. Raises as `decide`."""
        self.ledger.refresh()
        for effect in reversed(self._in_the_way(identity, digest)):
            check_same_tool(tool, effect, effect.words)
            if not self.is_ours(effect):
                raise EffectConflictError(
                    f"{effect.words} was {_done(effect)} by the session {show(effect.session)}, a "
                    "relative of this one: it is not done twice. Go on in that session, or do "
                    "something else."
                )
            if effect.id in self._under_way:
                raise EffectConflictError(f"{effect.words} is being done at this moment.")
            if effect.digest != digest:
                raise EffectConflictError(
                    f"{effect.words} was {_done(effect)} before under the same key, with other "
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
            f"{effect.words} was begun before, and nobody knows whether it happened. Find out, and "
            f"say so: session.resolve({effect.id!r}, happened=True or False)."
        )

    # -- what became of it -----------------------------------------------------------------------

    def commit(self, effect: Effect, result: Any) -> None:
        """Note that an effect was made. Also who was replaced meanwhile must say so.

        A result that cannot be kept is described.

        Raises:
            EffectConflictError: it was undone meanwhile, by another holder of the session.
            StorageError: the medium failed.
        """
        described = False
        try:
            tree = encoded(result, "The result")
        except InvalidInputError:  # it has happened all the same
            tree, described = encoded(recorded(result), "The result"), True
        self._become(COMMITTED, effect, described=described, parts={"result": tree})
        if effect.status != COMMITTED:
            raise EffectConflictError(
                f"{effect.words} was done, and another holder of the session has undone it before "
                f"that, so it says: it is {effect.status}. Look whether it stands."
            )

    def fail(self, effect: Effect, note: str) -> None:
        """Note that an effect was not made, if nobody knows better. Raises StorageError."""
        self._become(FAILED, effect, note=note[:500])

    def _become(self, status: str, effect: Effect, **record: Any) -> bool:
        """Add the record that says so; tell whether it did not come too late."""

        def guard() -> None:
            if effect.status not in BEFORE[status]:
                raise _TooLate

        fence = self.epoch if status == UNDOING else None
        try:
            self.ledger.append(status, guard=guard, fence=fence, effect=effect.id, **record)
        except _TooLate:
            return False
        return True

    def over(self, effect: Effect) -> None:
        """Note that the call is over, however it went."""
        self._under_way.pop(effect.id, None)

    def verify(self, effect: Effect, tool: Tool | None = None) -> None:
        """Ask the tool whether an effect happened, if it can tell, and note the answer.

        Not about one of the session that this was forked from: it may be doing it right now.

        Raises:
            EffectUnknownError: asking failed.
        """
        tool = tool or tool_of(effect)
        self.ledger.refresh()
        if effect.status != UNKNOWN or effect.session != self.meta.key:
            return
        if tool is None or tool.verify is None:
            return
        try:
            outcome = self._ask(tool, tool.verify, effect)
        except Exception as error:
            raise EffectUnknownError(
                f"{effect.words} was begun before, and its verify= failed ({error!r}): nobody "
                "knows whether it happened."
            ) from error
        if outcome is None:
            self.fail(effect, "verify= says that it did not happen")
        else:
            self.commit(effect, outcome)

    def resolve(
        self, effect_id: str, *, happened: bool, result: Any = None, note: str = ""
    ) -> None:
        """Say what a person found out about an effect of which nothing was known.

        Raises:
            NotFoundError: there is no such effect.
            EffectError: it is known what became of it.
        """

        def guard() -> None:
            effect = self.ledger.effects.get(effect_id)
            if effect is None:
                raise NotFoundError(f"There is no effect {show(effect_id)}.")
            if effect.status not in (UNKNOWN, UNDOING):
                raise EffectError(f"{effect.words} is known to be {effect.status} already.")

        self.ledger.refresh()
        known = getattr(self.ledger.effects.get(effect_id), "parts", {})
        parts = {}
        if happened and (result is not None or "result" not in known):  # else it was being undone
            parts = {"result": encoded(result, "The result")}
        self.ledger.append(
            "resolved", guard=guard, effect=effect_id, happened=happened, note=note, parts=parts
        )

    def undo(self, effect: Effect) -> None:
        """Undo an effect that can be undone.

        Raises:
            EffectError: it cannot be, here and now, or its `undo` failed: then nobody knows.
        """
        tool = tool_of(effect)
        if tool is None or tool.undo is None:
            raise EffectError(f"{effect.words} cannot be undone here: no tool has an undo= for it.")
        if not self._become(UNDOING, effect):
            raise EffectError(f"{effect.words} cannot be undone: it is {effect.status}.")
        try:
            result = None if effect.described else self.result(effect)
            self._ask(tool, tool.undo, effect, result=result)
        except Exception as error:
            raise EffectError(f"undo= of {effect.words} failed: {error!r}.") from error
        self._become(UNDONE, effect)

    def _ask(self, tool: Tool, function: Callable[..., Any], effect: Effect, **more: Any) -> Any:
        """Call a function of a tool that is about one effect. Raises what it raises."""
        arguments = tool.offered(self.arguments(effect))
        if tool.is_method and wants_owner(function):
            arguments = {**arguments, "self": self._owner(tool, effect.part)}
        return settled(fitted(function, arguments, effect=Deed(effect, self.family), **more))

    # -- which there are -------------------------------------------------------------------------

    @property
    def family(self) -> str:
        """The name of the ledger."""
        return self.ledger.family

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

    def arguments(self, effect: Effect) -> dict[str, Any]:
        """Return the arguments with which an effect is to be made. Raises CheckpointError."""
        return arguments_of(self.ledger, effect)

    def result(self, effect: Effect) -> Any:
        """Return what an effect gave.

        Raises:
            EffectError: that could not be kept, or was purged.
        """
        if effect.described:
            raise EffectError(
                f"{effect.words} was done, and what it returned could not be kept: "
                f"{decoded(self.ledger, effect.parts, 'result')}. Let the tool return plain data."
            )
        return decoded(self.ledger, effect.parts, "result") if "result" in effect.parts else None


class _TooLate(Exception):
    """What became of an effect is known already."""


def _done(effect: Effect) -> str:
    return "done" if effect.status == COMMITTED else "begun"
