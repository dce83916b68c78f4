r"""Three-way merge of texts, line by line. Defines overlapping changes; never decides between them.

A text is split at line feeds only: `a\nb` has the lines `a` and `b`, and `a\nb\n` a third, empty
one. So carriage returns belong to their lines, and a missing final newline is a line like others.
Changes that touch each other, such as those of two neighbouring lines, do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.named_tuple import NamedTuple

Lines = Sequence[bytes]


class Edit(NamedTuple):
    """A range of lines that a side replaces."""

    start: int
    end: int
    new: Lines

    def overlaps(self, other: Edit) -> bool:
        """Return whether two changes cannot both be made: they share a line, or a place."""
        if self.start == self.end == other.start == other.end:
            return True
        return self.start < other.end and other.start < self.end


class Hunk(NamedTuple):
    """A place that both sides changed differently."""

    line: int
    """The number of its first line in the present text, from 1."""
    ours: list[bytes]
    base: list[bytes]
    theirs: list[bytes]


class TextMerge(NamedTuple):
    """The result of a merge: pieces of lines, or places that conflict."""

    pieces: list[list[bytes] | Hunk]

    @property
    def conflicts(self) -> list[Hunk]:
        """The places that both sides changed differently."""
        return [piece for piece in self.pieces if isinstance(piece, Hunk)]

    def text(self, names: tuple[str, str, str] | None = None) -> bytes:
        """Return the merged text; conflicts between markers with the names of the three sides."""
        lines: list[bytes] = []
        for piece in self.pieces:
            if not isinstance(piece, Hunk):
                lines += piece
            elif names is not None:
                ours, base, theirs = (name.encode() for name in names)
                lines += [b"<<<<<<< " + ours, *piece.ours, b"||||||| " + base, *piece.base]
                lines += [b"=======", *piece.theirs, b">>>>>>> " + theirs]
        return b"\n".join(lines)


def split_lines(text: bytes) -> list[bytes]:
    """Return the lines of a text, without line feeds."""
    return text.split(b"\n")


def edits(before: Lines, after: Lines) -> list[Edit]:
    """Return the changes from one text to another."""
    start, most = _common(before, after), min(len(before), len(after))
    end = min(_common(before[::-1], after[::-1]), most - start)
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if not old or not new:
        return [Edit(start, start + len(old), new)] if old or new else []
    with block_forks():
        from difflib import SequenceMatcher  # slow to import

    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [
        Edit(start + i1, start + i2, new[j1:j2])
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def _common(one: Lines, other: Lines) -> int:
    """Return how many lines two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # comparing slices is much faster than comparing lines
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def carry_forward(changes: Sequence[Edit], versions: Sequence[Lines]) -> list[bytes] | None:
    """Apply changes of a text to a later version of it, followed through the versions between.

    One version at a time, so that neighbouring changes of several later steps stay apart.

    Args:
        changes: the changes of the first version.
        versions: the versions, oldest first.

    Returns the last version with the changes; None if one of the later versions overlaps them.
    """
    left = list(changes)
    for before, after in zip(versions, versions[1:]):
        later = edits(before, after)
        if any(one.overlaps(other) for one in left for other in later):
            return None
        left = [_shifted(one, later) for one in left]
    return _changed(versions[-1], 0, len(versions[-1]), left)


def _shifted(edit: Edit, later: Sequence[Edit]) -> Edit:
    """Return a change in the lines of a version to which other changes were made."""
    by = sum(
        len(other.new) - (other.end - other.start) for other in later if other.end <= edit.start
    )
    return edit._replace(start=edit.start + by, end=edit.end + by)


def merge_lines(base: Lines, ours: Lines, theirs: Lines) -> TextMerge:
    """Merge the changes of two sides to the same base."""
    marked = [(edit, 0) for edit in edits(base, ours)] + [(edit, 1) for edit in edits(base, theirs)]
    marked.sort(key=lambda pair: (pair[0].start, pair[0].end))
    groups: list[list[tuple[Edit, int]]] = []
    for edit, side in marked:
        last = groups[-1] if groups else []
        if any(side != other and edit.overlaps(one) for one, other in last):
            last.append((edit, side))
        else:
            groups.append([(edit, side)])
    pieces: list[list[bytes] | Hunk] = []
    done, line = 0, 1
    for group in groups:
        start, end = group[0][0].start, max(edit.end for edit, _ in group)
        pieces.append(list(base[done:start]))
        line += start - done
        now, old = (
            _changed(base, start, end, [edit for edit, one in group if one == side])
            for side in (0, 1)
        )
        sides = {side for _, side in group}
        if len(sides) == 1:
            pieces.append(now if sides == {0} else old)
        elif now == old:
            pieces.append(now)
        else:
            pieces.append(Hunk(line, now, list(base[start:end]), old))
        line += len(now)
        done = end
    pieces.append(list(base[done:]))
    return TextMerge([piece for piece in pieces if piece])


def _changed(base: Lines, start: int, end: int, changes: list[Edit]) -> list[bytes]:
    """Return a range of the base with the changes of one side."""
    lines: list[bytes] = []
    for edit in changes:
        lines += [*base[start : edit.start], *edit.new]
        start = edit.end
    return [*lines, *base[start:end]]
