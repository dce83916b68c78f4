"""Regressions of single details: names, links, downloads, texts beside the graph."""

import json
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session, Workspace
from agent_checkpoint.web import page_text
from agent_checkpoint.web.pages import file_view
from tests.web.example_store import KEY
from tests.web.test_pages import plain
from tests.web.visitor import Visitor, links


def test_links_lead_to_the_checkpoint_they_stand_for_whatever_keys_are_called() -> None:
    manager = CheckpointManager()
    for number in range(3):
        manager.save("job", {"n": number})
    first, second, third = [row["id"] for row in manager.history("job")[::-1]]
    for name in ("job@1", "job@2", "job@3", first, "fork@1"):
        manager.save(name, {"other": True})
    manager.fork("job", "fork", second)
    visitor = Visitor(manager)
    pages = [visitor.text("/timeline", key=key) for key in ("job", "fork")]
    pages.append(visitor.text("/checkpoint", id=second))
    for html in pages:
        for place in links(html):
            if place.startswith("/checkpoint?id="):
                shown = plain(visitor.text(place))
                assert " other " not in shown, place
    assert f'data-pick="{first}"' in pages[0]
    assert f"a={page_text.link('', a=second).partition('=')[2]}" in "".join(links(pages[2]))
    assert "@3 of job" in plain(visitor.text("/checkpoint", id=third))


def test_keys_that_look_alike_are_told_apart() -> None:
    manager = CheckpointManager()
    keys = ["prod", "prod ", " prod", "pr  od", "pr od", "prod\u3164", "prod\u2800", "pr\u034fod"]
    for key in [*keys, "prod\ufe0f", "prod\u200b"]:
        manager.save(key, {"n": 1})
    visitor = Visitor(manager)
    shown = {page_text.single_line(key) for key in manager.list_keys()}
    assert len(shown) == 10
    html = visitor.text("/")
    for name in shown:
        assert f'><bdo dir="ltr">{name}</bdo></a>' in html
    assert page_text.shown("\u2764\ufe0f") == "\u2764\ufe0f"  # an emoji is what it is


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("notes.txt", "attachment; filename=\"notes.txt\"; filename*=UTF-8''notes.txt"),
        ("é.txt", "attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%A9.txt"),
        ('a"b;c\r\n.txt', "attachment; filename=\"a_b_c__.txt\"; filename*=UTF-8''a_b_c__.txt"),
        ("x\u202etxt.exe", "attachment; filename=\"x_txt.exe\"; filename*=UTF-8''x_txt.exe"),
        ("\udcff", "attachment; filename=\"_\"; filename*=UTF-8''_"),
        ("..", "attachment; filename=\"file\"; filename*=UTF-8''file"),
    ],
)
def test_a_file_is_saved_under_its_name(name: str, header: str) -> None:
    assert page_text.attachment(name) == header


def test_a_download_has_the_name_of_the_file(looking: Visitor) -> None:
    answer = looking.get("/file", id=KEY, path="app/auth.py")
    assert 'filename="auth.py"' in answer.headers["content-disposition"]


def test_all_entries_of_a_directory_can_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_view, "MAX_ENTRIES", 10)
    manager = CheckpointManager()
    for number in range(25):
        (tmp_path / f"file-{number:02}").write_text("x")
    manager.save("key", {"workspace": Workspace(tmp_path, manager.store, watch=False)})
    visitor = Visitor(manager)
    seen: list[str] = []
    place = "/checkpoint?id=key&part=workspace"
    for _ in range(3):
        html = visitor.client.get(place).text
        seen += [
            name for name in (f"file-{number:02}" for number in range(25)) if f">{name}<" in html
        ]
        place = ([one for one in links(html) if f"from={len(seen)}" in one] or [place])[0]
    assert seen == [f"file-{number:02}" for number in range(25)]
    assert "21 to 25 of 25" in plain(html)


def test_a_call_of_which_nobody_knows_is_trouble_until_somebody_says(acting: Visitor) -> None:
    html = acting.text("/timeline", key=KEY)
    assert html.count("outcome unknown") == 1
    assert html.count("mark save failure") == 1
    shape = json.loads(acting.text("/timeline/state", key=KEY))["shape"]
    with Session(KEY, store=acting.manager, every="manual") as session:
        (effect,) = [one for one in session.effects if one.status == "unknown"]
        session.resolve(effect.id, happened=True)
    html = acting.text("/timeline", key=KEY)
    assert "outcome unknown" not in html
    assert json.loads(acting.text("/timeline/state", key=KEY))["shape"] != shape


def test_rows_say_what_the_picture_shows(looking: Visitor) -> None:
    text = plain(looking.text("/timeline", key=KEY))
    assert "rollback to @8" in text
    assert "abandoned" in text
    assert "safety safety" not in text
    assert "@1 open" in text


def test_names_and_numbers_of_forks() -> None:
    manager = CheckpointManager()
    for number in range(3):
        manager.save("ship", {"n": number})
    manager.fork("ship", "ship2")
    manager.fork("ship", "ship/a")
    visitor = Visitor(manager)
    text = plain(visitor.text("/timeline", key="ship"))
    assert "3 checkpoints, plus 2 in 2 forks" in text
    assert " ship2 " in text
    assert "…/a" in text
    assert "Go to head" in text
    assert plain(visitor.text("/")).count("fork") == 2
    manager.save("ship", {"n": 4})
    html = visitor.text("/timeline", key="ship")
    assert "Go to head" not in html
    assert ">save</span>" in html  # a row without a label says what it is


def test_forks_that_share_a_line_are_told() -> None:
    manager = CheckpointManager()
    manager.save("main", {"n": 0})
    for number in range(30):
        manager.fork("main", f"fork-{number}", "main@1")
    for number in range(30):
        manager.save(f"fork-{number}", {"n": number})
    text = plain(Visitor(manager).text("/timeline", key="main"))
    assert "7 forks drawn in the rightmost lane" in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(4.2e-05, "under 1 ms"), (0.42, "420 ms"), (1.934, "1.93 s"), (float("nan"), "?")],
)
def test_how_long_is_said_as_people_do(seconds: float, said: str) -> None:
    assert page_text.duration(seconds) == said


def test_a_find_is_shown_as_it_is_read(looking: Visitor) -> None:
    rows = [
        json.loads(line)
        for line in looking.text("/search/results", key=KEY, q="logged out").splitlines()
    ]
    assert rows[0]["where"] == "user"
    assert rows[0]["text"] == ["People are ", "logged out", " after a minute. Please fix it."]


def test_rows_that_were_pruned_are_gone_at_once() -> None:
    manager = CheckpointManager()
    for number in range(5):
        manager.save("key", {"n": number})
    visitor = Visitor(manager)
    assert visitor.text("/timeline", key="key").count("<li class=") == 5
    manager.delete("key", "key@1")
    assert visitor.text("/timeline", key="key").count("<li class=") == 4
