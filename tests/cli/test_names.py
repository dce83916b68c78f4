"""What names of keys and checkpoints mean: `.`, `@17`, `~2`, the same in every command."""

from pathlib import Path

import pytest

from tests.cli.world import opened, run


def test_a_dot_is_the_directory_in_every_command(repo: Path) -> None:
    head = run("show", "--json", at=repo).data["id"]
    assert run("show", ".", "--json", at=repo).data["id"] == head
    assert run("fork", ".", "other", "--json", at=repo).data["from"] == head
    assert run("diff", ".", "@1", "--json", at=repo).data["from"] == head
    assert run("diff", "@1", ".", "--json", at=repo).data["to"] == head
    assert run("log", ".", "--json", at=repo).data["head"] == head
    assert run("prune", ".", "--keep-latest", "1", "--dry-run", "--json", at=repo).status == 0
    assert "2 checkpoints" in run("delete", ".", at=repo).out


def test_a_dot_elsewhere_is_not_found(tmp_path: Path, repo: Path) -> None:
    for typed in (("diff", ".", "@1"), ("fork", ".", "x"), ("delete", ".", "--yes")):
        ran = run(*typed, at=tmp_path)
        assert (ran.status, ran.out) == (3, "")
        assert "has no checkpoints yet" in ran.err


@pytest.mark.parametrize("name", ["@1", "~1", "@~1"])
def test_short_forms_of_the_key(repo: Path, name: str) -> None:
    first = run("show", "@1", "--json", at=repo).data["id"]
    assert run("show", name, "--json", at=repo).data["id"] == first
    assert run("fork", ".", "other", "--at", name, "--json", at=repo).data["from"] == first


def test_a_key_of_that_name_wins(repo: Path) -> None:
    with opened() as manager:
        mine = manager.save("@1", {"x": 1})
    assert run("show", "@1", "--json", at=repo).data["id"] == mine
