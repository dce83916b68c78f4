"""Where a store is that was opened without a path."""

import stat
import sys

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError
from agent_checkpoint.backends.default_paths import default_store
from agent_checkpoint.backends.registry import open_backend


def test_sqlite_without_a_path_is_the_users_own_store(own_home):
    manager = CheckpointManager(backend="sqlite")
    manager.save("a", {"n": 1})
    manager.close()
    store = own_home / "store" / "store"
    assert (store / "store.db").is_file()
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    again = CheckpointManager(backend="sqlite")
    assert again.state_dict("a") == {"n": 1}
    again.close()


def test_opening_makes_nothing(own_home):
    open_backend("sqlite").close()
    assert list(own_home.iterdir()) == []


def test_the_environment_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(tmp_path))
    assert default_store() == tmp_path / "store"
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", "~/mine")
    assert default_store().parts[-2:] == ("mine", "store")
    assert default_store().is_absolute()


@pytest.mark.parametrize("given", ["relative", "./here", "a\0b"])
def test_an_environment_that_names_no_place(given, monkeypatch):
    monkeypatch.setattr("os.environ", {"AGENT_CHECKPOINT_HOME": given})
    with pytest.raises(InvalidInputError):
        open_backend("sqlite")


@pytest.mark.parametrize(
    ("platform", "below"),
    [("linux", ".local/share"), ("darwin", "Library/Application Support")],
)
def test_the_data_directory_of_the_user(own_home, monkeypatch, platform, below):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", "")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    expected = own_home / below / "agent-checkpoint" / "store"
    assert default_store() == expected
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # the standard says: to be ignored
    assert default_store() == expected
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert str(default_store()) == "/data/agent-checkpoint/store"


def test_without_a_home(monkeypatch):
    monkeypatch.delenv("AGENT_CHECKPOINT_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    with pytest.raises(InvalidInputError, match="set AGENT_CHECKPOINT_HOME"):
        open_backend("sqlite")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert str(default_store()) == "/data/agent-checkpoint/store"
