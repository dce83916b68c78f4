"""A19, A22: what another local user owns or may write is not this user's, and is not trusted."""

import hashlib
import json
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    InvalidInputError,
    Session,
    StateError,
    UntrustedDataError,
    Workspace,
)
from agent_checkpoint.backends.file import FileBackend
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.seal import check_seal, is_own_claim, make_seal, seal_claim
from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.sealed_streams import ForeignEntry, read_entries
from agent_checkpoint.workspace.fork.lowerdir import open_lowerdir
from agent_checkpoint.workspace.scan.stat_index import read_index

OTHER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
BACKENDS = pytest.mark.parametrize("backend", ["file", "sqlite"])
Give = Callable[..., None]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Return what makes files another user's: by their owner, or by being another ourselves."""

    def give(*paths: Path) -> None:
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, OTHER, OTHER)
        else:
            user = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("AGENT_CHECKPOINT_SECRET", raising=False)
    return folder / "agent-checkpoint"


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that other users can reach; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_user(work: Callable[[], Any], user: int = OTHER) -> None:
    """Do something in a child process of another user, which must end well."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o022)
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestSecret:
    def test_that_of_another_user_is_refused_with_the_reason(
        self, config: Path, give: Give
    ) -> None:
        seal = make_seal(b"said")
        give(config / "secret")
        for use in (make_seal, lambda data: check_seal(data, seal)):
            with pytest.raises(
                StateError, match=r"secret is owned by uid .*set HOME.*AGENT_CHECKPOINT_SECRET"
            ):
                use(b"said")

    def test_what_needs_no_secret_goes_on(self, config: Path, give: Give) -> None:
        seal = make_seal(b"said")
        give(config / "secret")
        assert seal_claim(b"said") is None
        assert not is_own_claim(b"said", seal)
        manager = CheckpointManager()
        manager.save("k", {"x": [1]})
        assert manager.state_dict("k") == {"x": [1]}

    def test_one_in_a_directory_of_another_user_is_refused(
        self, config: Path, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config.mkdir(parents=True)
        give(config)
        with pytest.raises(StateError, match="agent-checkpoint is owned by uid"):
            make_seal(b"said")
        assert list(config.iterdir()) == []

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
    def test_one_in_a_directory_that_others_may_write_is_refused(
        self, config: Path, mode: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("agent_checkpoint.file_trust._is_private_group", lambda gid: False)
        make_seal(b"said")
        config.chmod(mode)
        with pytest.raises(StateError, match="can write"):
            make_seal(b"said")

    def test_a_place_that_others_may_replace_is_refused(self, config: Path) -> None:
        make_seal(b"said")
        config.parent.chmod(0o777)
        with pytest.raises(StateError, match=r"all users can write .*config, and so replace"):
            make_seal(b"said")
        config.parent.chmod(0o1777)  # as /tmp: nobody can move what is another's
        make_seal(b"said")

    def test_a_pipe_in_its_place_is_refused_at_once(self, config: Path) -> None:
        config.mkdir(parents=True)
        os.mkfifo(config / "secret", 0o600)
        with pytest.raises(StateError, match="not a regular file"):
            make_seal(b"said")


class Planted:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


@needs_root
def test_root_with_the_home_of_a_user_runs_no_code_of_that_user(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = public / "home"
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    marker = public / "marker"
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "AGENT_CHECKPOINT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AGENT_CHECKPOINT_SECRET", raising=False)

    def plant() -> None:
        with CheckpointManager(backend="sqlite") as manager:
            data = pickle.dumps(Planted(str(marker)))
            from base64 import b64encode

            tag = {"$pickle": {"data": b64encode(data).decode(), "seal": make_seal(data)}}
            entry = {"key": "k", "ts_ns": 1, "parts": {"agent": {"state": {"x": tag}}}}
            manager.store.format.check(writing=True)
            manager.store.backend.append("key/k", seal_entry({**entry, "kind": "save"}))

    as_user(plant)
    with pytest.raises(InvalidInputError, match=f"owned by uid {OTHER}, but you are uid 0"):
        CheckpointManager(backend="sqlite")
    with (
        CheckpointManager(backend="sqlite", shared=True) as manager,
        pytest.raises(StateError, match="secret"),
    ):
        manager.load("k", {"agent": None})
    assert not marker.exists()


class TestStores:
    @BACKENDS
    def test_one_of_another_user_is_refused_with_the_reason(
        self, tmp_path: Path, backend: str, give: Give
    ) -> None:
        store = tmp_path / "store"
        with CheckpointManager(backend=backend, path=store) as manager:
            manager.save("k", {"x": 1})
        give(store)
        with pytest.raises(InvalidInputError, match=r"owned by uid .* shared=True"):
            CheckpointManager(backend=backend, path=store)

    @BACKENDS
    @pytest.mark.parametrize(
        ("mode", "words"), [(0o777, "all users can write"), (0o1777, "all users"), (0o770, "group")]
    )
    def test_one_that_others_may_write_is_refused(
        self,
        tmp_path: Path,
        backend: str,
        mode: int,
        words: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("agent_checkpoint.file_trust._is_private_group", lambda gid: False)
        store = tmp_path / "store"
        store.mkdir()
        store.chmod(mode)
        with pytest.raises(InvalidInputError, match=f"{words}.*chmod g?o?-w {store}"):
            CheckpointManager(backend=backend, path=store)
        assert list(store.iterdir()) == []

    @BACKENDS
    def test_one_in_a_place_that_others_may_replace_is_refused(
        self, tmp_path: Path, backend: str
    ) -> None:
        above = tmp_path / "above"
        above.mkdir()
        above.chmod(0o777)
        with pytest.raises(InvalidInputError, match=f"all users can write {above}"):
            CheckpointManager(backend=backend, path=above / "store")
        above.chmod(0o1777)
        with CheckpointManager(backend=backend, path=above / "store") as manager:
            manager.save("k", {"x": 1})
        assert stat.S_IMODE((above / "store").stat().st_mode) == 0o700

    def test_the_group_of_the_user_alone_may_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("agent_checkpoint.file_trust._is_private_group", lambda gid: True)
        store = tmp_path / "store"
        store.mkdir()
        store.chmod(0o775)  # by a umask of 002
        with CheckpointManager(backend="sqlite", path=store) as manager:
            manager.save("k", {"x": 1})
        assert stat.S_IMODE((store / "store.db").stat().st_mode) == 0o600

    def test_a_database_of_another_user_is_refused(self, tmp_path: Path, give: Give) -> None:
        store = tmp_path / "store"
        with CheckpointManager(backend="sqlite", path=store) as manager:
            manager.save("k", {"x": 1})
        give(store / "store.db")
        with pytest.raises(InvalidInputError, match=r"store(\.db)? is owned by uid"):
            CheckpointManager(backend="sqlite", path=store)

    @BACKENDS
    def test_one_that_becomes_anothers_after_it_was_opened_is_refused(
        self, tmp_path: Path, backend: str, give: Give
    ) -> None:
        store = tmp_path / "store"
        manager = CheckpointManager(backend=backend, path=store)
        store.mkdir(mode=0o755)
        give(store)
        with pytest.raises(InvalidInputError, match="owned by uid"):
            manager.save("k", {"x": 1})
        assert list(store.iterdir()) == []

    def test_a_folder_of_entries_of_another_user_is_refused(
        self, tmp_path: Path, give: Give
    ) -> None:
        manager = CheckpointManager(backend="file", path=tmp_path / "store")
        manager.save("k", {"x": 1})
        give(tmp_path / "store" / "k")
        with pytest.raises(InvalidInputError, match="owned by uid"):
            manager.state_dict("k")

    def test_the_url_of_a_shared_store_says_so(self, tmp_path: Path) -> None:
        for kind in (SQLiteBackend, FileBackend):
            backend = kind(tmp_path / "store", shared=True)
            assert backend.url is not None
            assert backend.url.endswith("/store?shared=1")
            with CheckpointManager(backend.url) as manager:
                assert manager.store.backend.shared
        assert not SQLiteBackend(tmp_path / "store").shared
        for wrong in ("shared=yes", "shared", "shared=1&shared=1"):
            with pytest.raises(InvalidInputError, match="shared"):
                CheckpointManager(f"sqlite://{tmp_path}/store?{wrong}")
        with pytest.raises(InvalidInputError, match="memory backend has no option shared"):
            CheckpointManager(shared=True)


@pytest.fixture(params=["file", "sqlite"])
def shared(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointManager:
    """Return a manager on a store that all users can write."""
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of a team, which is long enough")
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o777)
    return CheckpointManager(backend=request.param, path=store, shared=True)


def rewrite(manager: CheckpointManager, stream: str, change: Callable[[bytes], bytes]) -> None:
    """Replace the newest entry of a stream, as who can write the store can."""
    backend = manager.store.backend
    (entry,) = backend.read(stream, limit=1, newest_first=True)
    backend.append(stream, change(entry.data))


def unsealed(data: bytes) -> bytes:
    """Return an entry without its seal, and with the right hash."""
    record = json.loads(data)
    assert len(record.pop("seal")) == 64
    assert record.pop("sha256") == hashlib.sha256(data[: data.rindex(b",")]).hexdigest()
    version = record.pop("agent_checkpoint")
    assert version == 1
    return seal_entry(record)


class TestSharedStores:
    def test_what_is_sealed_under_the_secret_loads(self, shared: CheckpointManager) -> None:
        shared.save("k", {"x": [1, 2], "long": "x" * 10_000})
        shared.fork("k", "other")
        state = CheckpointManager(shared.store.backend).state_dict("k")
        assert state == {"x": [1, 2], "long": "x" * 10_000}
        assert shared.verify().ok
        assert [row["kind"] for row in shared.history("k")] == ["save"]

    @pytest.mark.parametrize("attack", ["stripped", "other secret", "moved", "altered"])
    def test_what_is_not_is_listed_and_refused(
        self,
        shared: CheckpointManager,
        attack: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        good = shared.save("k", {"x": 1})
        if attack == "stripped":
            rewrite(shared, "key/k", unsealed)
        elif attack == "altered":
            rewrite(shared, "key/k", lambda data: resealed_by_hand(data))
        elif attack == "moved":
            shared.save("from", {"x": 2})
            (entry,) = shared.store.backend.read("key/from")
            moved = json.loads(entry.data)
            del moved["sha256"], moved["agent_checkpoint"]
            shared.store.backend.append("key/k", seal_entry({**moved, "key": "k"}))
        else:
            with monkeypatch.context() as patch:
                patch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of somebody else, also long")
                shared.save("k", {"x": 2})
        with pytest.raises(
            UntrustedDataError, match=r"'k@2' has no valid signature under your secret"
        ):
            shared.state_dict("k")
        for use in (
            lambda: shared.fork("k", "new"),
            lambda: shared.diff("k", checkpoint_id_a=good, checkpoint_id_b="k@2"),
            lambda: shared.export_archive(tmp_path / "out.ckpt", "k"),
        ):
            with pytest.raises(UntrustedDataError):
                use()
        newest, first = shared.history("k")
        assert newest["kind"] == "unreadable"
        assert "no valid signature" in newest["error"]
        assert first["id"] == good
        assert shared.state_dict("k", checkpoint_id=good) == {"x": 1}
        assert [problem.checkpoint for problem in shared.verify().problems] == ["k@2"]
        shared.gc()
        shared.delete("k", "k@2")
        assert shared.state_dict("k") == {"x": 1}

    def test_saving_goes_on_from_what_is_ours(self, shared: CheckpointManager) -> None:
        good = shared.save("k", {"x": 1})
        rewrite(shared, "key/k", unsealed)
        shared.save("k", {"x": 3})
        assert shared.history("k")[0]["parents"] == [good]

    def test_a_purge_makes_nothing_of_others_ours(self, shared: CheckpointManager) -> None:
        shared.save("k", {"x": "leaked-secret"})
        rewrite(shared, "key/k", unsealed)
        shared.purge("leaked-secret")
        assert shared.list_keys() == []

    def test_an_archive_brings_older_entries_in(
        self, shared: CheckpointManager, tmp_path: Path
    ) -> None:
        own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
        own.save("k", {"x": 1})
        own.export_archive(tmp_path / "k.ckpt", "k")
        shared.import_archive(tmp_path / "k.ckpt")
        assert shared.state_dict("k") == {"x": 1}

    def test_a_store_of_ones_own_becomes_shared_and_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "s" * 40)
        store = tmp_path / "store"
        with CheckpointManager(backend="sqlite", path=store) as manager:
            manager.save("old", {"x": 1})
        with CheckpointManager(backend="sqlite", path=store, shared=True) as manager:
            manager.save("new", {"x": 2})
            with pytest.raises(UntrustedDataError, match="exported from a copy of the store"):
                manager.state_dict("old")
            assert manager.list_keys() == ["new", "old"]
        with CheckpointManager(backend="sqlite", path=store) as manager:
            assert manager.state_dict("old") == {"x": 1}
            assert manager.state_dict("new") == {"x": 2}

    def test_a_forged_record_of_an_import_hides_nothing(self, shared: CheckpointManager) -> None:
        shared.save("k", {"x": 1})
        (entry,) = shared.store.backend.read("key/k")
        token = json.loads(entry.data)["sha256"]
        forged = seal_entry({"key": "k", "token": token, "ts_ns": 1, "process": "p"})
        shared.store.backend.append("meta/import", forged)
        assert shared.list_keys() == ["k"]

    def test_a_session_with_a_forged_head_or_record_is_not_resumed(
        self, shared: CheckpointManager
    ) -> None:
        with Session("s", store=shared) as session:
            session.messages.append({"role": "user", "content": "hello"})
        with Session("s", store=shared) as session:
            assert len(session.messages) == 1
        (stream,) = shared.store.backend.streams("fx/")
        assert not any(
            isinstance(entry.data, ForeignEntry)
            for entry in read_entries(shared.store.backend, stream)
        )
        rewrite(shared, stream, unsealed)
        with pytest.raises(UntrustedDataError, match=r"Record .* has no valid signature"):
            Ledger(shared.store, stream[len("fx/") :]).refresh()
        with pytest.raises(UntrustedDataError), Session("s", store=shared):
            pass
        rewrite(shared, "key/s", unsealed)
        with pytest.raises(UntrustedDataError, match="'s@"), Session("s", store=shared):
            pass

    def test_without_a_usable_secret_it_says_what_to_set(
        self, shared: CheckpointManager, config: Path, give: Give
    ) -> None:
        config.mkdir(parents=True)
        (config / "secret").write_text("0" * 64)
        (config / "secret").chmod(0o600)
        give(config / "secret")
        with pytest.raises(StateError, match=r"store requires your secret.*owned by uid.*set AG"):
            shared.save("k", {"x": 1})

    @needs_root
    @pytest.mark.parametrize("backend", ["file", "sqlite"])
    def test_two_users_with_one_secret_use_one_store(
        self, public: Path, backend: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of a team, which is long enough")
        store = public / "store"
        store.mkdir()
        store.chmod(0o777)
        large = {"x": os.urandom(200_000)}

        def save(key: str) -> None:
            with CheckpointManager(backend=backend, path=store, shared=True) as manager:
                manager.save(key, large)
                for found in manager.list_keys():
                    assert manager.state_dict(found) == large
                manager.delete(key, manager.save(key, {"x": 1}))
                manager.gc()

        as_user(lambda: save("one"), 4001)
        as_user(lambda: save("two"), 4002)
        save("three")
        as_user(lambda: save("one"), 4001)

    @needs_root
    def test_what_root_adds_to_the_store_of_a_user_stays_usable_for_that_user(
        self, public: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of a team, which is long enough")
        home = public / "home"
        home.mkdir()
        os.chown(home, OTHER, OTHER)
        large = {"x": os.urandom(200_000)}

        def save(key: str) -> None:
            with CheckpointManager(backend="file", path=home / "store", shared=True) as manager:
                manager.save(key, large)

        as_user(lambda: save("one"))
        save("two")

        def look() -> None:
            with CheckpointManager(backend="file", path=home / "store") as manager:
                assert [manager.state_dict(key) for key in manager.list_keys()] == [large] * 2

        as_user(look)


def resealed_by_hand(data: bytes) -> bytes:
    """Return an entry with another state, the old seal and a hash that fits."""
    record = json.loads(data)
    del record["sha256"], record["agent_checkpoint"]
    return seal_entry({**record, "label": "altered"})


class TestWorkspaces:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(tmp_path / "data"))
        return tmp_path / "data"

    def test_an_index_of_another_user_counts_as_none(
        self, tmp_path: Path, home: Path, give: Give
    ) -> None:
        index = self._indexed(tmp_path, home)
        assert read_index(index) is not None
        give(index)
        assert read_index(index) is None

    def test_an_index_that_others_may_write_counts_as_none(
        self, tmp_path: Path, home: Path
    ) -> None:
        index = self._indexed(tmp_path, home)
        index.chmod(0o606)
        assert read_index(index) is None

    def test_a_pipe_or_link_for_an_index_counts_as_none(self, tmp_path: Path, home: Path) -> None:
        index = self._indexed(tmp_path, home)
        moved = index.rename(tmp_path / "moved")
        index.symlink_to(moved)
        assert read_index(index) is None
        index.unlink()
        os.mkfifo(index, 0o600)
        assert read_index(index) is None

    def test_a_data_directory_of_another_user_is_left_alone(
        self, tmp_path: Path, home: Path, give: Give
    ) -> None:
        place = self._directory(tmp_path)
        home.mkdir()
        give(home)
        with pytest.raises(InvalidInputError, match=r"Refusing to use .*data: .*owned by uid"):
            Workspace(place, store=CheckpointManager().store).fork(tmp_path / "fork")
        assert list(home.iterdir()) == []

    def test_a_base_of_another_user_is_refused(
        self, tmp_path: Path, home: Path, give: Give
    ) -> None:
        manager = CheckpointManager()
        workspace = Workspace(self._directory(tmp_path), store=manager.store)
        tree = workspace.snapshot()
        base = home / "bases" / tree.root.ref
        base.mkdir(parents=True)
        give(base)
        with pytest.raises(Exception, match="owned by uid"):
            open_lowerdir(workspace.fork_origin, tree, home / "bases")

    def test_under_umask_0_nothing_is_for_others(self, tmp_path: Path, home: Path) -> None:
        before = os.umask(0)
        try:
            self._indexed(tmp_path, home)
            store = CheckpointManager(backend="sqlite", path=tmp_path / "deep" / "store").store
            workspace = Workspace(tmp_path / "place", store=store)
            with workspace.fork(tmp_path / "fork"):
                made = [home, *home.rglob("*"), tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
                modes = {path: path.lstat().st_mode for path in made if "files" not in path.parts}
        finally:
            os.umask(before)
        assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}

    def _directory(self, tmp_path: Path) -> Path:
        place = tmp_path / "place"
        place.mkdir(exist_ok=True)
        (place / "file").write_text("text")
        return place

    def _indexed(self, tmp_path: Path, home: Path) -> Path:
        with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
            Workspace(self._directory(tmp_path), store=manager.store).snapshot()
        (index,) = (home / "index").iterdir()
        return index
