"""The pages for external side effects and approval requests, with the forms to answer them.

A user approves exactly the displayed call: only a card that shows a call in full has an approve
button, and its form contains a digest of the displayed call.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_checkpoint.errors import (
    CheckpointError,
    IntegrityError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.formatting import json_text
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import same_json, short_repr
from agent_checkpoint.session.effects.approvals import Approvals
from agent_checkpoint.session.effects.edited_arguments import fitting_value, read_json, type_name
from agent_checkpoint.session.effects.outcomes import resolve_effect
from agent_checkpoint.session.session_record import SessionRecord, read_session_record
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest, Effect
from agent_checkpoint.store.ledger.ledger_status import REDACTED, UNDOING, UNKNOWN, UNREADABLE
from agent_checkpoint.web.auth import secrets_equal
from agent_checkpoint.web.masking import mask_json
from agent_checkpoint.web.page_text import MAX_NAME, columns, encode_field, link, shown
from agent_checkpoint.web.rendering import (
    RequestError,
    Site,
    as_json,
    int_param,
    query_params,
    required,
)
from agent_checkpoint.web.state.lazy_state import (
    MAP,
    STRING,
    ReadLimitExceeded,
    StateReader,
    large_int,
)
from agent_checkpoint.web.state.outline import render, render_exact

PAGE = 100
"""Side effects on a page."""
REQUESTS = 20
"""Requests on a page."""
MAX_ON_CARD = 20_000
"""Maximum characters of a call on a page with several requests, and of the editable arguments of a
call."""
MAX_ON_OWN_PAGE = 1_000_000
"""Maximum characters of a call on the page of one request."""
_MAX_OF_EFFECT = 4000
_MAX_ARGUMENTS = 400
"""Must stay below the limit of form fields."""
_COLUMNS = 30
"""Characters on a line of a text field on a narrow screen."""
_BY = "the web page"
TEXT = "text"
"""The type of an argument that is shown and edited as text."""


class Argument(NamedTuple):
    """An argument of a call that waits for approval."""

    name: str
    text: str
    """Editable text or JSON, or an unambiguous rendering of the value."""
    type: str
    """The type, for people: `text` if the text is the value itself."""
    can_be_edited: bool
    is_whole: bool
    value: Any = None
    """The value as plain JSON, if it can be edited."""
    is_masked: bool = False
    """Whether a secret in it is not shown."""

    @property
    def rows(self) -> int:
        """Height of a text field, in lines, that shows the whole value without scrolling."""
        return sum(1 + columns(line) // _COLUMNS for line in self.text.split("\n"))


class EffectRow(NamedTuple):
    """A side effect on the page."""

    effect: Effect
    arguments: str
    result: str
    is_whole: bool
    """Whether arguments and result are shown in full."""
    is_open: bool
    """Whether its outcome is unknown and must be recorded."""


class RequestRow(NamedTuple):
    """An approval request on the page."""

    request: ApprovalRequest
    arguments: list[Argument]
    problem: str

    @property
    def shown_digest(self) -> str:
        """Digest of the displayed call; empty unless the call is displayed in full."""
        request = self.request
        names = [request.tool, request.session, *(argument.name for argument in self.arguments)]
        is_whole = all(argument.is_whole for argument in self.arguments)
        if self.problem or not is_whole or max(map(len, names)) > MAX_NAME:
            return ""
        arguments = [argument[:3] for argument in self.arguments]
        call = [request.id, request.session, request.tool, request.digest, arguments]
        return sha256(json.dumps(call).encode()).hexdigest()


def effects_page(site: Site, request: Request) -> Response:
    """Show the external side effects of a session, or of its whole family, newest first."""
    params = query_params(request)
    key = required(params, "key")
    ledger, meta = _ledger(site, key)
    start = int_param(params, "from")
    every = [one for one in ledger.all_effects()[::-1] if params.get("all") or _is_of(one, meta)]
    rows = [_effect_row(site, one) for one in every[start : start + PAGE]]
    requests = [one for one in list(ledger.state.requests.values())[::-1] if one.session == key]
    waiting = [one for one in requests if one.is_open][::-1]
    others = [one for one in requests if not one.is_open]
    return site.page(
        "effects.html",
        key=key,
        rows=rows,
        total=len(every),
        start=start,
        page=PAGE,
        all=bool(params.get("all")),
        waiting=[_request_row(site, one) for one in waiting[:REQUESTS]],
        number_waiting=len(waiting),
        others=[_request_row(site, one) for one in others[:REQUESTS]],
        number_others=len(others),
        version=_version(ledger),
    )


def approvals_page(site: Site, request: Request) -> Response:
    """Show pending approval requests of one session or of all, oldest first."""
    params = query_params(request)
    key, start = params.get("key") or None, int_param(params, "from")
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
    """Show one request with all of its arguments."""
    approval = Approvals(site.store).get(required(query_params(request), "id"))
    return site.page(
        "request.html", row=_request_row(site, approval, MAX_ON_OWN_PAGE), key=approval.session
    )


def waiting(site: Site, request: Request) -> Response:
    """Return the open requests, and a version that changes when an open page is stale."""
    params = query_params(request)
    key = params.get("key", "")
    if key and not params.get("approvals"):
        ledger, _ = _ledger(site, key)
        requests = [one for one in list(ledger.state.requests.values()) if one.session == key]
        open_ids = [one.id for one in requests if one.is_open]
        open_ids += [one.id for one in ledger.all_effects() if one.status in (UNKNOWN, UNDOING)]
        return as_json(
            {"open": [encode_field(name) for name in open_ids], "version": _version(ledger)}
        )
    pending = Approvals(site.store).pending(key or None)
    return as_json(
        {"open": [encode_field(one.id) for one in pending], "version": _version_of(pending)}
    )


async def approve(site: Site, request: Request) -> Response:
    """Approve a call, with edited arguments if the form has any."""
    form = await site.form(request)
    return await site.in_thread(_approve, site, form)


async def deny(site: Site, request: Request) -> Response:
    """Deny a call."""
    form = await site.form(request)

    def run() -> Response:
        approval = required(form, "approval")
        Approvals(site.store).deny(approval, form.get("reason", "")[:2000], by=_BY)
        return _answered(approval)

    return await site.in_thread(run)


async def revoke(site: Site, request: Request) -> Response:
    """Revoke an answer that was not used yet."""
    form = await site.form(request)

    def run() -> Response:
        approval = required(form, "approval")
        Approvals(site.store).revoke(approval, by=_BY)
        return _answered(approval)

    return await site.in_thread(run)


async def resolve(site: Site, request: Request) -> Response:
    """Record the outcome of a side effect whose outcome is unknown."""
    form = await site.form(request)
    return await site.in_thread(_resolve, site, form)


def _approve(site: Site, form: dict[str, str]) -> Response:
    approvals = Approvals(site.store)
    approval = approvals.get(required(form, "approval"))
    row = _request_row(site, approval, MAX_ON_OWN_PAGE)
    if not row.shown_digest or not secrets_equal(form.get("seen", ""), row.shown_digest):
        raise RequestError(
            409,
            "Not approved: the form did not show this call in full, or showed another call. "
            "Open the request's own page, which shows the call in full, and approve it there.",
        )
    edit: dict[str, Any] = {}
    # A field name includes the digest of its call: on going back, a browser restores typed
    # text into fields of the same name, even if the list has changed by then.
    fields = {
        f"argument.{index}.{row.shown_digest}": argument
        for index, argument in enumerate(row.arguments)
        if argument.can_be_edited
    }
    if any(name.startswith("argument.") and name not in fields for name in _bare(form)):
        raise RequestError(409, "Not approved: the form belongs to another call. Reload the page.")
    for name, argument in fields.items():
        if name not in form:
            continue
        value = _edited(argument, form[name], is_json=form.get(f"json.{name}") == "yes")
        # Browsers change line ends. Compare values, so that an untouched field is not an edit.
        if not same_json(value, argument.value):
            edit[argument.name] = value
    approvals.approve(approval.id, edit=edit or None, by=_BY)
    return _answered(approval.id)


def _bare(form: dict[str, str]) -> list[str]:
    """Return the names of fields; a switch has the name of its field after `json.`."""
    return [name.removeprefix("json.") for name in form]


def _edited(argument: Argument, text: str, *, is_json: bool) -> Any:
    """Return the value of a field: of the type of the argument, unless its switch is on.

    Raises:
        RequestError: the text is not a value of this type, or not JSON.
    """
    if argument.type == TEXT and not is_json:  # it has no CR: see _as_text
        return text.replace("\r\n", "\n").replace("\r", "\n")
    name = argument.name
    value = _read(text, f'The argument {short_repr(name)} is not JSON. A string needs quotes: "x".')
    try:
        return value if is_json else fitting_value(name, argument.value, value)
    except InvalidInputError as error:
        raise RequestError(
            400, error.with_hint("Switch its field to JSON to change its type.")
        ) from None


def _resolve(site: Site, form: dict[str, str]) -> Response:
    key, name = required(form, "key"), required(form, "effect")
    if form.get("happened") not in ("yes", "no"):
        raise InvalidInputError("Missing outcome: choose whether the effect happened.")
    ledger, _ = _ledger(site, key)
    result = None
    if form.get("result", "").strip():
        result = _read(form["result"], "The result is not JSON. Leave it empty if there is none.")
    happened, note = form["happened"] == "yes", form.get("note", "")[:500]
    resolve_effect(ledger, name, happened=happened, result=result, note=note)
    return RedirectResponse(link("effects", key=key), 303)


def _answered(approval: str) -> Response:
    """Redirect to the page of the answered request, which has no button of another request."""
    return RedirectResponse(link("request", id=approval), 303)


def _version(ledger: Ledger) -> str:
    return f"{ledger.lineage}.{ledger.seq}"


def _version_of(requests: list[ApprovalRequest]) -> str:
    names = json.dumps([one.id for one in requests])
    return sha256(names.encode()).hexdigest()


def _ledger(site: Site, key: str) -> tuple[Ledger, SessionRecord]:
    head = site.store.head(key)
    meta = None if head is None else read_session_record(site.store, head)
    if meta is None:
        raise NotFoundError(f"No session {short_repr(key)} in this store.")
    ledger = Ledger(site.store, meta.family)
    ledger.refresh()
    return ledger, meta


def _is_of(effect: Effect, meta: SessionRecord) -> bool:
    return effect.session == meta.key or meta.knows(effect.session, effect.seq)


def _effect_row(site: Site, effect: Effect) -> EffectRow:
    name = _part_with_arguments(effect.parts)
    arguments, is_whole = _text(site, effect.parts, name)
    result, is_all = _text(site, effect.parts, "result")
    is_open = effect.status in (UNKNOWN, UNDOING)
    return EffectRow(effect, arguments, result, is_whole and is_all, is_open)


def _part_with_arguments(parts: dict[str, Any]) -> str:
    return next((name for name in ("edited", "arguments", REDACTED) if name in parts), "arguments")


def _text(site: Site, parts: dict[str, Any], name: str) -> tuple[str, bool]:
    if name not in parts:
        return "", True
    try:
        return render(StateReader(site.store.backend), parts[name], _MAX_OF_EFFECT)
    except CheckpointError:
        return "(damaged)", True


def _request_row(site: Site, request: ApprovalRequest, most: int = MAX_ON_CARD) -> RequestRow:
    try:
        return RequestRow(request, _arguments(site, request.parts, most), "")
    except CheckpointError as error:
        return RequestRow(request, [], str(error))
    except ReadLimitExceeded:
        return RequestRow(request, [], "The arguments are too large to show.")


def _arguments(site: Site, parts: dict[str, Any], most: int) -> list[Argument]:
    """Return the arguments of a call without decoding them to Python objects.

    Raises:
        IntegrityError: the arguments are damaged.
        InvalidInputError: the arguments were purged.
    """
    name = _part_with_arguments(parts)
    if name not in parts:
        raise InvalidInputError("The arguments were purged.")
    reader = StateReader(site.store.backend)
    shape = reader.shape(parts[name])
    if shape.kind != MAP:
        raise IntegrityError("The arguments are damaged: not a mapping.")
    members = reader.members(shape)
    if len(members) > _MAX_ARGUMENTS:
        raise ReadLimitExceeded
    arguments = []
    editable = MAX_ON_CARD
    for argument, tree in members.items():
        try:
            value = _plain(tree)
            (visible,) = mask_json({argument: value}).values()
            text, kind = _as_text(visible)
        except _Tagged:
            value, visible, text, kind = None, None, "", ""
        if visible != value:  # masked: an edited form would send the mask
            arguments.append(Argument(argument, text, kind, False, True, is_masked=True))
        elif kind and len(text) <= editable:
            editable -= len(text)
            arguments.append(Argument(argument, text, kind, True, True, value))
        else:
            text, kind, is_whole = _long(reader, tree, most)
            arguments.append(Argument(argument, text, kind, False, is_whole))
        most = max(0, most - len(text))
    return arguments


def _as_text(value: Any) -> tuple[str, str]:
    """Return a plain value as text and its type for people.

    A string is shown as it is, unless it has characters that are invisible or reorder others:
    then as JSON, which shows them escaped.
    """
    if isinstance(value, str):
        return (value, TEXT) if shown(value) == value else (json_text(value), "text as JSON")
    return json_text(value), type_name(value)


def _long(reader: StateReader, tree: Any, most: int) -> tuple[str, str, bool]:
    """Return text, type and completeness of a value that cannot be edited."""
    shape = reader.shape(tree)
    if shape.kind != STRING or shape.type != TEXT:
        text, is_whole = render_exact(reader, tree, most)
        return text, shape.type, is_whole
    text, is_whole = render(reader, tree, most)
    if shown(text) != text:
        return json.dumps(text, ensure_ascii=False), "text as JSON", is_whole
    return text, TEXT, is_whole


class _Tagged(Exception):
    """A value that plain JSON cannot represent."""


def _plain(tree: Any) -> Any:
    """Return a stored value as plain, editable JSON. Raises _Tagged."""
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$int"} and (number := large_int(tree)) is not None:
        return number
    if any(name.startswith("$") for name in tree):
        raise _Tagged
    return {name: _plain(item) for name, item in tree.items()}


def _read(text: str, message: str) -> Any:
    """Parse JSON without NaN and infinities. Raises RequestError."""
    try:
        return read_json(text)
    except ValueError:
        raise RequestError(400, message) from None
