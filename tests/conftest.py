"""Every test has its own home: no secret, store or setting of the person who runs it is touched."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(home / "store"))
    monkeypatch.delenv("AGENT_CHECKPOINT_SECRET", raising=False)
    return home
