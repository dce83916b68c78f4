"""A16: directories that hold too much are no workspaces; and what a workspace may bring along."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, UnsafeWorkspaceError, Workspace, WorkspaceError
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.workspace.restore.apply import PlanExecutor
from agent_checkpoint.workspace.restore.staging import Journal


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


def unsafe(path, manager, **options):
    with pytest.raises(UnsafeWorkspaceError, match="force=True") as caught:
        Workspace(path, manager.store, **options)
    return str(caught.value)


def test_the_whole_disk_is_refused(manager):
    for path in ("/", "//", "/.", "/../..", Path("/")):
        assert "/" in unsafe(path, manager)


def test_the_home_directory_and_those_above_it_are_refused(own_home, manager):
    for path in (own_home, own_home / "..", *own_home.parents, f"{own_home}/"):
        unsafe(path, manager)


def test_links_to_them_are_refused(own_home, tmp_path, manager):
    for number, target in enumerate((own_home, own_home.parent, "/")):
        link = tmp_path / f"link {number}"
        link.symlink_to(target)
        unsafe(link, manager)
    (tmp_path / "deep").mkdir()
    unsafe(tmp_path / "link 0" / ".." / own_home.name, manager)


def test_a_home_that_is_a_link_is_refused(own_home, tmp_path, manager, monkeypatch):
    (tmp_path / "home link").symlink_to(own_home)
    monkeypatch.setenv("HOME", str(tmp_path / "home link"))
    unsafe(own_home, manager)
    unsafe(tmp_path / "home link", manager)


def test_the_working_directory_is_no_exception(own_home, manager, monkeypatch):
    monkeypatch.chdir(own_home)
    for path in (".", "", "./", "x/.."):
        (own_home / "x").mkdir(exist_ok=True)
        unsafe(path, manager)


def test_what_is_in_the_home_directory_is_a_workspace(own_home, manager):
    (own_home / "project").mkdir()
    with Workspace(own_home / "project", manager.store) as ws:
        assert ws.snapshot().files == 0


def test_who_says_so_gets_them(own_home, manager):
    (own_home / "f").write_bytes(b"x")
    with Workspace(own_home, manager.store, force=True) as ws:
        assert ws.snapshot().files >= 1
    Workspace("/", manager.store, force=True).close()


@pytest.mark.parametrize("path", ["no such directory", "file", "file/below", "a\0b"])
def test_what_is_no_directory_is_refused(tmp_path, manager, path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError):
        Workspace(tmp_path / path, manager.store)


def test_root_is_refused_without_any_home(tmp_path):
    """In a process whose user has no home that is known."""
    program = (
        "from agent_checkpoint import *\n"
        "try:\n Workspace('/')\n"
        "except UnsafeWorkspaceError as error: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "AGENT_CHECKPOINT_HOME": str(tmp_path / "h")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "refused\n", done.stderr


# -- a journal from elsewhere --------------------------------------------------------------------


def test_a_journal_that_came_with_the_files_is_not_obeyed(tmp_path):
    """Its store came with them, and would have other files in their place once they are opened."""
    place = tmp_path / "cloned"
    (place / "code").mkdir(parents=True)
    (place / "code" / "run").write_bytes(b"evil")
    evil = CheckpointManager(backend="sqlite", path=place / "hidden" / "store")
    with Workspace(place / "code", evil.store) as ws:
        tree = ws.snapshot()
        (place / "code" / "run").write_bytes(b"reviewed")
        safety = ws.snapshot()
    evil.close()
    (place / "code" / "run").rename(place / "run")
    (place / "code").rmdir()
    staging = place / ".agent-checkpoint-restore"
    staging.mkdir(mode=0o700)
    journal = {
        "root": str(place),
        "tree": tree.ref,
        "safety": safety.ref,
        "paths": None,
        "exclude": [],
        "store": f"sqlite://{place / 'hidden' / 'store'}",
        "safety_id": "x",
        "seen": None,
        "seal": None,
    }
    (staging / "journal").write_text(json.dumps(journal))
    before = staging.joinpath("journal").read_bytes()
    with Workspace(place) as ws:
        (notice,) = ws.notices
    (found,) = place.glob(".agent-checkpoint-restore*")
    assert found.name in notice
    assert found.joinpath("journal").read_bytes() == before
    assert (place / "run").read_bytes() == b"reviewed"


def interrupted(place, store):
    """Leave a restore of our own half done."""
    with Workspace(place, store) as ws:
        tree = ws.snapshot()
        (place / "a").write_bytes(b"other")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                PlanExecutor, "_make", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            with pytest.raises(KeyboardInterrupt):
                ws.restore(tree)


@pytest.mark.parametrize("where", ["here", "/proc/self/cwd", "outside", "given"])
def test_a_forged_journal_is_not_obeyed_wherever_its_store_is(tmp_path, monkeypatch, where):
    """A clone would write a hook of git, which runs at the next commit."""
    place, made = tmp_path / "cloned", tmp_path / "made"
    (made / ".git" / "hooks").mkdir(parents=True)
    (made / ".git" / "hooks" / "pre-commit").write_bytes(b"evil")
    place.mkdir()
    store = place if where in ("here", "/proc/self/cwd") else tmp_path / "outside"
    with CheckpointManager(backend="file", path=store) as evil:
        with Workspace(made, evil.store) as ws:
            name = ws.snapshot().ref
        url = f"file://{where}" if where.startswith("/") else f"file://{store}"
        staging = place / ".agent-checkpoint-restore"
        journal = Journal(str(place), name, name, (".git/hooks/pre-commit",), (), url, "x")
        for seal in (None, "", "0" * 64):
            staging.mkdir(mode=0o700)
            (staging / "journal").write_text(json.dumps({**journal._asdict(), "seal": seal}))
            monkeypatch.chdir(place)
            with Workspace(place, evil.store if where == "given" else None) as ws:
                assert "not created by a restore of this user" in ws.notices[0]
                assert ws.recovered is None
        assert not (place / ".git").exists()


def test_a_journal_of_our_own_is_for_its_own_directory_and_secret(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    (place / "a").write_bytes(b"one")
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        interrupted(place, manager.store)
        shutil.copytree(place, tmp_path / "copy")
        shutil.copytree(place, tmp_path / "other")
        with Workspace(tmp_path / "copy", manager.store) as ws:
            assert (ws.recovered, len(ws.notices)) == (None, 1)
        with Workspace(place, manager.store) as ws:
            assert ws.recovered is not None
            assert ws.notices == []
        assert (place / "a").read_bytes() == b"one"
        interrupted(place, manager.store)
        (place / "a").write_bytes(b"other")
        with monkeypatch.context() as patch:
            patch.setenv("AGENT_CHECKPOINT_SECRET", "another")
            with Workspace(place, manager.store) as ws:
                assert (ws.recovered, len(ws.notices)) == (None, 1)
    assert (place / "a").read_bytes() == b"other"


def test_where_there_is_no_secret_a_person_decides(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    (place / "a").write_bytes(b"one")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/none")
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        interrupted(place, manager.store)
        (row,) = [row for row in manager.history(f"workspace:{place}") if row["kind"] == "safety"]
        with Workspace(place, manager.store) as ws:
            assert row["id"] in ws.notices[0]
            ws.restore(row["id"])
    assert (place / "a").read_bytes() == b"other"


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_a_store_is_no_workspace(tmp_path, backend):
    """To go back would take away what was saved since, and what there is to go back to."""
    (tmp_path / "a").write_bytes(b"one")
    with CheckpointManager(backend=backend, path=tmp_path) as manager:
        with Workspace(tmp_path, manager.store) as ws:
            for _ in range(2):
                with pytest.raises(WorkspaceError, match="is a store and cannot be a workspace"):
                    ws.snapshot()
        with (
            Workspace(tmp_path) as ws,
            pytest.raises(WorkspaceError, match="is a store and cannot be a workspace"),
        ):
            manager.save("key", {"workspace": ws})
    assert (tmp_path / "a").read_bytes() == b"one"


@pytest.mark.parametrize("url", ["", "x", "nope://x", "sqlite://host/x", "file:", "memory://"])
def test_a_journal_with_any_url_is_set_aside(tmp_path, url):
    place = tmp_path / "cloned"
    staging = place / ".agent-checkpoint-restore"
    journal = {"paths": None, "exclude": [], "store": url, "safety_id": "", "seen": None}
    for name in ("ab" * 32, "../../etc/passwd", "", "x"):
        text = json.dumps({**journal, "tree": name, "safety": name})
        staging.mkdir(parents=True)
        (staging / "journal").write_text(text)
        with Workspace(place) as ws:
            assert len(ws.notices) == 1
    assert len(list(place.glob(".agent-checkpoint-restore.found-*/journal"))) == 4
