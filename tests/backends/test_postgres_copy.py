"""Copies to and from PostgreSQL: the way of a laptop's store to that of a team."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from agent_checkpoint import CheckpointManager, Session, copy, tool
from tests.unit.store.archive.test_store_copy import content, opened
from tests.unit.store.carried import fill


@tool(effect="irreversible", key=lambda what: what)
def deploy_once(what):
    _deployed.append(what)
    return f"deployed {what}"


_deployed = []


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("memory", "file"))]
)
def test_to_postgres_and_back(tmp_path, server, kind):
    source = opened(kind, tmp_path / "a")
    fill(source)
    source.fork("key", "alt", "key@2")
    url = server.url(server.new_schema())
    copy(source, url)
    with CheckpointManager(url) as target:
        assert content(target) == content(source)
        source.save("key", {"more": 1})
        assert copy(source, target).checkpoints == 1
        assert content(target) == content(source)
        assert target.verify().ok
        back = opened(kind, tmp_path / "b")
        copy(target, back)
        assert content(back) == content(source)
        target.delete("key")  # PostgreSQL goes on counting
        copy(source, target)
        assert len(target.history("key")) == len(source.history("key"))
        assert target.verify().ok


def test_the_command_takes_a_session_to_the_team(tmp_path, server):
    url = server.url(server.new_schema())
    with Session("fix", store=tmp_path / "laptop"):
        deploy_once("v1")
    command = [sys.executable, "-m", "agent_checkpoint", "copy", str(tmp_path / "laptop"), url]
    for words in (f"Copied to {url}: 1 key,", f"Nothing to copy: {url} is"):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(words)
        assert ("with rebind=True" in done.stdout) == ("Copied" in words)
    with Session("fix", store=url):
        assert deploy_once("v1") == "deployed v1"
    assert _deployed == ["v1"]


def test_between_two_schemas(server, tmp_path: Path):
    first, second = (server.url(server.new_schema()) for _ in range(2))
    with CheckpointManager(first) as source:
        fill(source)
        copy(first, second)
        with CheckpointManager(second) as target:
            assert content(target) == content(source)
