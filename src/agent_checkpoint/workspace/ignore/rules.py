"""What is left out of a snapshot. Owns which rules hold where, and which wins; reads no disk.

From the strongest to the weakest: `ignore=`, `.checkpointignore` in the root, and if asked for
every `.gitignore`, the deepest first. Within one text the last pattern that matches wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.workspace.ignore.patterns import Pattern, Run, lines_of, parse, runs_of

CHECKPOINTIGNORE, GITIGNORE = b".checkpointignore", b".gitignore"
LARGEST_FILE = 1 << 20
"""A file of rules may have so many bytes."""
_LONGEST_LINE = 1024
_MOST_TO_MATCH = 5000
_TO_MATCH = re.compile(rb"[*?[\\!]")
"""Each of these costs time, at every entry of a workspace."""
_LARGEST_REMEMBERED = 1 << 14
_NO_FLAWS: Mapping[bytes, str] = MappingProxyType({})


class Rules:
    """What is left out, within one directory and below it. Never changes; `of` makes them.

    A `.gitignore` says nothing of `.git` and what is in it, as in git: a branch may be called
    `build`. `.git/info/exclude` and the excludes of a user are not read.
    """

    __slots__ = ("_git", "_is_excluding", "_own", "flaws", "key", "reads_files")

    def __init__(
        self,
        own: tuple[Run, ...],
        git: tuple[tuple[int, Run], ...],
        reads_files: bool,
        flaws: Mapping[bytes, str] = _NO_FLAWS,
    ) -> None:
        self._own = own
        self._git = git
        self._is_excluding = any(run.is_excluding for run in (*own, *(run for _, run in git)))
        self.reads_files = reads_files
        """Whether any directory may have a file of rules, and not the root alone."""
        self.flaws = flaws
        """Why some lines of files of rules do not count, by the path of the file."""
        self.key = b""
        """Tells the rules of workspaces apart."""

    @classmethod
    def of(cls, patterns: Iterable[str], *, gitignore: bool = False) -> Rules:
        """Return the rules of a workspace, before any file of rules was found.

        Args:
            patterns: as the lines of a `.checkpointignore`, in the language of `.gitignore`.
            gitignore: whether every `.gitignore` counts too.

        Raises:
            InvalidInputError: a pattern is no text of one line, is too long or can match nothing,
                or there are too many.
        """
        if isinstance(patterns, (str, bytes)):
            raise InvalidInputError(f"ignore= takes a list of patterns, not {patterns!r} alone.")
        text = b"\n".join(map(_encoded, patterns))
        runs, flaw = _read(text, as_git=False)
        if flaw is not None:
            raise InvalidInputError(f"ignore= cannot be used: {flaw}. Correct it or take it out.")
        rules = cls(runs, (), gitignore)
        rules.key = b"%d%b" % (gitignore, text)
        return rules

    def __bool__(self) -> bool:
        """Whether these rules leave anything out, if no file adds to them."""
        return self._is_excluding

    def excludes(self, directory: bytes, name: bytes, is_dir: bool) -> bool:
        """Tell whether an entry is left out, and all below it.

        It is not asked about anything below a directory that is left out.

        Args:
            directory: the path of its directory, relative to the root; the root is empty.
            name: its name.
            is_dir: whether it is a directory. A symlink to one is none.
        """
        path = directory + b"/" + name if directory else name
        for run in self._own:
            if run.matches(path, name, is_dir):
                return run.is_excluding
        if self._git and not _is_gits_own(path):
            for start, run in self._git:
                if run.matches(path[start:], name, is_dir):
                    return run.is_excluding
        return False

    def files(self, directory: bytes) -> tuple[bytes, ...]:
        """Return by which names to look for files of rules in a directory.

        Only regular files count. A symlink says nothing, as in git.
        """
        if not directory:
            return (CHECKPOINTIGNORE, GITIGNORE) if self.reads_files else (CHECKPOINTIGNORE,)
        return (GITIGNORE,) if self.reads_files and not _is_gits_own(directory) else ()

    def within(self, directory: bytes, texts: Mapping[bytes, bytes]) -> Rules:
        """Return the rules for a directory in which files of rules were found, and below it.

        Such a file may come from anyone. One that is too large or has lines that cannot be used
        keeps nothing from being captured: its other lines count, and `flaws` says what does not.

        Args:
            directory: its path, relative to the root.
            texts: what is in those of its `files` that there are, by name.
        """
        own, git, flaws = self._own, self._git, self.flaws
        for name in self.files(directory):
            text = texts.get(name)
            if not text:
                continue
            place = directory + b"/" if directory else b""
            read = _read_again if len(text) <= _LARGEST_REMEMBERED else _read
            runs, flaw = read(text, as_git=name == GITIGNORE)
            if flaw is not None:
                flaws = {**flaws, place + name: flaw}
            if name == CHECKPOINTIGNORE:
                own += runs
            else:
                git = (*((len(place), run) for run in runs), *git)
        if own is self._own and git is self._git and flaws is self.flaws:
            return self
        return Rules(own, git, self.reads_files, flaws)


class _Read(NamedTuple):
    """What lines of rules say; and the first trouble with them, and of which line."""

    runs: tuple[Run, ...]
    flaw: str | None


def _read(text: bytes, *, as_git: bool) -> _Read:
    """Return what lines of rules say.

    Args:
        text: the lines.
        as_git: whether a line that can match nothing is no flaw.
    """
    patterns: list[Pattern] = []
    flaws: list[str] = []
    to_match = 0
    if len(text) > LARGEST_FILE:
        flaws.append(f"it has more than {LARGEST_FILE} bytes")
        text = text[:LARGEST_FILE].rpartition(b"\n")[0]
    for number, line in enumerate(lines_of(text), 1):
        if line.startswith(b"#"):
            continue
        if len(line) > _LONGEST_LINE:
            flaws.append(f"line {number} has more than {_LONGEST_LINE} bytes")
            continue
        to_match += len(_TO_MATCH.findall(line))
        if to_match > _MOST_TO_MATCH:
            flaws.append(f"it has more than {_MOST_TO_MATCH} wildcards and `!` by line {number}")
            break
        try:
            pattern = parse(line)
        except ValueError as error:
            if not as_git:
                shown = line[:80].decode("utf-8", "surrogateescape")
                flaws.append(f"line {number}, {shown!r}: {error}")
            continue
        if pattern is not None:
            patterns.append(pattern)
    return _Read(runs_of(patterns), flaws[0] if flaws else None)


# The same files are read at every snapshot, and again for each directory that is looked at alone.
_read_again = lru_cache(maxsize=256)(_read)


def _encoded(pattern: str) -> bytes:
    if not isinstance(pattern, str):
        raise InvalidInputError(f"A pattern in ignore= is text, not {pattern!r}.")
    if "\n" in pattern or "\0" in pattern:
        raise InvalidInputError(f"{pattern!r} in ignore= is not one line: give a list of patterns.")
    try:
        return pattern.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidInputError(f"{pattern!r} in ignore= cannot be part of a file name.") from None


def _is_gits_own(path: bytes) -> bool:
    return b".git" in path and b"/.git/" in b"/%b/" % path
