"""`make demo`: it ends well, shows what it promises, and what it shows is really there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.demo.project import run_tests

PHRASES = [
    "1 of 4 tests pass.",
    "half of invoice.py is written\n",
    "SIGKILL",
    "session resumed with 1 message\n",
    "2 of 4 tests pass\n",
    "files: README.md, test_invoice.py\n",
    "session.rollback(steps=1): README.md, invoice.py, test_invoice.py\n",
    "way='round up'    1/1   3",
    "way='round down'  1/1   4",
    "Adopted the best trial, 'round down': 4 of 4 tests pass.",
    "Suspended: publish(version='1.1') waits for approval as approval-",
    "Approved and executed: invoices 1.1 is published.",
    "The register has 1 line.",
    "Not rolled back: 1 external side effect since the target is irreversible or in doubt.",
    "publish(version='1.1') (irreversible, ",
    "ui fix-invoices",
]


def run(folder: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "agent_checkpoint.demo", *arguments],
        cwd=folder,
        # Fixtures of the whole module are made before a test has a home of its own.
        env={
            **os.environ,
            "HOME": str(folder),
            "AGENT_CHECKPOINT_HOME": str(folder / "own"),
            **more,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "home"


@pytest.fixture(scope="module")
def shown(home: Path) -> str:
    done = run(home.parent, "--in", str(home))
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("phrase", PHRASES)
def test_the_demo_shows(phrase: str, shown: str) -> None:
    assert phrase in shown


def test_the_chapters_are_in_order(shown: str) -> None:
    assert re.findall(r"^(\d)\. ", shown, flags=re.M) == list("123456")


def test_no_line_is_too_long_for_a_terminal(shown: str) -> None:
    lines = [line for line in shown.splitlines() if os.sep not in line]
    assert max(map(len, lines)) <= 92


def test_the_killed_process_and_the_next_one_are_others(shown: str) -> None:
    killed, resumed = dict.fromkeys(re.findall(r"\[process (\d+)\]", shown))
    assert killed != resumed


def test_what_it_shows_is_really_there(shown: str, home: Path) -> None:
    assert "fix-invoices" in shown
    assert run_tests(home / "project") == (4, 4)
    assert (home / "register.txt").read_text() == "invoices 1.1\n"
    with CheckpointManager(backend="sqlite", path=home / "store") as manager:
        kinds = {row["kind"] for row in manager.history("fix-invoices")}
        assert {"open", "save", "rollback", "safety", "adopt", "close"} <= kinds
        assert len(manager.list_keys("fix-invoices/")) == 2
        assert manager.verify().ok


def test_the_commands_at_its_end_run(shown: str, home: Path) -> None:
    """Without the script on the path, as after `make demo`, and whatever is on it here."""
    done = run(home.parent, "--in", str(home.parent / "again's"), PATH="/usr/bin:/bin")
    lines = [line.strip() for line in done.stdout.splitlines() if " log fix-invoices" in line]
    assert len(lines) == 1
    told = subprocess.run(
        ["/bin/sh", "-c", lines[0]], cwd=home.parent, capture_output=True, encoding="utf-8"
    )
    assert told.returncode == 0, told.stderr
    assert "open" in told.stdout


def test_strange_arguments(tmp_path: Path) -> None:
    done = run(tmp_path, "sing")
    assert done.returncode == 2
    assert "unknown part sing" in done.stderr
