"""Breaks a real process at a chosen system call, with strace.

A script is run by the Python of the tests. It calls `ready()` when it is about to do what is
tested; strace is attached just then, so that calls are counted from there and not from the start of
the interpreter. What it says with `say(…)` is what it acknowledges.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

CHANGES = (
    *("write", "pwrite64", "ftruncate", "fsync", "fdatasync"),
    *("link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir"),
)
"""The calls that change a file system; those that an architecture lacks are passed over."""

LONGEST_WAIT = 120

PREAMBLE = """
import ctypes, os, sys

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def ready():
    # Where only relatives may trace a process, allow everybody; elsewhere this does nothing.
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    say("ready")
    os.read(0, 1)
"""

_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((\d+)?")


@dataclass(frozen=True)
class Outcome:
    """How a script ended, what it said, and the calls it made since it was ready."""

    status: int
    said: tuple
    errors: str
    calls: tuple

    @property
    def was_killed(self):
        return self.status == -signal.SIGKILL


def child_environment():
    """The environment of the tests, without what would make the child write files of its own."""
    unwanted = {name for name in os.environ if name.startswith(("COV_CORE_", "COVERAGE_"))}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


def run_traced(script, *arguments, scratch, inject=None, trace=CHANGES):
    """Run a script and break it as `inject` says, such as `fsync:error=EIO:when=2`."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = scratch / "calls"
    child = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    )
    try:
        first = child.stdout.readline()
        if first != b"ready\n":
            raise AssertionError(f"the script failed before it was ready: {child.communicate()}")
        options = ["-e", "trace=" + ",".join(f"?{name}" for name in trace), "-o", str(log)]
        options += ["-e", f"inject={inject}"] if inject else []
        tracer = subprocess.Popen(
            ["strace", "-f", *options, "-p", str(child.pid)], stderr=subprocess.PIPE
        )
        try:
            told = tracer.stderr.readline()
            if b"attached" not in told:
                pytest.skip(f"processes cannot be traced here: {told.decode().strip()}")
            output, errors = child.communicate(b"x", timeout=LONGEST_WAIT)
        finally:
            if child.poll() is None:
                child.kill()
            tracer.communicate(timeout=LONGEST_WAIT)
    finally:
        if child.poll() is None:
            child.kill()
        for stream in (child.stdin, child.stdout, child.stderr):
            stream.close()
        child.wait(LONGEST_WAIT)
    return Outcome(
        child.returncode, tuple(output.decode().splitlines()), errors.decode(), read_calls(log)
    )


def read_calls(log):
    """The names of the calls in a log, without what was written to the standard streams."""
    matches = (_CALL.match(line) for line in log.read_text(errors="replace").splitlines())
    return tuple(m[1] for m in matches if m and not (m[1] == "write" and m[2] in ("1", "2")))


def places(calls):
    """Name every call as strace counts them: `("fsync", 2)` is the second fsync."""
    seen = {}
    for name in calls:
        seen[name] = seen.get(name, 0) + 1
        yield name, seen[name]
