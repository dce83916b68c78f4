"""Runs each trial in its own process, from a worker of an executor. Owns its files and its end.

A trial that hangs, is killed or exhausts memory takes down its own process, not the worker.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

from agent_checkpoint.backends.os_support.posix import open_private
from agent_checkpoint.errors import CheckpointError, WorkspaceError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.session.explore.trial_process import JOB, OUTPUT, PAYLOAD, RESULT
from agent_checkpoint.session.explore.trial_start import ForkedTrial, TrialProcess, start_trial
from agent_checkpoint.workspace.fork.drivers import begin_fork, end_fork, is_gone
from agent_checkpoint.workspace.fork.isolated import is_same_machine, private_forks_dir
from agent_checkpoint.workspace.fork.namespace_view import end_view
from agent_checkpoint.workspace.fork.overlay_mount import remove_tree

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_TAIL = 4000
_WATCHDOG = "agent-checkpoint: explorer watchdog"


class Job(NamedTuple):
    """One trial, for a worker that may be on another machine."""

    payload: bytes
    """The strategy, the variant, the agent and the parts, pickled."""
    spec: dict[str, Any]
    """The options of the trial process, as JSON."""
    owner: dict[str, str]
    """The process that called `explore`: when it exits, the trial is stopped."""
    timeout: float | None


def run_in_worker(job: Job) -> dict[str, Any]:
    """Run a trial in its own process; return its result as JSON."""
    _exit_with(job.owner)
    began = time.monotonic()
    view = job.spec["view"]
    if view is not None and is_same_machine(view):
        _discard_attempt(Path(view["private"]), view["name"])
        result = _run(job, job.spec, Path(view["private"]), view["name"])
    else:
        try:
            result = _run_without_view(job)
        except CheckpointError as error:
            result = {"error": f"No directory for the files of the trial: {error}"}
    result.setdefault("seconds", time.monotonic() - began)
    return result


def _exit_with(owner: dict[str, str]) -> None:
    """Exit this worker when its parent, the exploring process, is killed.

    Workers of a `ProcessPoolExecutor` would otherwise wait for the next job forever.
    """
    is_ours = str(os.getppid()) == owner["pid"] and not is_gone(owner)
    if not is_ours or any(thread.name == _WATCHDOG for thread in enumerate_threads()):
        return

    def watch() -> None:
        while not is_gone(owner):
            time.sleep(_POLL_SECONDS)
        time.sleep(_GRACE_SECONDS)  # lets a running trial be stopped and cleaned up first
        os._exit(1)

    Thread(target=watch, name=_WATCHDOG, daemon=True).start()


def _discard_attempt(private: Path, view: str) -> None:
    """Remove the files of an earlier attempt: executors run a job again if its worker dies."""
    if (private / JOB).exists():
        end_view(view)
        for path in private.iterdir():
            remove_tree(path) if path.is_dir() else path.unlink()


def _run_without_view(job: Job) -> dict[str, Any]:
    """Run a trial that restores its files from the store."""
    beside = private_forks_dir()
    places = begin_fork(beside.parent / "forks", beside)
    try:
        spec = {**job.spec, "view": None}
        if spec["has_files"]:
            places.files.mkdir(mode=0o700)
            spec["files"] = str(places.files)
        return _run(job, spec, places.private, None)
    except OSError as error:
        raise WorkspaceError(f"{places.private} cannot be written ({error.strerror}).") from error
    finally:
        end_fork(places)


def _run(job: Job, spec: dict[str, Any], private: Path, view: str | None) -> dict[str, Any]:
    with open(private / PAYLOAD, "wb", opener=open_private) as file:
        file.write(job.payload)
    with open(private / JOB, "w", opener=open_private) as file:
        file.write(json.dumps(spec))
    cwd = spec["cwd"] if Path(spec["cwd"]).is_dir() else "/"
    process = start_trial(spec["server"], private, cwd)
    end = None
    try:
        end = _wait(process, job)
    finally:
        status = process.end()
        if view is not None:
            end_view(view)
    return {**_result(private, status, end), "is_view_ended": view is not None}


def _wait(process: TrialProcess | ForkedTrial, job: Job) -> str | None:
    """Wait for the process; return the reason if it has to be killed."""
    deadline = None if job.timeout is None else time.monotonic() + job.timeout
    while process.wait(_POLL_SECONDS) is None:
        if deadline is not None and time.monotonic() >= deadline:
            return f"Timed out after {job.timeout:g} s and was killed."
        if is_gone(job.owner):
            return "The process that called explore() has exited."
    return None


def _result(private: Path, status: int | None, end: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    output = ""
    with suppress(FileNotFoundError, ValueError):  # no result, or the directory was removed
        output = _tail_of(private / OUTPUT)
        result = dict(json.loads((private / RESULT).read_text()))
    result["output"] = output
    if end is None and "error" not in result:
        end = _exit_reason(status)
    if end is not None:
        result["error"] = end + (f"\n{result['output']}" if result["output"] else "")
    return result


def _tail_of(path: Path) -> str:
    """Return the end of the output, which may be larger than memory."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _TAIL, 0))
        text = file.read(_TAIL).decode(errors="replace")
    return text if size <= _TAIL else f"[the last {_TAIL:,} of {size:,} bytes]\n{text}"


def _signal_name(number: int) -> str:
    """Return the name of a signal; Python has none for most real-time signals."""
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
        more = ", possibly out of memory" if name == "SIGKILL" else ""
        return f"The process was killed by {name}{more}."
    return f"The process exited with status {status} before the strategy finished."
