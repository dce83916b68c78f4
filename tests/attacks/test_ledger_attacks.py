"""Ledgers with records that nobody wrote: every verb says so by an error of ours, and no other."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_checkpoint import (
    Approvals,
    CheckpointError,
    CheckpointManager,
    IntegrityError,
    KeepLatest,
    Session,
    Suspended,
    list_sessions,
    tool,
)
from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.ledger.ledger_records import PREFIX


@tool(effect="idempotent", key=lambda to: to)
def mail(to: str) -> str:
    return f"mailed {to}"


@tool(effect="irreversible", key=lambda to: to, approve=True)
def wire(to: str) -> str:
    return f"wired to {to}"


CALL = {
    "session": "job",
    "tool": "wire",
    "module": __name__,
    "part": None,
    "identity": "i",
    "digest": "d",
    "task": None,
    "at": "job_1-1",
    "words": "wire(to='eve')",
    "parts": {"arguments": {"to": "eve"}},
}
STARTED = {"effect": "e", "epoch": 1, "kind": "irreversible", "also": None, "generation": 0}
SOUND: "dict[str, dict[str, Any]]" = {
    "epoch": {"session": "job", "epoch": 1},
    "started": {**CALL, **STARTED, "request": None},
    "committed": {"effect": "e", "described": False, "parts": {"result": 1}},
    "failed": {"effect": "e", "note": "n"},
    "resolved": {"effect": "e", "happened": True, "note": "n", "parts": {"result": 1}},
    "undoing": {"effect": "e"},
    "undone": {"effect": "e"},
    "asked": {**CALL, "request": "r", "expires": None},
    "answered": {"request": "r", "approved": True, "reason": None, "by": None, "parts": {}},
    "used": {"request": "r"},
    "void": {"requests": ["r"], "reason": "why"},
    "finished": {"checkpoint": "job_1-1"},
    "imported": {},
}
"""One record of each type, as it must be."""
NEEDS = {"committed": "started", "failed": "started", "resolved": "started", "undoing": "started"}
NEEDS |= {"undone": "started", "answered": "asked", "used": "asked", "void": "asked"}

TEXTS: "list[Any]" = [5, ["a"], {"a": 1}]
NAMES: "list[Any]" = [*TEXTS, None]
FLAGS: "list[Any]" = ["yes", 1, None, []]
NUMBERS: "list[Any]" = ["1", -1, 1.5, True, None, [], {}, 10**30]
WRONG: "dict[str, list[Any]]" = {
    **dict.fromkeys(("session", "tool", "module", "identity", "digest", "at"), NAMES),
    **dict.fromkeys(("words", "note", "kind", "effect", "checkpoint"), NAMES),
    **dict.fromkeys(("task", "part", "also", "by", "reason"), TEXTS),
    **dict.fromkeys(("approved", "happened"), FLAGS),
    **dict.fromkeys(("epoch", "generation", "ts_ns"), NUMBERS),
    "described": ["yes", 1, []],
    "request": TEXTS,
    "requests": [None, 5, "r", {"r": 1}, [5], [["r"]], [None]],
    "expires": ["never", True, [], {}],
    "parts": [None, 5, "x", ["arguments"], [["a", 1]]],
    "instead": ["1", -1, 0, 1.5, True, [], {}, 10**9, 10**30],
    "type": [None, 5, ["started"], {"started": 1}],
}
CASES = [
    pytest.param(what, {**record, "type": what, field: wrong}, id=f"{what}-{field}-{wrong}")
    for what, record in SOUND.items()
    for field in (*record, "ts_ns", "parts", "instead", "type")
    for wrong in WRONG[field]
]
OPTIONAL = ("also", "part", "task", "expires", "described", "parts", "reason", "by")
LACKING = [
    pytest.param(what, {name: record[name] for name in record if name != field}, field)
    for what, record in SOUND.items()
    for field in record
    if field not in OPTIONAL and (what, field) != ("started", "request")
]
STRANGE = [
    pytest.param("committed", {"effect": "nobody's", "parts": {}}, id="committed, not begun"),
    pytest.param("started", {**SOUND["started"], "request": "nobody's"}, id="not asked"),
    pytest.param("void", {"requests": ["nobody's"]}, id="void, not asked"),
]


class Place:
    """A store with a session whose ledger can be written to, and one that is sound."""

    def __init__(self, tmp_path: Path) -> None:
        self.manager = CheckpointManager()
        self.other = CheckpointManager()
        self.archive = tmp_path / "job.ckpt"
        self.waiting: dict[str, str] = {}
        for key in ("sound", "job"):
            with Session(key, store=self.manager) as session:
                self.start = session.save()
                mail("ann")
                self.waiting[key] = _ask("ann")
        self.stream = PREFIX + session._state.ledger.lineage

    def forge(self, what: str, record: "dict[str, Any]") -> int:
        """Append a record with a right hash, whatever is in it, and return its number."""
        sealed = seal_entry({"type": what, "ts_ns": 1, "parts": {}, **record})
        backend = self.manager.store.backend
        return backend.append(self.stream, sealed, after=None)

    def damage(self, what: str, record: "dict[str, Any]") -> int:
        """Append what a record needs before it, and the record."""
        if what in NEEDS:
            self.forge(NEEDS[what], SOUND[NEEDS[what]])
        return self.forge(what, record)


def _ask(to: str) -> str:
    with pytest.raises(Suspended) as caught:
        wire(to)
    return caught.value.approval_id


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def export_and_import(place: Place) -> None:
    place.manager.export_archive(place.archive, "job")
    place.other.import_archive(place.archive)
    with Session("job", store=place.other):
        pass


def work(place: Place) -> None:
    with Session("job", store=place.manager) as session:
        _ = session.effects, session.notices
        mail("ann")
        mail("bob")
        session.approvals.approve(place.waiting["job"])
        session.carry_out()
        _ask("eve")
        session.rollback(to=place.start, effects="warn")


def approve(place: Place) -> None:
    approvals = Approvals(place.manager.store)
    approvals.approve(place.waiting["job"], edit={"to": "bob"}, by="Ann")


VERBS: "dict[str, Callable[[Place], Any]]" = {
    "open": lambda place: Session("job", store=place.manager).close(),
    "work": work,
    "answer": approve,
    "get": lambda place: Approvals(place.manager.store).get("nobody's"),
    "prune": lambda place: place.manager.prune("job", KeepLatest(1)),
    "purge": lambda place: place.manager.purge("a secret that is nowhere"),
    "archives": export_and_import,
}
QUIET: "dict[str, Callable[[Place], Any]]" = {
    "gc": lambda place: place.manager.gc(),
    "verify": lambda place: place.manager.verify(),
    "pending": lambda place: Approvals(place.manager.store).pending(),
    "list": lambda place: list_sessions(place.manager.store),
}


def refused(verb: "Callable[[Place], Any]", place: Place) -> "CheckpointError | None":
    """Run a verb, and return the error of ours that it raised; any other goes through."""
    try:
        verb(place)
    except CheckpointError as error:
        return error
    return None


@pytest.mark.parametrize(("what", "record"), [*CASES, *STRANGE])
def test_a_record_of_another_shape_is_damage(
    place: Place, what: str, record: "dict[str, Any]"
) -> None:
    number = place.damage(what, record)
    said = refused(VERBS["open"], place)
    assert isinstance(said, IntegrityError)
    assert f"Record {number} of the ledger {place.stream[len(PREFIX) :]!r}" in str(said)
    for name, verb in VERBS.items():
        error = refused(verb, place)
        is_shape = record not in [case.values[1] for case in STRANGE]
        assert isinstance(error, CheckpointError) or (name == "purge" and not is_shape), name
    for verb in QUIET.values():
        assert isinstance(refused(verb, place), (IntegrityError, type(None)))


@pytest.mark.parametrize(("what", "record", "field"), LACKING)
def test_a_record_that_lacks_something_is_damage(
    place: Place, what: str, record: "dict[str, Any]", field: str
) -> None:
    place.damage(what, record)
    assert field in str(refused(VERBS["open"], place))


@pytest.mark.parametrize("what", SOUND)
def test_a_record_as_it_must_be_is_none(place: Place, what: str) -> None:
    place.damage(what, SOUND[what])
    for verb in (VERBS["open"], VERBS["prune"], VERBS["purge"], VERBS["archives"]):
        assert refused(verb, place) is None
    assert place.manager.verify().ok


def test_one_damaged_ledger_hides_no_other(place: Place) -> None:
    number = place.damage("asked", {**SOUND["asked"], "expires": "never"})
    approvals = Approvals(place.manager)  # type: ignore[arg-type]
    found, unreadable = approvals.pending()
    assert found.id == place.waiting["sound"]
    assert (unreadable.status, unreadable.is_open) == ("unreadable", False)
    assert f"Record {number} of the ledger" in str(unreadable.reason)
    assert approvals.pending("sound")[0] == found
    approvals.approve(found.id)
    for name in (unreadable.id, place.waiting["job"], "nobody's"):
        with pytest.raises(IntegrityError, match=f"Record {number} of the ledger"):
            approvals.get(name)
    rows = {row.key: row for row in list_sessions(place.manager.store)}
    assert rows["sound"].trouble is None
    assert f"Record {number}" in str(rows["job"].trouble)
    assert rows["job"].head == place.manager.history("job")[0]["id"]
    place.manager.prune("sound", KeepLatest(1))
    with pytest.raises(IntegrityError, match=f"Record {number} of the ledger"):
        place.manager.prune("job", KeepLatest(1))
    (problem,) = place.manager.verify().problems
    assert problem.checkpoint == place.stream
    assert f"Record {number}" in problem.reason


@pytest.mark.parametrize(
    "arguments", [None, 5, "to", ["to"], [["to", "eve"]], {"$tuple": []}, {"$dict": [[1, 2]]}]
)
@pytest.mark.parametrize("name", ["arguments", "edited"])
def test_arguments_that_are_none(place: Place, name: str, arguments: Any) -> None:
    request = {**SOUND["asked"], "parts": {"arguments": {"to": "eve"}}}
    answer = dict(SOUND["answered"])
    (request if name == "arguments" else answer)["parts"] = {name: arguments}
    number = place.forge("asked", request)
    approvals = Approvals(place.manager.store)
    if name == "arguments":
        with pytest.raises(IntegrityError, match=f"ecord {number} of the ledger"):
            approvals.approve("r", edit={"to": "bob"})
    place.forge("answered", answer)
    with Session("job", store=place.manager) as session:
        (row,) = session.carry_out()
        assert row["error"].startswith("IntegrityError")
    with pytest.raises(IntegrityError):
        approvals.arguments("r")


def test_the_effects_arguments_that_are_none(place: Place) -> None:
    def undo(to: str) -> None:
        pass

    @tool(effect="reversible", key=lambda to: to, undo=undo, verify=lambda to: None)
    def book(to: str) -> str:
        return to

    started = {**SOUND["started"], "tool": book.tool.name, "parts": {"arguments": ["to"]}}
    place.forge("started", {**started, "kind": "reversible"})
    with Session("job", store=place.manager) as session:
        assert len(session.notices) == 1
        session._state.effects.verify_unknown()
        session.resolve("e", happened=True)
        with pytest.raises(CheckpointError):
            session.rollback(to=place.start, effects="compensate")


# -- archives --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 2, 10**15])
def test_an_archive_with_numbers_that_no_ledger_has(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    from agent_checkpoint.store.archive import archive_file

    entries = archive_file.read_ledger

    def renumbered(*args: Any) -> "Iterator[Any]":
        *others, last = entries(*args)
        yield from [*others, last._replace(seq=number)]

    monkeypatch.setattr(archive_file, "read_ledger", renumbered)
    place.manager.export_archive(place.archive, "job")
    with pytest.raises(IntegrityError, match=r"numbers"):
        place.other.import_archive(place.archive)
    assert place.other.list_keys() == []
    assert list(place.other.store.backend.streams(PREFIX)) == []


@pytest.mark.parametrize(("what", "record"), [*STRANGE, ("undone", {"effect": 5})])
def test_an_archive_with_a_damaged_ledger_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str, record: "dict[str, Any]"
) -> None:
    from agent_checkpoint.store.archive import archive_file
    from agent_checkpoint.store.ledger import ledger_archive

    place.forge(what, record)
    with monkeypatch.context() as patch:
        for module in (archive_file, ledger_archive):
            patch.setattr(module, "check_records", lambda *_: None, raising=False)
            patch.setattr(module, "check_record", lambda *_: None, raising=False)
        place.manager.export_archive(place.archive, "job")
    with pytest.raises(IntegrityError):
        place.other.import_archive(place.archive)
    assert list(place.other.store.backend.streams(PREFIX)) == []


# -- anything at all -------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["e", "r", "job"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["arguments", "$object", "$tuple"]), inner, max_size=2)
    ),
    max_leaves=4,
)
FIELDS = st.sampled_from(sorted(WRONG))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(what=st.sampled_from(sorted(SOUND)), changes=st.dictionaries(FIELDS, JSON, max_size=3))
@example(what="answered", changes={"also": None, "parts": {"$object": None}})
def test_whatever_a_record_says(
    tmp_path_factory: pytest.TempPathFactory, what: str, changes: "dict[str, Any]"
) -> None:
    place = Place(tmp_path_factory.mktemp("ledger"))
    place.damage(what, {**SOUND[what], **changes})
    for verb in [*QUIET.values(), *VERBS.values()]:
        refused(verb, place)
