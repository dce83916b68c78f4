"""Sub-agents against a plain model: runs, ends, restarts, rollbacks, forks, adopts, kills."""

import copy
from contextvars import Context
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_checkpoint import CheckpointManager, Session, tool
from agent_checkpoint.errors import ConflictError, InvalidInputError, NotFoundError
from agent_checkpoint.session import current_session
from tests.agents import Agent

NAMES = st.sampled_from(["a", "b"])
TEXTS = st.text("xyz", max_size=2)


@tool
def note(agent, text):
    agent.memory.append(text)
    return len(agent.memory)


@dataclass
class Model:
    """What is known of one sub-agent."""

    status: str = "in_progress"
    memory: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    result: object = None
    run: int = 1


def within(path, outer):
    return path == outer or path.startswith(outer + "/")


class SubagentMachine(RuleBasedStateMachine):
    """`known` is what the session has now, by path; `past` what each checkpoint has, by its id."""

    @initialize(every=st.sampled_from(["tool", "tool", "manual", 2]))
    def begin(self, every):
        self.manager = CheckpointManager()
        self.every = every
        self.past = {}
        self.before = None
        self.forks = 0
        self.known = {}
        self.open()
        self.check_checkpoint()

    def open(self):
        self.context = Context()
        self.session = self.context.run(
            lambda: Session("job", agent=Agent(), store=self.manager, every=self.every).__enter__()
        )
        self.blocks = []
        """The blocks that are running, the innermost last: path, sub-agent, its agent."""
        self.newest = {}
        """The last sub-agent that was started, by path; earlier ones were lost by a rollback."""

    def teardown(self):
        if hasattr(self, "session"):
            self.session.close()

    # -- the model -------------------------------------------------------------------------------

    def block_is_lost(self, number):
        path = self.blocks[number][0]
        is_newest = self.newest[path] is self.blocks[number][1]
        is_running = path in self.known and self.known[path].status == "in_progress"
        return not is_newest or not is_running

    def check_checkpoint(self):
        """Compare a new checkpoint with the model, and remember it."""
        head = self.session.head
        if head in self.past:
            return
        state = self.manager.state_dict("job")
        found = {}
        for name in state:
            if name.startswith("subagents/") and name.endswith("/status"):
                path = name[len("subagents/") : -len("/status")]
                own = f"subagents/{path}/"
                found[path] = Model(
                    status=state[name]["status"],
                    memory=state[own + "agent"]["memory"],
                    messages=list(state[own + "messages"]),
                    calls=[row["result"] for row in state[own + "calls"]],
                    result=state[name]["result"],
                    run=state[name]["run"],
                )
        assert found == self.known
        self.past[head] = copy.deepcopy(self.known)

    @invariant()
    def live_objects_are_as_the_model_says(self):
        for number, (path, child, agent) in enumerate(getattr(self, "blocks", ())):
            if not self.block_is_lost(number):
                known = self.known[path]
                assert (agent.memory, list(child.messages)) == (known.memory, known.messages)
                assert [row["result"] for row in child.calls] == known.calls
                assert (child.status, child.result) == (known.status, known.result)

    # -- run -------------------------------------------------------------------------------------

    @rule(name=NAMES, inside=st.booleans(), restart=st.booleans())
    def start(self, name, inside, restart):
        outer = self.blocks[-1][1] if inside and self.blocks else self.session
        path = f"{self.blocks[-1][0]}/{name}" if outer is not self.session else name
        if path.count("/") > 2:
            return
        if outer is not self.session and self.block_is_lost(len(self.blocks) - 1):
            with pytest.raises(InvalidInputError, match="not running"):
                outer.subagent(name)
            return
        numbers = [number for number, block in enumerate(self.blocks) if block[0] == path]
        if numbers and not self.block_is_lost(numbers[-1]):
            with pytest.raises(ConflictError, match="already open"):
                outer.subagent(name, restart=restart)
            return
        for inner in self.newest:  # lost by a rollback: undo does not find them again
            if within(inner, path):
                self.newest[inner] = None
        agent, before = Agent(), self.known.get(path)
        child = outer.subagent(name, agent=agent, restart=restart)
        if before is not None and not restart and before.status == "completed":
            assert (child.finished, child.result, agent.memory, list(child.messages)) == (
                True,
                before.result,
                before.memory,
                before.messages,
            )
            return
        assert child.resumed == (before is not None and not restart)
        if before is None or restart:
            self.known = {at: item for at, item in self.known.items() if not within(at, path)}
            self.known[path] = Model(run=1 if before is None else before.run + 1)
        self.known[path].status = "in_progress"
        self.blocks.append((path, child, agent))
        self.newest[path] = child
        self.context.run(child.__enter__)
        self.check_checkpoint()

    @precondition(lambda self: self.blocks)
    @rule(text=TEXTS)
    def say(self, text):
        path, child, _ = self.blocks[-1]
        if not self.block_is_lost(len(self.blocks) - 1):
            child.messages.append(text)
            self.known[path].messages.append(text)

    @precondition(lambda self: self.blocks)
    @rule(text=TEXTS)
    def call(self, text):
        path, _, agent = self.blocks[-1]
        if self.block_is_lost(len(self.blocks) - 1):
            with pytest.raises(InvalidInputError, match="not running"):
                self.context.run(note, agent, text)
            return
        known = self.known[path]
        known.memory.append(text)
        known.calls.append(len(known.memory))
        self.context.run(note, agent, text)
        self.check_checkpoint()

    @precondition(lambda self: self.blocks)
    @rule(error=st.sampled_from([None, None, ValueError(), KeyboardInterrupt()]))
    def end(self, error):
        is_lost = self.block_is_lost(len(self.blocks) - 1)
        path, child, _ = self.blocks[-1]
        if not is_lost:
            if error is None:
                child.result = self.known[path].result = len(self.past)
                self.known[path].status = "completed"
            elif isinstance(error, ValueError):
                self.known[path].status = "failed"
        self.context.run(child.__exit__, type(error), error, None)
        self.blocks.pop()
        self.check_checkpoint()

    @rule()
    def save(self):
        self.context.run(self.session.save)
        self.check_checkpoint()

    # -- back and forth --------------------------------------------------------------------------

    def moved(self, target):
        """Take over what a checkpoint has; `undo` would go back."""
        before = copy.deepcopy(self.known)
        self.known = copy.deepcopy(target)
        self.check_checkpoint()
        for path, child, _ in self.blocks:  # a running block of one that had failed goes on
            is_failed = path in self.known and self.known[path].status == "failed"
            if is_failed and self.newest[path] is child:
                self.known[path].status = "in_progress"
        self.before = before

    @rule(data=st.data())
    def roll_back(self, data):
        target = data.draw(st.sampled_from(sorted(self.past)))
        self.context.run(lambda: self.session.rollback(to=target))
        self.moved(self.past[target])

    @rule()
    def undo(self):
        if self.before is None:
            with pytest.raises(NotFoundError):
                self.context.run(self.session.undo)
        else:
            self.context.run(self.session.undo)
            self.moved(self.before)

    @precondition(lambda self: not self.blocks)
    @rule(name=NAMES, text=TEXTS, adopts=st.booleans())
    def fork(self, name, text, adopts):
        self.forks += 1
        agent, before = Agent(), copy.deepcopy(self.known)
        with self.context.run(lambda: self.session.fork(f"fork-{self.forks}")) as branch:
            self.check_checkpoint()
            child = branch.subagent(name, agent=agent, restart=True)
            with child:
                note(agent, text)
        if not adopts:
            return
        self.context.run(lambda: self.session.adopt(branch))
        run = before[name].run + 1 if name in before else 1
        after = {path: item for path, item in before.items() if not within(path, name)}
        after[name] = Model("completed", [text], calls=[1], run=run)
        self.moved(after)
        self.before = before

    @rule(closes=st.booleans())
    def reopen(self, closes):
        if closes:
            while self.blocks:
                self.end(KeyboardInterrupt())
            self.context.run(self.session.__exit__, None, None, None)
        else:
            current_session.unregister(self.session._tools)  # as if the process were killed
        head = self.manager.store.head("job").id
        if head not in self.past:  # the end of the run
            assert closes
            self.past[head] = copy.deepcopy(self.known)
        self.known = copy.deepcopy(self.past[head])
        self.open()
        self.check_checkpoint()


TestSubagents = SubagentMachine.TestCase
TestSubagents.settings = settings(
    max_examples=6,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class SlowSubagentMachine(SubagentMachine):
    """The same, for longer."""


SlowTestSubagents = pytest.mark.slow(type("SlowTestSubagents", (SlowSubagentMachine.TestCase,), {}))
SlowTestSubagents.settings = settings(TestSubagents.settings, max_examples=30)
