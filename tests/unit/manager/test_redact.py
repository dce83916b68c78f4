"""`redact=` of a manager: what is stored has placeholders, and live objects keep their values."""

import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

from agent_checkpoint import CheckpointManager, Log, register_type
from agent_checkpoint.core.codec import redacted_tree
from agent_checkpoint.errors import InvalidInputError, StateError
from tests.agents import Agent
from tests.secrets_of_each_kind import SECRETS

TOKEN = SECRETS["github-token"]
GONE = "[redacted:github-token]"


@pytest.fixture(params=["memory", "file", "sqlite"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    path = None if request.param == "memory" else tmp_path / "store"
    with CheckpointManager(
        backend=request.param, path=path, redact="secrets", pickles="allow"
    ) as opened:
        yield opened


@register_type
@dataclass
class Jotting:
    text: str


class Opaque:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


def through(manager: CheckpointManager, value: Any) -> Any:
    manager.save("k", {"value": value, "n": 0})
    return manager.state_dict("k")["value"]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (TOKEN, GONE),
        (f"a {TOKEN} b {TOKEN}", f"a {GONE} b {GONE}"),
        ([TOKEN, ["x", TOKEN]], [GONE, ["x", GONE]]),
        ((TOKEN,), (GONE,)),
        ({TOKEN}, {GONE}),
        (deque([TOKEN], 3), deque([GONE], 3)),
        ({"a": {"b": TOKEN}}, {"a": {"b": GONE}}),
        ({TOKEN: 1}, {GONE: 1}),
        ({(1, TOKEN): TOKEN}, {(1, GONE): GONE}),
        (OrderedDict([(TOKEN, 1)]), OrderedDict([(GONE, 1)])),
        (Counter([TOKEN]), Counter([GONE])),
        (defaultdict(list, {TOKEN: [TOKEN]}), defaultdict(list, {GONE: [GONE]})),
        (TOKEN.encode(), GONE.encode()),
        (b"\xff\0" + TOKEN.encode() + b"\xfe" * 2000, b"\xff\0" + GONE.encode() + b"\xfe" * 2000),
        (bytearray(TOKEN.encode()), bytearray(GONE.encode())),
        (Path("/home") / TOKEN, Path("/home") / GONE),
        (f"\ud800 {TOKEN}", f"\ud800 {GONE}"),
        (f"é {TOKEN}", f"é {GONE}"),
        (Jotting(TOKEN), Jotting(GONE)),
        ({"$tuple": TOKEN}, {"$tuple": GONE}),
        ({"$x": TOKEN, TOKEN: {"$y": TOKEN}}, {"$x": GONE, GONE: {"$y": GONE}}),
        ("x" * 100_000 + TOKEN, "x" * 100_000 + GONE),
        ({"password": "hunter2"}, {"password": "[redacted:assignment]"}),
        ([1, 2.5, None, True, 2**70, "plain"], [1, 2.5, None, True, 2**70, "plain"]),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_every_kind_of_value(manager: CheckpointManager, value: Any, stored: Any) -> None:
    before = repr(value)
    found = through(manager, value)
    assert found == stored
    assert type(found) is type(stored)
    assert repr(value) == before  # the live value is untouched


def test_agents_labels_and_tags(manager: CheckpointManager) -> None:
    agent, inner = Agent(), Agent()
    inner.memory = [TOKEN]
    agent.memory = [TOKEN, inner, Log([{"content": TOKEN}])]
    manager.save("k", agent, label=f"use {TOKEN}", tags=[TOKEN], metrics={"score": 1.0})

    fresh = Agent()
    manager.load("k", fresh)
    assert fresh.memory[0] == GONE
    assert fresh.memory[1].memory == [GONE]
    assert list(fresh.memory[2]) == [{"content": GONE}]
    (row,) = manager.history("k")
    assert (row["label"], row["tags"], row["redacted"]) == (f"use {GONE}", [GONE], 5)
    assert agent.memory[0] == inner.memory[0] == agent.memory[2][0]["content"] == TOKEN


def test_logs_in_logs(manager: CheckpointManager) -> None:
    assert through(manager, Log([Log([Log([TOKEN])])]))[0][0][0] == GONE


def test_keys_that_become_equal_lose_no_value(manager: CheckpointManager) -> None:
    other = TOKEN[:-1] + "Z"
    assert through(manager, {TOKEN: 1, other: 2, "x": 3}) == {GONE: 1, f"{GONE} (2)": 2, "x": 3}
    assert through(manager, OrderedDict({TOKEN: 1, other: 2})) == {GONE: 1, f"{GONE} (2)": 2}
    with pytest.raises(StateError, match=r"agent\.value has keys that are equal after redaction"):
        through(manager, {(TOKEN,): 1, (other,): 2})


@pytest.mark.parametrize(
    "value",
    [
        Opaque(key=TOKEN),
        Opaque(key="x" * 40 + " " + TOKEN),  # preceded by any length byte
        Opaque(inner=[Opaque(data=TOKEN.encode())]),
        Opaque(password="hunter2"),
        numpy.array([TOKEN, "x"]),
        numpy.array([TOKEN.encode(), b"x"]),
        numpy.frombuffer(TOKEN.encode(), "u1"),
        numpy.array([(1, TOKEN)], [("n", "i4"), ("t", "U60")]),
    ],
    ids=["string", "long", "bytes", "name", "texts", "bytes array", "u1", "fields"],
)
def test_a_pickle_or_an_array_with_a_secret_is_refused(
    manager: CheckpointManager, value: Any
) -> None:
    with pytest.raises(StateError, match=r"agent\.value\[0\] is an? (pickle|array)") as caught:
        through(manager, [value])
    assert "ghp_" not in str(caught.value)
    with pytest.raises(StateError, match=r"agent\.value\[1\]\[0\] is an? (pickle|array)"):
        through(manager, Log([1, [value]]))
    assert manager.list_keys() == []


def test_pickles_and_arrays_without_a_secret_are_saved(manager: CheckpointManager) -> None:
    assert through(manager, Opaque(key="plain")).key == "plain"
    for value in (numpy.arange(9), numpy.array(["a", "b"]), numpy.zeros(3, [("t", "U4")])):
        assert (through(manager, value) == value).all()


def test_names_cannot_be_redacted(manager: CheckpointManager) -> None:
    for save in (
        lambda: manager.save(TOKEN, {"x": 1}),
        lambda: manager.save("k", {TOKEN: Agent()}),
        lambda: manager.save("k", {"x": 1}, metrics={TOKEN: 1}),
    ):
        with pytest.raises(InvalidInputError, match="redact= matches") as caught:
            save()
        assert TOKEN not in str(caught.value)
    assert manager.list_keys() == []
    manager.save("k", {"x": 1})
    with pytest.raises(InvalidInputError, match="redact= matches"):
        manager.fork("k", TOKEN)


def test_a_log_is_redacted_only_where_it_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    original = redacted_tree.redact_tree

    def counted(tree: Any, redactor: Any) -> Any:
        if "text" in tree:  # an item, not the part
            seen.append(tree)
        return original(tree, redactor)

    monkeypatch.setattr(redacted_tree, "redact_tree", counted)
    log: Log[Any] = Log({"n": n, "text": f"{n} {TOKEN}"} for n in range(2000))
    with CheckpointManager(backend="sqlite", path=tmp_path / "s", redact="secrets") as manager:
        manager.save("k", {"log": log})
        assert len(seen) == 2000
        for n in range(5):
            seen.clear()
            log.append({"n": n, "text": TOKEN})
            manager.save("k", {"log": log})
            assert len(seen) <= 40  # the new item, and those of the leaf that it joins
            assert manager.history("k", 1)[0]["redacted"] <= 40
        assert {item["text"].split()[-1] for item in manager.state_dict("k")["log"]} == {GONE}
    assert log[0]["text"] == f"0 {TOKEN}"


def test_a_log_that_was_saved_elsewhere_without_redaction_is_written_again() -> None:
    plain, log = CheckpointManager(), Log([TOKEN] * 3)
    plain.save("k", {"n": 0, "log": log})
    from agent_checkpoint.manager.manager import with_policy

    redacting = with_policy(plain, None, "secrets")
    redacting.save("k", {"n": 0, "log": log})
    assert list(plain.state_dict("k")["log"]) == [GONE] * 3


def test_counts_are_told(manager: CheckpointManager) -> None:
    manager.save("k", {"a": TOKEN, "n": 0, "log": Log([TOKEN, TOKEN])})
    manager.save("k", {"a": "plain"})
    manager.save("l", {"b": [TOKEN, f"{TOKEN} {TOKEN}"]})
    assert [row.get("redacted", 0) for row in manager.history("k")] == [0, 3]
    found = manager.stats()
    assert found["redacted"] == 6
    assert [found["keys"][key]["redacted"] for key in ("k", "l")] == [3, 3]
    manager.fork("l", "m")
    assert manager.history("m")[0]["redacted"] == 3


def test_patterns_and_functions() -> None:
    manager = CheckpointManager(
        redact=[re.compile("bob", re.I), lambda text: text.replace("Ann", "A.")]
    )
    assert through(manager, ["Bob", "Ann"]) == ["[redacted]", "A."]


def test_a_function_that_fails_saves_nothing() -> None:
    def fail(text: str) -> str:
        raise ValueError(text)

    manager = CheckpointManager(redact=fail)
    with pytest.raises(StateError, match=r"function of redact= failed \(ValueError\)") as caught:
        manager.save("k", {"x": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert manager.list_keys() == []


def test_numbers_dates_and_type_names_are_no_text() -> None:
    from datetime import datetime, timezone
    from decimal import Decimal
    from uuid import UUID

    manager = CheckpointManager(redact=[r"\d+", "Agent"])
    value = [2**80, Decimal("1.5"), datetime(2026, 1, 2, tzinfo=timezone.utc), UUID(int=7), 0.1]
    agent = Agent()
    agent.memory = [*value, "7"]
    manager.save("k", agent)
    fresh = Agent()
    manager.load("k", fresh)
    assert fresh.memory == [*value, "[redacted]"]


def test_the_pickle_format_cannot_be_redacted(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r'fmt="pickle".*redact='):
        CheckpointManager(backend="file", path=tmp_path / "s", fmt="pickle", redact="secrets")
    assert not (tmp_path / "s").exists()


def test_without_the_option_nothing_is_redacted(tmp_path: Path) -> None:
    with CheckpointManager(backend="file", path=tmp_path / "s") as manager:
        assert through(manager, TOKEN) == TOKEN
        assert "redacted" not in manager.history("k")[0]
    assert b"redacted" not in (tmp_path / "s/k/1.json").read_bytes()


def test_background_saves_and_rollback_contexts(manager: CheckpointManager) -> None:
    manager.save_in_background("k", {"x": TOKEN, "n": 0, "log": Log([TOKEN])}).result()
    assert manager.state_dict("k")["x"] == manager.state_dict("k")["log"][0] == GONE
    agent = Agent()
    agent.memory = [TOKEN]
    with pytest.raises(ZeroDivisionError), manager.rollback_context("k", agent):
        agent.memory.append(1 / 0)
    assert agent.memory == [GONE]  # what a restore brings back
