"""The disk budget of a store: the setting, the record of the last upkeep, and words for both.

Both are files in the state directory of the user; a lost one is no loss.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from agent_checkpoint.agents.state_dir import open_state_dir
from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.os_support.space_limits import directory_size
from agent_checkpoint.backends.wrappers.url_options import split_options
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.formatting import format_size
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

BUDGET = "AGENT_CHECKPOINT_BUDGET"
"""Environment variable with the budget. It takes precedence over the setting."""
DEFAULT_BUDGET = 5 * 10**9

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MAX_BYTES = 1 << 16
_MAX_BUDGET = 10**18


class LastUpkeep(NamedTuple):
    """The result of the last upkeep of a store."""

    ts: float
    """When it ended, in seconds since the epoch."""
    removed: int = 0
    """How many checkpoints it removed."""
    freed: int = 0
    """By how many bytes the store has shrunk."""
    gc_ts: float = 0.0
    """When garbage was last collected."""
    error: str | None = None
    """Why it failed; None if it did not."""


class BudgetState(NamedTuple):
    """The size and the budget of a store."""

    size: int
    budget: int | None
    """None: no budget."""
    last: LastUpkeep | None

    @property
    def is_over(self) -> bool:
        """Whether the store is larger than its budget."""
        return self.budget is not None and self.size > self.budget

    @property
    def words(self) -> str:
        """The size and the budget."""
        if self.budget is None:
            return f"{format_size(self.size)} on disk, no budget"
        return f"{format_size(self.size)} on disk, budget {format_size(self.budget)}"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON data."""
        return {
            "size_on_disk": self.size,
            "budget": self.budget,
            "is_over": self.is_over,
            "problem": self.problem,
            "last_upkeep": None if self.last is None else self.last._asdict(),
        }

    @property
    def problem(self) -> str | None:
        """What is wrong, and what to do; None if the store is within its budget."""
        if not self.is_over or self.budget is None:
            return None
        over = f"The store is over its budget: {self.words}."
        if self.last is None:
            return f"{over} The hook daemon or `watch` will remove old checkpoints when next idle."
        why = "Automatic retention has nothing left to remove."
        if self.last.error is not None:
            why = f"The last automatic retention failed: {self.last.error}"
        return (
            f"{over} {why} Raise the budget with `agent-checkpoint hook install AGENT --budget "
            "SIZE`, or delete sessions: `agent-checkpoint stats` lists the largest keys, "
            "`agent-checkpoint delete KEY` and `agent-checkpoint gc` remove one."
        )


def parse_size(text: str) -> int | None:
    """Return a size such as `5GB`, `500 MB` or `2GiB` in bytes; None for `0` or `none`.

    Raises:
        InvalidInputError: it is not a size.
    """
    if text.strip().lower() in ("0", "none"):
        return None
    found = _SIZE.fullmatch(text.strip())
    size = 0.0
    if found is not None:
        unit = 1024 if found[3] else 1000
        size = float(found[1]) * unit ** _POWERS[found[2].lower()]
    if not 1 <= size <= _MAX_BUDGET:
        raise InvalidInputError(
            f"A budget must be a size such as 5GB, or 0 for none, not {short_repr(text)}."
        )
    return int(size)


def budget_of(backend: Backend) -> int | None:
    """Return the budget of a store in bytes; None if it has none.

    Raises:
        InvalidInputError: the environment variable is not a size.
    """
    given = os.environ.get(BUDGET)
    if given:
        try:
            return parse_size(given)
        except InvalidInputError as error:
            raise InvalidInputError(f"{BUDGET}: {error}") from None
    found = _read(_name(backend, "budget"))
    budget = found.get("budget", DEFAULT_BUDGET)
    return budget if budget is None or type(budget) is int else DEFAULT_BUDGET


def set_budget(backend: Backend, budget: int | None) -> None:
    """Set the budget of a store. Raises StorageError."""
    try:
        written = _write(_name(backend, "budget"), {"budget": budget})
    except OSError as error:
        raise StorageError(f"Cannot write the budget: {error.strerror}.") from error
    if not written:
        raise StorageError("Cannot write the budget: the state directory cannot be used.")


def is_kept(backend: Backend) -> bool:
    """Return whether the hook daemon and `watch` keep a store within a budget.

    Not one that other users write to, or that is not in a local directory.
    """
    properties = backend.properties
    return properties.path is not None and properties.is_local and not properties.shared


def budget_state(backend: Backend) -> BudgetState | None:
    """Return the size and the budget of a store; None if there is no upkeep for it.

    Raises:
        InvalidInputError: the environment variable is not a size.
        StorageError: the size cannot be determined.
    """
    if not is_kept(backend):
        return None
    return BudgetState(store_size(backend), budget_of(backend), read_last(backend))


def store_size(backend: Backend) -> int:
    """Return the size of the files of a local store. Raises StorageError."""
    path = backend.properties.path
    try:
        return 0 if path is None or not path.exists() else directory_size(path)
    except OSError as error:
        raise StorageError(f"Cannot determine the size of {path}: {error.strerror}.") from error


def read_last(backend: Backend) -> LastUpkeep | None:
    """Return the result of the last upkeep; None if there was none."""
    found = _read(_name(backend, "upkeep"))
    try:
        return LastUpkeep(**{name: found[name] for name in LastUpkeep._fields})
    except (KeyError, TypeError):
        return None


def write_last(backend: Backend, last: LastUpkeep) -> None:
    """Record the result of an upkeep. Raises OSError."""
    _write(_name(backend, "upkeep"), last._asdict())


def lock_name(backend: Backend) -> str:
    """Return the name of the lock that lets one process at a time do the upkeep of a store."""
    return _name(backend, "upkeep.lock")


def _name(backend: Backend, end: str) -> str:
    url = split_options(backend.properties.url or repr(backend))[0]
    return f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.{end}"


def _read(name: str) -> dict[str, Any]:
    directory = open_state_dir()
    if directory is None:
        return {}
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        try:
            found = json.loads(os.read(fd, _MAX_BYTES))
        finally:
            os.close(fd)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}
    finally:
        os.close(directory)


def _write(name: str, record: dict[str, Any]) -> bool:
    directory = open_state_dir()
    if directory is None:
        return False
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(f"{name}.new", flags, 0o600, dir_fd=directory)
        try:
            os.write(fd, json.dumps(record).encode())
        finally:
            os.close(fd)
        os.replace(f"{name}.new", name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
    return True
