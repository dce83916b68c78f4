"""Whose line a key is: hosts, and what a claim is worth."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, MemoryBackend, Workspace, WrapperBackend
from agent_checkpoint.backends.base import BackendProperties
from agent_checkpoint.records import Claim
from agent_checkpoint.store import directory_claims
from agent_checkpoint.store.directory_claims import host_of, make_claim, why_not_owned
from agent_checkpoint.workspace.directory_key import key_of, natural_key, own_key


class RemoteBackend(WrapperBackend):
    """A backend that stands for one which several hosts use."""

    @property
    def properties(self) -> BackendProperties:
        return self.inner.properties._replace(is_local=False)


def test_a_machine_that_is_renamed_keeps_the_lines_of_its_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert host_of(MemoryBackend()) == ""
    renamed = os.uname_result(("Linux", "another", "6", "1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: renamed)
    assert host_of(MemoryBackend()) == ""
    monkeypatch.setenv("AGENT_CHECKPOINT_HOST", "web-1")
    assert host_of(MemoryBackend()) == "web-1"


def test_a_shared_store_tells_machines_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend, found = RemoteBackend(MemoryBackend()), []
    for number, text in enumerate(("aaaa\n", "bbbb\n", "aaaa\n", None)):
        path = tmp_path / str(number)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(directory_claims, "_MACHINE", path)
        found.append(host_of(backend))
    assert found[0] == found[2]
    assert len(set(found)) == 3
    assert "aaaa" not in found[0]


def test_what_nobody_claims_is_foreign_in_a_shared_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = CheckpointManager(RemoteBackend(MemoryBackend()))
    manager.save(key_of(tmp_path), {"n": 1})
    assert own_key(manager.store, tmp_path) == key_of(tmp_path, 2)
    Workspace(tmp_path, manager.store, watch=False).snapshot()
    assert own_key(manager.store, tmp_path) == key_of(tmp_path, 2)
    assert len(manager.history(key_of(tmp_path))) == 1


@pytest.mark.parametrize("wrong", [{"path": "/elsewhere"}, {"host": "web-9"}, {"seal": "0" * 64}])
def test_each_member_of_a_claim_counts(tmp_path: Path, wrong: "dict[str, Any]") -> None:
    manager = CheckpointManager()
    workspace = Workspace(tmp_path, manager.store, watch=False)
    workspace.snapshot()
    head = manager.store.head(workspace.key)
    assert head is not None
    assert head.claim == make_claim(manager.store.backend, key_of(tmp_path), tmp_path)
    assert why_not_owned(manager.store, head) is None
    assert isinstance(head.claim, Claim)
    forged = head._replace(claim=head.claim._replace(**wrong))
    assert why_not_owned(manager.store, forged) is not None
    assert why_not_owned(manager.store, head._replace(key="another")) is not None


def test_a_numbered_key_is_that_of_no_other_directory(tmp_path: Path) -> None:
    assert natural_key(key_of(tmp_path, 2)) == key_of(tmp_path) == natural_key(key_of(tmp_path))
    deep = Path("/" + "x" * 2000)
    assert natural_key(key_of(deep, 3)) == key_of(deep)
    assert key_of(Path("/a//2")) == key_of(Path("/a/2")) != key_of(Path("/a"), 2)
