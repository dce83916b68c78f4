"""Snapshots of workspaces that released formats wrote: the same files, the same ids, for ever."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.workspace.scan.reading import chunking
from tests.compat import cutter, directories, reader, subjects
from tests.compat.conftest import V1, Open
from tests.compat.directories import FIRST, IGNORE, SECOND, on_disk
from tests.compat.reader import File

FIRST_ID = "0121bf644ce2b433ac76b77e498724821202ef28fdff4c2a5bd7b0f26d75c006"
FIRST_NAME = "efa24c52e440c23a817c1686d51bfdbff1f684a9036c39fc1d5fb6e4dcdca96c"
SECOND_ID = "c2e50b74f158da98013a60e61eaeda8193a0002cc2ef1cc9a7825ca94af289df"
SECOND_NAME = "c582741255798a9e83af2981983cb5cc4e1233304e6510ea4dff240e3e015138"

STATES = {"first": (FIRST, FIRST_ID, FIRST_NAME), "second": (SECOND, SECOND_ID, SECOND_NAME)}
HOLD_A_WORKSPACE = ("sqlite", "file", "workspace.ckpt")
EVERYTHING = pytest.mark.parametrize(("files", "tree_id", "name"), STATES.values(), ids=STATES)

needs_any_name = pytest.mark.skipif(
    sys.platform == "darwin", reason="its file systems take no name that is not UTF-8"
)


def notes(files: dict[bytes, File]) -> list[list[str]]:
    found = [["pipe", "special", "a fifo"]]
    if b"bin/setuid" in files:
        found.insert(0, ["bin/setuid", "setuid", "its setuid, setgid or sticky bit is not kept"])
    return found


def snapshot_of(manager: CheckpointManager, number: int) -> Any:
    return manager.state_dict("workspace", f"workspace@{number}")["workspace"]


# -- by the format page alone ----------------------------------------------------------------------


@pytest.mark.parametrize("store", HOLD_A_WORKSPACE)
@EVERYTHING
def test_the_format_page_is_enough_to_read_every_file(
    store: str, files: "dict[bytes, File]", tree_id: str, name: str
) -> None:
    found = reader.read_snapshot(reader.open_medium(V1 / store), name)
    assert found.files == files
    assert found.record["id"] == tree_id
    assert found.record["ignore"] == list(IGNORE)
    assert found.record["notes"] == notes(files)


@EVERYTHING
def test_the_format_page_is_enough_to_name_every_object(
    files: "dict[bytes, File]", tree_id: str, name: str
) -> None:
    said = {"ignore": IGNORE, "gitignore": False, "notes": notes(files)}
    assert cutter.cut_snapshot(files, **said) == (name, tree_id)


def test_checkpoints_name_their_snapshots() -> None:
    for store in ("sqlite", "file"):
        found = reader.read(V1 / store)
        names = [item["parts"]["workspace"] for item in found["workspace"]]
        assert names == [{"$object": FIRST_NAME}, {"$object": SECOND_NAME}]
        (within,) = found["within"]
        assert within["parts"]["agent"]["tools"]["workspace"] == {"$object": FIRST_NAME}
        own = [(item["kind"], item["parts"]["workspace"]) for item in found["workspace:/golden"]]
        assert own == [
            ("save", {"$object": SECOND_NAME}),
            ("save", {"$object": FIRST_NAME}),
            ("safety", {"$object": SECOND_NAME}),
        ]


def test_the_golden_snapshots_have_every_type_of_entry() -> None:
    medium = reader.open_medium(V1 / "sqlite")
    types = set()
    for name in medium.objects:
        found = reader.get(medium, name)
        at = 0
        while found.kind == b"d" and at < len(found.payload):
            kind, _, length, size = reader.ENTRY.unpack_from(found.payload, at)
            types.add(kind)
            at += reader.ENTRY.size + length + {b"f": 0, b"l": size}.get(kind, 32)
    assert types == {b"f", b"c", b"d", b"l"}


# -- by the library --------------------------------------------------------------------------------


@needs_any_name
@pytest.mark.parametrize("watch", [True, False], ids=["watching", "not watching"])
@EVERYTHING
def test_the_same_files_have_the_same_ids_today(
    files: "dict[bytes, File]",
    tree_id: str,
    name: str,
    watch: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunking, "is_installed", lambda: False)
    directories.make(tmp_path / "place", files)
    store = CheckpointManager().store
    with Workspace(tmp_path / "place", store, ignore=IGNORE, watch=watch) as workspace:
        tree = workspace.snapshot()
        assert (tree.id, tree.ref) == (tree_id, name)
        assert [list(note) for note in tree.notes] == notes(files)
        assert workspace.snapshot(full=True) == tree


@needs_any_name
def test_the_id_does_not_depend_on_how_files_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "is_installed", lambda: False)
    monkeypatch.setattr(chunking, "_CHUNK", 100_000)
    directories.make(tmp_path / "place", FIRST)
    workspace = Workspace(tmp_path / "place", CheckpointManager().store, ignore=IGNORE)
    tree = workspace.snapshot()
    assert tree.id == FIRST_ID
    assert tree.ref != FIRST_NAME


@needs_any_name
@pytest.mark.parametrize("store", HOLD_A_WORKSPACE)
@pytest.mark.slow
def test_a_golden_snapshot_is_restored_exactly(
    store: str, open_golden: Open, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with open_golden(store) as manager, Workspace(place, manager.store) as workspace:
        for number, files in ((1, FIRST), (2, SECOND), (1, FIRST)):
            workspace.restore(snapshot_of(manager, number))
            assert on_disk(place) == files
        plan = workspace.restore(snapshot_of(manager, 2))
        assert plan.safety is not None
        workspace.restore(plan.safety)
        assert on_disk(place) == FIRST
        assert workspace.snapshot().id == FIRST_ID


@needs_any_name
@pytest.mark.parametrize("store", HOLD_A_WORKSPACE)
def test_a_golden_checkpoint_loads_agent_and_workspace(
    store: str, open_golden: Open, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    directories.make(place, FIRST)
    agent = subjects.GoldenTool()
    with open_golden(store) as manager, Workspace(place, ignore=IGNORE) as workspace:
        manager.load("workspace", {"agent": agent, "workspace": workspace})
        assert (agent.name, agent.uses) == ("edit", 1)
        assert on_disk(place) == SECOND
        assert (place / "left out.log").is_file()
        assert (place / "local" / "left out").is_file()


def test_two_golden_snapshots_can_be_compared(open_golden: Open, tmp_path: Path) -> None:
    with open_golden("sqlite") as manager, Workspace(tmp_path, manager.store) as workspace:
        diff = workspace.diff(snapshot_of(manager, 1), snapshot_of(manager, 2))
        assert diff.changed == {
            "README.md": ("type",),
            "bin": ("type",),
            "large.bin": ("content",),
            "link": ("type",),
            "src/app.py": ("mode",),
            "wide/300": ("content",),
        }
        assert diff.added == ["README.md/in a directory", "wide/one more"]
        assert diff.removed == ["bin/run", "bin/setuid", "src/deep/er/same.py"]
        json.dumps(diff.to_dict())
