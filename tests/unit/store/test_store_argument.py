"""A store is named the same way wherever one is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Approvals,
    CheckpointManager,
    MemoryBackend,
    Session,
    Workspace,
    list_sessions,
)
from agent_checkpoint.errors import InvalidInputError


def _session(store: Any) -> None:
    with Session("job", store=store) as session:
        session.save()


def _manager(store: Any) -> None:
    with CheckpointManager(store) as manager:
        manager.save("job", {"step": 1})


def _approvals(store: Any) -> None:
    with Approvals(store) as approvals:
        approvals.pending()


def _workspace(store: Any) -> None:
    directory = Path("files")
    directory.mkdir(exist_ok=True)
    with Workspace(directory, store=store) as workspace:
        workspace.snapshot()
        workspace.store.backend.close()


TAKERS: list[Callable[[Any], object]] = [_manager, _session, list_sessions, _approvals, _workspace]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_function_takes_every_form(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/by-url"
    for store in ("by-name", tmp_path / "by-path", url, MemoryBackend()):
        for take in TAKERS:
            take(store)
    for name in ("by-name", "by-path", "by-url"):
        assert (tmp_path / name / "store.db").is_file()


def test_a_manager_is_shared_and_stays_open() -> None:
    with CheckpointManager("store") as manager:
        for given in (manager, manager.store):
            for take in (_session, list_sessions, _approvals, _manager):
                take(given)
            Workspace(".", given).close()
        assert CheckpointManager(manager).store is manager.store
        assert manager.list_keys() == ["job"]  # not closed by any of them


def test_one_path_is_one_store() -> None:
    _session("store")
    assert [row.key for row in list_sessions("store")] == ["job"]
    assert [row.key for row in list_sessions(Path("store"))] == ["job"]
    with CheckpointManager("store") as manager:
        assert manager.list_keys() == ["job"]


def test_without_a_store_the_default_one_is_listed() -> None:
    _session(None)
    assert [row.key for row in list_sessions()] == ["job"]
    with Approvals() as approvals:
        assert approvals.pending() == []


@pytest.mark.parametrize("bad", [3, b"store", "", ["store"], "nope://x", "memory", "sqlite"])
def test_a_bad_store_is_one_error_everywhere(bad: Any) -> None:
    messages = set()
    for take in TAKERS:
        with pytest.raises(InvalidInputError) as caught:
            take(bad)
        messages.add(str(caught.value))
    assert len(messages) == 1, messages
    assert not list(Path().glob("[!f]*"))  # nothing was created


def test_what_is_no_store_is_said() -> None:
    with pytest.raises(InvalidInputError, match=r"path, a store URL, a Backend or a Checkpoint"):
        list_sessions(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r'backend="memory", or \./memory for a directory'):
        CheckpointManager("memory")


def test_options_fit_what_they_belong_to() -> None:
    with CheckpointManager("store", durability="fast") as manager:
        with pytest.raises(InvalidInputError, match="cannot be combined"):
            CheckpointManager(manager, durability="fast")
        with pytest.raises(InvalidInputError, match="cannot be combined"):
            CheckpointManager(manager, backend="sqlite")
        with pytest.raises(InvalidInputError, match="not both"):
            CheckpointManager("store", path="other")
