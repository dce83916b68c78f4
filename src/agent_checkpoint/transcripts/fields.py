"""Reads and rewrites messages of any kind: dicts, other mappings, objects of client libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

_MAX_JSON_DEPTH = 80
_MAX_REPEATS = 10_000


class Visits:
    """Bounds the walk through a value whose parts refer to each other."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._path: set[int] = set()
        self._seen: dict[int, Any] = {}
        self._repeats = 0

    def enter(self, container: Any) -> bool:
        """Return whether to walk through a container, until `leave`.

        Not if it contains itself, is nested too deeply, or if shared containers were entered so
        often that the walk would not end in reasonable time.
        """
        key = id(container)
        self._repeats += key in self._seen
        if key in self._path or len(self._path) >= self._max_depth or self._repeats > _MAX_REPEATS:
            return False
        self._seen[key] = container  # kept, so that no other container gets its id
        self._path.add(key)
        return True

    def leave(self, container: Any) -> None:
        """End the walk through a container."""
        self._path.discard(id(container))


def get(source: Any, *names: str) -> Any:
    """Return the first of these fields that is not None, by key or by attribute."""
    for name in names:
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if value is not None:
            return value
    return None


def fields(source: Any) -> dict[str, Any]:
    """Return the fields that are set, as a new dict with the same values."""
    if isinstance(source, Mapping):
        return dict(source)
    if hasattr(source, "model_fields_set"):  # a pydantic model
        known = type(source).model_fields
        named = {name: known[name].alias or name for name in known}
        values = {
            named[name]: getattr(source, name) for name in source.model_fields_set & set(known)
        }
        return {**values, **(source.model_extra or {})}
    return dict(vars(source)) if hasattr(source, "__dict__") else {}


def rewritten(source: Any, *removed: str, **values: Any) -> Any:
    """Return a copy with other values: of the same class if it is a model that accepts them."""
    changed = {**fields(source), **values}
    for name in removed:
        changed.pop(name, None)
    if hasattr(source, "model_fields_set"):
        try:
            return type(source).model_validate(changed)
        except ValueError:  # clients do not validate replies, so a reply may not fit its own class
            return changed
    return changed


def plain(source: Any, *, defaults: bool = False) -> Any:
    """Return a value as dicts, lists and scalars, as it is sent; other objects are left as is.

    A model of a client library becomes the fields that the server sent; `defaults` adds the others.
    """
    if isinstance(source, Mapping):
        return {name: plain(value, defaults=defaults) for name, value in source.items()}
    if isinstance(source, Sequence) and not isinstance(source, (str, bytes, bytearray)):
        return [plain(item, defaults=defaults) for item in source]
    if hasattr(source, "model_dump") and not isinstance(source, type):
        return source.model_dump(mode="json", exclude_unset=not defaults, warnings=False)
    if is_dataclass(source) and not isinstance(source, type):
        named = {field.name: getattr(source, field.name) for field in dataclass_fields(source)}
        return plain(named, defaults=defaults)
    return source


def json_value(source: Any, describe: Callable[[Any], Any]) -> Any:
    """Return any value as JSON; what JSON does not have is described, and keys become text."""
    try:
        return json.loads(json.dumps(plain(source), default=describe, allow_nan=False))
    except Exception:  # user classes may raise anything
        return _converted(source, describe, Visits(_MAX_JSON_DEPTH))


def _converted(source: Any, describe: Callable[[Any], Any], visits: Visits) -> Any:
    if source is None or type(source) in (str, int, bool):
        return source
    is_dict = isinstance(source, Mapping)
    if not is_dict and not isinstance(source, (list, tuple)):
        try:
            return json.loads(json.dumps(plain(source), default=describe, allow_nan=False))
        except Exception:  # user classes may raise anything
            return _text(source, describe)
    if not visits.enter(source):
        return f"<{type(source).__name__}>"
    try:
        if is_dict:
            return {
                name if isinstance(name, str) else _text(name, str): _converted(
                    item, describe, visits
                )
                for name, item in source.items()
            }
        return [_converted(item, describe, visits) for item in source]
    finally:
        visits.leave(source)


def _text(source: Any, describe: Callable[[Any], Any]) -> str:
    try:
        return str(source) if isinstance(source, float) else str(describe(source))
    except Exception:  # user classes may raise anything
        return f"<{type(source).__name__}>"
