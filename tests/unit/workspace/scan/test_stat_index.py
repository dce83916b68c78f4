"""What a new process knows of a directory: enough to read only what changed, never too much."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.workspace.safe_open import reliable_signature
from agent_checkpoint.workspace.scan import stat_index
from agent_checkpoint.workspace.scan.stat_index import read_index, update_path, write_index
from agent_checkpoint.workspace.tree.dir_state import (
    READ_AGAIN,
    SIGNATURE,
    DirState,
    Note,
    stat_signature,
)
from agent_checkpoint.workspace.tree.tree_format import Stored
from tests.unit.workspace.disk import describe

COUNT = 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for place in range(5):
        (root / f"dir{place}").mkdir(parents=True)
        for number in range(COUNT // 5):
            (root / f"dir{place}" / f"file{number}").write_text(f"{place} {number}")
    time.sleep(0.025)  # or all of them would be too new to be known by their times
    return root


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


def opened(root: Path, manager: CheckpointManager, **options: Any) -> Workspace:
    return Workspace(root, manager.store, **{"watch": False, **options})


def index_of(home: Path) -> Path:
    (index,) = (path for path in (home / "store" / "index").iterdir() if not path.suffix)
    return index


def full_scan(root: Path) -> str:
    return Workspace(root, CheckpointManager().store, watch=False).snapshot().id


def comes_back(workspace: Workspace, tree: Any) -> bool:
    """Tell whether a tree has all that is there now, by removing it."""
    before = describe(workspace.path)
    for path in workspace.path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    workspace.restore(tree)
    return describe(workspace.path) == before


# -- what it saves -------------------------------------------------------------------------------


def test_a_new_workspace_reads_nothing_if_nothing_changed(
    root: Path, manager: CheckpointManager, reads: "list[bytes]"
) -> None:
    tree = opened(root, manager).snapshot()
    assert len(reads) == COUNT
    del reads[:]
    assert opened(root, manager).snapshot().id == tree.id
    assert opened(root, manager, watch=True).snapshot().id == tree.id
    assert reads == []


def test_a_new_workspace_reads_what_changed(
    root: Path, manager: CheckpointManager, reads: "list[bytes]"
) -> None:
    opened(root, manager).snapshot()
    del reads[:]
    (root / "dir1" / "file3").write_text("other")
    (root / "dir2" / "new").write_text("new")
    (root / "dir3" / "file1").unlink()
    (root / "dir4" / "file1").chmod(0o600)
    (root / "dir0").rename(root / "moved")
    tree = opened(root, manager).snapshot()
    # A rename is told from a new directory by its inode, and has all of it read.
    moved = {b"file%d" % number for number in range(COUNT // 5)}
    assert set(reads) == {b"file3", b"new", b"file1"} | moved
    assert tree.id == full_scan(root)


def test_a_turn_without_changes_writes_nothing(root: Path, manager: CheckpointManager) -> None:
    workspace = opened(root, manager)
    workspace.snapshot()
    before = len(manager.history(workspace.key)), manager.stats()
    workspace.snapshot()
    opened(root, manager).snapshot()
    assert (len(manager.history(workspace.key)), manager.stats()) == before


def test_another_process_reads_only_what_changed(
    root: Path, manager: CheckpointManager, tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "from agent_checkpoint import CheckpointManager, Workspace\n"
        "from agent_checkpoint.workspace.scan.reading import entry_reader\n"
        "read, names = entry_reader.read_whole, []\n"
        "entry_reader.read_whole = lambda fd, name: (names.append(name), read(fd, name))[1]\n"
        "manager = CheckpointManager(backend='sqlite', path=sys.argv[2])\n"
        "print(Workspace(sys.argv[1], manager.store).snapshot().id, len(names))\n"
    )
    command = [sys.executable, "-c", script, str(root), str(tmp_path / "store")]

    def run() -> "list[str]":
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.split()

    tree, count = run()
    assert int(count) == COUNT
    (root / "dir1" / "file1").write_text("other")
    other, count = run()
    assert (int(count), other) == (1, full_scan(root))
    assert other != tree


def test_new_processes_one_after_another_read_only_what_changed(
    root: Path, manager: CheckpointManager, own_home: Path, reads: "list[bytes]"
) -> None:
    opened(root, manager).snapshot()
    index = index_of(own_home)
    before = index.read_bytes()
    for number in range(4):
        del reads[:]
        (root / f"dir{number % 3}" / f"new{number}").write_text("new")
        (root / "dir3" / f"below{number // 2}" / f"{number}").mkdir(parents=True)
        time.sleep(0.025)
        assert opened(root, manager).snapshot().id == full_scan(root)
        assert reads.count(b"new%d" % number) == 2
        assert len(reads) == 1 + COUNT + number + 1  # those of `full_scan`, too
    assert index.read_bytes() == before
    assert update_path(index).exists()


def test_one_process_updates_its_index_again_and_again(
    root: Path, manager: CheckpointManager, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stat_index, "_MOST_ADDED", 10_000)  # the index is not written again
    opened(root, manager).snapshot()
    workspace = opened(root, manager)
    for number in range(8):
        (root / f"dir{number % 3}" / f"new{number}").write_text("new")
        shutil.rmtree(root / "below", ignore_errors=True)
        (root / "below" / f"{number}").mkdir(parents=True)
        tree = workspace.snapshot()
        found = read_index(index_of(own_home))
        assert found is not None
        assert found.root.stored == tree.root
        assert plain(found.root) == plain(workspace._scanner.dir_state)  # type: ignore[arg-type]


def test_a_large_update_is_an_index(
    root: Path, manager: CheckpointManager, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(root, manager).snapshot()
    index = index_of(own_home)
    before = index.read_bytes()
    monkeypatch.setattr(stat_index, "_MOST_ADDED", 40)
    sizes = []
    while index.read_bytes() == before:
        assert len(sizes) < 20
        (root / "dir1" / "file1").write_text(f"change {len(sizes)}")
        assert opened(root, manager).snapshot().id == full_scan(root)
        if update_path(index).exists():
            sizes.append(update_path(index).stat().st_size)
    assert len(sizes) > 1
    assert sizes[-1] < 40 * len(before) ** 0.5 + 1000
    found = read_index(index)
    assert found is not None
    assert not found.records.added, "the update belongs to the old index"
    assert opened(root, manager).snapshot().id == full_scan(root)


# -- what is wrong with it -----------------------------------------------------------------------


def test_a_damaged_update_is_as_none(
    root: Path, manager: CheckpointManager, own_home: Path, reads: "list[bytes]"
) -> None:
    opened(root, manager).snapshot()
    index = index_of(own_home)
    before = read_index(index)
    (root / "dir1" / "new").write_text("new")
    time.sleep(0.025)
    tree = opened(root, manager).snapshot()
    update = update_path(index)
    data = update.read_bytes()
    assert before is not None
    for bad in damaged(data):
        update.write_bytes(bad)
        found = read_index(index)
        assert found is not None
        assert plain(found.root) == plain(before.root)
    del reads[:]
    assert opened(root, manager).snapshot().id == tree.id
    assert reads == [b"new"]


def test_the_update_of_another_index_is_of_no_use(
    root: Path, manager: CheckpointManager, own_home: Path
) -> None:
    opened(root, manager).snapshot()
    index = index_of(own_home)
    (root / "dir1" / "new").write_text("new")
    opened(root, manager).snapshot()
    data = update_path(index).read_bytes()
    index.unlink()
    (root / "dir1" / "other").write_text("other")
    opened(root, manager).snapshot()
    update_path(index).write_bytes(data)
    found = read_index(index)
    assert found is not None
    assert b"other" in found.root.subdirs[b"dir1"].names
    assert opened(root, manager).snapshot().id == full_scan(root)


def test_no_index_is_readable_for_others(
    root: Path, manager: CheckpointManager, own_home: Path
) -> None:
    opened(root, manager).snapshot()
    index = index_of(own_home)
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700


def damaged(data: bytes) -> "Iterator[bytes]":
    yield b""
    yield b"something else"
    yield data + b"!"
    yield data.replace(b" 7\n", b" 9\n", 1)
    for end in range(0, len(data), 997):
        yield data[:end]
    for place in range(0, len(data), 499):
        yield data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_damaged_index_is_as_none(
    root: Path, manager: CheckpointManager, own_home: Path, reads: "list[bytes]"
) -> None:
    tree = opened(root, manager).snapshot()
    index = index_of(own_home)
    data = index.read_bytes()
    assert read_index(index) is not None
    for number, bad in enumerate(damaged(data)):
        index.write_bytes(bad)
        assert read_index(index) is None
        if number % 20 == 0:
            del reads[:]
            assert opened(root, manager).snapshot().id == tree.id
            assert len(reads) == COUNT
            assert index.read_bytes() != bad


def test_an_index_that_cannot_be_read_or_written_is_as_none(
    root: Path, manager: CheckpointManager, own_home: Path
) -> None:
    tree = opened(root, manager).snapshot()
    index = index_of(own_home)
    index.unlink()
    index.mkdir()
    assert opened(root, manager).snapshot().id == tree.id
    index.rmdir()
    index.parent.rmdir()
    index.parent.write_text("a file in its place")
    assert opened(root, manager).snapshot().id == tree.id


def test_the_index_of_another_directory_is_of_no_use(
    root: Path, manager: CheckpointManager, tmp_path: Path, own_home: Path
) -> None:
    opened(root, manager).snapshot()
    other = tmp_path / "other"
    shutil.copytree(root, other)
    (other / "dir1" / "file1").write_text("other")
    mine = index_of(own_home)
    opened(other, manager).snapshot()
    (foreign,) = set(mine.parent.iterdir()) - {mine}
    foreign.write_bytes(mine.read_bytes())  # as if the directories had been exchanged
    assert opened(other, manager).snapshot().id == full_scan(other)


def test_an_index_by_other_rules_is_of_no_use(root: Path, manager: CheckpointManager) -> None:
    (root / "debug.log").write_text("noise")
    (root / ".gitignore").write_text("dir1\n")
    time.sleep(0.025)
    counts = [
        opened(root, manager, **options).snapshot().files
        for options in (
            {"ignore": ["*.log"]},
            {},
            {"ignore": ["*.log"], "gitignore": True},
            {"ignore": ["1*.log"]},
            {"gitignore": True},
            {},
        )
    ]
    assert counts == [101, 102, 81, 102, 82, 102]


names = st.binary(min_size=1, max_size=20).filter(lambda name: not {0, ord("/")} & set(name))
notes = st.builds(Note, st.sampled_from(["torn", "ignored"]), st.text(max_size=5), st.just(0))
stamps = st.binary(min_size=SIGNATURE.size, max_size=SIGNATURE.size)


@st.composite
def folders(draw: Any, depth: int = 2) -> DirState:
    rows = draw(st.dictionaries(names, stamps, max_size=4))
    ordered = sorted(rows)
    below = draw(st.sets(st.sampled_from(ordered))) if ordered and depth else set()
    return DirState(
        b"/".join(ordered),
        b"".join(rows[name] for name in ordered),
        {name: draw(folders(depth - 1)) for name in ordered if name in below},
        draw(st.dictionaries(names, notes, max_size=2)),
        Stored("ab" * 32, "cd" * 32),
        draw(st.integers(0, 1 << 40)),
        draw(st.integers(0, 1 << 60)),
        has_notes=draw(st.booleans()),
        is_stored=True,
    )


def plain(folder: DirState) -> "tuple[Any, ...]":
    below = {name: plain(inner) for name, inner in folder.subdirs.items()}
    said = {name: tuple(note) for name, note in folder.notes.items()}
    rest = folder.stored, folder.files, folder.bytes, folder.has_notes, folder.is_stored
    return list(folder.names), folder.signatures, below, said, rest


def compared(folder: DirState) -> "tuple[Any, ...]":
    """What a stat pass compares, of the whole tree."""
    times, known, signatures, said, subdirs = folder.entries()
    below = {name: compared(inner) for name, inner in subdirs.items()}
    return times, known, signatures, dict(said), below


@settings(max_examples=150, deadline=None, derandomize=True)
@given(folders())
def test_what_is_written_is_read_back(folder: DirState) -> None:
    with tempfile.TemporaryDirectory() as place:
        write_index(Path(place, "index"), folder)
        found = read_index(Path(place, "index"))
    assert found is not None
    assert compared(found.root) == compared(folder)
    assert plain(found.root) == plain(folder)
    assert compared(found.root) == compared(folder)


# -- changes that times do not tell --------------------------------------------------------------

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND + 123_456_789


def seen_at(mtime: int, ctime: int) -> os.stat_result:
    found = os.stat(".")
    rest = {"st_mtime_ns": mtime, "st_ctime_ns": ctime, "st_mtime": 0.0, "st_ctime": 0.0}
    given = {"st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size"}
    others = [name for name in dir(found) if name.startswith("st_") and name not in given]
    named = {name: getattr(found, name) for name in others}
    return os.stat_result(tuple(found)[:10], {**named, **rest})


@pytest.mark.parametrize(
    ("mtime", "ctime", "is_known"),
    [
        (NOW - SECOND, NOW - SECOND, True),
        (NOW - SECOND, NOW, False),
        (NOW, NOW - SECOND, False),
        (NOW - 1_000_000, NOW - 1_000_000, False),
        (NOW + 3600 * SECOND, NOW - SECOND, False),
        (NOW - SECOND, NOW + 3600 * SECOND, False),
        # Whole seconds, as of a disk that knows no others: the same second may bring a change.
        (NOW // SECOND * SECOND, NOW // SECOND * SECOND, False),
        (NOW // SECOND * SECOND - SECOND, NOW // SECOND * SECOND - SECOND, False),
        (NOW // SECOND * SECOND - 3 * SECOND, NOW // SECOND * SECOND - 3 * SECOND, True),
        (NOW // SECOND * SECOND, NOW - SECOND // 2, True),
    ],
)
def test_a_file_as_new_as_the_look_at_it_is_read_again(
    mtime: int, ctime: int, is_known: bool
) -> None:
    found = seen_at(mtime, ctime)
    assert found.st_mtime_ns == mtime
    assert reliable_signature(found, NOW) == (stat_signature(found) if is_known else READ_AGAIN)


def test_a_change_of_the_same_moment_is_found(root: Path, manager: CheckpointManager) -> None:
    file = root / "dir1" / "file1"
    for number in range(20):
        file.write_text(f"{number:06}")
        found = file.stat()
        opened(root, manager).snapshot()
        file.write_text(f"{number:03}new")
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert opened(root, manager).snapshot().id == full_scan(root)


@pytest.fixture
def by_the_second(tmp_path: Path) -> "Iterator[Path]":
    """A file system that tells times by the second, as ext3 did."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root can mount, and there has to be a mkfs.ext4")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-I", "128", str(image)], check=True, capture_output=True)
    mount = ["mount", "-o", "loop", str(image), str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is refused: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("watch", [True, False])
def test_a_change_within_the_same_second_is_found(
    by_the_second: Path, manager: CheckpointManager, watch: bool
) -> None:
    root = by_the_second / "root"
    root.mkdir()
    file = root / "file"
    workspace = opened(root, manager, watch=watch)
    for _ in range(20):
        file.write_text("old")
        time.sleep(1.01 - time.time() % 1)  # the next second has just begun
        file.write_text("one")
        workspace.snapshot()
        before = file.stat()
        file.write_text("two")
        if stat_signature(file.stat()) == stat_signature(before):
            break  # else the machine is busy, and the second was over
    else:
        pytest.fail("a snapshot and a write take more than a second")
    assert workspace.snapshot().id == full_scan(root)
    file.write_text("six")
    assert opened(root, manager).snapshot().id == full_scan(root)


# -- stores that have lost what is known ---------------------------------------------------------


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("is_new", [True, False], ids=["a new workspace", "the same workspace"])
@pytest.mark.parametrize("changes", [[], ["dir1/file1"], ["dir1/file1", "dir2/file2", "new"]])
@pytest.mark.slow
def test_all_is_written_again_if_it_was_collected(
    root: Path, manager: CheckpointManager, changes: "list[str]", is_new: bool, watch: bool
) -> None:
    workspace = opened(root, manager, watch=watch)
    workspace.snapshot()
    manager.delete(workspace.key)
    assert manager.gc().objects > COUNT
    for name in changes:
        (root / name).write_text("changed")
    if is_new:
        workspace.close()
        workspace = opened(root, manager, watch=watch)
    tree = workspace.snapshot()
    assert tree.id == full_scan(root)
    assert manager.verify().problems == ()
    assert comes_back(workspace, tree)


def test_all_is_written_again_if_a_part_of_it_was_collected(
    root: Path, manager: CheckpointManager
) -> None:
    workspace = opened(root, manager)
    workspace.snapshot()
    kept = (root / "dir1" / "file1").read_text()
    (root / "dir1" / "file1").write_text("for a while")
    workspace.snapshot()
    (root / "dir1" / "file1").write_text(kept)
    manager.delete(workspace.key, f"{workspace.key}~1")
    manager.gc()
    tree = opened(root, manager).snapshot()
    assert manager.verify().problems == ()
    assert comes_back(workspace, tree)


@pytest.mark.parametrize("change", [True, False])
def test_all_is_written_again_if_the_store_was_deleted(
    root: Path, tmp_path: Path, change: bool
) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        opened(root, manager).snapshot()
    shutil.rmtree(tmp_path / "store")
    if change:
        (root / "dir1" / "file1").write_text("changed")
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        workspace = opened(root, manager)
        tree = workspace.snapshot()
        assert manager.verify().problems == ()
        assert comes_back(workspace, tree)


def test_each_store_gets_all_of_it(root: Path, tmp_path: Path) -> None:
    workspace = Workspace(root)
    for name in ("one", "two"):
        with CheckpointManager(backend="sqlite", path=tmp_path / name) as manager:
            manager.save("key", {"workspace": workspace})
            (root / "dir1" / "file1").write_text(name)
            manager.save("key", {"workspace": workspace})
            assert manager.verify().problems == ()
            empty = tmp_path / f"{name}-restored"
            empty.mkdir()
            manager.load("key", {"workspace": Workspace(empty, manager.store)})
            assert describe(empty) == describe(root)
