"""What was done outside, and what waits for a person. Owns the pages where a person answers.

What is approved is what was seen: a card with a button has all of a call on it, and the form says
which call that was, by a digest of what was drawn.
"""

from __future__ import annotations

import json
from hashlib import sha256
from math import isfinite
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_checkpoint.errors import (
    CheckpointError,
    IntegrityError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.records import same_json, short_repr
from agent_checkpoint.session.effects.approvals import Approvals
from agent_checkpoint.session.effects.outcomes import EffectOutcomes
from agent_checkpoint.session.session_record import SessionRecord, read_session_record
from agent_checkpoint.store.ledger.ledger import (
    UNDOING,
    UNKNOWN,
    UNREADABLE,
    Effect,
    Epoch,
    Ledger,
)
from agent_checkpoint.store.ledger.ledger import Request as Asked
from agent_checkpoint.web.auth import same
from agent_checkpoint.web.page_text import MOST_OF_NAME, coded, columns, json_text, link
from agent_checkpoint.web.site import Refused, Site, as_json, asked, number, wanted
from agent_checkpoint.web.state.lazy_state import MAP, Peek, TooLarge, large_int
from agent_checkpoint.web.state.outline import exactly, written

PAGE = 100
"""Effects on a page."""
REQUESTS = 20
"""Requests on a page."""
MOST_ON_CARD = 20_000
"""Characters of a call on a page with several requests; also of all that can be edited of one."""
MOST_ALONE = 1_000_000
"""On the page of one request."""
_MOST_OF_EFFECT = 4000
_MOST_ARGUMENTS = 400
"""A form of this page has no more fields than that and some."""
_COLUMNS = 30
"""Characters on a line of a field, on a narrow screen."""
_BY = "the web page"


class Argument(NamedTuple):
    """An argument of a call that waits."""

    name: str
    text: str
    """As JSON, to be edited; else in a form that no other value has."""
    can_be_edited: bool
    is_whole: bool

    @property
    def rows(self) -> int:
        """How many lines a field needs in which nothing is out of sight."""
        return sum(1 + columns(line) // _COLUMNS for line in self.text.split("\n"))


class EffectRow(NamedTuple):
    """An effect, as it is shown."""

    effect: Effect
    arguments: str
    result: str
    is_whole: bool
    """Whether that is all of both."""
    is_open: bool
    """Whether a person has to say what became of it."""


class RequestRow(NamedTuple):
    """A request, as it is shown."""

    request: Asked
    arguments: list[Argument]
    trouble: str

    @property
    def seen(self) -> str:
        """What the form says of what was drawn; nothing unless that is all of the call."""
        asked = self.request
        names = [asked.tool, asked.session, *(argument.name for argument in self.arguments)]
        is_whole = all(argument.is_whole for argument in self.arguments)
        if self.trouble or not is_whole or max(map(len, names)) > MOST_OF_NAME:
            return ""
        drawn = [(argument.name, argument.text) for argument in self.arguments]
        told = json.dumps([asked.id, asked.session, asked.tool, asked.digest, drawn])
        return sha256(told.encode()).hexdigest()


def effects_page(site: Site, request: Request) -> Response:
    """Show what a session and its relatives did outside, the newest first."""
    said = asked(request)
    key = wanted(said, "key")
    ledger, meta = _ledger(site, key)
    start = number(said, "from")
    every = [one for one in ledger.all_effects()[::-1] if said.get("all") or _is_of(one, meta)]
    rows = [_effect_row(site, one) for one in every[start : start + PAGE]]
    requests = [one for one in list(ledger.requests.values())[::-1] if one.session == key]
    waiting = [one for one in requests if one.is_open][::-1]
    others = [one for one in requests if not one.is_open]
    return site.page(
        "effects.html",
        key=key,
        rows=rows,
        total=len(every),
        start=start,
        page=PAGE,
        all=bool(said.get("all")),
        waiting=[_request_row(site, one) for one in waiting[:REQUESTS]],
        number_waiting=len(waiting),
        others=[_request_row(site, one) for one in others[:REQUESTS]],
        number_others=len(others),
        version=_version(ledger),
    )


def approvals_page(site: Site, request: Request) -> Response:
    """Show what waits for an answer, of one session or of all, the oldest first."""
    said = asked(request)
    key, start = said.get("key") or None, number(said, "from")
    every = Approvals(site.store).pending(key)
    return site.page(
        "approvals.html",
        rows=[_request_row(site, one) for one in every[start : start + REQUESTS]],
        key=key,
        total=len(every),
        start=start,
        page=REQUESTS,
        unreadable=UNREADABLE,
        version=_version_of(every),
    )


def request_page(site: Site, request: Request) -> Response:
    """Show one request, with all of its arguments."""
    found = Approvals(site.store).get(wanted(asked(request), "id"))
    return site.page("request.html", row=_request_row(site, found, MOST_ALONE), key=found.session)


def waiting(site: Site, request: Request) -> Response:
    """Tell a page that is open what can still be answered, and whether it is out of date."""
    said = asked(request)
    key = said.get("key", "")
    if key and not said.get("approvals"):
        ledger, _ = _ledger(site, key)
        requests = [one for one in list(ledger.requests.values()) if one.session == key]
        found = [one.id for one in requests if one.is_open]
        found += [one.id for one in ledger.all_effects() if one.status in (UNKNOWN, UNDOING)]
        return as_json({"open": [coded(name) for name in found], "version": _version(ledger)})
    every = Approvals(site.store).pending(key or None)
    return as_json({"open": [coded(one.id) for one in every], "version": _version_of(every)})


async def approve(site: Site, request: Request) -> Response:
    """Agree to a call, perhaps with other arguments."""
    said = await site.form(request)
    return await site.in_thread(_approve, site, said)


async def deny(site: Site, request: Request) -> Response:
    """Refuse a call."""
    said = await site.form(request)

    def run() -> Response:
        approval = wanted(said, "approval")
        Approvals(site.store).deny(approval, said.get("reason", "")[:2000], by=_BY)
        return _answered(approval)

    return await site.in_thread(run)


async def resolve(site: Site, request: Request) -> Response:
    """Say what became of an effect of which nobody knew."""
    said = await site.form(request)
    return await site.in_thread(_resolve, site, said)


def _approve(site: Site, said: dict[str, str]) -> Response:
    approvals = Approvals(site.store)
    found = approvals.get(wanted(said, "approval"))
    row = _request_row(site, found, MOST_ALONE)
    if not row.seen or not same(said.get("seen", ""), row.seen):
        raise Refused(
            409,
            "Not approved: the form did not show all of this call, or showed another call. "
            "Open the page of the request, which shows all of it, and approve it there.",
        )
    edit: dict[str, Any] = {}
    # A field is named after the call that it was drawn for: a browser that goes back to a list puts
    # what was typed into fields of the same name, whatever the list has in that place by now.
    fields = {
        f"argument.{place}.{row.seen}": argument
        for place, argument in enumerate(row.arguments)
        if argument.can_be_edited
    }
    if any(name.startswith("argument.") and name not in fields for name in said):
        raise Refused(409, "Not approved: the form belongs to another call. Reload the page.")
    for name, argument in fields.items():
        if name not in said:
            continue
        text = said[name]
        value = _read(
            text,
            f'The argument {short_repr(argument.name)} is not JSON. A string needs quotes: "text".',
        )
        # A browser ends lines otherwise; what was not touched stays just what it was.
        if not same_json(value, json.loads(argument.text)):
            edit[argument.name] = value
    approvals.approve(found.id, edit=edit or None, by=_BY)
    return _answered(found.id)


def _resolve(site: Site, said: dict[str, str]) -> Response:
    key, name = wanted(said, "key"), wanted(said, "effect")
    if said.get("happened") not in ("yes", "no"):
        raise InvalidInputError("Missing outcome: choose whether it happened.")
    ledger, meta = _ledger(site, key)
    result = None
    if said.get("result", "").strip():
        result = _read(said["result"], "The result is not JSON. Leave it empty if there is none.")
    outcomes = EffectOutcomes(ledger, meta, Epoch(key, 0), lambda tool, part: None)
    note = said.get("note", "")[:500]
    outcomes.resolve(name, happened=said["happened"] == "yes", result=result, note=note)
    return RedirectResponse(link("effects", key=key), 303)


def _answered(approval: str) -> Response:
    """Go to the page of what was answered: there is no button of another request on it."""
    return RedirectResponse(link("request", id=approval), 303)


def _version(ledger: Ledger) -> str:
    return f"{ledger.lineage}.{ledger.seq}"


def _version_of(requests: list[Asked]) -> str:
    names = json.dumps([one.id for one in requests])
    return sha256(names.encode()).hexdigest()


def _ledger(site: Site, key: str) -> tuple[Ledger, SessionRecord]:
    head = site.store.head(key)
    meta = None if head is None else read_session_record(site.store, head)
    if meta is None:
        raise NotFoundError(f"There is no session {short_repr(key)}.")
    ledger = Ledger(site.store, meta.family)
    ledger.refresh()
    return ledger, meta


def _is_of(effect: Effect, meta: SessionRecord) -> bool:
    return effect.session == meta.key or meta.knows(effect.session, effect.seq)


def _effect_row(site: Site, effect: Effect) -> EffectRow:
    name = "edited" if "edited" in effect.parts else "arguments"
    arguments, is_whole = _text(site, effect.parts, name)
    result, is_all = _text(site, effect.parts, "result")
    is_open = effect.status in (UNKNOWN, UNDOING)
    return EffectRow(effect, arguments, result, is_whole and is_all, is_open)


def _text(site: Site, parts: dict[str, Any], name: str) -> tuple[str, bool]:
    if name not in parts:
        return "", True
    try:
        return written(Peek(site.store.backend), parts[name], _MOST_OF_EFFECT)
    except CheckpointError:
        return "(damaged)", True


def _request_row(site: Site, request: Asked, most: int = MOST_ON_CARD) -> RequestRow:
    try:
        return RequestRow(request, _arguments(site, request.parts, most), "")
    except CheckpointError as error:
        return RequestRow(request, [], str(error))
    except TooLarge:
        return RequestRow(request, [], "The arguments are too large to show.")


def _arguments(site: Site, parts: dict[str, Any], most: int) -> list[Argument]:
    """Return the arguments of a call. Nothing of them is made an object.

    Raises:
        IntegrityError: they are damaged, or none of a call.
        InvalidInputError: they were purged.
    """
    name = "edited" if "edited" in parts else "arguments"
    if name not in parts:
        raise InvalidInputError("The arguments were purged.")
    peek = Peek(site.store.backend)
    shape = peek.shape(parts[name])
    if shape.kind != MAP:
        raise IntegrityError("The arguments are damaged: not a mapping.")
    members = peek.members(shape)
    if len(members) > _MOST_ARGUMENTS:
        raise TooLarge
    found = []
    editable = MOST_ON_CARD
    for word, tree in members.items():
        try:
            text = json_text(_plain(tree))
        except _Tagged:
            text = ""
        if 0 < len(text) <= editable:
            editable -= len(text)
            found.append(Argument(word, text, can_be_edited=True, is_whole=True))
        else:
            text, is_whole = exactly(peek, tree, most)
            found.append(Argument(word, text, can_be_edited=False, is_whole=is_whole))
        most = max(0, most - len(text))
    return found


class _Tagged(Exception):
    """A value that is more than JSON."""


def _plain(tree: Any) -> Any:
    """Return a stored value as the JSON that a person may write for it. Raises _Tagged."""
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$int"} and (number := large_int(tree)) is not None:
        return number
    if any(name.startswith("$") for name in tree):
        raise _Tagged
    return {name: _plain(item) for name, item in tree.items()}


def _read(text: str, refusal: str) -> Any:
    """Return the value of a JSON text, which has no NaN. Raises Refused."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        raise Refused(400, refusal) from None


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _no_number(text)
