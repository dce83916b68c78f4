"""Background saves: the state is taken now, written in order, and no failure goes unseen."""

import os
import sys
import threading
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    KeepLatest,
    MemoryBackend,
    StateError,
    StorageError,
)
from tests.agents import Agent


class GatedBackend(MemoryBackend):
    """A memory backend whose appends wait for a gate and can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.failing = False

    def append(self, stream: str, entry: bytes, **options: Any) -> int:
        assert self.gate.wait(10)
        if self.failing and stream.startswith("key/"):
            raise StorageError("the disk is full")
        return super().append(stream, entry, **options)


@pytest.fixture
def backend() -> GatedBackend:
    return GatedBackend()


def test_the_state_is_the_one_of_the_call(backend: GatedBackend) -> None:
    manager = CheckpointManager(backend)
    agent = Agent(1)
    future = manager.save_in_background("k", agent, label="early")
    agent.count = 2
    assert not future.done()
    backend.gate.set()
    assert manager.history("k")[0]["id"] == future.result(10)
    assert manager.state_dict("k")["count"] == 1


def test_saves_are_written_in_order_and_before_a_plain_one(backend: GatedBackend) -> None:
    manager = CheckpointManager(backend)
    for count in range(20):
        manager.save_in_background("k", Agent(count))
    threading.Timer(0.05, backend.gate.set).start()
    manager.save("k", Agent(20))
    states = [manager.state_dict("k", row["id"])["count"] for row in manager.history("k")]
    assert states == list(range(20, -1, -1))


@pytest.mark.parametrize("way", ["save", "save_in_background", "close", "load"])
def test_a_failure_raises_once_at_the_next_call(backend: GatedBackend, way: str) -> None:
    manager = CheckpointManager(backend)
    backend.gate.set()
    manager.save("k", Agent(1))
    backend.failing = True
    failed = manager.save_in_background("k", Agent(2))
    with pytest.raises(StorageError, match="full"):
        failed.result(10)
    backend.failing = False
    with pytest.raises(StorageError, match="full"):
        manager.close() if way == "close" else getattr(manager, way)("k", Agent(3))
    manager.save("k", Agent(4))
    assert manager.state_dict("k")["count"] == 4


def test_a_save_under_way_cannot_be_cancelled(backend: GatedBackend) -> None:
    manager = CheckpointManager(backend)
    first, second = (manager.save_in_background("k", Agent(count)) for count in (1, 2))
    assert not second.cancel()
    backend.gate.set()
    manager.save("k", Agent(3))
    assert first.done()
    assert len(manager.history("k")) == 3


def test_a_callback_may_use_the_manager(backend: GatedBackend) -> None:
    manager = CheckpointManager(backend)
    first = manager.save_in_background("k", Agent(1))
    first.add_done_callback(lambda _: manager.prune("k", KeepLatest(1)))
    second = manager.save_in_background("k", Agent(2))
    backend.gate.set()
    second.result(10)
    manager.save_in_background("k", Agent(3)).add_done_callback(lambda _: manager.close())
    manager.close()


def test_no_failure_goes_untold_at_close() -> None:
    class Failing(MemoryBackend):
        def append(self, stream: str, entry: bytes, **options: Any) -> int:
            raise StorageError("the disk is full")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            manager = CheckpointManager(Failing())
            manager.save_in_background("k", {})
            with pytest.raises(StorageError):
                manager.close()
    finally:
        sys.setswitchinterval(interval)


def test_what_cannot_be_captured_raises_at_once(backend: GatedBackend) -> None:
    agent = Agent()
    agent.memory.append(threading.Lock())
    with pytest.raises(StateError, match=r"agent\.memory\[0\]"):
        CheckpointManager(backend).save_in_background("k", agent)


def test_closing_finishes_what_is_queued(backend: GatedBackend) -> None:
    backend.gate.set()
    with CheckpointManager(backend) as manager:
        futures = [manager.save_in_background("k", Agent(count)) for count in range(5)]
    assert all(future.done() for future in futures)
    manager.close()  # twice is fine


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_writer_of_its_own(backend: GatedBackend) -> None:
    backend.gate.set()
    manager = CheckpointManager(backend)
    manager.save_in_background("k", Agent(1)).result(10)
    child = os.fork()
    if not child:
        try:
            manager.save_in_background("k", Agent(2)).result(10)
            manager.save("k", Agent(3))
            os._exit(0 if len(manager.history("k")) == 3 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
