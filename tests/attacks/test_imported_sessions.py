"""Sessions and ledgers that came with an archive: they decide nothing for this user's own."""

from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Approvals,
    CheckpointManager,
    External,
    InvalidInputError,
    Session,
    Suspended,
    Workspace,
    tool,
)
from agent_checkpoint.records import Draft
from agent_checkpoint.store.archive.archive_file import Archive
from tests.attacks.test_imported_lines import HOOK, plant


@tool(effect="irreversible", key=lambda what: what, approve=True)
def deploy(what: str) -> str:
    return what


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "app.py").write_text("mine\n")
    return place


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    place = tmp_path / "theirs"
    place.mkdir()
    plant(place)
    return place


def sent(tmp_path: Path, key: str, make: Any) -> CheckpointManager:
    """Return a store of the user into which somebody's archive of a key was imported."""
    with CheckpointManager(backend="sqlite", path=tmp_path / "a") as manager:
        make(manager)
        manager.export_archive(tmp_path / "evil.ckpt", key)
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "b")
    manager.import_archive(tmp_path / "evil.ckpt")
    return manager


@pytest.mark.parametrize("how", ["no session", "another name", "forked here"])
def test_no_import_takes_over_a_directory_by_its_notes(
    tmp_path: Path, mine: Path, theirs: Path, how: str
) -> None:
    def make(manager: CheckpointManager) -> None:
        if how == "no session":
            manager.save("nightly", {"workspace": Workspace(theirs, manager.store)})
            return
        name = "other" if how == "another name" else "nightly"
        Session(name, workspace=theirs, store=manager).close()
        if how == "another name":
            manager.fork("other", "nightly")

    with sent(tmp_path, "nightly", make) as manager:
        key = "nightly"
        if how == "forked here":
            manager.fork("nightly", "again")
            key = "again"
        for on_drift in ("keep", "restore"):
            with pytest.raises(InvalidInputError, match="which is not empty"):
                Session(key, workspace=mine, store=manager, on_drift=on_drift)
    assert (mine / "app.py").read_text() == "mine\n"
    assert not (mine / HOOK).exists()


def test_no_rollback_of_others_is_carried_out(tmp_path: Path, mine: Path, theirs: Path) -> None:
    def make(manager: CheckpointManager) -> None:
        with Session("nightly", workspace=theirs, store=manager) as session:
            session.save()
        store = manager.store
        first = store.head("nightly")
        assert first is not None
        store.write(Draft("nightly", first.parts, "safety", source=first))
        store.write(Draft("nightly", first.parts, "rollback", source=first), parents=(first.id,))

    with sent(tmp_path, "nightly", make) as manager:
        Session("nightly", workspace=mine, store=manager, rebind=True).close()
    assert (mine / "app.py").read_text() == "mine\n"
    assert not (mine / HOOK).exists()


def test_a_request_that_was_imported_is_not_in_the_way_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "b") as manager:
        with pytest.raises(Suspended) as waiting, Session("zz", store=manager):
            deploy("v1")
        name = waiting.value.approval_id
        with CheckpointManager(backend="sqlite", path=tmp_path / "a") as other:
            monkeypatch.setattr("agent_checkpoint.session.tool_runner.new_request_id", lambda: name)
            with pytest.raises(Suspended), Session("aa", store=other):
                deploy("evil")
            other.export_archive(tmp_path / "evil.ckpt", "aa")
        manager.import_archive(tmp_path / "evil.ckpt")
        approvals = Approvals(manager.store)
        assert approvals.arguments(name) == {"what": "v1"}
        approvals.approve(name)
        with Session("zz", store=manager):
            assert deploy("v1") == "v1"


def test_to_open_a_session_does_not_make_its_files_the_users_own(
    tmp_path: Path, mine: Path, theirs: Path
) -> None:
    def make(manager: CheckpointManager) -> None:
        Session("nightly", workspace=theirs, store=manager).close()

    with sent(tmp_path, "nightly", make) as manager:
        Session("nightly", workspace=mine, store=manager, rebind=True).close()
        for entry in manager.history("nightly"):
            with Session("nightly", store=manager) as session:
                report = session.rollback(to=entry["id"], dry_run=True)
            assert report.files is not None
            assert report.foreign or not report.files.executable
        branch = manager.fork("nightly", "aside", checkpoint_id="nightly@1")
        assert branch
        Session("aside", workspace=tmp_path / "new", store=manager).close()
        head = manager.store.newest_first("aside")
        assert all(item.token for item in head if item.kind in ("fork", "open"))


def test_a_session_that_was_just_opened_is_bound_for_the_next(
    tmp_path: Path, mine: Path, theirs: Path
) -> None:
    def make(manager: CheckpointManager) -> None:
        Session("nightly", workspace=theirs, store=manager).close()

    with sent(tmp_path, "nightly", make) as manager:
        Session("nightly", workspace=mine, store=manager, rebind=True)  # and killed
        seqs = [item.seq for item in manager.store.newest_first("nightly") if not item.token]
        manager.store.remove("nightly", seqs)
        head = manager.store.head("nightly")
        assert head is not None
        assert (head.kind, bool(head.token)) == ("open", True)
        with Session("nightly", store=manager) as session:
            assert session.workspace is not None
            assert session.workspace.path == mine


def test_no_snapshot_elsewhere_is_restored_unasked(tmp_path: Path) -> None:
    restored: list[object] = []

    def machine() -> External:
        return External("vm", take=lambda: "evil", restore=restored.append)

    def make(manager: CheckpointManager) -> None:
        Session("nightly", store=manager, parts={"vm": machine()}).close()

    with sent(tmp_path, "nightly", make) as manager:
        with pytest.raises(InvalidInputError, match="rebind=True"):
            Session("nightly", store=manager, parts={"vm": machine()})
        assert not restored
        Session("nightly", store=manager, parts={"vm": machine()}, rebind=True).close()
        assert restored == ["evil"]


@tool(effect="reversible", key=lambda what: what, undo=lambda effect, what: UNDONE.append(what))
def book(what: str) -> str:
    return what


UNDONE: "list[str]" = []


@pytest.mark.parametrize("backend", ["sqlite", "file"])
@pytest.mark.parametrize("how", ["with a ledger", "without", "large notes"])
def test_no_import_gets_the_ledger_of_a_session_here(
    tmp_path: Path, backend: str, how: str
) -> None:
    UNDONE.clear()
    with CheckpointManager(backend=backend, path=tmp_path / "b") as manager:
        with Session("job", store=manager) as session:
            book("hotel")
            family = session._state.record.family
        manager.export_archive(tmp_path / "seen.ckpt", "job")
        with CheckpointManager(backend="sqlite", path=tmp_path / "a") as other:
            if how == "with a ledger":
                other.import_archive(tmp_path / "seen.ckpt")
            notes: dict[str, Any] = {
                "key": "evil",
                "family": family,
                "lineage": [["job", 10**9]],
                "inherited": 0,
            }
            if how == "large notes":
                notes["standing"] = [str(number) for number in range(5000)]
            for _ in range(2):
                other.store.write(Draft("evil", {"session": notes}))
            other.export_archive(tmp_path / "evil.ckpt", "evil")
        with Session("job", store=manager):
            book("a later secret")
        manager.import_archive(tmp_path / "evil.ckpt")
        manager.export_archive(tmp_path / "again.ckpt", "evil")
        records = [
            packed.entry
            for each in Archive(tmp_path / "again.ckpt").ledgers().values()
            for packed in each
        ]
        assert not [entry for entry in records if b"a later secret" in entry]
        with Session("evil", store=manager) as session:
            assert session._state.record.family != family
            session.rollback(to="evil@1", effects="compensate")
        assert UNDONE == []
        with Session("job", store=manager) as session:
            known = session._state.ledger.all_effects()
            assert [effect.status for effect in known] == ["committed"] * 2
        assert manager.verify().ok


def test_a_session_that_comes_back_knows_what_it_did(tmp_path: Path) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "b") as manager:
        with Session("job", store=manager):
            book("hotel")
        manager.export_archive(tmp_path / "seen.ckpt", "job")
        with Session("job", store=manager) as session:
            book("flight")
            family = session._state.record.family
        manager.delete("job")
        manager.import_archive(tmp_path / "seen.ckpt")
        with Session("job", store=manager) as session:
            assert session._state.record.family == family
            assert any("flight" in notice for notice in session.notices)
