"""Reads and rewrites messages of any kind: dicts, other mappings, objects of client libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any


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
