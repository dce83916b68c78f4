"""Stores among the files: whoever saves there is told that it is durable, and so it stays."""

import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from agent_checkpoint import CheckpointManager, Workspace, WorkspaceError


def keys(path: Path, backend: str) -> list[str]:
    with CheckpointManager(backend=backend, path=path) as manager:
        return manager.list_keys()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    (place / "a").write_text("one")
    return place


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_a_restore_leaves_the_stores_of_others(
    place: Path, tmp_path: Path, backend: str, watch: bool
) -> None:
    (place / "data" / "store").mkdir(parents=True)  # not yet one
    own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
    with own, Workspace(place, own.store, watch=watch) as ws:
        empty = ws.snapshot()
        other = CheckpointManager(backend=backend, path=place / "data" / "store")
        with other:
            other.save("first", {"n": 1})
            tree = ws.snapshot()
            assert [(note.path, note.text) for note in tree.notes] == [
                ("data/store", "a store of agent-checkpoint that is in use")
            ]
            (place / "a").write_text("two")
            other.save("second", {"n": 2})
            for target in (tree, empty):
                ws.restore(target)
                other.save("third", {"n": 3})
                assert keys(place / "data" / "store", backend) == ["first", "second", "third"]
            assert (place / "a").read_text() == "one"
            assert other.verify().ok
        assert ws.snapshot(full=True).id == tree.id


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_what_was_captured_before_it_was_told_apart_is_left_alone(
    place: Path, tmp_path: Path, own_home: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
    with CheckpointManager(backend=backend, path=place / "store") as other:
        other.save("first", {"n": 1})
    with own, monkeypatch.context() as patch:
        patch.setattr("agent_checkpoint.workspace.scan.walk.is_store", Mock(return_value=False))
        with Workspace(place, own.store) as ws:
            tree = ws.snapshot()
    assert not tree.notes
    for index in [*own_home.rglob("index"), *tmp_path.rglob("index")]:
        shutil.rmtree(index)
    with CheckpointManager(backend=backend, path=place / "store") as other:
        other.save("second", {"n": 2})
    own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
    with own, Workspace(place, own.store) as ws:
        assert "store" in "".join(ws.restore(tree).leave)
    assert keys(place / "store", backend) == ["first", "second"]


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_the_store_of_another_is_no_workspace(tmp_path: Path, backend: str) -> None:
    with CheckpointManager(backend=backend, path=tmp_path / "store") as other:
        other.save("first", {"n": 1})
    with CheckpointManager(backend="sqlite", path=tmp_path / "own") as own:
        ws = Workspace(tmp_path / "store", own.store)
        with ws, pytest.raises(WorkspaceError, match="is a store and cannot be a workspace"):
            ws.snapshot()


def test_the_store_of_another_is_not_watched(place: Path, tmp_path: Path) -> None:
    own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
    with own, CheckpointManager(backend="sqlite", path=place / "store") as other:
        other.save("first", {"n": 1})
        with Workspace(place, own.store) as ws:
            ws.snapshot()
            source = ws._scanner._source
            assert source is not None
            other.save("second", {"n": 2})
            (place / "a").write_text("two")
            changed = source.drain()
            assert changed is not None
            assert changed.names == {b"": {b"a"}}


def test_another_database_of_that_name_is_a_file(place: Path, tmp_path: Path) -> None:
    (place / "x").mkdir()
    (place / "x" / "store.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
    with own, Workspace(place, own.store) as ws:
        tree = ws.snapshot()
    assert (tree.files, list(tree.notes)) == (2, [])


def test_the_database_of_another_is_never_opened(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close it would take the locks of SQLite from whoever uses it in this process."""
    opened: list[str] = []
    real = os.open

    def noting(path: Any, *rest: Any, **options: Any) -> int:
        opened.append(os.fsdecode(path) if isinstance(path, (str, bytes, Path)) else "")
        return real(path, *rest, **options)

    own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
    other = CheckpointManager(backend="sqlite", path=place / "store")
    with own, other, Workspace(place, own.store) as ws:
        other.save("first", {"n": 1})
        tree = ws.snapshot()
        monkeypatch.setattr(os, "open", noting)
        (place / "a").write_text("two")
        other.save("second", {"n": 2})
        ws.snapshot(full=True)
        ws.restore(tree)
        with ws.fork(tmp_path / "fork", driver="copy") as fork:
            assert [path.name for path in fork.path.iterdir()] == ["a"]
    assert opened
    assert not [path for path in opened if "store.db" in path]
