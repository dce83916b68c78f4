"""`watch`: saves whenever files change, until it is interrupted."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.scene import Scene, scene, wait_for


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        yield found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_saves_what_changes(number: signal.Signals, work: Scene) -> None:
    key = f"workspace:{work.workspace}"
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_checkpoint", "watch", str(work.workspace), "--every", "0.1"],
        cwd=work.place,
        env=work.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(work.history(key)) == 1)
    (work.workspace / "new").write_text("x")
    wait_for(lambda: len(work.history(key)) == 2)
    (work.workspace / "new").unlink()
    wait_for(lambda: len(work.history(key)) == 3)
    process.send_signal(number)
    printed, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, "")
    assert printed.splitlines()[:3] == [
        f"Taking the first snapshot of {work.workspace}.",
        "Saved @1",
        f"Watching {work.workspace}. Press Ctrl-C to stop.",
    ]
    assert "Saved @2" in printed
    assert len(work.history(key)) == 3
    with work.manager() as manager:
        assert manager.verify().ok


def test_its_first_snapshot_has_progress_on_a_terminal(work: Scene) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_checkpoint", "watch"],
        cwd=work.workspace,
        env={**work.environment, "TERM": "dumb"},
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen = b""
    while b"Watching" not in seen:
        seen += os.read(master, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    os.close(master)
    assert seen.index(b"Taking the first snapshot") < seen.index(b"Saving: 1 file")


def test_what_it_tells_a_program(work: Scene) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_checkpoint", "watch", "--json"],
        cwd=work.workspace,
        env=work.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: work.history(f"workspace:{work.workspace}") != [])
    (work.workspace / "at-the-end").write_text("x")
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    told = json.loads(printed)
    assert told["key"] == f"workspace:{work.workspace}"
    assert len(told["saved"]) == 2


def test_what_cannot_be_watched(work: Scene) -> None:
    work.command("watch", "nowhere", status=2)
    work.command("watch", "--every", "-1", status=2)
