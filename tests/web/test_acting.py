"""Actions from the page: approvals, outcomes, fork, export. Rollback has its own file."""

import json
import re
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import Approvals, CheckpointManager, Session, Suspended, tool
from agent_checkpoint.records import same_json
from agent_checkpoint.session.session_record import read_session_record
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.web.pages import fork_page
from tests.web.conftest import Place
from tests.web.example_store import KEY
from tests.web.test_pages import plain
from tests.web.visitor import Visitor


def approval(visitor: Visitor) -> str:
    (request,) = Approvals(visitor.manager.store).pending()
    return request.id


def ledger(visitor: Visitor) -> Ledger:
    head = visitor.manager.store.head(KEY)
    assert head is not None
    meta = read_session_record(visitor.manager.store, head)
    assert meta is not None
    found = Ledger(visitor.manager.store, meta.family)
    found.refresh()
    return found


# -- approvals -------------------------------------------------------------------------------------


def test_a_call_is_approved_as_it_is(acting: Visitor, example: Place) -> None:
    assert "deploy" in acting.text("/approvals")
    answer = acting.approve(approval(acting))
    assert answer.status_code == 303
    assert "No pending approvals." in acting.text("/approvals")
    with Session(KEY, store=acting.manager) as session:
        (row,) = session.carry_out()
    assert row["result"] == "deployed 2.4.1"
    assert "approved, used" in acting.text(f"/effects?key={KEY}")


def test_the_page_has_the_tool_and_the_name_that_the_model_knows(acting: Visitor) -> None:
    """What runs is what is shown; a ledger of others can contain any name."""

    @tool(approve=True)
    def _ship_it(version: str) -> str:
        return version

    call = {"type": "tool_use", "id": "t1", "name": "ship", "input": {"version": "3"}}
    with suppress(Suspended), Session("ships", store=acting.manager, provider="anthropic") as job:
        job.run_tools({"role": "assistant", "content": [call]}, {"ship": _ship_it})
    shown = plain(acting.text("/approvals"))
    assert "the session calls _ship_it with these arguments" in shown
    assert "as the tool ship of the model" in shown


def test_a_call_is_approved_with_other_arguments(acting: Visitor) -> None:
    form = {
        "argument.0": "2.5",
        "argument.1": '[\n  "web-1",\n  "web-2"\n]',
    }
    name = approval(acting)
    assert acting.approve(name, **form).headers["location"] == f"request?id={name}"
    assert "approved" in plain(acting.text("/request", id=name))
    with Session(KEY, store=acting.manager) as session:
        (row,) = session.carry_out()
        assert row["result"] == "deployed 2.5"
        arguments = session.calls[-1]["arguments"]
    assert arguments["servers"] == ["web-1", "web-2"]
    assert arguments["notes"] == "Sessions last for half a day."


def test_arguments_that_are_no_json_are_refused(acting: Visitor) -> None:
    for form in (
        {"argument.0": "2.5 and more", "json.argument.0": "yes"},
        {"argument.1": "web-1, web-2"},
    ):
        answer = acting.approve(approval(acting), **form)
        assert answer.status_code == 400
        assert "not JSON" in answer.text
        assert approval(acting)


@pytest.mark.parametrize("text", ["2.5", "true", "null", '"2.5"', "[1]", "2.5 and\n\n more\n", ""])
def test_text_stays_text(acting: Visitor, text: str) -> None:
    """A version `1.2` became a number, and the approved call failed."""
    assert asked_to_send(acting, "2.4") == "2.4"
    assert "json.argument.0" in acting.text("/effects", key="sender")
    assert sent(acting, text) == text


@pytest.mark.parametrize(
    ("what", "text"), [(1, "1.5"), (1, "true"), (1.5, '"x"'), (True, "1"), ([1], "{}"), (None, "1")]
)
def test_another_type_needs_the_switch(acting: Visitor, what: Any, text: str) -> None:
    asked_to_send(acting, what)
    (request,) = [one for one in Approvals(acting.manager).pending() if one.tool == "send"]
    answer = acting.approve(request.id, **{"argument.0": text})
    assert answer.status_code == 400
    assert "Switch its field to JSON" in answer.text
    assert same_json(sent(acting, text, is_json=True), json.loads(text))


def test_a_number_keeps_its_type(acting: Visitor) -> None:
    asked_to_send(acting, 1.5)
    assert repr(sent(acting, "2")) == "2.0"


def test_text_is_shown_as_text(acting: Visitor) -> None:
    text = '\nDear Ann,\n\n  "<b>1.2</b>"\tis out. \\n is not a line end.\n'
    assert asked_to_send(acting, text) == text
    assert sent(acting, text) == text
    html = acting.text("/effects", key="sender")
    assert f"\n{text}</pre>" in unescape(html)  # of the closed request
    assert "…" not in html.partition("Closed requests")[2]


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "\u202eabc", "a\u200bb", "a\x00b"])
def test_text_with_hidden_characters_is_shown_as_json(acting: Visitor, text: str) -> None:
    shown = asked_to_send(acting, text)
    assert shown.startswith('"')
    assert json.loads(shown) == text
    assert sent(acting, shown) == text


def test_an_answer_is_confirmed_and_can_be_revoked(acting: Visitor) -> None:
    name = approval(acting)
    acting.approve(name, **{"argument.0": "2.5"})
    html = acting.text("/request", id=name)
    assert "Approved. The session calls" in html
    assert "2.5</pre>" in html
    assert 'action="revoke"' in html
    assert acting.post("/revoke", {"approval": name}).headers["location"] == f"request?id={name}"
    html = acting.text("/request", id=name)
    assert "was revoked by the web page" in html
    assert "2.4.1</textarea>" in html
    assert acting.post("/revoke", {"approval": name}).status_code == 409
    assert acting.post("/deny", {"approval": name, "reason": "no"}).status_code == 303
    assert "Denied. The call is not made" in acting.text("/request", id=name)
    acting.post("/revoke", {"approval": name})
    acting.approve(name)
    with Session(KEY, store=acting.manager) as session:
        assert session.carry_out()[0]["result"] == "deployed 2.4.1"
    assert 'action="revoke"' not in acting.text("/request", id=name)
    assert acting.post("/revoke", {"approval": name}).status_code == 409


def test_a_call_is_denied_with_a_reason(acting: Visitor) -> None:
    form = {"approval": approval(acting), "reason": "not on a Friday"}
    assert acting.post("/deny", form).status_code == 303
    with Session(KEY, store=acting.manager) as session:
        assert session.carry_out()[0]["denied"] == "not on a Friday"
    assert "not on a Friday" in acting.text("/effects", key=KEY)


def test_an_answer_is_given_once(acting: Visitor) -> None:
    name = approval(acting)
    assert acting.post("/deny", {"approval": name}).status_code == 303
    assert acting.approve(name).status_code == 409
    assert acting.post("/approve", {"approval": "approval-none"}).status_code == 404


@tool(effect="irreversible", approve=True)
def send(what: Any) -> Any:
    return what


def asked_to_send(visitor: Visitor, what: Any) -> str:
    """Have a call wait for an answer, and return what the page has in its field."""
    with suppress(Suspended), Session("sender", store=visitor.manager) as session:
        send(what)
    assert session
    text = visitor.text("/effects", key="sender")
    found = re.search(r'<textarea name="argument.0[^>]*>\n(.*?)</textarea>', text, re.DOTALL)
    return unescape(found[1]) if found else ""


def sent(visitor: Visitor, text: str, *, is_json: bool = False) -> Any:
    """Approve with a text in the field, and return what is sent then."""
    (request,) = [one for one in Approvals(visitor.manager.store).pending() if one.tool == "send"]
    form = {
        "argument.0": text.replace("\n", "\r\n"),
        **({"json.argument.0": "yes"} if is_json else {}),
    }
    answer = visitor.approve(request.id, **form)
    assert answer.status_code == 303, answer.text
    with Session("sender", store=visitor.manager) as session:
        return session.carry_out()[0]["result"]


def test_what_is_approved_is_what_is_seen(acting: Visitor) -> None:
    what = {"to": "/srv/\u2067data\u2066/bak\u2069\u2069-rm", "memo": ["a\u200bb\x7f\u3164", "é\n"]}
    text = asked_to_send(acting, what)
    assert r'"/srv/\u2067data\u2066/bak\u2069\u2069-rm"' in text
    assert r'"a\u200bb\u007f\u3164"' in text
    assert "é" in text
    assert json.loads(text) == what
    assert sent(acting, text) == what


@pytest.mark.parametrize(
    ("what", "text"), [(1, "true"), (1, "1.0"), (0, "false"), ([1], "[true]"), (True, "1")]
)
def test_an_edit_counts_though_python_calls_it_equal(acting: Visitor, what: Any, text: str) -> None:
    asked_to_send(acting, what)
    assert repr(sent(acting, text, is_json=True)) == repr(json.loads(text))


def test_large_numbers_are_shown_as_numbers_and_can_be_changed(acting: Visitor) -> None:
    assert asked_to_send(acting, {"n": 12345678901234567890123}) == (
        '{\n  "n": 12345678901234567890123\n}'
    )
    assert sent(acting, '{"n": 12345678901234567890124}') == {"n": 12345678901234567890124}


def test_what_cannot_be_edited_is_said_so(acting: Visitor) -> None:
    assert asked_to_send(acting, (1, 2)) == ""
    assert "cannot be edited here" in acting.text("/effects", key="sender")


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "[" * 3000 + "]" * 3000, "9" * 5000])
def test_what_is_no_json_is_refused_and_is_no_fault(acting: Visitor, text: str) -> None:
    answer = acting.approve(approval(acting), **{"argument.1": text})
    assert answer.status_code == 400
    (effect,) = [item for item in ledger(acting).all_effects() if item.status == "unknown"]
    form = {"key": KEY, "effect": effect.id, "happened": "yes", "result": text}
    assert acting.post("/resolve", form).status_code == 400


# -- effects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("happened", "status"), [("yes", "committed"), ("no", "failed")])
def test_a_person_says_what_became_of_an_unknown_effect(
    acting: Visitor, happened: str, status: str
) -> None:
    (effect,) = [item for item in ledger(acting).all_effects() if item.status == "unknown"]
    form = {"key": KEY, "effect": effect.id, "happened": happened, "note": "I looked."}
    if happened == "yes":
        form["result"] = '{"sent": true}'
    assert acting.post("/resolve", form).status_code == 303
    found = ledger(acting).state.effects[effect.id]
    assert (found.status, found.note) == (status, "I looked.")
    assert acting.post("/resolve", form).status_code == 422
    assert "It happened" not in acting.text("/effects", key=KEY)


def test_nonsense_about_an_effect_is_refused(acting: Visitor) -> None:
    (effect,) = [item for item in ledger(acting).all_effects() if item.status == "unknown"]
    form = {"key": KEY, "effect": effect.id}
    assert acting.post("/resolve", {**form, "happened": "maybe"}).status_code == 400
    assert acting.post("/resolve", {**form, "happened": "yes", "result": "{"}).status_code == 400
    assert acting.post("/resolve", {"key": KEY, "effect": "x", "happened": "no"}).status_code == 404


# -- fork and export -------------------------------------------------------------------------------


def test_a_fork_is_previewed_and_confirmed(acting: Visitor) -> None:
    form = {"id": f"{KEY}@8", "name": "another way"}
    text = plain(acting.text("/fork", **form))
    assert "The key another way is available" in text
    assert "another way" not in acting.manager.list_keys()
    answer = acting.post("/fork", form)
    assert answer.headers["location"] == "timeline?key=another%20way"
    assert acting.manager.history("another way")[0]["parents"][0].endswith("-8")
    assert acting.post("/fork", form).status_code == 409
    assert acting.post("/fork", {"id": KEY, "name": " "}).status_code == 400


def test_an_archive_is_sent_and_can_be_imported(acting: Visitor, tmp_path: Path) -> None:
    assert "24 checkpoints" in plain(acting.text("/export", key=KEY))
    answer = acting.post("/export", {"key": KEY})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert f'attachment; filename="{KEY}.ckpt";' in answer.headers["content-disposition"]
    (tmp_path / "a.ckpt").write_bytes(answer.content)
    other = CheckpointManager()
    assert other.import_archive(tmp_path / "a.ckpt") == KEY
    assert len(other.history(KEY)) == 24


def test_nothing_is_left_of_an_archive_that_was_sent(
    acting: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    assert acting.post("/export", {"key": "none"}).status_code == 404
    assert acting.post("/export", {"key": KEY}).status_code == 200
    assert list((tmp_path / "t").iterdir()) == []


def test_nothing_is_left_of_an_archive_that_nobody_reads(
    acting: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))

    def went_away(file: Any, folder: Any) -> Any:
        file.close()
        return iter([b"a beginning"])

    monkeypatch.setattr(fork_page, "_sent", went_away)
    assert acting.post("/export", {"key": KEY}).status_code == 200
    assert list((tmp_path / "t").iterdir()) == []


def test_a_name_that_is_no_file_name_is_none_in_the_header(acting: Visitor) -> None:
    acting.manager.save('../a"b\r\nX: y', {"n": 1})
    answer = acting.post("/export", {"key": '../a"b\r\nX: y'})
    assert re.fullmatch(
        r"""attachment; filename="[\w. -]+\.ckpt"; filename\*=UTF-8''[\w.%-]+\.ckpt""",
        answer.headers["content-disposition"],
    )
