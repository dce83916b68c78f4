"""Deletions while a graph reads or runs, and kills of both: at every call of a store.

The graph has the same values in a delta channel and in one that every checkpoint contains: wherever
a state can be read, both are equal.
"""

from contextlib import suppress
from functools import partial
from itertools import count
from threading import Lock

import pytest
from langgraph.errors import EmptyInputError

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    MemoryBackend,
    NotFoundError,
    WrapperBackend,
)
from agent_checkpoint.adapters.langgraph import CheckpointSaver
from tests.adapters.langgraph.checkpoints import config
from tests.adapters.langgraph.test_delta import assert_equal_everywhere, graph_with, values_of


class Meanwhile(WrapperBackend):
    """A backend with which something happens before one of its calls."""

    def __init__(self, inner, number, happens, *, again=False):
        super().__init__(inner)
        self.left = number
        self._happens = happens
        self._happens_again = again
        self._lock = Lock()

    def _called(self):
        with self._lock:
            self.left -= 1
            is_now = self.left == 0 or (self.left < 0 and self._happens_again)
        if is_now:
            self._happens()

    def read(self, *arguments, **options):
        self._called()
        return super().read(*arguments, **options)

    def append(self, *arguments, **options):
        self._called()
        return super().append(*arguments, **options)

    def remove(self, *arguments, **options):
        self._called()
        return super().remove(*arguments, **options)


def saver_on(backend):
    return CheckpointSaver(CheckpointManager(backend=backend))


def at_every_call(happens, act):
    """Run a graph, and `act` on its store while something `happens` before its n-th call."""
    for number in count(1):
        memory = MemoryBackend()
        graph = graph_with(saver_on(memory))
        graph.invoke({"delta": ["in"], "plain": ["in"], "limit": 4}, config(), durability="sync")
        states = list(graph.get_state_history(config()))
        happens_now = partial(happens, memory, states)
        backend = Meanwhile(memory, number, happens_now, again=happens is die)
        act(backend, states)
        assert_equal_everywhere(graph_with(saver_on(memory)), config(), {})
        if backend.left > 0:
            assert number > 10
            return


def prune(memory, states):
    saver_on(memory).prune(["t"])


def run_from_the_middle(durability, backend, states):
    # Also a run may find nothing left to start from.
    with suppress(NotFoundError, ConflictError, EmptyInputError):
        graph = graph_with(saver_on(backend))
        done = graph.invoke(None, states[5].config, durability=durability)
        assert done["delta"] == done["plain"]


def test_the_latest_is_read_while_the_others_are_deleted():
    def read(backend, states):
        assert values_of(graph_with(saver_on(backend)), config()) == states[0].values["plain"]

    at_every_call(prune, read)


def test_another_is_read_while_it_is_deleted():
    def read(backend, states):
        with suppress(NotFoundError):
            values = graph_with(saver_on(backend)).get_state(states[5].config).values
            assert values in ({}, states[5].values)  # LangGraph's answer if there is none

    at_every_call(prune, read)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_whose_checkpoint_is_deleted_fails_or_is_whole(durability):
    at_every_call(prune, lambda *given: run_from_the_middle(durability, *given))


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_deletion_does_not_lose_what_a_new_fork_needs(durability):
    at_every_call(
        lambda memory, states: run_from_the_middle(durability, memory, states),
        lambda backend, states: prune(backend, states),
    )


class KilledError(Exception):
    """The process is no more: every later call of the store fails as well."""


def die(memory, states):
    raise KilledError


def test_a_deletion_that_is_killed_leaves_only_whole_states():
    def prune_and_die(backend, states):
        with suppress(KilledError):
            prune(backend, states)

    at_every_call(die, prune_and_die)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("given", [None, {"delta": ["x"], "plain": ["x"], "limit": 3}])
def test_a_run_that_is_killed_leaves_only_whole_states_and_goes_on(durability, given):
    def run_and_die(backend, states):
        where = config() if given else states[5].config
        with suppress(KilledError):
            graph_with(saver_on(backend)).invoke(given, where, durability=durability)
        graph = graph_with(saver_on(backend.inner))
        with suppress(EmptyInputError):  # nothing was left to do
            done = graph.invoke(None, config(), durability=durability)
            assert done["delta"] == done["plain"]

    at_every_call(die, run_and_die)
