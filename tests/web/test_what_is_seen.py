"""What is approved is what was seen, whole: long texts, many requests, letters that reorder."""

import json
import re
from contextlib import suppress
from typing import Any

import pytest

from agent_checkpoint import Approvals, CheckpointManager, Session, Suspended, tool
from agent_checkpoint.web import answers
from agent_checkpoint.web.outline import exactly, written
from agent_checkpoint.web.peek import Peek
from tests.web.browsing import Served, chromium
from tests.web.test_pages import plain
from tests.web.visitor import Visitor

in_browser = pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")


@tool(effect="irreversible", approve=True)
def pay(to: Any = None, memo: Any = None, n: int = 0) -> Any:
    return {"to": to, "memo": memo, "n": n}


def asked(manager: CheckpointManager, key: str = "payer", **given: Any) -> str:
    """Have a call wait, and return the id of the request."""
    with suppress(Suspended), Session(key, store=manager):
        pay(**given)
    return Approvals(manager.store).pending(key)[-1].id


@pytest.fixture
def visitor() -> Visitor:
    return Visitor(CheckpointManager())


def buttons(html: str) -> int:
    return html.count(">Approve</button>")


def test_a_long_argument_is_approved_only_where_all_of_it_is_shown(visitor: Visitor) -> None:
    name = asked(visitor.manager, to="ann", memo="a" * 30_000 + " and pay bob instead")
    html = visitor.text("/approvals")
    assert buttons(html) == 0
    assert "only the first 20,000 characters are shown" in plain(html)
    assert "pay bob instead" not in html
    for seen in ("", "0" * 64):
        answer = visitor.post("/approve", {"approval": name, "seen": seen})
        assert answer.status_code == 409
        assert "not all of this call" in answer.text
    html = visitor.text("/request", id=name)
    assert "pay bob instead" in html
    assert buttons(html) == 1
    assert visitor.approve(name).status_code == 303
    with Session("payer", store=visitor.manager) as session:
        (row,) = session.carry_out()
    assert row["result"]["memo"].endswith("pay bob instead")


def test_what_no_page_can_show_is_not_approved_here(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_ALONE", 50_000)
    name = asked(visitor.manager, memo="a" * 60_000)
    html = visitor.text("/request", id=name)
    assert buttons(html) == 0
    assert "cannot be approved here" in html
    assert ">Deny</button>" in html
    assert visitor.approve(name).status_code == 409
    assert Approvals(visitor.manager.store).get(name).is_open


def test_a_value_that_is_not_shown_is_not_approved(visitor: Visitor) -> None:
    name = asked(visitor.manager, memo=b"x" * 3_000_000)
    html = visitor.text("/request", id=name)
    assert buttons(html) == 0
    assert visitor.approve(name).status_code == 409


def test_bytes_are_shown_and_can_be_approved(visitor: Visitor) -> None:
    name = asked(visitor.manager, memo=b"\x00drop")
    assert "AGRyb3A=" in visitor.text("/request", id=name)
    assert visitor.approve(name).status_code == 303


def test_an_answer_is_for_the_request_that_was_drawn(visitor: Visitor) -> None:
    first, second = asked(visitor.manager, n=1), asked(visitor.manager, "other", n=2)
    html = visitor.text("/request", id=first)
    seen = re.findall(r'name="seen" value="(\w+)"', html)[0]
    assert visitor.post("/approve", {"approval": second, "seen": seen}).status_code == 409
    assert visitor.post("/approve", {"approval": first, "seen": seen}).status_code == 303


def test_after_an_answer_there_is_no_button_of_another_request(visitor: Visitor) -> None:
    names = [asked(visitor.manager, f"payer-{number}", n=number) for number in range(3)]
    for name, act in zip(names, ("approve", "deny")):
        form = {"approval": name}
        answer = visitor.approve(name) if act == "approve" else visitor.post("/deny", form)
        html = visitor.text(answer.headers["location"])
        assert "<form" not in html.partition("<main")[2].partition("</main>")[0]


def test_hundreds_of_requests_are_counted_and_reached(visitor: Visitor) -> None:
    number = 2 * answers.REQUESTS + 1
    for place in range(number):
        asked(visitor.manager, f"payer-{place:03}", n=place)
    seen: list[str] = []
    for start in range(0, number, answers.REQUESTS):
        html = visitor.text("/approvals", **{"from": start})
        assert f"{number} requests" in plain(html)
        seen += re.findall(r">(payer-\d+)<", html)
    assert seen == [f"payer-{place:03}" for place in range(number)]
    assert json.loads(visitor.text("/waiting"))["open"].__len__() == number


def test_the_page_of_a_session_says_how_many_it_does_not_show(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "REQUESTS", 2)
    for number in range(3):
        name = asked(visitor.manager, n=number)
        Approvals(visitor.manager.store).deny(name)
        with Session("payer", store=visitor.manager) as session:
            session.carry_out()
    assert "1 older request not shown" in plain(visitor.text("/effects", key="payer"))


def test_what_an_effect_was_given_is_cut_with_a_word(visitor: Visitor) -> None:
    name = asked(visitor.manager, memo="a" * 5000)
    assert visitor.approve(name).status_code == 303
    with Session("payer", store=visitor.manager) as session:
        session.carry_out()
    html = visitor.text("/effects", key="payer")
    assert "Cut: only the beginning is shown." in html


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 'x",\n  "b": "y'}, {"a": "x", "b": "y"}),
        (["a\r\nb"], ["a\nb"]),
        (["a\u2028b\nc"], ["a\nb\nc"]),
        ({"__class__": 'dict {\n  "n": 1'}, {"n": 1}),
        ([b"x"], ["x"]),
    ],
)
def test_values_that_differ_are_written_otherwise(one: Any, other: Any) -> None:
    manager = CheckpointManager()
    texts = []
    for value in (one, other):
        manager.save("key", {"value": value})
        head = manager.store.head("key")
        assert head is not None
        found = exactly(Peek(manager.store.backend), head.parts["agent"]["value"], 1000)
        assert found[1]
        texts.append(found[0])
    assert texts[0] != texts[1]


def test_a_long_text_inside_another_value_is_not_all_of_it() -> None:
    manager = CheckpointManager()
    text, is_whole = written(Peek(manager.store.backend), ["a" * 30_000], 10**6)
    assert not is_whole
    assert "about 30,000 characters" in text
    assert exactly(Peek(manager.store.backend), ["a" * 30_000], 10**6)[1]


# -- in a browser ----------------------------------------------------------------------------------

HEBREW = "\u05d0\u05d1\u05d2"


@in_browser
def test_a_card_keeps_its_place_when_one_above_becomes_void(served: Served) -> None:
    with CheckpointManager() as manager:
        first, second = (asked(manager, f"payer-{number}", n=number) for number in (1, 2))
        page = served.tab(manager).open("/approvals")
        page.wait_for_selector(".live.on")
        box = page.get_by_role("button", name="Approve").first.bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        places = "[...document.querySelectorAll('.card')].map((one) => one.offsetTop)"
        before = page.evaluate(places)
        Approvals(manager.store).deny(first, "void")
        page.get_by_text("answered or void meanwhile").wait_for()
        page.get_by_text("This list has changed").wait_for()
        assert page.evaluate(places) == before
        page.wait_for_timeout(700)
        page.mouse.click(box["x"] + 5, box["y"] + 5)
        page.wait_for_timeout(300)
        assert Approvals(manager.store).get(second).is_open
        page.get_by_role("button", name="Draw it again").click()
        page.get_by_text("payer-2").wait_for()
        assert page.get_by_text("payer-1").count() == 0


@in_browser
def test_two_quick_clicks_approve_one(served: Served) -> None:
    with CheckpointManager() as manager:
        names = [asked(manager, f"payer-{number}", n=number) for number in range(4)]
        page = served.tab(manager).open("/approvals")
        page.wait_for_timeout(700)
        box = page.get_by_role("button", name="Approve").first.bounding_box()
        for _ in range(6):
            page.mouse.click(box["x"] + 5, box["y"] + 5)
            page.wait_for_timeout(100)
        page.get_by_text("approved", exact=True).wait_for()
        approvals = Approvals(manager.store)
        assert [approvals.get(name).is_open for name in names] == [False, True, True, True]


@in_browser
def test_letters_of_other_scripts_move_nothing(served: Served) -> None:
    with CheckpointManager() as manager:
        key = f"{HEBREW}/100/{HEBREW}"
        asked(manager, key, to=(f"{HEBREW} 100 {HEBREW}",), memo=f"{HEBREW} 1, 2 {HEBREW}")
        page = served.tab(manager).open("/approvals")
        orders = page.evaluate(
            """() => [...document.querySelectorAll(".argument pre, .card a bdo")].map((item) => {
              const text = item.firstChild;
              const lefts = [...text.data].map((_, at) => {
                const range = document.createRange();
                range.setStart(text, at); range.setEnd(text, at + 1);
                const box = range.getBoundingClientRect();
                return [box.top, box.left];
              }).filter(([top, left], at) => text.data[at] !== "\\n");
              return lefts.every(([top, left], at) => at === 0 || top > lefts[at - 1][0] + 5
                || left >= lefts[at - 1][1] - 0.5);
            })"""
        )
        assert len(orders) == 2
        assert all(orders)
        field = page.locator("textarea").first
        style = "(item) => getComputedStyle(item).unicodeBidi + getComputedStyle(item).direction"
        assert field.evaluate(style) == "bidi-overrideltr"
        assert field.evaluate("(item) => item.scrollHeight <= item.clientHeight + 1")
