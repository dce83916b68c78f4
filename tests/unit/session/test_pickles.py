"""`pickles=` of a session: the state, the conversation, the calls and the results of effects."""

import asyncio
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError, Session, StateError, tool
from agent_checkpoint.session.session import state_of
from tests.agents import Agent


class Client:
    """Nothing that JSON could hold."""


class Holder(Agent):
    def __init__(self, client: Any = None) -> None:
        super().__init__()
        self.client = client


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_checkpoint.core.codec.save_policy._warned", WeakSet())


def test_a_session_warns_once_a_class_with_the_path(store: Any) -> None:
    with Session("k", agent=Holder(), store=store) as session:
        session.agent.client = Client()
        with pytest.warns(UserWarning, match=r"agent\.client \(.*test_pickles\.Client\)") as caught:
            session.save()
        assert [warning.filename for warning in caught] == [__file__]
        session.messages.append({"role": "user", "content": Client()})


def test_messages_and_tasks_count(memory: CheckpointManager) -> None:
    with Session("k", store=memory, pickles="refuse") as session:
        session.messages.append({"role": "user", "content": [Client()]})
        with pytest.raises(StateError, match=r"messages\[0\]\.content\[0\].*would be pickled"):
            session.save()
        session.messages.truncate(0)
        (task,) = list(session.tasks(["one"]))
        task.result = [Client()]
        with pytest.raises(StateError, match=r"tasks.*would be pickled"):
            session.save()
        task.result = None


def test_calls_describe_what_would_be_pickled_and_never_warn(memory: CheckpointManager) -> None:
    @tool
    def ask(client: Any) -> Any:
        return client

    with Session("k", store=memory, pickles="refuse") as session:
        assert isinstance(ask(Client()), Client)
        assert session.calls[0]["result"].startswith("<Client:")


def test_an_async_save_warns_on_the_side_of_the_caller(tmp_path: Path) -> None:
    async def main() -> None:
        async with Session("k", store=tmp_path / "s") as session:
            session.messages.append(Client())
            with pytest.warns(UserWarning, match=r"messages\[0\]") as caught:
                await session.asave()
            assert [warning.filename for warning in caught] == [__file__]

    asyncio.run(main())


def test_a_session_has_the_policy_of_its_manager_unless_told_otherwise() -> None:
    manager = CheckpointManager(pickles="refuse")
    with Session("a", agent=Holder(1), store=manager) as session:
        assert session.manager is manager
        session.agent.client = Client()
        with pytest.raises(StateError, match=r"agent\.client"):
            session.save()
        session.agent.client = 1
    with Session("b", agent=Holder(Client()), store=manager, pickles="allow") as session:
        session.save()
        assert session.manager.list_keys() == manager.list_keys() == ["a", "b"]
    with pytest.raises(StateError, match=r"agent\.x"):
        manager.save("c", {"x": Client()})


def test_a_session_on_a_manager_of_pickles(tmp_path: Path) -> None:
    manager = CheckpointManager(fmt="pickle")
    with Session("k", agent=Holder(Client()), store=manager) as session:
        session.save()
    with pytest.raises(InvalidInputError, match=r"refuses them"):
        Session("k", store=manager, pickles="refuse")
    with pytest.raises(InvalidInputError, match="pickles must be"):
        Session("k", store=tmp_path / "s", pickles="never")  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()


def test_a_fork_has_the_policy_of_its_session(memory: CheckpointManager) -> None:
    with Session("k", agent=Holder(), store=memory, pickles="refuse") as session:
        branch = session.fork("b")
        branch.agent.client = Client()
        with pytest.raises(StateError, match=r"agent\.client"):
            branch.save()
        branch.agent.client = None


def test_a_result_that_is_refused_is_described_for_the_effect_has_happened(
    memory: CheckpointManager,
) -> None:
    @tool(effect="irreversible", name="send result")
    def send() -> Client:
        return Client()

    with Session("k", store=memory, pickles="refuse") as session:
        send()
        (effect,) = session.effects
        assert (effect.status, effect.described) == ("committed", True)

    with Session("w", store=memory) as session:
        with pytest.warns(UserWarning, match=r"send result's result \(.*Client\)"):
            send()
        (effect,) = session.effects
        assert (effect.status, effect.described) == ("committed", False)


def test_a_warning_that_is_an_error_never_hides_that_an_effect_happened(
    memory: CheckpointManager,
) -> None:
    @tool(effect="irreversible", name="send under errors")
    def send() -> Client:
        return Client()

    with Session("k", store=memory) as session:
        send()
        (effect,) = session.effects
        assert (effect.status, effect.described) == ("committed", True)


def test_a_resolved_result_counts(memory: CheckpointManager) -> None:
    class Lost(BaseException):
        pass

    @tool(effect="irreversible", name="send and die")
    def send() -> None:
        raise Lost

    with Session("k", store=memory, pickles="refuse") as session:
        with pytest.raises(Lost):
            send()
        (effect,) = session.effects
        with pytest.raises(InvalidInputError, match="would be pickled"):
            session.resolve(effect.id, happened=True, result=Client())
        session.resolve(effect.id, happened=True, result="sent")


def test_trials_in_other_processes_get_the_word(tmp_path: Path) -> None:
    from agent_checkpoint.session.branch.session_fork import ForkPoint
    from agent_checkpoint.session.branch.trial import Trial
    from agent_checkpoint.session.explore.explore import _WorkerTrials

    with Session("k", store=tmp_path / "s", pickles="refuse") as session:
        point = ForkPoint(state_of(session), at=None, label="x", effects="refuse", agent=None)
        with _WorkerTrials(point, len, None, is_local=False) as trials:
            job = trials.job(Trial({}, 0, 0, "t"), b"")
    assert job.spec["pickles"] == "refuse"
