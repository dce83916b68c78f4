"""What notebooks show: tables, escaped, without other resources; and progress in a cell."""

from __future__ import annotations

import copy
import io
import json
import pickle
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import Checkpointable, CheckpointManager, Session, Workspace, explore
from agent_checkpoint import notebook as html
from agent_checkpoint.session import task_progress

EVIL = "</td><script>alert(1)</script><img src=//evil onerror=x>\u202e&amp;\x1b[31m\"'"
ALLOWED = {"table", "thead", "tbody", "tr", "th", "td", "bdi", "pre", "span", "p", "details"}


class Reader(HTMLParser):
    """Reads HTML: its tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.depth, self.text = 0, ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(shown: Any) -> str:
    """Return the text of what a notebook shows, which must be harmless."""
    markup = shown._repr_html_()
    read = Reader(markup)
    assert read.tags <= ALLOWED | {"summary"}, read.tags
    assert read.attributes <= {"style", "open"}, read.attributes
    assert read.depth == 0
    assert "url(" not in markup
    assert not re.search("[\u202e\x1b]", markup)
    return read.text


class Clerk(Checkpointable):
    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.history: Any = None


@pytest.fixture
def manager() -> CheckpointManager:
    manager = CheckpointManager()
    manager.save("job", {"x": 1, "gone": EVIL}, label=EVIL, tags=[EVIL], metrics={"score": 0.5})
    manager.save(EVIL, {"x": 1})
    return manager


def test_a_history_is_a_table(manager: CheckpointManager) -> None:
    history = manager.history("job")
    text = checked(history)
    assert "job_" in text
    assert "score=0.5" in text
    assert "<script>alert(1)" in text  # as text
    assert checked(history[0]) == text
    assert checked(manager.history(EVIL))
    head = manager.store.head("job")
    assert checked(head) == text
    assert checked(manager.history("job", 0)) == "no checkpoints"


def test_it_is_still_a_list_of_dicts(manager: CheckpointManager) -> None:
    history = manager.history("job")
    assert isinstance(history, list)
    assert isinstance(history[0], dict)
    plain = [dict(row) for row in history]
    assert history == plain
    assert repr(history) == repr(plain)
    assert json.loads(json.dumps(history)) == plain
    for other in (copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
        assert other == plain


def test_an_agent_may_keep_it(manager: CheckpointManager) -> None:
    """No pickle is needed for it: the state has plain lists and dicts."""
    agent = Clerk()
    agent.history = [manager.history("job"), manager.diff("job", agent={"x": 2})]
    manager.save("agent", agent)
    assert "$pickle" not in json.dumps(manager.store.head("agent").parts)  # type: ignore[union-attr]
    other = Clerk()
    manager.load("agent", other)
    assert other.history == agent.history
    assert [type(item) for item in other.history] == [list, dict]


def test_changes_are_a_table(manager: CheckpointManager) -> None:
    changes = manager.diff("job", agent={"x": object, EVIL: EVIL}, deep=True)
    assert changes == {
        "added": {next(iter(changes["added"])): EVIL},
        "removed": {"gone": EVIL},
        "changed": {"x": (1, object)},
    }
    text = checked(changes)
    for word in ("added", "removed", "changed", "gone", "<script>"):
        assert word in text
    assert checked(manager.diff("job", checkpoint_id_a="@1")) == "no changes"
    assert checked(Clerk().diff(Clerk())) == "no changes"


def test_a_diff_of_files(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("one\ntwo\n")
    name = "<script>"
    with Workspace(tmp_path, CheckpointManager()) as workspace:
        tree = workspace.snapshot()
        assert checked(workspace.diff(tree)) == "no changes"
        (tmp_path / "old").write_text(f"one\n{EVIL}\n")
        (tmp_path / name).write_text("new")
        diff = workspace.diff(tree)
        text = checked(diff)
    assert "changed: content" in text
    assert "-two" in text
    assert f"+{EVIL}"[:20] in text


def test_an_outcome_and_a_report() -> None:
    def strategy(branch: Any, way: str) -> float:
        branch.messages.append(way)
        if way != "good":
            raise ValueError(EVIL)
        return 1.0

    with Session("work", store=CheckpointManager()) as session:
        session.save()
        outcome = explore(session, strategy, [{"way": "good"}, {"way": EVIL}])
        assert "ValueError" in checked(outcome)
        assert "variant" in outcome.table()
        preview = session.rollback(to="@1", dry_run=True)
        assert "would roll back to" in checked(preview)
        assert "rolled back to" in checked(session.rollback(to="@1"))


@settings(deadline=None)
@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=3), st.text())
def test_any_text_is_escaped(rows: list[list[str]], content: str) -> None:
    for markup in (html.table(["a", "b"], rows), html.lines(content, is_diff=True)):
        read = Reader(markup)
        assert read.tags <= ALLOWED
        assert read.attributes <= {"style"}


def test_much_is_counted() -> None:
    shown = html.table(["n"], [[number] for number in range(html.MOST + 5)])
    assert "… and 5 more" in shown
    assert "more characters" in html.lines("x" * 200_000)


# -- progress ------------------------------------------------------------------------------------


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what a notebook is told to display."""
    shown: list[dict[str, Any]] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(kernel=object(), execution_count=3)
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = lambda data, **options: shown.append({**data, **options})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(task_progress, "_MIN_SECONDS", 0.0)
    monkeypatch.delenv("AGENT_CHECKPOINT_PROGRESS", raising=False)
    return shown


def test_progress_is_shown_in_the_cell(
    cell: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with Session("work", store=CheckpointManager()) as session:
        for task in session.tasks(["<read>", "write"]):
            with task:
                pass
    assert "2/2 write completed" in cell[-1]["text/plain"]
    assert "&lt;read&gt;" in cell[0]["text/html"]
    assert [item["update"] for item in cell] == [False] + [True] * (len(cell) - 1)
    assert len({item["display_id"] for item in cell}) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_without_a_notebook_nothing_is_shown(
    cell: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("AGENT_CHECKPOINT_PROGRESS", "0")
    task_progress.show_progress(1, 2, "x")
    monkeypatch.delenv("AGENT_CHECKPOINT_PROGRESS")
    ipython = sys.modules["IPython"]
    monkeypatch.setattr(ipython, "get_ipython", lambda: None)  # IPython is merely imported
    task_progress.show_progress(1, 2, "x")
    monkeypatch.delitem(sys.modules, "IPython")
    task_progress.show_progress(1, 2, "x")
    assert (cell, stream.getvalue()) == ([], "")


def test_a_broken_display_stops_no_agent(
    cell: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["IPython.display"], "display")
    task_progress.show_progress(1, 2, "x")
