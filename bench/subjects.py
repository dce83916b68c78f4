"""What `make bench` measures: a subject is what is measured at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench import (
    changes,
    conversation,
    curves,
    explore,
    explore_start,
    hook,
    hook_agent,
    import_time,
    memory,
    million,
    postgres,
    resume,
    round_trips,
    session,
    trajectory,
)
from bench.rows import Row
from bench.workspaces import measure as workspaces
from bench.workspaces import rows as workspace_rows


class Run(NamedTuple):
    """What is asked for."""

    only: set[str]
    directory: Path
    quick: bool
    say: Callable[[str], None]

    @property
    def place(self) -> Path:
        """An empty directory for one subject."""
        return self.directory / "place"


class Subject(NamedTuple):
    """One piece of the results: what is measured at once."""

    name: str
    """Its name in the results."""
    ids: tuple[str, ...]
    """The rows that need it."""
    says: str
    measure: Callable[[Run], Any]
    rows: Callable[[Any, set[str]], list[Row]]


def _one(name: str, id: str, says: str, module: Any) -> Subject:
    """A subject whose module measures in a directory, and has rows of one id."""
    return Subject(
        name,
        (id,),
        says,
        lambda run: module.measure(run.place, quick=run.quick),
        lambda found, only: module.rows(found),
    )


def _imports(name: str, id: str, statements: dict[str, str], targets: dict[str, float]) -> Subject:
    return Subject(
        name,
        (id,),
        "import time" if id == "P9" else "the help of the command",
        lambda run: import_time.measure(statements),
        lambda found, only: import_time.rows(id, found, targets),
    )


def _langgraph(run: Run) -> Any:
    from bench import langgraph  # only here: it needs LangGraph itself

    return langgraph.measure(run.place, quick=run.quick)


def _langgraph_rows(found: Any, only: set[str]) -> list[Row]:
    from bench import langgraph

    return langgraph.rows(found)


SUBJECTS = (
    # First: each trial makes files and removes them, see `aside.py`.
    _one("explore_start", "P15", "explored strategies", explore_start),
    Subject(
        "workspaces",
        workspace_rows.SUBJECTS,
        "directories",
        lambda run: workspaces.measure(run.only, run.place, quick=run.quick, say=run.say),
        workspace_rows.workspace_rows,
    ),
    Subject(
        "conversations",
        ("P6", "P7", "P8", "changes"),
        "conversations",
        lambda run: conversation.measure_all(run.only, run.place, quick=run.quick, say=run.say),
        lambda found, only: [
            *conversation.rows(found, only),
            *(changes.change_rows(found[0]) if "changes" in only else ()),
        ],
    ),
    _one("resume", "P8", "a session that is resumed", resume),
    _imports("import_time_ms", "P9", import_time.IMPORTS, import_time.IMPORT_TARGETS),
    _imports("help_time_ms", "help", import_time.HELP, import_time.HELP_TARGETS),
    _one("million", "P10", "many checkpoints in one store; filling it takes minutes", million),
    _one("postgres", "P11", "PostgreSQL", postgres),
    _one("hook", "P13", "the hook of a coding agent", hook),
    _one("hook_agent", "P13", "a coding agent with the hook", hook_agent),
    _one("session", "session", "a session that saves message after message", session),
    _one("calls", "calls", "calls of the backend", round_trips),
    _one("forks", "forks", "forks of a session with many files", explore),
    Subject("langgraph", ("P18",), "a LangGraph graph", _langgraph, _langgraph_rows),
    _one("memory", "P17", "memory", memory),
    _one("trajectory", "P16", "a trajectory of many steps", trajectory),
    Subject(
        "curves",
        ("curves",),
        "curves",
        lambda run: curves.measure(run.place, quick=run.quick, say=run.say),
        lambda found, only: [],
    ),
)
