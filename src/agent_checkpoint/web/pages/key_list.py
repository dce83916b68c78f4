"""The list of keys, with a summary of each key. Does not open sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import UNUSABLE, CheckpointError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_status import UNDOING, UNKNOWN
from agent_checkpoint.web.pages.conversation import tasks
from agent_checkpoint.web.rendering import Site, int_param, query_params
from agent_checkpoint.web.state.lazy_state import ReadLimitExceeded, StateReader

PAGE = 100
_TASKS = 4 << 20
"""Maximum bytes read to count the tasks of a session."""


@dataclass
class KeyRow:
    """The summary of a key."""

    key: str
    head: Checkpoint | None = None
    is_session: bool = False
    workspace: str | None = None
    origin: str | None = None
    tasks: dict[str, int] = field(default_factory=dict)
    """Number of tasks by status."""
    current_task: str = ""
    pending: int = 0
    unknown: int = 0
    problem: str | None = None

    @property
    def ts(self) -> float | None:
        """The time of its newest checkpoint."""
        return None if self.head is None else self.head.ts_ns / 1e9


def first_page(site: Site, request: Request) -> Response:
    """Show the keys whose names contain the query, most recently changed first."""
    params = query_params(request)
    query = params.get("q", "")
    start = int_param(params, "from")
    needle = query.casefold()
    keys = [key for key in site.catalog.latest_first() if needle in key.casefold()]
    rows = [_row(site, key) for key in keys[start : start + PAGE]]
    ledgers: dict[str, Ledger] = {}
    origins = site.catalog.origins()
    for row in rows:
        _complete(site, row, ledgers)
        origin = origins.get(row.key)
        if row.origin is None and origin is not None and origin.parent is not None:
            row.origin = origin.parent[0]
    name = "keys_rows.html" if params.get("piece") else "keys.html"
    return site.page(
        name,
        rows=rows,
        total=len(keys),
        start=start,
        page=PAGE,
        query=query,
        unread=site.catalog.unread,
    )


def _row(site: Site, key: str) -> KeyRow:
    row = KeyRow(key)
    try:
        row.head = site.store.head(key)
    except UNUSABLE as error:
        row.problem = str(error)
    return row


def _complete(site: Site, row: KeyRow, ledgers: dict[str, Ledger]) -> None:
    head = row.head
    if head is None or SESSION_PART not in head.parts:
        return
    row.is_session = True
    try:
        meta = read_session_record(site.store, head)
        if meta is None:
            return
        row.workspace, row.origin = meta.workspace, meta.origin
        _count_tasks(row, StateReader(site.store.backend, _TASKS), head)
        if meta.family not in ledgers:
            ledgers[meta.family] = Ledger(site.store, meta.family)
            ledgers[meta.family].refresh()
        ledger = ledgers[meta.family]
        requests = list(ledger.state.requests.values())
        row.pending = sum(one.session == row.key and one.is_open for one in requests)
        effects = [one for one in ledger.all_effects() if one.session == row.key]
        row.unknown = sum(one.status in (UNKNOWN, UNDOING) for one in effects)
    except CheckpointError as error:
        row.problem = str(error)
    except ReadLimitExceeded:
        row.problem = "The tasks are too large to count here."


def _count_tasks(row: KeyRow, reader: StateReader, head: Checkpoint) -> None:
    if "tasks" not in head.parts:
        return
    for task in tasks(reader, head.parts["tasks"]):
        status = str(task["status"])
        row.tasks[status] = row.tasks.get(status, 0) + 1
        if status in ("in_progress", "failed") and not row.current_task:
            row.current_task = str(task["id"])
