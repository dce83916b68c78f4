"""The saver: writes, branches, order, deletion, safety, names."""

import asyncio
import threading

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    InvalidInputError,
    StateMismatchError,
)
from agent_checkpoint.adapters.langgraph import CheckpointSaver
from tests.adapters.langgraph.checkpoints import checkpoint, config, id_of, put, values_of


class Ticket(BaseModel):
    """A class that LangGraph does not know."""

    number: int


def test_a_checkpoint_comes_back_in_another_process(tmp_path):
    with CheckpointSaver(tmp_path / "s") as saver:
        first = put(saver, config(), {"messages": [AIMessage("hi", id="1")], "n": 1})
        second = put(saver, first, {"messages": [AIMessage("hi", id="1"), "x"], "n": 2}, 2)
        saver.put_writes(second, [("n", 3)], "task", "path")
    with CheckpointSaver(tmp_path / "s") as saver:
        found = saver.get_tuple(config())
        assert found.checkpoint["channel_values"] == {
            "messages": [AIMessage("hi", id="1"), "x"],
            "n": 2,
        }
        assert found.checkpoint["channel_versions"] == {"messages": 2, "n": 2}
        assert found.pending_writes == [("task", "n", 3)]
        assert found.parent_config == first
        assert found.metadata == {"source": "loop", "step": 2, "parents": {}}
        assert values_of(saver, first)["n"] == 1


def test_writes_may_come_before_their_checkpoint(saver):
    made = checkpoint({"n": 1})
    saver.put_writes(config(checkpoint_id=made["id"]), [("n", 2)], "task")
    assert saver.get_tuple(config()) is None
    saver.put(config(), made, {}, {"n": 1})
    assert saver.get_tuple(config()).pending_writes == [("task", "n", 2)]


def test_the_first_result_of_a_task_counts_and_the_last_error(saver):
    where = put(saver, config(), {"n": 1})
    saver.put_writes(where, [("n", 1), ("__error__", "a")], "b", "p2")
    saver.put_writes(where, [("n", 2), ("__error__", "b")], "b", "p2")
    saver.put_writes(where, [("n", 3)], "a", "p3")
    saver.put_writes(where, [("n", 4)], "c", "p1")
    assert saver.get_tuple(where).pending_writes == [
        ("c", "n", 4),
        ("b", "__error__", "b"),
        ("b", "n", 1),
        ("a", "n", 3),
    ]


def test_branches_with_equal_versions_keep_their_own_values(saver):
    """The official savers store a channel by its version, which two branches have in common."""
    root = put(saver, config(), {"log": ["a"], "n": 0, "kept": "k"})
    left = put(saver, root, {"log": ["a", "left"], "n": "left", "kept": "k"}, 2)
    right = put(saver, root, {"log": ["a", "right"], "n": "right", "kept": "k"}, 2)
    after_left = put(saver, left, {"log": ["a", "left", "b"], "n": "left", "kept": "k"}, 3)
    assert values_of(saver, left) == {"log": ["a", "left"], "n": "left", "kept": "k"}
    assert values_of(saver, right) == {"log": ["a", "right"], "n": "right", "kept": "k"}
    assert values_of(saver, after_left) == {"log": ["a", "left", "b"], "n": "left", "kept": "k"}


def test_an_unchanged_channel_is_taken_from_the_parent_only(saver):
    def step(parent, value, versions, new):
        made = checkpoint({"n": value, "m": value})
        made["channel_versions"] = versions
        return saver.put(parent, made, {}, new)

    first = step(config(), "one", {"n": 1, "m": 1}, {"n": 1, "m": 1})
    right = step(first, "right", {"n": 2, "m": 2}, {"n": 2, "m": 2})
    step(first, "left", {"n": 2, "m": 2}, {"n": 2, "m": 2})
    after = step(right, "right", {"n": 2, "m": 3}, {"m": 3})  # `n` is that of the right
    assert values_of(saver, after) == {"n": "right", "m": "right"}


def test_an_item_that_was_changed_in_place_is_noticed(saver):
    log = [{"text": "a"}, {"text": "b"}]
    first = put(saver, config(), {"log": log})
    log[0]["text"] = "changed"
    second = put(saver, first, {"log": log}, 2)
    assert values_of(saver, first) == {"log": [{"text": "a"}, {"text": "b"}]}
    assert values_of(saver, second) == {"log": [{"text": "changed"}, {"text": "b"}]}


@pytest.mark.parametrize("place", [0, 1, 63, 64, 130, 199])
def test_an_item_that_was_changed_in_a_long_list_is_noticed(place):
    saver = CheckpointSaver()
    items = [{"text": str(number), "more": {"n": number}} for number in range(200)]
    where = put(saver, config(), {"log": items})
    items[place]["more"]["n"] = True  # equal to 1, but not the same
    where = put(saver, where, {"log": items}, 2)
    found = values_of(saver, where)["log"]
    assert found == items
    assert found[place]["more"]["n"] is True
    for number, count in enumerate((150, 128, 64, 63, 0, 200), 3):
        where = put(saver, where, {"log": items[:count]}, number)
        assert values_of(saver, where) == {"log": items[:count]}


def test_a_list_that_gets_an_item_in_another_form_is_saved():
    """A list with such an item cannot be compared as a whole, and one without it can be again."""
    saver = CheckpointSaver(serde=JsonPlusSerializer(pickle_fallback=True))
    lists = ([{"n": 1}], [{"n": 1}, slice(2)], [{"n": True}, slice(2)], [{"n": True}], [])
    where = config()
    for number, log in enumerate(lists, 1):
        where = put(saver, where, {"log": log}, number)
        assert repr(values_of(saver, where)) == repr({"log": log})


def test_the_latest_is_the_greatest_id_and_not_the_last_put(saver):
    old, new = checkpoint({"n": "old"}), checkpoint({"n": "new"})
    saver.put(config(), new, {}, {"n": 1})
    saver.put(config(), old, {}, {"n": 1})
    assert id_of(saver.get_tuple(config())) == new["id"]
    saver.put(config(), checkpoint({"n": "newest"}), {}, {"n": 1})
    assert values_of(saver, config()) == {"n": "newest"}
    assert len(list(saver.list(config()))) == 3


def test_the_latest_is_found_after_the_greatest_was_deleted(saver):
    old, new = checkpoint({"n": "old"}), checkpoint({"n": "new"})
    saver.put(config(), new, {"run_id": "gone"}, {"n": 1})
    saver.put(config(), old, {"run_id": "stays"}, {"n": 1})
    saver.delete_for_runs(["gone"])
    assert values_of(saver, config()) == {"n": "old"}


def test_the_latest_is_found_after_another_process_deleted_the_greatest(tmp_path):
    with CheckpointSaver(tmp_path / "s") as saver, CheckpointSaver(tmp_path / "s") as other:
        old, new = checkpoint({"n": "old"}), checkpoint({"n": "new"})
        saver.put(config(), new, {"run_id": "gone"}, {"n": 1})
        saver.put(config(), old, {"run_id": "stays"}, {"n": 1})
        assert values_of(saver, config()) == {"n": "new"}
        other.delete_for_runs(["gone"])
        assert values_of(saver, config()) == {"n": "old"}


def test_a_checkpoint_that_is_put_again_replaces_the_first(saver):
    made = checkpoint({"n": 1})
    saver.put(config(), made, {}, {"n": 1})
    saver.put(config(), {**made, "channel_values": {"n": 2}}, {}, {"n": 1})
    assert [found.checkpoint["channel_values"] for found in saver.list(config())] == [{"n": 2}]


def test_list_selects_threads_namespaces_ids_and_metadata(saver):
    a = put(saver, config("a"), {"n": 1}, score=1)
    b = put(saver, a, {"n": 2}, 2, score=None)
    c = put(saver, config("a", "child:1"), {"n": 3})
    d = put(saver, config("b/1"), {"n": 4})

    def ids(*args, **options):
        return [id_of(found) for found in saver.list(*args, **options)]

    assert ids(None) == [id_of(item) for item in (d, c, b, a)]
    assert ids({"configurable": {"thread_id": "a"}}) == [id_of(item) for item in (c, b, a)]
    assert ids(config("a")) == [id_of(b), id_of(a)]
    assert ids(config("a", "child:1")) == [id_of(c)]
    assert ids(config("b/1")) == [id_of(d)]
    assert ids(config("b")) == []
    assert ids(a) == [id_of(a)]
    assert ids(config("a"), before=b) == [id_of(a)]
    assert ids(config("a"), limit=1) == [id_of(b)]
    assert ids(config("a"), limit=0) == []
    assert ids(None, filter={"score": 1}) == [id_of(a)]
    assert ids(None, filter={"score": 1, "step": 2}) == []
    assert ids(None, filter={"'; DROP TABLE entries; --": 1}) == []


@pytest.mark.parametrize(
    "thread", ["a/b", "a%2Fb", "ü", "a b|c:d", "..", "x" * 300, "'\"\\", "你" * 300, "a\nb"]
)
def test_any_thread_id_works(saver, thread):
    put(saver, config(thread), {"n": 1})
    put(saver, config(thread, "sub:1|x"), {"n": 2})
    assert [found.config["configurable"]["thread_id"] for found in saver.list(None)] == [thread] * 2
    saver.delete_thread(thread)
    assert list(saver.list(None)) == []


def test_delete_thread_leaves_nothing_and_no_other_thread(saver):
    kept = put(saver, config("ab"), {"n": 1})
    for namespace in ("", "child"):
        where = put(saver, config("a", namespace), {"n": 1})
        saver.put_writes(where, [("n", 2)], "task")
    saver.put_writes(config("a", "only-writes", "some-id"), [("n", 2)], "task")
    saver.delete_thread("a")
    assert [id_of(found) for found in saver.list(None)] == [id_of(kept)]
    assert saver.manager.list_keys() == ["langgraph/ab"]
    assert saver.manager.list_records() == []
    again = put(saver, config("a"), {"n": 5})
    assert values_of(saver, config("a")) == {"n": 5}
    assert saver.get_tuple(again).pending_writes == []


def test_another_saver_sees_what_this_one_does(tmp_path):
    with CheckpointSaver(tmp_path / "s") as one, CheckpointSaver(tmp_path / "s") as other:
        first = put(one, config(), {"n": 1})
        assert values_of(other, config()) == {"n": 1}
        second = put(other, first, {"n": 2}, 2)
        third = put(one, second, {"n": 3}, 3)
        assert id_of(other.get_tuple(config())) == id_of(third)
        one.delete_thread("t")
        assert other.get_tuple(config()) is None
        assert other.get_tuple(third) is None
        put(other, config(), {"n": 4})
        assert values_of(one, config()) == {"n": 4}


def test_the_latest_is_the_greatest_id_of_all_processes(tmp_path):
    with CheckpointSaver(tmp_path / "s") as one, CheckpointSaver(tmp_path / "s") as other:
        put(other, config(), {"n": "first"})
        older, newer = checkpoint({"n": "older"}), checkpoint({"n": "newer"})
        one.put(config(), newer, {}, {"n": 1})
        other.put(config(), older, {}, {"n": 1})  # it knows the head before
        for saver in (one, other):
            assert values_of(saver, config()) == {"n": "newer"}


def test_concurrent_writers_of_one_thread_lose_nothing(tmp_path):
    """Two savers, as two processes would be, and four threads each."""
    done, failures = [], []

    def work(saver, name):
        try:
            where = config()
            for step in range(8):
                where = put(saver, where, {"log": [name] * step, "n": step}, step)
                saver.put_writes(where, [("n", name)], f"{name}{step}")
                done.append(
                    (where, {"log": [name] * step, "n": step}, (f"{name}{step}", "n", name))
                )
        except Exception as error:
            failures.append(error)

    with CheckpointSaver(tmp_path / "s") as one, CheckpointSaver(tmp_path / "s") as other:
        threads = [
            threading.Thread(target=work, args=(saver, f"w{number}"))
            for number, saver in enumerate([one, other] * 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        listed = {id_of(found): found for found in other.list(config())}
        assert len(listed) == len(done) == 64
        for where, values, write in done:
            assert listed[id_of(where)].checkpoint["channel_values"] == values
            assert listed[id_of(where)].pending_writes == [write]
        for saver in (one, other):
            assert id_of(saver.get_tuple(config())) == max(listed)


def test_the_event_loop_is_never_blocked(saver, monkeypatch):
    used = set()
    for name in ("save", "load", "history", "records", "list_keys", "prune"):
        original = getattr(saver.manager, name)

        def watched(*args, _original=original, **options):
            used.add(threading.get_ident())
            return _original(*args, **options)

        monkeypatch.setattr(saver.manager, name, watched)

    async def all_calls():
        made = checkpoint({"n": 1})
        where = await saver.aput(config(), made, {}, {"n": 1})
        await saver.aput_writes(where, [("n", 2)], "task", "path")
        await saver.aget_tuple(where)
        assert [id_of(found) async for found in saver.alist(None)] == [made["id"]]
        await saver.aget_delta_channel_history(config=where, channels=["n"])
        await saver.acopy_thread("t", "copy")
        await saver.adelete_for_runs(["x"])
        await saver.aprune(["copy"])
        await saver.adelete_thread("t")
        return threading.get_ident()

    loop = asyncio.run(all_calls())
    assert used
    assert loop not in used


def test_objects_are_not_made_unless_allowed(tmp_path):
    with CheckpointSaver(tmp_path / "s") as saver:
        where = put(saver, config(), {"ticket": Ticket(number=1), "log": [Ticket(number=2)]})
        saver.put_writes(where, [("ticket", Ticket(number=3))], "task")
        found = saver.get_tuple(config())
        assert found.checkpoint["channel_values"] == {
            "ticket": {"number": 1},
            "log": [{"number": 2}],
        }
        assert found.pending_writes == [("task", "ticket", {"number": 3})]
    with CheckpointSaver(tmp_path / "s", allow=[Ticket]) as saver:
        found = saver.get_tuple(config())
        assert found.checkpoint["channel_values"] == {
            "ticket": Ticket(number=1),
            "log": [Ticket(number=2)],
        }
        assert found.pending_writes == [("task", "ticket", Ticket(number=3))]


def test_a_value_that_would_need_a_pickle_is_refused(saver):
    with pytest.raises(TypeError, match="serializable"):
        put(saver, config(), {"n": object()})
    assert saver.get_tuple(config()) is None


def test_another_serializer_is_used(tmp_path):
    serde = JsonPlusSerializer(pickle_fallback=True)
    with CheckpointSaver(tmp_path / "s", serde=serde) as saver:
        put(saver, config(), {"n": {1, 2}, "s": [slice(1, 2)], "b": b"x", "none": None})
        assert values_of(saver, config()) == {
            "n": {1, 2},
            "s": [slice(1, 2)],
            "b": b"x",
            "none": None,
        }
    with pytest.raises(InvalidInputError, match="allow= is for the default serializer"):
        CheckpointSaver(serde=serde, allow=[Ticket])


def test_secrets_are_redacted_in_values_and_writes(tmp_path):
    secret = "sk-ant-api03-" + "a1B2" * 24
    with CheckpointManager(tmp_path / "s", redact="secrets") as manager:
        saver = CheckpointSaver(manager)
        where = put(saver, config(), {"log": [AIMessage(f"key {secret} " + "x" * 600, id="1")]})
        saver.put_writes(where, [("log", [f"key {secret}"])], "task")
        found = saver.get_tuple(config())
    assert secret not in str(found)
    assert b"a1B2a1B2" not in (tmp_path / "s" / "store.db").read_bytes()


def test_copying_to_a_thread_with_checkpoints_is_refused(saver):
    put(saver, config("a"), {"n": 1})
    put(saver, config("b"), {"n": 1})
    with pytest.raises(ConflictError, match="Copy to a new thread"):
        saver.copy_thread("a", "b")


def test_a_strategy_that_is_unknown_is_refused(saver):
    with pytest.raises(InvalidInputError, match="keep_latest"):
        saver.prune(["t"], strategy="some")


def test_a_thread_is_a_key_with_readable_state(tmp_path):
    with CheckpointSaver(tmp_path / "s") as saver:
        where = put(saver, config(), {"log": [AIMessage("hello", id="1")], "n": 1})
        (row,) = saver.manager.history("langgraph/t")
        assert row["tags"] == [id_of(where)]
        assert row["label"] == "step 1, loop"
        state = saver.manager.state_dict("langgraph/t")
        assert state["checkpoint"]["metadata"]["source"] == "loop"
        assert state["values"]["n"] == {"value": 1}
        (message,) = state["values"]["log"]
        assert message["ext:5"][2]["content"] == "hello"


def test_a_line_that_others_wrote_to_is_an_error(saver):
    put(saver, config(), {"n": 1})
    saver.manager.save("langgraph/t", {"x": 1})
    with pytest.raises(StateMismatchError, match="has no part 'checkpoint'"):
        saver.get_tuple(config())


def test_a_message_and_the_write_that_it_came_from_are_stored_once(tmp_path):
    message = AIMessage("".join(f"{number} " for number in range(400)), id="1")
    with CheckpointSaver(tmp_path / "s") as saver:
        where = put(saver, config(), {"log": ["x" * 600]})
        saver.put_writes(where, [("log", [message])], "task")
        before = {info.id for info in saver.manager.store.backend.list_objects()}
        put(saver, where, {"log": ["x" * 600, message]}, 2)
        added = [i for i in saver.manager.store.backend.list_objects() if i.id not in before]
        assert sum(info.size for info in added) < 200
        assert saver.get_tuple(where).pending_writes == [("task", "log", [message])]
        assert values_of(saver, config()) == {"log": ["x" * 600, message]}


def test_a_long_list_costs_what_was_added(tmp_path):
    items = [{"n": number, "text": str(number) * 200} for number in range(200)]
    with CheckpointSaver(tmp_path / "s") as saver:
        where, sizes = config(), []
        for count in range(1, 201):
            where = put(saver, where, {"log": items[:count]}, count)
            sizes.append(sum(i.size for i in saver.manager.store.backend.list_objects()))
        assert sizes[-1] - sizes[-11] < 10 * 2 * 700
        assert values_of(saver, config()) == {"log": items}
