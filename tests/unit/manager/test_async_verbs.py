"""The verbs for asyncio do what the plain ones do, without blocking the loop."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    KeepLatest,
    MemoryBackend,
    NotFoundError,
    StorageError,
)
from tests.agents import Agent


def test_every_verb_has_its_twin() -> None:
    verbs = {
        name
        for name in dir(CheckpointManager)
        if not name.startswith("_") and callable(getattr(CheckpointManager, name))
    }
    twins = {name for name in verbs if name[0] == "a" and name[1:] in verbs}
    without = {"rollback_context", "save_in_background", "records"}  # the last does no I/O
    assert {f"a{name}" for name in verbs - twins - without} == twins


def test_all_of_them(tmp_path: Path) -> None:
    async def work() -> None:
        manager = CheckpointManager()
        first = await manager.asave("k", Agent(1), label="x", metrics={"s": 1})
        await manager.asave("k", Agent(2), expected_head=first)
        agent = Agent()
        await manager.aload("k", agent)
        assert agent.count == 2
        await manager.aload("k", agent, "k~1", strict=True)
        assert agent.count == 1
        assert (await manager.astate_dict("k"))["count"] == 2
        assert await manager.alist_keys() == ["k"]
        assert await manager.alist_records() == []
        assert (await manager.ahistory("k", n=1))[0]["parents"] == [first]
        assert (await manager.adiff("k", agent=agent))["changed"] == {"count": (2, 1)}
        await manager.afork("k", "alt")
        await manager.aexport_archive(tmp_path / "x", "alt")
        await manager.adelete("alt")
        assert await manager.aimport_archive(tmp_path / "x") == "alt"
        assert len(await manager.aprune("k", KeepLatest(1))) == 1
        assert (await manager.averify()).ok
        assert (await manager.agc()).objects == 0
        assert (await manager.astats())["checkpoints"] == 2
        with pytest.raises(NotFoundError):
            await manager.aload("nope", agent)
        await manager.aclose()

    asyncio.run(work())


def test_the_state_is_taken_at_the_call() -> None:
    async def work() -> int:
        manager = CheckpointManager()
        agent = Agent(1)
        saving = manager.asave("k", agent)
        agent.count = 2
        await saving
        return int(manager.state_dict("k")["count"])

    assert asyncio.run(work()) == 1


def test_saves_are_written_in_the_order_of_the_calls() -> None:
    async def work() -> list[int]:
        manager = CheckpointManager()
        await asyncio.gather(*(manager.asave("k", Agent(count)) for count in range(20)))
        return [manager.state_dict("k", row["id"])["count"] for row in manager.history("k")]

    assert asyncio.run(work()) == list(range(19, -1, -1))


def test_a_failure_is_told_to_the_one_who_awaits_and_not_again() -> None:
    class Failing(MemoryBackend):
        failing = True

        def append(self, stream: str, entry: bytes, **options: Any) -> int:
            if self.failing:
                raise StorageError("the disk is full")
            return super().append(stream, entry, **options)

    async def work() -> None:
        backend = Failing()
        async with CheckpointManager(backend) as manager:
            with pytest.raises(StorageError):
                await manager.asave("k", Agent(1))
            backend.failing = False
            manager.save("k", Agent(2))

    asyncio.run(work())


def test_a_cancelled_save_is_whole_or_not_there() -> None:
    gate = threading.Event()

    class Slow(MemoryBackend):
        def append(self, stream: str, entry: bytes, **options: object) -> int:
            assert gate.wait(10)
            return super().append(stream, entry, **options)  # type: ignore[arg-type]

    manager = CheckpointManager(Slow())

    async def work() -> None:
        saving = asyncio.ensure_future(manager.asave("k", Agent(1)))
        await asyncio.sleep(0.01)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        gate.set()

    asyncio.run(work())
    assert manager.verify().ok
    assert manager.save("k", Agent(2)).endswith(("-1", "-2"))
