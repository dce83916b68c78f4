"""Snapshots: what is taken, what is refused, and what they tell."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    IntegrityError,
    UnsafeWorkspaceError,
    Workspace,
    WorkspaceError,
)
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.store.objects.object_format import make_object
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.tree.snapshot import RECORD, read_record
from tests.unit.workspace.disk import describe
from tests.unit.workspace.nobody import as_nobody, place_of_nobody


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("some text")
    return root


# -- where it may be -----------------------------------------------------------------------------


def test_the_whole_system_is_refused() -> None:
    with pytest.raises(UnsafeWorkspaceError, match="force=True"):
        Workspace("/")


@pytest.mark.parametrize("below", ["", "link", "file/.."])
def test_a_home_directory_is_refused(own_home: Path, tmp_path: Path, below: str) -> None:
    (own_home / "file").mkdir()
    place = own_home / below if below != "link" else tmp_path / "link"
    if below == "link":
        place.symlink_to(own_home)
    with pytest.raises(UnsafeWorkspaceError, match=re.escape(str(own_home))):
        Workspace(place)


def test_what_holds_a_home_directory_is_refused(own_home: Path) -> None:
    with pytest.raises(UnsafeWorkspaceError):
        Workspace(own_home.parent)


def test_a_home_directory_is_taken_if_that_is_meant(own_home: Path, tmp_path: Path) -> None:
    (own_home / "file").write_text("mine")
    with CheckpointManager(backend="sqlite", path=tmp_path / "elsewhere") as manager:
        tree = Workspace(own_home, manager.store, force=True).snapshot()
    assert tree.files == 1


def test_a_directory_in_the_home_directory_is_fine(own_home: Path) -> None:
    (own_home / "project").mkdir()
    assert Workspace(own_home / "project").snapshot().files == 0


@pytest.mark.parametrize("name", ["gone", "file"])
def test_there_has_to_be_a_directory(root: Path, name: str) -> None:
    with pytest.raises(WorkspaceError, match=r"not a directory|does not exist"):
        Workspace(root / name)


def test_a_directory_that_is_gone_since_is_an_error(ws: Workspace) -> None:
    ws.snapshot()
    ws.path.rename(ws.path.with_name("elsewhere"))
    with pytest.raises(WorkspaceError, match="root"):
        ws.snapshot()


def test_a_directory_may_be_named_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    workspace = Workspace(tmp_path / "link", CheckpointManager().store)
    assert workspace.path == root
    assert workspace.snapshot().files == 1


# -- what is taken -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["store", "deep/er/store", ".agent"])
@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_a_store_in_the_workspace_is_left_out(root: Path, place: str, backend: str) -> None:
    with CheckpointManager(backend=backend, path=root / place) as manager:
        manager.save("something", {"x": 1})
        workspace = Workspace(root, manager.store)
        first = workspace.snapshot()
        assert first.files == 1
        (root / "file").write_text("changed")
        manager.save("key", {"workspace": workspace})
        assert workspace.snapshot().files == 1
        plan = workspace.restore(first)
        assert (root / "file").read_text() == "some text"
        assert plan.delete == []
        assert manager.verify().problems == ()
        assert manager.state_dict("something") == {"x": 1}


def test_a_store_that_came_into_the_workspace_since_is_left_alone(
    root: Path, tmp_path: Path
) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        tree = Workspace(root, manager.store).snapshot()
        manager.export_archive(tmp_path / "archive", *manager.list_keys())
    with CheckpointManager(backend="sqlite", path=root / "new" / "store") as manager:
        manager.import_archive(tmp_path / "archive")
        workspace = Workspace(root, manager.store)
        plan = workspace.restore(ObjectRef(tree.ref, manager.store.backend))
        assert plan.leave == {"new": "it holds entries that are left alone"}
        assert manager.verify().problems == ()


def test_the_users_own_store_is_used_if_none_is_given(root: Path, own_home: Path) -> None:
    workspace = Workspace(root)
    tree = workspace.snapshot()
    assert (own_home / "store" / "store" / "store.db").is_file()
    (root / "file").unlink()
    Workspace(root).restore(tree)
    assert (root / "file").read_text() == "some text"


def test_a_snapshot_is_a_checkpoint_of_the_workspace_alone(
    ws: Workspace, manager: CheckpointManager
) -> None:
    ws.snapshot(label="first")
    ws.snapshot()
    ws.snapshot(label="the same, and yet named")
    assert [entry["label"] for entry in manager.history(ws.key)] == [
        "the same, and yet named",
        "first",
    ]
    assert ws.key == f"workspace:{ws.path}"


def test_a_long_path_has_a_key_too(tmp_path: Path) -> None:
    root = tmp_path.joinpath(*["ü" * 100] * 6)
    root.mkdir(parents=True)
    workspace = Workspace(root, CheckpointManager().store)
    assert len(workspace.key.encode()) <= 1024
    assert workspace.snapshot().files == 0


def test_a_path_that_is_no_text_has_a_key_too(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(root)
    except OSError:
        pytest.skip("names are text here")
    workspace = Workspace(os.fsdecode(root), CheckpointManager().store)
    workspace.snapshot(label="one")
    assert workspace.store.head(workspace.key) is not None


def test_what_only_a_safety_checkpoint_has_is_not_taken_for_saved(
    ws: Workspace, manager: CheckpointManager
) -> None:
    tree = ws.snapshot()
    (ws.path / "file").write_text("changed")
    ws.restore(tree, paths=["nothing"])
    kept = ws.snapshot()
    for number in range(12):  # more than safety checkpoints are kept
        (ws.path / "file").write_text(f"{number}")
        ws.restore(tree)
    manager.gc()
    ws.restore(kept)
    assert (ws.path / "file").read_text() == "changed"


# -- how much it may be --------------------------------------------------------------------------


def test_too_much_is_refused_and_says_where_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, size in {"node_modules/x/big": 3_000_000, "src/small": 10, "top": 1 << 20}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes(size))
    with pytest.raises(WorkspaceError) as caught:
        Workspace(root, CheckpointManager().store, limit=2_000_000).snapshot()
    words = str(caught.value)
    assert "more than 2 MB" in words
    assert "node_modules (3 MB)" in words
    assert "ignore=" in words
    assert ".checkpointignore" in words
    assert "limit=" in words
    ignoring = Workspace(root, CheckpointManager().store, limit=2 << 20, ignore=["node_modules"])
    assert ignoring.snapshot().files == 2
    assert Workspace(root, CheckpointManager().store, limit=None).snapshot().files == 3


def test_the_limit_is_for_what_is_new(root: Path, manager: CheckpointManager) -> None:
    # A file that is as new as the last scan is read again: three files at the most.
    ws = Workspace(root, manager.store, limit=2000)
    for number in range(5):
        (root / f"{number}").write_bytes(bytes([number]) * 600)
        assert ws.snapshot().files == number + 2
    with pytest.raises(WorkspaceError, match="more than 2 kB"):
        Workspace(root, CheckpointManager().store, limit=2000).snapshot()


def test_the_limit_is_not_for_what_a_restore_wrote(root: Path, manager: CheckpointManager) -> None:
    # What is as new as a look at it is read again at the next, and what was told if somebody mounts
    # something elsewhere meanwhile: three files at the most.
    ws = Workspace(root, manager.store, limit=2000)
    for number in range(5):
        (root / f"{number}").write_bytes(bytes([number]) * 600)
        time.sleep(0.025)
        tree = ws.snapshot()
    before = describe(root)
    for path in root.iterdir():
        path.unlink()
    ws.restore(tree)
    assert describe(root) == before


def test_progress_is_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(600):
        (root / f"{number}").write_text("12345")
    told: list[tuple[int, int]] = []
    ws = Workspace(root, CheckpointManager().store, progress=lambda *numbers: told.append(numbers))
    ws.snapshot()
    assert told == sorted(told)
    assert len(told) >= 3
    assert told[-1] == (600, 3000)


def test_one_who_is_told_of_progress_may_stop_it(root: Path) -> None:
    def stop(files: int, size: int) -> None:
        raise KeyboardInterrupt

    ws = Workspace(root, CheckpointManager().store, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        ws.snapshot()
    assert ws.store.head(ws.key) is None


# -- what cannot be read -------------------------------------------------------------------------


@pytest.fixture
def closed() -> "Iterator[Path]":
    """A workspace with a directory and a file that its user cannot read."""
    with place_of_nobody() as root, as_nobody():
        (root / "closed").mkdir()
        (root / "closed" / "inside").write_text("inside")
        (root / "secret").write_text("secret")
        (root / "open").write_text("open")
        (root / "closed").chmod(0o000)
        (root / "secret").chmod(0o000)
        yield root
        (root / "closed").chmod(0o700)


@pytest.mark.parametrize("watch", [True, False])
def test_a_snapshot_says_that_it_is_incomplete(closed: Path, watch: bool) -> None:
    tree = Workspace(closed, CheckpointManager().store, watch=watch).snapshot()
    assert tree.incomplete
    assert [(note.path, note.kind) for note in tree.notes] == [
        ("closed", "unreadable"),
        ("secret", "unreadable"),
    ]
    assert tree.files == 1


@pytest.mark.parametrize("watch", [True, False])
def test_what_can_be_read_again_is_captured_again(closed: Path, watch: bool) -> None:
    ws = Workspace(closed, CheckpointManager().store, watch=watch)
    ws.snapshot()
    (closed / "closed").chmod(0o700)
    (closed / "secret").chmod(0o600)
    tree = ws.snapshot()
    assert not tree.incomplete
    assert tree.files == 3


@pytest.mark.parametrize("watch", [True, False])
def test_what_can_no_longer_be_read_is_no_longer_in_the_tree(closed: Path, watch: bool) -> None:
    ws = Workspace(closed, CheckpointManager().store, watch=watch)
    (closed / "closed").chmod(0o700)
    whole = ws.snapshot()
    (closed / "closed").chmod(0o000)
    tree = ws.snapshot()
    assert tree.incomplete
    assert tree.id != whole.id
    assert tree.files == 1


def test_what_a_checkpoint_could_not_read_is_not_deleted(closed: Path) -> None:
    ws = Workspace(closed, CheckpointManager().store)
    tree = ws.snapshot()
    (closed / "closed").chmod(0o700)
    (closed / "secret").chmod(0o600)
    (closed / "open").write_text("changed")
    before = describe(closed)
    plan = ws.restore(tree)
    left = "it could not be read when the checkpoint was taken"
    assert plan.leave == {"closed": left, "secret": left}
    assert {**before, b"open": before[b"open"]._replace(content=b"open")} == describe(closed)


def test_what_cannot_be_read_now_is_not_overwritten(closed: Path) -> None:
    ws = Workspace(closed, CheckpointManager().store)
    (closed / "closed").chmod(0o700)
    (closed / "secret").chmod(0o600)
    tree = ws.snapshot()
    (closed / "secret").write_text("never seen")
    (closed / "secret").chmod(0o000)
    (closed / "closed").chmod(0o000)
    plan = ws.restore(tree)
    assert {path: why[:19] for path, why in plan.leave.items()} == {
        "closed": "it cannot be read (",
        "secret": "it cannot be read (",
    }
    (closed / "secret").chmod(0o600)
    assert (closed / "secret").read_text() == "never seen"


# -- the record ----------------------------------------------------------------------------------


def test_a_record_is_read_back(ws: Workspace, manager: CheckpointManager) -> None:
    os.mkfifo(ws.path / "fifo\udcff")
    tree = ws.snapshot()
    assert tree.notes[0].path == "fifo\udcff"
    assert read_record(tree.ref, manager.store.backend) == tree


SOUND = b'{"id":"%b","files":0,"bytes":0,"ignore":[],"gitignore":false,"notes":[]}' % (b"0" * 64)


@pytest.mark.parametrize(
    ("kind", "payload", "count"),
    [
        (b"d", SOUND, 1),
        (b"b", SOUND, 1),
        (RECORD, SOUND, 0),
        (RECORD, SOUND, 2),
        (RECORD, b"", 1),
        (RECORD, SOUND[:-1], 1),
        (RECORD, b"[]", 1),
        (RECORD, b"[" * 100_000, 1),
        (RECORD, SOUND.replace(b"files", b"filez"), 1),
        (RECORD, SOUND.replace(b'"files":0', b'"files":"many"'), 1),
        (RECORD, SOUND.replace(b'"notes":[]', b'"notes":[["a"]]'), 1),
        (RECORD, SOUND.replace(b'"ignore":[]', b'"ignore":7'), 1),
    ],
)
def test_what_is_no_record_is_refused(
    ws: Workspace, manager: CheckpointManager, kind: bytes, payload: bytes, count: int
) -> None:
    refs = [ws.snapshot().root.ref] * count
    name, packed = make_object(kind, payload, refs)
    manager.store.backend.put_objects({name: packed.stored()})
    before = describe(ws.path)
    with pytest.raises(IntegrityError):
        ws.restore(ObjectRef(name, manager.store.backend))
    assert describe(ws.path) == before


def test_the_store_may_be_given_as_a_manager(root: Path, manager: CheckpointManager) -> None:
    given: Any = manager
    Workspace(root, given).snapshot()
    assert manager.list_keys() == [f"workspace:{root}"]


class TestTheHead:
    """A snapshot appends after the last one of the same object, and reads the head otherwise."""

    @pytest.fixture
    def reads(self, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> "list[str]":
        reads: list[str] = []
        read = manager.store.backend.read

        def counted(stream: str, **which: Any) -> Any:
            reads.append(stream)
            return read(stream, **which)

        monkeypatch.setattr(manager.store.backend, "read", counted)
        return reads

    def test_it_is_not_read_after_a_change(
        self, ws: Workspace, root: Path, reads: "list[str]"
    ) -> None:
        ws.snapshot()
        reads.clear()
        (root / "new").write_text("1")
        ws.snapshot()
        assert reads == []

    def test_the_snapshot_of_another_object_becomes_the_parent(
        self, ws: Workspace, root: Path, manager: CheckpointManager
    ) -> None:
        ws.snapshot()
        with Workspace(root, manager.store) as other:
            (root / "new").write_text("1")
            other.snapshot()
            (root / "new").write_text("2")
            ws.snapshot()
            (root / "new").write_text("3")
            other.snapshot()
        rows = manager.history(ws.key)
        assert [row["parents"] for row in rows] == [*([row["id"]] for row in rows[1:]), []]
        assert len(rows) == 4

    def test_equal_files_are_saved_again_after_other_files_of_another_object(
        self, ws: Workspace, root: Path, manager: CheckpointManager
    ) -> None:
        before = ws.snapshot()
        (root / "new").write_text("1")
        with Workspace(root, manager.store) as other:
            other.snapshot()
        (root / "new").unlink()
        assert ws.snapshot() == before
        assert len(manager.history(ws.key)) == 3


def test_what_is_captured_again_is_returned(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointManager().store
    with Workspace(root, store, watch=False) as workspace:
        workspace.snapshot()
        (root / "new").write_text("new")
        append, tries = store.backend.append, [1]

        def lose_one(stream: str, entry: bytes, **options: Any) -> int:
            if tries:
                tries.pop()
                (root / "file").write_text("another text")
                raise MissingObjectsError(["ab" * 32])  # gc has deleted it
            return append(stream, entry, **options)

        monkeypatch.setattr(store.backend, "append", lose_one)
        tree = workspace.snapshot()
        assert not tries
        monkeypatch.undo()
        assert not workspace.diff(tree)
        assert workspace.snapshot() == tree
