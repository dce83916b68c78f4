"""From a name or a URL to a backend. Owns the list of schemes; knows no medium."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import show

ENTRY_POINTS = "agent_checkpoint.backends"
"""Packages register a URL scheme here: the name is the scheme, the value a `(url) -> Backend`."""


def open_backend(name: str, path: str | os.PathLike[str] | None = None) -> Backend:
    """Open a backend of this package by its short name: `memory`, `file` or `sqlite`.

    Raises:
        InvalidInputError: the name is unknown, or a path is missing or makes no sense.
    """
    if name == "memory":
        if path is not None:
            raise InvalidInputError("The memory backend takes no path.")
        return _open_memory("memory://")
    if name not in ("file", "sqlite"):
        raise InvalidInputError(
            f"Unknown backend {show(name)}: use 'memory', 'file', 'sqlite' or a store URL."
        )
    if path is None:
        raise InvalidInputError(f'The {name} backend needs a directory: path="checkpoints".')
    if name == "file":
        from agent_checkpoint.backends.file import FileBackend

        return FileBackend(path)
    from agent_checkpoint.backends.sqlite import SQLiteBackend

    return SQLiteBackend(path)


def open_url(url: str) -> Backend:
    """Open the backend that a store URL names, such as `file:///var/checkpoints`.

    Raises:
        InvalidInputError: the text is not a URL, or no installed package knows its scheme.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise InvalidInputError(
            f"{show(url)} is not a store URL such as file:///path. "
            'For a directory say backend="file", path=….'
        )
    opener = _BUILT_IN.get(scheme) or _registered(scheme)
    if opener is None:
        raise InvalidInputError(
            f"No backend is registered for {scheme}:// URLs. This package knows memory://, "
            "file:// and sqlite://; install the one that brings another."
        )
    return opener(url)


def _open_memory(url: str) -> Backend:
    from agent_checkpoint.backends.memory import MemoryBackend

    return MemoryBackend()


def _open_directory(url: str) -> Backend:
    try:
        parts = urlsplit(url)
    except ValueError:  # such as file://[
        parts = urlsplit("")
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise InvalidInputError(
            f"{show(url)} must be {url.partition(':')[0]}:///absolute/path, with %3f and %23 for "
            "? and #."
        )
    return open_backend(url.partition(":")[0], unquote(parts.path))


_BUILT_IN: dict[str, Callable[[str], Backend]] = {
    "memory": _open_memory,
    "file": _open_directory,
    "sqlite": _open_directory,
}


def _registered(scheme: str) -> Callable[[str], Backend] | None:
    from importlib.metadata import entry_points  # costly, and needed for foreign schemes only

    found = entry_points()
    if hasattr(found, "select"):
        chosen = list(found.select(group=ENTRY_POINTS, name=scheme))
    else:  # Python 3.9 returns a dict of lists
        chosen = [point for point in found.get(ENTRY_POINTS, ()) if point.name == scheme]
    return chosen[0].load() if chosen else None
