"""Saving and loading: ids, heads, parts, plain dicts, atomicity."""

import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    ConflictError,
    FileBackend,
    InvalidInputError,
    MemoryBackend,
    NotFoundError,
    StateError,
    StateMismatchError,
)
from tests.agents import Agent, Planner, TorchLike


def test_an_id_tells_key_time_and_number(manager: CheckpointManager) -> None:
    first, second = manager.save("session", Agent()), manager.save("session", Agent())
    assert re.fullmatch(r"session_\d{19}-1", first)
    assert re.fullmatch(r"session_\d{19}-2", second)


def test_load_takes_the_latest(manager: CheckpointManager) -> None:
    manager.save("k", Agent(1))
    manager.save("k", Agent(2))
    agent = Agent()
    result = manager.load("k", agent)
    assert agent.count == 2
    assert (result.missing_keys, result.unexpected_keys) == ([], [])


@pytest.mark.parametrize("form", ["{id}", "k~2", "k@1"])
def test_an_older_checkpoint_by_id_and_short_form(manager: CheckpointManager, form: str) -> None:
    ids = [manager.save("k", Agent(count)) for count in (1, 2, 3)]
    agent = Agent()
    manager.load("k", agent, checkpoint_id=form.format(id=ids[0]))
    assert agent.count == 1


def test_a_short_form_works_where_the_key_stands(manager: CheckpointManager) -> None:
    for count in (1, 2):
        manager.save("k", Agent(count))
    assert manager.state_dict("k~1")["count"] == 1


def test_an_existing_key_wins_over_a_short_form(manager: CheckpointManager) -> None:
    for count in (1, 2):
        manager.save("k", Agent(count))
    manager.save("k~1", Agent(42))
    assert manager.state_dict("k~1")["count"] == 42
    with pytest.raises(NotFoundError, match="belongs to the key 'k~1'"):
        manager.state_dict("k", "k~1")


def test_an_id_is_found_though_a_key_has_its_name(manager: CheckpointManager) -> None:
    cid = manager.save("k", Agent(1))
    manager.save(cid, Agent(2))
    assert manager.state_dict("k", cid)["count"] == 1


def test_the_id_of_another_key_is_refused(manager: CheckpointManager) -> None:
    other = manager.save("other", Agent(1))
    manager.save("k", Agent(2))
    agent = Agent(7)
    with pytest.raises(NotFoundError, match="'other', not to 'k'"):
        manager.load("k", agent, checkpoint_id=other)
    assert agent.count == 7


@pytest.mark.parametrize(
    "bad", ["k_123-1", "nope", "k~9", "k@9", "k@0", "k~1~", "_1-1", "x" * 3000]
)
def test_an_unknown_id_is_not_found(manager: CheckpointManager, bad: str) -> None:
    manager.save("k", Agent())
    with pytest.raises(NotFoundError):
        manager.load("k", Agent(), checkpoint_id=bad)


@pytest.mark.parametrize("bad", ["", 3, b"k"])
def test_an_id_that_is_no_text_is_invalid(manager: CheckpointManager, bad: object) -> None:
    manager.save("k", Agent())
    with pytest.raises(InvalidInputError):
        manager.load("k", Agent(), checkpoint_id=bad)  # type: ignore[arg-type]


def test_an_unknown_key_names_what_comes_close(manager: CheckpointManager) -> None:
    manager.save("session_123", Agent())
    with pytest.raises(NotFoundError, match="Did you mean 'session_123'"):
        manager.load("sesion_123", Agent())


@pytest.mark.parametrize(
    "verb",
    [
        lambda m: m.load("nope", Agent()),
        lambda m: m.state_dict("nope"),
        lambda m: m.history("nope"),
        lambda m: m.diff("nope", agent=Agent()),
        lambda m: m.fork("nope", "new"),
        lambda m: m.delete("nope"),
        lambda m: m.delete("nope", "nope@1"),
        lambda m: m.export_archive("nope.ckpt", "nope"),
    ],
)
def test_every_verb_says_that_a_key_is_unknown(manager: CheckpointManager, verb: object) -> None:
    with pytest.raises(NotFoundError, match="nope"):
        verb(manager)  # type: ignore[operator]
    assert manager.list_keys() == []


@pytest.mark.parametrize("subject", [None, 3, "text", [Agent()], Agent, object()])
def test_what_has_no_state_cannot_be_saved(manager: CheckpointManager, subject: object) -> None:
    with pytest.raises(InvalidInputError, match=r"has no state_dict|Agent is a class"):
        manager.save("k", subject)
    assert manager.list_keys() == []


def test_named_parts_are_one_checkpoint(manager: CheckpointManager) -> None:
    planner, agent = Planner(), Agent(5)
    manager.save("k", {"planner": planner, "coder": agent})
    assert manager.history("k")[0]["parts"] == ["planner", "coder"]
    fresh, coder = Planner(), Agent()
    fresh.plan = []
    manager.load("k", {"planner": fresh, "coder": coder})
    assert (fresh.plan, coder.count) == (["think"], 5)
    states = manager.state_dict("k")
    assert states["coder"]["count"] == 5


def test_a_part_can_be_loaded_alone(manager: CheckpointManager) -> None:
    manager.save("k", {"planner": Planner(), "agent": Agent(5)})
    agent = Agent()
    manager.load("k", agent)  # the part that is called agent
    assert agent.count == 5
    result = manager.load("k", {"planner": Planner()})
    assert result["planner"].missing_keys == []


def test_a_missing_part_names_those_that_exist(manager: CheckpointManager) -> None:
    manager.save("k", {"planner": Planner(), "coder": Agent()})
    with pytest.raises(StateMismatchError, match=r"no part 'agent'\. It has .* 'planner', 'coder'"):
        manager.load("k", Agent())


def test_parts_are_loaded_all_or_none(manager: CheckpointManager) -> None:
    manager.save("k", {"a": Agent(1), "b": TorchLike()})
    agent, module = Agent(7), TorchLike()
    agent._late = 1
    module.weights = {"other": [1.0]}
    with pytest.raises(StateError, match="b rejected the state"):
        manager.load("k", {"a": agent, "b": module})
    assert agent.count == 7
    assert module.weights == {"other": [1.0]}


def test_a_plain_dict_is_a_state(manager: CheckpointManager) -> None:
    manager.save("k", {"x": 1, "agents": [Agent(3)]})
    assert manager.state_dict("k")["x"] == 1
    target = {"old": True}
    manager.load("k", target)
    assert target["x"] == 1
    assert "old" not in target


def test_an_empty_dict_is_a_state(manager: CheckpointManager) -> None:
    manager.save("k", {})
    assert manager.state_dict("k") == {}


def test_a_plain_dict_can_be_loaded_into_an_agent(manager: CheckpointManager) -> None:
    manager.save("k", {"count": 9, "bogus": 1})
    agent = Agent()
    result = manager.load("k", agent)
    assert agent.count == 9
    assert result.unexpected_keys == ["bogus"]
    assert not hasattr(agent, "bogus")


def test_a_foreign_stateful_is_saved_as_it_is(manager: CheckpointManager) -> None:
    module = TorchLike()
    module.weights["w"] = [1.5, -2.0]
    manager.save("k", module)
    module.weights["w"][0] = 99.0  # its state_dict() gives live values away
    fresh = TorchLike()
    assert manager.load("k", fresh) == "loaded"
    assert fresh.weights == {"w": [1.5, -2.0]}


def test_strict_is_passed_on(manager: CheckpointManager) -> None:
    manager.save("k", {"count": 1, "bogus": 2})
    agent = Agent(7)
    with pytest.raises(StateMismatchError, match=r"lacks memory; .*unexpected bogus"):
        manager.load("k", agent, strict=True)
    assert agent.count == 7


def test_a_failed_save_leaves_everything_as_it_was(manager: CheckpointManager) -> None:
    agent = Agent(1)
    cid = manager.save("k", agent)
    agent.memory.append(lambda: None)
    with pytest.raises(StateError, match=r"agent\.memory\[0\]"):
        manager.save("k", agent)
    assert [row["id"] for row in manager.history("k")] == [cid]
    assert len(agent.memory) == 1


def test_label_tags_and_metrics_are_kept(manager: CheckpointManager) -> None:
    manager.save("k", Agent(), label="ü", tags=["good", "x"], metrics={"score": 1e-9, "n": 3})
    row = manager.history("k")[0]
    assert (row["label"], row["tags"]) == ("ü", ["good", "x"])
    assert row["metrics"] == {"score": 1e-9, "n": 3}


@pytest.mark.parametrize(
    "options",
    [
        {"label": 3},
        {"label": "\ud800"},
        {"tags": "good"},
        {"tags": [1]},
        {"metrics": {"score": "high"}},
        {"metrics": {"score": float("nan")}},
        {"metrics": {1: 2.0}},
    ],
)
def test_bad_descriptions_are_refused(manager: CheckpointManager, options: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInputError):
        manager.save("k", Agent(), **options)
    assert manager.list_keys() == []


def test_an_expected_head_that_is_no_checkpoint_is_told(manager: CheckpointManager) -> None:
    manager.save("k", Agent(1))
    for verb in (manager.save, manager.load):
        with pytest.raises(ConflictError, match=r"an id that save\(\) returned"):
            verb("k", Agent(2), expected_head="nonsense")
        with pytest.raises(
            InvalidInputError, match="A checkpoint id must be a non-empty string, not 5"
        ):
            verb("k", Agent(2), expected_head=5)  # type: ignore[arg-type]


def test_expected_head_keeps_a_history_linear(manager: CheckpointManager) -> None:
    first = manager.save("k", Agent(1))
    second = manager.save("k", Agent(2), expected_head=first)
    with pytest.raises(ConflictError, match="another writer saved"):
        manager.save("k", Agent(3), expected_head=first)
    manager.save("k", Agent(4), expected_head="k")
    assert manager.history("k")[0]["parents"] == [second]


def test_load_notices_a_store_that_was_set_back(manager: CheckpointManager) -> None:
    manager.save("k", Agent(1))
    head = manager.save("k", Agent(2))
    manager.load("k", Agent(), expected_head=head)
    manager.delete("k", head)
    agent = Agent(7)
    with pytest.raises(ConflictError, match="restored from an older copy"):
        manager.load("k", agent, expected_head=head)
    assert agent.count == 7


def test_a_text_enum_is_a_key(manager: CheckpointManager) -> None:
    class Name(str, Enum):
        SESSION = "session"

    cid = manager.save(Name.SESSION, Agent(1))
    assert cid.startswith("session_")
    manager.save(Name.SESSION, Agent(2), expected_head=cid)
    assert manager.state_dict(Name.SESSION, cid)["count"] == 1
    assert len(manager.history(Name.SESSION)) == 2
    assert manager.list_keys() == ["session"]


def test_a_forged_state_sets_no_private_name_method_or_property(
    manager: CheckpointManager,
) -> None:
    class Guarded(Checkpointable):
        limit = 5  # a default of the class, which an instance may have set

        def __init__(self) -> None:
            self.n = 0
            self._admin = False

        def run(self) -> str:
            return "ran"

        @property
        def half(self) -> float:
            return self.n / 2

    forged = Guarded().state_dict()
    forged.update({"_admin": True, "run": "x", "half": 9, "__dict__": {}, "limit": 7, "n": 1})
    manager.save("k", {"agent": _Fixed(forged)})
    agent = Guarded()
    result = manager.load("k", agent)
    assert (agent._admin, agent.run(), agent.half, agent.limit, agent.n) == (
        False,
        "ran",
        0.5,
        7,
        1,
    )
    assert sorted(result.unexpected_keys) == ["__dict__", "_admin", "half", "limit", "run"]


class _Fixed:
    """A Stateful whose state is what it is told."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: m.save("k", Agent(), metrics=[1]),
        lambda m: m.save("k", Agent(), tags=5),
        lambda m: m.history("k", n=10**30),
        lambda m: m.diff("k", checkpoint_id_a=""),
        lambda m: Agent().diff(5),
    ],
)
def test_wrong_types_are_invalid_input(manager: CheckpointManager, wrong: Any) -> None:
    manager.save("k", Agent())
    with pytest.raises(InvalidInputError):
        wrong(manager)


def test_load_never_writes(tmp_path: Path) -> None:
    manager = CheckpointManager(backend="file", path=tmp_path / "store")
    with pytest.raises(NotFoundError):
        manager.load("k", Agent())
    assert list(tmp_path.iterdir()) == []


def test_any_backend_instance_may_be_passed(tmp_path: Path) -> None:
    for backend in (MemoryBackend(), FileBackend(tmp_path / "s")):
        CheckpointManager(backend).save("a", Agent())
        assert CheckpointManager(backend=backend).list_keys() == ["a"]


def test_a_store_url_opens_a_file_store(tmp_path: Path) -> None:
    with CheckpointManager(f"file://{tmp_path}/with%20space") as manager:
        manager.save("a", Agent())
    assert (tmp_path / "with space" / "a" / "1.json").is_file()


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("file",), {}),
        (("nosuch://x",), {}),
        (("file://host/x",), {}),
        ((), {"backend": "nosuch"}),
        ((), {"backend": "file"}),
        ((), {"backend": "memory", "path": "x"}),
        ((), {"path": "x"}),
        ((), {"fmt": "yaml"}),
        ((), {"backend": 3}),
        ((MemoryBackend(),), {"path": "x"}),
        ((), {"backend": MemoryBackend(), "path": "x"}),
    ],
)
def test_stores_that_make_no_sense_are_refused(args: tuple, options: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInputError):
        CheckpointManager(*args, **options)
