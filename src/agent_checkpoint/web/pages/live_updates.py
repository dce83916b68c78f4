"""Change notification for open pages, which poll a version.

A visible page polls once a second and reloads its content when the version has changed. No
connection is kept open: browsers allow few per host, and users have many tabs.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.web.rendering import Site, as_json, query_params
from agent_checkpoint.web.timeline.key_catalog import newest_in


def updates(site: Site, request: Request) -> Response:
    """Return a version that changes with one key, or with any key of the store."""
    key = query_params(request).get("key", "")
    try:
        version = _version(site, key) if key else site.catalog.version()
    except CheckpointError:
        version = "unreadable"
    return as_json({"version": version})


def _version(site: Site, key: str) -> str:
    store = site.store
    head = store.head(key)
    meta = (
        read_session_record(store, head)
        if head is not None and SESSION_PART in head.parts
        else None
    )
    ledger = 0 if meta is None else newest_in(store, PREFIX + meta.family)
    return f"{site.layouts.version(key)}.{ledger}"
