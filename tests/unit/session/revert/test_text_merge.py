"""Three-way merge of lines, and changes that are followed through later versions."""

import pytest

from agent_checkpoint.session.revert.text_merge import (
    carry_forward,
    edits,
    merge_lines,
    split_lines,
)


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
        ("a\nb", "a\nb\n", "A\nb", "A\nb\n"),
        ("a\nb", "a\nb\n", "a\nB", "a\nB\n"),
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
    ],
)
def test_changes_of_the_same_lines_conflict(base, ours, theirs):
    assert merged(base, ours, theirs) is None
    assert merged(base, theirs, ours) is None


def test_a_conflict_has_its_place_and_its_three_sides():
    lines = [split_lines(text) for text in (b"a\nb\nc\n", b"0\na\nB\nc\n", b"a\nX\nc\n")]
    found = merge_lines(*lines)
    (hunk,) = found.conflicts
    assert hunk == (3, [b"B"], [b"b"], [b"X"])
    assert found.text(("now", "after @3", "before @3")).decode() == (
        "0\na\n<<<<<<< now\nB\n||||||| after @3\nb\n=======\nX\n>>>>>>> before @3\nc\n"
    )


def test_changes_are_carried_through_later_versions():
    versions = [b"a p b".split(), b"A p b".split(), b"A p B".split()]
    assert carry_forward(edits(b"a p b".split(), b"a q b".split()), versions) == b"A q B".split()


def test_a_removed_line_comes_back_between_changed_neighbours():
    """A merge of the ends alone cannot tell where it was."""
    base, before = [b"a", b"b"], [b"a", b"p", b"b"]
    versions = [base, [b"A", b"b"], [b"A", b"B"]]
    assert merge_lines(base, versions[-1], before).conflicts
    assert carry_forward(edits(base, before), versions) == [b"A", b"p", b"B"]


def test_a_version_between_that_overlaps_stops_it():
    versions = [[b"a"], [b"b"], [b"a"]]
    assert carry_forward(edits([b"a"], [b"x"]), versions) is None
