"""Signs entries of shared stores, and verifies them. Owns the member `seal`.

All entries are written and read through this module. In a private store they are not changed. In a
shared store the member `seal` of each entry is an HMAC under the user's secret. An entry without a
valid HMAC is returned as a `ForeignEntry`, which `open_entry` rejects.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import StateError
from agent_checkpoint.records import Entry
from agent_checkpoint.seal import ENVIRONMENT, entry_key

_HASH = rb'\s*,\s*"sha256":\s*"[0-9a-f]{64}"\s*}\s*'
_SEAL_MEMBER = rb'\s*,\s*"seal":\s*"([0-9a-f]{64})"' + _HASH
_LONGEST_MEMBERS = 200


class ForeignEntry(bytes):
    """An entry of a shared store without a valid seal under this user's secret."""


def end_entry(members: bytes, *, indent: bool) -> bytes:
    """Return an entry with these members, the text of a JSON object without its end, and a hash."""
    end = b',\n  "sha256": "%b"\n}\n' if indent else b',"sha256":"%b"}'
    return members + end % hashlib.sha256(members).hexdigest().encode()


def append_entry(backend: Backend, stream: str, entry: bytes, **options: Any) -> int:
    """Append an entry, signed if the store is shared. `options` are those of `Backend.append`.

    Raises:
        StateError: the store is shared, and the secret cannot be created or read.
        CheckpointError: the errors of `Backend.append`.
    """
    return backend.append(stream, sealed_entry(backend, stream, entry), **options)


def sealed_entry(backend: Backend, stream: str, entry: bytes) -> bytes:
    """Return an entry as it is appended: signed if the store is shared.

    Raises:
        StateError: the store is shared, and the secret cannot be created or read.
    """
    if not backend.properties.shared:
        return entry
    return _sealed(stream, entry, _key(create=True) or b"")


def read_entries(backend: Backend, stream: str, **which: Any) -> list[Entry]:
    """Return entries as `Backend.read` does; untrusted entries are of type `ForeignEntry`.

    Raises:
        StateError: the store is shared, and the secret cannot be read.
        StorageError: the medium failed.
    """
    found = backend.read(stream, **which)
    if not backend.properties.shared or not found:
        return found
    key = _key(create=False)
    return [
        entry if _is_sealed(stream, entry.data, key) else Entry(entry.seq, ForeignEntry(entry.data))
        for entry in found
    ]


def _key(*, create: bool) -> bytes | None:
    try:
        return entry_key(create=create)
    except StateError as error:
        raise StateError(
            f"A shared store requires your secret, but the secret file cannot be used "
            f"({error.__cause__}). Fix the file, or set {ENVIRONMENT} to the same value for all "
            "users of the store."
        ) from error.__cause__


def _sealed(stream: str, entry: bytes, key: bytes) -> bytes:
    match = re.compile(_HASH).search(entry, max(0, len(entry) - _LONGEST_MEMBERS))
    if match is None:
        raise AssertionError("unreachable: an entry ends with its hash")
    body = entry[: match.start()]
    indent = entry.endswith(b"\n")
    member = b',\n  "seal": "%b"' if indent else b',"seal":"%b"'
    return end_entry(body + member % _seal(stream, body, key), indent=indent)


def _is_sealed(stream: str, entry: bytes, key: bytes | None) -> bool:
    start = max(0, len(entry) - _LONGEST_MEMBERS)
    match = re.compile(_SEAL_MEMBER).search(entry, start)
    if key is None or match is None or match.end() != len(entry):
        return False
    return hmac.compare_digest(match[1], _seal(stream, entry[: match.start()], key))


def _seal(stream: str, body: bytes, key: bytes) -> bytes:
    # The HMAC covers the stream name, so that an approval cannot be moved to another ledger.
    name = stream.encode()
    data = b"%d\n%b\n%b" % (len(name), name, body)
    return hmac.new(key, data, hashlib.sha256).hexdigest().encode()
