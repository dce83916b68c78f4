"""A16: directories that hold too much are no workspaces; and what a workspace may bring along."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, UnsafeWorkspaceError, Workspace, WorkspaceError
from agent_checkpoint.errors import CheckpointError
from tests.attacks.forging_trees import look


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
        "tree": tree.ref,
        "safety": safety.ref,
        "paths": None,
        "exclude": [],
        "store": f"sqlite://{place / 'hidden' / 'store'}",
        "safety_id": "x",
        "seen": None,
    }
    (staging / "journal").write_text(json.dumps(journal))
    before = look(place)
    with pytest.raises(WorkspaceError, match="remove the directory"):
        Workspace(place)
    assert look(place).items() >= {k: v for k, v in before.items() if "store" not in k}.items()
    assert (place / "run").read_bytes() == b"reviewed"


@pytest.mark.parametrize("url", ["", "x", "nope://x", "sqlite://host/x", "file:", "memory://"])
def test_a_journal_with_any_url_is_refused_with_an_error_of_ours(tmp_path, url):
    place = tmp_path / "cloned"
    staging = place / ".agent-checkpoint-restore"
    staging.mkdir(parents=True)
    journal = {"paths": None, "exclude": [], "store": url, "safety_id": "", "seen": None}
    for name in ("ab" * 32, "../../etc/passwd", "", "x"):
        text = json.dumps({**journal, "tree": name, "safety": name})
        (staging / "journal").write_text(text)
        with pytest.raises(CheckpointError):
            Workspace(place)
    assert [path.name for path in place.iterdir()] == [".agent-checkpoint-restore"]
