"""What a trial in another process needs, as bytes. Owns packing and unpacking it.

Functions and classes of the main program are taken along by cloudpickle, if that is installed.
Without it the main program is loaded once more there, as `multiprocessing` does: it has to guard
what it does with `if __name__ == "__main__"`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import InvalidInputError


def encode_payload(content: Mapping[str, Any]) -> bytes:
    """Return bytes that `unpack` makes the same of, in another process.

    Args:
        content: what to take along, by what a person calls it.

    Raises:
        InvalidInputError: something cannot be taken along.
    """
    try:
        with block_forks():
            import cloudpickle
    except ImportError:
        dumps, main = pickle.dumps, _main_program()
        hint = ", or install cloudpickle"
    else:
        dumps, main, hint = cloudpickle.dumps, {}, ""
    try:
        return pickle.dumps((_import_path(), main, dumps(dict(content))))
    except Exception as error:
        raise InvalidInputError(
            f"{_culprit(content, dumps)} cannot be sent to another process ({error}). Define "
            "functions and classes at the top of a module, pass agent=, a function that makes the "
            f"agent{hint}."
        ) from error


def _culprit(content: Mapping[str, Any], dumps: Callable[[Any], bytes]) -> str:
    for name, item in content.items():
        try:
            dumps(item)
        except Exception:
            return name[0].upper() + name[1:]
    return "All of it together"


def decode_payload(payload: bytes) -> Any:
    """Return what was packed. Runs code: only for bytes that this user's own process has made.

    Raises whatever a part of it raises when it is loaded.
    """
    path, main, content = pickle.loads(payload)  # noqa: S301 - see above
    # In that order: what is found first there must be found first here.
    sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
    if main:
        with block_forks():
            from multiprocessing import spawn

        spawn.prepare(main)
    return pickle.loads(content)  # noqa: S301 - see above


def _import_path() -> list[str]:
    """Return where modules are found; a process that runs in another directory finds them, too."""
    return [str(Path(place).absolute()) for place in sys.path]


def _main_program() -> dict[str, Any]:
    """Return what loads the main program in another process; nothing if there is no file of it."""
    with block_forks():
        from multiprocessing import spawn

    found = spawn.get_preparation_data("trial")
    return {name: found[name] for name in found if name.startswith("init_main_from")}
