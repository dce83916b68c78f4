"""Ignore rules. Owns their scope and precedence; reads no files.

Precedence from high to low: `ignore=`, `.checkpointignore` in the root, and with `gitignore=True`
every `.gitignore`, deepest first. Within one source, the last matching pattern wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.workspace.ignore.patterns import (
    Pattern,
    PatternGroup,
    group_patterns,
    lines_of,
    parse,
)

CHECKPOINTIGNORE, GITIGNORE = b".checkpointignore", b".gitignore"
LARGEST_FILE = 1 << 20
"""The size limit of a rule file in bytes."""
_LONGEST_LINE = 1024
_MAX_WILDCARDS = 5000
_WILDCARDS = rb"[*?[\\!]"
"""Their number is limited because each costs time for every entry of a workspace."""
_LARGEST_CACHED = 1 << 14
_NO_ERRORS: Mapping[bytes, str] = MappingProxyType({})


class Rules:
    """The ignore rules of a directory and everything below it. Immutable; created by `of`.

    As in git, a `.gitignore` does not apply to `.git` and its content: a branch may be called
    `build`. `.git/info/exclude` and the excludes file of a user are not read.
    """

    __slots__ = ("_git", "_is_excluding", "_own", "errors", "key", "reads_files")

    def __init__(
        self,
        own: tuple[PatternGroup, ...],
        git: tuple[tuple[int, PatternGroup], ...],
        reads_files: bool,
        errors: Mapping[bytes, str] = _NO_ERRORS,
    ) -> None:
        self._own = own
        self._git = git
        self._is_excluding = any(
            group.is_excluding for group in (*own, *(group for _, group in git))
        )
        self.reads_files = reads_files
        """Whether directories other than the root may have rule files."""
        self.errors = errors
        """The first error in each invalid rule file, by the path of the file."""
        self.key = b""
        """Identifies the rules in the name of the stat index."""

    @classmethod
    def of(cls, patterns: Iterable[str], *, gitignore: bool = False) -> Rules:
        """Return the rules of a workspace, without those of rule files.

        Args:
            patterns: patterns in the syntax of `.gitignore`.
            gitignore: whether `.gitignore` files also apply.

        Raises:
            InvalidInputError: a pattern is not a one-line string, is too long or cannot match any
                path, or there are too many.
        """
        if isinstance(patterns, (str, bytes)):
            raise InvalidInputError(f"ignore= must be a list of patterns, not {patterns!r}.")
        text = b"\n".join(map(_encoded, patterns))
        groups, error = _parse(text, as_git=False)
        if error is not None:
            raise InvalidInputError(f"Invalid ignore pattern: {error}. Correct or remove it.")
        rules = cls(groups, (), gitignore)
        rules.key = b"%d%b" % (gitignore, text)
        return rules

    def __bool__(self) -> bool:
        """Whether these rules can exclude anything."""
        return self._is_excluding

    def excludes(self, directory: bytes, name: bytes, is_dir: bool) -> bool:
        """Return whether an entry, and everything below it, is ignored.

        Callers must not descend into ignored directories.

        Args:
            directory: the path of its directory, relative to the root; b"" is the root.
            name: its name.
            is_dir: whether it is a directory. A symlink to a directory is not.
        """
        path = directory + b"/" + name if directory else name
        for group in self._own:
            if group.matches(path, name, is_dir):
                return group.is_excluding
        if self._git and not _is_in_git_dir(path):
            for start, group in self._git:
                if group.matches(path[start:], name, is_dir):
                    return group.is_excluding
        return False

    def files(self, directory: bytes) -> tuple[bytes, ...]:
        """Return the names of the rule files that apply in a directory.

        Only regular files count; as in git, symlinks do not.
        """
        if not directory:
            return (CHECKPOINTIGNORE, GITIGNORE) if self.reads_files else (CHECKPOINTIGNORE,)
        return (GITIGNORE,) if self.reads_files and not _is_in_git_dir(directory) else ()

    def within(self, directory: bytes, texts: Mapping[bytes, bytes]) -> Rules:
        """Return the rules of a directory that has rule files, and of everything below it.

        Rule files are untrusted. A file that is too large or has invalid lines does not prevent a
        snapshot: its valid lines apply, and `errors` contains the first error.

        Args:
            directory: its path, relative to the root.
            texts: the contents of its rule files, by name.
        """
        own, git, errors = self._own, self._git, self.errors
        for name in self.files(directory):
            text = texts.get(name)
            if not text:
                continue
            prefix = directory + b"/" if directory else b""
            parse_text = _parse_cached if len(text) <= _LARGEST_CACHED else _parse
            groups, error = parse_text(text, as_git=name == GITIGNORE)
            if error is not None:
                errors = {**errors, prefix + name: error}
            if name == CHECKPOINTIGNORE:
                own += groups
            else:
                git = (*((len(prefix), group) for group in groups), *git)
        if own is self._own and git is self._git and errors is self.errors:
            return self
        return Rules(own, git, self.reads_files, errors)


def _parse(text: bytes, *, as_git: bool) -> tuple[tuple[PatternGroup, ...], str | None]:
    """Parse the lines of a rule file; return the patterns and the first error with its line.

    Args:
        text: the lines.
        as_git: whether to skip patterns that cannot match any path, as git does.
    """
    patterns: list[Pattern] = []
    errors: list[str] = []
    wildcards = 0
    if len(text) > LARGEST_FILE:
        errors.append(f"it has more than {LARGEST_FILE} bytes")
        text = text[:LARGEST_FILE].rpartition(b"\n")[0]
    for number, line in enumerate(lines_of(text), 1):
        if line.startswith(b"#"):
            continue
        if len(line) > _LONGEST_LINE:
            errors.append(f"line {number} has more than {_LONGEST_LINE} bytes")
            continue
        wildcards += len(re.findall(_WILDCARDS, line))
        if wildcards > _MAX_WILDCARDS:
            errors.append(f"it has more than {_MAX_WILDCARDS} wildcards and `!` by line {number}")
            break
        try:
            pattern = parse(line)
        except ValueError as error:
            if not as_git:
                shown = line[:80].decode("utf-8", "surrogateescape")
                errors.append(f"line {number}, {shown!r}: {error}")
            continue
        if pattern is not None:
            patterns.append(pattern)
    return group_patterns(patterns), errors[0] if errors else None


# The same files are parsed at every snapshot, and again for each directory that is scanned
# separately.
_parse_cached = lru_cache(maxsize=256)(_parse)


def _encoded(pattern: str) -> bytes:
    if not isinstance(pattern, str):
        raise InvalidInputError(f"An ignore pattern must be a string, not {pattern!r}.")
    if "\n" in pattern or "\0" in pattern:
        raise InvalidInputError(
            f"The ignore pattern {pattern!r} contains a line break or NUL: pass one per item."
        )
    try:
        return pattern.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"The ignore pattern {pattern!r} contains a lone surrogate, invalid in a file name."
        ) from None


def _is_in_git_dir(path: bytes) -> bool:
    return b".git" in path and b"/.git/" in b"/%b/" % path
