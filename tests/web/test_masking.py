"""Secrets are masked on the pages: in states, conversations, files, differences and requests."""

from contextlib import suppress
from pathlib import Path

from agent_checkpoint import CheckpointManager, Session, Suspended, tool
from tests.agents import Agent
from tests.secrets_of_each_kind import SECRETS
from tests.web.visitor import Visitor, opened

TOKEN = SECRETS["github-token"]


@tool(effect="irreversible", approve=True, name="push on a page")
def push(token: str, password: str, what: str = "code") -> None: ...


def pages_of(visitor: Visitor) -> "dict[str, str]":
    return {
        "timeline": visitor.text("/timeline", key="k"),
        "checkpoint": visitor.text("/checkpoint", id="k"),
        "agent": visitor.text("/checkpoint", id="k", part="agent"),
        "messages": visitor.text("/checkpoint", id="k", part="messages"),
        "file": visitor.text("/checkpoint", id="k", part="workspace", path="env"),
        "diff": visitor.text("/diff", a="k@2", b="k"),
        "effects": visitor.text("/effects", key="k"),
        "approvals": visitor.text("/approvals"),
    }


def test_no_page_shows_a_secret_unless_asked_to(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "env").write_text("A=1\n")
    agent = Agent()
    with opened(tmp_path / "store") as manager:
        with suppress(Suspended), Session("k", agent=agent, workspace=place, store=manager) as run:
            run.save()
            agent.memory = [TOKEN, "x" * 195 + " " + TOKEN, {"deep": TOKEN}]
            run.messages.append({"role": "user", "content": f"use {TOKEN}"})
            (place / "env").write_text(f"A=1\nB={TOKEN}\n")
            run.save(label=f"with {TOKEN}", tags=[TOKEN])
            push(TOKEN, "hunter2")
        pages = pages_of(Visitor(manager))
        exact = pages_of(Visitor(manager, masked=False))
    for name, html in pages.items():
        assert TOKEN[:12] not in html, name
        assert "hunter2" not in html, name
    masked = {name for name, html in pages.items() if "[masked:github-token]" in html}
    assert masked >= {"agent", "messages", "file", "diff", "effects", "approvals"}
    for name, html in exact.items():
        assert "[masked:" not in html, name
        assert TOKEN[:12] in html or name in ("timeline", "checkpoint"), name
    # A masked argument is not editable: the form would send the mask.
    assert 'name="argument.0.' not in pages["approvals"]
    assert 'name="argument.2.' in pages["approvals"]
    assert pages["approvals"].count("Masked: cannot be edited here.") == 2
    assert "Not plain JSON" not in pages["approvals"]


def test_an_archive_is_masked_unless_asked_not_to(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        manager.save("k", {"memory": [TOKEN]})
        manager.save(f"named {TOKEN}", {"n": 1})
        for masked in (True, False):
            visitor = Visitor(manager, masked=masked)
            assert ("are masked" in visitor.text("/export", key="k")) is masked
            (tmp_path / f"{masked}.ckpt").write_bytes(visitor.post("/export", {"key": "k"}).content)
            other = CheckpointManager()
            other.import_archive(tmp_path / f"{masked}.ckpt")
            memory = ["[masked:github-token]"] if masked else [TOKEN]
            assert other.state_dict("k") == {"memory": memory}
            named = visitor.post("/export", {"key": f"named {TOKEN}"})
            assert named.status_code == (400 if masked else 200)
