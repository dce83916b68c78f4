"""The options of wrappers in a store URL, such as `?retry=5&read_only=1`.

Does not depend on the wrappers: each adds its own options to the URL of the wrapped backend.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.backends.os_support.posix import url_quoted
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr

if TYPE_CHECKING:
    from agent_checkpoint.backends.wrappers.encryption_keys import EnvironmentKey


def split_options(url: str) -> tuple[str, dict[str, Any]]:
    """Split a store URL into the URL of the wrapped backend and the options of wrappers.

    Raises:
        InvalidInputError: the value of an option is invalid, or an option is repeated.
    """
    head, _, query = url.partition("?")
    items = query.split("&")
    options: dict[str, Any] = {}
    others: list[str] = []
    for item in items:
        name, _, value = item.partition("=")
        if name not in WRAPPER_OPTIONS:
            others.append(item)
            continue
        if name in options:
            raise InvalidInputError(f"The option {name} is repeated in the store URL.")
        parse, expected = WRAPPER_OPTIONS[name]
        try:
            options[name] = parse(value)
        except (ValueError, KeyError):
            raise InvalidInputError(f"{short_repr(item)} must be {expected}.") from None
    if not options:
        return url, options
    return f"{head}?{'&'.join(others)}" if others else head, options


def with_options(url: str | None, **options: object) -> str | None:
    """Return a store URL with options, which replace options of the same name; None for None."""
    if url is None:
        return None
    head, _, query = url.partition("?")
    items = [item for item in query.split("&") if item and item.partition("=")[0] not in options]
    items += [f"{name}={url_quoted(str(value))}" for name, value in options.items()]
    return f"{head}?{'&'.join(items)}"


def _absolute_path(value: str) -> Path:
    with block_forks():
        from urllib.parse import unquote  # slow to load

    path = Path(unquote(value, errors="surrogateescape"))
    if not path.is_absolute():
        raise ValueError(value)
    return path


def _key_variable(value: str) -> EnvironmentKey:
    with block_forks():
        from agent_checkpoint.backends.wrappers.encryption_keys import EnvironmentKey

    if not value.isidentifier():
        raise ValueError
    return EnvironmentKey(value)


_FLAG = ({"0": False, "1": True}.__getitem__, "0 or 1")

WRAPPER_OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "retry": (int, "a number of attempts"),
    "cache": (_absolute_path, "an absolute path, with %26 for &"),
    "cache_bytes": (int, "a number of bytes"),
    "encryption_key_file": (_absolute_path, "an absolute path, with %26 for &"),
    "encryption_key_env": (_key_variable, "the name of an environment variable"),
    "old_encryption_key_file": (_absolute_path, "an absolute path, with %26 for &"),
    "count": _FLAG,
    "read_only": _FLAG,
}
"""The options, each with the parser of its value and what the value must be."""
