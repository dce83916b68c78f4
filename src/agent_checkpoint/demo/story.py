"""Run the demo step by step. Every step is executed, not simulated."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from agent_checkpoint import InvalidInputError, RollbackRefusedError, Session, Suspended, explore
from agent_checkpoint.demo.agent import KEY, WAYS, open_session, publish, shell, try_way, work
from agent_checkpoint.demo.project import make_project, run_tests

_WORK, _STUMBLE = "work", "stumble"
"""Arguments of the agent processes that the demo starts."""


def main(arguments: list[str]) -> int:
    """Run the demo, or one of its agent processes; return the exit status.

    Raises:
        InvalidInputError: the directory is not empty, or cannot be written.
    """
    parser = argparse.ArgumentParser(prog="agent-checkpoint demo", description=__doc__)
    parser.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--in", dest="home", metavar="DIR", help="an empty directory (default: a temporary one)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.part[:1] in ([_WORK], [_STUMBLE]) and len(chosen.part) == 2:
        work(Path(chosen.part[1]), stumbles=chosen.part[0] == _STUMBLE)
        return 0
    if chosen.part:
        parser.error(f"unknown part {chosen.part[0]}")
    run_demo(_home(chosen.home))
    return 0


def _home(given: str | None) -> Path:
    """Return an empty directory. Raises InvalidInputError."""
    home = Path(given or tempfile.mkdtemp(prefix="agent-checkpoint-demo-")).resolve()
    try:
        home.mkdir(parents=True, exist_ok=True)
        if any(home.iterdir()):
            raise InvalidInputError(f"{home} is not empty. Choose an empty or new directory.")
    except OSError as error:
        raise InvalidInputError(f"Cannot use the directory {home} ({error.strerror}).") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{home} is not writable. Choose another directory.")
    return home


def run_demo(home: Path) -> None:
    """Run all steps in a directory."""
    os.environ["AGENT_CHECKPOINT_PROGRESS"] = "0"  # the demo prints its own progress
    print("A scripted coding agent. It needs no model and no network. Every step is executed.")
    _begin(home)
    _crash_and_resume(home)
    with open_session(home) as session:
        _wreck_and_roll_back(session)
        _explore_and_adopt(session)
        _publish_with_approval(session, home)
        _refuse(session)
    _end(home)


def _begin(home: Path) -> None:
    _title("1. A repository with a bug")
    make_project(home / "project")
    passed, of = run_tests(home / "project")
    _print(f"{home / 'project'}: {passed} of {of} tests pass.")


def _crash_and_resume(home: Path) -> None:
    _title("2. The agent is killed in the middle of a task, and restarted")
    command = [sys.executable, "-m", "agent_checkpoint.demo"]
    _run([*command, _STUMBLE, str(home)], kill_at="half of")
    _print("The file is half written. Another process resumes the session and restarts that task.")
    _run([*command, _WORK, str(home)])


def _wreck_and_roll_back(session: Session) -> None:
    _title("3. A bad command wrecks the files")
    place = _workspace(session)
    shell("rm invoice.py && echo oops > test_invoice.py", str(place))
    _print("$ rm invoice.py && echo oops > test_invoice.py")
    _print(f"files: {_names(place)}")
    report = session.rollback(steps=1)
    _print(f"session.rollback(steps=1): {_names(place)}")
    written = ", ".join(report.files.write) if report.files is not None else ""
    _print(f"Restored {written}. session.undo() would undo the rollback.")


def _explore_and_adopt(session: Session) -> None:
    _title("4. Two strategies from the same checkpoint, in parallel")
    with ProcessPoolExecutor(len(WAYS)) as pool:
        outcome = explore(session, try_way, [{"way": way} for way in WAYS], executor=pool)
    for line in outcome.table().splitlines():
        _print(line)
    best = outcome.best("passed")
    best.adopt()
    passed, of = run_tests(_workspace(session))
    _print(f"Adopted the best trial, {best.variant['way']!r}: {passed} of {of} tests pass.")


def _publish_with_approval(session: Session, home: Path) -> None:
    _title("5. An irreversible tool call waits for approval")
    try:
        publish("1.1")
    except Suspended as waiting:
        (request,) = session.approvals.pending(KEY)
        _print(f"Suspended: {request.words} waits for approval as {request.id}.")
        _print("The process could exit here; another one can resume after the decision.")
        session.approvals.approve(waiting.approval_id, by="you")
    for row in session.carry_out():
        _print(f"Approved and executed: {row['result']}.")
    _print(f"Called again: {publish('1.1')!r} is the recorded result.")
    lines = (home / "register.txt").read_text().splitlines()
    _print(f"The register has {len(lines)} line.")


def _refuse(session: Session) -> None:
    _title("6. A rollback past the irreversible effect is refused")
    try:
        session.rollback(to=f"{KEY}@2")
    except RollbackRefusedError as refused:
        for line in (str(refused).partition("\n")[0], *str(refused.report).splitlines()):
            _print("\n  ".join(textwrap.wrap(line, 88, subsequent_indent="  ")))


def _end(home: Path) -> None:
    _title("Inspect the result")
    command, store = _command(), shlex.quote(str(home / "store"))
    _print(f"{command} --store {store} log {KEY}")
    _print(f"{command} --store {store} ui {KEY}")
    if not all(map(find_spec, ("jinja2", "starlette", "uvicorn"))):
        _print(f"    needs {shlex.quote(_python())} -m pip install jinja2 starlette uvicorn")
    _print(f"rm -r {shlex.quote(str(home))}    to clean up")


def _command() -> str:
    """Return the command line prefix: the script if it is on PATH, else the module."""
    if shutil.which("agent-checkpoint"):
        return "agent-checkpoint"
    return f"{shlex.quote(_python())} -m agent_checkpoint"


def _python() -> str:
    """Return the command that Python was started with, or the path of Python."""
    called: list[str] = getattr(sys, "orig_argv", [])
    return called[0] if called and shutil.which(called[0]) else sys.executable


def _run(command: list[str], *, kill_at: str | None = None) -> None:
    """Run a process and print its output; send SIGKILL when a line contains `kill_at`."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        for line in worker.stdout or ():
            _print(f"[process {worker.pid}] {line.rstrip()}")
            if kill_at is not None and kill_at in line:
                worker.send_signal(signal.SIGKILL)
    expected = 0 if kill_at is None else -signal.SIGKILL
    if worker.returncode != expected:
        raise SystemExit(
            f"process {worker.pid} exited with status {worker.returncode}, not {expected}"
        )
    if kill_at is not None:
        _print(f"[process {worker.pid}] SIGKILL")


def _workspace(session: Session) -> Path:
    if session.workspace is None:
        raise AssertionError("unreachable: the session has files")
    return session.workspace.path


def _names(place: Path) -> str:
    return ", ".join(sorted(path.name for path in place.iterdir() if path.is_file()))


def _title(text: str) -> None:
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


def _print(text: str) -> None:
    print(f"  {text}", flush=True)
