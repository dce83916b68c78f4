"""Sixteen forks of one large workspace, in processes, that edit the same paths at the same time."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from agent_checkpoint import Session, explore
from agent_checkpoint.workspace.fork import isolated

FORKS = 16
EDITED = 40


def make_files(place, number):
    for folder in range(number // 100):
        inside = place / f"part{folder // 25:02d}" / f"folder{folder:03d}"
        inside.mkdir(parents=True)
        for file in range(100):
            (inside / f"file{file:02d}.txt").write_text(f"{folder} {file}\n")


def edit(branch, n, at, forks):
    """Edit, remove and make the same files as all others, in step with them."""
    place = branch.workspace.path
    began = time.time()
    (Path(at) / f"begun-{n}").touch()
    deadline = time.monotonic() + 300
    while len(list(Path(at).glob("begun-*"))) < forks:  # all are there, none has ended yet
        assert time.monotonic() < deadline
        time.sleep(0.02)
    names = sorted(path for path in place.glob("part00/folder00*/file*.txt"))[:EDITED]
    for path in names:
        path.write_text(f"fork {n}\n")
    (place / "part00/folder000/file99.txt").unlink()
    (place / "mine").mkdir()
    (place / "mine" / "note").write_text(str(n))
    time.sleep(0.2)
    assert [path.read_text() for path in names] == [f"fork {n}\n"] * EDITED
    assert (place / "mine" / "note").read_text() == str(n)
    assert os.listdir(place / "mine") == ["note"]
    return {"score": n, "began": began}


@pytest.mark.slow
def test_each_sees_only_its_own_edits(tmp_path, own_home, full_faults, tried):
    forks = FORKS if full_faults else 4
    place, at = tmp_path / "work", tmp_path / "at"
    at.mkdir()
    make_files(place, 99_000 if full_faults else 2_000)
    variants = [{"n": n, "at": str(at), "forks": forks} for n in range(forks)]
    pool = ProcessPoolExecutor(forks, mp_context=get_context("spawn"))
    with Session("work", workspace=place, store=tmp_path / "store") as session, pool:
        session.save()
        tree = session.workspace.snapshot()
        outcome = explore(session, edit, variants, executor=pool, timeout=600)
        assert [trial.error for trial in outcome] == [None] * forks
        if isolated.can_view(isolated.private_forks_dir()):
            assert {trial.place for trial in outcome} == {str(place)}
        for n, trial in enumerate(outcome):
            changes = trial.file_diff
            assert changes.added == ["mine/note"]
            assert changes.removed == ["part00/folder000/file99.txt"]
            assert len(changes.changed) == EDITED
            assert f"+fork {n}\n" in changes.text()
        assert session.workspace.snapshot(full=True).id == tree.id
        outcome.best().adopt()
        assert (place / "mine/note").read_text() == str(forks - 1)
        session.undo()
        assert session.workspace.snapshot(full=True).id == tree.id
    assert str(own_home) not in Path("/proc/self/mountinfo").read_text()
    for name in ("forks", "bases", "branches"):
        left = own_home / "store" / name
        assert not left.exists() or not list(left.iterdir()), name
    tried("forks side by side", forks)
