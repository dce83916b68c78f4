r"""The pattern language of ignore rules: parsing and matching. Reads no files.

It follows git (dir.c and wildmatch.c) byte by byte: `?` is one byte, and case is significant.

    # text          a comment; blank lines and trailing spaces are ignored
    name            without a slash at the start or in the middle: that name, at any depth
    /name, a/b      with one: that path, relative to the directory of the rules
    name/           directories only
    * ? [a-z] [!ab] [[:digit:]]     within one name: none of them matches a slash
    **/x, x/**, a/**/b              any number of directories
    !pattern        included again, unless a parent directory is ignored
    \x              the literal character x

Patterns are untrusted: anyone who can write to the workspace can add some. So the generated regular
expressions do not backtrack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count, groupby

from agent_checkpoint.named_tuple import NamedTuple

_SLASH, _BACKSLASH, _DASH, _CLOSE = b"/\\-]"
_SPECIAL = re.compile(rb"[*?[\\]")
_CLASS = rb"\[:([^]]*):\]"
_STAR, _ANYTHING, _DIRECTORIES = b"[^/]*?", b".*?", b"(?:.*?/)??"

_LOWER, _UPPER = frozenset(range(0x61, 0x7B)), frozenset(range(0x41, 0x5B))
_DIGITS, _VISIBLE = frozenset(range(0x30, 0x3A)), frozenset(range(0x21, 0x7F))
_CLASSES = {
    b"alnum": _LOWER | _UPPER | _DIGITS,
    b"alpha": _LOWER | _UPPER,
    b"blank": frozenset(b" \t"),
    b"cntrl": frozenset({*range(0x20), 0x7F}),
    b"digit": _DIGITS,
    b"graph": _VISIBLE,
    b"lower": _LOWER,
    b"print": _VISIBLE | {0x20},
    b"punct": _VISIBLE - _LOWER - _UPPER - _DIGITS,
    b"space": frozenset(b" \t\n\r"),  # as git defines it
    b"upper": _UPPER,
    b"xdigit": _DIGITS | frozenset(b"abcdefABCDEF"),
}


class Pattern(NamedTuple):
    """A parsed ignore pattern."""

    body: bytes
    is_negated: bool
    for_directories: bool
    is_anchored: bool
    """Whether it is matched against the path instead of the name."""


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines of a rule file."""
    text = text[3:] if text.startswith(b"\xef\xbb\xbf") else text
    lines = [line[:-1] if line.endswith(b"\r") else line for line in text.split(b"\n")]
    return [line.partition(b"\0")[0] for line in lines]  # git treats lines as C strings


def parse(line: bytes) -> Pattern | None:
    """Return the pattern of a line; None if it is blank or a comment.

    Raises:
        ValueError: the pattern cannot match any path. Git skips such a line.
    """
    body = line.rstrip(b" ")
    if len(body) < len(line) and (len(body) - len(body.rstrip(b"\\"))) % 2:
        body += b" "  # the first trailing space was escaped
    if not body or body.startswith(b"#"):
        return None
    is_negated = body.startswith(b"!")
    body = body[is_negated:]
    for_directories = body.endswith(b"/")
    body = body[: len(body) - for_directories]
    is_anchored = b"/" in body
    body = body[body.startswith(b"/") :]
    if not body:
        raise ValueError("it names nothing")
    if _SPECIAL.search(body) is not None:
        _elements(body)
    return Pattern(body, is_negated, for_directories, is_anchored)


class PatternGroup:
    """Consecutive patterns that are either all negated or all not negated."""

    __slots__ = ("_of_directories", "_of_files", "is_excluding")

    def __init__(self, patterns: list[Pattern]) -> None:
        self.is_excluding = not patterns[0].is_negated
        self._of_directories = self._of_files = _Bodies(patterns)
        if any(pattern.for_directories for pattern in patterns):
            self._of_files = _Bodies(one for one in patterns if not one.for_directories)

    def matches(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Return whether any pattern matches an entry; the path is relative to the rule file."""
        bodies = self._of_directories if is_directory else self._of_files
        if name in bodies.names or name.endswith(bodies.suffixes) or path in bodies.paths:
            return True
        names, paths = bodies.name_globs, bodies.path_globs
        return (names is not None and names.fullmatch(name) is not None) or (
            paths is not None and paths.fullmatch(path) is not None
        )


def group_patterns(patterns: Iterable[Pattern]) -> tuple[PatternGroup, ...]:
    """Group the patterns of one rule file, last group first, because the last match decides."""
    rows = [list(row) for _, row in groupby(patterns, key=lambda pattern: pattern.is_negated)]
    return tuple(map(PatternGroup, reversed(rows)))


class _Bodies:
    """Pattern bodies by kind of match. Most need no regular expression."""

    __slots__ = ("name_globs", "names", "path_globs", "paths", "suffixes")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        exact: tuple[list[bytes], list[bytes]] = [], []
        globs: tuple[list[bytes], list[bytes]] = [], []
        suffixes: list[bytes] = []
        for body, _, _, is_anchored in patterns:
            if _SPECIAL.search(body) is None:
                exact[is_anchored].append(body)
            elif body[:1] == b"*" and _SPECIAL.search(body, 1) is None and not is_anchored:
                suffixes.append(body[1:])
            else:
                globs[is_anchored].append(body)
        self.names, self.paths = map(frozenset, exact)
        self.suffixes = tuple(suffixes)
        self.name_globs, self.path_globs = map(_any_of, globs)


def _any_of(bodies: list[bytes]) -> re.Pattern[bytes] | None:
    groups = count()
    sources = [_regex(_elements(body), groups) for body in bodies]
    return re.compile(b"|".join(sources), re.DOTALL) if sources else None


def _regex(elements: list[bytes], groups: Iterator[int]) -> bytes:
    """Return a regular expression for the elements that matches in nearly linear time.

    The text between two gaps (wildcards of any length) is matched at its first occurrence, because
    the second gap can match everything after it. So no gap is retried, and only the last gap of
    each kind searches for the end.
    """
    source = b""
    wide = _split(elements, (_ANYTHING, _DIRECTORIES))
    for left, (gap, chunk) in zip(reversed(range(len(wide))), wide):
        text = b""
        narrow = _split(chunk, (_STAR,))
        for left_within, (star, literals) in zip(reversed(range(len(narrow))), narrow):
            text += _after(star, b"".join(literals), groups, left + left_within)
        source += _after(gap, text, groups, left)
    return source


def _split(elements: list[bytes], gaps: tuple[bytes, ...]) -> list[tuple[bytes, list[bytes]]]:
    """Return each gap with the elements after it; the elements before the first gap have none."""
    parts: list[tuple[bytes, list[bytes]]] = [(b"", [])]
    for element in elements:
        if element in gaps:
            parts.append((element, []))
        else:
            parts[-1][1].append(element)
    return parts


def _after(gap: bytes, text: bytes, groups: Iterator[int], gaps_left: int) -> bytes:
    if not gap or not gaps_left:
        return gap + text
    # An atomic group `(?>…)`, which Python has only since 3.11.
    group = next(groups)
    return b"(?=(?P<g%d>%b%b))(?P=g%d)" % (group, gap, text, group)


def _elements(body: bytes) -> list[bytes]:
    """Return the elements of a glob, literal bytes and gaps, as regular expressions.

    Raises the same errors as `parse`.
    """
    elements: list[bytes] = []
    at, is_literal = 0, True
    while at < len(body):
        start, char = at, body[at : at + 1]
        at += 1
        if _SPECIAL.match(char) is None:
            elements.append(re.escape(char))
            continue
        if char == b"*":
            while body[at : at + 1] == b"*":
                at += 1
            # Git compares the literal prefix separately, so it treats `**` right after it as the
            # start of the pattern: `/a**/b` matches `ab` and `ax/y/b`.
            is_whole = at - start > 1 and (is_literal or body[start - 1] == _SLASH)
            if is_whole and body[at : at + 1] == b"/":
                elements.append(_DIRECTORIES)
                at += 1
            elif is_whole and body[at : at + 2] in (b"", b"\\/"):
                elements.append(_ANYTHING)
            else:
                elements.append(_STAR)
        elif char == b"?":
            elements.append(b"[^/]")
        elif char == b"[":
            expression, at = _bracket(body, at)
            elements.append(expression)
        else:
            elements.append(re.escape(bytes([_byte(body, at)])))
            at += 1
        is_literal = False
    return elements


def _bracket(body: bytes, at: int) -> tuple[bytes, int]:
    """Return the regular expression of a bracket whose content starts at `at`, and its end offset.

    Raises:
        ValueError: the bracket is not closed, or contains an unknown class.
    """
    is_negated = body[at : at + 1] in (b"!", b"^")
    at = first = at + is_negated
    members: set[int] = set()
    lowest = 0  # of a range, if a dash follows
    while at == first or _byte(body, at) != _CLOSE:
        char = _byte(body, at)
        named = re.compile(_CLASS).match(body, at)
        if char == _DASH and lowest and _byte(body, at + 1) != _CLOSE:
            at += 1
            at += _byte(body, at) == _BACKSLASH
            members.update(range(lowest, _byte(body, at) + 1))
            lowest = 0
        elif named is not None:
            if named[1] not in _CLASSES:
                raise ValueError(f"there is no class {named[1].decode('ascii', 'replace')!r}")
            members |= _CLASSES[named[1]]
            at = named.end() - 1
            lowest = 0
        else:
            at += char == _BACKSLASH
            lowest = _byte(body, at)
            members.add(lowest)
        at += 1
    members = members | {_SLASH} if is_negated else members - {_SLASH}
    escaped = re.escape(bytes(sorted(members)))
    if is_negated:
        return b"[^%b]" % escaped, at + 1
    return b"[%b]" % escaped if members else b"(?!)", at + 1


def _byte(body: bytes, at: int) -> int:
    if at >= len(body):
        raise ValueError("a bracket is not closed, or a backslash is the last of it")
    return body[at]
