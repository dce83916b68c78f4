"""`demo`: the story, told by the command."""

from pathlib import Path

from tests.cli.world import run_process


def test_it_is_told_where_one_says(tmp_path: Path) -> None:
    ran = run_process("demo", "--in", "here", at=tmp_path)
    assert ran.status == 0, ran.err
    assert "6. A rollback past it is refused" in ran.out
    assert (tmp_path / "here" / "store" / "store.db").exists()
