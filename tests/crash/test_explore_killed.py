"""The process that explores is killed: nothing of it is left once the workspace is opened again."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session

WAYS = 3
PROGRAM = Path(__file__).with_name("explore_program.py")


def processes_of(place):
    """Return the processes that name a directory on their command line or in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            words += Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(place) in words and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def trials_in(place):
    """Return the processes of trials, and what they have started."""
    own = b"agent_checkpoint/__init__.py"
    return [pid for pid in processes_of(place) if own in _command(pid)]


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def commands_of(place):
    return {pid: _command(pid).replace(b"\0", b" ")[:200] for pid in processes_of(place)}


def wait_until(condition, details=lambda: "", seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain {details()}"
        time.sleep(0.02)


@pytest.fixture
def workspace(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    (place / "file").write_text("as it was")
    return place


def rounds(full):
    """Return after how many seconds it is killed; None: when all are at work."""
    draw = random.Random(6)
    return [None, *(draw.uniform(0.05, 2.5) for _ in range(19 if full else 1))]


@pytest.mark.slow
def test_nothing_is_left_of_it(workspace, tmp_path, own_home, full_faults, tried):
    store = tmp_path / "store"
    for after in rounds(full_faults):
        command = [sys.executable, str(PROGRAM), str(workspace), str(store), str(WAYS)]
        environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
        explorer = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            if after is None:
                wait_until(lambda: len(list(tmp_path.glob("at-work-*"))) == WAYS)
            else:
                time.sleep(after)
        finally:
            explorer.kill()  # and nobody else: its workers and their trials are on their own
            explorer.wait()
        with Session("work", workspace=workspace, store=store) as session:
            assert session.drift is None
            wait_until(lambda: trials_in(own_home) == [])
            session.save()

        def left():
            places = [own_home / "store" / name for name in ("forks", "bases", "branches")]
            try:
                return [str(path) for place in places for path in place.rglob("*")]
            except FileNotFoundError as error:  # a worker is removing it
                return [error.filename]

        def nothing_is_left():  # a worker may end its own at any time after the first look
            Session("work", workspace=workspace, store=store).close()
            return not left()

        wait_until(
            nothing_is_left,
            lambda: {"left": left(), "processes": commands_of(own_home)},
        )
        assert (workspace / "file").read_text() == "as it was"
        assert str(own_home) not in Path("/proc/self/mountinfo").read_text()
        with CheckpointManager(backend="sqlite", path=store) as manager:
            assert manager.verify().ok
        for file in tmp_path.glob("at-work-*"):
            file.unlink()
        if after is None:
            wait_until(lambda: processes_of(own_home) == [])
        # Workers of a pool that never had a job wait for one for ever: Python leaves them.
        for pid in processes_of(own_home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    tried("explorers killed", len(rounds(full_faults)))


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["group", "explorer"])
def test_ctrl_c_leaves_nothing(workspace, tmp_path, own_home, whom):
    store = tmp_path / "store"
    command = [sys.executable, str(PROGRAM), str(workspace), str(store), str(WAYS)]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
    explorer = subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("at-work-*"))) == WAYS)
        (os.killpg if whom == "group" else os.kill)(explorer.pid, signal.SIGINT)
        wait_until(lambda: trials_in(own_home) == [], lambda: commands_of(own_home))
        # The explorer removes the forks after the end of the trials.
        places = [own_home / "store" / name for name in ("forks", "bases", "branches")]
        wait_until(
            lambda: not [path for place in places for path in place.glob("*")],
            lambda: commands_of(own_home),
        )
    finally:
        explorer.kill()
        explorer.wait()
    wait_until(lambda: processes_of(own_home) == [], lambda: commands_of(own_home))
    assert str(own_home) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.slow
def test_what_was_saved_in_time_is_there(workspace, tmp_path, own_home):
    store = tmp_path / "store"
    command = [sys.executable, str(PROGRAM), str(workspace), str(store), "1"]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
    explorer = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "at-work-0").exists())
    finally:
        os.kill(explorer.pid, signal.SIGKILL)
        explorer.wait()
    with Session("work", workspace=workspace, store=store) as session:
        (key,) = session.manager.list_keys("work/")
        session.adopt(key)
        assert (workspace / "file").read_text() == "way 0"
        session.undo()
    wait_until(lambda: processes_of(own_home) == [])


def test_a_probe_that_was_killed_is_removed_by_the_next_opening(workspace, tmp_path, own_home):
    probe = own_home / "store/branches/.agent-checkpoint-probe-old"
    probe.mkdir(parents=True)
    os.utime(probe, (0, 0))
    Session("work", workspace=workspace, store=tmp_path / "store").close()
    assert not probe.exists()
