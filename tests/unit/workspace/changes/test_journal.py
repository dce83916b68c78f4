"""The change journal: what changed since any token, in every directory that there is by then."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from agent_checkpoint.backends.os_support import mounts
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.changes.journal import ChangeJournal
from agent_checkpoint.workspace.changes.served import Token
from tests.unit.workspace.nobody import as_nobody, place_of_nobody
from tests.unit.workspace.watching import can_watch


@pytest.fixture(autouse=True)
def no_mounts_of_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave out mounts that other processes make meanwhile: a file that is a copy never changes."""
    with NamedTemporaryFile() as table:
        table.write(mounts.TABLE.read_bytes())
        table.flush()
        Path(table.name).chmod(0o644)
        monkeypatch.setattr(mounts, "TABLE", Path(table.name))
        yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    if not can_watch(root):
        pytest.skip("the file system of the test directory raises no events")
    return root


@pytest.fixture
def journal(root: Path) -> Iterator[ChangeJournal]:
    journal = started(root)
    yield journal
    journal.close()


def started(root: Path) -> ChangeJournal:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return ChangeJournal(fd)
    finally:
        os.close(fd)


def since(journal: ChangeJournal, token: "Token | None") -> "tuple[Token, ChangedPaths]":
    assert journal.update()
    now, changed = journal.since(token)
    return now, changed or ChangedPaths({}, set())


def test_a_token_is_a_moment(journal: ChangeJournal, root: Path) -> None:
    first, _ = since(journal, None)
    (root / "a" / "one").write_text("x")
    second, changed = since(journal, first)
    assert changed == ({b"a": {b"one"}}, set())
    (root / "two").write_text("x")
    assert since(journal, second)[1] == ({b"": {b"two"}}, set())
    assert since(journal, first)[1] == ({b"": {b"two"}, b"a": {b"one"}}, set())
    (root / "a" / "one").write_text("again")
    assert since(journal, second)[1] == ({b"": {b"two"}, b"a": {b"one"}}, set())


@pytest.mark.parametrize("how", ["made", "moved", "moved in", "made again"])
def test_new_directories_are_watched(
    journal: ChangeJournal, root: Path, tmp_path: Path, how: str
) -> None:
    first, _ = since(journal, None)
    new = root / "new"
    if how == "made":
        (new / "deep").mkdir(parents=True)
    elif how == "moved":
        (root / "a").rename(new)
        (new / "deep").mkdir()
    elif how == "moved in":
        (tmp_path / "outside" / "deep").mkdir(parents=True)
        (tmp_path / "outside").rename(new)
    else:
        new = root / "a"
        (new / "b").rmdir()
        new.rmdir()
        (new / "deep").mkdir(parents=True)
    second, changed = since(journal, first)
    name = os.fsencode(new.name)
    assert name in changed.names[b""]
    assert name in changed.replaced
    (new / "deep" / "file").write_text("x")
    assert since(journal, second)[1] == ({name + b"/deep": {b"file"}}, set())


def test_tokens_of_the_future_and_of_others(journal: ChangeJournal) -> None:
    now, _ = since(journal, None)
    assert journal.since(now).changed is not None
    assert journal.since(Token(now.epoch, now.number + 1)).changed is None
    assert journal.since(Token(bytes(16), now.number)).changed is None


def test_a_directory_that_cannot_be_opened_is_told_until_it_can() -> None:
    with place_of_nobody() as root, as_nobody():
        (root / "a" / "b").mkdir(parents=True)
        if not can_watch(root):
            pytest.skip("the file system of the test directory raises no events")
        (root / "a").chmod(0)
        journal = started(root)
        try:
            token, _ = since(journal, None)
            token, changed = since(journal, token)
            assert changed == ({b"": {b"a"}}, {b"a"})
            (root / "a").chmod(0o700)
            token, changed = since(journal, token)
            assert changed == ({b"": {b"a"}}, {b"a"})
            (root / "a" / "b" / "file").write_text("x")
            assert since(journal, token)[1] == ({b"a/b": {b"file"}}, set())
        finally:
            journal.close()
            (root / "a").chmod(0o700)


def test_a_moved_root_ends_it(journal: ChangeJournal, root: Path) -> None:
    root.rename(root.with_name("moved"))
    assert not journal.update()
