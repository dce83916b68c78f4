"""A call within which another one waits for an approval, and the ends of the program meanwhile."""

from contextlib import suppress

import pytest

from agent_checkpoint import Approvals, Session, StorageError, Suspended, tool
from agent_checkpoint.session.rollback.rollback import Rollback
from tests.agents import Agent
from tests.unit.session.loop.replies import USER, reply, results
from tests.unit.session.stores import Killed, killed

A = "anthropic"
CALLS = reply(A, ("c1", "release", {"version": "1"}))
_sent = []


@pytest.fixture(autouse=True)
def nothing_sent():
    _sent.clear()


@tool(effect="irreversible", approve=True)
def announce(version):
    _sent.append(version)
    return f"announced {version}"


class Releases:
    """A tool that changes state and files before it calls a tool that waits."""

    def __init__(self, place, path):
        self.place, self.path = place, path
        self.begun = 0
        self.swallows = False

    def open(self, store, how=Session):
        self.agent = Agent()
        options = {"provider": A, "workspace": self.place, "on_drift": "restore"}
        return how("job", store=store, agent=None if self.path else self.agent, **options)

    def release(self, version):
        self.begun += 1
        self.agent.memory.append(version)
        with (self.place / "released").open("a") as file:
            file.write(version)
        try:
            return announce(version)
        except Suspended:
            if self.swallows:
                return "waits"
            raise

    def run(self, session):
        """Run the calls, of the session or of a sub-agent."""
        if not self.path:
            return self._loop(session)
        with session.subagent(self.path, agent=self.agent) as child:
            return self._loop(child)

    def _loop(self, agent):
        if not agent.messages:
            agent.messages.append(USER[A])
            return agent.run_tools(CALLS, [self.release])
        return agent.run_tools(agent.messages, [self.release])

    @property
    def changes(self):
        file = self.place / "released"
        return len(self.agent.memory), file.read_text() if file.exists() else ""


@pytest.fixture(params=["", "child"])
def job(request, place):
    return Releases(place, request.param)


def answer(store):
    with Approvals(store) as approvals:
        (request,) = approvals.pending()
        approvals.approve(request.id)


@pytest.mark.parametrize("how", [Killed, KeyboardInterrupt])
@pytest.mark.parametrize("step", ["_save_safety", "_apply", "_complete"])
def test_the_program_ends_while_the_call_is_rolled_back(memory, job, monkeypatch, how, step):
    real = getattr(Rollback, step)

    def end(*args):
        if step == "_save_safety":
            real(*args)
        raise how

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Rollback, step, end)
        opened = job.open(memory, killed) if how is Killed else job.open(memory)
        with opened as session:
            job.run(session)
    with job.open(memory) as session, pytest.raises(Suspended):
        job.run(session)
    assert job.changes == (0, "")
    answer(memory)
    with job.open(memory) as session:
        job.run(session)
    assert job.changes == (1, "1")
    assert _sent == ["1"]


def test_a_restart_without_an_answer_does_not_begin_the_call(memory, job):
    for _ in range(3):
        with job.open(memory) as session, pytest.raises(Suspended):
            job.run(session)
        assert job.begun == 1
    answer(memory)
    with job.open(memory) as session:
        (message,) = job.run(session)
        assert results([message]) == [("c1", "announced 1")]
    assert (job.begun, _sent) == (2, ["1"])


def test_a_tool_that_goes_on_without_the_answer_has_ended(memory, place):
    job = Releases(place, "")
    job.swallows = True
    with job.open(memory) as session:
        job.run(session)
        assert session._state.record.torn_calls == []
    with job.open(memory) as session:
        assert job.changes == (1, "1")
        assert results(session.messages) == [("c1", "waits")]


def test_a_call_that_could_not_be_rolled_back_and_has_ended_is_not_rolled_back_later(
    memory, place, monkeypatch
):
    def refuse(*_, **__):
        raise StorageError("disk full")

    job = Releases(place, "")
    with job.open(memory) as session:
        session.messages.append(USER[A])
        with monkeypatch.context() as patch, pytest.raises(Suspended):
            patch.setattr(Rollback, "run", refuse)
            session.run_tools(CALLS, [job.release])
        answer(memory)
        session.run_tools(session.messages, [job.release])
        assert session._state.record.torn_calls == []
        assert "was interrupted" in results(session.messages)[0][1]
    with job.open(memory):
        assert job.changes == (1, "1")


def test_a_child_that_starts_again_has_no_call_to_roll_back(memory, place, monkeypatch):
    def kill(*_):
        raise Killed

    job = Releases(place, "child")
    with monkeypatch.context() as patch:
        patch.setattr(Rollback, "_apply", kill)
        with job.open(memory, killed) as session:
            job.run(session)
    with job.open(memory) as session, session.subagent("child", agent=job.agent, restart=True):
        job.agent.memory.append("new")
        session.save()
        with pytest.raises(KeyboardInterrupt):
            raise KeyboardInterrupt
    with job.open(memory) as session, session.subagent("child", agent=job.agent):
        assert job.agent.memory == ["new"]


def test_a_fork_of_a_part_of_a_call_goes_back_too(memory, place, monkeypatch):
    def kill(*_):
        raise Killed

    job = Releases(place, "")
    with monkeypatch.context() as patch:
        patch.setattr(Rollback, "_apply", kill)
        with job.open(memory, killed) as session:
            job.run(session)
    memory.fork("job", "copy")
    with Session(
        "copy", store=memory, agent=Agent(), provider=A, workspace=place, rebind=True
    ) as copy:
        assert copy.agent.memory == []
    assert not (place / "released").exists()
