"""Redacts or masks an encoded value: strings, bytes, paths and dict keys. Owns the walk over tags.

A pickle or an array of text cannot be redacted. If it contains a secret, it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.codec.scalars import (
    decode_bytes,
    decode_text,
    encode_bytes,
    encode_text,
)
from agent_checkpoint.core.path_errors import PathError, key_segment
from agent_checkpoint.core.stateful import META
from agent_checkpoint.errors import IntegrityError, StateError
from agent_checkpoint.records import JsonValue
from agent_checkpoint.redaction import MASK, Redactor
from agent_checkpoint.store.canonical_json import write_json
from agent_checkpoint.store.objects.splitting import (
    BlobValue,
    OutOfLineValue,
    SharedValue,
    inline_tree,
)

_EXACT = frozenset(
    {"$int", "$float", "$datetime", "$time", "$date", "$timedelta", "$timezone", "$zoneinfo"}
    | {"$decimal", "$fraction", "$complex", "$uuid", "$object"}
)
"""Tags without text of the user."""
_PAIRS = frozenset({"$dict", "$ordereddict", "$counter"})
_TEXT_DTYPE = re.compile(r"[<>|=]?([US])([0-9]+)")
_BYTE_DTYPES = frozenset({"|u1", "|i1"})


def redact_tree(tree: JsonValue, redactor: Redactor) -> tuple[JsonValue, int]:
    """Return an encoded value without secrets, and how many were replaced.

    Raises:
        PathError: a pickle or an array contains a secret, or two keys are equal without theirs.
        StateError: a function of the user failed.
    """
    walk = _Redaction(redactor)
    return walk.value(tree), walk.count


def mask_tree(tree: JsonValue, name: str) -> tuple[JsonValue, int]:
    """Return a stored value, resolved, with the built-in secrets masked, and how many it had.

    Raises:
        IntegrityError: the value, which `name` is for messages, is malformed.
        StateError: a pickle or an array contains a secret, or two keys are equal without theirs.
    """
    try:
        return redact_tree(tree, MASK)
    except PathError as error:
        raise StateError(
            f"{error.path(name)} contains a secret that cannot be masked: it is inside a pickle or "
            "an array, or in keys that differ only in it. Nothing was written. Export it without "
            "masking: --no-mask, or mask=False in Python. Or purge the secret."
        ) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise IntegrityError(
            f"{name} is malformed, so that it cannot be masked. Nothing was written. Export it "
            "without masking: --no-mask, or mask=False in Python."
        ) from None


class _Redaction:
    """One walk over a tree. Changed values are new; unchanged ones may be shared."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.count = 0

    def value(self, tree: Any) -> Any:
        """Return a value without secrets. Raises PathError."""
        if type(tree) is str:
            return self._counted(self._redactor.text(tree))
        if type(tree) is list:
            return self._items(tree)
        if type(tree) is SharedValue:
            return SharedValue(self.value(tree.tree))
        if type(tree) is not dict:
            return tree  # a number, or stored out of line
        if len(tree) == 1:
            ((tag, payload),) = tree.items()
            if tag[:1] == "$" != tag[1:2]:
                return self._escaped(payload) if tag == "$str" else self._tagged(tag, payload)
        return self._dict(tree)

    def _tagged(self, tag: str, payload: Any) -> Any:
        if tag in ("$bytes", "$bytearray"):
            payload = encode_bytes(self._counted(self._redactor.data(_bytes(payload))))
        elif tag == "$pickle":
            self._check(_strings_of(_bytes(payload["data"])), "is a pickle")
        elif tag == "$ndarray":
            self._check(_texts_of(payload), "is an array")
        elif tag == "$state":
            payload = self._dict(payload, META)
        elif tag in _PAIRS:
            payload = self._pairs(payload)
        elif tag == "$defaultdict":
            payload = [payload[0], self._pairs(payload[1])]
        elif tag == "$log" and isinstance(payload, OutOfLineValue):
            pass  # the items of a log that is being saved are redacted when they are written
        elif tag not in _EXACT:
            payload = self.value(payload)
        return {tag: payload}

    def _escaped(self, payload: str) -> JsonValue:
        """Redact a string with lone surrogates."""
        return encode_text(self._counted(self._redactor.text(decode_text(payload))))

    def _items(self, items: list[Any]) -> list[Any]:
        done: list[Any] = []
        try:
            for item in items:
                done.append(self.value(item))
        except PathError as error:
            raise error.at(f"[{len(done)}]") from error.__cause__
        return done

    def _dict(self, tree: dict[str, Any], keep: frozenset[str] = frozenset()) -> dict[str, Any]:
        done: dict[str, Any] = {}
        for key, item in tree.items():
            if key in keep:
                done[key] = item
                continue
            name = key[1:] if key[:1] == "$" else key
            fresh = self._key(name, tree, done)
            try:
                done["$" + fresh if fresh[:1] == "$" else fresh] = self._member(name, item)
            except PathError as error:
                raise error.at(key_segment(fresh)) from error.__cause__
        return done

    def _member(self, name: Any, item: Any) -> Any:
        if type(name) is str and type(item) is str:
            return self._counted(self._redactor.member(name, item))
        return self.value(item)

    def _key(self, name: str, *taken: dict[str, Any]) -> str:
        fresh, count = self._redactor.text(name)
        self.count += count
        if not count:
            return name
        if encode_text(fresh) is not fresh:
            raise PathError("has a key that the function of redact= made invalid.")
        number, base = 2, fresh
        while any(fresh in names for names in taken):  # no value may be lost
            fresh, number = f"{base} ({number})", number + 1
        return fresh

    def _pairs(self, pairs: list[Any]) -> list[Any]:
        done, before = [], self.count
        for key, item in pairs:
            fresh = self.value(key)
            segment = f"[{fresh if isinstance(fresh, str) else '…'}]"
            try:
                done.append([fresh, self._member(key, item)])
            except PathError as error:
                raise error.at(segment) from error.__cause__
        if self.count != before:
            self._make_unique(done)
        return done

    def _make_unique(self, pairs: list[list[Any]]) -> None:
        texts: set[bytes] = set()
        for pair in pairs:
            base, number = pair[0], 2
            while write_json(inline_tree(pair[0])) in texts:
                if not isinstance(base, str):
                    raise PathError(
                        "has keys that are equal after redaction. Use keys without secrets."
                    )
                pair[0], number = f"{base} ({number})", number + 1
            texts.add(write_json(inline_tree(pair[0])))

    def _check(self, strings: Iterator[str | bytes], what: str) -> None:
        name = ""
        for item in strings:
            if isinstance(item, str):
                found, name = self._redactor.member(name, item)[1], item
            else:
                found, name = self._redactor.data(item)[1], ""
            if found:
                raise PathError(
                    f"{what} that contains a value that redact= matches, and it cannot be redacted "
                    "inside. Nothing was saved. Keep it in an attribute with a leading underscore, "
                    "or register_type() its class."
                )

    def _counted(self, result: tuple[Any, int]) -> Any:
        self.count += result[1]
        return result[0]


def _bytes(payload: Any) -> bytes:
    return payload.data if isinstance(payload, BlobValue) else decode_bytes(payload)


def _strings_of(data: bytes) -> Iterator[str | bytes]:
    """Return the strings of a pickle, without unpickling it."""
    with block_forks():
        import pickletools  # slow to load

    for _, argument, _ in pickletools.genops(data):
        if isinstance(argument, (str, bytes)):
            yield argument
        elif isinstance(argument, bytearray):
            yield bytes(argument)


def _texts_of(array: Any) -> Iterator[str | bytes]:
    """Return the texts of an array; nothing for numbers of more than one byte."""
    dtype, data = array["dtype"], _bytes(array["data"])
    form = _TEXT_DTYPE.fullmatch(dtype) if isinstance(dtype, str) else None
    if form is not None:
        width = int(form[2]) * (4 if form[1] == "U" else 1)
        for at in range(0, len(data), width):
            yield data[at : at + width].replace(b"\0", b"")
    elif not isinstance(dtype, str) or dtype in _BYTE_DTYPES or "V" in dtype:
        yield data
        yield data.replace(b"\0", b"")
