"""The hook does not create a new store in place of one whose disk is not mounted."""

import json
import os
import shutil
from pathlib import Path

import pytest

from agent_checkpoint.agents.agent_events import CLAUDE
from agent_checkpoint.agents.hook.event_saver import EventSaver, Request
from agent_checkpoint.agents.store_mounts import unmounted
from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.errors import StorageError


class Disk:
    """A directory that counts as a mount point while it is mounted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.store = path / "checkpoints"
        self._away = path.with_name("away")
        self._mounts = {"/", str(path)}
        monkeypatch.setattr(os.path, "ismount", lambda one: os.fsdecode(one) in self._mounts)
        path.mkdir()

    def unmount(self) -> None:
        self.path.rename(self._away)
        self.path.mkdir()
        self._mounts.remove(str(self.path))

    def mount(self) -> None:
        shutil.rmtree(self.path)
        self._away.rename(self.path)
        self._mounts.add(str(self.path))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    return Disk(tmp_path / "disk", monkeypatch)


def save(saver: EventSaver, disk: Disk, number: int) -> "str | None":
    event = {
        "session_id": "one",
        "cwd": str(disk.path.parent / "project"),
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_use_id": f"toolu_{number}",
    }
    text = json.dumps(event).encode()
    return saver.save(Request(CLAUDE, str(disk.store), "", "", (), text))


@pytest.mark.parametrize("is_same_process", [True, False])
def test_a_store_that_is_not_mounted_is_not_replaced(disk: Disk, is_same_process: bool) -> None:
    saver = EventSaver(watch=False)
    assert save(saver, disk, 1)
    disk.unmount()
    if not is_same_process:
        saver.close()
        saver = EventSaver(watch=False)
    with pytest.raises(StorageError, match="which is not mounted"):
        save(saver, disk, 2)
    assert list(disk.path.iterdir()) == []
    disk.mount()
    saved = save(saver, disk, 3)
    saver.close()
    assert saved is not None
    assert saved.endswith("-2")


def test_a_store_that_was_deleted_is_created_again(disk: Disk) -> None:
    saver = EventSaver(watch=False)
    assert save(saver, disk, 1)
    shutil.rmtree(disk.store)
    assert save(saver, disk, 2)
    saver.close()


def test_a_new_store_in_the_place_of_the_missing_one_is_used(disk: Disk) -> None:
    saver = EventSaver(watch=False)
    assert save(saver, disk, 1)
    disk.unmount()
    backend = open_named(disk.store)
    assert str(disk.path) in (unmounted(backend) or "")
    backend.append("key/mine", b"{}")
    assert unmounted(backend) is None
    backend.close()
    assert save(saver, disk, 2)
    saver.close()


def test_a_store_on_the_root_file_system_is_not_remembered(disk: Disk, tmp_path: Path) -> None:
    disk.store = tmp_path / "elsewhere"
    saver = EventSaver(watch=False)
    assert save(saver, disk, 1)
    saver.close()
    assert list((tmp_path / "home").rglob("*.mount")) == []
