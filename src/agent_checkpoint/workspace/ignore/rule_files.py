"""Reads the rule files of a directory tree. Does not parse them."""

from __future__ import annotations

import os

from agent_checkpoint.workspace.ignore.rules import CHECKPOINTIGNORE, LARGEST_FILE, Rules
from agent_checkpoint.workspace.safe_open import EntryChanged, directory_below, opened_file


def rules_in(path: bytes, fd: int, rules: Rules) -> Rules:
    """Return the rules of an open directory, given those of its parent.

    Raises:
        OSError: the `.checkpointignore` cannot be read.
    """
    texts = rule_texts(path, fd, rules)
    return rules.within(path, texts) if texts else rules


def rule_texts(path: bytes, fd: int, rules: Rules) -> dict[bytes, bytes]:
    """Return the contents of the rule files of an open directory, by name.

    The end of a file that is too large is left out. Raises the same errors as `rules_in`.
    """
    texts: dict[bytes, bytes] = {}
    for name in rules.files(path):
        try:
            with opened_file(fd, name) as file:
                texts[name] = os.read(file.fd, LARGEST_FILE + 1)
        except (FileNotFoundError, EntryChanged):
            continue
        except PermissionError:
            if name == CHECKPOINTIGNORE:  # the files that it excludes must not be captured
                raise
            continue  # as git does
    return texts


def rules_at(root: int, path: bytes, fd: int, rules: Rules) -> Rules:
    """Return the rules of an open directory, reading the rule files of all its parents.

    Raises:
        OSError: a parent directory does not exist, or the `.checkpointignore` cannot be read.
    """
    names = path.split(b"/") if path else []
    for depth in range(len(names)):
        parent_path = b"/".join(names[:depth])
        if rules.files(parent_path) and not depth:
            rules = rules_in(parent_path, root, rules)
        elif rules.files(parent_path):
            with directory_below(root, parent_path) as parent_fd:
                rules = rules_in(parent_path, parent_fd, rules)
    return rules_in(path, fd, rules)
