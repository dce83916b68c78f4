r"""Three-way merge of texts, line by line. Defines overlapping changes; never decides between them.

A text is split after line feeds only, which belong to their lines. So carriage returns do, too, and
a last line without a newline is another one than the same line with it: if other lines would follow
it, the changes conflict. Changes that touch each other, such as those of two neighbouring lines, do
not overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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

    @property
    def texts(self) -> tuple[list[str], list[str], list[str]]:
        """The lines of the three sides as text, to be shown."""
        return _shown(self.ours), _shown(self.base), _shown(self.theirs)


def _shown(lines: Lines) -> list[str]:
    texts = [line.rstrip(b"\n").decode(errors="replace") for line in lines]
    return [*texts, "\\ No newline at the end"] if lines and not _ends(lines[-1]) else texts


def _ends(line: bytes) -> bool:
    return line.endswith(b"\n")


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
                marked = [b"<<<<<<< " + ours, *piece.ours, b"||||||| " + base, *piece.base]
                marked += [b"=======", *piece.theirs, b">>>>>>> " + theirs]
                lines += [line if _ends(line) else line + b"\n" for line in marked]
        return b"".join(lines)


def split_lines(text: bytes) -> list[bytes]:
    """Return the lines of a text, with their line feeds."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def is_whole(lines: Lines) -> bool:
    """Return whether lines make a text: only the last one may lack a line feed."""
    return all(map(_ends, lines[:-1]))


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


def carry_forward(
    changes: Sequence[Edit], versions: Sequence[Lines], removed: Collection[int] = ()
) -> list[bytes] | None:
    """Apply changes of a text to a later version of it, followed through the versions between.

    One version at a time, so that neighbouring changes of several later steps stay apart.

    Args:
        changes: the changes of the first version.
        versions: the versions, oldest first.
        removed: the positions of the versions whose changes are taken out as well.

    Returns the last version with the changes; None if one of the later versions overlaps them, or
    if the result is no text.
    """
    left = list(changes)
    for number, (before, after) in enumerate(zip(versions, versions[1:]), 1):
        later = edits(before, after)
        is_apart = not _overlap(left, later)
        moved = [_shifted(one, later) for one in left]
        if number in removed:
            undone = _inverse(later, before)
            if is_apart and not _overlap(moved, undone):
                left = sorted([*moved, *undone], key=lambda edit: (edit.start, edit.end))
            else:
                left = edits(after, _changed(before, 0, len(before), left))
        elif is_apart:
            left = moved
        else:
            return None
    lines = _changed(versions[-1], 0, len(versions[-1]), left)
    return lines if is_whole(lines) else None


def _overlap(some: Sequence[Edit], others: Sequence[Edit]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)


def _inverse(changes: Sequence[Edit], before: Lines) -> list[Edit]:
    """Return the changes back, in the lines of the version to which changes were made."""
    found, shift = [], 0
    for edit in changes:
        start = edit.start + shift
        found.append(Edit(start, start + len(edit.new), before[edit.start : edit.end]))
        shift += len(edit.new) - (edit.end - edit.start)
    return found


def _shifted(edit: Edit, later: Sequence[Edit]) -> Edit:
    """Return a change in the lines of a version to which other changes were made."""
    by = sum(
        len(other.new) - (other.end - other.start) for other in later if other.end <= edit.start
    )
    return edit._replace(start=edit.start + by, end=edit.end + by)


def merge_lines(base: Lines, ours: Lines, theirs: Lines, *, decides: bool = True) -> TextMerge:
    """Merge the changes of two sides to the same base.

    Without `decides`, every change of `theirs` is a place that conflicts.
    """
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
        if sides == {0} or now == old:
            pieces.append(now)
        elif sides == {1} and decides:
            pieces.append(old)
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
