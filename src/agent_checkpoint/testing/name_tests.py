"""Conformance tests for stream names: any string after `key/`, `fx/` or `meta/` is a valid name.

Owns a list of names that are difficult for some media.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.backend_hooks import BackendHooks

NAMES = {
    "a slash": "a/b",
    "only a slash": "/",
    "a leading slash": "/etc/passwd",
    "a trailing slash": "a/",
    "two slashes": "a//b",
    "a dot": ".",
    "two dots": "..",
    "a path upwards": "../../up",
    "an escaped path": "%2e%2e",
    "an escaped slash": "a%2fb",
    "a per cent sign": "%",
    "a NUL": "a\0b",
    "a line break": "a\nb",
    "a carriage return": "a\r\nb",
    "a carriage return and capitals": "A\r\nB",
    "control characters": "\x01\x1b[31m\x7f",
    "an emoji": "\U0001f9ea\u200d\U0001f525",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "right to left": "\u202e\u05d0",
    "a capital": "A",
    "the small letter": "a",
    "a capital, longer": "Session",
    "the small letters": "session",
    "a leading dot": ".hidden",
    "a name like a lock": ".lock",
    "a name like a temporary folder": ".tmp",
    "a name like the objects": "objects",
    "a name like the objects, in capitals": "OBJECTS",
    "name": "name",
    "last": "last",
    "a tilde": "~",
    "a tilde and a number": "a~2",
    "an at sign and a number": "a@17",
    "like an entry": "1.json",
    "a device": "con",
    "a space": " ",
    "spaces around": " a ",
    "a backslash": "..\\..\\up",
    "quotes": "'; DROP TABLE entries; --\"",
    "a pattern": "*?[a]",
    "a URL": "s3://bucket/key?x=1#y",
    "like a stream": "key/a",
    "a kilobyte": "k" * 1024,
    "a kilobyte, one letter different": "k" * 1023 + "l",
    "a kilobyte of emoji": "\U0001f9ea" * 256,
    "a kilobyte of slashes": "/" * 1024,
}

BAD_STREAMS = {
    "empty": "",
    "no kind": "a",
    "a kind alone": "key",
    "nothing after the slash": "key/",
    "only a slash": "/",
    "an unknown kind": "objects/a",
    "almost a kind": "keys/a",
    "a kind in capitals": "KEY/a",
    "something before the kind": " key/a",
    "a path": "../key/a",
    "a lone surrogate": "key/\ud800",
}


class NameTests(BackendHooks):
    """Valid and malformed stream names."""

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
    def test_a_stream_of_any_name(self, backend: Backend, name: str) -> None:
        """A stream with an unusual name can be appended to, read, listed and removed."""
        stream = f"key/{name}"
        assert backend.append(stream, b"one", after=0) == 1
        assert backend.append(stream, b"two", after=1) == 2
        assert backend.read(stream) == [Entry(1, b"one"), Entry(2, b"two")]
        assert self.raw_entry(backend, stream, 2) == b"two"
        assert list(backend.streams()) == [stream]
        assert list(backend.streams(stream)) == [stream]
        with closing(self.reopen(backend)) as again:
            assert list(again.streams("key/")) == [stream]
            again.remove(stream, [1, 2])
            assert list(again.streams()) == []
            assert again.append(stream, b"three") == 3

    def test_no_two_names_share_a_stream(self, backend: Backend) -> None:
        """Streams with different names or prefixes have separate entries and numbers."""
        streams = [f"{kind}/{name}" for kind in ("key", "fx", "meta") for name in NAMES.values()]
        for stream in streams:
            assert backend.append(stream, stream.encode()) == 1, f"{stream!r} is shared"
        for stream in streams:
            assert backend.read(stream) == [Entry(1, stream.encode())]
        assert sorted(backend.streams()) == sorted(streams)

    @pytest.mark.parametrize("bad", BAD_STREAMS.values(), ids=BAD_STREAMS.keys())
    def test_a_malformed_name_is_refused_where_it_would_be_written(
        self, backend: Backend, bad: str
    ) -> None:
        """`append` raises InvalidInputError; `read` and `remove` treat the stream as empty."""
        backend.append("key/a", b"entry")
        with pytest.raises(InvalidInputError):
            backend.append(bad, b"entry")
        with pytest.raises(InvalidInputError):
            backend.append(bad, b"entry", after=0)
        assert backend.read(bad) == []
        backend.remove(bad, [1])
        assert list(backend.streams()) == ["key/a"]
        assert backend.read("key/a") == [Entry(1, b"entry")]
