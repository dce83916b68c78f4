"""A1: a checkpoint from elsewhere runs no code, wherever the poisoned pickle is put."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    IntegrityError,
    UntrustedDataError,
    register_type,
)
from agent_checkpoint.seal import make_seal
from agent_checkpoint.store.archive.archive_file import MAGIC
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.objects.varint import write_varint
from tests.attacks.forging import Poison, forge, next_number, pickle_tag, poisoned
from tests.exact import decode_state
from tests.properties.values import Note


class Victim(Checkpointable):
    def __init__(self, value: Any = None) -> None:
        self.value = value


class Harmless:
    """Needs a pickle, and does nothing."""


@pytest.fixture
def marker(tmp_path: Path) -> Any:
    """Return the path that must not exist after the test unless the test removed it."""
    path = tmp_path / "code-has-run"
    yield path
    assert not path.exists()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the folder of a store with one good checkpoint under the key `agent`."""
    path = tmp_path / "store"
    manager = CheckpointManager(backend="file", path=path, pickles="allow")
    manager.save("agent", Victim(["good", Harmless()]))
    return path


def look_at_everything(manager: CheckpointManager, tmp_path: Path) -> None:
    """Use every verb that reads checkpoints but does not load their state."""
    manager.list_keys()
    manager.history("agent")
    manager.verify()
    manager.gc()
    manager.stats()
    manager.fork("agent", "forked")
    manager.export_archive(tmp_path / "exported", "agent")
    manager.delete("forked")


def assert_refused(manager: CheckpointManager, key: str = "agent") -> None:
    """Check that no verb loads the head of the key, and that the agent is as it was."""
    agent = Victim("as it was")
    for use in (
        lambda: manager.load(key, agent),
        lambda: manager.state_dict(key),
        lambda: manager.diff(key, agent=agent),
        lambda: manager.diff(key, checkpoint_id_a=key, checkpoint_id_b=key),
    ):
        with pytest.raises(UntrustedDataError, match="trust_pickle=True"):
            use()
    assert agent.value == "as it was"


class TestTheAttackItself:
    def test_the_poison_works_when_the_caller_trusts_it(self, store: Path, marker: Path) -> None:
        forge(store, "agent", {"$state": {"value": pickle_tag(poisoned(marker))}})
        manager = CheckpointManager(backend="file", path=store)
        manager.load("agent", Victim(), trust_pickle=True)
        marker.rmdir()

    def test_trust_is_for_one_call_alone(self, store: Path, marker: Path) -> None:
        forge(store, "agent", pickle_tag(poisoned(marker)))
        manager = CheckpointManager(backend="file", path=store)
        manager.state_dict("agent", trust_pickle=True)
        marker.rmdir()
        assert_refused(manager)


class TestBareFiles:
    @pytest.mark.parametrize("trust", [False, True])
    def test_a_pickle_in_the_place_of_an_entry_is_refused(
        self, store: Path, marker: Path, trust: bool
    ) -> None:
        folder = store / "agent"
        (folder / f"{next_number(folder)}.json").write_bytes(poisoned(marker))
        manager = CheckpointManager(backend="file", path=store)
        with pytest.raises(IntegrityError, match=r"agent.*@2"):
            manager.load("agent", Victim(), trust_pickle=trust)
        agent = Victim()
        manager.load("agent", agent, checkpoint_id="agent@1")
        assert agent.value[0] == "good"

    @pytest.mark.parametrize(
        "name", ["2.pkl", "2.pickle", "2", "state.pkl", "3.json.pkl", "last", "name"]
    )
    def test_a_pickle_beside_the_entries_is_left_alone(
        self, store: Path, marker: Path, tmp_path: Path, name: str
    ) -> None:
        (store / "agent" / name).write_bytes(poisoned(marker))
        manager = CheckpointManager(backend="file", path=store)
        agent = Victim()
        manager.load("agent", agent)
        look = (manager.list_keys(), manager.history("agent"), manager.verify())
        assert agent.value[0] == "good"
        assert look[0] == ["agent"]

    def test_a_pickle_in_the_place_of_an_archive_is_refused(
        self, tmp_path: Path, marker: Path
    ) -> None:
        for content in (poisoned(marker), MAGIC + b"1\n" + poisoned(marker)):
            path = tmp_path / "archive"
            path.write_bytes(content)
            with pytest.raises(IntegrityError):
                CheckpointManager().import_archive(path)


def wrong_seals(data: bytes) -> "list[dict[str, Any]]":
    """Return what somebody may put as a seal who does not know the secret."""
    digest = hashlib.sha256(data).hexdigest()
    return [{}, *({"seal": seal} for seal in (None, "", True, 0, [], {}, digest, "0" * 64, "é"))]


PLACES = {
    "the whole state": lambda tag: tag,
    "a field": lambda tag: {"$state": {"value": tag, "__class__": "Victim"}},
    "an unexpected field": lambda tag: {"$state": {"other": tag, "__class__": "Victim"}},
    "a plain dict": lambda tag: {"value": tag},
    "a list": lambda tag: {"$state": {"value": [1, [tag]]}},
    "a tuple": lambda tag: {"$state": {"value": {"$tuple": [tag]}}},
    "a set": lambda tag: {"$state": {"value": {"$set": [tag]}}},
    "a key": lambda tag: {"$state": {"value": {"$dict": [[tag, 1]]}}},
    "a value beside other keys": lambda tag: {"$state": {"value": {"$dict": [[1, tag]]}}},
    "a deque": lambda tag: {"$state": {"value": {"$deque": [[tag], None]}}},
    "a default dict": lambda tag: {"$state": {"value": {"$defaultdict": ["list", [[1, tag]]]}}},
    "a registered type": lambda tag: {"$state": {"value": {"$type:Note": {"text": tag}}}},
    "a nested state": lambda tag: {"$state": {"value": {"$state": {"__class__": tag}}}},
    "the class": lambda tag: {"$state": {"__class__": tag}},
    "the version": lambda tag: {"$state": {"__class__": "Victim", "__version__": tag}},
}


class TestInsideATag:
    @pytest.mark.parametrize("place", PLACES)
    def test_a_pickle_without_a_seal_is_refused_everywhere(
        self, store: Path, marker: Path, place: str
    ) -> None:
        register_type(Note)
        forge(store, "agent", PLACES[place](pickle_tag(poisoned(marker))))
        assert_refused(CheckpointManager(backend="file", path=store))

    def test_no_made_up_seal_is_taken(self, store: Path, marker: Path) -> None:
        data = poisoned(marker)
        for seal in wrong_seals(data):
            forge(store, "agent", {"$state": {"value": pickle_tag(data, **seal)}})
            assert_refused(CheckpointManager(backend="file", path=store))

    def test_a_seal_cannot_be_moved_to_another_pickle(self, store: Path, marker: Path) -> None:
        record = read_json((store / "agent" / "1.json").read_bytes())
        good = record["parts"]["agent"]["$state"]["value"][1]["$pickle"]  # type: ignore[index,call-overload]
        forge(store, "agent", pickle_tag(poisoned(marker), seal=good["seal"]))
        assert_refused(CheckpointManager(backend="file", path=store))

    def test_a_seal_under_a_wrong_secret_is_refused(
        self, store: Path, marker: Path, monkeypatch: Any
    ) -> None:
        data = poisoned(marker)
        with monkeypatch.context() as attacker:
            attacker.setenv("AGENT_CHECKPOINT_SECRET", "the attacker's")
            seal = make_seal(data)
        forge(store, "agent", {"$state": {"value": pickle_tag(data, seal=seal)}})
        assert_refused(CheckpointManager(backend="file", path=store))

    def test_a_secret_inside_the_store_is_not_used(
        self, store: Path, marker: Path, monkeypatch: Any
    ) -> None:
        data = poisoned(marker)
        with monkeypatch.context() as attacker:
            attacker.setenv("XDG_CONFIG_HOME", str(store))
            seal = make_seal(data)
        assert (store / "agent-checkpoint" / "secret").exists()
        forge(store, "agent", pickle_tag(data, seal=seal))
        assert_refused(CheckpointManager(backend="file", path=store))

    def test_one_poisoned_part_keeps_the_others_from_loading(self, marker: Path) -> None:
        manager = CheckpointManager()
        tree = {"$tuple": [1, pickle_tag(poisoned(marker))]}
        with pytest.raises(UntrustedDataError, match=r"^agent\[1\]"):
            decode_state(tree, "agent")
        assert manager.list_keys() == []

    def test_looking_at_a_poisoned_store_runs_nothing(
        self, store: Path, marker: Path, tmp_path: Path
    ) -> None:
        forge(store, "agent", pickle_tag(poisoned(marker)))
        look_at_everything(CheckpointManager(backend="file", path=store), tmp_path)

    def test_an_altered_entry_without_its_hash_is_refused_even_when_trusted(
        self, store: Path, marker: Path
    ) -> None:
        path = store / "agent" / "1.json"
        record: Any = read_json(path.read_bytes())
        record["parts"]["agent"] = pickle_tag(poisoned(marker))
        path.write_bytes(json.dumps(record).encode())
        with pytest.raises(IntegrityError, match="is corrupt: SHA-256 mismatch"):
            CheckpointManager(backend="file", path=store).state_dict("agent", trust_pickle=True)

    @pytest.mark.parametrize("dtype", ["O", "|O", [["a", "O"]], [["a", "|O", [2]]]])
    def test_an_array_of_objects_is_never_unpickled(self, marker: Path, dtype: Any) -> None:
        import base64

        from agent_checkpoint import StateError

        data = base64.b64encode(poisoned(marker)).decode()
        tree = {"$ndarray": {"dtype": dtype, "shape": [1], "order": "C", "data": data}}
        with pytest.raises(StateError):
            decode_state(tree, "agent", trust_pickle=True)


class TestArchivesFromElsewhere:
    @pytest.fixture(params=["json", "pickle"])
    def archive(self, request: Any, tmp_path: Path, marker: Path, monkeypatch: Any) -> Path:
        """Return an archive that an attacker made on another machine, in either format."""
        with monkeypatch.context() as attacker:
            attacker.setenv("AGENT_CHECKPOINT_SECRET", "the attacker's")
            manager = CheckpointManager(fmt=request.param, pickles="allow")
            manager.save("agent", {"value": Poison(marker)})
            manager.export_archive(tmp_path / "gift.ckpt", "agent")
        return tmp_path / "gift.ckpt"

    def test_importing_runs_nothing_and_loading_is_refused(
        self, archive: Path, tmp_path: Path
    ) -> None:
        for manager in (
            CheckpointManager(),
            CheckpointManager(backend="file", path=tmp_path / "s"),
        ):
            assert manager.import_archive(archive) == "agent"
            look_at_everything(manager, tmp_path)
            assert_refused(manager)

    def test_it_loads_only_when_the_caller_trusts_it(self, archive: Path, marker: Path) -> None:
        manager = CheckpointManager()
        manager.import_archive(archive)
        manager.state_dict("agent", trust_pickle=True)
        marker.rmdir()

    def test_an_archive_with_recomputed_hashes_is_no_better(
        self, store: Path, marker: Path, tmp_path: Path
    ) -> None:
        forge(store, "agent", {"$state": {"value": pickle_tag(poisoned(marker), seal="0" * 64)}})
        entry = (store / "agent" / "2.json").read_bytes()
        data = MAGIC + b"1\n"
        for kind, content in ((b"h", write_json({"key": "agent"})), (b"c", b"\1" + entry)):
            data += kind + write_varint(len(content)) + content
        path = tmp_path / "forged.ckpt"
        path.write_bytes(data + b"z" + write_varint(32) + hashlib.sha256(data).digest())
        manager = CheckpointManager()
        manager.import_archive(path)
        assert_refused(manager)


class TestPickleFormat:
    def test_ones_own_states_load(self, tmp_path: Path) -> None:
        manager = CheckpointManager(backend="file", path=tmp_path / "store", fmt="pickle")
        manager.save("agent", Victim([Harmless()]))
        agent = Victim()
        manager.load("agent", agent)
        assert type(agent.value[0]) is Harmless

    def test_a_poisoned_state_is_refused(self, tmp_path: Path, marker: Path) -> None:
        manager = CheckpointManager(backend="file", path=tmp_path / "store", fmt="pickle")
        manager.save("agent", Victim(1))
        forge(tmp_path / "store", "agent", pickle_tag(poisoned(marker), seal="0" * 64))
        assert_refused(manager)

    def test_states_of_another_user_are_refused(self, tmp_path: Path, monkeypatch: Any) -> None:
        manager = CheckpointManager(backend="file", path=tmp_path / "store", fmt="pickle")
        manager.save("agent", Victim(1))
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "another user's")
        assert_refused(manager)

    def test_a_user_without_a_secret_is_told_so(self, tmp_path: Path, monkeypatch: Any) -> None:
        manager = CheckpointManager(backend="file", path=tmp_path / "store", fmt="pickle")
        manager.save("agent", Victim(1))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "fresh"))
        assert_refused(manager)
        assert not (tmp_path / "fresh").exists()
