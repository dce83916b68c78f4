"""What is new, for pages that are open. Owns what a page is told when it asks.

It asks again and again, once a second while it is seen. It is told a version, and asks for what is
new when that is another one. Nothing is held open: browsers have few connections to a host, and any
number of tabs.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.web.site import Site, as_json, asked
from agent_checkpoint.web.timeline.key_catalog import newest_in


def updates(site: Site, request: Request) -> Response:
    """Tell what changes when there is something new: of one key, or of any."""
    key = asked(request).get("key", "")
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
    return f"{site.scenes.newest(key)}.{ledger}"
