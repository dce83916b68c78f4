"""Hostile content: markup, control characters, and states beyond every limit."""

import pickle
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Log, Workspace
from agent_checkpoint.records import Draft
from agent_checkpoint.store.objects.object_format import LEAF, NODE, SPINE, make_object
from tests.web.example_store import KEY as EXAMPLE
from tests.web.hostile_store import KEY, SESSION
from tests.web.visitor import Visitor, links, opened

TAGS = set(
    re.findall(
        r"\w+",
        """
        html head meta title link script body a header img nav form input button main h1 h2 h3 div
        span p table thead tbody tr th td colgroup col ol ul li dl dt dd kbd dialog section article
        details summary pre code q strong textarea label fieldset legend svg path circle rect time
        noscript del ins i bdo bdi em h4 h5 h6 blockquote mark
        """,
    )
)
MOST = 5_000_000


class Checked(HTMLParser):
    """Reads a page as a browser would, and notes what our templates never have."""

    def __init__(self) -> None:
        super().__init__()
        self.strange: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        if tag not in TAGS or any(name.startswith("on") or name == "style" for name in values):
            self.strange.append(f"{tag} {values}")
        if tag == "script" and not str(values.get("src", "")).startswith("static/"):
            self.strange.append(f"{tag} {values}")
        if tag == "img" and values.get("src") != "static/icon.svg":
            self.strange.append(f"{tag} {values}")
        for name in ("href", "action", "src"):
            if name in values and not re.match(r"(\./|\w+)(/\w[\w.]*)?(\?|$)|#", values[name]):
                self.strange.append(f"{tag} {values}")


def is_inert(html: str) -> bool:
    page = Checked()
    page.feed(html)
    assert page.strange == []
    assert "3360675291" not in html  # the product, if a template had been made of it
    assert "\x1b" not in html
    assert "\u202e" not in html
    return True


def crawl(visitor: Visitor, start: "list[str]", most: int = 400) -> "set[str]":
    """Look at all pages that can be reached by links, each only once."""
    seen: set[str] = set()
    queue = start
    while queue and len(seen) < most:
        place = queue.pop(0)
        if place in seen or place.startswith(("#", "/static/", "/file?")):
            continue
        seen.add(place)
        answer = visitor.client.get(place)
        # A parent that never was, and a session whose class is unknown, are told as such.
        assert answer.status_code in (200, 400, 404, 405, 422), (place, answer.text)
        assert is_inert(answer.text), place
        queue += [link for link in links(answer.text) if link not in seen]
    return seen


@pytest.mark.slow
def test_every_page_of_a_hostile_store_is_inert(hostile: Visitor) -> None:
    seen = crawl(hostile, ["/", "/approvals"])
    kinds = {place.partition("?")[0] for place in seen}
    assert {"/", "/timeline", "/checkpoint", "/diff", "/effects", "/fork", "/export"} <= kinds
    assert len(seen) > 60


@pytest.mark.slow
def test_every_page_of_an_ordinary_store_is_inert_and_leads_nowhere_else(looking: Visitor) -> None:
    seen = crawl(looking, [f"/checkpoint?id={EXAMPLE}@8", "/"], most=150)
    assert {"/rollback", "/checkpoint", "/effects"} <= {place.partition("?")[0] for place in seen}


def test_hostile_text_is_shown_as_it_is(hostile: Visitor) -> None:
    html = hostile.text("/checkpoint", id=f"{KEY}@1", part="messages")
    assert "&lt;script&gt;window.owned=1" in html
    assert "{{ 48271 * 69621 }}" in html
    assert "\\u202egnp.exe\\x1b[31m\\x00" in html


def test_errors_escape_what_was_asked_for(hostile: Visitor) -> None:
    pages = "checkpoint timeline diff rollback rewind restore fork effects export"
    for page in map("/{}".format, pages.split()):
        text = "<script>window.owned=1</script>"
        answer = hostile.get(page, id=text, key=text, a=text, b=text)
        assert answer.status_code in (400, 404), page
        assert is_inert(answer.text)


def test_finds_of_a_search_are_data(hostile: Visitor) -> None:
    answer = hostile.get("/search/results", key=KEY, q="<script>")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert "window.owned" in answer.text
    assert is_inert(hostile.text("/search", key=KEY, q='"><script>window.owned=1</script>'))


@pytest.mark.parametrize("path", ["page.html", "pic.svg", "a'\"b.js", "link"])
def test_files_are_never_served_as_something_that_a_browser_runs(
    hostile: Visitor, path: str
) -> None:
    answer = hostile.get("/file", id=KEY, path=path)
    if path == "link":
        assert answer.status_code == 404
        return
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]
    html = hostile.text("/checkpoint", id=KEY, part="workspace", path=path)
    assert is_inert(html)


def test_a_file_name_that_is_no_text_can_be_opened(hostile: Visitor) -> None:
    html = hostile.text("/checkpoint", id=KEY, part="workspace")
    (place,) = [link for link in links(html) if "%FF%FE.txt" in link]
    assert "\\xff\\xfe.txt" in html
    assert "window.owned" in hostile.client.get(place).text


@pytest.mark.parametrize("path", ["../store", "/etc/passwd", "..", "a/../../b", "x\0y"])
def test_no_path_leads_out_of_a_checkpoint(hostile: Visitor, path: str) -> None:
    assert hostile.get("/file", id=KEY, path=path).status_code == 404
    assert hostile.get("/checkpoint", id=KEY, part="workspace", path=path).status_code == 404


# -- size ------------------------------------------------------------------------------------------


def quick(visitor: Visitor, page: str, /, **asked: Any) -> str:
    started = time.process_time()
    answer = visitor.get(page, **asked)
    assert answer.status_code == 200, answer.text[:2000]
    assert len(answer.content) < MOST
    assert time.process_time() - started < 10
    return str(answer.text)


@pytest.mark.slow
def test_a_message_of_100_mb_is_shown_from_its_beginning(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        messages: Log = Log([{"role": "user", "content": "abcdefghij" * 10_000_000}])
        manager.save("key", {"messages": messages})
        messages.append({"role": "user", "content": "short"})
        manager.save("key", {"messages": messages})
        visitor = Visitor(manager)
        html = quick(visitor, "/checkpoint", id="key")
        assert "abcdefghij" in html
        assert "only the beginning" in html
        quick(visitor, "/timeline", key="key")
        quick(visitor, "/")
        assert "short" in quick(visitor, "/diff", a="key@1", b="key@2")
        quick(visitor, "/search/results", key="key", q="short")
        quick(visitor, "/checkpoint", id="key", part="messages")


@pytest.mark.slow
def test_a_file_of_100_mb_is_summarised_and_can_be_downloaded_in_pieces(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "large.txt").write_bytes(b"line of text\n" * 8_000_000)
    (files / "large.bin").write_bytes(bytes(30_000_000))
    with opened(tmp_path / "store") as manager:
        workspace = Workspace(files, manager.store, watch=False)
        manager.save("key", {"workspace": workspace})
        (files / "large.txt").write_bytes(b"other text\n" * 8_000_000)
        manager.save("key", {"workspace": workspace})
        visitor = Visitor(manager)
        asked = {"id": "key@1", "part": "workspace"}
        html = quick(visitor, "/checkpoint", **asked, path="large.txt")
        assert "only the beginning" in html
        assert "Binary file" in quick(visitor, "/checkpoint", **asked, path="large.bin")
        assert "large, 88,000,000 bytes" in quick(visitor, "/diff", a="key@1", b="key@2")
        quick(visitor, "/search/results", key="key", q="nothing")
        assert visitor.get("/file", id="key", path="large.bin").content == bytes(30_000_000)


def test_many_large_messages_fill_no_page(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        texts = [f"{number} " + "x" * 300_000 for number in range(200)]
        manager.save("key", {"messages": Log([{"role": "user", "content": t} for t in texts])})
        quick(Visitor(manager), "/checkpoint", id="key")
        manager.save("key", {"large": {str(n): t for n, t in enumerate(texts)}})
        quick(Visitor(manager), "/checkpoint", id="key")
        quick(Visitor(manager), "/diff", a="key@1", b="key@2")


def test_few_objects_that_stand_for_very_many_end_the_page(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        name, leaf = make_object(LEAF, b"[" + b"0," * 5000 + b"0]")
        objects = {name: leaf.stored()}
        for _ in range(4):
            name, node = make_object(NODE, b"", [name] * 200)
            objects[name] = node.stored()
        name, spine = make_object(SPINE, b"", [name])
        objects[name] = spine.stored()
        manager.store.backend.put_objects(objects)
        manager.save("key", {"a": 1})
        head = manager.store.head("key")
        assert head is not None
        parts: dict[str, Any] = {"messages": {"$log": {"$list": name}}}
        manager.store.write(Draft("key", parts, source=head))
        visitor = Visitor(manager)
        assert "too large" in quick(visitor, "/checkpoint", id="key")
        quick(visitor, "/diff", a="key@1", b="key@2")
        quick(visitor, "/search/results", key="key", q="1")
        quick(visitor, "/")


def test_a_deep_state_is_shown(tmp_path: Path) -> None:
    state: Any = {}
    for _ in range(45):
        state = {"a": [state]} if len(str(state)) % 2 else {"b": state}
    with opened(tmp_path / "store") as manager:
        manager.save("key", {"x": state})
        manager.save("key", {"x": 1})
        visitor = Visitor(manager)
        quick(visitor, "/checkpoint", id="key@1")
        quick(visitor, "/diff", a="key@1", b="key@2")


# -- pickles, damage -------------------------------------------------------------------------------


class Bomb:
    """Says that it was opened."""

    opened = 0

    def __reduce__(self) -> Any:
        return _open_bomb, ()


def _open_bomb() -> str:
    Bomb.opened += 1
    return "opened"


def test_no_pickle_is_opened_not_even_a_sealed_one(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        allowing = CheckpointManager(manager.store.backend, pickles="allow")
        allowing.save("key", {"bomb": Bomb(), "other": 1})
        allowing.save("key", {"bomb": Bomb(), "other": 2})
        pickles = CheckpointManager(manager.store.backend, fmt="pickle")
        pickles.save("whole", {"bomb": Bomb()})
        Bomb.opened = 0
        assert pickle.loads(pickle.dumps(Bomb())) == "opened"
        assert Bomb.opened == 1
        visitor = Visitor(manager)
        html = visitor.text("/checkpoint", id="key")
        assert "a pickle: never loaded here" in html
        visitor.text("/checkpoint", id="whole")
        visitor.text("/diff", a="key@1", b="key@2")
        visitor.text("/diff", a="key@1", b="whole")
        visitor.text("/search/results", key="key", q="opened")
        assert Bomb.opened == 1


def test_damaged_checkpoints_are_told_and_hide_no_others(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        for number in range(3):
            manager.save("key", {"n": number}, label=f"label {number}")
        manager.store.backend.append("key/key", b'{"not": "ours"}')
        manager.store.backend.append("key/broken", b"nothing at all")
        manager.save("fine", {"n": 1})
        visitor = Visitor(manager)
        html = visitor.text("/")
        assert "fine" in html
        assert "broken" in html
        html = visitor.text("/timeline", key="key")
        assert "label 2" in html
        assert "@4" in html
        assert visitor.get("/checkpoint", id="key@4").status_code == 422
        assert "label 1" in visitor.text("/checkpoint", id="key@2")
        assert visitor.text("/timeline", key="broken")
        assert visitor.get("/timeline", key="broken", view="events").status_code == 200


def test_a_session_whose_ledger_is_hostile_can_be_looked_at(hostile: Visitor) -> None:
    html = hostile.text("/effects", key=SESSION)
    assert is_inert(html)
    assert "Approve" in html
    assert "It happened" in html
