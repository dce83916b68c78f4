"""Codecs: every installation reads a default store; nobody saves what it could not load."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import pytest

from agent_checkpoint import (
    CheckpointManager,
    FileBackend,
    FormatError,
    InvalidInputError,
    Session,
    Workspace,
)
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.store import canonical_json
from agent_checkpoint.store.objects import compression
from agent_checkpoint.store.objects.object_format import BLOB, PlainObject, make_object, open_object
from agent_checkpoint.store.store import Store
from tests.cli.world import run
from tests.compat.conftest import V1

needs_zstd = pytest.mark.skipif(compression.load_zstd() is None, reason="zstd is not installed")
BACKENDS = ["sqlite", "file"]
TEXT = "some text that packs well, " * 400


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A workspace: a file store has objects of workspaces only."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    # Packed it has more bytes than SQLite keeps in a row.
    (folder / "large.txt").write_text("\n".join(str(n * n) for n in range(40_000)))
    return folder


@contextmanager
def plain() -> Iterator[None]:
    """Be an installation without zstd."""
    with mock.patch.object(compression, "find_zstd", return_value=None):
        yield


def opened(backend: str, path: Path, **options: Any) -> CheckpointManager:
    return CheckpointManager(backend=backend, path=path / "store", **options)


def parts(repo: Path, n: int = 1) -> "dict[str, Any]":
    return {"state": {"n": n, "text": TEXT}, "files": Workspace(repo)}


def as_version_0_1(monkeypatch: pytest.MonkeyPatch, save: Callable[[], Any]) -> None:
    """Save with zstd objects that no record declares."""
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_compression", lambda self: "zstd")
        save()


def codecs(manager: CheckpointManager) -> "set[bytes]":
    backend = manager.store.backend
    names = [info.id for info in backend.list_objects()]
    return {data[:1] for data in backend.get_objects(names).values()}


# -- the default store ----------------------------------------------------------------------------


@needs_zstd
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_default_store_is_for_every_installation(
    backend: str, tmp_path: Path, repo: Path
) -> None:
    with opened(backend, tmp_path) as manager:
        manager.save("key", parts(repo))
        assert codecs(manager) <= {b"r", b"z"}
        assert (manager.store.format.read() or {})["features"] == []
    with plain(), opened(backend, tmp_path) as manager:
        manager.save("other", parts(repo, 2))  # shares the text and the files
        assert manager.state_dict("other")["state"] == {"n": 2, "text": TEXT}
        assert manager.state_dict("key")["state"] == {"n": 1, "text": TEXT}
        assert manager.verify().ok


def test_a_real_process_without_zstd_works_in_the_store_of_one_with_it(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "if sys.argv[1] == 'plain': sys.modules.update({'compression': None, 'backports': None})\n"
        "from agent_checkpoint import Session\n"
        "with Session(sys.argv[1], store=sys.argv[2]) as session:\n"
        "    session.messages.append({'role': 'user', 'content': 'some text ' * 900})\n"
        "with Session(sys.argv[1], store=sys.argv[2]) as session:\n"
        "    assert len(session.messages[0]['content']) == 9000\n"
    )
    for name in ("usual", "plain"):
        arguments = [sys.executable, "-c", program, name, str(tmp_path / "store")]
        subprocess.run(arguments, check=True, timeout=120)


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_and_without_orjson_the_same_bytes_are_written(
    backend: str, tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"text": TEXT, "numbers": [0.1, 1e-7, -0.0, 2**63 - 1, 1e16], "other": "é\u2028\x7f/"}

    def written(name: str) -> "dict[str, bytes]":
        with CheckpointManager(backend=backend, path=tmp_path / name) as manager:
            manager.save("key", {"state": state, "list": {"items": list(range(3000))}})
            store = manager.store.backend
            found = store.get_objects([info.id for info in store.list_objects()])
            assert manager.state_dict("key")["state"] == state
            return found

    usual = written("usual")
    monkeypatch.setattr(canonical_json, "orjson", None)
    assert written("without") == usual


# -- a store that is made with zstd ---------------------------------------------------------------


@needs_zstd
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_that_needs_zstd_says_so_and_is_refused_when_opened(
    backend: str, tmp_path: Path, repo: Path
) -> None:
    with opened(backend, tmp_path, compression="zstd") as manager:
        manager.save("key", parts(repo))
        assert b"s" in codecs(manager)
        assert (manager.store.format.read() or {})["features"] == ["zstd"]
    with opened(backend, tmp_path) as manager:  # which need not say it again
        (repo / "more.txt").write_text("another text that packs well, " * 400)
        manager.save("key", parts(repo, 2))
        manager.gc()
        assert b"z" not in codecs(manager)
        assert manager.verify().ok
    match = r"zstd is not installed.*pip install backports\.zstd"
    with plain(), opened(backend, tmp_path) as manager:
        for use in (
            lambda: manager.save("key", {"a": 1}),
            lambda: manager.save("new", {"a": 1}),
            lambda: manager.state_dict("key"),
            lambda: manager.history("key"),
            lambda: manager.delete("key"),
            lambda: Workspace(repo, store=manager.store).snapshot(),
            lambda: Session("new", store=manager).__enter__(),
        ):
            with pytest.raises(FormatError, match=match):
                use()
    with opened(backend, tmp_path) as manager:
        assert len(manager.history("key")) == 2
        assert manager.list_keys() == ["key"]


def test_zstd_is_asked_for_where_it_is_not_installed(tmp_path: Path) -> None:
    with plain(), opened("sqlite", tmp_path, compression="zstd") as manager:
        with pytest.raises(FormatError, match=r"zstd.*pip install"):
            manager.save("key", {"text": TEXT})
        assert manager.list_keys() == []
    with opened("sqlite", tmp_path) as manager:  # nothing was decided
        manager.save("key", {"text": TEXT})
        assert codecs(manager) == {b"z"}


@needs_zstd
@pytest.mark.parametrize("made", ["zlib", "zstd"])
def test_the_compression_of_a_store_is_that_of_its_making(made: str, tmp_path: Path) -> None:
    other = {"zlib": "zstd", "zstd": "zlib"}[made]
    with CheckpointManager(f"sqlite://{tmp_path}/store?compression={made}") as manager:
        manager.save("key", {"text": TEXT})
        assert codecs(manager) == {b"z" if made == "zlib" else b"s"}
    with opened("sqlite", tmp_path, compression=made) as manager:
        manager.save("key", {"text": TEXT})
    with opened("sqlite", tmp_path, compression=other) as manager:
        for use in (lambda: manager.save("key", {"a": 1}), lambda: manager.state_dict("key")):
            with pytest.raises(InvalidInputError, match=f"created with compression='{made}'"):
                use()


# -- what version 0.1 left ------------------------------------------------------------------------


@needs_zstd
@pytest.mark.parametrize("backend", BACKENDS)
def test_undeclared_zstd_objects_are_noticed_before_a_save_is_acknowledged(
    backend: str,
    tmp_path: Path,
    repo: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(backend, tmp_path) as manager:
        manager.save("mine", {"a": 1})
        as_version_0_1(monkeypatch, lambda: manager.save("key", parts(repo)))
        assert b"s" in codecs(manager)
        assert any(path.is_file() for path in (tmp_path / "store/objects").rglob("*"))
    with plain(), opened(backend, tmp_path) as manager:
        assert manager.state_dict("mine") == {"a": 1}  # what can be read is read
        for use in (
            lambda: manager.save("new", parts(repo)),
            lambda: manager.save("new", {"a": 1}),
            lambda: manager.fork("key", "new"),
            lambda: Session("new", store=manager).__enter__(),
        ):
            with pytest.raises(FormatError, match=r"zstd.*pip install.*agent-checkpoint gc"):
                use()
        assert manager.list_keys() == ["key", "mine"]
        manager.delete("mine")
    with opened(backend, tmp_path) as manager:
        manager.save("key", parts(repo, 2))
        assert manager.state_dict("key")["state"] == {"n": 2, "text": TEXT}
        before = {info.id for info in manager.store.backend.list_objects()}
        assert manager.gc(dry_run=True).repacked == 0
        report = manager.gc()
        assert report.repacked >= 2
        assert before >= {info.id for info in manager.store.backend.list_objects()}
        assert codecs(manager) <= {b"r", b"z"}
        assert manager.gc().repacked == 0
    with plain(), opened(backend, tmp_path) as manager:
        assert manager.verify().ok
        manager.save("new", parts(repo, 3))
        assert manager.state_dict("new")["state"] == {"n": 3, "text": TEXT}
        files = Workspace(repo, store=manager.store)
        (repo / "large.txt").write_text("changed")
        files.load_state_dict(manager.state_dict("key", "key@1")["files"])
        assert (repo / "large.txt").read_text().startswith("0\n1\n4\n9\n")


@needs_zstd
@pytest.mark.parametrize("backend", BACKENDS)
def test_zstd_objects_that_come_beside_an_open_process_are_noticed(
    backend: str,
    tmp_path: Path,
    repo: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(backend, tmp_path) as manager, opened(backend, tmp_path) as older:
        with plain():
            manager.save("key", {"a": 1})
        as_version_0_1(monkeypatch, lambda: older.save("other", parts(repo)))
        with plain(), pytest.raises(FormatError, match="zstd"):
            manager.save("key", parts(repo))
        assert len(manager.history("key")) == 1


@needs_zstd
def test_the_golden_store_of_version_0_1_becomes_everybodys(tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(V1 / "sqlite-zstd", path)
    with plain():
        refused = run("--store", path, "fork", "packed", "new")
        assert refused.status == 1
        assert "agent-checkpoint gc" in refused.err
    assert "Repacked 1 object with zlib" in run("--store", path, "gc").out
    with plain():
        assert run("--store", path, "fork", "packed", "new").status == 0
        assert "zstd zstd" in run("--store", path, "show", "new").out


@needs_zstd
def test_an_archive_brings_no_zstd_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo: Path
) -> None:
    """Ours have none; but nothing is taken on trust."""
    with monkeypatch.context() as patch:
        patch.setattr(
            PlainObject, "stored", lambda packed, _="": compression.pack(packed.plain, "zstd")
        )
        with opened("sqlite", tmp_path) as manager:
            manager.save("key", parts(repo))
            manager.export_archive(tmp_path / "archive", "key")
    with CheckpointManager() as manager:
        manager.import_archive(tmp_path / "archive")
        assert codecs(manager) <= {b"r", b"z"}
        assert manager.state_dict("key")["state"] == {"n": 1, "text": TEXT}


# -- how far was looked ---------------------------------------------------------------------------


def stored(n: int, size: int = 200) -> "dict[str, bytes]":
    name, packed = make_object(BLOB, b"%d " % n * size)
    return {name: packed.stored()}


def test_a_look_goes_on_where_another_ended(tmp_path: Path) -> None:
    with closing(SQLiteBackend(tmp_path)) as backend:
        assert backend.find_objects(b"z") == ([], 0, None)
        for n in range(3):
            backend.put_objects(stored(n))
        found, total, position = backend.find_objects(b"z")
        assert (len(found), total) == (3, 3)
        assert backend.find_objects(b"z", position) == ([], 0, position)
        backend.put_objects(stored(7))
        found, total, last = backend.find_objects(b"z", position)
        assert (found, total) == ([*stored(7)], 1)
        # The last one is deleted: its number is used again.
        backend.delete_objects(found)
        backend.put_objects(stored(8))
        assert backend.find_objects(b"z", last).total == 4
        for nonsense in ("x", [1], [10**30, "x", 1.0], [1, "x", 2.0], {"a": 1}, -1, [None] * 3):
            assert backend.find_objects(b"z", nonsense).total == 4


def test_a_look_into_files_goes_on_where_another_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FileBackend(tmp_path)
    assert backend.find_objects(b"z") == ([], 0, {})
    for n in range(3):
        backend.put_objects(stored(n))
    found, total, position = backend.find_objects(b"z")
    assert (len(found), total) == (3, 3)
    assert backend.find_objects(b"z", position).total == 3  # just now: it may go on changing
    for folder in (tmp_path / "objects").iterdir():
        os.utime(folder, ns=(0, 10**18))
    position = backend.find_objects(b"z", position).position
    assert backend.find_objects(b"z", position) == ([], 0, position)
    backend.put_objects(stored(7))
    found, total, _ = backend.find_objects(b"z", position)
    assert next(iter(stored(7))) in found
    for nonsense in ("x", [1], dict.fromkeys(position, "x"), -1):
        assert backend.find_objects(b"z", nonsense).total == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_how_far_was_looked_is_recorded_and_used(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    kind = {"sqlite": SQLiteBackend, "file": FileBackend}[backend]
    find = kind.find_objects

    def noting(self: Any, first: bytes, position: Any = None) -> Any:
        looks.append(position)
        return find(self, first, position)

    monkeypatch.setattr(kind, "find_objects", noting)
    monkeypatch.setattr("agent_checkpoint.store.store_compression._WORTH_RECORDING", 3)
    with plain():
        with opened(backend, tmp_path) as manager:
            for n in range(9):
                manager.store.backend.put_objects(stored(n))
            manager.save("key", {"n": 1})
            manager.save("key", {"n": 2})
            records = manager.store.backend.read("meta/codecs")
            assert looks[0] is None
            assert None not in looks[1:]
            assert len(records) == 1
        with opened(backend, tmp_path) as manager:
            manager.save("key", {"n": 3})
        assert looks[-1] is not None
        with opened(backend, tmp_path) as manager:  # damaged: all of it is looked at again
            manager.store.backend.append("meta/codecs", b"damaged")
            manager.save("key", {"n": 4})
            assert looks[-1] is None
            assert manager.gc().repacked == 0
            assert manager.verify().ok


# -- replacing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 40_000])
@pytest.mark.parametrize("kind", [SQLiteBackend, FileBackend])
def test_replacing_keeps_names_and_leaves_what_is_gone(
    kind: Any, size: int, tmp_path: Path
) -> None:
    noise = random.Random(1).randbytes(size * 5)
    name, packed = make_object(BLOB, noise)
    other, gone = make_object(BLOB, b"gone")
    with closing(kind(tmp_path / "store")) as backend:
        backend.put_objects({name: b"z" + packed.plain})
        ts = [info.ts for info in backend.list_objects()]
        backend.replace_objects({name: packed.stored(), other: gone.stored()})
        assert open_object(name, backend.get_objects([name])[name]).payload == noise
        assert backend.missing_objects([name, other]) == {other}
        (info,) = backend.list_objects()
        assert (info.id, info.size) == (name, len(packed.stored()))
        assert kind is FileBackend or [info.ts] == ts
        assert not list((tmp_path / "store" / ".tmp").iterdir())
