"""Archives that name this user's directories, sessions and hooks: they own nothing here."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError, Session, Workspace
from agent_checkpoint.agents.tracked_dir import open_tracked
from agent_checkpoint.workspace.directory_key import key_of
from tests.cli.world import opened, run

HOOK = ".git/hooks/post-checkout"


def plant(place: Path) -> None:
    """Make a directory what an attacker wants others to have."""
    (place / ".git" / "hooks").mkdir(parents=True)
    (place / HOOK).write_text("#!/bin/sh\ntouch /tmp/owned\n")
    (place / HOOK).chmod(0o755)
    (place / ".git" / "config").write_text("[core]\n\tfsmonitor = ./x\n")
    (place / "build").write_text("#!/bin/sh\n")
    (place / "build").chmod(0o755)
    (place / "app.py").write_text("evil\n")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of a line that has the key of the directory `repo`, from another user."""
    place, path = tmp_path / "repo", tmp_path / "evil.ckpt"
    place.mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", "of somebody else")
        with CheckpointManager(backend="sqlite", path=tmp_path / "theirs") as theirs:
            plant(place)
            Workspace(place, theirs.store, watch=False).snapshot(label="leaked-token")
            theirs.export_archive(path, key_of(place))
    shutil.rmtree(place)
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The user's own directory, of which nothing was saved yet."""
    place = tmp_path / "repo"
    place.mkdir(exist_ok=True)
    (place / "app.py").write_text("mine\n")
    return place


def test_an_imported_line_is_not_that_of_the_directory(archive: Path, mine: Path) -> None:
    assert run("import", archive).status == 0
    for typed in (("restore", "@1", "--yes"), ("diff", "@1"), ("log",)):
        done = run(*typed, at=mine)
        assert done.status != 0
        assert "imported" in done.err
    assert sorted(path.name for path in mine.iterdir()) == ["app.py"]
    assert run("restore", f"{key_of(mine)}@1", "--yes", at=mine).status == 2
    assert (mine / "app.py").read_text() == "mine\n"


def test_the_directory_is_saved_to_a_line_of_its_own(archive: Path, mine: Path) -> None:
    run("import", archive)
    saved = run("save", "--json", at=mine).data
    assert saved["key"] != key_of(mine)
    assert run("log", "--json", at=mine).data["key"] == saved["key"]
    (mine / "app.py").write_text("broken\n")
    assert run("restore", "@1", "--yes", at=mine).status == 0
    assert (mine / "app.py").read_text() == "mine\n"
    assert not (mine / HOOK).exists()
    with opened() as manager:
        assert len(manager.history(key_of(mine))) == 1


def test_an_import_says_what_it_brought_and_that_it_owns_nothing(archive: Path, mine: Path) -> None:
    done = run("import", archive)
    assert "1 checkpoint" in done.out
    assert f"It claims the directory {mine}" in done.out
    assert "not bound to any of your directories" in done.out
    row = run("keys", "--json").data[0]
    assert (row["foreign"], row["directory"]) == (True, None)


def test_a_preview_names_what_could_run(archive: Path, mine: Path) -> None:
    run("import", archive)
    into = ("restore", f"{key_of(mine)}@1", "--into", mine, "--force")
    names = [
        "becomes executable: .git/hooks/post-checkout",
        "becomes executable: build",
        "is run or read by git: .git/hooks/post-checkout",
        "is run or read by git: .git/config",
    ]
    asked = run(*into, at=mine)
    assert asked.status == 4
    assert not (mine / HOOK).exists()
    done = run(*into, "--yes", at=mine)
    assert done.status == 0
    for name in names:
        assert name in asked.out
        assert name in done.out
    assert "app.py" not in done.out.partition("not proven to be yours")[2].partition("Restored")[0]


def test_the_preview_for_programs_names_them_too(archive: Path, mine: Path) -> None:
    run("import", archive)
    into = ("restore", f"{key_of(mine)}@1", "--into", mine, "--force", "--json", "--dry-run")
    data = run(*into, at=mine).data
    assert data["foreign"] is True
    assert sorted(data["executable"]) == [HOOK, "build"]
    assert sorted(data["git_files"]) == [".git/config", HOOK]


def test_the_user_can_say_that_a_line_is_theirs(archive: Path, mine: Path) -> None:
    run("import", archive)
    own = run("save", "--json", at=mine).data["key"]
    assert run("save", "--mine", "another", at=mine).status == 2
    assert run("save", "--mine", key_of(mine), at=mine).status == 0
    assert run("log", "--json", at=mine).data["key"] == key_of(mine) != own
    asked = run("restore", "@1", at=mine)
    assert asked.status == 4  # the content stays marked, also on a line that is one's own
    assert f"becomes executable: {HOOK}" in asked.out


@pytest.mark.parametrize("by", ["fork", "export", "purge"])
def test_the_mark_of_an_import_stays(archive: Path, mine: Path, tmp_path: Path, by: str) -> None:
    run("import", archive)
    key = key_of(mine)
    with opened() as manager:
        if by == "fork":
            manager.fork(key, "aside")
            manager.delete(key)
            manager.fork("aside", key)
        elif by == "purge":
            assert manager.purge("leaked-token").replaced
        else:
            manager.export_archive(tmp_path / "again.ckpt", key)
            manager.delete(key)
            manager.import_archive(tmp_path / "again.ckpt")
    assert "imported" in run("log", at=mine).err
    assert run("save", "--json", at=mine).data["key"] != key


def test_a_fork_of_an_imported_line_names_what_could_run(archive: Path, mine: Path) -> None:
    run("import", archive)
    there = mine.parent / "there"
    done = run("fork", key_of(mine), "aside", "--into", there)
    assert done.status == 0
    assert f"becomes executable: {HOOK}" in done.out
    assert run("log", "--json", at=there).data["key"] == "aside"  # the user said so


def test_a_seal_of_ones_own_vouches_for_nothing_in_an_archive(mine: Path, tmp_path: Path) -> None:
    """An archive of the user's own line comes back, with other files under the same notes."""
    work = tmp_path / "work"
    work.mkdir()
    with opened() as manager:
        Session("job", workspace=work, store=manager).close()
        manager.export_archive(tmp_path / "job.ckpt", "job")
    with CheckpointManager(backend="sqlite", path=tmp_path / "new") as manager:
        manager.import_archive(tmp_path / "job.ckpt")
        with pytest.raises(InvalidInputError, match="not signed with your secret"):
            Session("job", store=manager)
    assert run("--store", tmp_path / "new", "tasks", at=work).status == 3


def test_an_imported_session_takes_over_no_directory(mine: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    plant(theirs)
    with CheckpointManager(backend="sqlite", path=tmp_path / "a") as manager:
        Session("nightly", workspace=theirs, store=manager).close()
        manager.export_archive(tmp_path / "evil.ckpt", "nightly")
    (tmp_path / "empty").mkdir()
    with CheckpointManager(backend="sqlite", path=tmp_path / "b") as manager:
        manager.import_archive(tmp_path / "evil.ckpt")
        for on_drift in ("keep", "restore"):
            with pytest.raises(InvalidInputError, match="which is not empty"):
                Session("nightly", workspace=mine, store=manager, on_drift=on_drift)
        with Session("nightly", workspace=mine, store=manager, rebind=True) as session:
            assert any("imported" in notice for notice in session.notices)
            report = session.rollback(to="nightly@1", dry_run=True)
            assert report.foreign
            assert report.files is not None
            assert HOOK in report.files.executable
        with Session("nightly", workspace=mine, store=manager) as session:
            assert not any("imported" in notice for notice in session.notices)
    assert (mine / "app.py").read_text() == "mine\n"
    assert not (mine / HOOK).exists()


def test_the_library_saves_to_a_line_of_its_own(archive: Path, mine: Path) -> None:
    with opened() as manager:
        manager.import_archive(archive)
        workspace = Workspace(mine, manager.store, watch=False)
        workspace.snapshot()
        (mine / "app.py").write_text("later\n")
        plan = workspace.restore(f"{workspace.key}@1")
        assert plan.safety_id is not None
        assert plan.safety_id.startswith(workspace.key)
        assert len(manager.history(key_of(mine))) == 1
        told = str(workspace.restore(f"{key_of(mine)}@1", dry_run=True))
        assert f"executable: {HOOK}" in told
        assert "run or read by git: .git/config" in told


# -- secrets and hosts -----------------------------------------------------------------------------


def test_a_line_of_another_secret_does_not_vanish(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = run("save", "--json", at=mine).data["key"]
    with monkeypatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", "of this shell alone")
        for typed in (("log",), ("restore", "@1"), ("diff",)):
            told = run(*typed, at=mine)
            assert told.status == 3
            assert "no valid signature under your secret" in told.err
            assert f"save --mine {key}" in told.err
        other = run("save", at=mine)
        assert f"save --mine {key}" in other.out
    assert run("log", "--json", at=mine).data["key"] == key
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "for good")
    assert run("save", "--mine", key, at=mine).status == 0
    assert run("log", "--json", at=mine).data["key"] == key
    assert len(run("log", "--json", at=mine).data["checkpoints"]) == 2


def test_hosts_that_share_a_store_have_lines_of_their_own(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for host in ("web-1", "web-2", "web-1"):
        monkeypatch.setenv("AGENT_CHECKPOINT_HOST", host)
        (mine / "app.py").write_text(f"{host}\n")
        keys.append(run("save", "--json", at=mine).data["key"])
    assert keys[0] == keys[2] != keys[1]
    monkeypatch.setenv("AGENT_CHECKPOINT_HOST", "web-2")
    assert run("restore", "@1", "--yes", at=mine).status == 0
    assert (mine / "app.py").read_text() == "web-2\n"
    monkeypatch.setenv("AGENT_CHECKPOINT_HOST", "web-3")
    assert "another host, 'web-1'" in run("log", at=mine).err + run("save", at=mine).out


def test_a_session_of_another_host_takes_over_no_directory(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_HOST", "web-1")
    Session("job", workspace=mine).close()
    monkeypatch.setenv("AGENT_CHECKPOINT_HOST", "web-2")
    with pytest.raises(InvalidInputError, match="not signed with your secret"):
        Session("job")
    with pytest.raises(InvalidInputError, match="which is not empty"):
        Session("job", workspace=mine)
    monkeypatch.setenv("AGENT_CHECKPOINT_HOST", "web-1")
    Session("job").close()


def test_a_session_goes_on_where_there_can_be_no_secret(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null/nowhere")
    for _ in range(2):
        Session("job", workspace=mine).close()
        keys = run("save", "--json", at=mine).data["key"]
        assert keys == key_of(mine)
        (mine / "app.py").write_text("more\n")


# -- lines of version 0.1 --------------------------------------------------------------------------


@contextmanager
def version_0_1(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Save as that version did, without claims."""
    with monkeypatch.context() as patch:
        patch.setattr("agent_checkpoint.workspace.capture.make_claim", lambda *_: None)
        yield


def test_a_line_of_version_0_1_is_the_users_own(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with version_0_1(monkeypatch):
        run("save", at=mine)
    (mine / "app.py").write_text("later\n")
    assert run("restore", "@1", "--yes", at=mine).status == 0
    assert (mine / "app.py").read_text() == "mine\n"
    assert run("save", "--json", at=mine).data["key"] == key_of(mine)
    with opened() as manager:
        assert manager.store.head(key_of(mine)).claim is not None


def test_a_line_that_version_0_1_imported_and_continued_is_not(
    archive: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as manager:
        manager.import_archive(archive)
        with version_0_1(monkeypatch):
            open_tracked(mine, manager.store, key_of(mine)).snapshot()
    assert "imported" in run("restore", "@1", "--yes", at=mine).err
    assert not (mine / HOOK).exists()


# -- keys that look like a checkpoint of another key -----------------------------------------------


@pytest.mark.parametrize("form", ["@1", "~0", "id"])
def test_an_imported_key_does_not_hide_a_checkpoint(tmp_path: Path, mine: Path, form: str) -> None:
    saved = run("save", "--json", at=mine).data
    text = saved["id"] if form == "id" else saved["key"] + form
    with CheckpointManager(backend="sqlite", path=tmp_path / "theirs") as theirs:
        theirs.save(text, {"x": "evil"})
        theirs.export_archive(tmp_path / "evil.ckpt", text)
    with opened() as manager:
        manager.import_archive(tmp_path / "evil.ckpt")
        assert manager.state_dict(text) == {"x": "evil"}  # it was asked for as a key
        if form != "id":
            with pytest.raises(InvalidInputError, match="imported"):
                Workspace(mine, manager.store, watch=False).restore(text)
        assert manager.store.head(saved["key"]).id == saved["id"]
        assert manager.history(saved["key"], n=1)[0]["id"] == saved["id"]
    (mine / "app.py").write_text("later\n")
    if form != "id":
        assert "imported" in run("restore", text, "--yes", at=mine).err
    typed = text if form == "id" else form.replace("~", "@~")
    assert run("restore", typed, "--yes", at=mine).status == 0
    assert (mine / "app.py").read_text() == "mine\n"
