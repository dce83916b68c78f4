"""The payload of a trial in another process: strategy, variant, agent and parts, pickled.

cloudpickle, if installed, pickles functions and classes of the main program by value. Otherwise the
trial imports the main program again, as `multiprocessing` does, and the program needs an
`if __name__ == "__main__"` guard.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import InvalidInputError


def encode_payloads(contents: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return bytes for `decode_payload` in another process, for each content.

    Args:
        contents: the values of each, by the names that error messages use.

    Raises:
        InvalidInputError: a value cannot be pickled.
    """
    try:
        with block_forks():
            import cloudpickle
    except ImportError:
        dumps, main = pickle.dumps, _main_program()
        hint = ", or install cloudpickle"
    else:
        dumps, main, hint = cloudpickle.dumps, {}, ""
    path, payloads = _import_path(), []
    for content in contents:
        try:
            payloads.append(pickle.dumps((path, main, dumps(dict(content)))))
        except Exception as error:
            raise InvalidInputError(
                f"{_culprit(content, dumps)} cannot be pickled for another process ({error}). "
                "Define functions and classes at the top level of a module, pass agent= as a "
                f"function that returns the agent{hint}."
            ) from error
    return payloads


def _culprit(content: Mapping[str, Any], dumps: Callable[[Any], bytes]) -> str:
    for name, item in content.items():
        try:
            dumps(item)
        except Exception:
            return name[0].upper() + name[1:]
    return "The payload"


def decode_payload(payload: bytes) -> Any:
    """Return the content of a payload. Unpickling runs code: only for bytes of this user's process.

    Raises what unpickling raises.
    """
    sender_path, main, content = pickle.loads(payload)  # noqa: S301 - see above
    # The sender's paths come first, so that modules resolve as they do there.
    sys.path[:] = [*sender_path, *(path for path in sys.path if path not in sender_path)]
    if main:
        with block_forks():
            from multiprocessing import spawn

        spawn.prepare(main)
    return pickle.loads(content)  # noqa: S301 - see above


def _import_path() -> list[str]:
    """Return `sys.path` with absolute entries, for a process in another directory."""
    return [str(Path(entry).absolute()) for entry in sys.path]


def _main_program() -> dict[str, Any]:
    """Return the data with which another process imports the main program; empty without a file."""
    with block_forks():
        from multiprocessing import spawn

    prepared = spawn.get_preparation_data("trial")
    return {name: prepared[name] for name in prepared if name.startswith("init_main_from")}
