"""Searches the messages and files of a key. Owns the search order and its limits.

Checkpoints share most of their objects. Each object is searched once, in the oldest checkpoint that
contains it, so a result is the first occurrence.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.agents.session_note import TRANSCRIPT
from agent_checkpoint.agents.transcript_lines import items_in
from agent_checkpoint.errors import UNUSABLE, CheckpointError
from agent_checkpoint.present.state_json import logs_in
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.agent_scope import split_part
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.page_text import link, single_line
from agent_checkpoint.web.pages import file_view
from agent_checkpoint.web.pages.conversation import pieces
from agent_checkpoint.web.pages.transcript_view import agent_of, block_of
from agent_checkpoint.web.rendering import RequestError, Site, query_params, required
from agent_checkpoint.web.request_threads import stream_in_threads
from agent_checkpoint.web.state.lazy_state import (
    STRING,
    ReadLimitExceeded,
    StateReader,
    new_items,
)
from agent_checkpoint.web.state.outline import render
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, Item, read_directory

MAX_RESULTS = 200
"""Maximum number of results."""
SECONDS = 20.0
_MAX_READ = 512 << 20
_MAX_FILE = 1 << 20
_AROUND = 80


def search_page(site: Site, request: Request) -> Response:
    """Show the search form; a script loads the results."""
    params = query_params(request)
    return site.page("search.html", key=required(params, "key"), query=params.get("q", ""))


def search_results(site: Site, request: Request) -> Response:
    """Stream the results, one JSON object per line."""
    params = query_params(request)
    query = required(params, "q")
    if len(query) > 1000:
        raise RequestError(400, "The search term is too long.")
    search = Search(site.store, required(params, "key"), query)
    lines = (json.dumps(row) + "\n" for row in search.run())
    return StreamingResponse(stream_in_threads(lines), media_type="application/x-ndjson")


class Search:
    """A case-insensitive text search over the checkpoints of one key, with a time limit."""

    def __init__(self, store: Store, key: str, query: str) -> None:
        self._store = store
        self._key = key
        self._words = query
        self._query = query.casefold()
        self._reader = StateReader(store.backend, _MAX_READ)
        self._seen: set[str] = set()
        self._reported: set[int] = set()
        self._ends = time.monotonic() + SECONDS

    def run(self) -> Iterator[dict[str, Any]]:
        """Iterate over results; the last row contains the reason why the search ended."""
        number, found, end = 0, 0, "all"
        try:
            for entry in self._store.entries(self._key, page=50, oldest_first=True):
                try:
                    checkpoint = read_checkpoint(self._key, entry.seq, entry.data)
                    for row in self._in(checkpoint):
                        yield row
                        found += 1
                        if found == MAX_RESULTS:
                            end = "many"
                            break
                except UNUSABLE:
                    continue  # the timeline marks it as unreadable
                number += 1
                if end == "all" and time.monotonic() > self._ends:
                    end = "time"
                if end != "all":
                    break
                if number % 200 == 0:
                    yield {"looked": number}
        except ReadLimitExceeded:
            end = "large"
        except CheckpointError:
            end = "failed"
        yield {"end": end, "looked": number, "found": found}

    def _in(self, checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
        for part in logs_in(checkpoint.parts):
            yield from self._in_log(checkpoint, part)
        if HOOK in checkpoint.parts and TRANSCRIPT in checkpoint.parts:
            yield from self._in_transcript(checkpoint)
        tree = tree_in(self._store, checkpoint) if FILES in checkpoint.parts else None
        if tree is not None:
            yield from self._in_files(checkpoint, tree)

    def _in_log(self, checkpoint: Checkpoint, part: str) -> Iterator[dict[str, Any]]:
        tree = checkpoint.parts[part]
        for item in new_items(tree, self._seen, self._reader):
            self._reader.chars_left = 1_000_000
            text, _ = render(self._reader, item, 200_000)
            if self._query in text.casefold() and self._is_new(f"{part}{text}"):
                address = link("checkpoint", id=checkpoint.id, part=part)
                yield self._find(checkpoint, part, *self._read(part, item, text), address)
        # Limit the memory: do not cache every object that was read.
        self._reader.clear_cache()

    def _in_transcript(self, checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
        agent: str | None = None
        for line in new_items(checkpoint.parts[TRANSCRIPT], self._seen, self._reader):
            agent = agent or agent_of(self._store, checkpoint) or "unknown"
            shape = self._reader.shape(line)
            text = self._reader.unmasked_text(shape, _MAX_FILE)[0] if shape.kind == STRING else ""
            for item in items_in(agent, text):
                self._reader.chars_left = 1_000_000
                said = block_of(self._reader, item).text
                if self._query in said.casefold() and self._is_new(f"{TRANSCRIPT}{said}"):
                    address = link("checkpoint", id=checkpoint.id, part=TRANSCRIPT)
                    yield self._find(
                        checkpoint, "transcript", item.tool or item.kind, said, address
                    )
        self._reader.clear_cache()

    def _read(self, part: str, item: Any, text: str) -> tuple[str, str]:
        """Return the matching text of a message, with its role or tool."""
        texts = pieces(split_part(part)[1], self._reader, item)
        hits = [piece for piece in texts if self._query in piece[1].casefold()]
        return hits[0] if hits else (texts[0][0] if texts else "", text)

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
        if item.type != FILE or item.size > _MAX_FILE or mark in self._seen:
            return
        self._seen.add(mark)
        self._reader.charge(item.size)
        content = file_view.content(tree, item, _MAX_FILE)
        for number, line in enumerate(content.lines, 1):
            if self._query in line.casefold():
                if self._is_new(f"{name}\0{line}"):
                    yield self._find(checkpoint, "file", f"{name}:{number}", line, at)
                break

    def _split(self, text: str) -> list[str]:
        """Return a text in pieces, every second of which is a hit."""
        form = re.compile(re.escape(self._words), re.IGNORECASE)
        pieces, at = [], 0
        for found in form.finditer(text):
            pieces += [text[at : found.start()], found[0]]
            at = found.end()
        return [*pieces, text[at:]]

    def _is_new(self, text: str) -> bool:
        mark = hash(text)
        is_new = mark not in self._reported
        self._reported.add(mark)
        return is_new

    def _find(
        self, checkpoint: Checkpoint, kind: str, where: str, text: str, at: str
    ) -> dict[str, Any]:
        start = max(0, text.casefold().find(self._query) - _AROUND)
        snippet = single_line(" ".join(text[start : start + 3 * _AROUND].split()), 3 * _AROUND)
        return {
            "kind": kind,
            "where": single_line(where),
            "text": self._split(("…" if start else "") + snippet),
            "seq": checkpoint.seq,
            "link": at,
        }
