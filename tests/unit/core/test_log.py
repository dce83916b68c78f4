"""Log: a list that only grows, and a Stateful."""

import copy
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    ImmutableError,
    InvalidInputError,
    Log,
    StateError,
    Stateful,
    StateMismatchError,
)
from agent_checkpoint.core.codec.encode import ItemEncoder
from agent_checkpoint.store.objects.writer import WriteCache, Writer


class LoggedTool(Checkpointable):
    def __init__(self, name: str = "") -> None:
        self.name = name
        self._client = threading.Lock()


class LoggedChat(Checkpointable):
    def __init__(self, *items: Any) -> None:
        self.messages: Log[Any] = Log(items)


def test_it_reads_like_a_list() -> None:
    log = Log(["a", "b", "c", "b"])
    assert len(log) == 4
    assert log[0] == "a"
    assert log[-1] == "b"
    assert log[1:3] == ["b", "c"]
    assert list(log) == ["a", "b", "c", "b"]
    assert list(reversed(log)) == ["b", "c", "b", "a"]
    assert "c" in log
    assert "x" not in log
    assert log.index("b") == 1
    assert log.count("b") == 2
    assert bool(log)
    assert not Log()
    assert repr(log) == "Log(['a', 'b', 'c', 'b'])"
    assert Counter(log)["b"] == 2


def test_a_slice_is_a_list_of_its_own() -> None:
    log = Log([1, 2])
    part = log[:]
    part.append(3)
    assert log == [1, 2]


def test_reading_beyond_the_end_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        Log([1])[1]


def test_equality_is_that_of_the_items() -> None:
    assert Log([1, 2]) == Log([1, 2])
    assert Log([1, 2]) == [1, 2]
    plain = [1, 2]
    assert plain == Log([1, 2])
    assert Log([1]) != Log([2])
    assert Log([1]) != (1,)
    assert Log() != {}
    with pytest.raises(TypeError):
        hash(Log())


def test_it_grows_at_its_end() -> None:
    log = Log([1])
    log.append(2)
    log.extend(n for n in (3, 4))
    log[-1] = "four"
    log[3] = 4.0
    assert log == [1, 2, 3, 4.0]
    log.truncate(4)
    log.truncate(1)
    assert log == [1]
    log.truncate(0)
    assert log == []


@pytest.mark.parametrize("index", [0, 1, -2, 3, "x", None, slice(0, 1), slice(None), 2.5])
def test_only_the_last_item_can_be_replaced(index: Any) -> None:
    log = Log([1, 2, 3])
    with pytest.raises(InvalidInputError, match="last item"):
        log[index] = 0
    assert log == [1, 2, 3]


@pytest.mark.parametrize("index", [0, -1])
def test_an_empty_log_has_no_last_item(index: int) -> None:
    with pytest.raises(InvalidInputError):
        Log()[index] = 1


@pytest.mark.parametrize("n", [-1, 4, True, 1.0, None, "1"])
def test_a_log_is_cut_back_to_a_number_of_its_items(n: Any) -> None:
    log = Log([1, 2, 3])
    with pytest.raises(InvalidInputError, match="from 0 to 3, not"):
        log.truncate(n)
    assert log == [1, 2, 3]


def test_items_are_copied_in() -> None:
    first, second, third = {"a": [1]}, {"a": [1]}, {"a": [1]}
    log = Log([first])
    log.append(second)
    log[-1] = second
    log.extend([third])
    for item in (first, second, third):
        item["a"].append(2)
    assert log == [{"a": [1]}] * 3


@pytest.mark.parametrize(
    "read",
    [list, lambda log: [log[n] for n in range(len(log))], lambda log: log[:], lambda log: [*log]],
    ids=["iterator", "index", "slice", "unpacked"],
)
def test_an_item_that_can_change_is_copied_out(read: Any) -> None:
    log = Log(["a", bytearray(b"b"), {"set": {1}}, ([2],), {"n": 1}])
    shown = read(log)
    assert shown == ["a", b"b", {"set": {1}}, ([2],), {"n": 1}]
    shown[1] += b"!"
    shown[2]["set"].add(2)
    with pytest.raises(ImmutableError):
        shown[3][0].append(3)
    with pytest.raises(ImmutableError):
        shown[4]["n"] = 2
    assert log.to_list() == ["a", b"b", {"set": {1}}, ([2],), {"n": 1}]


def test_items_that_are_added_during_an_iteration_are_reached() -> None:
    log: Log[Any] = Log(["a"])
    found = iter(log)
    log.append({"n": 1})
    assert list(found) == ["a", {"n": 1}]


def test_an_object_in_an_item_is_cloned() -> None:
    tool = LoggedTool("ls")
    log = Log([{"tool": tool}])
    tool.name = "rm"
    assert log[0]["tool"].name == "ls"
    assert log[0]["tool"]._client is tool._client


@pytest.mark.parametrize("how", ["append", "extend", "replace", "init"])
def test_an_item_that_cannot_be_copied_is_named(how: str) -> None:
    log: Log[Any] = Log([1, 2])
    bad = {"deep": [0, threading.Lock()]}
    calls: dict[str, Any] = {
        "append": lambda: log.append(bad),
        "extend": lambda: log.extend([3, bad]),
        "replace": lambda: log.__setitem__(-1, bad),
        "init": lambda: Log([1, 2, bad]),
    }
    place = {"append": 2, "extend": 3, "replace": 1, "init": 2}[how]
    with pytest.raises(StateError, match=rf"log\[{place}\]\['?deep'?\]\[1\]|log\[{place}\].deep"):
        calls[how]()
    assert log == [1, 2]


def test_extending_by_itself_doubles_it() -> None:
    log = Log([1, 2])
    log.extend(log)
    assert log == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "copied",
    [
        lambda log: pickle.loads(pickle.dumps(log)),
        copy.deepcopy,
        copy.copy,
    ],
    ids=["pickle", "deepcopy", "copy"],
)
def test_a_copy_goes_its_own_way(copied: Any) -> None:
    log = Log([{"a": 1}, 2])
    twin = copied(log)
    assert type(twin) is Log
    assert twin == log
    twin.append(3)
    log.truncate(1)
    log[-1] = "other"
    assert twin == [{"a": 1}, 2, 3]
    assert log == ["other"]


# -- replacing all items --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [[{"n": 3}], ({"n": 3},), ({"n": n} for n in (3,)), Log([{"n": 3}]), [], Log()],
    ids=["list", "tuple", "generator", "log", "empty", "empty log"],
)
def test_all_items_can_be_replaced(items: Any) -> None:
    log = Log([{"n": 1}, {"n": 2}])
    expected = [] if not isinstance(items, Iterator) and not items else [{"n": 3}]
    log.replace(items)
    assert log == expected


def test_a_log_can_be_trimmed_to_a_part_of_itself() -> None:
    log = Log([{"n": n} for n in range(9)])
    log.replace(log[-3:])
    assert log == [{"n": 6}, {"n": 7}, {"n": 8}]
    log.replace([{"n": "sum"}, *log[1:]])
    assert log == [{"n": "sum"}, {"n": 7}, {"n": 8}]
    log.replace(log)
    assert len(log) == 3


@pytest.mark.parametrize("items", ["abc", b"abc", {"role": "user"}, None, 5, object(), Log])
def test_what_holds_no_items_is_refused(items: Any) -> None:
    log = Log([1, 2])
    with pytest.raises(InvalidInputError, match="replaced by a list of items, not"):
        log.replace(items)
    assert log == [1, 2]


def test_nothing_is_replaced_if_an_item_cannot_be_copied() -> None:
    log: Log[Any] = Log([1, 2])
    with pytest.raises(StateError, match=r"log\[1\]"):
        log.replace([1, threading.Lock()])
    assert log == [1, 2]


@pytest.mark.parametrize("item", [{"n": 1}, "text"])
def test_the_common_beginning_is_not_encoded_again(item: Any) -> None:
    log = Log([item] * 50)
    memory = WriteCache()
    writer = Writer(memory)
    log.checkpoint_to(writer)
    writer.committed()
    log.replace([*log, {"n": "new"}])
    encoded: list[Any] = []

    class Recording(ItemEncoder):
        def __call__(self, item: Any) -> Any:
            encoded.append(item)
            return super().__call__(item)

    log.frozen(Recording({}, 0)).put(Writer(memory), [])
    assert encoded == [{"n": "new"}]


def test_equal_items_of_other_types_are_replaced() -> None:
    log: Log[Any] = Log([1, {"a": 1}])
    log.replace([True, {"a": 1.0}])
    assert repr(log) == "Log([True, {'a': 1.0}])"


# -- as a Stateful --------------------------------------------------------------------------------


def test_its_state_is_a_copy_of_the_items() -> None:
    log = Log([{"a": 1}])
    assert isinstance(log, Stateful)
    state = log.state_dict()
    assert state == {"items": [{"a": 1}]}
    state["items"][0]["a"] = 2
    assert log == [{"a": 1}]


@pytest.mark.parametrize("state", [{"items": [[1], 2]}, [[1], 2], Log([[1], 2])])
def test_it_takes_over_a_state_by_copying(state: Any) -> None:
    log = Log(["old"])
    assert log.load_state_dict(state) == ([], [])
    assert log == [[1], 2]
    log[-1] = "mine"
    assert Log(["x"]).load_state_dict(state) == ([], [])
    items = state["items"] if isinstance(state, dict) else state
    assert items == [[1], 2]


@pytest.mark.parametrize("state", [None, {}, {"items": "abc"}, "abc", {"items": {}}, (1,)])
def test_what_is_no_state_of_a_log_is_refused(state: Any) -> None:
    log = Log(["old"])
    with pytest.raises(StateMismatchError):
        log.load_state_dict(state)
    assert log == ["old"]


def test_an_agent_captures_and_loads_its_log_in_place() -> None:
    chat, other = LoggedChat({"n": 1}, {"tool": LoggedTool("ls")}), LoggedChat("old")
    held = other.messages
    other.load_state_dict(chat.state_dict())
    assert other.messages is held
    assert held[0] == {"n": 1}
    assert type(held[1]["tool"]) is LoggedTool
    assert held[1]["tool"].name == "ls"
    held.append("more")
    assert len(chat.messages) == 2


def test_a_clone_has_a_log_of_its_own() -> None:
    chat = LoggedChat(1, 2)
    twin = chat.clone()
    twin.messages.append(3)
    chat.messages.truncate(1)
    assert (chat.messages, twin.messages) == ([1], [1, 2, 3])


def test_a_diff_names_the_items() -> None:
    chat, other = LoggedChat(1, {"a": 1}), LoggedChat(1, {"a": 2}, 3)
    assert set(chat.diff(other)["changed"]) == {"messages"}


def test_checkpoint_to_names_the_same_list_whatever_is_known() -> None:
    log = Log([{"n": n, "text": "word " * 40} for n in range(300)])
    memory = WriteCache()
    writer = Writer(memory)
    first = log.checkpoint_to(writer)
    writer.committed()
    again = Writer(memory)
    assert log.checkpoint_to(again) == first
    log.append("more")
    known, fresh = Writer(memory), Writer(WriteCache())
    assert log.checkpoint_to(known) == log.checkpoint_to(fresh) != first
    assert len(list(known.pending())) <= 2
    assert len(list(fresh.pending())) > 3


# -- an older moment of a log, written later ------------------------------------------------------


def pending_and_known() -> "tuple[Log[Any], WriteCache, Any, list[Any]]":
    """Return a log, what a store has of it, and the items of a later moment, not yet written."""
    log = Log([f"item {n} " * 100 for n in range(4)])
    memory = WriteCache()
    writer = Writer(memory)
    log.frozen(ItemEncoder({}, 0)).put(writer, [])
    writer.committed()
    log.truncate(1)
    log.extend(["other " * 150] * 5)
    return log, memory, log.frozen(ItemEncoder({}, 0)), list(log)


def name_of(view: Any, memory: WriteCache) -> str:
    refs: list[str] = []
    view.put(Writer(memory), refs)
    return refs[0]


@pytest.mark.parametrize("change", ["truncate", "replace", "load"])
def test_what_happens_later_does_not_show(change: str) -> None:
    log, memory, view, items = pending_and_known()
    if change == "truncate":
        log.truncate(0)
        log.extend(["new " * 300] * 9)
    elif change == "replace":
        log[-1] = "new"
    else:
        log.load_state_dict(["new"] * 9)
    assert view.inline() == items
    assert name_of(view, memory) == Log(items).checkpoint_to(Writer(WriteCache()))


def test_a_load_and_a_cut_later_do_not_show() -> None:
    log, memory, view, items = pending_and_known()
    log.load_state_dict(["new"] * 9)
    log.truncate(8)  # the first cut of the new content, as the view has seen one of the old
    assert name_of(view, memory) == Log(items).checkpoint_to(Writer(WriteCache()))


def test_a_cut_by_another_thread_in_the_midst_of_it_does_not_show() -> None:
    log, memory, view, items = pending_and_known()
    names: list[str] = []

    class Cuts(list):  # type: ignore[type-arg]
        def pop(self, *args: Any) -> Any:
            found = super().pop(*args)
            names.append(name_of(view, memory))  # as the background writer may, at this moment
            return found

    log._cuts = Cuts(log._cuts)
    log.truncate(0)
    assert names in ([], [Log(items).checkpoint_to(Writer(WriteCache()))])


def test_while_a_moment_is_held_the_items_are_copied_only_once() -> None:
    log, _, view, items = pending_and_known()
    log[-1] = "streamed"
    first = log._items
    for token in range(5):  # as within rollback_context, at the cost of the whole log each
        log[-1] = f"streamed {token}"
    assert log._items is first
    assert view.inline() == items


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.pop(),
        lambda log: log.insert(0, 1),
        lambda log: log.clear(),
        lambda log: log.remove(1),
        lambda log: log.sort(),
        lambda log: log.reverse(),
        lambda log: log.__delitem__(0),
        lambda log: log.__imul__(2),
    ],
)
def test_other_methods_of_a_list_say_what_to_use(change):
    log = Log([1, 2])
    with pytest.raises(ImmutableError, match=r"append\(item\).*truncate\(n\).*replace\(items\)"):
        change(log)
    assert log == [1, 2]


def test_items_are_added_by_plus_equals():
    log = same = Log([1])
    log += [2, 3]
    assert log is same
    assert log == [1, 2, 3]


def test_assigning_an_item_names_the_ways_to_replace_items():
    with pytest.raises(InvalidInputError, match=r"session.messages = \[…\]"):
        Log([1, 2])[0] = 3
