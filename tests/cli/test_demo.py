"""`demo`: the story, told by the command."""

from pathlib import Path

import pytest

from tests.cli.test_terminal import on_terminal
from tests.cli.world import run, run_process


@pytest.mark.slow
def test_it_is_told_where_one_says(tmp_path: Path) -> None:
    ran = run_process("demo", "--in", "here", at=tmp_path)
    assert ran.status == 0, ran.err
    assert "6. A rollback past the irreversible effect is refused" in ran.out
    assert (tmp_path / "here" / "store" / "store.db").exists()


def test_it_narrates_by_itself_on_a_terminal(tmp_path: Path) -> None:
    status, seen = on_terminal("demo", "--in", "here", at=tmp_path, columns=200)
    assert status == 0, seen
    assert "1/3" not in seen
    assert "2 of 4 tests pass" in seen


def test_a_store_is_refused(tmp_path: Path) -> None:
    ran = run("--store", tmp_path / "x", "demo", "--in", "here", at=tmp_path)
    assert (ran.status, ran.out) == (2, "")
    assert "its own store" in ran.err
    assert not (tmp_path / "here").exists()


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("demo", "--in", ".", at=tmp_path)
    assert (ran.status, ran.out) == (2, "")
    assert (
        ran.err == f"agent-checkpoint: {tmp_path} is not empty. Choose an empty or new directory.\n"
    )
    ran = run("demo", "--in", "file", at=tmp_path)
    assert ran.status == 2
    assert "(File exists)" in ran.err


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("demo", "--in", "/proc/nothing", at=tmp_path)
    assert ran.status == 2
    assert "Cannot use the directory /proc/nothing (" in ran.err
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    ran = run("demo", "--in", "kept", at=tmp_path)
    assert ran.status == 2
    assert f"{tmp_path / 'kept'} is not writable. Choose another directory." in ran.err
    assert "Error" not in ran.err
