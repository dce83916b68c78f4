"""`pickles=`: a value without a JSON form is saved after a warning, or the save is refused."""

import asyncio
import warnings
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Union

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, Log, checkpoint
from agent_checkpoint.errors import InvalidInputError, StateError
from tests.agents import Agent, managers

WAYS_OUT = ("leading underscore", "_checkpoint_fields()", "register_type()", 'pickles="allow"')


class Client:
    """As the client of a model API: nothing that JSON could hold, and a key inside."""

    def __init__(self, key: str = "very secret") -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Client) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]


class Second(Client):
    pass


class Zone(tzinfo):
    pass


class Text(str):
    __slots__ = ()


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    from weakref import WeakSet

    monkeypatch.setattr("agent_checkpoint.core.codec.save_policy._warned", WeakSet())


@pytest.fixture(params=["memory", "file", "sqlite"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    with managers(tmp_path)[request.param] as opened:
        yield opened


def holder(**fields: Any) -> Agent:
    agent = Agent()
    vars(agent).update(fields)
    return agent


def test_the_first_pickle_of_a_class_is_a_warning_with_path_class_and_ways_out(
    manager: CheckpointManager,
) -> None:
    agent = holder(client=Client())

    with pytest.warns(UserWarning, match=r"^agent\.client \(.*test_pickles\.Client\)") as caught:
        manager.save("k", agent)

    assert len(caught) == 1
    assert all(way in str(caught[0].message) for way in WAYS_OUT)
    assert "very secret" not in str(caught[0].message)
    manager.save("k", agent)  # a second warning would be an error
    found = holder(client=None)
    manager.load("k", found)
    assert found.client == Client()


def test_the_warning_points_at_the_line_that_saves(manager: CheckpointManager) -> None:
    saves: list[Any] = [
        lambda: manager.save("k", {"x": Client()}),
        lambda: manager.rollback_context("k", {"x": Second()}).__enter__(),
    ]
    for save in saves:
        with pytest.warns(UserWarning, match="pickle") as caught:
            save()
        assert [warning.filename for warning in caught] == [__file__]


def test_each_class_has_its_own_warning(manager: CheckpointManager) -> None:
    with pytest.warns(UserWarning, match="pickle") as caught:
        manager.save("k", {"a": [Client()], "b": {"c d": Second()}})

    texts = [str(warning.message) for warning in caught]
    assert [text.split(" (")[0] for text in texts] == ["agent.a[0]", 'agent.b["c d"]']


def test_with_warnings_as_errors_every_save_fails_and_nothing_is_saved(
    manager: CheckpointManager,
) -> None:
    for _ in range(2):
        with pytest.raises(UserWarning, match=r"agent\.x"):
            manager.save("k", {"x": Client()})
    assert manager.list_keys() == []


def test_a_process_is_warned_once_not_each_manager(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="pickle"):
        CheckpointManager().save("k", {"x": Client()})
    CheckpointManager(backend="sqlite", path=tmp_path / "s").save("k", {"x": Client()})


def test_allow_says_nothing() -> None:
    manager = CheckpointManager(pickles="allow")
    manager.save("k", {"x": Client(), "log": Log([Client()])})
    assert manager.state_dict("k")["log"][0] == Client()


@pytest.mark.parametrize("backend", ["memory", "file", "sqlite"])
def test_refuse_saves_nothing_and_names_path_class_and_ways_out(
    tmp_path: Path, backend: Any
) -> None:
    path = None if backend == "memory" else tmp_path / "s"
    with CheckpointManager(backend=backend, path=path, pickles="refuse") as manager:
        for nested in ([1, Client()], (1, Client()), Log([1, Client()])):
            with pytest.raises(StateError) as caught:
                manager.save("k", {"n": 0, "x": nested})
            assert str(caught.value).startswith(f"agent.x[1] ({__name__}.Client) would be pickled.")
            assert all(way in str(caught.value) for way in WAYS_OUT)
        assert manager.list_keys() == []
        manager.save("k", {"x": 1})


def test_refuse_still_refuses_a_class_that_was_warned_about() -> None:
    with pytest.warns(UserWarning, match="pickle"):
        CheckpointManager().save("k", {"x": Client()})
    with pytest.raises(StateError, match=r"agent\.x"):
        CheckpointManager(pickles="refuse").save("k", {"x": Client()})


def test_every_value_that_falls_back_to_a_pickle_counts() -> None:
    manager = CheckpointManager(pickles="refuse")
    for value in (defaultdict(Client), datetime(2026, 1, 1, tzinfo=Zone()), Text("x"), Client):
        with pytest.raises(StateError, match="would be pickled"):
            manager.save("k", {"x": value})


def test_background_and_async_saves_warn_on_the_side_of_the_caller(
    manager: CheckpointManager,
) -> None:
    messages: Log[Any] = Log(["plain", {"role": Client()}])

    with pytest.warns(UserWarning, match=r"messages\[1\]\.role") as caught:
        future = manager.save_in_background("k", {"messages": messages, "agent": Agent()})
    assert [warning.filename for warning in caught] == [__file__]
    future.result()

    with pytest.warns(UserWarning, match=r"agent\.x") as caught:
        pending = manager.asave("k", {"x": Second()})
    assert [warning.filename for warning in caught] == [__file__]
    asyncio.run(_wait(pending))


async def _wait(pending: Any) -> None:
    await pending


def test_background_saves_refuse_on_the_side_of_the_caller() -> None:
    manager = CheckpointManager(pickles="refuse")
    with pytest.raises(StateError, match=r"agent\.log\[0\]"):
        manager.save_in_background("k", {"n": 0, "log": Log([Client()])})
    with pytest.raises(StateError, match=r"agent\.x"):
        manager.asave("k", {"x": Client()})
    manager.close()
    assert manager.list_keys() == []


def test_a_log_is_checked_only_where_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_checkpoint.core.codec.encode import ItemEncoder

    checked: list[Any] = []
    original = ItemEncoder.check

    def count(self: ItemEncoder, item: Any) -> None:
        checked.append(item)
        original(self, item)

    monkeypatch.setattr(ItemEncoder, "check", count)
    manager, log = CheckpointManager(), Log(range(100))
    manager.save("k", {"n": 0, "log": log})
    checked.clear()

    log.append("new")
    manager.save("k", {"n": 0, "log": log})
    assert checked == ["new"]

    checked.clear()
    log[-1] = "newer"
    manager.save("k", {"n": 0, "log": log})
    assert checked == ["newer"]

    checked.clear()
    log.truncate(50)
    log.extend([1, 2])
    manager.save("k", {"n": 0, "log": log})
    assert checked == [1, 2]

    checked.clear()
    log.load_state_dict([1, Client()])
    with pytest.raises(StateError, match=r"agent\.log\[1\]"):
        CheckpointManager(pickles="refuse").save("k", {"n": 0, "log": log})


def test_a_log_that_a_warning_let_through_is_refused_where_pickles_are() -> None:
    log: Log[Any] = Log([Client()])
    with pytest.warns(UserWarning, match="pickle"):
        CheckpointManager().save("k", {"n": 0, "log": log})
    with pytest.raises(StateError, match=r"agent\.log\[0\]"):
        CheckpointManager(pickles="refuse").save("k", {"n": 0, "log": log})


def test_types_with_a_json_form_are_not_pickles() -> None:
    class Hinted(Checkpointable):
        def __init__(self) -> None:
            self.log: Log[Union[Agent, int]] = Log([1])
            self._client = Client()

    CheckpointManager(pickles="refuse").save("k", Hinted())


def test_comparing_and_copying_are_no_saves() -> None:
    manager, agent = CheckpointManager(pickles="refuse"), holder(client=1)
    manager.save("k", agent)
    agent.client = Client()  # type: ignore[attr-defined]
    assert manager.diff("k", agent=agent)["changed"] == {"client": (1, Client())}
    assert agent.clone().client == Client()  # type: ignore[attr-defined]


def test_the_decorator_saves_with_the_policy_of_its_manager() -> None:
    @checkpoint(CheckpointManager(pickles="refuse"), key="k")
    def work(agent: Agent) -> None: ...

    with pytest.raises(StateError, match=r"agent\.client"):
        work(holder(client=Client()))


def test_pickle_format_implies_allow_and_contradicts_refuse(tmp_path: Path) -> None:
    for word in ("allow", "warn"):
        manager = CheckpointManager(fmt="pickle", pickles=word)  # type: ignore[arg-type]
        manager.save("k", {"x": Client()})
    with pytest.raises(InvalidInputError, match=r'fmt="pickle".*pickles="refuse"'):
        CheckpointManager(backend="file", path=tmp_path / "s", fmt="pickle", pickles="refuse")
    assert not (tmp_path / "s").exists()


def test_other_words_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="pickles must be 'allow', 'warn' or 'refuse'"):
        CheckpointManager(pickles="never")  # type: ignore[arg-type]


def test_loading_needs_the_seal_whatever_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "s", pickles="allow") as manager:
        manager.save("k", {"x": Client()})
    with CheckpointManager(backend="sqlite", path=tmp_path / "s", pickles="refuse") as manager:
        assert manager.state_dict("k")["x"] == Client()
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "another secret, quite another one")
        with pytest.raises(StateError, match="without a valid signature"):
            manager.state_dict("k")


def test_a_warning_leaves_no_reference_to_the_class() -> None:
    import gc
    import weakref

    cls = type("Passing", (Client,), {"__reduce__": lambda self: (Client, ())})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CheckpointManager().save("k", {"x": cls()})
    gone = weakref.ref(cls)
    del cls
    gc.collect()
    assert gone() is None
