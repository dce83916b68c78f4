"""F12: an SQLite store whose user is forked, threaded, cancelled and interrupted."""

import asyncio
import os
import random
import select
import signal
import sys
import threading
import time
from itertools import count

import pytest

from agent_checkpoint.backends.os_support.os_fork import block_forks
from tests.crash.crowd import ended, go, start, stop, tell, together
from tests.crash.scenarios import ACTIONS, large, open_manager, small
from tests.crash.sweeping import Failures

HERE = "tests.crash.test_sqlite_interrupted"
ROUNDS = 30
FORKS = 12
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


# -- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_interrupted_at_a_call(broken_store, action, sample_calls, tried):
    """Ctrl-C at any call: all or nothing, and the same process goes on."""
    failures = Failures()
    points = sample_calls(broken_store.points(action)[::3], 3)
    for point, outcome in broken_store.broken_runs(action, points, "signal=INT"):
        with failures.at(point):
            broken_store.check_went_on(action, outcome)
    tried("F12 interrupts", failures.tried)
    failures.check()


def save_until_interrupted(path):
    """Run as a process: go on saving through all interrupts; tell what was acknowledged."""
    # What a shell starts in the background ignores Ctrl-C, and so do all of its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    manager = open_manager(path)
    acknowledged = [(0, manager.save("Key", small(0)))]
    n = interrupts = 0
    while interrupts < ROUNDS:
        try:
            tell("saving")
            while True:
                n += 1
                state = large(n % 4) if n % 5 == 0 else small(n)
                acknowledged.append((n, manager.save("Key", state)))
        except KeyboardInterrupt:
            interrupts += 1
            tell("interrupted")
    sys.stdin.readline()
    for number, cid in acknowledged:
        tell(number, cid)


def interrupt(process):
    """Press Ctrl-C, and wait until it is noticed."""
    process.send_signal(signal.SIGINT)
    assert select.select([process.stdout], [], [], 60)[0], "the process takes no interrupts"


@pytest.mark.slow
def test_interrupted_at_random_moments(scratch, tried):
    """A loop of saves that is interrupted and goes on, in one process."""
    chosen = random.Random(12)
    process = start(f"{HERE}:save_until_interrupted", scratch)
    try:
        go(process)
        for _ in range(ROUNDS):
            assert process.stdout.readline() == "saving\n", process.communicate()[1]
            time.sleep(chosen.uniform(0.01, 0.06))
            interrupt(process)
            assert process.stdout.readline() == "interrupted\n", process.communicate()[1]
        go(process)
        told = dict(reversed(line.split()) for line in ended(process))
    finally:
        stop([process])
    with open_manager(scratch) as manager:
        assert manager.verify().ok
        present = {row["id"] for row in manager.history("Key")}
        assert told.keys() <= present
        assert len(present) <= len(told) + ROUNDS
        for cid, n in told.items():
            assert manager.state_dict("Key", cid) == (
                large(int(n) % 4) if int(n) and int(n) % 5 == 0 else small(int(n))
            )
        manager.save("Key", small(0))
    tried("F12 interrupts", ROUNDS)


def test_interrupted_while_forks_are_about_to_be_blocked():
    """The object exists and is removed; none of its own code has run, `__init__` neither."""
    block_forks.__new__(block_forks).__del__()


def test_no_interrupt_is_lost_after_a_block():
    """Python ignores exceptions in `__del__`, also those of an interrupt."""
    block = block_forks()
    with block:
        assert hasattr(block, "__del__")
    assert not hasattr(block, "__del__")


# -- threads and forks ---------------------------------------------------------------------------


def test_threads_saving_with_one_manager(scratch):
    threads, number = 8, 15
    told, wrong = [], []

    def work(name):
        try:
            for n in range(number):
                state = large(n % 2) if n % 5 == 0 else {"by": name, "n": n}
                told.append((manager.save("Key", state), state))
                manager.state_dict("Key")
        except BaseException as error:
            wrong.append(error)

    with open_manager(scratch) as manager:
        running = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert wrong == []
        assert len(told) == threads * number == len(manager.history("Key"))
        for cid, state in told:
            assert manager.state_dict("Key", cid) == state
        assert manager.verify().ok


def fork_and_save(path):
    """Run as a process: fork with the store open; parent and child save in turn, and both end."""
    manager = open_manager(path)
    tell("before", manager.save("Key", small(0)))
    (child_told, tell_parent), (parent_told, tell_child) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        tell("child", manager.save("Key", small(1)))
        os.write(tell_parent, b"x")
        os.read(parent_told, 1)
        tell("child", manager.save("Key", large(2)))  # the parent has closed the store
        tell("child", manager.save("Key", small(3)))
        os._exit(0)  # and so nothing is closed here
    os.read(child_told, 1)
    tell("parent", manager.save("Key", small(4)))
    manager.close()
    os.write(tell_child, b"x")
    os.waitpid(pid, 0)
    tell("parent", manager.save("Key", small(5)))


@needs_fork
def test_forked_after_open(scratch, tried):
    """Whatever the one does to its connections, the saves of the other stay."""
    (lines,) = together([(f"{HERE}:fork_and_save", scratch)])
    told = [line.split()[1] for line in lines]
    with open_manager(scratch) as manager:
        assert [row["id"] for row in reversed(manager.history("Key"))] == told
        states = [manager.state_dict("Key", cid) for cid in told]
        assert states == [small(0), small(1), small(4), large(2), small(3), small(5)]
        assert manager.verify().ok
    tried("F12 saves around forks", len(told))


def fork_among_threads(path):
    """Run as a process: fork while threads save; all go on."""
    manager = open_manager(path)
    manager.save("Other", small(0))

    forked = threading.Event()

    def work(name, enough):
        for n in count():
            cid = manager.save("Key", {"by": name, "n": n, "long": "x" * 20_000})
            os.write(1, f"{name} {n} {cid}\n".encode())
            assert manager.state_dict("Key", cid)["n"] == n
            if enough(n):
                break

    def work_until_forked(name):
        work(name, lambda n: forked.is_set())

    threads = [threading.Thread(target=work_until_forked, args=(f"thread{n}",)) for n in range(2)]
    children = []
    for thread in threads:
        thread.start()
    for number in range(FORKS):
        time.sleep(0.005)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # one that waits for a thread that it does not have waits for ever
            try:
                work(f"child{number}", lambda n: n == 3)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    forked.set()
    for thread in threads:
        thread.join()
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert ends == [0] * FORKS, f"children ended with {ends}"


@needs_fork
@pytest.mark.slow
def test_forked_while_threads_save(scratch, tried):
    """A fork in the middle of a thread's save leaves the child no lock that nobody will release."""
    (lines,) = together([(f"{HERE}:fork_among_threads", scratch)])
    told = [line.split() for line in lines]
    with open_manager(scratch) as manager:
        assert manager.verify().ok
        assert {row["id"] for row in manager.history("Key")} == {cid for _, _, cid in told}
        for name, n, cid in told:
            state = manager.state_dict("Key", cid)
            assert (state["by"], state["n"]) == (name, int(n))
    tried("F12 saves around forks", len(told))


# -- asyncio -------------------------------------------------------------------------------------


def test_cancelled_saves_are_there_or_not(scratch, tried):
    chosen = random.Random(12)
    number = 40

    async def save_and_cancel(manager, n):
        task = asyncio.create_task(manager.asave("Key", large(n % 3) if n % 2 else small(n)))
        await asyncio.sleep(chosen.choice((0, 0, 0.001, 0.005)))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None

    async def work():
        manager = open_manager(scratch)
        told = [await save_and_cancel(manager, n) for n in range(number)]
        last = await manager.asave("Key", small(99))
        rows = await manager.ahistory("Key")
        assert rows[0]["id"] == last
        await manager.aclose()
        return told, rows

    told, rows = asyncio.run(work())
    assert None in told, "nothing was cancelled"
    ids = [row["id"] for row in reversed(rows)]
    assert {cid for cid in told if cid} <= set(ids)
    assert len(ids) == len(set(ids)) <= number + 1
    with open_manager(scratch) as manager:
        assert manager.verify().ok
        states = [manager.state_dict("Key", cid) for cid in ids[:-1]]
    whole = [large(n % 3) if n % 2 else small(n) for n in range(number)]
    remaining = iter(whole)
    assert all(state in remaining for state in states), "in order, each at most once"
    tried("F12 cancelled saves", number)
