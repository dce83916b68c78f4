"""What the pages show of an ordinary store."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, KeepLatest, Session
from tests.web.conftest import Place
from tests.web.example_store import KEY
from tests.web.visitor import Visitor, links, opened


def plain(html: str) -> str:
    """The text of a page, about as a person reads it."""
    text = re.sub(r"<[^>]+>", " ", html)
    return re.sub(r" (?=[,.])", "", re.sub(r"\s+", " ", unescape(text)))


def test_the_first_page_lists_keys_with_tasks_and_what_waits(looking: Visitor) -> None:
    text = plain(looking.text("/"))
    assert "fix-login-timeout session" in text
    assert "3/4 deploy" in text
    assert "1 approval" in text
    assert "1 unknown outcome" in text
    assert text.index("fix-login-timeout") < text.index("nightly-report") < text.index("survey")


def test_keys_are_found_by_any_part_of_their_name(looking: Visitor) -> None:
    text = plain(looking.text("/", q="HALF"))
    assert "half-a-day" in text
    assert "nightly" not in text
    assert "No matching keys." in plain(looking.text("/", q="no such"))


def test_an_empty_store_says_so() -> None:
    assert "No keys yet." in plain(Visitor(CheckpointManager()).text("/"))


def test_a_store_that_was_removed_or_replaced_is_opened_anew(tmp_path: Path) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    with opened(store) as manager:
        manager.save("first", {"n": 1})
        visitor = Visitor(manager)
        assert "first" in visitor.text("/")
        store.rename(elsewhere)
        assert "first" not in visitor.text("/")
        with opened(store) as other:
            other.save("second", {"n": 1})
            assert "second" in visitor.text("/")
        store.rename(tmp_path / "gone")
        elsewhere.rename(store)
        assert "first" in visitor.text("/")


def test_many_keys_come_in_pages() -> None:
    manager = CheckpointManager()
    for number in range(130):
        manager.save(f"key-{number:03}", {"n": number})
    visitor = Visitor(manager)
    first = visitor.text("/")
    assert "30 more keys" in plain(first)
    (older,) = [link for link in links(first) if "from=" in link]
    assert "key-000" in visitor.client.get(older).text


def test_the_timeline_shows_forks_rollbacks_adopts_and_the_head(looking: Visitor) -> None:
    html = looking.text("/timeline", key=KEY)
    text = plain(html)
    assert "24 checkpoints, plus 12 in 2 forks" in text
    for words in ("head", "rollback", "adopt", "…/half-a-day", "…/an-hour", "safety", "good"):
        assert words in text
    for style in ("edge back", "edge fork", "edge adopt", "mark safety", "mark save abandoned"):
        assert style in html
    assert html.count("<li class=") == 36


def test_failures_are_marked(looking: Visitor) -> None:
    html = looking.text("/timeline", key="nightly-report")
    text = plain(html)
    assert "task write failed failed" in text
    assert "stopped by OSError failed" in text
    assert html.count("mark save failure") == 1


def test_only_events_can_be_shown(looking: Visitor) -> None:
    text = plain(looking.text("/timeline", key=KEY, view="events"))
    assert "rollback" in text
    assert "task reproduce completed" not in text


def test_a_fork_says_where_it_comes_from(looking: Visitor) -> None:
    text = plain(looking.text("/timeline", key=f"{KEY}/half-a-day"))
    assert f"Forked from {KEY} at @14" in text


def test_a_checkpoint_shows_messages_calls_tasks_state_and_files(looking: Visitor) -> None:
    text = plain(looking.text("/checkpoint", id=KEY))
    assert "People are logged out after a minute" in text
    assert "Parents @23" in text
    text = plain(looking.text("/checkpoint", id=KEY, part="calls"))
    assert "run_tests" in text
    assert '"passed": 2' in text
    assert "TimeoutError: the chat server did not answer" in text
    text = plain(looking.text("/checkpoint", id=KEY, part="tasks"))
    assert "deploy in progress 1" in text
    text = plain(looking.text("/checkpoint", id=KEY, part="agent"))
    assert "agent Coder 7 members" in text
    assert "tools tuple 3 items" in text
    text = plain(looking.text("/checkpoint", id=KEY, part="workspace"))
    assert "README.md 41 B" in text
    text = plain(looking.text("/checkpoint", id=KEY, part="workspace", path="app/auth.py"))
    assert "SESSION_SECONDS = 12 * 60 * 60" in text
    text = plain(looking.text("/checkpoint", id=KEY, part="workspace", path="logo.png"))
    assert "Binary file, 5,128 bytes" in text


def test_a_checkpoint_names_its_children_also_forks(looking: Visitor) -> None:
    text = plain(looking.text("/checkpoint", id=f"{KEY}@14"))
    assert f"Children @15, @16, {KEY}/half-a-day @1" in text


def test_parts_of_a_state_are_given_when_they_are_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        state = {"list": [{"n": [number] * 3} for number in range(1000)], "$odd": 1, "t": (1, 2)}
        manager.save("key", state)
        visitor = Visitor(manager)
        text = plain(visitor.text("/checkpoint", id="key"))
        assert "list list 1,000 items" in text
        assert "$odd number 1" in text
        text = plain(visitor.text("/state", id="key", part="agent", at=".0"))
        assert "99 dict 1 member" in text
        assert "900 more" in text
        more = visitor.text("/state", id="key", part="agent", at=".0", **{"from": 900})
        assert "999 dict" in plain(more)
        assert "2 number 500" in plain(
            visitor.text("/state", id="key", part="agent", at=".0.500.0")
        )
        for at in (".0.5000", ".7", ".0.0.0.0.0", ".x", "0.-1", "." * 500):
            assert visitor.get("/state", id="key", part="agent", at=at).status_code in (400, 404)


def test_long_conversations_come_in_pages_the_newest_first(tmp_path: Path) -> None:
    from agent_checkpoint import Log

    with opened(tmp_path / "store") as manager:
        said = [{"role": "user", "content": f"message number {number}."} for number in range(500)]
        manager.save("key", {"messages": Log(said)})
        visitor = Visitor(manager)
        html = visitor.text("/checkpoint", id="key")
        assert "number 499." in html
        assert "number 449." not in html
        html = visitor.text("/checkpoint", id="key", part="messages", end=450)
        assert "number 449." in html
        assert "number 450." not in html


def test_differences_are_shown_side_by_side(looking: Visitor) -> None:
    html = looking.text("/diff", a=f"{KEY}@8", b=KEY)
    text = plain(html)
    assert "agent.notes.limit added" in text
    assert "messages[4] added" in text
    assert "app/auth.py changed content +1 \N{MINUS SIGN}1" in text
    assert re.search(r"SESSION_SECONDS = (<ins>)?12 \* 60 \* (</ins>)?60", html)
    assert "README.md changed" in text


def test_branches_can_be_compared(looking: Visitor) -> None:
    text = plain(looking.text("/diff", a=f"{KEY}/an-hour", b=f"{KEY}/half-a-day"))
    assert "agent.notes.limit changed" in text
    assert "app/auth.py changed" in text
    text = plain(looking.text("/diff", a=KEY, b=KEY))
    assert text.count("No differences.") == 2


def test_renamed_added_and_removed_files_are_told(tmp_path: Path) -> None:
    from agent_checkpoint import Workspace

    files = tmp_path / "files"
    files.mkdir()
    for name in ("stays", "goes", "moves"):
        (files / name).write_text(f"{name}\n" * 3)
    with opened(tmp_path / "store") as manager:
        workspace = Workspace(files, manager.store, watch=False)
        manager.save("key", {"workspace": workspace})
        (files / "goes").unlink()
        (files / "moves").rename(files / "moved")
        (files / "comes").write_text("new\n")
        (files / "binary").write_bytes(bytes(100))
        manager.save("key", {"workspace": workspace})
        manager.save("key", {"agent": {"n": 1}})
        visitor = Visitor(manager)
        text = plain(visitor.text("/diff", a="key@1", b="key@2"))
        assert "moved renamed was moves" in text
        assert "comes added" in text
        assert "goes removed" in text
        assert "binary, 100 bytes" in text
        assert "stays removed" in plain(visitor.text("/diff", a="key@2", b="key@3"))
        only = plain(visitor.text("/diff", a="key@1", b="key@2", path="comes"))
        assert "goes" not in only


def test_effects_are_listed_with_what_became_of_them(looking: Visitor) -> None:
    text = plain(looking.text("/effects", key=KEY))
    assert "open_ticket(title='Sessions end after a minute'" in text
    assert "committed" in text
    assert "outcome unknown" in text
    assert "Pending approvals" in text


def test_what_a_search_finds_comes_as_lines_with_where_it_first_was(looking: Visitor) -> None:
    answer = looking.get("/search/results", key=KEY, q="half a day")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert rows[-1]["end"] == "all"
    finds = {(row["kind"], row["where"], row["seq"]) for row in rows[:-1]}
    assert ("file", "README.md:3", 19) in finds
    assert any(kind == "messages" for kind, _, _ in finds)
    for row in rows[:-1]:
        assert looking.client.get(row["link"]).status_code == 200
    assert looking.get("/search/results", key=KEY, q="").status_code == 400


def test_a_search_ends_when_there_are_many(tmp_path: Path) -> None:
    from agent_checkpoint import Log

    with opened(tmp_path / "store") as manager:
        manager.save("key", {"messages": Log([f"the same word {n}" for n in range(500)])})
        rows = Visitor(manager).get("/search/results", key="key", q="WORD").text.splitlines()
    assert len(rows) == 201
    assert json.loads(rows[-1])["end"] == "many"


def test_what_is_not_there_is_not_found(looking: Visitor) -> None:
    for page, asked in (
        ("/timeline", {"key": "none"}),
        ("/checkpoint", {"id": "none"}),
        ("/checkpoint", {"id": KEY, "part": "none"}),
        ("/diff", {"a": KEY, "b": "none"}),
        ("/effects", {"key": "survey-draft"}),
        ("/nothing", {}),
    ):
        assert looking.get(page, **asked).status_code == 404, page
    assert looking.get("/checkpoint").status_code == 400
    assert looking.get("/rollback", id="survey-draft@1").status_code == 400


def test_the_timeline_goes_on_with_what_is_saved_and_forgets_what_is_pruned(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        for number in range(150):
            manager.save("key", {"n": number}, label=f"label {number}.")
        visitor = Visitor(manager)
        assert "label 149." in visitor.text("/timeline", key="key")
        manager.save("key", {"n": -1}, label="the newest")
        assert "the newest" in visitor.text("/timeline", key="key")
        assert visitor.get("/timeline/state", key="key").text.startswith('{"total": 151')
        assert "label 3." in visitor.text("/timeline/rows", key="key", block=0)
        manager.prune("key", KeepLatest(10))
        fresh = Visitor(manager)
        assert '"total": 10,' in fresh.get("/timeline/state", key="key").text
        assert "label 141." in fresh.text("/timeline", key="key")


@pytest.mark.parametrize("row", ["0", "99", "100", "149", "99999", "-1", "x"])
def test_any_row_can_be_asked_for(tmp_path: Path, row: str) -> None:
    manager = CheckpointManager()
    for number in range(150):
        manager.save("key", {"n": number})
    visitor = Visitor(manager)
    assert visitor.get("/timeline", key="key", row=row).status_code == 200
    assert visitor.get("/timeline/rows", key="key", block=row).status_code == 200


def test_a_store_of_readable_files_can_be_looked_at(tmp_path: Path, shared: Place) -> None:
    manager = CheckpointManager(backend="file", path=tmp_path / "store")
    for number in range(30):
        manager.save("key", {"n": number, "text": "x" * 5000}, label=f"label {number}.")
    visitor = Visitor(manager)
    assert "label 29." in visitor.text("/timeline", key="key")
    assert "n number 29" in plain(visitor.text("/checkpoint", id="key"))
    assert "agent.n changed" in plain(visitor.text("/diff", a="key@1", b="key"))


def test_an_unknown_key_is_told_in_words_for_the_page(looking: Visitor) -> None:
    answer = looking.get("/timeline", key="zzzzzzzz")
    assert answer.status_code == 404
    assert "The first page lists all keys." in answer.text
    assert "list_keys" not in answer.text


def test_the_subagents_of_a_checkpoint_are_a_tree() -> None:
    manager = CheckpointManager()
    with Session("team", store=manager) as session:
        session.messages.append("of the parent")
        with session.subagent("researcher") as child:
            child.messages.append({"role": "user", "content": "which numbers?"})
            with child.subagent("reader") as inner:
                for task in inner.tasks(["open a book"]):
                    with task:
                        session.save()
    visitor = Visitor(manager)
    page = visitor.text("/checkpoint", id="team")
    text = plain(page)
    assert "of the parent" in text
    assert text.index("↳ researcher completed") < text.index("↳ ↳ researcher/reader completed")
    shown = plain(visitor.text("/checkpoint", id="team", part="subagents/researcher/messages"))
    assert "user 0 which numbers?" in shown
    shown = plain(visitor.text("/checkpoint", id="team", part="subagents/researcher/reader/tasks"))
    assert "open a book" in shown
    found = visitor.text("/search/results", key="team", q="which numbers")
    assert "subagents%2Fresearcher%2Fmessages" in found
    rollback = visitor.text("/rollback", id="team@2")
    assert "subagents/researcher<" in rollback
    assert "subagents/researcher/messages" not in rollback


def test_a_checkpoint_of_a_subagent_opens_on_its_conversation() -> None:
    manager = CheckpointManager()
    with Session("crew", store=manager) as session:
        session.messages.append({"role": "user", "content": "to the boss"})
        session.save()
        with session.subagent("kid") as kid:
            kid.messages.append({"role": "user", "content": "to the kid"})
            of_kid = session.save()
            with kid.subagent("inner") as inner:
                inner.messages.append({"role": "user", "content": "to the inner one"})
                of_inner = session.save()
            session.messages.append({"role": "assistant", "content": "from the boss"})
            of_both = session.save()
    visitor = Visitor(manager)
    for name, own in ((of_kid, "to the kid"), (of_inner, "to the inner one")):
        shown = plain(visitor.text("/checkpoint", id=name))
        assert own in shown
        assert "to the boss" not in shown
    assert "from the boss" in plain(visitor.text("/checkpoint", id=of_both))
    assert "to the boss" in plain(visitor.text("/checkpoint", id=of_kid, part="messages"))


def test_the_timeline_has_tokens_and_cost_of_a_step() -> None:
    manager = CheckpointManager()
    reply = {"usage": {"prompt_tokens": 1200, "completion_tokens": 34}}
    prices = {"m": {"input": 3, "output": 15}}
    with Session("priced", store=manager, prices=prices) as session:
        session.model(lambda **_: reply, model="m", messages=["hi"])
        session.save(label="asked")
    shown = plain(Visitor(manager).text("/timeline", key="priced"))
    assert shown.count("1,200+34 tokens, cost 0.00411, 0.0 s") == 1


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "tool_use", "name": "look", "input": {"n": 7}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": '{"n": 7}'}}],
        },
        {"type": "function_call", "name": "look", "arguments": '{"n": 7}'},
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"n": 7}}}]},
    ],
)
def test_tool_calls_of_each_api_have_name_and_arguments(message: dict[str, Any]) -> None:
    manager = CheckpointManager()
    with Session("asked", store=manager) as session:
        session.messages.append(message)
    shown = plain(Visitor(manager).text("/checkpoint", id="asked"))
    assert re.search(r"calls look .*n.*: 7", shown)
