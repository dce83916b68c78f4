"""Tools in several threads, and sessions in several threads."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from agent_checkpoint import CheckpointManager, Log, Session, tool
from agent_checkpoint.errors import ConflictError, EffectConflictError, RollbackRefusedError
from agent_checkpoint.session.session_record import read_session_record
from tests.agents import Agent

_done = []


@pytest.fixture(autouse=True)
def nothing_done():
    _done.clear()


@tool
def wait(barrier, number):
    barrier.wait(10)
    return number


@tool
def work(log, number):
    log.append(number)
    return number


@tool(effect="irreversible", key=lambda order: order)
def order_once(order):
    sleep(0.05)
    _done.append(order)
    return f"ordered {order}"


@tool(effect="irreversible")
def order_more(order):
    _done.append(order)
    return len(_done)


def test_tools_in_a_pool_belong_to_the_only_session(store):
    log = Log()
    with Session("job", store=store, parts={"log": log}) as session:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda n: work(log, n), range(40))) == list(range(40))
        assert sorted(log) == list(range(40))
        assert sorted(row["result"] for row in session.calls) == list(range(40))
        newest = session.history(1)[0]
        assert newest["kind"] == "save"
    log = Log()
    with Session("job", store=store, parts={"log": log}) as session:
        assert sorted(log) == list(range(40))
        assert len(session.calls) == 40
        assert session.manager.verify().ok


def test_what_is_saved_meanwhile_says_so_and_steps_pass_over_it(store):
    agent = Agent(1)
    with Session("job", agent=agent, store=store) as session:
        session.save()
        agent.count = 2
        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(wait, barrier, 7)
            while not session._state.in_flight:
                sleep(0.001)
            saved = session.save(label="meanwhile")
            head = session.manager.store.head("job")
            assert (head.id, head.kind) == (saved, "in_flight")
            assert read_session_record(session.manager.store, head).in_flight == ["wait"]
            with pytest.raises(ConflictError, match="running: wait"):
                session.rollback()
            barrier.wait(10)
            assert running.result() == 7
        assert session.history(1)[0]["kind"] == "save"
        assert (
            read_session_record(session.manager.store, session.manager.store.head("job")).in_flight
            == []
        )
        session.rollback()
        assert agent.count == 1
        assert list(session.calls) == []
        session.rollback(to=saved)  # who names it gets it
        assert agent.count == 2


def test_an_effect_that_was_being_made_is_not_known_to_what_was_saved_meanwhile(store):
    go_on = threading.Event()

    @tool(effect="irreversible")
    def order_slowly(order):
        go_on.wait(10)
        _done.append(order)
        return f"ordered {order}"

    with Session("job", store=store) as session:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(order_slowly, "book")
            while not session._state.in_flight:
                sleep(0.001)
            meanwhile = session.save()
            go_on.set()
            assert running.result() == "ordered book"
        assert list(session.calls) != []
        with pytest.raises(RollbackRefusedError) as caught:
            session.rollback(to=meanwhile)
        assert len(caught.value.report.irreversible) == 1
        session.rollback(to=meanwhile, effects="warn")
        assert len(session.notices) == 1
        assert "and is still in place" in session.notices[0]


def test_tools_that_end_in_another_order_are_recorded_as_they_end(store):
    """Each has its own result, whoever is first."""
    gates = [threading.Event() for _ in range(4)]

    @tool
    def gated(number):
        gates[number].wait(10)
        return number

    with Session("job", store=store) as session:
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(gated, number) for number in range(4)]
            while len(session._state.in_flight) < 4:
                sleep(0.001)
            for number in (2, 0, 3, 1):
                gates[number].set()
                assert running[number].result() == number
        assert [row["arguments"]["number"] for row in session.calls] == [2, 0, 3, 1]
        assert [row["result"] for row in session.calls] == [2, 0, 3, 1]
        kinds = [row["kind"] for row in session.history()]
        assert kinds == ["save", "in_flight", "in_flight", "in_flight", "open"]


def test_an_effect_of_one_key_happens_once(store):
    """The second thread finds it being done, or done."""

    def call(_):
        try:
            return order_once("book")
        except EffectConflictError:
            return None

    with Session("job", store=store) as session:
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(call, range(6)))
        assert _done == ["book"]
        assert set(found) <= {None, "ordered book"}
        assert "ordered book" in found
        assert order_once("book") == "ordered book"
        assert len(session.effects) == 1


def test_equal_effects_without_a_key_are_as_many_as_were_asked_for(store):
    with Session("job", store=store) as session:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(order_more, ["x"] * 12))
        assert _done == ["x"] * 12
        assert len(session.effects) == 12
        assert len({effect.identity for effect in session.effects}) == 12


def test_sessions_in_several_threads(tmp_path):
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "store")

    def run(key):
        place = tmp_path / key
        place.mkdir()
        agent, log = Agent(), Log()
        parts = {"log": log}
        with Session(key, agent=agent, workspace=place, store=manager, parts=parts) as session:
            for number in range(10):
                (place / f"{number}").write_text(key)
                work(log, number)
                order_more(f"{key} {number}")
            session.rollback(to=f"{key}~2", effects="warn")
            return list(log), len(session.calls), len(list(place.iterdir()))

    with manager:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(run, "abcd")) == [(list(range(9)), 18, 9)] * 4
        assert sorted(_done) == sorted(f"{key} {n}" for key in "abcd" for n in range(10))
        assert manager.list_keys(prefix="a") == ["a"]
        assert manager.verify().ok


def test_a_thread_without_a_context_has_no_session_if_there_are_two(store):
    """Nobody guesses: who starts threads beside several sessions passes the context on."""
    log = Log()
    one = Session("one", store=store)
    with Session("two", store=one.manager) as two, ThreadPoolExecutor(1) as pool:
        pool.submit(work, log, 1).result()
        assert (len(one.calls), len(two.calls)) == (0, 0)
        pool.submit(contextvars.copy_context().run, work, log, 2).result()
        assert (len(one.calls), len(two.calls)) == (0, 1)
    one.close()


def test_saves_and_tools_of_many_threads_are_all_there(store):
    log = Log()
    with Session("job", store=store, parts={"log": log}) as session:

        def run(number):
            work(log, number)
            session.messages.append(number)
            return session.save(label=f"{number}")

        with ThreadPoolExecutor(6) as pool:
            ids = list(pool.map(run, range(24)))
        assert len(set(ids)) == 24
        labels = {row["label"] for row in session.history()}
        assert labels >= {f"{number}" for number in range(24)}
        assert sorted(session.messages) == list(range(24))
        seqs = [int(row["id"].rpartition("-")[2]) for row in session.history()]
        assert seqs == sorted(seqs, reverse=True)
        session.rollback(steps=0)
        assert sorted(session.messages) == list(range(24))


def test_effects_are_listed_under_the_lock():
    begun = []

    class Growing(dict):
        """Has a member more each time that somebody looks at it without the lock."""

        def values(self):
            assert ledger._lock._is_owned()
            begun.append(1)
            return super().values()

    with Session("work", store=CheckpointManager()) as session:
        ledger = session._state.ledger
        ledger.state.effects = Growing(ledger.state.effects)
        assert session.effects == []
        assert session.notices == []
        assert list(session._state.effects.since(0)) == list(session._state.effects.unknown()) == []
    assert begun
