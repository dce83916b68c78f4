"""F20: a process forks while another thread saves or loads for the first time."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import agent_checkpoint
from tests.crash.fault_process import child_environment

LONGEST_WAIT = 300
PACKAGE = Path(agent_checkpoint.__file__).parent


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
@pytest.mark.parametrize("what", ["save", "workspace", "session"])
def test_nothing_is_imported_outside_the_gate(tmp_path, what, scheme):
    folder = tmp_path / "files"
    folder.mkdir()
    store = f"{scheme}://{tmp_path}/store"
    assert run("-m", "tests.crash.first_use", what, store, folder) == []


@pytest.mark.skipif(find_spec("numpy") is None, reason="needs numpy")
def test_loading_an_array_imports_numpy_behind_the_gate(tmp_path):
    store = f"sqlite://{tmp_path}/store"
    program = (
        "import sys, numpy\nfrom agent_checkpoint import CheckpointManager\n"
        "CheckpointManager(sys.argv[1]).save('key', {'array': numpy.arange(9)})"
    )
    run("-c", program, store)
    assert run("-m", "tests.crash.first_use", "load", store, tmp_path) == []


# A thread saves; the import that it needs goes on a second after the main thread begins to fork. A
# fork that does not wait for it comes before that, and its child hangs at the same import.
BLOCKED = """
import os, signal, sys, threading
from agent_checkpoint import CheckpointManager
manager = CheckpointManager(sys.argv[1])
manager.save("first", {"n": 1})
importing, goes_on = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "concurrent.futures" and not importing.is_set():
            importing.set()
            assert goes_on.wait(60)

sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: manager.save_in_background("key", {"n": 1}).result())
thread.start()
assert importing.wait(60)
threading.Timer(1, goes_on.set).start()
child = os.fork()
if not child:
    signal.alarm(20)
    manager.save_in_background("key", {"n": 2}).result()
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
assert len(manager.history("key")) == 2
"""


def test_a_fork_waits_for_the_import_of_another_thread(tmp_path):
    run("-c", BLOCKED, f"sqlite://{tmp_path}/store")


LOGGING = """
import os, threading, time
from agent_checkpoint.backends.os_support import os_fork
with os_fork.block_forks():  # registers the hooks
    pass
import logging

gate = os_fork._gate
inside = threading.Event()
got = []

def log():
    with os_fork.block_forks():
        inside.set()
        while not gate.changed._waiters:
            time.sleep(0.01)
        got.append(logging._lock.acquire(timeout=15))
        if got[0]:
            logging._lock.release()

thread = threading.Thread(target=log)
thread.start()
assert inside.wait(60)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
thread.join()
assert got == [True]
"""


def test_a_thread_behind_the_gate_may_log_while_another_forks():
    """The hook of `logging` takes its lock before a fork; it must not hold it while ours waits."""
    run("-c", LOGGING)


# Children are forked at many moments of the first save and load of a thread, each in a new process.
MANY = """
import os, signal, sys, threading, time
from agent_checkpoint import CheckpointManager
manager = CheckpointManager(sys.argv[1])
delay = float(sys.argv[2])

def work(key):
    manager.save(key, {"list": [{"n": n, "text": "x" * 99} for n in range(99)]})
    manager.state_dict(key)
    manager.save_in_background(key, {"n": 2}).result()

thread = threading.Thread(target=work, args=("thread",))
thread.start()
time.sleep(delay)
children = []
for number in range(3):
    child = os.fork()
    if not child:
        signal.alarm(60)
        work(f"child {number}")
        os._exit(0)
    children.append(child)
thread.join()
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
assert len(manager.list_keys()) == 4
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_forks_at_many_moments_of_a_first_save(tmp_path, scheme, full_faults, tried):
    moments = 60 if full_faults else 6
    for number in range(moments):
        run("-c", MANY, f"{scheme}://{tmp_path}/{number}", 0.03 * number / moments)
    tried("F20 forks beside a first save", 3 * moments)


LAZY = ("backends", "store", "core", "manager", "session", "workspace")
FIRST_LOADED_ELSEWHERE = {"core/codec/arrays.py"}  # but for what it decodes, which is tested above
A_PROGRAM = {"session/explore/trial_process.py"}


def test_every_import_within_a_function_is_behind_the_gate():
    """All that is loaded at its first use, and so perhaps beside a fork."""
    allowed = FIRST_LOADED_ELSEWHERE | A_PROGRAM
    found = []
    for package in LAZY:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            if name not in allowed:
                found += [f"{name}:{line}" for line in ungated(ast.parse(path.read_text()), False)]
    assert found == []


def ungated(node, within):
    """Yield the lines of imports in functions that no `with block_forks()` is around."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)) and within:
            yield child.lineno
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from ungated(child, True)
        elif isinstance(child, ast.With) and "block_forks()" in map(
            ast.unparse, (item.context_expr for item in child.items)
        ):
            continue
        else:
            yield from ungated(child, within)
