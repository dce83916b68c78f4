"""Looks at a directory: none misses a change, whatever was known, however the last one ended."""

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Workspace, WorkspaceError
from agent_checkpoint.errors import StorageError
from agent_checkpoint.workspace import safe_open
from agent_checkpoint.workspace.scan import scanner, stat_pass, walk
from agent_checkpoint.workspace.scan.reading import entry_reader, file_reader
from agent_checkpoint.workspace.scan.scan_cache import ScanCache
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import EncodedDirectory, Item
from tests.unit.workspace.disk import describe
from tests.unit.workspace.watching import can_watch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "x").write_text("one")
    (root / "a" / "b" / "y").write_text("two")
    return root


@pytest.fixture(params=[True, False], ids=["watching", "not watching"])
def ws(request: pytest.FixtureRequest, root: Path) -> Iterator[Workspace]:
    if request.param and not can_watch(root):
        pytest.skip("changes cannot be watched here")
    with Workspace(root, CheckpointManager().store, watch=request.param) as workspace:
        workspace.snapshot()
        yield workspace


def full_scan(root: Path) -> Tree:
    return Workspace(root, CheckpointManager().store, watch=False).snapshot()


def sees_everything(workspace: Workspace) -> bool:
    mine, fresh = workspace.snapshot(), full_scan(workspace.path)
    return (mine.id, mine.files, mine.bytes, mine.notes) == (
        fresh.id,
        fresh.files,
        fresh.bytes,
        fresh.notes,
    )


# -- changes during a walk -----------------------------------------------------------------------


def _replace(root: Path) -> None:
    (root / "a" / "b").rename(root / "old")
    (root / "a" / "b").mkdir()
    (root / "a" / "b" / "z").write_text("another")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "z").rename(root / "0"),
        lambda root: (root / "a").rename(root / "0"),
        lambda root: (root / "a" / "b").rename(root / "b"),
        lambda root: (root / "z").rename(root / "a" / "b" / "z"),
        _replace,
        lambda root: (root / ".checkpointignore").write_text("x\n"),
    ],
    ids=["file", "directory", "directory up", "file down", "replaced", "rules"],
)
def test_a_first_snapshot_has_what_moved_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    if not can_watch(root):
        pytest.skip("changes cannot be watched here")
    (root / "z").write_text("three")
    real, changes = file_reader.FileReader.wait, [change]

    def wait(reader: file_reader.FileReader, batch: int) -> None:
        if changes:
            changes.pop()(root)
        real(reader, batch)

    monkeypatch.setattr(file_reader.FileReader, "wait", wait)
    with Workspace(root, CheckpointManager().store) as workspace:
        found = workspace.snapshot()
        assert not changes
        if (root / ".checkpointignore").exists():
            found = workspace.snapshot()  # other rules: the next one applies them
        assert (found.id, found.files) == (full_scan(root).id, full_scan(root).files)
        assert sees_everything(workspace)
        (root / "later").write_text("later")
        assert sees_everything(workspace)


@pytest.mark.parametrize("overflows", [False, True])
def test_a_first_snapshot_has_a_hard_link_that_moved_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch, overflows: bool
) -> None:
    if not can_watch(root):
        pytest.skip("changes cannot be watched here")
    (root / "z").write_text("three")
    os.link(root / "z", root / "y")
    real, moves = file_reader.FileReader.wait, [("a/b/y", "2"), ("a/x", "1"), ("z", "0")]

    def wait(reader: file_reader.FileReader, batch: int) -> None:
        while moves:
            before, after = moves.pop()
            (root / before).rename(root / after)
        real(reader, batch)

    monkeypatch.setattr(file_reader.FileReader, "wait", wait)
    with Workspace(root, CheckpointManager().store) as workspace:
        if overflows:
            monkeypatch.setattr("agent_checkpoint.workspace.changes.inotify.Watcher.drain", _none)
        found = workspace.snapshot()
        assert not moves
        assert (found.id, found.files) == (full_scan(root).id, full_scan(root).files)
        monkeypatch.undo()
        assert sees_everything(workspace)


def _none(watcher: object) -> None:
    """As if the queue of events had overflowed."""


def test_a_stat_pass_has_what_moved_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_watch(root):
        pytest.skip("changes cannot be watched here")
    (root / "z").write_text("three")
    with Workspace(root, CheckpointManager().store) as workspace:
        workspace.snapshot()
        real = stat_pass.StatPass.run

        def run(self: stat_pass.StatPass, known: Any) -> None:
            real(self, known)
            (root / "z").rename(root / "a" / "z")

        monkeypatch.setattr(stat_pass.StatPass, "run", run)
        found = workspace.snapshot(full=True)
        assert found.id == full_scan(root).id
        assert sees_everything(workspace)


# -- files with several names --------------------------------------------------------------------


def test_a_write_by_another_name_is_seen(ws: Workspace) -> None:
    os.link(ws.path / "a" / "x", ws.path / "a" / "b" / "other")
    assert sees_everything(ws)
    time.sleep(0.025)
    (ws.path / "a" / "b" / "other").write_text("changed")
    assert sees_everything(ws)
    (ws.path / "a" / "x").write_text("once more")
    assert sees_everything(ws)


def test_a_mode_set_by_another_name_is_seen(ws: Workspace) -> None:
    os.link(ws.path / "a" / "x", ws.path / "a" / "b" / "other")
    assert sees_everything(ws)
    (ws.path / "a" / "b" / "other").chmod(0o755)
    assert sees_everything(ws)


def test_a_write_by_a_name_that_came_and_goes_is_seen(ws: Workspace) -> None:
    os.link(ws.path / "a" / "x", ws.path / "a" / "b" / "other")
    assert sees_everything(ws)
    (ws.path / "a" / "b" / "other").write_text("changed")
    (ws.path / "a" / "b" / "other").unlink()
    assert sees_everything(ws)


def test_a_write_by_another_name_in_a_directory_that_moved_is_seen(ws: Workspace) -> None:
    os.link(ws.path / "a" / "x", ws.path / "a" / "b" / "other")
    assert sees_everything(ws)
    (ws.path / "a" / "b").rename(ws.path / "moved")
    (ws.path / "moved" / "other").write_text("changed")
    assert sees_everything(ws)
    (ws.path / "moved" / "other").write_text("changed again")
    assert sees_everything(ws)


# -- what is left out ----------------------------------------------------------------------------


def test_nothing_is_said_of_a_special_that_is_gone(ws: Workspace) -> None:
    os.mkfifo(ws.path / "a" / "fifo")
    assert [note.path for note in ws.snapshot().notes] == ["a/fifo"]
    (ws.path / "a" / "fifo").unlink()
    assert ws.snapshot().notes == ()


def test_a_directory_is_not_held_by_what_was_left_out_and_is_gone(root: Path) -> None:
    with Workspace(root, CheckpointManager().store, ignore=["*.log"], watch=False) as ws:
        tree = ws.snapshot()
        (root / "new").mkdir()
        (root / "new" / "debug.log").write_text("noise")
        ws.snapshot()
        (root / "new" / "debug.log").unlink()
        plan = ws.restore(tree)
        assert not (root / "new").exists()
        assert plan.leave == {}


def test_a_special_that_became_a_file_is_captured(ws: Workspace) -> None:
    os.mkfifo(ws.path / "a" / "fifo")
    ws.snapshot()
    (ws.path / "a" / "fifo").unlink()
    (ws.path / "a" / "fifo").write_text("a file")
    assert sees_everything(ws)
    (ws.path / "a" / "fifo").unlink()
    (ws.path / "a" / "fifo").mkdir()
    assert sees_everything(ws)


def test_what_was_said_of_a_file_is_not_said_of_what_takes_its_place(ws: Workspace) -> None:
    (ws.path / "a" / "x").chmod(0o4755)
    assert [(note.path, note.kind) for note in ws.snapshot().notes] == [("a/x", "setuid")]
    (ws.path / "a" / "x").unlink()
    (ws.path / "a" / "x").mkdir()
    assert ws.snapshot().notes == ()


def test_new_rules_hold_at_once(ws: Workspace) -> None:
    (ws.path / "a" / "debug.log").write_text("noise")
    assert sees_everything(ws)
    (ws.path / ".checkpointignore").write_text("*.log\n")
    assert ws.snapshot().files == 3
    assert sees_everything(ws)
    (ws.path / ".checkpointignore").unlink()
    assert ws.snapshot().files == 3
    assert sees_everything(ws)


def test_rules_of_a_directory_that_moved_hold_where_it_is_now(root: Path) -> None:
    (root / "a" / "b" / ".gitignore").write_text("/y\n")
    with Workspace(root, CheckpointManager().store, gitignore=True) as ws:
        assert ws.snapshot().files == 2
        (root / "a" / "b").rename(root / "c")
        (root / "a" / "y").write_text("elsewhere")
        assert ws.snapshot().files == 3


@pytest.mark.parametrize("when", ["before it is read", "before its stat"])
@pytest.mark.parametrize("new", ["", "*.log\n", None])
def test_rules_that_change_after_they_were_applied_hold_at_the_next_scan(
    ws: Workspace, new: "str | None", when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = ws.path / ".checkpointignore"
    (ws.path / "debug.log").write_text("noise")
    (ws.path / "kept").write_text("kept")
    rules.write_text("kept\n")
    changed: list[bytes] = []
    place = walk.TreeWalk if when == "before it is read" else walk
    name = "_read_changed" if when == "before it is read" else "_note_invalid_rules"
    real = getattr(place, name)

    def late(*arguments: Any) -> None:
        if not changed:
            changed.append(b"")
            rules.unlink() if new is None else rules.write_text(new)
            time.sleep(0.05)  # so that the file does not count as being written
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, late)
        ws.snapshot()
    assert changed
    assert sees_everything(ws)


# -- looks that fail -----------------------------------------------------------------------------


@pytest.fixture
def limited(root: Path) -> Workspace:
    workspace = Workspace(root, CheckpointManager().store, limit=1000)
    workspace.snapshot()
    return workspace


def test_a_scan_that_went_over_the_limit_loses_no_change(limited: Workspace) -> None:
    (limited.path / "a" / "x").write_text("changed")
    (limited.path / "big").write_bytes(bytes(2000))
    with pytest.raises(WorkspaceError):
        limited.snapshot()
    (limited.path / "big").unlink()
    assert sees_everything(limited)


def test_a_scan_that_met_bad_rules_loses_no_change(ws: Workspace) -> None:
    (ws.path / "a" / "x").write_text("changed")
    (ws.path / ".checkpointignore").write_text("x" * 2000 + "\nnone\n")
    (ws.path / "none").touch()
    for full in (False, True, False):
        (note,) = ws.snapshot(full=full).notes
        assert (note.path, note.kind) == (".checkpointignore", "rules")
        assert "line 1" in note.text
    assert sees_everything(ws)
    (ws.path / "none").unlink()
    (ws.path / ".checkpointignore").unlink()
    assert sees_everything(ws)


@pytest.mark.parametrize("at", ["what was touched", "everything", "handing over"])
@pytest.mark.parametrize("error", [StorageError("no"), KeyboardInterrupt(), MemoryError()])
def test_an_interrupted_scan_loses_no_change(
    ws: Workspace, error: BaseException, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    if at == "everything":
        ws.close()  # as when the watcher is in doubt: what is known is compared with what is there
    (ws.path / "a" / "x").write_text("changed")
    (ws.path / "a" / "b").rename(ws.path / "moved")
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        if at == "handing over":
            patch.setattr(ScanCache, "_put_again", fail)
        else:
            patch.setattr(entry_reader, "read_whole", fail)
        ws.snapshot()
    assert sees_everything(ws)


def test_a_checkpoint_that_failed_loses_no_change(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise StorageError("the disk is gone")

    (ws.path / "a" / "x").write_text("changed")
    (ws.path / "new").mkdir()
    (ws.path / "new" / "file").write_text("new")
    for attempt in range(2):
        with monkeypatch.context() as patch, pytest.raises(StorageError):
            patch.setattr(ws.store.backend, "append", fail)
            ws.snapshot()
        (ws.path / "new" / f"file{attempt}").write_text("newer")
    assert sees_everything(ws)
    tree, before = ws.snapshot(), describe(ws.path)
    (ws.path / "new" / "file").unlink()
    ws.restore(tree)
    assert describe(ws.path) == before


def test_a_preview_leaves_nothing_to_be_forgotten(ws: Workspace) -> None:
    tree = ws.snapshot()
    (ws.path / "a" / "x").write_text("changed")
    ws.restore(tree, dry_run=True)
    ws.diff(tree)
    assert sees_everything(ws)
    before = describe(ws.path)
    changed = ws.snapshot()
    ws.restore(tree)
    ws.restore(changed)
    assert describe(ws.path) == before


# -- what no event tells -------------------------------------------------------------------------


def through_a_map(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[0] = ord("!")


@pytest.mark.parametrize(
    "look",
    [lambda ws: ws.snapshot(full=True), lambda ws: ws.restore(full_scan(ws.path)).safety],
    ids=["a full snapshot", "a restore"],
)
def test_some_scans_are_full(
    root: Path, tmp_path: Path, look: "Callable[[Workspace], Tree]"
) -> None:
    os.link(root / "a" / "x", tmp_path / "outside")
    with Workspace(root, CheckpointManager().store) as ws:
        ws.snapshot()
        time.sleep(0.025)
        (tmp_path / "outside").write_text("changed from outside")
        assert look(ws).id == full_scan(root).id


def test_a_full_scan_follows_every_minute(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.link(root / "a" / "x", tmp_path / "outside")
    with Workspace(root, CheckpointManager().store) as ws:
        ws.snapshot()
        time.sleep(0.025)
        (tmp_path / "outside").write_text("changed from outside")
        monkeypatch.setattr(scanner, "_FULL_SCAN_AFTER", 0.0)
        assert ws.snapshot().id == full_scan(root).id


def test_a_store_through_a_map_is_seen_when_that_is_closed(ws: Workspace) -> None:
    through_a_map(ws.path / "a" / "x")
    assert sees_everything(ws)
    time.sleep(0.025)
    through_a_map(ws.path / "a" / "b" / "y")
    assert sees_everything(ws)


def test_a_store_to_a_page_that_was_dirty_is_seen(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first store to a page sets a time."""
    monkeypatch.setattr(safe_open, "_FINE_NS", 0)
    monkeypatch.setattr(safe_open, "_COARSE_NS", 0)  # as if seconds had passed
    file = root / "a" / "x"
    with Workspace(root, CheckpointManager().store, watch=False) as ws:
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
            mapped[0:1] = b"1"
            ws.snapshot()
            mapped[0:1] = b"2"
        assert sees_everything(ws)


# -- the cost of a change --------------------------------------------------------------------------


def test_changes_in_a_wide_directory_are_seen(ws: Workspace) -> None:
    for number in range(600):
        (ws.path / "a" / f"{number}").write_text(f"{number}")
    assert sees_everything(ws)
    for number in (0, 333, 599):
        (ws.path / "a" / f"{number}").write_text("changed")
        (ws.path / "a" / f"{number}-new").mkdir()
        (ws.path / "a" / f"{number}-new" / "x").write_text("x")
        (ws.path / "a" / f"{number // 2 + 100}").unlink()
        assert sees_everything(ws)
    assert not ws.diff(ws.snapshot())


def test_notes_of_a_subdirectory_reach_the_top(ws: Workspace) -> None:
    os.mkfifo(ws.path / "a" / "b" / "fifo")
    assert sees_everything(ws)
    assert [note.path for note in ws.snapshot().notes] == ["a/b/fifo"]
    (ws.path / "a" / "b" / "fifo").unlink()
    assert sees_everything(ws)


def test_a_change_encodes_only_the_changed_entries(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_watch(root):
        pytest.skip("changes cannot be watched here")
    for number in range(300):
        (root / "a" / f"{number}").write_text(f"{number}")
    encoded: list[bytes] = []
    real = EncodedDirectory.__init__

    def encode(self: EncodedDirectory, items: Iterable[Item]) -> None:
        items = list(items)
        encoded.extend(item.name for item in items)
        real(self, items)

    monkeypatch.setattr(EncodedDirectory, "__init__", encode)
    with Workspace(root, CheckpointManager().store) as workspace:
        workspace.snapshot()
        (root / "a" / "7").write_text("once")  # encodes the directories on the way
        workspace.snapshot()
        encoded.clear()
        (root / "a" / "8").write_text("twice")
        (root / "a" / "new").write_text("new")
        assert sees_everything(workspace)
        assert encoded[:3] == [b"8", b"new", b"a"]
