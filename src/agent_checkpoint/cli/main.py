"""The entry point of the command. Owns exit statuses and the printing of errors.

0  success        3  not found
1  failure        4  refused, or not confirmed
2  usage error  130  interrupted
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from agent_checkpoint.cli.args import NAME, USAGE_ERROR, Args, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_checkpoint.cli.command_table import CommandRow
    from agent_checkpoint.cli.output import CommandResult

FAILED, MISSING, REFUSED, INTERRUPTED = 1, 3, 4, 130
_ENCODING = "_AGENT_CHECKPOINT_ENCODING"
"""Variable with the output encoding, for the process that replaces this one by exec."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    _open_all()
    if arguments is None:
        _speak_utf8()
    try:
        chosen = parse(list(sys.argv[1:] if arguments is None else arguments))
        return USAGE_ERROR if chosen.command is None else _run(chosen, chosen.command)
    except SystemExit as end:  # of the parser
        return end.code if isinstance(end.code, int) else USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; Python would report it again at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _speak_utf8() -> None:
    """Restart Python in UTF-8 mode if the locale has another encoding, because names are UTF-8.

    Python chooses the encoding of arguments and file names at its start. The output stays in the
    encoding of the locale, which is that of the terminal.
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
        with suppress(OSError):  # continue in the encoding of the locale
            os.execv(sys.executable, command)  # noqa: S606 - this program
        del os.environ[_ENCODING]


def _open_all() -> None:
    """Open descriptors 0 to 2 if they are closed, so that no other file gets their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # closed by the parent process
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def _run(chosen: Args, command: CommandRow) -> int:
    from agent_checkpoint.cli.output import Output
    from agent_checkpoint.cli.store_location import StoreLocation, shared_name
    from agent_checkpoint.errors import CheckpointError

    try:
        if chosen.shared:
            chosen.store = shared_name(chosen.store)
        out = Output(store=chosen.store)
        chosen.out = out
        location = StoreLocation(chosen.store, makes_store=command.makes_store)
        answer: CommandResult = command.load().run(chosen, location)
        if getattr(chosen, "json", False):
            out.json(answer.data)
        else:
            answer.show(out)
        out.flush()
    except CheckpointError as error:
        _complain(chosen, error)
        return status_of(error)
    except BrokenPipeError:
        raise
    except (OSError, RecursionError, MemoryError) as error:
        _complain(chosen, error)
        return FAILED
    return answer.status


def _complain(chosen: Args, error: Exception) -> None:
    from agent_checkpoint.cli.hints import error_text
    from agent_checkpoint.formatting import escape_text

    message = error_text(error, chosen.store, can_force=hasattr(chosen, "force"))
    text = f"{NAME}: {escape_text(message)}\n"
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))


def status_of(error: Exception) -> int:
    """Return the exit status for an error."""
    from agent_checkpoint.errors import (
        ConflictError,
        InvalidInputError,
        NotFoundError,
        RevertConflictError,
        RollbackRefusedError,
        UnsafeWorkspaceError,
    )

    if isinstance(error, NotFoundError):
        return MISSING
    refusals = ConflictError, RevertConflictError, RollbackRefusedError, UnsafeWorkspaceError
    if isinstance(error, refusals):
        return REFUSED
    return USAGE_ERROR if isinstance(error, InvalidInputError) else FAILED
