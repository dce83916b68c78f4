"""Trials in processes of their own, started by the workers of an executor. Owns one's life and end.

A trial that hangs, is killed or eats all memory takes its own process along, not the worker's.

    <private>/job           what to do, as JSON, and the parcel beside it
    <private>/output        what it wrote to its standard output and error
    <private>/result        what came of it, as JSON
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any, NamedTuple

from agent_checkpoint.backends.disk.posix import open_private
from agent_checkpoint.errors import CheckpointError, WorkspaceError
from agent_checkpoint.workspace.fork.drivers import begin_fork, end_fork, is_gone
from agent_checkpoint.workspace.fork.isolated import is_same_machine, private_forks_dir
from agent_checkpoint.workspace.fork.namespace_view import end_view, own_program

JOB, PAYLOAD, OUTPUT, RESULT = "job", "parcel", "output", "result"
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_TAIL = 4000
_WATCHDOG = "agent-checkpoint: watches who explores"
_CHILD = "agent_checkpoint.session.explore.trial_process"


class Job(NamedTuple):
    """One trial, for a worker that may be on another machine."""

    payload: bytes
    """The strategy, its variant, the agent and the parts."""
    told: dict[str, Any]
    """What the process of the trial is told, as JSON."""
    owner: dict[str, str]
    """The process that explores: without it, nobody waits for the result."""
    timeout: float | None


def run_in_worker(job: Job) -> dict[str, Any]:
    """Run a trial in a process of its own to its end, and return plain JSON about it."""
    _exit_with(job.owner)
    began = time.monotonic()
    view = job.told["view"]
    if view is not None and is_same_machine(view):
        found = _run(job, job.told, Path(view["private"]), view["name"])
    else:
        try:
            found = _run_without_view(job)
        except CheckpointError as error:
            found = {"error": f"It has no place for its files: {error}"}
    found.setdefault("seconds", time.monotonic() - began)
    return found


def _exit_with(owner: dict[str, str]) -> None:
    """Have this worker end if the one who explores is killed, and it was started by that.

    Those of a `ProcessPoolExecutor` would wait for ever for their next job.
    """
    is_ours = str(os.getppid()) == owner["pid"] and not is_gone(owner)
    if not is_ours or any(thread.name == _WATCHDOG for thread in enumerate_threads()):
        return

    def watch() -> None:
        while not is_gone(owner):
            time.sleep(_POLL_SECONDS)
        time.sleep(_GRACE_SECONDS)  # for a trial that is under way to be ended in order
        os._exit(1)

    Thread(target=watch, name=_WATCHDOG, daemon=True).start()


def _run_without_view(job: Job) -> dict[str, Any]:
    """Run a trial that gets its files from the store."""
    beside = private_forks_dir()
    places = begin_fork(beside.parent / "forks", beside)
    try:
        told = {**job.told, "view": None}
        if told["has_files"]:
            places.files.mkdir(mode=0o700)
            told["files"] = str(places.files)
        return _run(job, told, places.private, None)
    except OSError as error:
        raise WorkspaceError(f"{places.private} cannot be written ({error.strerror}).") from error
    finally:
        end_fork(places)


def _run(job: Job, told: dict[str, Any], private: Path, view: str | None) -> dict[str, Any]:
    with open(private / PAYLOAD, "wb", opener=open_private) as file:
        file.write(job.payload)
    with open(private / JOB, "w", opener=open_private) as file:
        file.write(json.dumps({**told, "parent": os.getpid()}))
    command = [*own_program(_CHILD), str(private)]
    with open(private / OUTPUT, "wb", opener=open_private) as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=told["cwd"] if Path(told["cwd"]).is_dir() else "/",
            start_new_session=True,
        )
    end = None
    try:
        end = _wait(process, job)
    finally:
        _end_all(process, view)
    return _result(private, process.returncode, end)


def _wait(process: subprocess.Popen[bytes], job: Job) -> str | None:
    """Wait for the end; return why it has to be ended from outside, if it has."""
    deadline = None if job.timeout is None else time.monotonic() + job.timeout
    while True:
        try:
            process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if deadline is not None and time.monotonic() >= deadline:
                return f"It was not done after {job.timeout:g} s, and was killed."
            if is_gone(job.owner):
                return "The process that explores is gone."
        else:
            return None


def _end_all(process: subprocess.Popen[bytes], view: str | None) -> None:
    """End the process and all that it has started and left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if view is not None:
        end_view(view)


def _result(private: Path, status: int | None, end: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    output = ""
    with suppress(FileNotFoundError, ValueError):  # it told nothing, or all of it is taken away
        output = _tail_of(private / OUTPUT)
        found = dict(json.loads((private / RESULT).read_text()))
    found["output"] = output
    if end is None and "error" not in found:
        end = _exit_reason(status)
    if end is not None:
        found["error"] = end + (f"\n{found['output']}" if found["output"] else "")
    return found


def _tail_of(path: Path) -> str:
    """Return the end of what a trial has printed, which may be more than fits into memory."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _TAIL, 0))
        text = file.read(_TAIL).decode(errors="replace")
    return text if size <= _TAIL else f"[the last {_TAIL:,} of {size:,} bytes]\n{text}"


def _signal_name(number: int) -> str:
    """Return the name of a signal; most of the real-time ones have none in Python."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", None)
        last = getattr(signal, "SIGRTMAX", None)
        if first is not None and last is not None and first <= number <= last:
            return f"SIGRTMIN+{number - first}"
        return f"the signal {number}"


def _exit_reason(status: int | None) -> str:
    if status is not None and status < 0:
        name = _signal_name(-status)
        more = ", as it is when memory runs out" if name == "SIGKILL" else ""
        return f"Its process was killed by {name}{more}."
    return f"Its process ended with the status {status} before the strategy did."
