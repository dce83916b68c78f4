"""Sub-agents in `show`, `log`, `diff` and `rollback`."""

from pathlib import Path

import pytest

from agent_checkpoint import Session, Suspended, tool
from tests.agents import Agent
from tests.cli.world import run


@tool
def find(what: str) -> str:
    return f"found {what}"


@tool(effect="irreversible")
def send_report(to: str) -> str:
    return to


@tool(approve=True)
def publish_report(to: str) -> str:
    return to


@pytest.fixture
def family(own_home: Path) -> None:
    with Session("team") as session:
        session.messages.append({"role": "user", "content": "write a report"})
        with session.subagent("researcher", agent=Agent(7)) as child:
            child.messages.append({"role": "user", "content": "which numbers?"})
            find("numbers")
            child.result = "x" * 5000
            with child.subagent("reader") as inner:
                find("a book")
                with pytest.raises(KeyboardInterrupt), inner.subagent("eye"):
                    raise KeyboardInterrupt


def test_show_is_a_tree(family: None) -> None:
    text = run("show", "team").out
    own, researcher, reader, eye = (
        text.index(words)
        for words in (
            "messages   1 item\n    user: write a report",
            "\nresearcher  completed\n  agent      Agent\n",
            "\n  researcher/reader  completed\n",
            "\n    researcher/reader/eye  in_progress\n",
        )
    )
    assert own < researcher < text.index("user: which numbers?") < reader < eye
    assert text.index('find({"what": "a book"})') > reader
    assert text.index('find({"what": "numbers"})') < reader
    parts = run("show", "team", "--json").data["parts"]
    assert parts["subagents/researcher/status"]["status"] == "completed"
    assert parts["subagents/researcher/reader/calls"]["items"] == 1
    assert "found numbers" in run("show", "team", "--part", "subagents/researcher/calls").out


def test_log_names_the_subagent_of_a_call(family: None) -> None:
    text = run("log", "team").out
    assert "  researcher: find(what='numbers')" in text
    assert "  researcher/reader: find(what='a book')" in text


def test_diff_shows_the_logs_of_a_subagent(family: None) -> None:
    done = run("diff", "team@2", "team")
    assert "subagents/researcher/messages" in done.out
    assert "+ user: which numbers?" in done.out
    data = run("diff", "team@2", "team", "--json").data
    assert [row["tool"] for row in data["subagents/researcher/calls"]["added"]] == ["find"]
    assert not any("messages" in path for path in data["state"]["added"])


def test_rollback_of_one_subagent(family: None) -> None:
    done = run("rollback", "team", "--to", "@3", "--yes", "--parts", "subagents/researcher")
    assert done.status == 0, done.err
    with Session("team") as session:
        child = session.subagent("researcher", agent=Agent())
        assert (child.status, len(child.calls)) == ("in_progress", 1)
        assert "Sub-agents that have not finished" not in "".join(session.notices)
    with Session("team") as session:
        assert "are not open yet: researcher." in session.notices[0]


def test_effects_and_approvals_name_the_subagent(own_home: Path) -> None:
    with Session("team") as session:
        send_report("ann")
        with pytest.raises(Suspended), session.subagent("researcher") as child:
            with child.subagent("reader"):
                send_report("bob")
            publish_report("all")
    lines = run("effects", "team").out.splitlines()
    assert [line.split("  ", 3)[3] for line in lines] == [
        "send_report(to='ann')  irreversible",
        "researcher/reader:  send_report(to='bob')  irreversible",
    ]
    rows = run("effects", "team", "--json").data
    assert [row["subagent"] for row in rows] == [None, "researcher/reader"]
    asked = run("approvals")
    assert "  team  sub-agent researcher  " in asked.out
    assert run("approvals", "--json").data[0]["subagent"] == "researcher"
