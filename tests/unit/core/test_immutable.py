"""What a reader of a log gets: nothing whose change would show now and be lost on resume."""

import copy
import json
import pickle
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointError,
    CheckpointManager,
    ImmutableError,
    Log,
    StateError,
)
from agent_checkpoint.core import log as log_module
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.immutable import ImmutableDict, ImmutableList
from agent_checkpoint.core.state_diff import diff_states
from agent_checkpoint.store.canonical_json import write_json
from agent_checkpoint.store.objects.writer import WriteCache, Writer

MESSAGE = {
    "role": "user",
    "content": [{"type": "text", "text": "hi", "tags": ["a", "b"]}],
    "n": (1, [2]),
}


@dataclass
class Note:
    text: str
    lines: "list[str]" = field(default_factory=list)


class ReadTool(Checkpointable):
    def __init__(self) -> None:
        self.name = "ls"


def read_by_index(log: "Log[Any]") -> Any:
    return log[0]


READS = {
    "index": read_by_index,
    "last": lambda log: log[-1],
    "slice": lambda log: log[:][0],
    "iteration": lambda log: next(iter(log)),
    "reversed": lambda log: next(reversed(log)),
}
DICT_CHANGES = {
    "assign": lambda item: item.__setitem__("role", "system"),
    "delete": lambda item: item.__delitem__("role"),
    "update": lambda item: item.update(role="system"),
    "merge": lambda item: item.__ior__({"role": "system"}),
    "setdefault": lambda item: item.setdefault("new", 1),
    "pop": lambda item: item.pop("role"),
    "popitem": lambda item: item.popitem(),
    "clear": lambda item: item.clear(),
    "initialize": lambda item: item.__init__({"role": "system"}),
}
LIST_CHANGES = {
    "assign": lambda item: item.__setitem__(0, 1),
    "assign slice": lambda item: item.__setitem__(slice(0, 1), []),
    "delete": lambda item: item.__delitem__(0),
    "append": lambda item: item.append(1),
    "extend": lambda item: item.extend([1]),
    "add": lambda item: item.__iadd__([1]),
    "multiply": lambda item: item.__imul__(2),
    "insert": lambda item: item.insert(0, 1),
    "remove": lambda item: item.remove("a"),
    "pop": lambda item: item.pop(),
    "clear": lambda item: item.clear(),
    "sort": lambda item: item.sort(),
    "reverse": lambda item: item.reverse(),
    "initialize": lambda item: item.__init__([1]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("change", DICT_CHANGES.values(), ids=DICT_CHANGES)
def test_a_dict_cannot_be_changed(read: Any, change: Any) -> None:
    log = Log([MESSAGE])
    for item in (read(log), read(log)["content"][0]):
        with pytest.raises(ImmutableError, match=r"log\[-1\] = item.*log\.to_list\(\)"):
            change(item)
    assert log == [MESSAGE]
    assert log[0] == MESSAGE


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("change", LIST_CHANGES.values(), ids=LIST_CHANGES)
def test_a_list_cannot_be_changed(read: Any, change: Any) -> None:
    log = Log([MESSAGE])
    for item in (read(log)["content"], read(log)["content"][0]["tags"], read(log)["n"][1]):
        with pytest.raises(ImmutableError):
            change(item)
    assert log == [MESSAGE]


def test_every_method_that_changes_a_dict_or_a_list_is_refused() -> None:
    """A method that a later Python adds fails here."""
    harmless = {"copy", "count", "fromkeys", "get", "index", "items", "keys", "values"}
    item = Log([MESSAGE])[0]
    for value in (item, item["content"]):
        plain = type(value).__mro__[1]
        for name in set(dir(plain)) - harmless:
            changing = ("__init__", "__setitem__", "__delitem__", "__ior__", "__iadd__", "__imul__")
            if not name.startswith("_") or name in changing:
                assert getattr(type(value), name) is not getattr(plain, name), name


def test_the_error_is_one_that_people_expect() -> None:
    with pytest.raises(TypeError) as caught:
        Log([{}])[0]["a"] = 1
    assert isinstance(caught.value, CheckpointError)


def test_a_change_is_not_shown_and_then_lost(tmp_path: Any) -> None:
    """The surprise: the change was visible until the session was resumed."""
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "store")
    log: Log[Any] = Log([{"role": "user", "content": "hi"}])
    manager.save("chat", log)
    with pytest.raises(ImmutableError):
        log[-1]["content"] += "!"
    manager.save("chat", log)
    again: Log[Any] = Log()
    manager.load("chat", again)
    assert again == log == [{"role": "user", "content": "hi"}]
    with pytest.raises(ImmutableError):
        again[-1]["content"] += "!"
    manager.close()


def test_what_is_read_is_a_dict_and_a_list() -> None:
    log = Log([MESSAGE])
    item = log[0]
    assert isinstance(item, dict)
    assert isinstance(item["content"], list)
    assert item == MESSAGE
    assert item == MESSAGE
    assert item["content"] == MESSAGE["content"]
    assert repr(item) == repr(MESSAGE)
    assert {**item, "role": "system"}["role"] == "system"
    assert json.dumps(item) == json.dumps(MESSAGE)
    assert item in log
    assert log.index(MESSAGE) == 0


def test_reading_twice_gives_the_same_object() -> None:
    log = Log([MESSAGE])
    assert log[0] is log[-1] is next(iter(log)) is log[:][0]
    log.append(1)
    assert log[:2][0] is log[0]


def test_a_replaced_item_is_read_anew() -> None:
    log: Log[Any] = Log([{"n": 1}])
    for n in range(2, 200):
        assert log[-1] == {"n": n - 1}
        log[-1] = {"n": n}
    log.truncate(0)
    log.append({"n": 1})
    assert log[-1] == {"n": 1}


PLAIN_COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda item: pickle.loads(pickle.dumps(item)),
    "pickle 0": lambda item: pickle.loads(pickle.dumps(item, 0)),
    "json": lambda item: json.loads(json.dumps(item)),
    "to_list": lambda item: Log([item]).to_list()[0],
    "state": lambda item: Log([item]).state_dict()["items"][0],
}


def types_in(value: Any) -> "set[type]":
    found = {type(value)}
    for part in value.values() if isinstance(value, dict) else value:
        found |= types_in(part) if isinstance(part, (dict, list)) else set()
    return found


@pytest.mark.parametrize("copied", PLAIN_COPIES.values(), ids=PLAIN_COPIES)
def test_a_copy_is_plain(copied: Any) -> None:
    message = {"role": "user", "content": [{"tags": ["a"]}]}
    twin = copied(Log([message])[0])
    assert twin == message
    assert types_in(twin) == {dict, list}
    twin["content"][0]["tags"].append("b")


def test_a_shallow_copy_is_plain_at_its_top() -> None:
    item = Log([MESSAGE])[0]
    for twin in (copy.copy(item), item.copy(), dict(item), item | {}):
        assert type(twin) is dict
        twin["role"] = "system"
    for part in (copy.copy(item["content"]), item["content"].copy(), item["content"][:]):
        assert type(part) is list
        part.append(1)


def test_to_list_gives_copies() -> None:
    log = Log([MESSAGE, "text"])
    items = log.to_list()
    items[0]["content"].append("more")
    items.append(3)
    assert log == [MESSAGE, "text"]
    assert items[0] is not log.to_list()[0]


@pytest.mark.parametrize(
    "item",
    [Note("a", ["b"]), {1, 2}, deque([1]), OrderedDict(a=1), bytearray(b"a"), ReadTool()],
    ids=lambda item: type(item).__name__,
)
@pytest.mark.parametrize(
    "outer", [lambda item: item, lambda item: {"x": [item]}], ids=["bare", "in"]
)
def test_another_mutable_item_is_copied_when_it_is_read(item: Any, outer: Any) -> None:
    log: Log[Any] = Log([outer(item)])

    def read() -> Any:
        return log[0] if outer(1) == 1 else log[0]["x"][0]

    first = read()
    assert type(first) is type(item)
    assert first is not read()
    if isinstance(first, Note):
        first.lines.append("lost")
        first.text = "lost"
    elif isinstance(first, ReadTool):
        first.name = "lost"
    else:
        first.clear()
    kept = read()
    assert kept.name == "ls" if isinstance(kept, ReadTool) else kept == item
    if outer(1) != 1:
        with pytest.raises(ImmutableError):
            log[0]["x"].append(1)


def test_an_object_that_an_item_holds_twice_is_read_as_one() -> None:
    tool = ReadTool()
    first, second = Log([{"x": [tool, tool]}])[0]["x"]
    assert first is second
    assert first is not tool


def test_an_item_that_cannot_be_copied_any_more_is_named() -> None:
    note = Note("a")
    log = Log([note])
    log._items[0].text = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(StateError, match=r"log item.*text"):
        log[0]


# -- in a store -----------------------------------------------------------------------------------


def test_it_is_encoded_as_a_plain_one() -> None:
    item = Log([MESSAGE])[0]
    assert write_json(encode({"a": item, "b": [item]})) == write_json(
        encode({"a": MESSAGE, "b": [MESSAGE]})
    )
    odd: Any = {1: "a", "$x": [1.5, None], ("t",): {"b"}}
    assert write_json(encode(Log([odd])[0])) == write_json(encode(odd))


def test_the_objects_in_the_store_have_the_same_ids() -> None:
    messages = [{"n": n, "content": [{"type": "text", "text": "word " * 50}]} for n in range(200)]
    log = Log(messages)
    plain = Log(messages).checkpoint_to(Writer(WriteCache()))
    assert Log(log).checkpoint_to(Writer(WriteCache())) == plain
    assert Log(log[:]).checkpoint_to(Writer(WriteCache())) == plain
    assert log.checkpoint_to(Writer(WriteCache())) == plain  # after its items were read


def object_ids(memory: Any) -> "set[str]":
    manager = CheckpointManager()
    manager.save("key", {"memory": memory})
    return {found.id for found in manager.store.backend.list_objects()}


def test_a_state_with_items_of_a_log_has_the_same_objects() -> None:
    messages = [{"n": n, "content": [{"type": "text", "text": "word " * 400}]} for n in range(50)]
    assert object_ids(Log(messages)[:]) == object_ids(messages) != set()


def test_a_state_with_items_of_a_log_is_plain_when_it_is_loaded() -> None:
    class Agent(Checkpointable):
        def __init__(self) -> None:
            self.memory: Any = []

    agent, other = Agent(), Agent()
    agent.memory = Log([MESSAGE])[:]
    assert types_in(agent.state_dict()["memory"][0]["content"]) == {dict, list}
    assert types_in(agent.clone().memory[0]["content"]) == {dict, list}
    manager = CheckpointManager()
    manager.save("key", agent)
    manager.load("key", other)
    assert other.memory == [MESSAGE]
    assert types_in(other.memory[0]["content"]) == {dict, list}
    assert manager.diff("key", agent=agent)["changed"] == {}


def test_a_diff_compares_items_that_can_change_with_items_that_cannot() -> None:
    old = {"log": Log([{"a": [1], "b": {"c": set()}}])}
    new = {"log": Log([{"a": [1], "b": {"c": 1}}])}
    assert diff_states(old, new, deep=True)["changed"] == {"log[0].b.c": (set(), 1)}


def test_loads_share_the_items_that_cannot_change(tmp_path: Any) -> None:
    messages = [{"n": n, "content": [{"text": "word " * 50}], "x": [[]]} for n in range(200)]
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        manager.save("chat", Log([*messages, {"tags": {"a"}}]))
        logs: list[Log[Any]] = [Log() for _ in range(4)]
        for log in logs:
            manager.load("chat", log)
    assert all(log == [*messages, {"tags": {"a"}}] for log in logs)
    assert logs[2][0] is logs[3][0]
    assert all(types_in(item) == {ImmutableDict, ImmutableList} for item in logs[3][:-1])
    logs[3][-1]["tags"].add("b")
    assert logs[2][-1] == logs[3][-1] == {"tags": {"a"}}
    logs[3].truncate(1)
    logs[3].append({"other": 1})
    assert logs[2][:-1] == messages


def test_copies_of_a_log_share_the_items_that_cannot_change() -> None:
    log = Log([MESSAGE, {"tags": {"a"}}])

    class Agent(Checkpointable):
        def __init__(self) -> None:
            self.log = log

    twin = Agent().clone().log
    assert twin == log
    assert twin[0] is log[0]
    twin._items[1]["tags"].add("b")
    assert log[1] == {"tags": {"a"}}


def test_an_immutable_dict_with_a_mutable_value_is_copied() -> None:
    item = Log([{"tags": [{"a"}]}])[0]
    log = Log([item])
    item["tags"][0].add("b")
    assert log == [{"tags": [{"a"}]}]


def test_a_diff_of_logs_gives_plain_values() -> None:
    class Agent(Checkpointable):
        def __init__(self, *items: Any) -> None:
            self.log: Log[Any] = Log(items)

    changes = Agent({"a": {"b": 1}}).diff(Agent({"a": {"b": 2}}, {"c": []}), deep=True)
    assert changes["changed"] == {"log[0].a.b": (1, 2)}
    assert {type(value) for value in changes["added"].values()} == {dict}


# -- with other libraries -------------------------------------------------------------------------


def test_orjson_takes_it() -> None:
    orjson = pytest.importorskip("orjson")
    log = Log([{"role": "user", "content": [{"text": "hi"}]}])
    assert orjson.dumps(log[:]) == b'[{"role":"user","content":[{"text":"hi"}]}]'


def test_pydantic_takes_it() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Block(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        text: str

    class Turn(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        model_config = pydantic.ConfigDict(strict=True)
        role: str
        content: list[Block]

    item = Log([{"role": "user", "content": [{"text": "hi"}]}])[0]
    turn = Turn.model_validate(item)
    assert turn.content[0].text == "hi"
    assert Turn(**item) == turn
    adapter = pydantic.TypeAdapter(dict[str, Any])
    assert adapter.dump_json(adapter.validate_python(item)) == turn.model_dump_json().encode()


def test_a_log_in_logs_is_copied_once_per_log_around_it(monkeypatch):
    made = []
    real = log_module._stored
    monkeypatch.setattr(log_module, "_stored", lambda item: made.append(item) or real(item))
    deep = Log([1])
    for _ in range(12):
        made.clear()
        deep = Log([{"inner": deep}])
    assert len(made) <= 2 * 13
