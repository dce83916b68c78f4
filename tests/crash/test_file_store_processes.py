"""The file store used by many processes at once, forked ones too."""

import os
import signal
import subprocess
import sys

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.records import parse_checkpoint_id

LONGEST_WAIT = 300

WRITER = """
import sys
from agent_checkpoint import CheckpointManager
from agent_checkpoint.errors import ConflictError

path, key, number, name, alone = sys.argv[1:]
manager = CheckpointManager(backend="file", path=path)
print("ready", flush=True)
sys.stdin.readline()
done = 0
for attempt in range(20_000):
    if done == int(number):
        break
    try:
        head = manager.history(key, n=1)[0]["id"] if alone == "alone" else None
        print(manager.save(key, {"by": name, "n": done}, expected_head=head), flush=True)
        done += 1
    except ConflictError:
        pass
"""


def write_at_once(path, keys, number, alone=""):
    """Start a process for each key of the list; return what each acknowledged."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, key, str(number), str(name), alone],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, key in enumerate(keys)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        acknowledged = []
        for writer in writers:
            output, errors = writer.communicate(timeout=LONGEST_WAIT)
            assert errors == ""
            assert writer.returncode == 0
            acknowledged.append(output.splitlines())
        return acknowledged
    finally:
        for writer in writers:
            if writer.poll() is None:
                writer.kill()
                writer.communicate()


def check_all_there(path, key, acknowledged, number):
    """Each acknowledged save is in the history, once, with what its writer saved."""
    manager = CheckpointManager(backend="file", path=path)
    assert manager.verify().ok
    states = {one.id: one.parts["agent"] for one in manager.store.newest_first(key)}
    ids = list(states)
    assert sorted(ids) == sorted(cid for told in acknowledged.values() for cid in told)
    assert sorted(parse_checkpoint_id(cid).seq for cid in ids) == list(range(1, len(ids) + 1))
    for name, told in acknowledged.items():
        assert len(told) == number
        for n, cid in enumerate(told):
            assert states[cid] == {"by": str(name), "n": n}
        numbers = [parse_checkpoint_id(cid).seq for cid in told]
        assert numbers == sorted(numbers)
    assert os.listdir(path / ".tmp") == []


@pytest.mark.parametrize("processes", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_saving_to_one_key(tmp_path, processes, full_faults):
    number = 200 if full_faults else 20
    told = write_at_once(tmp_path, ["Shared"] * processes, number)
    check_all_there(tmp_path, "Shared", dict(enumerate(told)), number)


@pytest.mark.slow
def test_processes_saving_to_keys_of_their_own(tmp_path, full_faults):
    keys, number = [f"Key {number}" for number in range(8)], 100 if full_faults else 10
    told = write_at_once(tmp_path, keys, number)
    assert CheckpointManager(backend="file", path=tmp_path).list_keys() == keys
    for name, key in enumerate(keys):
        check_all_there(tmp_path, key, {name: told[name]}, number)


BEGINNER = """
import sys
from agent_checkpoint import FileBackend

backend = FileBackend(sys.argv[1])
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    sys.stdin.readline()  # all begin each stream together
    for kind in ("key/plain", "key/Cut"):
        print(backend.append(f"{kind}{number}", b"entry"), flush=True)
"""


def test_processes_beginning_the_same_streams(tmp_path):
    """A stream that comes into being under several hands is one, and nobody's append fails."""
    number, together = 60, 4
    beginners = [
        subprocess.Popen(
            [sys.executable, "-c", BEGINNER, tmp_path, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(together)
    ]
    try:
        for beginner in beginners:
            assert beginner.stdout.readline() == "ready\n"
        for _ in range(number):
            for beginner in beginners:
                beginner.stdin.write("go\n")
                beginner.stdin.flush()
            told = [[b.stdout.readline(), b.stdout.readline()] for b in beginners]
            assert sorted(one for one, _ in told) == ["1\n", "2\n", "3\n", "4\n"]
            assert sorted(two for _, two in told) == ["1\n", "2\n", "3\n", "4\n"]
    finally:
        for beginner in beginners:
            beginner.stdin.close()
            beginner.stdout.close()
            beginner.wait(LONGEST_WAIT)


@pytest.mark.parametrize(
    ("processes", "number"), [(3, 5), pytest.param(8, 25, marks=pytest.mark.slow)]
)
def test_processes_that_must_be_alone_make_a_linear_history(tmp_path, processes, number):
    manager = CheckpointManager(backend="file", path=tmp_path)
    first = manager.save("Shared", {"by": "first"})
    told = write_at_once(tmp_path, ["Shared"] * processes, number, "alone")
    rows = manager.history("Shared")
    assert len(rows) == processes * number + 1
    assert {row["id"] for row in rows} == {first, *(cid for one in told for cid in one)}
    for row, before in zip(rows, rows[1:]):
        assert row["parents"] == [before["id"]]
    assert rows[-1]["parents"] == []


FORKER = """
import os, sys, threading
from agent_checkpoint import CheckpointManager

manager = CheckpointManager(backend="file", path=sys.argv[1])
manager.save("Key", {"by": "parent", "n": -1})

def work(name):
    for n in range(8):
        cid = manager.save("Key", {"by": name, "n": n})
        os.write(1, f"{name} {n} {cid}\\n".encode())

threads = [threading.Thread(target=work, args=(f"thread{n}",)) for n in range(2)]
for thread in threads:
    thread.start()
children = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        work(f"child{number}")
        os._exit(0)
    children.append(pid)
for thread in threads:
    thread.join()
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
manager.delete("Key", manager.history("Key")[-1]["id"])
"""


def test_forked_while_threads_save(tmp_path):
    """Parent and children go on with the same manager; every acknowledged save is there."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKER, tmp_path],
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    )
    assert done.returncode == 0, done.stderr
    manager = CheckpointManager(backend="file", path=tmp_path)
    assert manager.verify().ok
    told = [line.split() for line in done.stdout.splitlines()]
    assert len(told) == 6 * 8
    for name, n, cid in told:
        assert manager.state_dict("Key", cid) == {"by": name, "n": int(n)}
    assert {row["id"] for row in manager.history("Key")} == {cid for _, _, cid in told}


FORKED_IN_A_SAVE = """
import os, signal, sys, threading
from agent_checkpoint import CheckpointManager

manager = CheckpointManager(backend="file", path=sys.argv[1])
held, forked = threading.Event(), threading.Event()

def saver():  # is just where every save behind the caller passes through
    with manager.background._turn:
        held.set()
        forked.wait()

thread = threading.Thread(target=saver)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(20)  # a child that waits for a lock of its parent's thread waits for ever
    manager.save_in_background("Key", {"by": "child"}).result()
    os._exit(0)
forked.set()
thread.join()
sys.exit(os.waitpid(pid, 0)[1] != 0)
"""


def test_forked_while_a_thread_is_in_a_save(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED_IN_A_SAVE, tmp_path], timeout=LONGEST_WAIT
    )
    assert done.returncode == 0
    manager = CheckpointManager(backend="file", path=tmp_path)
    assert manager.state_dict("Key") == {"by": "child"}


FORKED_IN_A_LOCK = """
import fcntl, os, pathlib, sys
from agent_checkpoint.backends.os_support.posix import store_lock

lock = pathlib.Path(sys.argv[1])
read_end, write_end = os.pipe()
with store_lock(lock, exclusive=False):
    if os.fork() == 0:
        os.close(write_end)
        os.read(read_end, 1)  # lives on until the parent is gone
        os._exit(0)
fcntl.flock(os.open(lock, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def test_a_lock_does_not_live_on_in_a_forked_process(tmp_path):
    """A process forked while another thread saves must not keep everybody else out."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED_IN_A_LOCK, tmp_path / "lock"],
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    )
    assert done.returncode == 0, done.stderr


def test_a_killed_process_leaves_no_lock(tmp_path):
    """Whoever comes next neither waits nor has to tidy up."""
    source = (
        "import signal, os, sys, pathlib\n"
        "from agent_checkpoint.backends.os_support.posix import store_lock\n"
        "with store_lock(pathlib.Path(sys.argv[1]), exclusive=True):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    CheckpointManager(backend="file", path=tmp_path).save("Key", {"n": 0})
    done = subprocess.run([sys.executable, "-c", source, tmp_path / ".lock"], timeout=LONGEST_WAIT)
    assert done.returncode == -signal.SIGKILL
    manager = CheckpointManager(backend="file", path=tmp_path)
    manager.save("Key", {"n": 1})
    manager.delete("Key", "Key@1")
    assert manager.state_dict("Key") == {"n": 1}
