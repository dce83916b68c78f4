"""A call is approved only as it was shown in full: long texts, many requests, odd letters."""

import json
import re
from contextlib import suppress
from typing import Any

import pytest

from agent_checkpoint import Approvals, CheckpointManager, Session, Suspended, tool
from agent_checkpoint.web import page_text
from agent_checkpoint.web.pages import approval_page
from agent_checkpoint.web.state.lazy_state import StateReader
from agent_checkpoint.web.state.outline import render, render_exact
from tests.web.browsing import Served, chromium, press
from tests.web.test_pages import plain
from tests.web.visitor import Visitor

open_in_browser = pytest.mark.skipif(
    chromium() is None, reason="there is no chromium on this machine"
)


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
    assert re.search(r"only the first 19,\d+ characters are shown", plain(html))
    assert "pay bob instead" not in html
    for seen in ("", "0" * 64):
        answer = visitor.post("/approve", {"approval": name, "seen": seen})
        assert answer.status_code == 409
        assert "did not show this call in full" in answer.text
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
    monkeypatch.setattr(approval_page, "MAX_ON_OWN_PAGE", 50_000)
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
        main = html.partition("<main")[2].partition("</main>")[0]
        assert re.findall(r'<form.* action="(\w+)"', main) == ["revoke"]  # of this one
        assert re.findall(r'name="approval\*" value="([^"]+)"', main) == [name]


def test_hundreds_of_requests_are_counted_and_reached(visitor: Visitor) -> None:
    number = 2 * approval_page.REQUESTS + 1
    for place in range(number):
        asked(visitor.manager, f"payer-{place:03}", n=place)
    seen: list[str] = []
    for start in range(0, number, approval_page.REQUESTS):
        html = visitor.text("/approvals", **{"from": start})
        assert f"{number} requests" in plain(html)
        seen += re.findall(r">(payer-\d+)<", html)
    assert seen == [f"payer-{place:03}" for place in range(number)]
    assert json.loads(visitor.text("/waiting"))["open"].__len__() == number


def test_the_page_of_a_session_says_how_many_it_does_not_show(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_page, "REQUESTS", 2)
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
    assert "Truncated: only the beginning is shown." in html


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
        found = render_exact(StateReader(manager.store.backend), head.parts["agent"]["value"], 1000)
        assert found[1]
        texts.append(found[0])
    assert texts[0] != texts[1]


def test_a_long_text_inside_another_value_is_not_all_of_it() -> None:
    manager = CheckpointManager()
    text, is_whole = render(StateReader(manager.store.backend), ["a" * 30_000], 10**6)
    assert not is_whole
    assert "about 30,000 characters" in text
    assert render_exact(StateReader(manager.store.backend), ["a" * 30_000], 10**6)[1]


@pytest.mark.parametrize(
    "names",
    [
        ["a b", "a\nb", "a\tb", r"a\x0ab", r"a\x0a", "a\n", "a", "a ", r"a\x20", r"a\\x20", "a\\ "],
        ["\x80", "\udc80", r"\x80", r"\u0080", "\u202e", r"\u202e", "\\\u202e", r"\\u202e"],
    ],
)
def test_names_that_differ_are_drawn_otherwise(names: "list[str]") -> None:
    assert len({page_text.exact(name) for name in names}) == len(names)


def test_a_name_that_is_cut_is_not_all_of_a_call(visitor: Visitor) -> None:
    name = "n" * 1990 + "ote" * 10
    scope: dict[str, Any] = {}
    exec(f"def {name}(n): pass", scope)
    with suppress(Suspended), Session("payer", store=visitor.manager):
        tool(effect="irreversible", approve=True)(scope[name])(1)
    (request,) = Approvals(visitor.manager.store).pending()
    assert buttons(visitor.text("/request", id=request.id)) == 0
    assert visitor.approve(request.id).status_code == 409


def test_a_page_is_bounded_whatever_the_calls_have(visitor: Visitor) -> None:
    for place in range(3):
        asked(visitor.manager, f"payer-{place}", to="a" * 15_000, memo="b" * 15_000)
    html = visitor.text("/approvals")
    assert len(html) < 3 * (approval_page.MAX_ON_CARD + 10_000)
    assert buttons(html) == 0
    for request in Approvals(visitor.manager.store).pending():
        assert "b" * 15_000 in visitor.text("/request", id=request.id)
        assert visitor.approve(request.id).status_code == 303


def test_fields_of_another_call_are_refused(visitor: Visitor) -> None:
    first, second = asked(visitor.manager, n=1), asked(visitor.manager, "other", n=2)
    seen = {
        name: re.findall(r'name="seen" value="(\w+)"', visitor.text("/request", id=name))[0]
        for name in (first, second)
    }
    for field in (f"argument.2.{seen[first]}", "argument.2", f"argument.17.{seen[second]}"):
        form = {"approval": second, "seen": seen[second], field: "3"}
        assert visitor.post("/approve", form).status_code == 409
    assert Approvals(visitor.manager.store).get(second).is_open


def test_a_field_has_room_for_all_of_a_text_on_a_narrow_screen() -> None:
    for text in ("\u6f22" * 300, "word " * 200, "a\n\n\nb"):
        rows = approval_page.Argument("memo", text, "text", True, True).rows
        assert rows >= sum(page_text.columns(line) // 30 for line in text.split("\n"))


# -- in a browser ----------------------------------------------------------------------------------

HEBREW = "\u05d0\u05d1\u05d2"


@open_in_browser
@pytest.mark.slow
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
        page.get_by_text("already answered or void").wait_for()
        page.get_by_text("This list has changed").wait_for()
        assert page.evaluate(places) == before
        page.wait_for_timeout(700)
        page.mouse.click(box["x"] + 5, box["y"] + 5)
        page.wait_for_timeout(300)
        assert Approvals(manager.store).get(second).is_open
        page.get_by_role("button", name="Reload").click()
        page.get_by_text("payer-2").wait_for()
        assert page.get_by_text("payer-1").count() == 0


@pytest.mark.slow
@open_in_browser
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


@open_in_browser
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


@open_in_browser
def test_going_back_writes_nothing_into_the_card_of_another_call(served: Served) -> None:
    with CheckpointManager() as manager:
        first, second = asked(manager, "payer-1", to="ann"), asked(manager, "payer-2", to="bob")
        page = served.tab(manager).open("/approvals")
        page.locator("textarea").first.fill("an edit for ann")
        page.get_by_label("Reason").first.fill("a reason for ann")
        page.get_by_role("link", name="Keys", exact=True).click()
        page.get_by_role("heading", name="Keys and sessions").wait_for()
        Approvals(manager.store).deny(first)
        page.go_back()
        if page.get_by_text("payer-1").count():  # the page itself was kept
            page.get_by_text("already answered or void").wait_for()
        card = page.locator(".card").filter(has_text="payer-2")
        fields = card.locator("textarea, input:not([type=hidden], [type=checkbox])")
        fields.first.wait_for()
        texts = [field.input_value() for field in fields.all()]
        assert texts == ["bob", "null", "0", ""]
        page.wait_for_timeout(700)
        card.get_by_role("button", name="Approve").click()
        page.get_by_text("approved", exact=True).wait_for()
        assert "edited" not in Approvals(manager.store).get(second).parts


@open_in_browser
@pytest.mark.slow
def test_a_second_click_confirms_nothing(served: Served) -> None:
    """The button that confirms may be where the one was that asked for a preview."""
    with CheckpointManager() as manager:
        with Session("payer", store=manager) as session:
            session.save()
            session.save()
        before = manager.list_keys(), manager.history("payer")
        tab = served.tab(manager)
        for path, button in (("/fork?id=payer@1", "Fork"), ("/rollback?id=payer@1", "Roll back")):
            page = tab.open(path)
            if button == "Fork":
                page.get_by_label("Name of the fork").fill("new")
            press(page, "Preview")
            page.get_by_role("button", name=button).click()  # as soon as it is there
            page.get_by_text("too soon after the page appeared").wait_for()
            assert (manager.list_keys(), manager.history("payer")) == before
        page = tab.open("/fork?id=payer@1&name=new")
        page.wait_for_timeout(700)
        page.get_by_role("button", name="Fork").dblclick()  # once, and no refusal of a second one
        page.wait_for_url("**/timeline?key=new")
