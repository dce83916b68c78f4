"""Files of rules, found on the way through a directory tree. Owns reading them; knows no syntax."""

from __future__ import annotations

import os

from agent_checkpoint.workspace.ignore.rules import CHECKPOINTIGNORE, LARGEST_FILE, Rules
from agent_checkpoint.workspace.safe_open import EntryChanged, directory_below, opened_file


def rules_in(path: bytes, fd: int, rules: Rules) -> Rules:
    """Return the rules within an open directory, by those of the one above it.

    Raises:
        OSError: the `.checkpointignore` cannot be read.
    """
    texts: dict[bytes, bytes] = {}
    for name in rules.files(path):
        try:
            with opened_file(fd, name) as file:
                texts[name] = os.read(file.fd, LARGEST_FILE + 1)
        except (FileNotFoundError, EntryChanged):
            continue
        except PermissionError:
            if name == CHECKPOINTIGNORE:  # what it says to leave out must not be captured
                raise
            continue  # as with git
    return rules.within(path, texts) if texts else rules


def rules_at(root: int, path: bytes, fd: int, rules: Rules) -> Rules:
    """Return the rules within an open directory that was not come to from above.

    Raises:
        OSError: a directory above it is gone, or the `.checkpointignore` cannot be read.
    """
    names = path.split(b"/") if path else []
    for depth in range(len(names)):
        above = b"/".join(names[:depth])
        if rules.files(above):
            with directory_below(root, above) as parent:
                rules = rules_in(above, parent, rules)
    return rules_in(path, fd, rules)
