"""Lines of checkpoints: history, walking back, forks, deletion, pruning, upkeep, archives."""

import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    FormatError,
    IntegrityError,
    InvalidInputError,
    KeepBest,
    KeepEvery,
    KeepLatest,
    KeepNewerThan,
    KeepTagged,
    NotFoundError,
    StorageError,
)
from agent_checkpoint.records import Draft
from agent_checkpoint.store.archive.archive_file import MAGIC
from tests.agents import Agent


def save_many(manager: CheckpointManager, key: str, n: int) -> list[str]:
    return [manager.save(key, Agent(count), metrics={"score": count % 7}) for count in range(n)]


def counts(manager: CheckpointManager, key: str) -> list[int]:
    return [manager.state_dict(key, row["id"])["count"] for row in manager.history(key)]


def test_history_is_newest_first_and_cut_to_n(manager: CheckpointManager) -> None:
    ids = save_many(manager, "k", 12)
    assert [row["id"] for row in manager.history("k")] == ids[::-1]
    assert [row["id"] for row in manager.history("k", n=5)] == ids[:6:-1]
    assert manager.history("k", n=0) == []


def test_history_reads_more_than_a_page(manager: CheckpointManager) -> None:
    ids = save_many(manager, "k", 230)
    assert [row["id"] for row in manager.history("k")] == ids[::-1]
    assert len(manager.history("k", n=101)) == 101


def test_parents_are_the_head_that_was(manager: CheckpointManager) -> None:
    first, second = save_many(manager, "k", 2)
    newest, oldest = manager.history("k")
    assert newest["parents"] == [first]
    assert oldest["parents"] == []
    assert newest["id"] == second


def test_time_is_in_seconds_and_order_is_not_by_it(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ns in (3_000_000_000, 1_000_000_000, 2_000_000_000):
        monkeypatch.setattr("time.time_ns", lambda ns=ns: ns)
        manager.save("k", Agent(ns))
    assert [row["ts"] for row in manager.history("k")] == [2.0, 1.0, 3.0]
    assert manager.state_dict("k")["count"] == 2_000_000_000


@pytest.mark.parametrize("bad", [-1, "5", 2.5])
def test_history_refuses_a_bad_count(manager: CheckpointManager, bad: object) -> None:
    with pytest.raises(InvalidInputError):
        manager.history("k", n=bad)  # type: ignore[arg-type]


def test_keys_are_sorted_and_filtered(manager: CheckpointManager) -> None:
    for key in ("session_b", "other", "session_a"):
        manager.save(key, Agent())
    assert manager.list_keys() == ["other", "session_a", "session_b"]
    assert manager.list_keys(prefix="session_") == ["session_a", "session_b"]
    with pytest.raises(InvalidInputError):
        manager.list_keys(prefix=3)  # type: ignore[arg-type]


def test_a_fork_begins_where_it_was_told(manager: CheckpointManager) -> None:
    ids = save_many(manager, "k", 3)
    manager.fork("k", "alt", checkpoint_id=ids[1])
    manager.save("alt", Agent(100))
    assert counts(manager, "alt") == [100, 1]
    assert counts(manager, "k") == [2, 1, 0]
    assert manager.history("alt")[-1]["parents"] == [ids[1]]


def test_a_fork_to_an_existing_key_is_refused(manager: CheckpointManager) -> None:
    save_many(manager, "k", 1)
    with pytest.raises(ConflictError, match="'k' already exists"):
        manager.fork("k", "k")


def test_the_walk_goes_on_in_the_key_that_was_forked(manager: CheckpointManager) -> None:
    save_many(manager, "k", 4)
    manager.fork("k", "alt", checkpoint_id="k~1")
    manager.save("alt", Agent(100))
    assert [manager.state_dict(f"alt~{n}")["count"] for n in range(4)] == [100, 2, 1, 0]
    with pytest.raises(NotFoundError):
        manager.state_dict("alt~4")


def test_a_rollback_counts_as_its_target_and_safety_is_stepped_over(
    manager: CheckpointManager,
) -> None:
    ids = save_many(manager, "k", 4)
    store = manager.store
    target = store.read("k", 2)
    assert target is not None
    store.write(Draft("k", target.parts, kind="safety"))
    store.write(Draft("k", target.parts, kind="rollback"), parents=(ids[1],))
    assert [manager.state_dict(f"k~{n}")["count"] for n in range(2)] == [1, 0]
    manager.save("k", Agent(50))
    assert [manager.state_dict(f"k~{n}")["count"] for n in range(3)] == [50, 1, 0]


def test_a_fork_of_a_rolled_back_head_does_not_walk_into_what_was_undone(
    manager: CheckpointManager,
) -> None:
    agent = Agent()
    for agent.count in range(3):
        manager.save("k", agent)
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", agent):
        agent.count = 666
        manager.save("k", agent)
        raise ValueError("x")
    manager.fork("k", "alt")
    past = [manager.state_dict(f"alt~{n}")["count"] for n in range(4)]
    assert past == [manager.state_dict(f"k~{n}")["count"] for n in range(4)] == [2, 2, 1, 0]


def test_a_fork_of_a_fork_has_the_whole_past(manager: CheckpointManager) -> None:
    save_many(manager, "a", 3)
    manager.fork("a", "b")
    manager.fork("b", "c")
    assert [manager.state_dict(f"c~{n}")["count"] for n in range(3)] == [2, 1, 0]


def test_a_walk_past_the_fork_counts_as_the_key_it_began_in(manager: CheckpointManager) -> None:
    ids = save_many(manager, "a", 3)
    manager.fork("a", "b")
    assert manager.state_dict("b", "b~1")["count"] == 1
    manager.fork("b", "c", "b~2")
    assert manager.history("c")[0]["parents"] == [ids[0]]
    with pytest.raises(NotFoundError, match="use that key"):
        manager.delete("b", "b~1")


def test_a_pruned_target_breaks_no_walk(manager: CheckpointManager) -> None:
    ids = save_many(manager, "k", 4)
    manager.fork("k", "alt", checkpoint_id=ids[2])
    manager.delete("k", ids[2])
    assert manager.state_dict("alt~1")["count"] == 1


def test_a_walk_in_circles_ends(manager: CheckpointManager) -> None:
    a = manager.save("a", Agent(1))
    b = manager.save("b", Agent(2))
    head = manager.store.head("a")
    assert head is not None
    manager.store.write(Draft("a", head.parts, kind="rollback"), parents=(b[:-1] + "9",))
    manager.store.write(Draft("b", head.parts, kind="rollback"), parents=(a[:-1] + "9",))
    with pytest.raises(NotFoundError):
        manager.state_dict("a~9")


def test_deleting_one_checkpoint(manager: CheckpointManager) -> None:
    ids = save_many(manager, "k", 3)
    manager.delete("k", ids[1])
    assert counts(manager, "k") == [2, 0]
    with pytest.raises(NotFoundError):
        manager.delete("k", ids[1])


def test_deleting_the_head_gives_its_number_to_nobody(manager: CheckpointManager) -> None:
    ids = save_many(manager, "k", 3)
    manager.delete("k", ids[-1])
    assert manager.state_dict("k")["count"] == 1
    assert manager.save("k", Agent(9)).endswith("-4")


def test_deleting_a_key(manager: CheckpointManager) -> None:
    save_many(manager, "k", 3)
    save_many(manager, "other", 1)
    manager.delete("k")
    assert manager.list_keys() == ["other"]
    assert manager.save("k", Agent()).endswith("-4")


def test_deleting_needs_the_right_key(manager: CheckpointManager) -> None:
    save_many(manager, "k", 1)
    other = manager.save("other", Agent())
    with pytest.raises(NotFoundError, match="not to 'k'"):
        manager.delete("k", other)
    assert counts(manager, "other") == [0]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (KeepLatest(3), [19, 18, 17]),
        (KeepBest(2, "score"), [19, 13, 6]),
        (KeepBest(2, "score", mode="min"), [19, 14, 7]),
        (KeepBest(2, "nosuch"), [19]),
        (KeepEvery(10), [19, 9]),
        (KeepNewerThan(3600), list(range(19, -1, -1))),
        (KeepNewerThan(timedelta(0)), [19]),
        (KeepTagged(), [19]),
        (KeepLatest(2) | KeepBest(1, "score") | KeepEvery(10), [19, 18, 13, 9]),
    ],
)
def test_pruning_keeps_what_any_policy_keeps_and_the_head(
    manager: CheckpointManager, policy: KeepLatest, kept: list[int]
) -> None:
    ids = save_many(manager, "k", 20)
    planned = manager.prune("k", policy, dry_run=True)
    assert len(manager.history("k")) == 20
    removed = manager.prune("k", policy)
    assert removed == planned
    assert counts(manager, "k") == kept
    assert removed == [cid for count, cid in reversed(list(enumerate(ids))) if count not in kept]
    assert manager.prune("k", policy) == []


def test_tagged_checkpoints_are_kept(manager: CheckpointManager) -> None:
    for count, tags in enumerate([["a"], ["b"], [], ["c", "a"], []]):
        manager.save("k", Agent(count), tags=tags)
    manager.prune("k", KeepTagged("a"))
    assert counts(manager, "k") == [4, 3, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeepLatest(0),
        lambda: KeepLatest(True),
        lambda: KeepEvery(-1),
        lambda: KeepBest(1, "x", mode="best"),
        lambda: KeepNewerThan(-1),
        lambda: KeepNewerThan("1d"),
    ],
)
def test_policies_that_make_no_sense(make: object) -> None:
    with pytest.raises(InvalidInputError):
        make()  # type: ignore[operator]


def test_prune_wants_a_policy_and_a_key(manager: CheckpointManager) -> None:
    save_many(manager, "k", 1)
    with pytest.raises(InvalidInputError, match="requires a policy"):
        manager.prune("k", 5)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        manager.prune("nope", KeepLatest(1))
    with pytest.raises(TypeError):
        KeepLatest(1) | 3


def test_upkeep_of_a_sound_store(manager: CheckpointManager) -> None:
    save_many(manager, "k", 3)
    report = manager.verify()
    assert (report.ok, report.checkpoints) == (True, 3)
    assert manager.gc().objects == 0
    stats = manager.stats()
    assert stats["checkpoints"] == 3
    assert stats["stored_bytes"] == stats["keys"]["k"]["stored_bytes"] > 0
    assert stats["logical_bytes"] == stats["keys"]["k"]["logical_bytes"] > 0


def test_gc_deletes_what_no_checkpoint_names(manager: CheckpointManager) -> None:
    save_many(manager, "k", 1)
    manager.store.backend.put_objects({"ab" * 32: b"12345"})
    assert manager.stats()["objects"] == 1
    report = manager.gc()
    assert (report.objects, report.bytes) == (1, 5)
    assert manager.stats()["objects"] == 0


def test_an_archive_carries_a_key_to_another_store(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    ids = save_many(manager, "k", 4)
    manager.delete("k", ids[1])
    assert manager.export_archive(tmp_path / "run.ckpt", "k") == 3
    other = CheckpointManager(backend="file", path=tmp_path / "elsewhere")
    assert other.import_archive(tmp_path / "run.ckpt") == "k"
    assert counts(other, "k") == [3, 2, 0]
    rows = other.history("k")
    assert rows[0]["parents"] == [rows[1]["id"]]  # ids in the archive are renamed together
    assert [row["ts"] for row in rows] == [row["ts"] for row in manager.history("k")]


def test_an_archive_is_private_and_replaced_whole(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    save_many(manager, "k", 1)
    path = tmp_path / "run.ckpt"
    path.write_text("old")
    manager.export_archive(path, "k")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in tmp_path.glob("*.ckpt*")] == ["run.ckpt"]


def test_importing_over_an_existing_key_changes_nothing(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    ids = save_many(manager, "k", 2)
    manager.export_archive(tmp_path / "run.ckpt", "k")
    with pytest.raises(ConflictError, match="'k' already exists"):
        manager.import_archive(tmp_path / "run.ckpt")
    assert [row["id"] for row in manager.history("k")] == ids[::-1]


def test_a_failed_import_leaves_no_half_key(manager: CheckpointManager, tmp_path: Path) -> None:
    save_many(manager, "k", 5)
    manager.export_archive(tmp_path / "run.ckpt", "k")
    other = CheckpointManager()
    append, done = other.store.backend.append, []

    def fail_third(stream: str, entry: bytes, **options: object) -> int:
        done.append(stream)
        if len(done) == 4:
            raise StorageError("the disk is full")
        return append(stream, entry, **options)  # type: ignore[arg-type]

    other.store.backend.append = fail_third  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        other.import_archive(tmp_path / "run.ckpt")
    assert other.list_keys() == []
    assert other.import_archive(tmp_path / "run.ckpt") == "k"


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: b"", IntegrityError),
        (lambda data: b"not an archive", IntegrityError),
        (lambda data: data[:-20], IntegrityError),
        (lambda data: data[:-34], IntegrityError),
        (lambda data: data + b"z", IntegrityError),
        (lambda data: data[:-34] + data[-34:] * 2, IntegrityError),
        (lambda data: MAGIC + b"1\n", IntegrityError),
        (lambda data: MAGIC + b"x\n", IntegrityError),
        (lambda data: MAGIC + b"1\nh\xff\xff\xff\xff\xff", IntegrityError),
        (lambda data: MAGIC + b"1\nh\x02[]", IntegrityError),
        (lambda data: MAGIC + b"1\nh\x02{}", IntegrityError),
        (lambda data: data.replace(b'"ts_ns"', b'"ts_nz"'), IntegrityError),
        (lambda data: data.replace(MAGIC + b"1", MAGIC + b"2"), FormatError),
    ],
)
def test_a_damaged_archive_imports_nothing(
    manager: CheckpointManager, tmp_path: Path, damage: object, error: type[Exception]
) -> None:
    save_many(manager, "k", 2)
    path = tmp_path / "run.ckpt"
    manager.export_archive(path, "k")
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    manager.delete("k")
    with pytest.raises(error):
        manager.import_archive(path)
    assert manager.list_keys() == []


def test_a_checkpoint_too_large_for_an_archive_is_refused_at_export(
    manager: CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_many(manager, "k", 1)
    monkeypatch.setattr("agent_checkpoint.store.archive.archive_file._MAX_FRAME", 50)
    with pytest.raises(InvalidInputError, match="the limit of an archive is 50"):
        manager.export_archive(tmp_path / "run.ckpt", "k")
    assert list(tmp_path.glob("*.ckpt*")) == []


@pytest.mark.parametrize("bad", ["", ".", "/", "a\0b", b"x", None, "\ud800"])
def test_archives_have_names(manager: CheckpointManager, bad: Any) -> None:
    save_many(manager, "k", 1)
    with pytest.raises(InvalidInputError):
        manager.export_archive(bad, "k")
    with pytest.raises(InvalidInputError):
        manager.import_archive(bad)


def test_archives_that_cannot_be_written_or_read(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    save_many(manager, "k", 1)
    with pytest.raises(StorageError, match="Cannot write"):
        manager.export_archive(tmp_path / "no" / "run.ckpt", "k")
    with pytest.raises(StorageError, match="Cannot read"):
        manager.import_archive(tmp_path / "no.ckpt")
