"""Opens backends by name or URL; the registry of URL schemes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.backends.wrappers.url_options import WRAPPER_OPTIONS, split_options
from agent_checkpoint.errors import Hint, InvalidInputError
from agent_checkpoint.options import BackendName, Compression, Durability
from agent_checkpoint.records import short_repr

if TYPE_CHECKING:
    from types import ModuleType

    from agent_checkpoint.backends.wrappers.encryption_keys import EncryptionKey

ENTRY_POINTS = "agent_checkpoint.backends"
"""The entry point group for URL schemes: the name is the scheme, the value `(url) -> Backend`."""


def open_store(
    store: str | os.PathLike[str] | Backend | None,
    backend: BackendName | str | Backend | None,
    path: str | os.PathLike[str] | None,
    *,
    encryption_key: EncryptionKey | None = None,
    **options: Any,
) -> Backend:
    """Open the backend that the arguments select; without arguments, an in-memory backend.

    Args:
        store: a path, a store URL or a Backend.
        backend: a short name, a store URL or a Backend, instead of `store`.
        path: the directory, with a short name.
        encryption_key: encrypts the store; see `EncryptedBackend`.
        options: the options of `open_backend`, with a path or a short name.

    Raises:
        InvalidInputError: the arguments select no backend, or conflict.
    """
    if store is not None:
        if backend is not None or path is not None:
            raise InvalidInputError("Pass a store, or backend= and path=, not both.")
        return open_named(store, encryption_key=encryption_key, **options)
    if backend is None and path is not None:
        raise InvalidInputError('path= needs a backend: backend="sqlite" or backend="file".')
    if backend is None or (isinstance(backend, str) and "://" not in backend):
        opened = open_backend(backend or "memory", path, **options)
        return wrap_backend(opened, _given(encryption_key=encryption_key))
    if path is not None:
        raise InvalidInputError("path= needs the short name of a backend.")
    if not isinstance(backend, (str, Backend)):
        raise InvalidInputError(
            f"{short_repr(backend)} is not a backend name, a store URL or a Backend."
        )
    return open_named(backend, encryption_key=encryption_key, **options)


def open_named(
    store: str | os.PathLike[str] | Backend | None,
    *,
    encryption_key: EncryptionKey | None = None,
    **options: Any,
) -> Backend:
    """Open a store by path, URL or Backend.

    A path is the directory of an SQLite store; None is the default store. Options are those of
    `open_backend`, for a path.

    Raises:
        InvalidInputError: `store` is of another type, or is not valid.
    """
    if isinstance(store, str) and store in _BUILT_IN:
        raise InvalidInputError(
            f"{store!r} is the name of a backend, not a store.",
            hint=Hint(f'Pass backend="{store}", or ./{store} for a directory.'),
        )
    encryption = _given(encryption_key=encryption_key)
    if (
        store is None
        or isinstance(store, os.PathLike)
        or (isinstance(store, str) and "://" not in store)
    ):
        return wrap_backend(open_backend("sqlite", store, **options), encryption)
    given = list(_given(**options))
    if isinstance(store, str):
        if given:
            raise InvalidInputError(f"Put {', '.join(given)} into the URL: …?{given[0]}=….")
        return open_url(store, encryption_key)
    if not isinstance(store, Backend):
        raise InvalidInputError(
            "A store is a path, a store URL, a Backend or a CheckpointManager, not "
            f"{short_repr(store)}."
        )
    if given:
        raise InvalidInputError(
            f"{', '.join(given)} cannot be combined with a Backend instance: pass the option "
            "to its constructor."
        )
    return wrap_backend(store, encryption)


def as_shared(store: str) -> str:
    """Return the URL that opens a store, given by path or URL, as a shared store."""
    if "://" not in store:
        with block_forks():
            from agent_checkpoint.backends.os_support.posix import check_path, store_url

        return store_url("sqlite", check_path(store).absolute(), shared=True)
    if store.partition("?")[2].split("&").count("shared=1"):
        return store
    return f"{store}{'&' if '?' in store else '?'}shared=1"


def open_backend(
    name: str,
    path: str | os.PathLike[str] | None = None,
    *,
    durability: Durability | None = None,
    min_free: int | None = None,
    max_bytes: int | None = None,
    compression: Compression | None = None,
    shared: bool | None = None,
) -> Backend:
    """Open a backend of this package by its short name: `memory`, `file` or `sqlite`.

    Args:
        name: the name of the backend.
        path: the directory of a file or SQLite store; for SQLite it defaults to `default_store()`.
        durability: `full` or `fast`, for an SQLite store.
        min_free: bytes to leave free on the file system; see `SpaceLimits`.
        max_bytes: the maximum total size of the store; unlimited by default.
        compression: `zlib` or `zstd`, used when a file or SQLite store is created.
        shared: accept a directory that other users own or can write. Entries are signed with an
            HMAC under the user's secret, and entries without a valid HMAC are rejected.

    Raises:
        InvalidInputError: the name is unknown, a path is missing or not allowed, the backend has
            no such option, or other users own or can write the directory.
    """
    options = _given(min_free=min_free, max_bytes=max_bytes, compression=compression, shared=shared)
    if name == "memory":
        if path is not None:
            raise InvalidInputError("The memory backend takes no path.")
        _refuse_options(name, {**_given(durability=durability), **options})
        return _open_memory("memory://")
    if name == "file":
        _refuse_options(name, _given(durability=durability))
        if path is None:
            raise InvalidInputError('The file backend needs a directory: path="checkpoints".')
        with block_forks():
            from agent_checkpoint.backends.file import FileBackend

        return FileBackend(path, **options)
    if name == "sqlite":
        with block_forks():
            from agent_checkpoint.backends.default_paths import default_store
            from agent_checkpoint.backends.sqlite import SQLiteBackend

        directory = default_store() if path is None else path
        return SQLiteBackend(directory, **_given(durability=durability), **options)
    raise InvalidInputError(
        f"Unknown backend {short_repr(name)}: use 'memory', 'file', 'sqlite' or a store URL."
    )


def open_url(url: str, encryption_key: EncryptionKey | None = None) -> Backend:
    """Open the backend for a store URL, such as `file:///var/checkpoints`.

    Options of `open_backend` follow a question mark: `sqlite:///var/store?durability=fast`. The
    options of wrappers work with every scheme; the backend does not see them.

    Raises:
        InvalidInputError: `url` is not a URL, no backend is registered for its scheme, or an
            option is invalid.
    """
    url, options = split_options(url)
    if encryption_key is not None:
        if any(name in options for name in _KEY_OPTIONS):
            raise InvalidInputError("Pass encryption_key=, or name the key in the URL, not both.")
        options["encryption_key"] = encryption_key
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise InvalidInputError(f"{short_repr(url)} is not a store URL such as file:///path.")
    opener = _BUILT_IN.get(scheme) or _registered(scheme)
    if opener is None:
        raise InvalidInputError(
            f"No backend is registered for {scheme}:// URLs. Built-in schemes are memory://, "
            "file://, sqlite:// and postgresql://. For other schemes, install the package of the "
            "backend."
        )
    return wrap_backend(opener(url), options)


def wrap_backend(backend: Backend, options: Mapping[str, Any]) -> Backend:
    """Wrap a backend as the options of a URL say: retry innermost, read-only outermost.

    Args:
        backend: the backend; it is closed if an option is invalid.
        options: those of `WRAPPER_OPTIONS`, parsed; or `encryption_key`.

    Raises:
        InvalidInputError: an option is invalid.
    """
    if not options:
        return backend
    try:
        with block_forks():
            from agent_checkpoint.backends.wrappers.counting import CountingBackend
            from agent_checkpoint.backends.wrappers.object_cache import CacheBackend
            from agent_checkpoint.backends.wrappers.read_only import ReadOnlyBackend
            from agent_checkpoint.backends.wrappers.retry import RetryBackend

        if "retry" in options:
            backend = RetryBackend(backend, attempts=options["retry"])
        if "cache" in options:
            max_bytes = _given(max_bytes=options.get("cache_bytes"))
            backend = CacheBackend(backend, options["cache"], **max_bytes)
        elif "cache_bytes" in options:
            raise InvalidInputError("cache_bytes needs a directory: cache=/absolute/path.")
        # Above the cache, which holds ciphertext.
        keys = [options[name] for name in _KEY_OPTIONS if options.get(name) is not None]
        if keys:
            backend = encryption().EncryptedBackend(backend, keys[0] if len(keys) == 1 else keys)
        if options.get("count"):
            backend = CountingBackend(backend)
        if options.get("read_only"):
            backend = ReadOnlyBackend(backend)
    except BaseException:
        backend.close()
        raise
    return backend


def encryption() -> ModuleType:
    """Import the module of the wrapper that encrypts. Raises InvalidInputError."""
    try:
        with block_forks():
            from agent_checkpoint.backends.wrappers import encryption as module
    except ImportError as error:
        raise InvalidInputError(
            f"An encrypted store needs the package {error.name or 'cryptography'}. Run: "
            "pip install 'agent-checkpoint[encryption]'"
        ) from error
    return module


def _open_memory(url: str) -> Backend:
    with block_forks():
        from agent_checkpoint.backends.memory import MemoryBackend

    return MemoryBackend()


def _open_directory(url: str) -> Backend:
    with block_forks():
        from urllib.parse import unquote, urlsplit  # slow to load

    scheme = url.partition(":")[0]
    try:
        parts = urlsplit(url)
    except ValueError:  # such as file://[
        parts = urlsplit("")
    if parts.netloc not in ("", "localhost") or not parts.path or parts.fragment:
        raise InvalidInputError(
            f"{short_repr(url)} must be {scheme}:///absolute/path, with %3f and %23 for ? and #."
        )
    # Four slashes, as other libraries write an absolute path: the first two mean nothing to POSIX.
    path = "/" + unquote(parts.path).lstrip("/")
    return open_backend(scheme, path, **_options(parts.query))


def _open_postgres(url: str) -> Backend:
    try:
        with block_forks():
            from agent_checkpoint.backends.postgres import PostgresBackend
    except ImportError as error:
        raise InvalidInputError(
            f"A PostgreSQL store needs the package {error.name or 'psycopg'} with libpq. Run: "
            "pip install 'agent-checkpoint[postgres]'"
        ) from error
    return PostgresBackend(url)


def _options(query: str) -> dict[str, Any]:
    """Parse the options of a URL. Raises InvalidInputError."""
    options: dict[str, Any] = {}
    for item in query.split("&") if query else ():
        option, _, value = item.partition("=")
        if option not in _OPTIONS or option in options:
            valid = ", ".join((*_OPTIONS, *WRAPPER_OPTIONS))
            raise InvalidInputError(
                f"{short_repr(item)} is not an option of a store URL, or is repeated. Valid "
                f"options: {valid}. Write a ? in the path as %3f."
            )
        try:
            options[option] = _OPTIONS[option](value)
        except (ValueError, KeyError):
            expected = "0 or 1" if option == "shared" else "a number of bytes"
            raise InvalidInputError(f"{short_repr(item)} must be {expected}.") from None
    return options


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None; the backend has defaults for the others."""
    return {option: value for option, value in options.items() if value is not None}


def _refuse_options(name: str, options: dict[str, Any]) -> None:
    if options:
        raise InvalidInputError(f"The {name} backend has no option {', '.join(options)}.")


_KEY_OPTIONS = (
    "encryption_key",
    "encryption_key_file",
    "encryption_key_env",
    "old_encryption_key_file",
)
"""The options with keys, the current key first."""
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "durability": str,
    "min_free": int,
    "max_bytes": int,
    "compression": str,
    "shared": {"0": False, "1": True}.__getitem__,
}
_BUILT_IN: dict[str, Callable[[str], Backend]] = {
    "memory": _open_memory,
    "file": _open_directory,
    "sqlite": _open_directory,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}


def _registered(scheme: str) -> Callable[[str], Backend] | None:
    with block_forks():
        from importlib.metadata import entry_points  # slow, and needed for other schemes only

    points = entry_points()
    if hasattr(points, "select"):
        chosen = list(points.select(group=ENTRY_POINTS, name=scheme))
    else:  # Python 3.9 returns a dict of lists
        chosen = [point for point in points.get(ENTRY_POINTS, ()) if point.name == scheme]
    return chosen[0].load() if chosen else None
