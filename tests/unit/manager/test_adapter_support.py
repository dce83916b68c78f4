"""What adapters need: own parents, new keys, pages and tags of a history, record logs, sharing."""

from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    InvalidInputError,
    KeepLatest,
    Log,
    NotFoundError,
    Shared,
    StateError,
    copy,
)
from agent_checkpoint.core.shared import SharedConstant
from agent_checkpoint.store.objects.compression import pack


def test_a_checkpoint_can_have_parents_of_its_own(manager: CheckpointManager) -> None:
    first = manager.save("k", {"x": 1})
    manager.save("k", {"x": 2})
    manager.save("k", {"x": 3}, parents=[first])
    manager.save("k", {"x": 4}, parents=[])
    manager.save("k", {"x": 5}, parents=[first], expected_head=manager.history("k", 1)[0]["id"])
    parents = [row["parents"] for row in manager.history("k")]
    assert parents == [[first], [], [first], [first], []]


@pytest.mark.parametrize("parents", ["k", ["no id"], [1], 5])
def test_parents_are_ids(parents: Any) -> None:
    with pytest.raises(InvalidInputError, match="parents must be a list of checkpoint ids"):
        CheckpointManager().save("k", {"x": 1}, parents=parents)


def test_a_key_can_be_expected_to_be_new(manager: CheckpointManager) -> None:
    first = manager.save("k", {"x": 1}, expected_head="")
    with pytest.raises(ConflictError, match="The head of 'k' is"):
        manager.save("k", {"x": 2}, expected_head="")
    assert [row["id"] for row in manager.history("k")] == [first]


def test_an_expected_head_is_checked_without_reading_it(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "s") as one, CheckpointManager(tmp_path / "s") as other:
        head = one.save("k", {"x": 1})
        second = one.save("k", {"x": 2}, expected_head=head)
        other.save("k", {"x": 3})
        with pytest.raises(ConflictError, match="not 'k_"):
            one.save("k", {"x": 4}, expected_head=second)
        assert len(one.history("k")) == 3


def test_a_history_can_be_read_in_pages_and_by_tag(manager: CheckpointManager) -> None:
    ids = [manager.save("k", {"x": n}, tags=[f"t{n % 3}"]) for n in range(7)]
    assert [row["id"] for row in manager.history("k", 2, before=ids[4])] == [ids[3], ids[2]]
    assert [row["id"] for row in manager.history("k", before="@3")] == [ids[1], ids[0]]
    assert manager.history("k", before=ids[0]) == []
    assert [row["id"] for row in manager.history("k", tag="t1")] == [ids[4], ids[1]]
    assert [row["id"] for row in manager.history("k", 1, tag="t1", before=ids[4])] == [ids[1]]
    assert manager.history("k", tag="none") == []
    manager.delete("k", ids[4])
    assert [row["id"] for row in manager.history("k", 1, before=ids[4])] == [ids[3]]
    for before in ("other_1-2", "@99"):
        with pytest.raises(NotFoundError):
            manager.history("k", before=before)
    with pytest.raises(NotFoundError):
        manager.history("other", tag="t1")


def test_records_are_beside_the_checkpoints_of_a_key(manager: CheckpointManager) -> None:
    log = manager.records("k", "notes")
    assert (log.newest(), log.read()) == (0, [])
    large = {"text": "x" * 5000, "data": b"\0" * 3000}
    assert [log.append({"n": 1}), log.append(large), log.append([1, (2, 3)])] == [1, 2, 3]
    assert manager.list_keys() == []
    manager.save("k", {"x": 1})
    assert len(manager.history("k")) == 1
    again = manager.records("k", "notes")
    assert again.read() == [(1, {"n": 1}), (2, large), (3, [1, (2, 3)])]
    assert again.read(after=2) == [(3, [1, (2, 3)])]
    assert again.newest() == 3
    assert manager.verify().ok
    manager.gc()
    manager.save("k", {"x": 2})
    manager.prune("k", KeepLatest(1))
    assert len(again.read()) == 3
    again.clear()
    assert (again.read(), again.append("new")) == ([], 4)


def test_records_are_listed_and_deleted_with_their_key(manager: CheckpointManager) -> None:
    for key in ("a", "a/b", "ab", "b"):
        manager.save(key, {"x": 1})
        manager.records(key, "one/two").append(key)
        manager.records(key, "%2f").append(key)
    assert manager.list_records("a/") == [("a/b", "%2f"), ("a/b", "one/two")]
    manager.delete("a")
    assert [key for key, _ in manager.list_records()] == ["a/b", "a/b", "ab", "ab", "b", "b"]
    assert manager.records("a/b", "one/two").read() == [(1, "a/b")]
    assert manager.records("a", "one/two").read() == []


@pytest.mark.parametrize(("key", "name"), [("", "n"), ("k", ""), ("k", "x" * 2000)])
def test_names_of_records_are_checked(key: str, name: str) -> None:
    with pytest.raises(InvalidInputError):
        CheckpointManager().records(key, name)


def test_records_obey_the_policy_of_the_manager(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "s", redact=r"hunter\d", pickles="refuse") as manager:
        log = manager.records("k", "notes")
        log.append({"password is": "hunter2"})
        log.append([Shared("hunter2")])
        with pytest.raises(StateError):
            log.append(lambda: None)
        assert "hunter2" not in str(log.read())
        assert manager.purge("password is").checkpoints == []
        assert [seq for seq, _ in log.read()] == [2]


def test_a_copy_has_the_records_with_their_numbers(tmp_path: Path) -> None:
    text = "long " * 500
    with CheckpointManager(tmp_path / "a") as source, CheckpointManager(tmp_path / "b") as target:
        source.save("k", {"x": Shared(text)})
        log = source.records("k", "n")
        for number in range(4):
            log.append({"n": number, "text": Shared(text)})
        source.store.backend.remove("meta/records/k/n", [1, 3])
        assert copy(source, target, dry_run=True).records == 2
        assert target.list_records() == []
        assert copy(source, target).records == 2
        assert target.records("k", "n").read() == log.read()
        assert [seq for seq, _ in log.read()] == [2, 4]
        log.append("new")
        assert copy(source, target).records == 1
        assert target.records("k", "n").read() == log.read()
        assert copy(source, target).records == 0
        assert target.verify().ok
        target.save("k", {"x": 2})  # the key is no copy any more
        log.append("newer")
        assert copy(source, target).records == 0


def objects(manager: CheckpointManager) -> int:
    return sum(1 for _ in manager.store.backend.list_objects())


def test_a_shared_value_is_stored_once(tmp_path: Path) -> None:
    text = {"role": "user", "content": "".join(f"{n} " for n in range(250))}
    with CheckpointManager(tmp_path / "s") as manager:
        manager.records("k", "writes").append({"value": [Shared(text)]})
        count = objects(manager)
        log = Log([Shared(text)])
        manager.save("k", {"log": log, "one": Shared(text), "many": [Shared(text)]})
        assert objects(manager) == count == 1
        state = manager.state_dict("k")
        assert (list(state["log"]), state["one"], state["many"]) == ([text], text, [text])
        assert manager.records("k", "writes").read() == [(1, {"value": [text]})]
        assert manager.verify().ok
        manager.gc()
        assert manager.state_dict("k")["one"] == text


def test_a_constant_that_is_saved_in_several_places_is_encoded_and_packed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = {"role": "user", "content": "".join(f"{n} " for n in range(250))}
    packed = []

    def counted(data: bytes, *args: Any) -> bytes:
        packed.append(data)
        return pack(data, *args)

    monkeypatch.setattr("agent_checkpoint.store.objects.object_format.pack", counted)
    with CheckpointManager(tmp_path / "s") as manager:
        item = SharedConstant(text)
        manager.records("k", "writes").append({"value": [item]})
        manager.save("k", {"log": Log([item])})
        assert [text["content"].encode() in data for data in packed] == [True]
        for _ in range(2):  # also if it was stored and compressed before
            manager.save("k", {"one": item})
            assert manager.state_dict("k") == {"one": text}
        assert objects(manager) == 1
        assert item.encoded is not None
        assert item.encoded[1].tree == text
        assert manager.verify().ok


def test_a_constant_that_is_too_deep_elsewhere_is_refused_there() -> None:
    deep: Any = "x" * 600
    for _ in range(90):
        deep = [deep]
    item = SharedConstant(deep)
    with CheckpointManager() as manager:
        manager.save("k", {"item": item})
        nested: Any = item
        for _ in range(20):
            nested = [nested]
        with pytest.raises(StateError, match="nested"):
            manager.save("k", {"item": nested})


def test_a_shared_value_may_be_anything(manager: CheckpointManager) -> None:
    values = [
        1,
        "x" * 10_000,
        ["y" * 300] * 40,
        {"a": {"b": ["z" * 5000, (1, 2)]}, 3: 4},
        [Shared([Shared("q" * 600)])],
        None,
    ]
    manager.save("k", {"values": [Shared(value) for value in values], "log": Log(values)})
    expected = [*values[:4], [["q" * 600]], None]
    state = manager.state_dict("k")
    assert state["values"] == expected
    agent = {"values": [Shared({"x": 1})]}
    with pytest.raises(ZeroDivisionError), manager.rollback_context("r", agent):
        agent["values"] = []
        raise ZeroDivisionError
    assert agent["values"] == [{"x": 1}]
    assert Shared([1]) == Shared([1]) != Shared([2])
    assert repr(Shared(1)) == "Shared(1)"
