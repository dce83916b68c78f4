"""What was done outside, and what waits for a person. Owns the pages where a person answers."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_checkpoint.errors import CheckpointError, InvalidInputError, NotFoundError
from agent_checkpoint.records import same_json, show
from agent_checkpoint.session.approvals import Approvals
from agent_checkpoint.session.meta import Meta, read_meta
from agent_checkpoint.session.outcomes import Outcomes
from agent_checkpoint.store.ledger import (
    PENDING,
    UNDOING,
    UNKNOWN,
    UNREADABLE,
    Effect,
    Epoch,
    Ledger,
)
from agent_checkpoint.store.ledger import Request as Asked
from agent_checkpoint.web.outline import written
from agent_checkpoint.web.peek import MAP, Peek, TooLarge, large_int
from agent_checkpoint.web.site import Refused, Site, asked, number, wanted
from agent_checkpoint.web.words import json_text, link

PAGE = 100
_MOST_EDITED = 20_000
_BY = "the web page"


class Argument(NamedTuple):
    """An argument of a call that waits."""

    name: str
    text: str
    """As JSON, to be edited; else as it can be read."""
    can_be_edited: bool


class EffectRow(NamedTuple):
    """An effect, as it is shown."""

    effect: Effect
    arguments: str
    result: str
    is_open: bool
    """Whether a person has to say what became of it."""


class RequestRow(NamedTuple):
    """A request, as it is shown."""

    request: Asked
    arguments: list[Argument]
    trouble: str


def effects_page(site: Site, request: Request) -> Response:
    """Show what a session and its relatives did outside, the newest first."""
    said = asked(request)
    key = wanted(said, "key")
    ledger, meta = _ledger(site, key)
    start = number(said, "from")
    every = [one for one in ledger.all_effects()[::-1] if said.get("all") or _is_of(one, meta)]
    rows = [_effect_row(site, one) for one in every[start : start + PAGE]]
    requests = [one for one in list(ledger.requests.values())[::-1] if one.session == key]
    return site.page(
        "effects.html",
        key=key,
        rows=rows,
        total=len(every),
        start=start,
        page=PAGE,
        all=bool(said.get("all")),
        requests=[_request_row(site, one) for one in requests[:PAGE]],
        pending=PENDING,
    )


def approvals_page(site: Site, request: Request) -> Response:
    """Show all that waits for an answer."""
    rows = [_request_row(site, one) for one in Approvals(site.store).pending()[:PAGE]]
    return site.page("approvals.html", rows=rows, key=None, unreadable=UNREADABLE)


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
        return _back(said)

    return await site.in_thread(run)


async def resolve(site: Site, request: Request) -> Response:
    """Say what became of an effect of which nobody knew."""
    said = await site.form(request)
    return await site.in_thread(_resolve, site, said)


def _approve(site: Site, said: dict[str, str]) -> Response:
    approvals = Approvals(site.store)
    found = approvals.get(wanted(said, "approval"))
    edit: dict[str, Any] = {}
    for argument in _arguments(site, found.parts):
        text = said.get(f"argument.{argument.name}")
        if text is None or not argument.can_be_edited:
            continue
        value = _read(
            text, f'The argument {show(argument.name)} is not JSON: a text stands in quotes, "so".'
        )
        # A browser ends lines otherwise; what was not touched stays just what it was.
        if not same_json(value, json.loads(argument.text)):
            edit[argument.name] = value
    approvals.approve(found.id, edit=edit or None, by=_BY)
    return _back(said)


def _resolve(site: Site, said: dict[str, str]) -> Response:
    key, name = wanted(said, "key"), wanted(said, "effect")
    if said.get("happened") not in ("yes", "no"):
        raise InvalidInputError("Say whether it happened: yes or no.")
    ledger, meta = _ledger(site, key)
    result = None
    if said.get("result", "").strip():
        result = _read(said["result"], "The result is not JSON. Leave it empty if there is none.")
    outcomes = Outcomes(ledger, meta, Epoch(key, 0), lambda tool, part: None)
    note = said.get("note", "")[:500]
    outcomes.resolve(name, happened=said["happened"] == "yes", result=result, note=note)
    return _back(said)


def _back(said: dict[str, str]) -> Response:
    key = said.get("key", "")
    place = link("effects", key=key) if key else "approvals"
    return RedirectResponse(place, 303)


def _ledger(site: Site, key: str) -> tuple[Ledger, Meta]:
    head = site.store.head(key)
    meta = None if head is None else read_meta(site.store, head)
    if meta is None:
        raise NotFoundError(f"There is no session {show(key)}.")
    ledger = Ledger(site.store, meta.family)
    ledger.refresh()
    return ledger, meta


def _is_of(effect: Effect, meta: Meta) -> bool:
    return effect.session == meta.key or meta.knows(effect.session, effect.seq)


def _effect_row(site: Site, effect: Effect) -> EffectRow:
    return EffectRow(
        effect,
        _text(site, effect.parts, "edited" if "edited" in effect.parts else "arguments"),
        _text(site, effect.parts, "result"),
        effect.status in (UNKNOWN, UNDOING),
    )


def _text(site: Site, parts: dict[str, Any], name: str) -> str:
    if name not in parts:
        return ""
    try:
        return written(Peek(site.store.backend), parts[name], 4000)[0]
    except CheckpointError:
        return "(damaged)"


def _request_row(site: Site, request: Asked) -> RequestRow:
    try:
        return RequestRow(request, _arguments(site, request.parts), "")
    except CheckpointError as error:
        return RequestRow(request, [], str(error))
    except TooLarge:
        return RequestRow(request, [], "Its arguments are too large to be shown.")


def _arguments(site: Site, parts: dict[str, Any]) -> list[Argument]:
    """Return the arguments of a call. Nothing of them is made an object."""
    peek = Peek(site.store.backend)
    shape = peek.shape(parts.get("edited", parts.get("arguments", {})))
    found = []
    for name, tree in peek.members(shape).items() if shape.kind == MAP else ():
        try:
            text = json_text(_plain(tree))
        except _Tagged:
            text = ""
        can_be = 0 < len(text) <= _MOST_EDITED
        found.append(Argument(name, text if can_be else written(peek, tree)[0], can_be))
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
