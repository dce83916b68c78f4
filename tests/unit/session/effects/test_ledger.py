"""The ledger: records of one family, in order, whoever writes them."""

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, ConflictError, IntegrityError, StorageError
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.store.ledger.ledger_state import Epoch, LedgerState
from agent_checkpoint.store.ledger.lineage import lineages
from agent_checkpoint.store.record_stream import RecordStream


@pytest.fixture
def ledger(manager: CheckpointManager) -> Ledger:
    return Ledger(manager.store, "family")


def start(ledger: Ledger, name: str = "e1", **record: Any) -> int:
    values: dict[str, Any] = {
        "effect": name,
        "session": "work",
        "epoch": 1,
        "kind": "irreversible",
        "tool": "mail",
        "module": "shop",
        "identity": "i1",
        "also": None,
        "digest": "d1",
        "task": None,
        "at": "work_1-1",
        "words": "mail()",
        "generation": 0,
        "request": None,
    }
    parts = {"arguments": encode({"to": "ann"})}
    return ledger.append("started", parts=parts, **{**values, **record})


def ask(ledger: Ledger, name: str = "r1", expires: "Any" = None) -> int:
    return ledger.append(
        "asked",
        parts={"arguments": encode({"to": "ann"})},
        request=name,
        session="work",
        tool="mail",
        module="shop",
        identity="i1",
        digest="d1",
        task=None,
        at="work_1-2",
        expires=expires,
        words="mail()",
    )


def answer(ledger: Ledger, name: str = "r1", approved: bool = True) -> int:
    return ledger.append(
        "answered", request=name, approved=approved, reason=None, by=None, parts={}
    )


def again(ledger: Ledger) -> Ledger:
    other = Ledger(ledger.store, ledger.lineage)
    other.refresh()
    return other


# -- what follows from the records ---------------------------------------------------------------

AFTER: "list[tuple[list[tuple[str, dict[str, Any]]], str, bool]]" = [
    ([], "unknown", True),
    ([("committed", {"parts": {}})], "committed", True),
    ([("failed", {"note": "n"})], "failed", False),
    ([("resolved", {"happened": True, "note": "", "parts": {}})], "committed", True),
    ([("resolved", {"happened": False, "note": "", "parts": {}})], "failed", False),
    ([("committed", {"parts": {}}), ("undoing", {})], "undoing", True),
    ([("committed", {"parts": {}}), ("undoing", {}), ("undone", {})], "undone", False),
    (
        [
            ("committed", {"parts": {}}),
            ("undoing", {}),
            ("resolved", {"happened": True, "note": "", "parts": {}}),
        ],
        "committed",
        True,
    ),
    (
        [
            ("committed", {"parts": {}}),
            ("undoing", {}),
            ("resolved", {"happened": False, "note": "", "parts": {}}),
        ],
        "undone",
        False,
    ),
    ([("failed", {"note": "n"}), ("committed", {"parts": {}})], "committed", True),
    # What comes too late changes nothing.
    ([("committed", {"parts": {}}), ("failed", {"note": "n"})], "committed", True),
    ([("undoing", {})], "unknown", True),
    ([("committed", {"parts": {}}), ("undone", {})], "committed", True),
    (
        [("committed", {"parts": {}}), ("undoing", {}), ("failed", {"note": "n"})],
        "undoing",
        True,
    ),
    (
        [
            ("committed", {"parts": {}}),
            ("undoing", {}),
            ("undone", {}),
            ("committed", {"parts": {}}),
        ],
        "undone",
        False,
    ),
    (
        [
            ("committed", {"parts": {}}),
            ("resolved", {"happened": False, "note": "", "parts": {}}),
        ],
        "committed",
        True,
    ),
    ([("failed", {"note": "n"}), ("undoing", {})], "failed", False),
]


@pytest.mark.parametrize(("records", "status", "stands"), AFTER)
def test_what_became_of_an_effect(
    ledger: Ledger, records: "list[tuple[str, dict[str, Any]]]", status: str, stands: bool
) -> None:
    start(ledger)
    for what, record in records:
        ledger.append(what, effect="e1", **record)
    for seen in (ledger, again(ledger)):
        assert seen.state.effects["e1"].status == status
        assert seen.state.effects["e1"].stands is stands


def test_what_became_of_a_request(ledger: Ledger) -> None:
    for name in ("pending", "approved", "denied", "used", "void", "late", "with an effect"):
        ask(ledger, name, expires=1.0 if name == "late" else None)
    answer(ledger, "approved")
    answer(ledger, "denied", approved=False)
    answer(ledger, "used")
    ledger.append("used", request="used")
    ledger.append("void", requests=["void"])
    answer(ledger, "with an effect")
    start(ledger, request="with an effect")
    found = again(ledger).state.requests
    assert {name: request.status for name, request in found.items()} == {
        "pending": "pending",
        "approved": "approved",
        "denied": "denied",
        "used": "used",
        "void": "void",
        "late": "pending",
        "with an effect": "used",
    }
    assert [name for name, request in found.items() if request.is_open] == ["pending"]


def test_an_effect_is_found_by_either_identity(ledger: Ledger) -> None:
    start(ledger, "e1", identity="a", also="b")
    start(ledger, "e2", identity="b")
    assert [effect.id for effect in ledger.effects_of("b")] == ["e1", "e2"]
    assert [effect.id for effect in ledger.effects_of("a")] == ["e1"]
    assert ledger.effects_of("c") == []


def test_which_checkpoints_are_needed(ledger: Ledger) -> None:
    start(ledger, "unknown", at="a")
    start(ledger, "done", at="b")
    ledger.append("committed", effect="done", parts={})
    ask(ledger)
    ask(ledger, "late", expires=1.0)
    assert list(ledger.state.pinned_checkpoints()) == ["a", "work_1-2"]
    answer(ledger)
    assert list(ledger.state.pinned_checkpoints()) == ["a", "work_1-2"]
    ledger.append("used", request="r1")
    assert list(ledger.state.pinned_checkpoints()) == ["a"]


def test_large_parts_come_back(ledger: Ledger) -> None:
    tree = encode({"data": b"x" * 3_000_000, "list": list(range(5000))})
    start(ledger)
    ledger.append("committed", effect="e1", parts={"result": tree})
    effect = again(ledger).state.effects["e1"]
    reader = ledger.stream.reader({"result": effect.parts["result"]})
    from agent_checkpoint.core.loading import decode_part

    found = decode_part(effect.parts["result"], "result", reader=reader).value
    assert found == {"data": b"x" * 3_000_000, "list": list(range(5000))}


def test_records_are_numbered_without_gaps(ledger: Ledger) -> None:
    assert [start(ledger, name) for name in "abc"] == [1, 2, 3]
    assert ledger.seq == 3
    assert [seq for seq, _ in RecordStream(ledger.store, "fx/family").read(1)] == [2, 3]


def test_one_that_was_set_back_is_refused(ledger: Ledger) -> None:
    for name in "abc":
        start(ledger, name)
    ledger.store.backend.remove("fx/family", [2, 3])
    with pytest.raises(IntegrityError, match="'family' was truncated"):
        start(ledger, "d")
    assert start(again(ledger), "d") > 1


def test_the_families_of_a_store(manager: CheckpointManager) -> None:
    assert lineages(manager.store) == []
    for name in ("b", "a/with slashes", "é"):
        start(Ledger(manager.store, name))
    assert lineages(manager.store) == sorted(["b", "a/with slashes", "é"])


# -- who may write -------------------------------------------------------------------------------


def test_an_older_epoch_is_refused(ledger: Ledger) -> None:
    old, new = Epoch("work", 1), Epoch("work", 2)
    for epoch in (old, new):
        ledger.append("epoch", session="work", epoch=epoch.number)
    with pytest.raises(ConflictError, match="'work' was opened again elsewhere"):
        ledger.append("undoing", fence=old, effect="e1")
    ledger.check(new)
    ledger.check(Epoch("another", 1))
    assert again(ledger).seq == 2


def test_epochs_that_are_recorded_in_another_order(ledger: Ledger) -> None:
    for number in (2, 1):
        ledger.append("epoch", session="work", epoch=number)
    assert again(ledger).state.epochs["work"].number == 2


def test_an_epoch_among_those_of_many_others(ledger: Ledger, monkeypatch: Any) -> None:
    start(ledger)
    other, append, others = again(ledger), ledger.stream.append, iter((1, 2))

    def append_later(*args: Any, **options: Any) -> Any:
        other.append("epoch", session="other", epoch=next(others))  # just before each attempt
        return append(*args, **options)

    monkeypatch.setattr(ledger.stream, "append", append_later)
    assert ledger.append("epoch", session="work", epoch=1) == 4
    assert ledger.seq == 4
    found = {name: epoch.number for name, epoch in ledger.state.epochs.items()}
    assert found == {"other": 2, "work": 1}


@pytest.mark.parametrize("others", [0, 3])
def test_an_epoch_after_records_that_were_lost(
    ledger: Ledger, monkeypatch: Any, others: int
) -> None:
    start(ledger)
    again(ledger).append("epoch", session="other", epoch=1)
    append = ledger.stream.append

    def append_later(*args: Any, **options: Any) -> Any:
        if options["after"] is not None:
            return append(*args, **options)
        ledger.store.backend.remove("fx/family", [1, 2])
        appended = append(*args, **options)
        for number in range(others):
            again(ledger).append("epoch", session=f"later {number}", epoch=1)
        return appended

    monkeypatch.setattr(ledger.stream, "append", append_later)
    with pytest.raises(IntegrityError, match="'family' was truncated"):
        ledger.append("epoch", session="work", epoch=1)


def test_an_epoch_of_another_process_is_seen(ledger: Ledger) -> None:
    mine = Epoch("work", 1)
    again(ledger).append("epoch", session="work", epoch=2)
    with pytest.raises(ConflictError):
        start_with = {"fence": mine}
        ledger.append("undoing", effect="e1", **start_with)  # type: ignore[arg-type]


def test_a_guard_sees_what_others_have_written(ledger: Ledger) -> None:
    start(again(ledger))
    seen = []
    ledger.append("finished", guard=lambda: seen.extend(ledger.state.effects), checkpoint="c")
    assert seen == ["e1"]


def test_a_guard_that_refuses_writes_nothing(ledger: Ledger) -> None:
    def guard() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        ledger.append("finished", guard=guard, checkpoint="c")
    assert again(ledger).state.finished == set()


def test_a_guard_is_asked_again_if_somebody_was_faster(ledger: Ledger) -> None:
    asked = []

    def guard() -> None:
        asked.append(len(ledger.state.effects))
        if len(asked) == 1:
            start(again(ledger))  # after the guard, before the record

    ledger.append("finished", guard=guard, checkpoint="c")
    assert asked == [0, 1]
    assert again(ledger).seq == 2


def test_many_writers_lose_nothing(manager: CheckpointManager) -> None:
    def write(name: str) -> None:
        ledger = Ledger(manager.store, "family")
        for number in range(10):
            start(ledger, f"{name}{number}")

    threads = [Thread(target=write, args=(name,)) for name in "abcd"]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    found = Ledger(manager.store, "family")
    found.refresh()
    assert len(found.state.effects) == 40
    assert found.seq == 40


def test_threads_that_share_a_ledger_lose_nothing(ledger: Ledger) -> None:
    def write(name: str) -> None:
        for number in range(10):
            start(ledger, f"{name}{number}")

    threads = [Thread(target=write, args=(name,)) for name in "abcd"]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(ledger.state.effects) == len(again(ledger).state.effects) == 40


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        {"type": "started"},
        {"type": "committed", "effect": "none", "parts": {}},
        {"type": "used", "request": "none"},
        {"type": "epoch", "session": "work", "epoch": "x"},
        {},
    ],
)
def test_a_record_that_makes_no_sense_is_damage(ledger: Ledger, record: "dict[str, Any]") -> None:
    ledger.stream.append(record, {}, after=None)
    with pytest.raises(IntegrityError, match="Record 1 of the ledger 'family'"):
        ledger.refresh()


@pytest.mark.parametrize("name", ["take", "lock", "later", "post_init__"])
def test_a_record_of_a_later_version_is_passed_over(ledger: Ledger, name: str) -> None:
    ledger.stream.append({"type": name}, {}, after=None)
    start(ledger)
    assert ledger.seq == 2


def test_a_record_that_was_altered_is_damage(tmp_path: Path) -> None:
    with CheckpointManager(backend="file", path=tmp_path / "s") as manager:
        start(Ledger(manager.store, "family"))
        (entry,) = [path for path in (tmp_path / "s").rglob("1.json") if "fx" in str(path)]
        entry.write_text(entry.read_text().replace("mail()", "post()"))
        with pytest.raises(IntegrityError):
            Ledger(manager.store, "family").refresh()


def test_a_medium_that_fails_is_told(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> int:
        raise StorageError("full")

    monkeypatch.setattr(ledger.store.backend, "append", broken)
    with pytest.raises(StorageError, match="full"):
        start(ledger)
    assert ledger.state.effects == {}


def test_what_a_purge_replaces_is_read_in_its_old_place(ledger: Ledger) -> None:
    start(ledger)
    ledger.append("committed", effect="e1", parts={"result": encode("secret")})
    ledger.append("undoing", effect="e1")
    ledger.append("undone", effect="e1")
    ask(ledger)
    ledger.append("answered", request="r1", approved=True, by="secret", reason=None, parts={})
    ledger.append("used", request="r1")
    effect, request = ledger.state.effects["e1"], ledger.state.requests["r1"]
    committed = {"type": "committed", "ts_ns": 1, "effect": "e1", "instead": 2}
    answer = {"approved": True, "by": "-", "reason": None}
    answered = {"type": "answered", "ts_ns": 1, "request": "r1", "instead": 6, **answer}
    for record, seq in ((committed, 2), (answered, 6)):
        ledger.stream.append(record, {}, after=None)
        ledger.store.backend.remove(ledger.stream.name, [seq])
    ledger.refresh()
    assert ledger.state.effects["e1"] is effect is ledger.effects_of("i1")[0]
    assert ledger.state.requests["r1"] is request
    assert ledger.state.requests_of[request.identity]["r1"] is request
    assert (effect.status, request.status, request.by) == ("undone", "used", "-")
    assert "result" not in effect.parts
    assert ledger.seq == again(ledger).seq


def test_effects_are_found_by_either_identity(ledger: Ledger) -> None:
    start(ledger, "e1", also="i2")
    start(ledger, "e2", identity="i2")
    for seen in (ledger, again(ledger)):
        assert [effect.id for effect in seen.effects_of("i1")] == ["e1"]
        assert [effect.id for effect in seen.effects_of("i2")] == ["e1", "e2"]
        assert seen.effects_of("i3") == []


def test_what_was_interrupted_while_it_was_read_is_read_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = again(ledger)
    start(ledger)

    def interrupted(state: LedgerState, effect: Effect) -> None:
        state.effects[effect.id] = effect
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(LedgerState, "_add_effect", interrupted)
        with pytest.raises(ZeroDivisionError):
            other.refresh()
    other.refresh()
    assert [effect.id for effect in other.effects_of("i1")] == ["e1"]
