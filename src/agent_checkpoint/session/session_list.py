"""Lists the sessions of a store with status and problems, without opening them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.captured_fields import version_of
from agent_checkpoint.core.class_names import canonical, find_class, name_of
from agent_checkpoint.core.migrations import migration_steps
from agent_checkpoint.core.path_errors import PathError
from agent_checkpoint.core.stateful import CLASS, VERSION
from agent_checkpoint.errors import UNUSABLE, InvalidInputError, StateError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_status import UNDOING, UNKNOWN
from agent_checkpoint.store.objects.reader import resolve_tree
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.store_argument import store_for

if TYPE_CHECKING:
    from agent_checkpoint.store.store_argument import StoreLike


@dataclass
class SessionRow:
    """One session in a list."""

    key: str
    ts: float
    """The time of its last checkpoint."""
    head: str
    workspace: str | None = None
    is_fork: bool = False
    tasks: dict[str, str] = field(default_factory=dict)
    """The status of each task."""
    pending: list[str] = field(default_factory=list)
    """Approval requests without an answer."""
    unknown: list[str] = field(default_factory=list)
    """Effects whose outcome is unknown."""
    trouble: str | None = None
    """The reason why this process cannot resume the session, such as a missing migration."""
    not_imported: list[str] = field(default_factory=list)
    """Parts whose classes are not imported, and so cannot be checked."""


def list_sessions(store: StoreLike | None = None, prefix: str = "") -> list[SessionRow]:
    """Return the sessions of a store whose keys start with a prefix, newest first.

    Sessions that cannot be resumed are included; `trouble` contains the reason.

    Args:
        store: a path, a store URL, a Backend or a CheckpointManager; by default, the default store.
        prefix: the beginning of the keys.

    Raises:
        InvalidInputError: `store` is not a store.
        StorageError: the medium failed.
    """
    opened, is_ours = store_for(store)
    try:
        return _rows(opened, prefix)
    finally:
        if is_ours:
            opened.backend.close()


def _rows(store: Store, prefix: str) -> list[SessionRow]:
    rows = []
    for key in store.list_keys(prefix):
        try:
            head = store.head(key)
            if head is not None and SESSION_PART in head.parts:
                rows.append(_row(store, head))
        except (*UNUSABLE, InvalidInputError) as error:
            rows.append(SessionRow(key, 0.0, f"{key}@?", trouble=str(error)))
    return sorted(rows, key=lambda row: row.ts, reverse=True)


def _row(store: Store, head: Checkpoint) -> SessionRow:
    row = SessionRow(head.key, head.ts_ns / 1e9, head.id)
    record = read_session_record(store, head)
    if record is not None:
        row.workspace, row.is_fork = record.workspace, bool(record.lineage)
        _add_from_ledger(row, Ledger(store, record.family))
    reader = store.reader(head)
    reader.fetch(head.parts.values())
    tasks = resolve_tree(head.parts.get("tasks", {}), reader)
    rows = tasks.get("tasks") if isinstance(tasks, dict) else None
    for task in rows if isinstance(rows, list) else []:
        if isinstance(task, dict):
            row.tasks[str(task.get("id"))] = str(task.get("status"))
    for name, tree in head.parts.items():
        try:
            row.trouble = row.trouble or _load_error(name, resolve_tree(tree, reader))
        except StateError:
            row.not_imported.append(name)
    return row


def _add_from_ledger(row: SessionRow, ledger: Ledger) -> None:
    try:
        ledger.refresh()
    except UNUSABLE as error:
        row.trouble = str(error)
        return
    requests = [item for item in ledger.state.requests.values() if item.session == row.key]
    row.pending = [item.id for item in requests if item.is_open]
    effects = [item for item in ledger.all_effects() if item.session == row.key]
    row.unknown = [item.words for item in effects if item.status in (UNKNOWN, UNDOING)]


def _load_error(name: str, state: Any) -> str | None:
    """Return the reason why a part cannot be loaded, if so.

    Raises StateError if its class is not imported.
    """
    fields = _fields(state) if isinstance(state, dict) else {}
    if CLASS not in fields:
        return None
    cls = find_class(str(fields[CLASS]))
    with suppress(PathError):  # the version is known to instances only
        version = version_of(cls)
        try:
            saved = fields.get(VERSION, version)
            migration_steps(saved, class_name=canonical(name_of(cls)), version=version)
        except PathError as trouble:
            return f"{name} {trouble}"
    return None


def _fields(state: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a state without its type tag."""
    if len(state) == 1:
        ((tag, inner),) = state.items()
        if tag.startswith("$") and isinstance(inner, dict):
            return inner
    return state
