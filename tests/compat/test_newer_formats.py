"""A store of a newer format is refused with a clear message, as far as it must be."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, FormatError
from agent_checkpoint.store.checkpoint_entries import seal_entry
from tests.compat import reader
from tests.compat.conftest import V1, Open

STORES = ("sqlite", "file")
NEWER_TO_READ = {"read": 2, "write": 2, "features": []}
NEWER_TO_WRITE = {"read": 1, "write": 2, "features": []}
WITH_A_FEATURE = {"read": 1, "write": 1, "features": ["folders"]}


def demand(manager: CheckpointManager, record: "dict[str, Any]") -> None:
    backend = manager.store.backend
    backend.append("meta/format", seal_entry(dict(record), indent=backend.readable))


@pytest.mark.parametrize("name", STORES)
def test_a_newer_format_to_write_is_still_read(name: str, open_golden: Open) -> None:
    with open_golden(name) as manager:
        demand(manager, NEWER_TO_WRITE)
        assert manager.state_dict("plain")["step"] == 2
        with pytest.raises(FormatError, match=r"format 2.*Install a newer agent-checkpoint"):
            manager.save("plain", {})
        with pytest.raises(FormatError):
            manager.delete("plain")


@pytest.mark.parametrize("record", [NEWER_TO_READ, WITH_A_FEATURE], ids=["format", "feature"])
@pytest.mark.parametrize("name", STORES)
def test_a_newer_format_to_read_is_refused(
    name: str, record: "dict[str, Any]", open_golden: Open
) -> None:
    with open_golden(name) as manager:
        demand(manager, record)
        state = {"as": "it was"}
        with pytest.raises(FormatError, match="Install a newer agent-checkpoint"):
            manager.load("plain", state)
        assert state == {"as": "it was"}
        with pytest.raises(FormatError, match="Install a newer agent-checkpoint"):
            manager.save("plain", state)
        manager.close()
        with pytest.raises(reader.Refused):
            reader.read(manager.store.backend.path)  # type: ignore[attr-defined]


def test_a_feature_is_named(open_golden: Open) -> None:
    with open_golden("file") as manager:
        demand(manager, WITH_A_FEATURE)
        with pytest.raises(FormatError, match="folders"):
            manager.state_dict("plain")


@pytest.mark.parametrize("name", STORES)
def test_one_newer_entry_harms_itself_alone(name: str, open_golden: Open) -> None:
    with open_golden(name) as manager:
        backend = manager.store.backend
        old = backend.read("key/plain", newest_first=True, limit=1)[0].data
        record = {**reader.open_record(old), "agent_checkpoint": 2}
        del record["sha256"]
        backend.append("key/plain", seal_entry(record))
        with pytest.raises(FormatError, match="format 2"):
            manager.state_dict("plain")
        assert manager.history("plain", n=1)[0]["kind"] == "unreadable"
        assert manager.state_dict("plain", "plain@5")["step"] == 2
        manager.save("plain", {"step": 3})
        assert manager.state_dict("plain") == {"step": 3}


def test_a_newer_schema_of_the_database_is_refused(open_golden: Open) -> None:
    with open_golden("sqlite") as manager:
        path: Path = manager.store.backend.path  # type: ignore[attr-defined]
    db = sqlite3.connect(path / "store.db")
    db.execute("PRAGMA user_version=2")
    db.close()
    with CheckpointManager(backend="sqlite", path=path) as manager:
        with pytest.raises(FormatError, match="schema version 2"):
            manager.state_dict("plain")
        with pytest.raises(FormatError, match="schema version 2"):
            manager.save("plain", {})


def test_a_newer_archive_is_refused(tmp_path: Path) -> None:
    data = (V1 / "fork.ckpt").read_bytes()
    newer = tmp_path / "newer.ckpt"
    newer.write_bytes(data.replace(b"archive 1\n", b"archive 2\n", 1))
    manager = CheckpointManager()
    with pytest.raises(FormatError, match="format 2"):
        manager.import_archive(newer)
    assert manager.list_keys() == []
