"""Search in the messages and files of a key. Owns what is looked through, and when that ends.

Checkpoints share almost all that they hold: each object is looked into once, at the oldest
checkpoint that has it, so a find says where something first appears.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_checkpoint.errors import UNUSABLE, CheckpointError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.page_text import link, on_one_line
from agent_checkpoint.web.pages import file_view
from agent_checkpoint.web.pages.conversation import pieces
from agent_checkpoint.web.request_threads import one_by_one
from agent_checkpoint.web.site import Refused, Site, asked, wanted
from agent_checkpoint.web.state.lazy_state import Peek, TooLarge, new_items
from agent_checkpoint.web.state.outline import written
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, Item, read_directory
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in

MOST = 200
"""How many finds are shown."""
SECONDS = 20.0
_MOST_READ = 512 << 20
_LARGEST_FILE = 1 << 20
_LOGS = ("messages", "calls")
_AROUND = 80


def search_page(site: Site, request: Request) -> Response:
    """Show the form; a script fills in what is found."""
    said = asked(request)
    return site.page("search.html", key=wanted(said, "key"), query=said.get("q", ""))


def search_results(site: Site, request: Request) -> Response:
    """Send what is found, a line of JSON each, as it is found."""
    said = asked(request)
    query = wanted(said, "q")
    if len(query) > 1000:
        raise Refused(400, "The search term is too long.")
    search = Search(site.store, wanted(said, "key"), query)
    lines = (json.dumps(row) + "\n" for row in search.run())
    return StreamingResponse(one_by_one(lines), media_type="application/x-ndjson")


class Search:
    """One search through one key."""

    def __init__(self, store: Store, key: str, query: str) -> None:
        self._store = store
        self._key = key
        self._query = query.casefold()
        self._peek = Peek(store.backend, _MOST_READ)
        self._seen: set[str] = set()
        self._told: set[int] = set()
        self._ends = time.monotonic() + SECONDS

    def run(self) -> Iterator[dict[str, Any]]:
        """Iterate over finds; the last row says how it ended."""
        number, found, end = 0, 0, "all"
        try:
            for entry in self._store.oldest_first(self._key, page=50):
                try:
                    checkpoint = read_checkpoint(self._key, entry.seq, entry.data)
                    for row in self._in(checkpoint):
                        yield row
                        found += 1
                        if found == MOST:
                            end = "many"
                            break
                except UNUSABLE:
                    continue  # the timeline shows it
                number += 1
                if end == "all" and time.monotonic() > self._ends:
                    end = "time"
                if end != "all":
                    break
                if number % 200 == 0:
                    yield {"looked": number}
        except TooLarge:
            end = "large"
        except CheckpointError:
            end = "failed"
        yield {"end": end, "looked": number, "found": found}

    def _in(self, checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
        for part in _LOGS:
            if part in checkpoint.parts:
                yield from self._in_log(checkpoint, part)
        tree = tree_in(self._store, checkpoint) if FILES in checkpoint.parts else None
        if tree is not None:
            yield from self._in_files(checkpoint, tree)

    def _in_log(self, checkpoint: Checkpoint, part: str) -> Iterator[dict[str, Any]]:
        tree = checkpoint.parts[part]
        for item in new_items(tree, self._seen, self._peek):
            self._peek.room = 1_000_000
            text, _ = written(self._peek, item, 200_000)
            if self._query in text.casefold() and self._is_new(f"{part}{text}"):
                place = link("checkpoint", id=checkpoint.id, part=part)
                yield self._find(checkpoint, part, *self._read(part, item, text), place)
        # The peek must not keep all that was ever looked at.
        self._peek.forget()

    def _read(self, part: str, item: Any, text: str) -> tuple[str, str]:
        """Return what of a message is to be shown, as it is read, and who said it."""
        found = pieces(self._peek, item, is_call=part == "calls")
        hits = [piece for piece in found if self._query in piece[1].casefold()]
        return hits[0] if hits else (found[0][0] if found else "", text)

    def _in_files(self, checkpoint: Checkpoint, tree: Tree) -> Iterator[dict[str, Any]]:
        stack = [(b"", tree.root.ref)]
        while stack and time.monotonic() < self._ends:
            path, ref = stack.pop()
            if ref in self._seen:
                continue
            self._seen.add(ref)
            for item in read_directory(ref, tree.get):
                if item.type == FOLDER:
                    stack.append((path + item.name + b"/", item.ref))
                else:
                    yield from self._in_file(checkpoint, tree, path + item.name, item)

    def _in_file(
        self, checkpoint: Checkpoint, tree: Tree, path: bytes, item: Item
    ) -> Iterator[dict[str, Any]]:
        name = os.fsdecode(path)
        at = link("checkpoint", id=checkpoint.id, part=FILES, path=name)
        if self._query in name.casefold() and self._is_new(f"name {name}"):
            yield self._find(checkpoint, "file", name, name, at)
        mark = f"{item.ref} {name}"
        if item.type != FILE or item.size > _LARGEST_FILE or mark in self._seen:
            return
        self._seen.add(mark)
        self._peek.charge(item.size)
        found = file_view.content(tree, item, _LARGEST_FILE)
        for number, line in enumerate(found.lines, 1):
            if self._query in line.casefold():
                if self._is_new(f"{name}\0{line}"):
                    yield self._find(checkpoint, "file", f"{name}:{number}", line, at)
                break

    def _is_new(self, text: str) -> bool:
        mark = hash(text)
        is_new = mark not in self._told
        self._told.add(mark)
        return is_new

    def _find(
        self, checkpoint: Checkpoint, kind: str, where: str, text: str, at: str
    ) -> dict[str, Any]:
        place = max(0, text.casefold().find(self._query) - _AROUND)
        snippet = on_one_line(" ".join(text[place : place + 3 * _AROUND].split()), 3 * _AROUND)
        return {
            "kind": kind,
            "where": on_one_line(where),
            "text": ("…" if place else "") + snippet,
            "seq": checkpoint.seq,
            "link": at,
        }
