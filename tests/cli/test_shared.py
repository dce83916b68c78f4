"""Stores that others may write: refused, or used with `--shared`; `doctor` tells."""

import shutil
from pathlib import Path

import pytest

from agent_checkpoint.seal import make_seal, secret_file
from agent_checkpoint.store.checkpoint_entries import seal_entry
from tests.cli.world import run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "team"
    store.mkdir()
    store.chmod(0o777)
    return store


def test_it_is_refused_with_the_reason_and_the_option(repo: Path, store: Path) -> None:
    for typed in (["--store", store, "save"], ["--store", store, "keys"]):
        found = run(*typed, at=repo)
        assert found.status == 2
        assert f"all users can write {store} (fix: chmod go-w {store})" in found.err
        assert "pass --shared" in found.err
        assert "shared=True" not in found.err
    assert list(store.iterdir()) == []


def test_it_is_used_when_that_is_said_before_or_after_the_command(repo: Path, store: Path) -> None:
    saved = run("--shared", "--store", store, "save", at=repo)
    assert saved.status == 0
    named = f"--store 'sqlite://{store}?shared=1'"
    assert f"agent-checkpoint {named} restore @1" in saved.out
    assert run("log", "--json", "--shared", "--store", store, at=repo).status == 0
    url = f"sqlite://{store}?durability=fast"
    assert run("--shared", "--store", url, "keys", "--json", at=repo).data != []


def test_what_others_put_there_is_listed_and_not_restored(repo: Path, store: Path) -> None:
    from agent_checkpoint.backends.sqlite import SQLiteBackend

    saved = run("--shared", "--store", store, "save", "--json", at=repo).data
    record = {"key": saved["key"], "ts_ns": 1, "parts": {}}
    SQLiteBackend(store, shared=True).append(f"key/{saved['key']}", seal_entry(record))
    before = (repo / "app.py").read_text()
    found = run("--shared", "--store", store, "restore", f"{saved['key']}@2", "--yes", at=repo)
    assert found.status == 1
    assert "has no valid signature under your secret" in found.err
    assert "agent-checkpoint --store" in found.err
    assert (repo / "app.py").read_text() == before
    listed = run("--shared", "--store", store, "log", saved["key"], "--json", at=repo)
    assert [row["kind"] for row in listed.data["checkpoints"]] == ["unreadable", "save"]


def test_a_directory_that_was_saved_before_goes_on_under_a_key_with_a_number(
    repo: Path, tmp_path: Path
) -> None:
    store = tmp_path / "own"
    before = run("--store", store, "save", "--json", at=repo).data["key"]
    named = ("--shared", "--store", store)
    assert run(*named, "log", at=repo).status == 3
    assert run(*named, "save", "--json", at=repo).data["key"] == f"{before}//2"
    assert len(run(*named, "log", "--json", at=repo).data["checkpoints"]) == 1
    assert run(*named, "restore", "@1", "--yes", at=repo).status == 0


def test_what_was_saved_before_is_taken_over_as_the_error_says(repo: Path, tmp_path: Path) -> None:
    store, copy, archive = tmp_path / "own", tmp_path / "copy", tmp_path / "old.ckpt"
    key = run("--store", store, "save", "--json", at=repo).data["key"]
    shutil.copytree(store, copy)
    named = ("--shared", "--store", store)
    found = run(*named, "show", key, at=repo)
    shown = f"agent-checkpoint --store 'sqlite://{store}?shared=1'"
    assert f"exported from a copy of the store; then `{shown} delete` the key here" in found.err
    assert f"and `{shown} import` the archive" in found.err
    assert run("--store", copy, "export", key, archive, at=repo).status == 0
    assert run(*named, "delete", key, "--yes", at=repo).status == 0
    assert run(*named, "import", archive, at=repo).status == 0
    assert run(*named, "show", key, at=repo).status == 0


def test_the_hook_is_installed_for_it(repo: Path, store: Path) -> None:
    assert run("--shared", "--store", store, "hook", "install", "codex", at=repo).status == 0
    rows = run("hook", "status", "--json", at=repo).data["agents"]
    assert f"sqlite://{store}?shared=1" in [row["store"] for row in rows]


def test_doctor_tells(repo: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(*typed: object) -> dict[str, dict[str, object]]:
        rows = run(*typed, "doctor", "--json", at=repo).data["checks"]
        return {row["name"]: row for row in rows}

    refused = checks("--store", store)["store"]
    assert not refused["works"]
    assert "pass --shared" in str(refused["detail"])
    found = checks("--store", store, "--shared")
    assert found["store"]["works"]
    assert "only checkpoints signed with your secret" in str(found["shared store"]["detail"])
    assert "shared store" not in checks()
    assert found["secret"]["works"]
    monkeypatch.delenv("AGENT_CHECKPOINT_SECRET", raising=False)
    make_seal(b"said")
    assert str(secret_file()) in str(checks()["secret"]["detail"])
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    secret = checks()["secret"]
    assert not secret["works"]
    assert "owned by uid" in str(secret["detail"])
    assert "AGENT_CHECKPOINT_SECRET" in str(secret["get"])
