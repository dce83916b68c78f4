"""Random names, arguments and forms: nothing runs that was not shown, and no request crashes.

`--full-faults` (as `make faults` does) tries many more. The seed is fixed, and an
example is named by its number.
"""

import random
import re
import unicodedata
from contextlib import suppress
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from agent_checkpoint import Approvals, CheckpointManager, InvalidInputError, Session, Suspended
from agent_checkpoint.records import same_json
from agent_checkpoint.web import page_text
from agent_checkpoint.web.app import POST_ROUTES
from tests.web.test_auth import content
from tests.web.test_what_is_seen import asked, pay
from tests.web.visitor import ORIGIN, Visitor, links

SEED = 20_261
FEW, MANY = 25, 1500
ODD = [
    *"ab \n\r\t\0%+&=*;@~/\\\"'<>$#?…\x7f\x80\x9b\xa0\xad",
    *"\u05d0\u0660\u200b\u200f\u2028\u202e\u2066\u2069\u3164\ufe0f\ufeff\u6f22\uffff\U0001f600",
    *("\\x20", "\\u202e", "%0A", "%zz", "&amp;", "</textarea>", "<script>", "{{x}}", "${x}", "~2"),
    *("é", "e\u0301", "@1", "_1700000000000000000-1", "..", "//", "$ref", "__class__"),
]


@pytest.fixture
def number(request: pytest.FixtureRequest) -> int:
    """How many are tried."""
    return MANY if request.config.getoption("--full-faults", default=False) else FEW


def text(chance: random.Random, most: int = 8) -> str:
    return "".join(chance.choice(ODD) for _ in range(chance.randrange(1, most)))


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(12 if depth < 3 else 8)
    if kind < 3:
        return text(chance)
    if kind < 8:
        numbers: list[Any] = [0, -0.0, 1.0, 1, 2**64, -(10**30), 1e22, 5e-324, True, False, None]
        odd: list[Any] = [float("inf"), float("-inf"), "", b"\0\xff", "\ud800", 10**5000]
        return chance.choice(numbers + odd)
    items = [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 8:
        return tuple(items)
    return items if kind < 10 else {text(chance): item for item in items}


def sent_by_a_browser(html: str, action: str) -> "list[tuple[str, str]]":
    """Return the fields of a form, with line ends as browsers send them."""
    found = re.search(rf'<form[^>]*action="{action}".*?</form>', html, re.DOTALL)
    assert found, html
    form = found[0]
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    fields += re.findall(r'<textarea name="([^"]*)"[^>]*>\n?(.*?)</textarea>', form, re.DOTALL)
    return [(unescape(name), re.sub("\r\n|\r|\n", "\r\n", unescape(said))) for name, said in fields]


def hidden(html: str) -> "list[str]":
    """Return the characters of a page that nobody would see for what they are.

    What somebody has typed stands in its field as it was typed.
    """
    html = re.sub("<input [^>]*>", "", html)
    marks = {"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"}
    return [
        char
        for char in html
        if unicodedata.bidirectional(char) in marks
        or (char not in "\n\t\r " and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cn"))
    ]


def test_names_that_differ_are_never_drawn_alike(number: int) -> None:
    chance = random.Random(SEED)
    drawn: dict[str, str] = {}
    for _ in range(20 * number):
        name = text(chance, 4)
        line = str(page_text.exact(name))
        assert drawn.setdefault(line, name) == name
        assert not hidden(line)
        assert page_text.decode_field(page_text.encode_field(name)) == name


def test_a_fork_is_of_the_key_that_was_seen(number: int) -> None:
    chance = random.Random(SEED)
    for place in range(number):
        if place % 10 == 0:
            visitor = Visitor(CheckpointManager())
        key, new = text(chance), f"fork {place} {text(chance)}"
        with suppress(InvalidInputError):
            visitor.manager.save(key, {text(chance): value(chance)}, label=text(chance))
        for page in (f"timeline?key={quote(key, safe='')}", "./"):
            html = visitor.text(page)
            assert not hidden(html), (place, page)
        html = visitor.text(f"timeline?key={quote(key, safe='')}")
        at = next(link for link in links(html) if link.startswith("/checkpoint"))
        html = visitor.text(at)
        assert not hidden(html), place
        (fork,) = [link for link in links(html) if link.startswith("/fork")]
        html = visitor.text(f"{fork}&name={quote(new, safe='')}")
        assert not hidden(html), place
        pairs = sent_by_a_browser(html, "fork")
        assert visitor.send("/fork", pairs).status_code == 303, place
        (row,) = visitor.manager.history(new.strip())
        assert row["parents"] == [visitor.manager.history(key)[0]["id"]], place


def test_what_was_drawn_and_not_edited_is_done_as_it_was_asked(number: int) -> None:
    chance = random.Random(SEED)
    for place in range(number):
        visitor = Visitor(CheckpointManager())
        given = {name: value(chance) for name in ("to", "memo")}
        key = text(chance)
        try:
            name = asked(visitor.manager, key, **given)
        except InvalidInputError:  # no such key
            continue
        html = visitor.text("/request", id=name)
        assert not hidden(html), place
        assert visitor.send("/approve", sent_by_a_browser(html, "approve")).status_code == 303
        assert "edited" not in Approvals(visitor.manager.store).get(name).parts, (place, given)
        with suppress(Suspended), Session(key, store=visitor.manager):
            done = pay(**given)
        assert done["to"] == given["to"], place
        assert same_json(done["memo"], given["memo"]) or done["memo"] == given["memo"], place


def test_no_form_at_random_does_anything_or_is_a_fault(number: int) -> None:
    chance = random.Random(SEED)
    visitor = Visitor(CheckpointManager())
    name = asked(visitor.manager, to="ann", memo=[1, 2])
    other = asked(visitor.manager, "other", n=2)
    before = content(visitor.manager)
    ids = [name, other, "payer", "payer@1", "other@2", ""]
    fields = ["approval", "id", "key", "of", "name", "part", "scope", "seen", "effects", "effect"]
    fields += ["happened", "result", "note", "keep_unseen", "argument.0", "argument.x", "csrf"]
    for place in range(20 * number):
        page = chance.choice(sorted(POST_ROUTES.keys() - {"/deny", "/preview", "/export"}))
        pairs = [("csrf", visitor.auth.csrf)] * (chance.random() < 0.9)
        for _ in range(chance.randrange(6)):
            field = chance.choice(fields) + chance.choice(["", "", "*", "**", "\0", "é"])
            said = chance.choice([*ids, text(chance), "warn", "yes", "some", "0" * 64])
            pairs.append((field, said))
        if page == "/fork":
            pairs = [(field, said) for field, said in pairs if not field.startswith("name")]
        chance.shuffle(pairs)
        body = "&".join(
            f"{quote(field)}={quote(said.encode('utf-8', 'surrogatepass'))}"
            for field, said in pairs
        ).encode()
        if chance.random() < 0.2:  # what no browser sends
            at = chance.randrange(len(body) + 1)
            body = (
                body[:at] + chance.choice([b"\xff", b"%", b"%f", b"&&=", b";", b"\0"]) + body[at:]
            )
        kind = chance.choice(["application/x-www-form-urlencoded"] * 8 + ["", "text/plain", "x; y"])
        headers = {"Origin": ORIGIN, "Content-Type": kind}
        answer = visitor.client.post(page, content=body, headers=headers)
        assert 400 <= answer.status_code < 500, (place, page, body)
    assert content(visitor.manager) == before


@pytest.mark.slow
def test_no_address_at_random_is_a_fault(number: int) -> None:
    chance = random.Random(SEED)
    visitor = Visitor(CheckpointManager())
    asked(visitor.manager, to="ann", memo=[1, {"a": "b"}])
    visitor.manager.save("payer/x", {"text": "a\nb"})
    before = content(visitor.manager)
    pages = [
        "/",
        "/timeline",
        "/timeline/rows",
        "/timeline/state",
        "/checkpoint",
        "/state",
        "/file",
    ]
    pages += ["/diff", "/effects", "/approvals", "/request", "/waiting", "/rollback", "/preview"]
    pages += ["/fork", "/export", "/search", "/updates"]
    names = [
        "key",
        "id",
        "a",
        "b",
        "q",
        "from",
        "end",
        "at",
        "part",
        "path",
        "row",
        "block",
        "view",
    ]
    for place in range(20 * number):
        pairs = []
        for name in [*chance.sample(names, 5), "key", "id"]:
            good = chance.choice(
                ["payer", "payer@1", "payer/x", "agent", "0", "0.1", "-1", "9" * 30]
            )
            said = chance.choice([good, good, text(chance)])
            pairs.append(f"{name}{chance.choice(['', '', '*'])}={quote(said, safe='')}")
        answer = visitor.client.get(f"{chance.choice(pages)}?{'&'.join(pairs)}")
        assert answer.status_code < 500, (place, pairs)
        assert not hidden(answer.content.decode()), (place, pairs)
    assert content(visitor.manager) == before
