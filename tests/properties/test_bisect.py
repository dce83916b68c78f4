"""`bisect` finds the planted step in random trajectories, with few probes."""

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Session, bisect
from agent_checkpoint.session.current_session import as_current
from tests.unit.trajectory.trajectories import delete, rename, shell, write

NAMES = ["a", "b", "d/c", "d/e"]
BUG = "bug"

operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES), st.sampled_from("123")),
        st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("shell"), st.sampled_from(NAMES)),
        st.tuples(st.just("rollback"), st.integers(1, 4)),
        st.tuples(st.just("fork")),
        st.tuples(st.just("plant")),
    ),
    min_size=3,
    max_size=20,
)


class Walk:
    """Runs operations, and knows by itself which checkpoints led to the present."""

    def __init__(self, manager, place):
        self.place = place
        self.session = Session("s", workspace=place, store=manager)
        self.forks = 0
        self.line = []
        self.seen()

    @property
    def root(self):
        return self.session.workspace.path

    def seen(self):
        self.line.append((self.session.head, (self.root / BUG).exists()))

    def do(self, operation, *given):
        exists = given and (self.root / str(given[0])).is_file()
        if operation == "rollback":
            return self.rollback(*given)
        if operation == "fork":
            return self.fork()
        with as_current(self.session._tools):
            if operation == "write":
                write(*given)
            elif operation == "rename" and exists:
                rename(*given)
            elif operation == "delete" and exists:
                delete(*given)
            elif operation == "shell":
                shell(f"mkdir -p d; echo x >> {given[0]}; chmod +x {given[0]}")
            elif operation == "plant":
                write(BUG, "here")
            else:
                return None
        return self.seen()

    def rollback(self, steps):
        steps = min(steps, len(self.line) - 1)
        target = self.line[-1 - steps][0]
        if steps and target.startswith(f"{self.session.key}_"):
            self.session.rollback(target)
            del self.line[len(self.line) - steps :]

    def fork(self):
        self.forks += 1
        branch = self.session.fork(f"fork{self.forks}")
        self.line.append((self.session.head, self.line[-1][1]))
        self.session = branch


def check(operations):
    with tempfile.TemporaryDirectory() as name, CheckpointManager() as manager:
        place = Path(name) / "work"
        (place / "d").mkdir(parents=True)
        walk = Walk(manager, place)
        top = walk.session
        try:
            for operation in operations:
                walk.do(*operation)
            if not walk.line[-1][1]:
                walk.do("plant")
            expected = next(head for head, is_bad in walk.line if is_bad)
            found = bisect(
                walk.session.key,
                lambda branch: not (branch.path / BUG).exists(),
                store=manager,
                good=walk.line[0][0],
            )
        finally:
            top.close()
        assert found.first_bad == expected
        assert found.is_certain
        assert len(found.tested) <= math.ceil(math.log2(len(walk.line) + 1)) + 2
        if found.step.calls:
            assert found.step.calls[-1].arguments == {"name": BUG, "text": "here"}


common = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@given(operations)
@settings(max_examples=10, **common)
def test_the_planted_step_is_found(operations):
    check(operations)


@pytest.mark.slow
@given(operations)
@settings(max_examples=200, **common)
def test_the_planted_step_is_found_in_200_trajectories(operations):
    check(operations)
