"""Default paths: the default store and the data directory of the user. Creates no files.

The secret is in the config directory (see `seal.py`), so that a copy of the data directory does
not contain it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agent_checkpoint.backends.os_support.posix import check_path, wrap_os_errors
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.file_trust import check_own
from agent_checkpoint.records import short_repr

ENVIRONMENT = "AGENT_CHECKPOINT_HOME"


def default_store() -> Path:
    """Return the directory of the default store.

    It is `$AGENT_CHECKPOINT_HOME/store` if that variable is set. Otherwise it is
    `agent-checkpoint/store` in `$XDG_DATA_HOME`, in `~/Library/Application Support` on macOS, or
    in `~/.local/share`.

    Raises:
        InvalidInputError: the variable is a relative path, or the user has no home directory.
    """
    given = os.environ.get(ENVIRONMENT)
    if given:
        path = check_path(given)
        if not path.is_absolute():
            raise InvalidInputError(
                f"{ENVIRONMENT} is {short_repr(given)}; it must be an absolute path, or the store "
                "would depend on the working directory."
            )
        return path / "store"
    return _data_directory() / "agent-checkpoint" / "store"


def data_home() -> Path:
    """Return the data directory: the default store, indexes and forks. It may not exist.

    Raises:
        InvalidInputError: other users own or can write it; or an error of `default_store`.
        StorageError: the file system failed.
    """
    home = default_store().parent
    with wrap_os_errors(f"check {home}"):
        check_own(home)
    return home


def _data_directory() -> Path:
    data = os.environ.get("XDG_DATA_HOME")
    if data and Path(data).is_absolute():
        return Path(data)
    try:
        if os.environ.get("HOME") == "":
            raise RuntimeError("HOME is empty")
        home = Path.home()
    except RuntimeError as error:
        raise InvalidInputError(
            f"No home directory for the default store ({error}): pass a path, or set {ENVIRONMENT}."
        ) from error
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return home / ".local" / "share"
