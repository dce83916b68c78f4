"""Hosts that share nothing but a store: processes with their own home, name and directories."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

SECRET = "one secret for all hosts, as it must be for pickles"


class HostError(Exception):
    """An error of the library on a host; `args` are its type and its message."""


class Host:
    """One host. A call sends a line to its process, `host_program`, and returns the reply."""

    def __init__(self, folder: Path, name: str, store: str, secret=SECRET) -> None:
        self.home = folder / name
        self.home.mkdir()
        self.files = self.home / f"files of {name}"  # its paths are those of no other host
        environment = {
            **os.environ,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "AGENT_CHECKPOINT_HOME": str(self.home / "own"),
            "AGENT_CHECKPOINT_HOST": name,
            "OUTBOX": str(folder / "outbox"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "STORE": store,
        }
        if secret is not None:
            environment["AGENT_CHECKPOINT_SECRET"] = secret
        self.environment = environment
        self.name = name
        self.process = None

    def start(self, **environment: str) -> "Host":
        command = [sys.executable, "-m", "tests.crash.host_program"]
        if os.getuid() == 0 and shutil.which("unshare"):  # with its own host name
            name = f'hostname {self.name} 2>/dev/null; exec "$@"'
            command = ["unshare", "--uts", "sh", "-c", name, "sh", *command]
        self.process = subprocess.Popen(
            command,
            cwd=self.home,
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def send(self, verb: str, *arguments, **options) -> None:
        if self.process is None:
            self.start()
        self.process.stdin.write(json.dumps([verb, arguments, options]) + "\n")
        self.process.stdin.flush()

    def reply(self):
        """The result of the last call. Raises HostError; EOFError if the process was killed."""
        line = self.process.stdout.readline()
        if not line:
            self.kill()
            raise EOFError
        error, result = json.loads(line)
        if error != "ok":
            raise HostError(error, result)
        return result

    def __call__(self, verb: str, *arguments, **options):
        self.send(verb, *arguments, **options)
        return self.reply()

    def open(self, **options):
        return self("open_session", **{"workspace": str(self.files), **options})

    def wait_until_stopped(self) -> None:
        """Wait until the process has stopped itself."""
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
        self.process = None

    def content(self) -> "dict[str, str]":
        """The files of its workspace."""
        return {
            str(path.relative_to(self.files)): path.read_text()
            for path in sorted(self.files.rglob("*"))
            if path.is_file()
        }
