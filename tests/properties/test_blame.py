"""`blame` agrees with a model that knows the author of each line."""

import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Session, blame
from agent_checkpoint.session.current_session import as_current
from tests.unit.trajectory.trajectories import rename, write

common = {"deadline": None, "suppress_health_check": list(HealthCheck)}
operations = st.lists(
    st.one_of(
        st.tuples(st.just("edit"), st.integers(0, 12), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("rename")),
        st.tuples(st.just("other")),
        st.tuples(st.just("delete")),
        st.tuples(st.just("rollback"), st.integers(1, 4)),
        st.tuples(st.just("by hand"), st.integers(0, 12)),
    ),
    min_size=1,
    max_size=20,
)


class Authors:
    """The lines of a file with the checkpoint that wrote each; the history of both."""

    def __init__(self, session, place):
        self.session, self.place = session, place
        self.name, self.lines = "f", None
        self.fresh = count()
        self.saved = [(session.head, self.name, None)]

    def write(self, lines):
        write(self.name, "".join(f"{text}\n" for text, _ in lines))
        head = self.session.head
        self.lines = [(text, author or head) for text, author in lines]
        self.save()

    def save(self):
        self.saved.append((self.session.head, self.name, self.lines))

    def new(self, number):
        return [(f"line {next(self.fresh)}", None) for _ in range(number)]

    def do(self, operation, *given):
        if operation == "edit":
            start, gone, made = given
            lines = list(self.lines or ())
            start = min(start, len(lines))
            lines[start : start + gone] = self.new(made)
            self.write(lines or self.new(1))
        elif operation == "rename" and self.lines:
            rename(self.name, f"{self.name}x")
            self.name += "x"
            self.save()
        elif operation == "other":
            write("other", str(next(self.fresh)))
            self.save()
        elif operation == "delete" and self.lines is not None:
            (self.place / self.name).unlink()
            self.session.save()
            self.lines = None
            self.save()
        elif operation == "rollback" and len(self.saved) > 1:
            target = self.saved[-min(given[0] + 1, len(self.saved))]
            self.session.rollback(target[0])
            _, self.name, self.lines = target
            self.saved = self.saved[: self.saved.index(target) + 1]
            self.saved.append((self.session.head, self.name, self.lines))
        elif operation == "by hand" and self.lines:
            # A person inserts a line; the next checkpoint is the first that has it.
            place = min(given[0], len(self.lines))
            lines = [*self.lines[:place], *self.new(1), *self.lines[place:]]
            (self.place / self.name).write_text("".join(f"{text}\n" for text, _ in lines))
            head = self.session.save()
            self.lines = [(text, author or head) for text, author in lines]
            self.save()


def check(operations):
    with tempfile.TemporaryDirectory() as name, CheckpointManager() as manager:
        place = Path(name)
        session = Session("s", workspace=place, store=manager)
        authors = Authors(session, place)
        try:
            with as_current(session._tools):
                for operation in operations:
                    authors.do(*operation)
        finally:
            session.close()
        if authors.lines is not None:
            found = blame(place / authors.name, store=manager)
            assert [(line.text, line.step.checkpoint) for line in found] == authors.lines


@given(operations)
@settings(max_examples=25, **common)
def test_each_line_has_its_author(operations):
    check(operations)


@pytest.mark.slow
@given(operations)
@settings(max_examples=400, **common)
def test_each_line_has_its_author_400_times(operations):
    check(operations)
