"""News for pages that are open, as server-sent events. Owns looking at the store now and then.

An event only says that there is something new; the page then asks for it. A page that was cut off
hears the present state first when it is connected again, so nothing is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.meta import PART, read_meta
from agent_checkpoint.store.ledger_records import PREFIX
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.scenes import version_of
from agent_checkpoint.web.site import Refused, Site, asked

EVERY = 1.0
"""Seconds between two looks."""
_STILL_HERE = 15
_MOST_PAGES = 50
_MOST_KEYS = 500


async def events(site: Site, request: Request) -> Response:
    """Tell a page whenever something is new: of one key, or of any."""
    key = asked(request).get("key", "")
    if site.listening >= _MOST_PAGES:
        raise Refused(503, "Too many pages are open.")
    return StreamingResponse(_events(site, key), media_type="text/event-stream")


async def _events(site: Site, key: str) -> AsyncIterator[str]:
    site.listening += 1
    try:
        yield "retry: 1500\n\n"
        last, quiet = "", 0
        while True:
            version = await site.in_thread(_version, site, key)
            if version != last:
                last, quiet = version, 0
                yield f"id: {version}\ndata: {version}\n\n"
            elif quiet >= _STILL_HERE:
                quiet = 0
                yield ": still here\n\n"
            quiet += 1
            await asyncio.sleep(EVERY)
    finally:
        site.listening -= 1


def _version(site: Site, key: str) -> str:
    """Return what changes when there is something new; nothing of what it is."""
    try:
        if key:
            return f"{site.scenes.newest(key)}.{_newest_of_ledger(site.store, key)}"
        store = site.store
        seqs = {name: store.newest(name) for name in store.list_keys()[:_MOST_KEYS]}
        for name in list(store.backend.streams(PREFIX))[:_MOST_KEYS]:
            seqs[name] = _newest_in(store, name)
        return version_of(seqs)
    except CheckpointError:
        return "trouble"


def _newest_of_ledger(store: Store, key: str) -> int:
    head = store.head(key)
    meta = read_meta(store, head) if head is not None and PART in head.parts else None
    return 0 if meta is None else _newest_in(store, PREFIX + meta.family)


def _newest_in(store: Store, stream: str) -> int:
    found = store.backend.read(stream, limit=1, newest_first=True)
    return found[0].seq if found else 0
