"""keys, stats, verify, prune, gc, purge, export, import: a store as a whole."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.formatting import format_size
from tests.cli.world import opened, run, run_process


@pytest.fixture
def counted() -> None:
    """The key `run` with ten checkpoints, of which the third has a tag."""
    with opened() as manager:
        for step in range(1, 11):
            manager.save(
                "run", {"step": step, "text": f"{step} " * 2000}, tags=["good"] * (step == 3)
            )


def test_keys(session: Path, repo: Path) -> None:
    rows = {row["key"]: row for row in run("keys", "--json").data}
    assert rows["fix"]["session"] is True
    assert rows["fix"]["directory"] == str(session.resolve())
    assert rows[f"workspace:{repo.resolve()}"]["seq"] == 2
    assert rows[f"workspace:{repo.resolve()}"]["directory"] == str(repo.resolve())
    shown = run("keys").out.splitlines()
    assert shown[0].split() == ["key", "head", "when", "kind", "directory"]
    assert len(shown) == 1 + len(rows)
    assert [row["key"] for row in run("keys", "fi", "--json").data] == ["fix"]


def test_keys_of_an_empty_store() -> None:
    assert "The store is empty" in run("keys").out
    assert "No keys start" in run("keys", "x").out
    assert run("keys", "--json").data == []


def test_the_store_is_the_one_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "a") as manager:
        manager.save("here", {"x": 1})
    for typed in (["--store", tmp_path / "a", "keys"], ["keys", "--store", tmp_path / "a"]):
        assert [row["key"] for row in run(*typed, "--json").data] == ["here"]
    assert run("keys", "--json").data == []
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "a"))
    assert len(run("keys", "--json").data) == 1
    assert run("--store", "nosuch://x", "keys").status == 2


@pytest.mark.usefixtures("counted")
def test_stats() -> None:
    data = run("stats", "--json").data
    assert data["checkpoints"] == 10
    assert set(data) == {
        "store",
        "checkpoints",
        "logical_bytes",
        "stored_bytes",
        "unshared_bytes",
        "dedupe_ratio",
        "redacted",
        "objects",
        "keys",
        "budget",
    }
    shown = run("stats").out
    assert "10 checkpoints in 1 key" in shown
    assert shown.splitlines()[0] == data["store"]
    assert Path(data["store"]).is_dir()


def test_stats_with_files_show_what_is_shared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        place = tmp_path / name
        place.mkdir()
        (place / "noise").write_bytes(random.Random(1).randbytes(200_000))
        (place / "own").write_bytes(random.Random(name).randbytes(50_000))
        run("save", at=place)
        (place / "little").write_text("more")
        run("save", at=place)
    data = run("stats", "--json").data
    rows = list(data["keys"].values())
    assert 300_000 < data["stored_bytes"] < 350_000
    assert data["unshared_bytes"] > 4 * 250_000
    for row in rows:
        assert row["unshared_bytes"] > 2 * 250_000
        assert 50_000 < row["own_bytes"] < 70_000
        assert row["stored_bytes"] - row["own_bytes"] > 200_000
    shown = run("stats").out
    assert data["logical_bytes"] == sum(row["logical_bytes"] for row in rows)
    for row in rows:  # two checkpoints with both files, one of them with a little one
        assert 0 <= row["logical_bytes"] - (2 * 250_000 + len("more")) < 1000
    assert (
        f"stored, {format_size(data['logical_bytes'])} before deduplication and compression\n"
        in shown
    )
    assert "without files" not in shown


@pytest.mark.usefixtures("counted")
def test_delete_of_keys_and_checkpoints(tmp_path: Path) -> None:
    with opened() as manager:
        ids = [row["id"] for row in manager.history("run")]
        manager.save("other", {"x": 1}, label="first")
        manager.save("other", {"x": 2})
    before = run("delete", "run@9", ids[0], "other", "other@1", "run@9", "--dry-run")
    assert before.status == 0
    shown = before.out.splitlines()
    assert [line.split()[1] for line in shown] == [ids[1], ids[0], "other,"]
    assert "2 checkpoints" in shown[2]
    assert len(run("log", "run", "--json").data["checkpoints"]) == 10
    assert run("delete", "run@9").status == 4  # nobody is there to say yes
    assert run("delete", "run@9", "--json").data["done"] is False
    done = run("delete", "run@9", ids[0], "other", "--json", "--yes").data
    assert done == {"done": True, "keys": ["other"], "checkpoints": 4, "ids": [ids[1], ids[0]]}
    with opened() as manager:
        assert manager.list_keys() == ["run"]
        assert [row["id"] for row in manager.history("run")] == ids[2:]
    assert "agent-checkpoint gc" in run("delete", "run", "--yes").out
    assert run("keys", "--json").data == []


@pytest.mark.usefixtures("counted")
def test_delete_of_what_is_not_there_deletes_nothing() -> None:
    for name in ("nothing", "run@99", ""):
        ran = run("delete", "run", name, "--yes")
        assert ran.status in (2, 3), name
        assert ran.err
    assert len(run("keys", "--json").data) == 1


def test_delete_of_a_session_says_so(session: Path) -> None:
    shown = run("delete", "fix", "--dry-run").out
    assert "delete fix, " in shown
    assert "a session" in shown
    assert run("delete", "@1", "--yes", at=session).status == 0
    with opened() as manager:
        assert [row["id"] for row in manager.history("fix")][-1].endswith("-2")


def test_delete_of_what_is_damaged(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with CheckpointManager(backend="file", path=store) as manager:
        first = manager.save("run", {"step": 1})
        manager.save("run", {"step": 2})
    entry = next(path for path in store.rglob("*") if path.is_file() and b'"step":1' in read(path))
    entry.write_bytes(b"rubbish")
    assert "unreadable" in run("--store", f"file://{store}", "delete", first, "--dry-run").out
    assert run("--store", f"file://{store}", "delete", first, "--yes").status == 0
    assert run("--store", f"file://{store}", "verify").status == 0


def read(path: Path) -> bytes:
    return path.read_bytes().replace(b" ", b"")


@pytest.mark.usefixtures("counted")
def test_verify(tmp_path: Path) -> None:
    assert run("verify").out.startswith("No problems found")
    assert run("verify", "--json").data["ok"] is True


def test_verify_of_a_damaged_store(tmp_path: Path) -> None:
    with CheckpointManager(backend="file", path=tmp_path / "s") as manager:
        manager.save("run", {"step": 1})
        manager.save("run", {"step": 2})
    entry = sorted(
        path
        for path in (tmp_path / "s").rglob("*")
        if path.is_file() and b'"step": 2' in path.read_bytes()
    )[0]
    entry.write_bytes(entry.read_bytes().replace(b'"step": 2', b'"step": 3'))
    url = f"file://{tmp_path / 's'}"
    found = run("--store", url, "verify")
    assert found.status == 1
    assert "run@2" in found.out
    data = run("--store", url, "verify", "--json")
    assert data.status == 1
    assert [row["checkpoint"] for row in data.data["problems"]] == ["run@2"]
    assert "unreadable" in run("--store", url, "keys").out
    assert "unreadable" in run("--store", url, "log", "run").out


@pytest.mark.usefixtures("counted")
def test_prune_and_gc() -> None:
    assert run("prune", "run").status == 2
    told = run(
        "prune", "run", "--keep-latest", 2, "--keep-tagged", "good", "--dry-run", "--json"
    ).data
    assert (len(told["deleted"]), told["kept"], told["done"]) == (7, 3, False)
    refused = run("prune", "run", "--keep-latest", 2)
    assert refused.status == 4
    assert "run: 8 checkpoints to delete, 2 to keep" in refused.out
    done = run(
        "prune",
        "run",
        "--keep-latest",
        2,
        "--keep-every",
        5,
        "--keep-tagged",
        "",
        "--yes",
        "--json",
    )
    assert done.data["done"] is True
    left = [row["id"].rpartition("-")[2] for row in run("log", "run", "--json").data["checkpoints"]]
    assert left == ["10", "9", "5", "3"]
    assert (
        "nothing to delete, 4 checkpoints kept" in run("prune", "run", "--keep-newer-than", 1).out
    )
    assert run("prune", "run", "--keep-newer-than", "1e300").status == 2
    told = run("gc", "--dry-run", "--json").data
    assert told["objects"] > 0
    assert told["done"] is False
    assert run("gc", "--json").data == {**told, "done": True}
    assert run("gc").out == "Nothing to delete: all objects are reachable.\n"


def test_purge_reads_the_secret_from_the_standard_input() -> None:
    secret = "sk-live-424242"
    with opened() as manager:
        manager.save("run", {"note": "nothing yet"})
        manager.save("run", {"note": f"the key is {secret}"})
    assert run("purge", secret, stdin="x").status == 2  # never in the command line
    assert run("purge").status == 2
    told = run("purge", "--dry-run", stdin=f"{secret}\n")
    assert told.status == 0
    assert "1 checkpoint" in told.out
    refused = run("purge", stdin=secret)
    assert refused.status == 4
    done = run("purge", "--yes", "--json", stdin=secret)
    assert done.data["done"] is True
    assert list(done.data["replaced"]) == ["run"]
    for ran in (told, refused, done):
        assert secret not in ran.out + ran.err
    assert "[purged]" in run("show", "run").out
    assert "No checkpoint contains the secret" in run("purge", stdin=secret).out
    assert run("purge", stdin="abc").status == 2


def test_export_and_import(session: Path, tmp_path: Path) -> None:
    done = run("export", "fix", "fix.ckpt", "--json", at=tmp_path)
    assert done.data["checkpoints"] > 5
    assert run("export", "fix", "fix.ckpt", at=tmp_path).status == 4
    assert run("export", "fix", "fix.ckpt", "--yes", at=tmp_path).status == 0
    assert run("export", "nothing", "x.ckpt", at=tmp_path).status == 3
    taken = run("import", "fix.ckpt", at=tmp_path)
    assert taken.status == 4
    assert "--store" in taken.err
    other = run("--store", tmp_path / "other", "import", "fix.ckpt", "--json", at=tmp_path)
    assert other.data["key"] == "fix"
    assert run("--store", tmp_path / "other", "verify").status == 0
    assert run("import", "no.ckpt", at=tmp_path).status == 2
    (tmp_path / "bad.ckpt").write_bytes(b"no archive")
    assert run("import", "bad.ckpt", at=tmp_path).status == 1


def test_a_reader_that_has_had_enough(tmp_path: Path) -> None:
    with opened() as manager:
        for number in range(500):
            manager.save(f"key-{number:04}-{'x' * 200}", {"x": number})
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "agent_checkpoint", "keys"], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.db").write_text("no store" * 1000)
    ran = run_process("--store", tmp_path / "store", "keys", at=tmp_path)
    assert ran.status == 1
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_a_path_of_readable_files_is_told_by_its_url_and_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "ckpts"
    with CheckpointManager(backend="file", path=store) as manager:
        manager.save("session", {"step": 1})
    for command in ("keys", "save"):
        found = run("--store", store, command, at=tmp_path)
        assert (found.status, found.out) == (2, "")
        assert f"is a file store. Pass --store file://{store}" in found.err
    assert not (store / "store.db").exists()
    assert run("--store", f"file://{store}", "keys", "--json").data[0]["key"] == "session"


@pytest.mark.usefixtures("counted")
def test_copy(tmp_path: Path) -> None:
    with opened() as manager:
        manager.fork("run", "fork", "run@5")
        manager.save("other", {})
        source = manager.store.backend.properties.path
    target = tmp_path / "target"
    planned = run("copy", source, target, "run", "--dry-run", "--json").data
    assert (planned["keys"], planned["checkpoints"]) == (["run", "fork"], 11)
    assert planned["done"] is False
    assert run("--store", target, "keys").status == 3
    done = run("copy", source, target, "run", "--json").data
    assert done == {**planned, "done": True}
    assert done["bytes"] > done["objects"] > 0
    shown = run("copy", source, target).out.splitlines()
    assert shown[0].startswith(f"Copied to {target}: 1 key, 1 checkpoint, 0 ledger records")
    assert shown[1] == "  other"
    assert run("copy", source, target).out == f"Nothing to copy: {target} is up to date.\n"
    with CheckpointManager(target) as copied, opened() as manager:
        assert copied.history("run") == manager.history("run")
        copied.save("run", {"mine": 1})
        manager.save("run", {"theirs": 1})
    refused = run("copy", source, target)
    assert refused.status == 4
    assert "has diverged" in refused.err


def test_copy_refuses_what_is_not_there(tmp_path: Path) -> None:
    missing = run("copy", tmp_path / "nothing", tmp_path / "target")
    assert missing.status == 3
    assert "No store at" in missing.err
    with CheckpointManager(tmp_path / "a") as manager:
        manager.save("key", {})
    assert run("copy", tmp_path / "a", tmp_path / "b", "nope").status == 3
    assert run("copy", tmp_path / "a", tmp_path / "a").status == 2
    assert run("copy", tmp_path / "a").status == 2
    assert run("copy", tmp_path / "a", "nosuch://x").status == 2
