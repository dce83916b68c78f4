"""Starts processes within milliseconds and breaks each at a chosen system call.

A server has the package imported and warmed up; every run is a fork of it that calls one function,
`module:function`, traced by strace from just before that call. What it acknowledges it says with
`say`.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_WAIT = 100
CHANGES = (
    *("write", "writev", "pwrite64", "pwritev", "ftruncate", "fallocate", "fsync", "fdatasync"),
    *("link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir"),
)
SYNCS = ("fsync", "fdatasync")
OPENS = ("openat",)

SERVER = """
import ctypes, importlib, json, os, sys, traceback

def tell(**answer):
    os.write(1, json.dumps(answer).encode() + b"\\n")

def child(request, set_up, may_go):
    module, _, function = request["function"].rpartition(":")
    do = getattr(importlib.import_module(module), function)
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    # Where only relatives may trace a process, allow everybody; elsewhere this does nothing.
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    os.write(set_up, b"x")  # from here on it makes no call but those of `do`
    os.read(may_go, 1)
    try:
        do(*request["arguments"])
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

importlib.import_module(sys.argv[1]).warm_up(sys.argv[2])
tell(ready=True)
for line in sys.stdin:
    (may_go, go), (is_set_up, set_up) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        child(json.loads(line), set_up, may_go)
    os.close(may_go)
    os.close(set_up)
    os.read(is_set_up, 1)
    os.close(is_set_up)
    tell(pid=pid)
    sys.stdin.readline()  # whoever wants to trace it does so now
    os.write(go, b"x")
    os.close(go)
    tell(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

_CALL = re.compile(r"^(?:(\d+) +)?(\w+)\((.*)$")
_PATH = re.compile(r'[<"](/[^>"]*)[>"]')


@dataclass(frozen=True)
class Call:
    """One system call: its name, its place among those of this name in its thread, its paths."""

    name: str
    when: int
    paths: tuple
    failed: bool

    def __str__(self):
        return f"{self.name} {self.when} ({', '.join(self.paths)})"


@dataclass(frozen=True)
class Outcome:
    """How a run ended, what it said, and the calls that it made."""

    status: int
    said: tuple
    errors: str
    calls: tuple

    @property
    def was_killed(self):
        return self.status == -signal.SIGKILL

    def was_hit_in_time(self, point):
        """Whether the call was made before it said anything: runs differ a little at times."""
        made = self.calls_before_it_said_anything()
        return any((call.name, call.when) == (point.name, point.when) for call in made)

    def calls_before_it_said_anything(self):
        """What it did until then; later calls belong to the end of the process."""
        for place, call in enumerate(self.calls):
            if call.name == "writev" and call.paths[0].endswith("/output"):
                return self.calls[:place]
        return self.calls


class FaultProcess:
    """The server and its runs, one at a time, in a directory of its own below `parent`.

    Test runners may set a module's fixtures up twice: no two of these share a directory.
    """

    def __init__(self, module, parent):
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed")
        self.scratch = scratch = Path(tempfile.mkdtemp(prefix="runs-", dir=parent))
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER, module, str(scratch / "warm")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**child_environment(), **_own_home(scratch)},
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, function, *arguments, inject=None, trace=CHANGES, detail=("-y", "-s", "0")):
        """Run `module:function`; `inject` is such as `fsync:error=EIO:when=2`.

        The log of the calls stays in `scratch / "calls"` until the next run.
        """
        log, output, errors = (self.scratch / name for name in ("calls", "output", "errors"))
        for file in (log, output, errors):
            file.unlink(missing_ok=True)
        request = {"output": str(output), "errors": str(errors), "function": function}
        request["arguments"] = [str(argument) for argument in arguments]
        self._ask(json.dumps(request))
        pid = self._answer()["pid"]
        options = ["-e", "trace=" + ",".join(f"?{name}" for name in trace)]
        options += ["-e", f"inject={inject}"] if inject else []
        tracer = subprocess.Popen(
            ["strace", "-f", *detail, *options, "-o", str(log), "-p", str(pid)],
            stderr=subprocess.PIPE,
        )
        told = tracer.stderr.readline()
        self._ask("go")
        try:
            status = self._answer()["status"]
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            tracer.communicate(timeout=LONGEST_WAIT)
        if b"attached" not in told:
            pytest.skip(f"processes cannot be traced here: {told.decode().strip()}")
        said = tuple(output.read_text().splitlines()) if output.exists() else ()
        return Outcome(status, said, errors.read_text(), read_calls(log))

    def close(self):
        with suppress(BrokenPipeError):
            self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(LONGEST_WAIT)

    def _ask(self, line):
        self._server.stdin.write(line + "\n")

    def _answer(self):
        if not select.select([self._server.stdout], [], [], LONGEST_WAIT)[0]:
            raise AssertionError("a run hangs")
        line = self._server.stdout.readline()
        if not line:
            raise AssertionError("the server of runs has died; what it said is above")
        return json.loads(line)


def read_calls(log):
    """The calls of a log of `strace -y`, in order."""
    seen = {}
    calls = []
    for line in log.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if match:
            thread, name, rest = match.groups()
            when = seen[thread, name] = seen.get((thread, name), 0) + 1  # as strace counts them
            calls.append(Call(name, when, tuple(_PATH.findall(rest)), ") = -1 " in rest))
    return tuple(calls)


def places(calls, below, names=CHANGES):
    """Those of the calls that touch a file below a directory, and are of these names."""
    return [
        call
        for call in calls
        if call.name in names
        and any(path == str(below) or path.startswith(f"{below}/") for path in call.paths)
    ]


def say(*words):
    """Acknowledge something, from within a run."""
    os.writev(1, [(" ".join(map(str, words)) + "\n").encode()])


def child_environment():
    """The environment of a process that imports the tests and writes no files of its own."""
    unwanted = ("COV_CORE_", "COVERAGE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}


SECRET = "of the fault tests"
"""Whoever finishes what a broken process has begun must have the same."""


def _own_home(scratch):
    home = str(scratch / "home")
    places = {"HOME": home, "XDG_CONFIG_HOME": home, "AGENT_CHECKPOINT_HOME": home}
    return {**places, "AGENT_CHECKPOINT_SECRET": SECRET}
