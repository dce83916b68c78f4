"""A store that somebody wrote who means harm: all of it is shown as text, and cut."""

import json
from pathlib import Path

import pytest

from agent_checkpoint import Session
from agent_checkpoint.formatting import (
    display_width,
    escape_text,
    json_text,
    one_line,
    shell_quote,
    truncate_to_width,
    value_summary,
)
from agent_checkpoint.present.graph_lanes import LaneNode, draw_lanes
from tests.cli.world import opened, run, send_mail

EVIL = "x\x1b[31m\x07\u202eevil\n\r\x9b2J\u2028end"
BAD = ("\x1b", "\x07", "\u202e", "\r", "\x9b", "\u2028")


def clean(text: str) -> bool:
    return not any(char in text for char in BAD)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A store in which keys, labels, tags, states, paths and effects are hostile."""
    place = tmp_path / "evil"
    place.mkdir()
    (place / f"file{EVIL}").write_text(f"line {EVIL}\n")
    with Session(f"key{EVIL}", workspace=place) as session:
        session.messages.append({"role": EVIL, "content": EVIL})
        send_mail(EVIL, EVIL)
        for task in session.tasks([EVIL]):
            with task:
                task.note = EVIL
        session.save(label=EVIL, tags=[EVIL], metrics={EVIL: 1.0})
    with opened() as manager:
        manager.save("plain", {EVIL: EVIL, "big": "y" * 3_000_000}, label="z" * 100_000)
        manager.fork(f"key{EVIL}", f"fork{EVIL}")
    return place


COMMANDS = [
    ["keys"],
    ["log"],
    ["log", "--all"],
    ["show"],
    ["show", "plain"],
    ["show", "--part", "messages"],
    ["show", "@~0", "--files"],
    ["diff", "@1"],
    ["diff", "@1", "~0"],
    ["diff", "@1", "--stat"],
    ["diff", "@1", "--path", "app.py"],
    ["tasks"],
    ["tasks", "--all"],
    ["effects"],
    ["approvals", "--all"],
    ["stats"],
    ["verify"],
    ["rollback", "--to", "@1", "--dry-run"],
    ["rollback", "--to", "@1", "--yes"],
    ["restore", "@1", "--dry-run"],
    ["doctor"],
]


@pytest.mark.parametrize("typed", COMMANDS, ids=" ".join)
@pytest.mark.slow
def test_nothing_of_it_reaches_a_terminal(evil: Path, typed: "list[str]") -> None:
    (evil / "app.py").write_text(EVIL)
    ran = run(*typed, at=evil)
    assert ran.status in (0, 4), ran.err
    assert clean(ran.out + ran.err)
    assert len(ran.out) < 10_000_000
    if "--part" not in typed:
        data = run(*typed, "--json", at=evil)
        assert clean(data.out)
        json.loads(data.out)


def test_no_error_carries_it(evil: Path) -> None:
    for typed in (
        [EVIL],
        ["log", EVIL],
        ["show", f"{EVIL}@3"],
        ["log", f"--{EVIL}"],
        ["fork", EVIL, "x"],
    ):
        ran = run(*typed, at=evil)
        assert ran.status in (2, 3)
        assert clean(ran.err), typed
        assert len(ran.err.splitlines()) <= 2


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    place = tmp_path / "odd"
    place.mkdir()
    name = b"\xff\xfe.txt"
    (place / name.decode(errors="surrogateescape")).write_text("x")
    assert run("save", at=place).status == 0
    (place / name.decode(errors="surrogateescape")).write_text("y")
    for typed in (["diff"], ["diff", "--json"], ["restore", "@1", "--dry-run"]):
        ran = run(*typed, at=place)
        assert ran.status == 0, ran.err
    assert run("diff", "--json", at=place).data["files"]["changed"]


def test_text_is_inert() -> None:
    assert one_line("a\nb\x1b\u202e") == "a\\nb\\x1b\\u202e"
    assert escape_text("a\nb\x1b") == "a\nb\\x1b"
    assert one_line("x" * 10, 3) == "xxx… (10 characters)"
    assert one_line(None) == ""
    assert one_line("\U000e0001") == "\\U000e0001"


def test_json_stays_json() -> None:
    data = {"a\u202e": ["\x9b", "\U000e0001", "\ud800", "ü", 1.5, None], "n": "line\n"}
    text = json_text(data)
    assert clean(text)
    assert "ü" in text
    text.encode()
    assert json.loads(text) == data


def test_brief_builds_only_what_it_shows() -> None:
    assert value_summary({"a": [1, "x"], "b": None}) == '{"a": [1, "x"], "b": null}'
    assert len(value_summary(["y" * 10_000_000] * 1000, 50)) <= 51
    assert len(value_summary({str(n): n for n in range(100_000)}, 50)) <= 51
    deep: object = 1
    for _ in range(90):
        deep = [deep]
    assert value_summary(deep, 500).count("[") <= 21


def test_columns() -> None:
    assert display_width("日本") == 4
    assert truncate_to_width("日本語", 4) == "日…"
    assert truncate_to_width("abc", 3) == "abc"
    assert truncate_to_width("abcd", 3) == "ab…"


def test_what_is_to_be_typed_can_be_typed() -> None:
    import subprocess

    for text in ("plain", "with space", "it's", "~home", "$x", EVIL, "*"):
        done = subprocess.run(
            ["bash", "-c", f"printf %s {shell_quote(text)}"], capture_output=True, check=True
        )
        assert done.stdout.decode() == text


def draw(*rows: "tuple[int, int | None]") -> "list[str]":
    nodes = [
        LaneNode(("k", number), None if parent is None else ("k", parent), "o")
        for number, parent in rows
    ]
    return [
        before if node is None else f"{before} {node.place[1]}"
        for before, node in draw_lanes(nodes)
    ]


def test_a_line_is_drawn_as_a_line() -> None:
    assert draw((3, 2), (2, 1), (1, None)) == ["o 3", "o 2", "o 1"]


def test_a_rollback_makes_a_branch() -> None:
    rows = draw((5, 2), (4, 3), (3, 2), (2, 1), (1, None))
    assert rows == ["o 5", "│ o 4", "│ o 3", "├─╯", "o 2", "o 1"]


def test_several_branches_come_together() -> None:
    rows = draw((4, 1), (3, 1), (2, 1), (1, None))
    assert rows == ["o 4", "│ o 3", "│ │ o 2", "├─┴─╯", "o 1"]
