"""A clock that no record can follow is an error of ours, before anything is written."""

import time
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session, StorageError


def overflow() -> int:
    raise OverflowError("timestamp too large to convert to C _PyTime_t")


@pytest.mark.parametrize("clock", [lambda: -1, lambda: 1 << 63, lambda: 10**22, overflow])
@pytest.mark.parametrize("backend", ["memory", "file", "sqlite"])
def test_a_time_that_no_record_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, clock: "object"
) -> None:
    options = {} if backend == "memory" else {"path": tmp_path / "store"}
    with CheckpointManager(backend=backend, **options) as manager:
        manager.save("k", {"n": 1})
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", clock)
            with pytest.raises(StorageError, match="clock"):
                manager.save("k", {"n": 2})
        assert manager.state_dict("k") == {"n": 1}
        assert len(manager.history("k")) == 1
        assert manager.verify().ok
        manager.save("k", {"n": 3})


def test_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("s", store=tmp_path / "store") as session:
        session.messages.append({"role": "user"})
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", overflow)
            with pytest.raises(StorageError, match="clock"):
                session.save()
        session.save()
