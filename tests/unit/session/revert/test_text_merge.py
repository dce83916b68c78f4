"""Three-way merge of lines, and changes that are followed through later versions."""

import pytest

from agent_checkpoint.session.revert.text_merge import (
    carry_forward,
    edits,
    merge_lines,
    split_lines,
)


def lines(words):
    return [f"{word}\n".encode() for word in words.split()]


def merged(base, ours, theirs):
    sides = (split_lines(text.encode()) for text in (base, ours, theirs))
    found = merge_lines(*sides)
    return None if found.conflicts else found.text().decode()


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        ("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", "A\nb\nC\n"),
        ("a\nb\n", "A\nb\n", "a\nB\n", "A\nB\n"),  # neighbours
        ("a\nb\n", "x\na\nb\n", "a\nb\ny\n", "x\na\nb\ny\n"),
        ("a\nb\n", "b\n", "a\n", ""),  # both remove a line
        ("a\nb", "a\nb\nc", "A\nb", "A\nb\nc"),  # no final newline
        ("a\nb\n", "a\n", "A\nb\n", "A\n"),
        ("a\nb", "a\nb\n", "A\nb", "A\nb\n"),
        ("a\r\nb\r\n", "a\r\nB\r\n", "A\r\nb\r\n", "A\r\nB\r\n"),
        ("a\nb\n", "A\nb\n", "A\nb\n", "A\nb\n"),  # the same change
        ("", "a\n", "", "a\n"),
        ("a\nb\nc\n", "a\nX\nY\nc\n", "a\nb\nc\nd\n", "a\nX\nY\nc\nd\n"),
    ],
)
def test_changes_of_other_lines_are_both_made(base, ours, theirs, expected):
    assert merged(base, ours, theirs) == expected
    assert merged(base, theirs, ours) == expected


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        ("a\nb\n", "A\nb\n", "B\nb\n"),
        ("a\nb\n", "a\nx\nb\n", "a\ny\nb\n"),  # two insertions at one place
        ("a\nb\nc\n", "a\nc\n", "a\nB\nc\n"),
        ("a\nb\nc\nd\n", "a\nX\nd\n", "a\nb\nY\nd\n"),
        ("a\nb\nc\n", "a\nb1\nb2\nc\n", "a\nc\n"),
        ("a\nb", "a\nb\n", "a\nB"),  # both change the last line
        ("a\nb", "a\nb\nc\n", "a\nB"),
    ],
)
def test_changes_of_the_same_lines_conflict(base, ours, theirs):
    assert merged(base, ours, theirs) is None
    assert merged(base, theirs, ours) is None


def test_a_conflict_has_its_place_and_its_three_sides():
    lines = [split_lines(text) for text in (b"a\nb\nc\n", b"0\na\nB\nc\n", b"a\nX\nc\n")]
    found = merge_lines(*lines)
    (hunk,) = found.conflicts
    assert hunk == (3, [b"B\n"], [b"b\n"], [b"X\n"])
    assert hunk.texts == (["B"], ["b"], ["X"])
    assert found.text(("now", "after @3", "before @3")).decode() == (
        "0\na\n<<<<<<< now\nB\n||||||| after @3\nb\n=======\nX\n>>>>>>> before @3\nc\n"
    )


def test_changes_are_carried_through_later_versions():
    versions = [lines("a p b"), lines("A p b"), lines("A p B")]
    assert carry_forward(edits(lines("a p b"), lines("a q b")), versions) == lines("A q B")


def test_a_removed_line_comes_back_between_changed_neighbours():
    """A merge of the ends alone cannot tell where it was."""
    base, before = lines("a b"), lines("a p b")
    versions = [base, lines("A b"), lines("A B")]
    assert merge_lines(base, versions[-1], before).conflicts
    assert carry_forward(edits(base, before), versions) == lines("A p B")


def test_a_version_between_that_overlaps_stops_it():
    versions = [lines("a"), lines("b"), lines("a")]
    assert carry_forward(edits(lines("a"), lines("x")), versions) is None


def test_a_change_that_is_taken_out_as_well_overlaps_nothing():
    versions = [lines("p b"), lines("q b"), lines("q B")]
    changes = edits(lines("p b"), lines("a b"))
    assert carry_forward(changes, versions) is None
    assert carry_forward(changes, versions, removed={1}) == lines("a B")


def test_neighbours_of_changes_that_are_taken_out_stay_apart():
    """Two insertions at one place conflict, although both sides of it are taken out."""
    versions = [lines("a b"), lines("A b"), lines("A n b")]
    changes = edits(lines("a b"), lines("a p b"))
    assert carry_forward(changes, versions, removed={1}) is None
    assert carry_forward(changes, versions[:2], removed={1}) == lines("a p b")


def test_a_last_line_without_a_newline_is_not_continued():
    versions = [lines("a b"), lines("a b c")]
    assert carry_forward(edits(lines("a b"), [b"a\n", b"b"]), versions) is None
    assert carry_forward(edits(lines("a b"), [b"x\n", b"b\n"]), versions) == lines("x b c")
