"""The kinds of checkpoints: one list, and stored kinds that this version does not know."""

from pathlib import Path
from typing import get_args

from agent_checkpoint import CheckpointManager
from agent_checkpoint.records import CheckpointKind, Draft, Kind
from tests.cli.world import run


def test_each_kind_that_is_written_has_a_constant() -> None:
    constants = {value for name, value in vars(Kind).items() if name.isupper()}
    assert constants - {Kind.UNREADABLE} == set(get_args(CheckpointKind))


def test_a_kind_of_a_newer_version_is_read_listed_and_copied(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with CheckpointManager(backend="sqlite", path=store) as manager:
        manager.save("run", {"step": 1})
        head = manager.store.head("run")
        assert head is not None
        newer = manager.store.write(Draft("run", head.parts, kind="merged", source=head))
        assert manager.state_dict("run", newer.id) == {"step": 1}
        assert [row["kind"] for row in manager.history("run")] == ["merged", "save"]
        manager.export_archive(tmp_path / "run.ckpt", "run")
    shown = run("--store", store, "log", "run")
    assert (shown.status, "merged" in shown.out) == (0, True)
    with CheckpointManager(backend="sqlite", path=tmp_path / "other") as other:
        other.import_archive(tmp_path / "run.ckpt")
        assert [row["kind"] for row in other.history("run")] == ["merged", "save"]
