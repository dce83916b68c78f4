"""Snapshots of a sandbox of the OpenAI Agents SDK in a store."""

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager

pytest.importorskip("agents", reason="needs openai-agents")
from agents.sandbox.errors import SnapshotNotRestorableError
from agents.sandbox.snapshot import SnapshotBase

from agent_checkpoint.adapters.openai_agents import (
    CheckpointSnapshot,
    CheckpointSnapshotSpec,
)


def archive(files: "dict[str, bytes]") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return data.getvalue()


def persist(snapshot: Any, data: bytes) -> None:
    asyncio.run(snapshot.persist(io.BytesIO(data)))


def restored(snapshot: Any) -> bytes:
    return asyncio.run(snapshot.restore()).read()


def test_it_is_restored_byte_for_byte(tmp_path: Path) -> None:
    snapshot = CheckpointSnapshotSpec(store=str(tmp_path / "store")).build("box")
    assert not asyncio.run(snapshot.restorable())
    with pytest.raises(SnapshotNotRestorableError):
        restored(snapshot)
    first = archive({"a": b"1", "b": b"x" * (3 << 20)})
    persist(snapshot, first)
    assert asyncio.run(snapshot.restorable())
    assert restored(snapshot) == first
    persist(snapshot, archive({"a": b"2"}))
    assert restored(snapshot) == archive({"a": b"2"})
    assert len(CheckpointManager(tmp_path / "store").history(snapshot.key)) == 2  # type: ignore[attr-defined]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(
        st.binary(max_size=2000),
        st.dictionaries(st.sampled_from("abc"), st.binary(max_size=900)).map(archive),
    )
)
def test_anything_is_restored(tmp_path_factory: Any, data: bytes) -> None:
    snapshot = CheckpointSnapshot(id="box", store=str(tmp_path_factory.mktemp("store")))
    persist(snapshot, data)
    assert restored(snapshot) == data


def test_files_that_did_not_change_are_stored_once(tmp_path: Path) -> None:
    from random import Random

    big = Random(1).randbytes(500_000)
    snapshot = CheckpointSnapshot(id="box", store=str(tmp_path / "store"))
    persist(snapshot, archive({"a": b"1", "big": big}))
    persist(snapshot, archive({"a": b"2" * 700, "big": big, "new": b"3"}))
    assert CheckpointManager(tmp_path / "store").stats()["stored_bytes"] < 1.5 * len(big)


def test_the_sdk_reads_it_from_a_saved_run(tmp_path: Path) -> None:
    snapshot = CheckpointSnapshot(id="box", store=str(tmp_path / "store"))
    again = SnapshotBase.parse(snapshot.model_dump())
    assert again == snapshot
    persist(snapshot, b"data")
    assert restored(again) == b"data"


@pytest.mark.slow
def test_a_real_sandbox_is_resumed_from_it(tmp_path: Path) -> None:
    local = pytest.importorskip("agents.sandbox.sandboxes.unix_local")

    async def work() -> None:
        client = local.UnixLocalSandboxClient()
        spec = CheckpointSnapshotSpec(store=str(tmp_path / "store"))
        session = await client.create(snapshot=spec, options=None)
        async with session:
            await session.write(Path("a.txt"), io.BytesIO(b"kept"))
        state = client.deserialize_session_state(client.serialize_session_state(session.state))
        await client.delete(session)
        again = await client.resume(state)
        async with again:
            with await again.read(Path("a.txt")) as file:
                assert file.read() == b"kept"
        await client.delete(again)

    asyncio.run(work())
