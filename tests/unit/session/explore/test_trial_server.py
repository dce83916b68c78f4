"""Trials that a server forks: as in an interpreter of their own, and nothing is left of them."""

import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import agent_checkpoint
from agent_checkpoint import Session, explore
from agent_checkpoint.session.explore import explore as explore_module
from agent_checkpoint.session.explore import trial_start
from agent_checkpoint.session.explore.trial_start import (
    ForkedTrial,
    TrialProcess,
    TrialServer,
    start_trial,
)
from tests.unit.session.explore import strategies

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only on Linux")


@pytest.fixture
def session(tmp_path, place):
    with Session("work", workspace=place, store=tmp_path / "store") as session:
        session.save()
        yield session


def children():
    """Return the command lines of the child processes of this one, by process id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            try:
                found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
    return found


def servers():
    return [pid for pid, words in children().items() if any(b"trial_server" in w for w in words)]


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_trial_is_given_the_same_as_in_an_interpreter_of_its_own(session, monkeypatch, tmp_path):
    files = [tmp_path / str(number) for number in range(3)]
    variants = [{"file": str(file)} for file in files]
    with ProcessPoolExecutor(1) as pool:
        forked = explore(session, strategies.tell_surroundings, variants[:2], executor=pool)
        monkeypatch.setattr(explore_module, "_is_local", lambda executor: False)
        started = explore(session, strategies.tell_surroundings, variants[2:], executor=pool)
        (worker,) = pool._processes
    assert [trial.error for trial in (*forked, *started)] == [None] * 3
    surroundings = [json.loads(file.read_text()) for file in files]
    assert surroundings[0] == surroundings[1] == surroundings[2]
    parents = [int(trial.metrics["parent"]) for trial in (*forked, *started)]
    assert parents[0] == parents[1] != parents[2] == worker
    assert servers() == []


def test_random_numbers_differ(session):
    with ProcessPoolExecutor(1) as pool:
        outcome = explore(session, strategies.draw, [{}] * 3, executor=pool)
    assert [trial.error for trial in outcome] == [None] * 3
    columns = list(zip(*(trial.output.split() for trial in outcome)))
    assert [len(set(column)) for column in columns] == [3, 3, 3, 3, 3]


ACCELERATORS = ("backports", "isal", "orjson")
"""The extra `fast`, which an installed package finds beside itself."""


def test_before_a_fork_there_is_nothing_of_the_user():
    program = f"""
import importlib, json, os, sys
sys.path.insert(0, {str(Path(agent_checkpoint.__file__).parents[1])!r})
before = os.listdir("/proc/self/fd")
from agent_checkpoint.session.explore import trial_process, trial_server
trial_process.preload()
foreign = {{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names
print(json.dumps([
    sorted(foreign - {{"agent_checkpoint", "__main__", "__mp_main__", *{ACCELERATORS}}}),
    len(os.listdir("/proc/self/task")),
    len(os.listdir("/proc/self/fd")) - len(before),
]))
"""
    if sys.version_info < (3, 10):
        pytest.skip("Python 3.9 does not list its own modules")
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], 1, 0]


def test_a_trial_loads_no_module_that_the_server_could_have(session, tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(Path(agent_checkpoint.__file__).parents[1])!r})
from agent_checkpoint.session.explore import trial_process, trial_server
trial_process.preload()
print(*sys.modules)
"""
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with ProcessPoolExecutor(1) as pool:
        (trial,) = explore(
            session, strategies.modules, [{"path": str(tmp_path / "loaded")}], executor=pool
        )
    assert trial.error is None
    # The module of the strategies defines tools, and an agent.
    by_the_user = {"agent_checkpoint.session.tools.tool", "agent_checkpoint.core.checkpointable"}
    loaded = (tmp_path / "loaded").read_text()
    late = set(loaded.split()) - set(done.stdout.split()) - by_the_user
    assert sorted(late) == []


def test_where_the_server_is_killed_its_trial_is_reported_and_the_next_is_started(session):
    variants = [{"how": "well"}, {"how": "kill"}, {"how": "well"}]
    with ProcessPoolExecutor(1) as pool:
        outcome = explore(session, strategies.kill_parent, variants, executor=pool)
        (worker,) = pool._processes
    first, second, third = outcome
    assert "killed by SIGKILL" in second.error
    assert first.error is None
    assert first.metrics["parent"] != worker
    assert third.error is None
    assert third.metrics["parent"] == worker
    assert servers() == []


def test_without_a_server_trials_are_started(session, monkeypatch):
    def fail(self):
        raise OSError("no more processes")

    monkeypatch.setattr(TrialServer, "__init__", fail)
    with ProcessPoolExecutor(1) as pool:
        (trial,) = explore(session, strategies.kill_parent, [{"how": "well"}], executor=pool)
        assert [trial.metrics["parent"]] == list(pool._processes)


def limit():
    # More than the files that other tests have left open in this process.
    resource.setrlimit(resource.RLIMIT_NOFILE, (987, 987))


def describe():
    os.environ["ONLY_IN_THE_WORKER"] = "1"


@pytest.mark.parametrize("initializer", [limit, describe, lambda: os.nice(1)])
def test_what_a_worker_sets_is_inherited(session, initializer, tmp_path):
    file = tmp_path / "found"
    with ProcessPoolExecutor(1, initializer=initializer) as pool:
        variants = [{"file": str(file)}]
        (trial,) = explore(session, strategies.tell_surroundings, variants, executor=pool)
        assert trial.error is None
        assert [trial.metrics["parent"]] == list(pool._processes)
    found = json.loads(file.read_text())
    if initializer is limit:
        assert "987" in found["limits"]
    if initializer is describe:
        assert found["environment"]["ONLY_IN_THE_WORKER"] == "1"


def sleepers(session):
    whose = os.fsencode(session.manager.store.backend.path)
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2:-1] == [whose]:
                found.append(pid)
        except OSError:
            continue
    return found


def test_with_its_worker_a_trial_is_killed(session):
    def kill():
        wait_until(lambda: sleepers(session))
        for pid in list(pool._processes):
            os.kill(pid, signal.SIGKILL)

    with ProcessPoolExecutor(1) as pool:
        thread = threading.Thread(target=kill)
        thread.start()
        (trial,) = explore(session, strategies.leave, [{"how": "hang"}], executor=pool)
        thread.join()
    assert "The worker failed: BrokenProcessPool" in trial.error
    wait_until(lambda: not sleepers(session))
    assert servers() == []


class Sleeping:
    """Takes long to be unpickled, as a strategy whose module hangs when it is imported."""

    def __reduce__(self):
        return time.sleep, (600,)


@pytest.fixture
def private(tmp_path):
    """The directory of a trial that never gets to its strategy."""
    place = tmp_path / "private"
    place.mkdir()
    (place / "job").write_text(json.dumps({"view": None, "files": None}))
    (place / "payload").write_bytes(pickle.dumps(([], {}, pickle.dumps(Sleeping()))))
    return place


@pytest.fixture
def server():
    server = TrialServer()
    yield server
    server.close()
    assert servers() == []


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


def test_a_trial_is_killed_when_it_is_ended(server, private):
    trial = start_trial(server.address, private, "/")
    assert isinstance(trial, ForkedTrial)
    assert trial.wait(0.05) is None
    assert trial.end() == -signal.SIGKILL
    assert not is_running(trial._pid)


def test_a_trial_whose_worker_vanishes_is_killed(server, private):
    trials = [start_trial(server.address, private, "/") for _ in range(3)]
    trials[1]._connection.close()
    wait_until(lambda: not is_running(trials[1]._pid))
    assert [trial.wait(0.05) for trial in (trials[0], trials[2])] == [None, None]
    assert {trial.end() for trial in (trials[0], trials[2])} == {-signal.SIGKILL}


def test_with_the_server_its_trials_end(server, private):
    trial = start_trial(server.address, private, "/")
    server.close()
    wait_until(lambda: not is_running(trial._pid))
    assert trial.wait(60) == trial.end() == -signal.SIGKILL


def is_dead(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_trial_ends_though_its_server_is_stopped(server, private, monkeypatch):
    monkeypatch.setattr(trial_start, "_END_SECONDS", 0.1)
    trial = start_trial(server.address, private, "/")
    os.kill(server._process.pid, signal.SIGSTOP)
    assert trial.end() == -signal.SIGKILL
    wait_until(lambda: is_dead(trial._pid))


def test_a_server_that_is_stopped_forks_nothing_later(server, private, monkeypatch):
    wait_until(lambda: start_trial(server.address, private, "/").end())  # it has started
    os.kill(server._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(trial_start, "_ANSWER_SECONDS", 0.1)
    trial = start_trial(server.address, private, "/")
    assert isinstance(trial, TrialProcess)
    os.kill(server._process.pid, signal.SIGCONT)
    monkeypatch.undo()
    other = private.with_name("other")
    other.mkdir()
    for name in ("job", "payload"):
        (other / name).write_bytes((private / name).read_bytes())
    later = start_trial(server.address, other, "/")
    assert isinstance(later, ForkedTrial)
    assert Path(
        f"/proc/{server._process.pid}/task/{server._process.pid}/children"
    ).read_text().split() == [str(later._pid)]
    later.end()
    trial.end()


def test_what_is_no_request_is_dropped(server, private):
    for message in (b"", b"[", b"[]", b"{}", b"x" * 1000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"\0{server.name}")
            if message:
                connection.send(message)
    trial = start_trial(server.address, private, "/")
    assert isinstance(trial, ForkedTrial)
    trial.end()


def test_a_server_of_another_user_is_not_asked(server, private, monkeypatch):
    monkeypatch.setattr(trial_start, "is_own_user", lambda connection: False)
    trial = start_trial(server.address, private, "/")
    assert isinstance(trial, TrialProcess)
    trial.end()
