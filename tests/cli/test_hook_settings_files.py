"""A22: the files of agents' settings: private, and never followed out of a project."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.settings.agent_settings import (
    install,
    installed,
    settings_file,
    store_of,
    uninstall,
)
from agent_checkpoint.agents.settings.plugin_files import PLUGIN_AGENTS
from agent_checkpoint.errors import CheckpointError, InvalidInputError, StorageError
from tests.cli.world import run

EVERYTHING = pytest.mark.parametrize("agent", AGENTS)
WITH_JSON = pytest.mark.parametrize(
    "agent", [agent for agent in AGENTS if agent not in PLUGIN_AGENTS]
)
"""The others have a plug-in of ours, and no settings of the user beside it."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


@pytest.fixture
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@EVERYTHING
@pytest.mark.usefixtures("open_to_all")
def test_a_new_file_is_private_whatever_the_umask(agent: str, home: Path, project: Path) -> None:
    for root in (None, project):
        path = settings_file(agent, root)
        assert install(agent, path, "", root)
        assert mode(path) == 0o600
        assert mode(path.parent) & 0o022 == 0


@WITH_JSON
@pytest.mark.usefixtures("open_to_all")
@pytest.mark.parametrize("before", [0o600, 0o640, 0o644])
def test_an_existing_file_and_its_backup_keep_the_mode(
    agent: str, before: int, project: Path
) -> None:
    for root in (None, project):
        path = settings_file(agent, root)
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o700)
        path.write_text('{"a": 1}')
        path.chmod(before)
        assert install(agent, path, "", root)
        assert {mode(each) for each in path.parent.iterdir()} == {before}
        assert uninstall(agent, path, root)
        assert {each.name: mode(each) for each in path.parent.iterdir()} == {path.name: before}


def put_fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def put_endless(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def put_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def put_broken_link(path: Path, outside: Path) -> None:
    outside.unlink()
    path.symlink_to(outside)


def put_large(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def put_directory(path: Path, outside: Path) -> None:
    path.mkdir(parents=True)


HOSTILE = [put_fifo, put_endless, put_link, put_broken_link, put_large, put_directory]


@EVERYTHING
@pytest.mark.parametrize("put", HOSTILE)
def test_what_a_project_puts_in_the_place_of_its_settings_is_refused(
    agent: str, put: Callable[[Path, Path], None], project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    path = settings_file(agent, project)
    path.parent.mkdir(parents=True)
    put(path, outside)
    there = outside.read_text() if outside.exists() else None
    for act in (install, uninstall, installed, store_of):
        options = {"project": project}
        with pytest.raises(InvalidInputError, match="Cannot read"):
            act(agent, path, **options)  # type: ignore[operator]
    assert run("hook", "install", agent, "--project", at=project).status != 0
    status = run("hook", "status", "--json", at=project)
    assert status.status == 1
    rows = {(row["agent"], row["scope"]): row for row in status.data["agents"]}
    assert rows[agent, "project"]["trouble"]
    assert (outside.read_text() if outside.exists() else None) == there
    assert not [name for name in path.parent.iterdir() if name != path]


@EVERYTHING
def test_a_directory_that_a_project_links_elsewhere_is_not_written_to(
    agent: str, project: Path, tmp_path: Path
) -> None:
    path = settings_file(agent, project)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / path.name).write_text("{}")
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="is a symbolic link; links in a project"):
        install(agent, path, "", project)
    (elsewhere / path.name).unlink()
    with pytest.raises(CheckpointError, match="is a symbolic link; links in a project"):
        install(agent, path, "", project)
    assert list(elsewhere.iterdir()) == []


def test_the_backup_is_not_written_through_a_link(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    path = settings_file("codex", project)
    path.parent.mkdir(parents=True)
    path.write_text('{"a": 1}')
    backup = path.with_name(f"{path.name}.before-agent-checkpoint")
    backup.symlink_to(outside)
    assert install("codex", path, "", project)
    assert outside.read_text() == "mine"
    assert not backup.is_symlink()
    assert backup.read_text() == '{"a": 1}'


class TestDotfiles:
    @WITH_JSON
    def test_a_link_of_the_user_is_followed_and_stays(self, agent: str, home: Path) -> None:
        path = settings_file(agent, None)
        path.parent.mkdir(parents=True)
        dotfiles = home / "dotfiles"
        dotfiles.mkdir()
        (dotfiles / "settings").write_text('{"a": 1}')
        path.symlink_to(dotfiles / "settings")
        assert install(agent, path)
        assert path.is_symlink()
        assert json.loads((dotfiles / "settings").read_text())["a"] == 1
        assert installed(agent, path)
        assert uninstall(agent, path)
        assert (dotfiles / "settings").read_text() == '{"a": 1}'

    def test_a_directory_that_is_a_link_of_the_user_is_followed(self, home: Path) -> None:
        (home / "dotfiles").mkdir()
        path = settings_file("codex", None)
        path.parent.symlink_to(home / "dotfiles")
        assert install("codex", path)
        assert (home / "dotfiles" / path.name).is_file()

    def test_one_to_a_place_that_others_may_write_is_refused(
        self, home: Path, tmp_path: Path
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        elsewhere.chmod(0o777)
        (elsewhere / "settings").write_text("{}")
        path = settings_file("codex", None)
        path.parent.mkdir(parents=True)
        path.symlink_to(elsewhere / "settings")
        with pytest.raises(InvalidInputError, match="all users can write"):
            install("codex", path)
        (elsewhere / "settings").unlink()
        with pytest.raises((InvalidInputError, StorageError), match="all users can write"):
            install("codex", path)
        assert list(elsewhere.iterdir()) == []

    def test_a_file_of_another_user_is_refused_with_the_reason(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = settings_file("codex", None)
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:
            user = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(InvalidInputError, match="owned by uid"):
            install("codex", path)
        assert path.read_text() == "{}"

    @pytest.mark.parametrize("put", [put_fifo, put_endless, put_large, put_directory])
    def test_what_is_no_file_of_settings_is_refused(
        self, put: Callable[[Path, Path], None], tmp_path: Path
    ) -> None:
        path = settings_file("codex", None)
        path.parent.mkdir(parents=True)
        put(path, tmp_path / "outside")
        for act in (install, uninstall, installed):
            with pytest.raises(InvalidInputError, match="Cannot read"):
                act("codex", path)


@pytest.mark.usefixtures("open_to_all")
def test_the_file_that_an_editor_gets_is_private(
    request_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\nstat -c "%a" "$1" "$(dirname "$1")" > {seen}\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    run("approvals", "edit", request_id)
    assert seen.read_text().split() == ["600", "700"]
