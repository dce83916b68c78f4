"""Comparing two texts: matches, bounded time, and no invisible difference."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.web.diff import line_matching
from agent_checkpoint.web.diff.line_matching import DiffBudget, blocks
from agent_checkpoint.web.diff.side_by_side import CHANGED, SAME, lines_of, side_by_side
from tests.web.test_pages import plain
from tests.web.visitor import Visitor


def test_blocks_are_the_same_in_both_and_in_order() -> None:
    chance = random.Random(7)
    for _ in range(300):
        before = [chance.choice("abcdefgh") for _ in range(chance.randrange(30))]
        after = [line for line in before if chance.random() < 0.8]
        for _ in range(chance.randrange(5)):
            after.insert(chance.randrange(len(after) + 1), chance.choice("abxyz"))
        found, is_whole = blocks(before, after, DiffBudget())
        assert is_whole
        x = y = 0
        for a, c, size in found:
            assert a >= x
            assert c >= y
            assert before[a : a + size] == after[c : c + size]
            x, y = a + size, c + size
        assert x <= len(before)
        assert y <= len(after)


def test_a_line_that_was_moved_in_is_found_among_repeated_ones() -> None:
    before = ["{", "a", "}", "", "{", "b", "}", ""]
    after = ["{", "a", "}", "", "{", "new", "}", "", "{", "b", "}", ""]
    found = side_by_side(before, after)
    assert (found.added, found.removed) == (4, 0)


def alternating(number: int, letter: str) -> "list[str]":
    return ["" if place % 2 else f"{letter}{place}" for place in range(number)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (alternating(1990, "u"), alternating(1990, "v")),
        (["", "x"] * 2000, ["x", "", "y"] * 1500),
        (list("0123456" * 30_000), list("01234" * 50_000)),
        (list(map(str, range(100_000))), list(map(str, range(0, -100_000, -1)))),
        (list(map(str, range(100_000))), list(map(str, range(99_999, 0, -1)))),
    ],
    ids=["every second", "repeated", "many repeated", "nothing alike", "turned round"],
)
def test_no_text_takes_long(before: "list[str]", after: "list[str]") -> None:
    started = time.process_time()
    found = side_by_side(before, after)
    assert time.process_time() - started < 4
    assert found.rows


def test_what_is_too_much_is_shown_place_by_place_and_says_so() -> None:
    found = side_by_side(alternating(1990, "u"), alternating(1990, "v"))
    assert found.is_rough
    assert [row.kind for row in found.rows[:4]] == [CHANGED, SAME, CHANGED, SAME]
    assert (found.added, found.removed) == (995, 995)


def test_a_page_is_made_in_time_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = CheckpointManager()
    workspace = Workspace(tmp_path, manager.store, watch=False)
    for letter in "uv":
        text = "\n".join(alternating(1990, letter))
        for number in range(10):
            (tmp_path / f"{number}.txt").write_text(text)
        manager.save("files", {"workspace": workspace})
        manager.save("state", {f"value {number}": text for number in range(60)})
    visitor = Visitor(manager)
    for key in ("state", "files"):
        started = time.process_time()
        text = plain(visitor.text("/diff", a=f"{key}@1", b=f"{key}@2"))
        assert time.process_time() - started < 8
        assert "Too large for a line-by-line comparison" in text
    monkeypatch.setattr(line_matching, "SECONDS", -1.0)
    html = visitor.text("/diff", a="files@1", b="files@2")
    assert "The comparison reached its time limit" in plain(html)
    assert html.count(">Compare</a>") == 10


def shown(visitor: Visitor) -> str:
    text = visitor.text("/diff", a="key@1", b="key@2")
    return text[text.index("<h2") :]


DIFFERENT = [
    ("a\r\nb\r\n", "a\nb\n", "\\x0d"),
    ("one\ntwo\n", "one\ntwo", "no newline at end"),
    ("a\fb\n", "a\nb\n", "\\x0c"),
    ("x" * 3000 + "1" + "y" * 3000, "x" * 3000 + "2" + "y" * 3000, "<ins>2</ins>"),
    ("a\u2028b", "a\nb", "\\u2028"),
    ("a", "a\n", "no newline at end"),
]


@pytest.mark.parametrize(("before", "after", "seen"), DIFFERENT)
@pytest.mark.parametrize("place", ["a state", "a file"])
def test_no_difference_is_invisible(
    tmp_path: Path, before: str, after: str, seen: str, place: str
) -> None:
    manager = CheckpointManager()
    workspace = Workspace(tmp_path, manager.store, watch=False)
    for text in (before, after):
        (tmp_path / "file").write_bytes(text.encode())
        manager.save("key", {"text": text} if place == "a state" else {"workspace": workspace})
    html = shown(Visitor(manager))
    assert "<ins>" in html or "<del>" in html
    assert seen in html


def test_bytes_that_are_no_text_are_told_apart(tmp_path: Path) -> None:
    manager = CheckpointManager()
    workspace = Workspace(tmp_path, manager.store, watch=False)
    for data in (b"caf\xe9", b"caf\xe8"):
        (tmp_path / "file").write_bytes(data)
        manager.save("key", {"workspace": workspace})
    html = shown(Visitor(manager))
    assert "<del>\\xe9</del>" in html
    assert "<ins>\\xe8</ins>" in html


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        ("1", 1, ['<del>"</del>1<del>"', "1"]),
        ("null", None, ["null"]),
        (1, True, ["1", "true"]),
        (b"abc", b"abd", ["in a part that is not shown"]),
        ("a" * 30_000, "a" * 30_001, ["in a part that is not shown"]),
        (("a",), ["a"], ["tuple"]),
    ],
)
def test_values_of_two_types_never_look_alike(before: Any, after: Any, seen: "list[str]") -> None:
    manager = CheckpointManager()
    for value in (before, after):
        manager.save("key", {"agent": {"value": value}})
    html = shown(Visitor(manager))
    assert "changed" in html
    assert "<ins>" in html or "<del>" in html or "not shown" in html
    assert all(text in html for text in seen[-1:])


def test_lines_end_with_a_newline_and_nothing_else() -> None:
    assert lines_of("") == []
    assert lines_of("a\r\nb\x0c\x85\u2028c\n\nd") == ["a\r\n", "b\x0c\x85\u2028c\n", "\n", "d"]


def test_a_mode_alone_is_told(tmp_path: Path) -> None:
    manager = CheckpointManager()
    workspace = Workspace(tmp_path, manager.store, watch=False)
    for mode in (0o644, 0o755):
        (tmp_path / "file").write_text("the same\n")
        (tmp_path / "file").chmod(mode)
        manager.save("key", {"workspace": workspace})
    assert "Only the mode changed" in shown(Visitor(manager))
