"""From what was typed to an exit status. Owns that, and that errors are told in a line or two.

0  done                         3  there is no such thing
1  it failed                    4  refused, or a person said no
2  what was typed is wrong    130  interrupted
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from agent_checkpoint.cli.args import NAME as NAME
from agent_checkpoint.cli.args import WRONG as WRONG
from agent_checkpoint.cli.args import parse
from agent_checkpoint.cli.args import parser_of as parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from agent_checkpoint.cli.command_table import Listed

FAILED, MISSING, REFUSED, INTERRUPTED = 1, 3, 4, 130
_ENCODING = "_AGENT_CHECKPOINT_ENCODING"
"""Set by a process for the one that takes its place: in which encoding to write."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that was typed; return the exit status."""
    _open_all()
    if arguments is None:
        _speak_utf8()
    try:
        chosen = parse(list(sys.argv[1:] if arguments is None else arguments))
        return WRONG if chosen.command is None else _run(chosen)
    except SystemExit as end:  # of the parser
        return end.code if isinstance(end.code, int) else WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has had enough. Python would complain once more when it ends.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _speak_utf8() -> None:
    """Have names of files and arguments be UTF-8, as stores have them, whatever the locale is.

    Python reads them by the locale once, when it starts: in another one it has to start again. What
    is written stays in the encoding of the locale, which the terminal is taken to have.
    """
    encoding = os.environ.pop(_ENCODING, None)
    if encoding is not None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError, LookupError, OSError):
                stream.reconfigure(  # type: ignore[union-attr]
                    encoding=encoding, errors="backslashreplace"
                )
    elif sys.getfilesystemencoding() != "utf-8" and sys.executable:
        os.environ[_ENCODING] = str(getattr(sys.stdout, "encoding", None) or "ascii")
        command = [sys.executable, "-X", "utf8", "-m", "agent_checkpoint", *sys.argv[1:]]
        with suppress(OSError):  # then it goes on as it is
            os.execv(sys.executable, command)  # noqa: S606 - this very program
        del os.environ[_ENCODING]


def _open_all() -> None:
    """Have something for input, output and errors: a file of ours must not take their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # closed by who started us
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 - as long as the process
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def _run(chosen: argparse.Namespace) -> int:
    from agent_checkpoint.cli.output import Out
    from agent_checkpoint.cli.store_location import Places, shared_name
    from agent_checkpoint.errors import CheckpointError

    command: Listed = chosen.command
    try:
        if chosen.shared:
            chosen.store = shared_name(chosen.store)
        out = Out(store=chosen.store)
        chosen.out = out
        places = Places(chosen.store, makes_store=command.makes_store)
        answer = command.load().run(chosen, places)
        if getattr(chosen, "json", False):
            out.json(answer.data)
        else:
            answer.show(out)
        out.flush()
    except CheckpointError as error:
        _complain(chosen, str(error))
        return status_of(error)
    except BrokenPipeError:
        raise
    except (OSError, RecursionError, MemoryError) as error:
        _complain(chosen, f"{type(error).__name__}: {error}")
        return FAILED
    return answer.status


def _complain(chosen: argparse.Namespace, message: str) -> None:
    from agent_checkpoint.cli.hints import in_commands
    from agent_checkpoint.formatting import escape_text

    message = in_commands(message, chosen.store, can_force=hasattr(chosen, "force"))
    text = f"{NAME}: {escape_text(message)}\n"
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))


def status_of(error: Exception) -> int:
    """Return the exit status of an error."""
    from agent_checkpoint.errors import (
        ConflictError,
        InvalidInputError,
        NotFoundError,
        RollbackRefusedError,
        UnsafeWorkspaceError,
    )

    if isinstance(error, NotFoundError):
        return MISSING
    if isinstance(error, (ConflictError, RollbackRefusedError, UnsafeWorkspaceError)):
        return REFUSED
    return WRONG if isinstance(error, InvalidInputError) else FAILED
