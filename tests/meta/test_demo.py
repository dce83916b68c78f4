"""`make demo`: it ends well, shows what it promises, and what it shows is really there."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager

PHRASES = [
    "1. Save",
    "2. Crash and resume",
    "resumed with tent, stove\n",
    f"ended by signal {signal.SIGKILL:d}, SIGKILL",
    "resumed with tent, stove, rope\n",
    "3. Roll back",
    "raised  ValueError: 6700 g",
    "4. Compare",
    "changed  grams        5300 -> 6000",
    "5. Fork",
    "light:  worth 28, 5700 g",
    "liked:  worth 29, 5900 g",
    "6. History",
    "rollback  before the idea",
    "7. Look for yourself",
    "all intact",
    "The directory is kept for you",
]


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "agent_checkpoint.demo", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run(tmp_path_factory.mktemp("demo"))
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("phrase", PHRASES)
def test_the_demo_shows(phrase: str, shown: str) -> None:
    assert phrase in shown


def test_the_chapters_are_in_order(shown: str) -> None:
    assert re.findall(r"^(\d)\. ", shown, flags=re.M) == list("1234567")


def test_no_line_is_too_long_for_a_terminal(shown: str) -> None:
    lines = [line for line in shown.splitlines() if os.sep not in line]
    assert max(map(len, lines)) <= 90


def test_the_killed_process_and_the_next_one_are_others(shown: str) -> None:
    killed, resumed = dict.fromkeys(re.findall(r"\[process (\d+)\]", shown))
    assert killed != resumed


def test_the_file_it_points_to_is_the_newest_checkpoint(shown: str) -> None:
    path = Path(shown.splitlines()[-1])
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["key"], record["kind"]) == ("trip", "rollback")
    assert record["parts"]["agent"]["$state"]["bag"] == ["tent", "stove", "rope", "lamp"]
    with CheckpointManager(backend="file", path=path.parent.parent) as manager:
        assert manager.list_keys() == ["light", "liked", "trip"]
        assert manager.verify().ok
        assert f"trip@{path.stem} " in shown


def test_arguments_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--help")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
