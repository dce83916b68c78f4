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


def test_an_export_is_masked(leaking: Path) -> None:
    done = run("export", "leak", "a.ckpt", at=leaking)
    assert done.status == 0, done.err
    told = " ".join(done.out.split())
    assert " records; --no-mask keeps them." in told
    assert "Masked " in told
    assert "1 file contains secrets and is written unchanged." in told
    data = run("export", "leak", "a.ckpt", "--yes", "--json", at=leaking).data
    assert data["masked"] > data["masked_checkpoints"] > 0
    assert data["masked_records"] >= 2
    assert data["files_with_secrets"] == 1
    assert f"Masked {data['masked']} values in {data['masked_checkpoints']} checkpoints" in told
    assert run("--store", "other", "import", "a.ckpt", at=leaking).status == 0
    assert run("--store", "other", "verify", at=leaking).status == 0
    for command in (("log", "leak"), ("show", "leak", "--part", "messages"), ("effects", "leak")):
        shown = run("--store", "other", *command, "--no-mask", "--json", at=leaking)
        assert shown.status == 0, shown.err
        assert "[masked:" in shown.out
        assert TOKEN[:12] not in shown.out
        assert "hunter2" not in shown.out


def test_an_exact_export(leaking: Path) -> None:
    done = run("export", "leak", "a.ckpt", "--no-mask", at=leaking)
    assert "asked" not in done.out
    data = run("export", "leak", "a.ckpt", "--no-mask", "--yes", "--json", at=leaking).data
    assert (data["masked"], data["files_with_secrets"]) == (0, 0)
    assert run("--store", "other", "import", "a.ckpt", at=leaking).status == 0
    assert TOKEN in run("--store", "other", "show", "leak", "--no-mask", "--json", at=leaking).out
    with opened() as manager:
        manager.export_archive(leaking / "python.ckpt", "leak")
    assert (leaking / "python.ckpt").read_bytes() == (leaking / "a.ckpt").read_bytes()


def test_an_export_that_cannot_be_masked_is_refused(tmp_path: Path) -> None:
    with opened() as manager:
        manager.save(f"a {TOKEN}", {"n": 1})
    refused = run("export", f"a {TOKEN}", "a.ckpt", at=tmp_path)
    assert refused.status == 2
    assert "--no-mask" in refused.err
    assert not (tmp_path / "a.ckpt").exists()
    assert run("export", f"a {TOKEN}", "a.ckpt", "--no-mask", at=tmp_path).status == 0
