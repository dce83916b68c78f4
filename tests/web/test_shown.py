"""How single values are shown: times, sizes, ids, messages of several model APIs."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Log, Session
from agent_checkpoint.web import page_text
from agent_checkpoint.web.pages import search_page
from tests.web.test_pages import plain
from tests.web.visitor import Visitor, opened


@pytest.mark.parametrize(
    ("ago", "said"),
    [(1, "just now"), (30, "30 s ago"), (600, "10 min ago"), (7200, "2 h ago"), (-3, "just now")],
)
def test_times_are_said_as_people_do(ago: float, said: str) -> None:
    assert page_text.when(1_700_000_000, 1_700_000_000 + ago) == said


def test_older_times_have_a_date() -> None:
    now = time.time()
    assert page_text.when(now - 5 * 86_400)[2] == "-"
    assert page_text.when(0.0).startswith(("1970", "1969"))
    assert page_text.when(None) == page_text.timestamp(None) == "?"
    assert page_text.timestamp(1e300) == "?"


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_999, "1 MB"), (3e15, "3e+03 TB")],
)
def test_sizes(number: float, said: str) -> None:
    assert page_text.format_size(number) == said


def test_ids_are_short_beside_their_key() -> None:
    assert page_text.short("key_1700000000000000000-7", "key") == "@7"
    assert page_text.short("key@7", "key") == "@7"
    assert page_text.short("key_1700000000000000000-7", "other") == "key @7"
    assert page_text.short("nonsense", "key") == "nonsense"


def test_addresses_carry_any_text() -> None:
    assert (
        page_text.link("/a", key="b c&d=\udcff", path="", row=0) == "/a?key=b%20c%26d%3D%FF&row=0"
    )
    assert page_text.link("/a", key="\ud800") == "/a?key=%ED%A0%80"
    assert page_text.link("/a") == "/a"


def test_messages_of_several_makers_are_told_apart(tmp_path: Path) -> None:
    said: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "ls"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "name": "read", "input": {"path": "a.txt"}},
                {"type": "image", "source": "x"},
                "plain",
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "content": "the result"}]},
        {"role": "user", "content": "hello", "name": "ann"},
        ["no", "message"],
        "a text",
        7,
    ]
    with opened(tmp_path / "store") as manager:
        manager.save("key", {"messages": Log(said)})
        manager.save("odd", {"messages": _Same({"n": 1}), "calls": _Same({}), "tasks": _Same({})})
        visitor = Visitor(manager)
        text = plain(visitor.text("/checkpoint", id="key"))
        for words_ in ("calls ls", '"name": "ls"', "I look.", "calls read", "the result", "ann"):
            assert words_ in text
        for part in ("messages", "calls", "tasks"):
            assert visitor.get("/checkpoint", id="odd", part=part).status_code == 200


class _Same:
    def __init__(self, state: "dict[str, Any]") -> None:
        self.state = state

    def state_dict(self) -> "dict[str, Any]":
        return self.state

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.state = state


def test_calls_that_are_none_are_shown_all_the_same(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        manager.save("key", {"calls": Log([{"odd": 1}, 7, {"tool": "x", "seconds": "long"}])})
        text = plain(Visitor(manager).text("/checkpoint", id="key", part="calls"))
        assert '"odd": 1' in text


def test_a_store_that_fails_is_told_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_checkpoint.errors import StorageError

    def broken(*args: Any, **options: Any) -> Any:
        raise StorageError("gone")

    manager = CheckpointManager()
    visitor = Visitor(manager)
    with monkeypatch.context() as patch:
        patch.setattr(type(manager.store.backend), "streams", broken)
        assert json.loads(visitor.text("/updates"))["version"] == "unreadable"
    assert json.loads(visitor.text("/updates"))["version"] != "unreadable"


def test_a_search_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CheckpointManager()
    for number in range(5):
        manager.save("key", {"n": number})
    manager.store.backend.append("key/key", b"damaged")
    search = search_page.Search(manager.store, "key", "x")
    assert list(search.run())[-1] == {"end": "all", "looked": 5, "found": 0}
    monkeypatch.setattr(search_page, "SECONDS", -1.0)
    visitor = Visitor(manager)
    last = visitor.get("/search/results", key="key", q="x").text.splitlines()[-1]
    assert json.loads(last) == {"end": "time", "looked": 1, "found": 0}
    assert visitor.get("/search/results", key="key", q="x" * 2000).status_code == 400


def test_tokens_cost_and_time_of_a_step(tmp_path: Path) -> None:
    reply = {"usage": {"prompt_tokens": 1200, "completion_tokens": 34}}
    with opened(tmp_path / "store") as manager:
        prices = {"m": {"input": 3, "output": 15}}
        with Session("job", store=manager, prices=prices) as session:
            session.model(lambda **_: reply, model="m")
            session.save(label="asked", metrics={"score": 7})
        visitor = Visitor(manager)
        assert visitor.text("/timeline", key="job").count("1,200+34 tokens, cost 0.00411") == 1
        page = plain(visitor.text("/checkpoint", id="job@2"))
        assert "Model calls 1,200+34 tokens, cost 0.00411, 0.0 s" in page
        assert "score 7" in page
        assert "input_tokens" not in page
        assert "Model calls" not in visitor.text("/checkpoint", id="job@1")
