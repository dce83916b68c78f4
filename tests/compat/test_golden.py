"""What released formats wrote is read by the present version, exactly, and can be gone on with."""

import hashlib
import json
from typing import Any
from zoneinfo import available_timezones

import pytest

from agent_checkpoint import CheckpointManager, Log, NotFoundError
from agent_checkpoint.core.codec.decode import TAG_HANDLERS
from agent_checkpoint.core.codec.encode import encode, encode_as_pickle
from agent_checkpoint.core.codec.leaves import DECODERS
from agent_checkpoint.store.objects.object_format import STATE_KINDS
from agent_checkpoint.store.objects.reader import TAGS
from agent_checkpoint.store.objects.splitting import inline_tree
from tests.compat import cutter, reader, subjects
from tests.compat.conftest import ARCHIVES, STORES, V1, Open, expected

NO_ZONES = "Europe/Vienna" not in available_timezones()


def digest(parts: dict[str, Any]) -> str:
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def checkpoints(name: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (key, row)
        for key, rows in expected(name).items()
        for row in rows
        if not (key == "zones" and NO_ZONES)
    ]


def parts_again(manager: CheckpointManager, row: dict[str, Any], key: str, cid: str) -> Any:
    """Return the parts as they are written now, of the state that was read."""
    write = encode_as_pickle if key == "pickled" else encode
    state = manager.state_dict(key, cid)
    states = {"agent": state} if row["parts"] == ["agent"] else state
    return {part: inline_tree(write(states[part])) for part in states}


@pytest.mark.parametrize("name", STORES)
def test_every_state_reads_back_as_it_was(name: str, open_golden: Open) -> None:
    with open_golden(name) as manager:
        assert manager.list_keys() == sorted(expected(name))
        for key, row in checkpoints(name):
            parts = parts_again(manager, row, key, row["id"])
            assert digest(parts) == row["sha256"], row["id"]
            assert parts == row.get("state", parts)


@pytest.mark.parametrize("name", STORES)
def test_the_history_is_as_it_was(name: str, open_golden: Open) -> None:
    with open_golden(name) as manager:
        for key, rows in expected(name).items():
            for row, found in zip(rows, reversed(manager.history(key))):
                assert found == {member: row[member] for member in found}
            assert len(rows) == len(manager.history(key))


@pytest.mark.parametrize("name", [*STORES, *ARCHIVES])
def test_a_golden_store_is_sound_and_can_be_gone_on_with(name: str, open_golden: Open) -> None:
    with open_golden(name) as manager:
        heads = {key: manager.history(key, n=1)[0]["id"] for key in manager.list_keys()}
        count = manager.verify().checkpoints
        for key in heads:
            manager.save(key, {"step": "one more"}, expected_head=heads[key])
            assert manager.state_dict(key) == {"step": "one more"}
            assert manager.history(key, n=1)[0]["parents"] == [heads[key]]
        report = manager.verify()
        assert report.ok, report.problems
        assert report.checkpoints == count + len(heads)
        manager.gc()
        assert manager.verify().ok
        assert manager.list_keys() == sorted(heads)


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_is_imported_with_all_that_was_in_it(name: str, open_golden: Open) -> None:
    ((key, rows),) = expected(name).items()
    with open_golden(name) as manager:
        found = manager.history(key)[::-1]
        assert len(found) == len(rows)
        for row, copy in zip(rows, found):
            assert digest(parts_again(manager, row, key, copy["id"])) == row["sha256"]
            assert [copy[name] for name in ("ts", "kind", "label", "tags", "metrics")] == [
                row[name] for name in ("ts", "kind", "label", "tags", "metrics")
            ]


@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_objects_load_what_their_classes_saved(name: str, open_golden: Open) -> None:
    with open_golden(name) as manager:
        agent = subjects.GoldenAgent()
        manager.load("agent", agent)
        assert (agent.name, agent.memory, agent.favourite.uses) == ("echo", [("user", "hi")], 3)
        assert agent.last == subjects.GoldenHinted("hinted")
        assert [type(tool) for tool in agent.tools] == [subjects.GoldenTool] * 3
        chat = subjects.GoldenChat()
        manager.load("chat", chat)
        assert type(chat.log) is Log
        assert len(chat.log) > len(chat.list) > 5
        chat.log.append(subjects.message(1000))
        manager.save("chat", chat)
        again = subjects.GoldenChat()
        manager.load("chat", again)
        assert again.log == chat.log


@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_what_was_removed_stays_removed(name: str, open_golden: Open) -> None:
    with open_golden(name) as manager:
        with pytest.raises(NotFoundError, match="was purged on 2023-11-1"):
            manager.state_dict("leaky", f"leaky_{tombstone(name)}")
        assert manager.state_dict("leaky")["mail"] == "the token is [purged]"
        with pytest.raises(NotFoundError):
            manager.state_dict("half")  # an import that never came to its end
        number = manager.save("gone", {"step": 2}).rpartition("-")[2]
        assert number == "2"  # number 1 was used


def tombstone(name: str) -> str:
    streams = reader.open_medium(V1 / name).streams
    record = reader.open_record(streams["meta/purged"][1])
    return str(record["checkpoints"][0]).rpartition("_")[2]


@pytest.mark.parametrize("name", ["sqlite", "file", *ARCHIVES])
def test_the_format_page_is_enough_to_read_all_of_it(name: str) -> None:
    found = reader.read(V1 / name)
    assert sorted(found) == sorted(expected(name))
    for key, rows in expected(name).items():
        assert [row["id"] for row in rows] == [item["id"] for item in found[key]]
        for row, item in zip(rows, found[key]):
            assert digest(item["parts"]) == row["sha256"], row["id"]
            for member in ("kind", "label", "tags", "metrics", "parents"):
                assert item[member] == row[member]


def test_the_format_page_is_enough_to_cut_states_as_we_do() -> None:
    medium = reader.open_medium(V1 / "sqlite")
    for key, checkpoints in reader.read(V1 / "sqlite").items():
        for checkpoint in checkpoints:
            seq = int(checkpoint["id"].rpartition("-")[2])
            stored = reader.open_record(medium.streams[f"key/{key}"][seq])["parts"]
            for part, tree in checkpoint["parts"].items():
                assert json.loads(cutter.cut_part(tree)) == stored[part], checkpoint["id"]


def test_the_golden_stores_have_every_tag_and_every_kind_of_object() -> None:
    medium = reader.open_medium(V1 / "sqlite")
    entries = b"".join(entry for found in medium.streams.values() for entry in found.values())
    objects = [reader.get(medium, name) for name in medium.objects]
    assert {item.kind for item in objects} == {*STATE_KINDS, b"d", b"w", b"c", b"r"}
    text = entries + b"".join(item.payload for item in objects)
    assert [
        tag for tag in (*TAG_HANDLERS, *DECODERS, *TAGS) if f'{{"{tag}":'.encode() not in text
    ] == []
    assert {stored[:1] for stored in medium.objects.values()} == {b"r", b"z"}
