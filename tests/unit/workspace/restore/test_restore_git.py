"""Restoring a repository of git: what git believes afterwards."""

import os
import shutil
import subprocess
import time

import pytest

from agent_checkpoint import CheckpointManager, Workspace

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(place, *arguments):
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=place, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_an_edit_of_the_same_size_and_second_is_not_hidden(tmp_path):
    """Git compares a file's time with that of its index, which a restore writes anew."""
    place = tmp_path / "repo"
    place.mkdir()
    git(place, "init", "-q")
    git(place, "config", "core.trustctime", "false")  # which would tell, an hour later
    (place / "file").write_text("a")
    then = (time.time() - 3600,) * 2
    os.utime(place / "file", then)
    git(place, "add", "file")
    git(place, "commit", "-qm", "one")
    (place / "file").write_text("b")
    for path in (place / "file", place / ".git/index"):  # all of it in the same second
        os.utime(path, then)
    assert git(place, "--no-optional-locks", "status", "--porcelain") == " M file\n"
    with Workspace(place, CheckpointManager().store) as workspace:
        tree = workspace.snapshot()
        (place / "other").write_text("x")
        git(place, "add", "other")
        workspace.restore(tree)
        assert (place / "file").read_text() == "b"
        assert git(place, "status", "--porcelain") == " M file\n"
        assert os.stat(place / ".git/index").st_mtime > 0
        workspace.restore(tree)
