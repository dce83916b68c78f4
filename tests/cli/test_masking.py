"""Secrets are masked in what the command shows, unless it is asked not to."""

from contextlib import suppress
from pathlib import Path

import pytest

from agent_checkpoint import Session, Suspended, tool
from tests.cli.world import Coder, opened, run
from tests.secrets_of_each_kind import SECRETS

TOKEN = SECRETS["github-token"]


@tool(effect="irreversible", approve=True, name="push masked")
def push(token: str, password: str) -> None: ...


@tool(effect="idempotent", name="fetch masked")
def fetch(token: str) -> None: ...


@pytest.fixture
def leaking(tmp_path: Path) -> Path:
    place = tmp_path / "leaking"
    place.mkdir()
    (place / "env").write_text("A=1\n")
    with suppress(Suspended), Session("leak", agent=Coder(), workspace=place) as session:
        session.save(label="before")
        session.messages.append({"role": "user", "content": f"use {TOKEN}"})
        (place / "env").write_text(f"A=1\nB={TOKEN}\n")
        session.save(label=f"with {TOKEN}", tags=[TOKEN])
        fetch(TOKEN)
        push(TOKEN, "hunter2")
    return place


COMMANDS = [
    ("show", "leak"),
    ("show", "leak", "--part", "messages"),
    ("log", "leak"),
    ("diff", "leak@2", "leak"),
    ("effects", "leak"),
    ("approvals",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_secrets_are_masked_by_default(
    leaking: Path, command: "tuple[str, ...]", json: "tuple[str, ...]"
) -> None:
    shown = run(*command, *json, at=leaking)
    assert shown.status == 0, shown.err
    assert TOKEN not in shown.out
    assert TOKEN[:12] not in shown.out
    assert "hunter2" not in shown.out
    assert "[masked:github-token]" in shown.out
    exact = run(*command, "--no-mask", *json, at=leaking)
    assert TOKEN[:12] in exact.out
    assert "masked:" not in exact.out


def test_a_file_is_printed_exactly(leaking: Path) -> None:
    assert TOKEN in run("show", "leak", "env", at=leaking).out


def test_redactions_are_counted(tmp_path: Path) -> None:
    with opened() as manager, Session("clean", store=manager, redact="secrets") as session:
        session.messages.append(TOKEN)
        session.save(label="one")
    found = run("show", "clean~1")
    assert "redacted 1 value" in " ".join(found.out.split())
    assert "1 redacted" in run("log", "clean").out
    assert run("log", "clean", "--json").data["checkpoints"][1]["redacted"] == 1
