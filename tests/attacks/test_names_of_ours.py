"""Files with names of ours in a workspace: data, or left out with the reason; never silently."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Workspace, WorkspaceError
from agent_checkpoint.backends.sqlite import SQLiteBackend
from tests.cli.scene import Scene, scene
from tests.cli.test_hook import CLAUDE

NAMES = [("store.db", ".lock"), (".meta%2fformat",), (".meta%2fformat", ".lock", "store.db")]
COMPAT = Path(__file__).parents[1] / "compat"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    (place / "src").mkdir(parents=True)
    (place / "src" / "app.py").write_text("one")
    return place


@pytest.fixture
def own(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(backend="sqlite", path=tmp_path / "own") as manager:
        yield manager


def with_header(path: Path, application_id: int) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA application_id={application_id}")
    db.execute("CREATE TABLE t (x)")
    db.close()


# -- names alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("at", ["", "src"])
def test_names_of_a_store_switch_nothing_off(
    place: Path, own: CheckpointManager, names: tuple[str, ...], at: str, watch: bool
) -> None:
    for name in names:
        (place / at / name).touch()
    with Workspace(place, own.store, watch=watch) as ws:
        tree = ws.snapshot()
        assert (tree.files, tree.notes) == (1 + len(names), ())
        (place / "src" / "app.py").write_text("two")
        ws.snapshot()
        ws.restore(tree)
    assert (place / "src" / "app.py").read_text() == "one"


@pytest.mark.parametrize(
    "record", [b"", b"{}", b"[" * 100_000, b'{"read": 1}', b'{"read": "x", "write": 2}', b"\xff"]
)
def test_what_is_no_format_record_makes_no_store(
    place: Path, own: CheckpointManager, record: bytes
) -> None:
    (place / "src" / ".lock").touch()
    (place / "src" / ".meta%2fformat").mkdir()
    (place / "src" / ".meta%2fformat" / "1.json").write_bytes(record)
    with Workspace(place, own.store) as ws:
        tree = ws.snapshot()
    assert (tree.files, tree.notes) == (3, ())


def test_the_database_of_another_application_is_data(place: Path, own: CheckpointManager) -> None:
    (place / "src" / ".lock").touch()
    with_header(place / "src" / "store.db", 17)
    with Workspace(place, own.store) as ws:
        tree = ws.snapshot()
    assert (tree.files, tree.notes) == (3, ())


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "unreadable", "large"])
@pytest.mark.parametrize("name", ["store.db", ".meta%2fformat/1.json"])
def test_an_odd_file_by_that_name_is_no_store_and_nobody_waits(
    place: Path, own: CheckpointManager, tmp_path: Path, kind: str, name: str
) -> None:
    (place / "src" / ".lock").touch()
    path = place / "src" / name
    path.parent.mkdir(exist_ok=True)
    other = tmp_path / "other"
    with CheckpointManager(backend="sqlite", path=other) as manager:
        manager.save("k", {})
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(other / "store.db")
    elif kind == "directory":
        path.mkdir()
    elif kind == "unreadable":
        path.touch(mode=0)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 20)
    with Workspace(place, own.store) as ws:
        tree = ws.snapshot()
    assert "src" not in [note.path for note in tree.notes]


# -- a real store --------------------------------------------------------------------------------


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_a_store_in_use_is_left_out_and_the_tree_says_so(
    place: Path, own: CheckpointManager, backend: str, watch: bool
) -> None:
    with Workspace(place, own.store, watch=watch) as ws:
        before = ws.snapshot()
        with CheckpointManager(backend=backend, path=place / "src") as other:
            other.save("k", {"n": 1})
        tree = ws.snapshot()
        assert tree.incomplete
        assert [(note.path, note.kind) for note in tree.notes] == [("src", "store")]
        assert ws.losses == list(tree.notes)
        for target in (before, tree):
            plan = ws.restore(target)
            assert plan.leave == {"src": "it is a store of agent-checkpoint that is in use"}
        with CheckpointManager(backend=backend, path=place / "src") as other:
            assert other.list_keys() == ["k"]
        (place / "src" / ".lock").unlink()  # nobody has written to it here
        tree = ws.snapshot()
        assert not tree.incomplete
        assert tree.files > 1
        with CheckpointManager(backend=backend, path=place / "src") as other:
            other.save("second", {"n": 2})
        assert ws.snapshot().incomplete
        ws.restore(before)
    with CheckpointManager(backend=backend, path=place / "src") as other:
        assert other.list_keys() == ["k", "second"]


def test_a_database_that_is_open_here_is_known_without_a_lock_file(
    place: Path, own: CheckpointManager
) -> None:
    """To read and close it would take away the locks that SQLite has on it in this process."""
    with CheckpointManager(backend="sqlite", path=place / "src") as other:
        other.save("k", {"n": 1})
    (place / "src" / ".lock").unlink()
    with Workspace(place, own.store) as ws:
        assert not ws.snapshot().incomplete
        with CheckpointManager(backend="sqlite", path=place / "src") as other:
            assert other.list_keys() == ["k"]
            assert ws.snapshot(full=True).incomplete
        assert not ws.snapshot(full=True).incomplete


LOCKED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    for start in range(0x40000000, 0x40000000 + 512):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
        except OSError:
            sys.exit("locked")
"""


def is_locked(database: Path) -> bool:
    found = subprocess.run(
        [sys.executable, "-c", LOCKED, database], stderr=subprocess.PIPE, timeout=60
    )
    return found.stderr.strip() == b"locked"


def test_a_look_takes_no_lock_from_a_database_that_is_open_here(
    place: Path, own: CheckpointManager
) -> None:
    backend = SQLiteBackend(place / "src")
    with CheckpointManager(backend) as other, Workspace(place, own.store) as ws:
        other.save("k", {"n": 1})
        assert is_locked(place / "src" / "store.db")
        for _ in range(2):
            assert ws.snapshot(full=True).incomplete
            assert is_locked(place / "src" / "store.db")
    with Workspace(place, own.store) as ws:  # closed by now: the header is read
        assert ws.snapshot(full=True).incomplete
    assert not is_locked(place / "src" / "store.db")


def test_the_session_s_own_store_is_no_loss(place: Path) -> None:
    with CheckpointManager(backend="sqlite", path=place / "mine") as manager:
        with Workspace(place, manager.store) as ws:
            ws.snapshot()
            tree = ws.snapshot(full=True)
        assert (tree.files, tree.notes, tree.incomplete) == (1, (), False)


def test_a_store_that_is_excluded_is_no_loss(place: Path, own: CheckpointManager) -> None:
    with CheckpointManager(backend="sqlite", path=place / "other") as other:
        other.save("k", {"n": 1})
    with Workspace(place, own.store, ignore=["/other"]) as ws:
        assert not ws.snapshot().incomplete


def test_the_golden_stores_of_this_repository_are_captured(
    tmp_path: Path, own: CheckpointManager
) -> None:
    shutil.copytree(COMPAT / "v1", tmp_path / "v1", symlinks=True)
    count = sum(path.is_file() for path in (tmp_path / "v1").rglob("*"))
    with Workspace(tmp_path / "v1", own.store) as ws:
        tree = ws.snapshot()
    assert count > 77
    assert (tree.files, tree.notes) == (count, ())


# -- the command and the hook --------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        yield found


@pytest.mark.slow
def test_save_and_show_say_what_is_left_out_and_why(work: Scene) -> None:
    with CheckpointManager(backend="sqlite", path=work.workspace / "data") as other:
        other.save("k", {"n": 1})
    text = work.command("save")
    assert "Incomplete" in text
    assert "data: store (a store of agent-checkpoint that is in use)" in text
    saved = json.loads(work.command("save", "--json"))
    assert saved["incomplete"] is True
    note = {
        "path": "data",
        "kind": "store",
        "text": "a store of agent-checkpoint that is in use",
    }
    assert saved["notes"] == [note]
    assert "incomplete" in work.command("show", saved["id"])
    shown = json.loads(work.command("show", saved["id"], "--json"))
    assert shown["parts"]["workspace"]["notes"] == [note]


@pytest.mark.parametrize("names", NAMES)
def test_the_hook_saves_a_directory_with_names_of_ours(work: Scene, names: tuple[str, ...]) -> None:
    for name in names:
        (work.workspace / name).touch()
    work.tool(1)
    assert len(work.history(CLAUDE)) == 1
    assert work.log == ""


def test_the_hook_says_once_what_it_leaves_out(work: Scene) -> None:
    with CheckpointManager(backend="sqlite", path=work.workspace / "data") as other:
        other.save("k", {"n": 1})
    for number in range(3):
        work.tool(number)
    assert len(work.history(CLAUDE)) == 3
    assert work.log.count("data': store, a store of agent-checkpoint that is in use") == 1
    assert "data': store" in work.command("hook", "status")


def test_the_hook_says_that_a_root_is_a_store(work: Scene) -> None:
    with CheckpointManager(backend="sqlite", path=work.workspace) as other:
        other.save("k", {"n": 1})
    work.tool(1)
    assert work.history(CLAUDE) == []
    for text in (work.log, work.command("hook", "status")):
        assert f"{work.workspace}' is a store and cannot be a workspace" in text
    assert "is a store and cannot be a workspace" in work.command("save", status=1)
    with pytest.raises(WorkspaceError, match="is a store and cannot be a workspace"):
        Workspace(work.workspace, CheckpointManager().store).snapshot()


# -- rules ---------------------------------------------------------------------------------------


BOMBS = {
    "large": b"#\n" * (1 << 20) + b"*\n",
    "long": b"a" * 100_000 + b"\n",
    "wildcards": b"a*b*c*d*e*f*g*h\n" * 10_000,
    "backtracking": b"*a" * 500 + b"b\n",
    "nonsense": b"\xff[\n[[:x:]]\n!\n/\n\\\n",
    "nothing": bytes(1 << 16),
}


@pytest.mark.parametrize("name", [".checkpointignore", "src/.gitignore"])
@pytest.mark.parametrize("text", BOMBS.values(), ids=list(BOMBS))
def test_rules_that_cannot_be_used_keep_nothing_from_being_saved(
    place: Path, own: CheckpointManager, name: str, text: bytes
) -> None:
    (place / name).write_bytes(b"secret\n" + text)
    (place / "src" / "secret").touch()
    (place / "src" / ("a" * 250)).touch()
    with Workspace(place, own.store, gitignore=True) as ws:
        tree = ws.snapshot()
        assert tree.files == 3
        assert {(note.path, note.kind) for note in tree.notes} <= {(name, "rules")}
        (place / "src" / "app.py").write_text("two")
        assert ws.snapshot(full=True).notes == tree.notes
        ws.restore(tree)
    assert (place / "src" / "app.py").read_text() == "one"
    assert (place / "src" / "secret").exists()


def test_a_command_says_which_rules_do_not_count(work: Scene) -> None:
    (work.workspace / ".checkpointignore").write_text("[\n")
    text = work.command("save")
    assert ".checkpointignore: rules (not all of it counts: line 1" in text
    assert "Incomplete" not in text


# -- where restores are staged -------------------------------------------------------------------


STAGED = ".agent-checkpoint-restore"


def deep(place: Path) -> None:
    at = place
    for _ in range(300):
        at.mkdir()
        at = at / "d"


LEFT = {
    "a directory in it": lambda place: (place / "directory").mkdir(parents=True),
    "files as of ours": lambda place: (
        (place / "files").mkdir(parents=True) or (place / "files" / "0").write_text("theirs")
    ),
    "a deep tree": deep,
    "a journal that is a fifo": lambda place: place.mkdir() or os.mkfifo(place / "journal"),
    "a forged owner": lambda place: place.mkdir() or (place / "owner").write_text("0" * 64),
    "a fifo": os.mkfifo,
    "a file": lambda place: place.write_text("theirs"),
    "a link": lambda place: place.symlink_to("src"),
    "a closed directory": lambda place: (place / "x").mkdir(parents=True) or place.chmod(0),
}


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("watch", [True, False])
def test_what_stands_where_restores_are_staged_blocks_nothing(
    place: Path, own: CheckpointManager, kind: str, watch: bool
) -> None:
    with Workspace(place, own.store, watch=watch) as ws:
        tree = ws.snapshot()
        LEFT[kind](place / STAGED)  # under a workspace that is open
        (place / "src" / "app.py").write_text("two")
        ws.snapshot()
        (notice,) = ws.notices
        (aside,) = place.glob(f"{STAGED}*")
        assert aside.name in notice
        assert "not created by a restore of this user" in notice
    with Workspace(place, own.store, watch=watch) as again:
        assert again.notices == []
        again.restore(tree, paths=["src"])
    assert (place / "src" / "app.py").read_text() == "one"
    assert os.path.lexists(aside)


def test_below_the_root_it_is_data(place: Path, own: CheckpointManager) -> None:
    (place / "src" / STAGED).mkdir()
    (place / "src" / STAGED / "journal").write_text("theirs")
    with Workspace(place, own.store) as ws:
        tree = ws.snapshot()
        assert (tree.files, tree.notes, ws.notices) == (2, (), [])
        shutil.rmtree(place / "src")
        ws.restore(tree)
    assert (place / "src" / STAGED / "journal").read_text() == "theirs"


def test_what_has_the_name_of_a_file_on_its_way_is_data(
    place: Path, own: CheckpointManager
) -> None:
    """Version 0.1 had fixed names for files that are copied where another disk is mounted."""
    theirs = place / "src" / ".agent-checkpoint-new"
    theirs.write_text("theirs")
    with Workspace(place, own.store) as ws:
        tree = ws.snapshot()
        theirs.unlink()
        ws.restore(tree)
    assert not tree.notes
    assert theirs.read_text() == "theirs"


def test_what_belongs_to_another_user_is_left_and_reported(
    place: Path, own: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / STAGED / "x").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with Workspace(place, own.store) as ws:
        tree = ws.snapshot()
        assert [(note.path, note.kind) for note in tree.notes] == [(STAGED, "special")]
        assert "another user" in ws.notices[0]
        assert len(ws.notices) == 1
        (place / "src" / "app.py").write_text("two")
        with pytest.raises(WorkspaceError, match="File exists"):
            ws.restore(tree)
    assert (place / STAGED / "x").is_dir()


def test_the_hook_and_the_command_tell_of_it(work: Scene) -> None:
    (work.workspace / STAGED / "x").mkdir(parents=True)
    work.tool(1)
    assert len(work.history(CLAUDE)) == 1
    assert "not created by a restore of this user" in work.log
    (work.workspace / STAGED / "y").mkdir(parents=True)
    assert "not created by a restore of this user" in work.command("save")
    assert len(list(work.workspace.glob(f"{STAGED}.found-*"))) == 2


# -- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("watch", [True, False])
def test_a_file_with_a_time_past_2262_is_captured(
    place: Path, own: CheckpointManager, watch: bool
) -> None:
    seconds = 10_413_792_000  # the year 2300
    os.utime(place / "src" / "app.py", (seconds, seconds))
    if (place / "src" / "app.py").stat().st_mtime != seconds:
        pytest.skip("the file system has no such time")
    with Workspace(place, own.store, watch=watch) as ws:
        tree = ws.snapshot()
        assert tree.files == 1
        assert ws.snapshot(full=True) == tree
        (place / "src" / "app.py").write_text("two")
        os.utime(place / "src" / "app.py", (seconds, seconds))
        assert ws.snapshot(full=True).id != tree.id
        ws.restore(tree)
    assert (place / "src" / "app.py").read_text() == "one"


@pytest.mark.slow
def test_what_the_rules_of_a_project_leave_out_is_told(work: Scene) -> None:
    (work.workspace / ".checkpointignore").write_text("*\n")
    for number in range(2):
        work.tool(number)
    assert work.log.count("excludes: '.git', 'src'") == 1
    assert "excludes: '.git', 'src'" in work.command("hook", "status")
    assert "Excluded by ignore rules, not restored: .git, src" in work.command("save")
    assert json.loads(work.command("save", "--json"))["left_out"] == [".git", "src"]
