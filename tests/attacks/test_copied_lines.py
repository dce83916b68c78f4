"""Copies from stores of others: they run no code, own nothing here, and bring nothing bad."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Approvals,
    CheckpointManager,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    MemoryBackend,
    Session,
    Suspended,
    UntrustedDataError,
    Workspace,
    copy,
    tool,
)
from agent_checkpoint.records import Draft, Entry
from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.ledger.lineage import lineages
from agent_checkpoint.store.objects.object_format import TEXT, TerminalRef, make_object

sent: "list[str]" = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@tool(effect="irreversible", key=lambda what: what)
def mail(what: str) -> str:
    sent.append(what)
    return f"sent {what}"


@tool(effect="irreversible", key=lambda what: what, approve=True)
def launch(what: str) -> str:
    sent.append(what)
    return what


class Planted:
    def __reduce__(self) -> Any:
        return (sent.append, ("code of a pickle",))


def ledger_of(manager: CheckpointManager) -> "list[tuple[str, str, Any]]":
    (lineage,) = lineages(manager.store)
    ledger = Ledger(manager.store, lineage)
    ledger.refresh()
    return [(effect.id, effect.status, effect.seq) for effect in ledger.all_effects()]


# -- sessions and their ledgers -------------------------------------------------------------------


def test_a_copied_session_repeats_no_effect() -> None:
    source, target = CheckpointManager(), CheckpointManager()
    with Session("job", store=source) as session:
        mail("one")
        copy(source, target)
        mail("two")
        copy(source, target)
    assert sent == ["one", "two"]
    assert ledger_of(source) == ledger_of(target)
    with Session("job", store=target) as session:
        assert "imported" in " ".join(session.notices)
        assert mail("one") == "sent one"
        assert mail("two") == "sent two"
    assert sent == ["one", "two"]
    assert target.verify().ok


def test_an_effect_after_the_last_checkpoint_is_copied() -> None:
    """It is in the ledger only; without a new checkpoint the target must know of it, too."""
    source, target = CheckpointManager(), CheckpointManager()
    with pytest.raises(ConflictError, match="another writer"), Session("job", store=source):
        copy(source, target)
        mail("late")
        source.delete("job", source.history("job")[0]["id"])  # as if killed before the checkpoint
        report = copy(source, target)
    assert (report.checkpoints, report.records) == (0, 2)
    with Session("job", store=target):
        assert mail("late") == "sent late"
    assert sent == ["late"]


def test_an_unknown_outcome_stays_unknown() -> None:
    source, target = CheckpointManager(), CheckpointManager()

    @tool(effect="irreversible", key=lambda what: what)
    def crash(what: str) -> str:
        copy(source, target)
        return what

    with Session("job", store=source):
        crash("x")
        assert [status for _, status, _ in ledger_of(target)] == ["unknown"]
    with Session("job", store=target), pytest.raises(Exception, match="unknown"):
        crash("x")


def test_copied_approvals_are_asked_for_again() -> None:
    source, target = CheckpointManager(), CheckpointManager()
    with Session("job", store=source), pytest.raises(Suspended) as asked:
        launch("rocket")
    name = asked.value.approval_id
    copy(source, target)
    assert Approvals(target).pending() == []
    with pytest.raises(ConflictError, match="expired"):
        Approvals(target).approve(name)
    Approvals(source).approve(name)
    copy(source, target)
    assert Approvals(target).get(name).answer is None
    with Session("job", store=target), pytest.raises(Suspended) as again:
        launch("rocket")
    assert again.value.approval_id != name
    assert sent == []


@pytest.mark.parametrize("gap", [0, 1])
def test_a_session_that_was_deleted_in_the_target_is_copied_again(gap: int) -> None:
    """Deleting it ends its ledger with an epoch, whose number the source uses for a record."""
    source, target = CheckpointManager(), CheckpointManager()
    with Session("job", store=source):
        mail("one")
    copy(source, target)
    for n in range(2):
        target.delete("job")
        if gap:
            copy(source, target)
        with Session("job", store=source):
            mail(f"more {n}")
        copy(source, target)
        assert copy(source, target).records == 0
    assert ledger_of(target) == ledger_of(source)
    assert target.verify().ok
    with Session("job", store=target):
        for what in ("one", "more 0", "more 1"):
            assert mail(what) == f"sent {what}"
    assert sent == ["one", "more 0", "more 1"]


def test_a_ledger_with_records_of_this_store_is_not_extended() -> None:
    source, target = CheckpointManager(), CheckpointManager()
    with Session("job", store=source) as session:
        mail("one")
        with session.fork("alt") as fork:
            fork.save()
    copy(source, target)
    Session("job", store=target).close()
    with Session("alt", store=source) as fork:
        fork.save(label="more")
    before = target.store.backend.read(PREFIX + lineages(target.store)[0])
    with pytest.raises(ConflictError, match=r"record .* was written there"):
        copy(source, target, ["alt"])
    assert target.store.backend.read(PREFIX + lineages(target.store)[0]) == before


def test_a_ledger_of_this_user_is_not_shared_with_a_copy() -> None:
    """A crafted store names it, and has the same records: its key would read and undo effects."""
    target, hostile = CheckpointManager(), CheckpointManager()
    with Session("mine", store=target):
        mail("mine")
    ours, theirs = target.store.backend, hostile.store.backend
    theirs.put_objects(ours.get_objects(info.id for info in ours.list_objects()))
    stream = PREFIX + lineages(target.store)[0]
    for entry in ours.read(stream):
        theirs.append(stream, entry.data)
    head = target.store.head("mine")
    assert head is not None
    hostile.store.write(Draft("theirs", head.parts, source=head))
    with pytest.raises(ConflictError, match="record 1 was written there"):
        copy(hostile, target)
    assert target.list_keys() == ["mine"]


@pytest.mark.parametrize("at", range(1, 12))
def test_a_ledger_that_was_cut_off_is_continued(at: int) -> None:
    source = CheckpointManager()
    with Session("job", store=source):
        for n in range(3):
            mail(f"{n}")
        with pytest.raises(Suspended):
            launch("rocket")
    backend = MemoryBackend()
    appended, count = backend.append, 0

    def append(stream: str, entry: bytes, **options: Any) -> int:
        nonlocal count
        count += stream.startswith(PREFIX)
        if count == at:
            raise KeyboardInterrupt
        return appended(stream, entry, **options)

    backend.append = append  # type: ignore[method-assign]
    target = CheckpointManager(backend)
    try:
        copy(source, target)
    except KeyboardInterrupt:
        assert target.list_keys() == []  # the ledger comes first
        assert Approvals(target).pending() == []
    count = 100
    copy(source, target)
    assert ledger_of(target) == ledger_of(source)
    assert target.verify().ok


def test_a_purged_ledger_is_copied() -> None:
    source, target = CheckpointManager(), CheckpointManager()
    with Session("job", store=source):
        mail("hunter2-secret")
        mail("other")
    source.purge("hunter2-secret")
    copy(source, target)
    assert [row[1:] for row in ledger_of(target)] == [row[1:] for row in ledger_of(source)]
    assert "hunter2-secret" not in str(vars(target.store.backend))
    assert target.verify().ok


# -- what a copy owns -----------------------------------------------------------------------------


def test_a_copied_key_owns_no_directory(tmp_path: Path) -> None:
    place, other = tmp_path / "place", tmp_path / "other"
    for folder in (place, other):
        folder.mkdir()
        (folder / "app.py").write_text("mine\n")
    source, target = CheckpointManager(), CheckpointManager()
    Session("job", workspace=place, store=source).close()
    copy(source, target)
    (place / "app.py").write_text("newer\n")
    for directory in (place, other):
        with pytest.raises(InvalidInputError, match="not empty"):
            Session("job", workspace=directory, store=target, on_drift="restore")
    assert (place / "app.py").read_text() == "newer\n"
    empty = tmp_path / "empty"
    empty.mkdir()
    Session("job", workspace=empty, store=target).close()
    assert (empty / "app.py").read_text() == "mine\n"


def test_a_seal_of_this_user_is_not_valid_in_a_copy(tmp_path: Path) -> None:
    """The seal of a copied session that was bound here covers a token that no other copy gets."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "app.py").write_text("mine\n")
    first, second, third = (CheckpointManager() for _ in range(3))
    Session("job", workspace=place, store=first).close()
    copy(first, second)
    Session("job", workspace=place, store=second, rebind=True).close()
    copy(second, third)
    with pytest.raises(InvalidInputError, match="not empty"):
        Session("job", workspace=place, store=third)


def test_claims_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    source, target = CheckpointManager(), CheckpointManager()
    source.save("key", {"workspace": Workspace(tmp_path / "d", source.store)})
    copy(source, target)
    head = target.store.head("key")
    assert head is not None
    assert head.claim is None
    assert head.token is not None


def test_pickles_of_others_stay_untrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = CheckpointManager(fmt="pickle")
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of somebody else, and long enough for it")
    source.save("key", {"value": Planted()})
    sent.clear()  # the save tries whether its pickle can be loaded
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of this user, and long enough for a secret")
    target = CheckpointManager()
    copy(source, target)
    with pytest.raises(UntrustedDataError):
        target.state_dict("key")
    assert sent == []


def test_a_shared_source_copies_signed_entries_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/team?shared=1"
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of somebody else, and long enough for it")
    with CheckpointManager(url) as source:
        source.save("key", {"n": 1})
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of this user, and long enough for a secret")
    target = CheckpointManager()
    with pytest.raises(UntrustedDataError):
        copy(url, target)
    assert target.list_keys() == []
    with CheckpointManager(url) as source:
        source.save("own", {"n": 2})
        with Session("job", store=source):
            mail("one")
    copy(url, target, ["own", "job"])
    with CheckpointManager(f"sqlite://{tmp_path}/other?shared=1") as again:
        copy(target, again)
        assert again.state_dict("own") == {"n": 2}
        assert ledger_of(again) == ledger_of(target)
        assert again.verify().ok


# -- damaged and crafted sources ------------------------------------------------------------------


class Hostile(MemoryBackend):
    """A store whose objects and entries an attacker replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.fakes: dict[str, bytes] = {}
        self.entries: dict[str, list[Entry]] = {}

    def get_objects(self, ids: Iterable[str]) -> "dict[str, bytes]":
        found = super().get_objects(list(ids))
        return {name: self.fakes.get(name, data) for name, data in found.items()}

    def read(self, stream: str, **which: Any) -> "list[Entry]":
        if stream not in self.entries:
            return super().read(stream, **which)
        after, before = which.get("after") or 0, which.get("before") or 2**70
        chosen = [entry for entry in self.entries[stream] if after < entry.seq < before]
        chosen = chosen[::-1] if which.get("newest_first") else chosen
        return chosen[: which.get("limit")]


def checkpoint(key: str, seq: int, parents: "list[str]", **more: Any) -> Entry:
    record = {"key": key, "ts_ns": seq, "parents": parents, "parts": {"agent": {}}, **more}
    return Entry(seq, seal_entry(record))


def refused(source: Hostile, match: str) -> CheckpointManager:
    target = CheckpointManager()
    with pytest.raises(IntegrityError, match=match):
        copy(source, target)
    assert target.verify().ok
    return target


@pytest.mark.parametrize("to", ["memory", "file"])
def test_an_object_with_other_bytes(to: str, tmp_path: Path) -> None:
    source = Hostile()
    CheckpointManager(source).save("key", {"text": "x" * 5000, "list": list(range(5000))})
    for info in list(source.list_objects()):
        source.fakes = {info.id: make_object(TEXT, b'"evil"')[1].stored()}
        target = (
            CheckpointManager(backend="file", path=tmp_path / info.id)
            if to == "file"
            else CheckpointManager()
        )
        with pytest.raises(IntegrityError, match=info.id):
            copy(source, target)
        assert target.list_keys() == []
        assert info.id not in {item.id for item in target.store.backend.list_objects()}
        assert target.verify().ok


def test_an_entry_of_another_key() -> None:
    source = Hostile()
    source.append("key/mine", b"{}")
    source.entries["key/mine"] = [checkpoint("other", 1, [])]
    assert refused(source, "names the key 'other'").list_keys() == []


def test_an_entry_that_is_no_record() -> None:
    source = Hostile()
    source.append("key/mine", b'{"agent_checkpoint": 1}')
    assert refused(source, "SHA-256").list_keys() == []


@pytest.mark.parametrize("parent", ["key_2-2", "key_3-3", "key_9-9"])
def test_a_parent_that_is_not_older(parent: str) -> None:
    source = Hostile()
    source.append("key/key", b"{}")
    source.entries["key/key"] = [checkpoint("key", 1, []), checkpoint("key", 2, [parent])]
    target = refused(source, "is not older")
    assert len(target.history("key")) == 1


def test_cyclic_forks_come_to_an_end() -> None:
    source = Hostile()
    for key, other in (("a", "b"), ("b", "a")):
        source.append(f"key/{key}", b"{}")
        source.entries[f"key/{key}"] = [checkpoint(key, 1, [f"{other}_1-1"], kind="fork")]
    target = CheckpointManager()
    assert set(copy(source, target, ["a"]).keys) == {"a", "b"}
    assert target.state_dict("a") == {}


def test_a_leaf_with_references() -> None:
    """gc and a copy do not read leaves of leaves: what they name would be missing."""
    source = Hostile()
    lost, _ = make_object(TEXT, b'"lost"')
    leaf, leaf_object = make_object(TEXT, b"[]", [lost])
    root, root_object = make_object(TEXT, b"[]", [TerminalRef(leaf)])
    source.append(
        "key/key",
        checkpoint("key", 1, [], parts={"agent": {"$ref": root}}).data,
        objects={leaf: leaf_object.stored(), root: root_object.stored()},
    )
    assert refused(source, f"{leaf} is not a leaf").list_keys() == []


def test_numbers_without_end() -> None:
    source = Hostile()
    source.append("key/key", b"{}")
    source.entries["key/key"] = [checkpoint("key", 10**15, [])]
    with pytest.raises(InvalidInputError, match="cannot keep the numbers"):
        copy(source, CheckpointManager())


def test_a_crafted_token_is_replaced() -> None:
    source = Hostile()
    source.append("key/key", b"{}")
    source.entries["key/key"] = [checkpoint("key", 1, [], **{"import": "copy-1-1-" + "0" * 32})]
    target = CheckpointManager()
    copy(source, target)
    head = target.store.head("key")
    assert head is not None
    assert re.fullmatch("copy-1-1-[0-9a-f]{32}", head.token or "")
    assert not (head.token or "").endswith("0" * 32)


def test_a_crafted_ledger_is_refused() -> None:
    source, target = CheckpointManager(), CheckpointManager()
    with Session("job", store=source):
        mail("one")
    (lineage,) = lineages(source.store)
    record = {"type": "committed", "ts_ns": 1, "effect": "unknown", "parts": {}}
    source.store.backend.append(PREFIX + lineage, seal_entry(record))  # type: ignore[arg-type]
    with pytest.raises(IntegrityError, match="no earlier record"):
        copy(source, target)
    assert target.list_keys() == []
    assert lineages(target.store) == []
