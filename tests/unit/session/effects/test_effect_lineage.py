"""Effects of other sessions: of forks, and of who held the session before."""

from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    Session,
    tool,
)
from agent_checkpoint.session.current_session import as_current
from tests.unit.session.stores import Killed, killed, ledger_of, statuses


class Outside:
    def __init__(self, kind: str = "reversible", **options: Any) -> None:
        self.done: list[str] = []
        self.keys: list[str] = []
        undo = (lambda to: self.done.remove(to)) if kind == "reversible" else None
        options.setdefault("key", lambda to, **_: to)

        @tool(effect=kind, undo=undo, name="mail", **options)
        def mail(to: str, body: str = "", *, effect: Any) -> str:
            self.keys.append(effect.key)
            self.done.append(to)
            return f"mail {len(self.done)}"

        self.mail = mail


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["idempotent", "reversible", "irreversible"])
def test_what_the_parent_did_before_the_fork_is_given_back(
    manager: CheckpointManager, kind: str
) -> None:
    outside = Outside(kind)
    with Session("work", store=manager):
        outside.mail("ann")
    manager.fork("work", "branch")
    with Session("branch", store=manager) as branch:
        assert outside.mail("ann") == "mail 1"
        with pytest.raises(EffectConflictError, match="other"):
            outside.mail("ann", "another text")
        assert [effect.session for effect in branch.effects] == ["work"]
    assert outside.done == ["ann"]


@pytest.mark.parametrize("kind", ["reversible", "irreversible"])
def test_what_the_parent_did_after_it_is_in_the_way(manager: CheckpointManager, kind: str) -> None:
    outside = Outside(kind)
    with Session("work", store=manager) as session:
        point = session.save()
        outside.mail("ann")
    manager.fork("work", "branch", checkpoint_id=point)
    with Session("branch", store=manager) as branch:
        with pytest.raises(EffectConflictError, match=r"mail \[.*related session 'work'"):
            outside.mail("ann")
        assert branch.effects == []
    assert outside.done == ["ann"]


def test_what_a_fork_did_is_in_the_way_of_its_parent_and_of_its_sibling(
    manager: CheckpointManager,
) -> None:
    outside = Outside()
    with Session("work", store=manager):
        pass
    manager.fork("work", "one")
    manager.fork("work", "two")
    with Session("one", store=manager):
        assert outside.mail("ann") == "mail 1"
        assert outside.mail("ann") == "mail 1"
    for key in ("two", "work"):
        with Session(key, store=manager) as session:
            with pytest.raises(EffectConflictError, match="'one'"):
                outside.mail("ann")
            assert outside.mail(key).startswith("mail")
            assert session.notices == []
    assert outside.done == ["ann", "two", "work"]


def test_without_a_key_siblings_that_do_the_same_meet_too(memory: CheckpointManager) -> None:
    outside = Outside(key=None)
    with Session("work", store=memory):
        outside.mail("ann")
    memory.fork("work", "one")
    memory.fork("work", "two")
    with Session("one", store=memory):
        assert outside.mail("ann") == "mail 2"  # it knows of the first, and means a second
    with Session("two", store=memory), pytest.raises(EffectConflictError):
        outside.mail("ann")


def test_an_idempotent_one_is_made_by_each_with_one_key(manager: CheckpointManager) -> None:
    outside = Outside("idempotent")
    with Session("work", store=manager):
        pass
    manager.fork("work", "branch")
    with Session("branch", store=manager):
        assert outside.mail("ann") == "mail 1"
    with Session("work", store=manager):
        assert outside.mail("ann") == "mail 2"
        assert outside.mail("ann") == "mail 2"
    assert len(set(outside.keys)) == 1


def test_an_idempotent_one_with_other_arguments_is_in_the_way(memory: CheckpointManager) -> None:
    outside = Outside("idempotent")
    with Session("work", store=memory):
        pass
    memory.fork("work", "branch")
    with Session("branch", store=memory):
        outside.mail("ann", "one")
    with Session("work", store=memory), pytest.raises(EffectConflictError):
        outside.mail("ann", "two")


def test_what_a_fork_has_undone_is_not_in_the_way(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory):
        pass
    memory.fork("work", "branch")
    with Session("branch", store=memory) as branch:
        start = branch.save()
        outside.mail("ann")
        branch.rollback(to=start, effects="compensate")
    with Session("work", store=memory):
        assert outside.mail("ann") == "mail 1"
    assert len(set(outside.keys)) == 2


def test_a_fork_adds_nothing_that_cannot_be_undone(manager: CheckpointManager) -> None:
    outside = Outside("irreversible")
    with Session("work", store=manager):
        pass
    manager.fork("work", "branch")
    for _ in range(2):
        with Session("branch", store=manager) as branch:
            with pytest.raises(EffectError, match=r"'branch' is a fork.*mail\."):
                outside.mail("ann")
            assert statuses(branch) == []
    with Session("work", store=manager):
        assert outside.mail("ann") == "mail 1"


def test_a_fork_of_a_fork_is_one_too(memory: CheckpointManager) -> None:
    outside, inside = Outside("irreversible"), Outside("reversible")
    with Session("work", store=memory):
        inside.mail("ann")
    memory.fork("work", "one")
    with Session("one", store=memory):
        inside.mail("bob")
    memory.fork("one", "two")
    with Session("two", store=memory):
        assert (inside.mail("ann"), inside.mail("bob")) == ("mail 1", "mail 2")
        with pytest.raises(EffectError, match="fork"):
            outside.mail("eve")
    assert inside.done == ["ann", "bob"]


def test_an_unknown_outcome_of_a_relative_is_in_the_way(memory: CheckpointManager) -> None:
    @tool(effect="irreversible", key=lambda: 1)
    def act() -> None:
        raise Killed

    with Session("work", store=memory):
        pass
    memory.fork("work", "branch")
    with killed("work", memory):
        act()
    with Session("branch", store=memory), pytest.raises(EffectConflictError, match="started"):
        act()


def test_a_fork_does_not_ask_about_what_its_parent_is_doing(memory: CheckpointManager) -> None:
    """The answer would be that it has not happened, just before it does."""
    done: list[int] = []
    forked: list[Any] = []

    @tool(effect="reversible", undo=print, key=lambda: 1, verify=lambda: "seen" if done else None)
    def act() -> str:
        if not forked:
            forked.append(None)
            memory.fork("work", "branch", checkpoint_id=session.save())
            with Session("branch", store=memory) as branch, pytest.raises(EffectUnknownError):
                forked.append(branch.notices)
                act()
        done.append(1)
        return "done"

    with Session("work", store=memory) as session:
        assert act() == "done"
        assert statuses(session) == ["committed"]
    assert done == [1]
    assert "outcome unknown" in forked[1][0]


def test_sessions_that_are_no_relatives_do_not_meet(memory: CheckpointManager) -> None:
    outside = Outside("irreversible")
    for key in ("one", "two"):
        with Session(key, store=memory):
            assert outside.mail("ann").startswith("mail")
    assert outside.done == ["ann", "ann"]
    assert len(set(outside.keys)) == 2


# -- epochs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["idempotent", "reversible", "irreversible"])
def test_a_zombie_saves_nothing_and_starts_nothing(manager: CheckpointManager, kind: str) -> None:
    outside = Outside(kind)
    zombie = Session("work", store=manager)
    with Session("work", store=manager) as session:
        with (
            as_current(zombie._tools),
            pytest.raises(ConflictError, match="opened again elsewhere"),
        ):
            outside.mail("ann")
        with pytest.raises(ConflictError, match="opened again elsewhere"):
            zombie.save()
        assert statuses(session) == []
        assert outside.mail("ann") == "mail 1"
    assert outside.done == ["ann"]
    zombie.close()


def test_a_zombie_does_not_repeat_an_idempotent_effect(memory: CheckpointManager) -> None:
    calls: list[int] = []

    @tool(effect="idempotent", key=lambda: 1)
    def act() -> None:
        calls.append(1)
        raise TimeoutError

    zombie = Session("work", store=memory)
    with as_current(zombie._tools), pytest.raises(TimeoutError):
        act()
    with Session("work", store=memory), as_current(zombie._tools), pytest.raises(ConflictError):
        act()
    assert calls == [1]
    zombie.close()


def test_a_zombie_asks_for_no_approval_and_uses_none(memory: CheckpointManager) -> None:
    @tool(approve=True)
    def act() -> None:
        raise AssertionError("not agreed to")

    zombie = Session("work", store=memory)
    with Session("work", store=memory) as session, as_current(zombie._tools):
        with pytest.raises(ConflictError):
            act()
        assert session.approvals.pending() == []
    zombie.close()


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_what_a_zombie_had_begun_it_may_still_tell(manager: CheckpointManager, how: str) -> None:
    later: list[Session] = []

    @tool(effect="irreversible", key=lambda: 1)
    def act(effect: Any) -> str:
        if later:
            return "made again"
        later.append(Session("work", store=manager))
        with as_current(later[0]._tools), pytest.raises(EffectUnknownError):
            act()
        if how == "raises":
            effect.not_done()
            raise TimeoutError
        return "made by the zombie"

    zombie = Session("work", store=manager)
    error = ConflictError if how == "returns" else TimeoutError
    with as_current(zombie._tools), pytest.raises(error):
        act()
    (session,) = later
    assert statuses(session) == ["committed" if how == "returns" else "failed"]
    with session:
        assert act() == ("made by the zombie" if how == "returns" else "made again")
    zombie.close()


def test_each_opening_has_a_higher_epoch(manager: CheckpointManager) -> None:
    numbers = []
    for _ in range(3):
        with Session("work", store=manager) as session:
            numbers.append(ledger_of(session).state.epochs["work"].number)
    assert numbers == sorted(set(numbers))


def test_forks_do_not_stop_each_other(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        memory.fork("work", "branch")
        with Session("branch", store=memory):
            outside.mail("ann")
        outside.mail("bob")
        session.save()
    assert outside.done == ["ann", "bob"]
