"""Sessions against a plain model: edits, calls, saves, rollbacks, forks, adopts, reopenings."""

import copy
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent_checkpoint import ConflictError, Session, tool
from agent_checkpoint.records import Kind
from agent_checkpoint.session.current_session import as_current
from tests.agents import Agent
from tests.unit.session.places import files_of

NAMES = st.sampled_from(["a.txt", "b.txt", "d/a.txt", "d/b.txt", "d/e/c.txt"])
TEXTS = st.text("xyz\n", max_size=4)


@tool
def call(agent, place, name, text):
    agent.memory.append(text)
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text


class SessionMachine(RuleBasedStateMachine):
    """`past` is what the model says that each checkpoint holds, by its id."""

    @initialize(every=st.sampled_from(["tool", "manual", 2]))
    def begin(self, every):
        self.root = Path(tempfile.mkdtemp(prefix="session-machine-"))
        self.place = self.root / "work"
        self.place.mkdir()
        self.every = every
        self.past = {}
        self.open()
        self.line = [self.session.head]
        """The checkpoints that a person would count, the oldest first; the last is the head."""
        self.saved()

    def open(self):
        self.session = Session(
            "job",
            agent=Agent(),
            workspace=self.place,
            store=self.root / "store",
            every=self.every,
        )

    def teardown(self):
        if hasattr(self, "session"):
            self.session.close()
            shutil.rmtree(self.root)

    @property
    def present(self):
        agent = self.session.agent
        return copy.deepcopy(
            (agent.memory, agent.count, list(self.session.messages), files_of(self.place))
        )

    def saved(self):
        self.head = self.session.head
        self.past[self.head] = self.present

    def note_new_checkpoints(self):
        if self.session.head != self.head:
            self.line.append(self.session.head)
            self.saved()

    @rule(number=st.integers(0, 9))
    def change_the_agent(self, number):
        self.session.agent.count = number

    @rule(text=TEXTS)
    def say(self, text):
        self.session.messages.append({"text": text})

    @rule(name=NAMES, text=TEXTS)
    def edit(self, name, text):
        (self.place / name).parent.mkdir(parents=True, exist_ok=True)
        (self.place / name).write_text(text)

    @rule(name=NAMES)
    def remove(self, name):
        (self.place / name).unlink(missing_ok=True)

    @rule(name=NAMES, text=TEXTS)
    def call_a_tool(self, name, text):
        before, files = self.past[self.head], files_of(self.place)
        with as_current(self.session._tools):
            call(self.session.agent, self.place, name, text)
        for row in self.session.history():
            if row["kind"] == Kind.OUTSIDE and row["id"] not in self.past:
                self.past[row["id"]] = (*copy.deepcopy(before[:3]), files)
                if row["id"] == self.session.head:  # the call itself was not saved
                    self.head = row["id"]
        self.note_new_checkpoints()

    @rule()
    def save(self):
        self.session.save()
        self.note_new_checkpoints()

    @precondition(lambda self: len(self.line) > 1)
    @rule(data=st.data())
    def go_back_by_steps(self, data):
        steps = data.draw(st.integers(0, len(self.line) - 1))
        target = self.line[-1 - steps]
        before = self.present
        self.session.rollback(steps=steps)
        assert self.present == self.past[target]
        self.line = [*self.line[: len(self.line) - 1 - steps], self.session.head]
        self.moved(before)

    @rule(data=st.data())
    def go_back_to(self, data):
        target = data.draw(st.sampled_from(sorted(self.past)))
        before = self.present
        self.session.rollback(to=target)
        assert self.present == self.past[target]
        self.line = None
        self.moved(before)

    @rule(data=st.data())
    def go_back_with_the_files(self, data):
        target = data.draw(st.sampled_from(sorted(self.past)))
        before = self.present
        self.session.rollback(to=target, parts=["workspace"])
        assert self.present == (*before[:3], self.past[target][3])
        self.line = None
        self.moved(before)

    def moved(self, before):
        self.last = before
        self.saved()
        if self.line is None:  # who has gone somewhere else begins to count there
            self.line = [self.session.head]

    @precondition(lambda self: hasattr(self, "last"))
    @rule()
    def undo(self):
        before, expected = self.present, self.last
        self.session.undo()
        assert self.present == expected
        self.line = None
        self.moved(before)

    @rule(data=st.data(), name=NAMES, text=TEXTS, at_present=st.booleans(), adopts=st.booleans())
    def try_another_way(self, data, name, text, at_present, adopts):
        at = None if at_present else data.draw(st.sampled_from(sorted(self.past)))
        self.forks = getattr(self, "forks", 0) + 1
        before = self.present
        with self.session.fork(f"fork-{self.forks}", at, driver="copy") as branch:
            if at is None:
                self.note_new_checkpoints()
            begun = self.past[at or self.session.head]
            place = branch.workspace.path
            assert (branch.agent.memory, branch.agent.count, list(branch.messages)) == begun[:3]
            assert files_of(place) == begun[3]
            call(branch.agent, place, name, text)
            branch.messages.append({"text": text})
            memory, messages = list(branch.agent.memory), list(branch.messages)
            after = copy.deepcopy((memory, branch.agent.count, messages, files_of(place)))
            assert self.present == before
            if adopts and at is None:
                self.session.adopt(branch)
                assert self.present == after
                self.line.append(self.session.head)
                self.moved(before)
            elif adopts and begun != before:
                with pytest.raises(ConflictError):
                    self.session.adopt(branch)
                assert self.present == before
                # If the last checkpoint agreed with the fork point, what was not saved yet is in a
                # safety checkpoint now, which is no step of its own.
                if self.session.head != self.head:
                    self.saved()

    @rule()
    def look_first(self):
        before, head = self.present, self.session.head
        self.session.rollback(to=sorted(self.past)[0], dry_run=True)
        assert (self.present, self.session.head) == (before, head)

    @rule(is_saved=st.booleans())
    def reopen(self, is_saved):
        if is_saved:
            self.session.save()
            self.note_new_checkpoints()
        *kept, files = self.past[self.session.head]
        if any(self.place.iterdir()):  # who finds nothing at all is on another machine
            files = files_of(self.place)
        is_counted = self.line[-1] == self.session.head
        self.session.close()
        self.open()
        assert self.session.resumed
        assert self.present == (*kept, files)
        if is_counted and self.session.drift is None:
            self.line.pop()
        self.line.append(self.session.head)
        self.saved()

    @invariant()
    def it_is_sound(self):
        if hasattr(self, "session"):
            assert self.session.notices == [] or self.session.drift is not None


SessionMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSessionMachine = pytest.mark.slow(SessionMachine.TestCase)
