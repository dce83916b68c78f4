"""Whether conversations of coding agents are redacted before they are saved. Owns that setting.

It is off unless the user sets it, because a rewind then brings back placeholders. It is a file in
the state directory of the user.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from agent_checkpoint.agents.state_dir import open_state_dir
from agent_checkpoint.errors import StorageError
from agent_checkpoint.redaction import REDACTED, SECRETS, Redactor, redactor_of

_FILE = "redact-conversations"


def hook_redactor() -> Redactor | None:
    """Return the redactor of conversations; None if they are saved as they are.

    Raises:
        StorageError: the setting cannot be read.
    """
    directory = open_state_dir()
    if directory is None:
        return None
    try:
        os.stat(_FILE, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"Cannot read whether to redact conversations ({error}).") from error
    finally:
        os.close(directory)
    return redactor_of(SECRETS)


def set_redaction(*, is_on: bool) -> None:
    """Set whether conversations are redacted. Raises StorageError."""
    directory = open_state_dir()
    if directory is None:
        raise StorageError("Cannot set the redaction: there is no private state directory.")
    try:
        if is_on:
            os.close(
                os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory)
            )
        else:
            os.unlink(_FILE, dir_fd=directory)
        os.fsync(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"Cannot set the redaction ({error}).") from error
    finally:
        os.close(directory)


def redacted_lines(lines: Iterable[str]) -> list[int]:
    """Return the numbers of the lines that have placeholders, from 1."""
    return [at for at, line in enumerate(lines, 1) if "[redacted" in line and REDACTED.search(line)]


def redact_line(line: str, redactor: Redactor) -> str:
    """Return a line of a transcript without secrets; a line of JSON stays one."""
    text, count = redactor.text(line)
    if not count or _is_json(text) or not _is_json(line):
        return text
    return json.dumps(redactor.json(json.loads(line)))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
