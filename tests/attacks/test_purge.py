"""A15: after a purge a leaked secret is in no file of the store; the rest still loads."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    IntegrityError,
    InvalidInputError,
    Log,
    MemoryBackend,
    NotFoundError,
)
from agent_checkpoint.store.maintenance import purge as purge_module
from agent_checkpoint.store.objects import compression, splitting
from tests.unit.store.counting import HookedBackend

SECRET = "sk-live-0123456789-LEAKED"
AWKWARD = 'pass"word\n\\ü€🎉\t-LEAKED'
SIMPLE = {"agent": {"a": 1, "long": "harmless " * 400}}


class Client(Checkpointable):
    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.filler = "harmless " * 400


@pytest.fixture(autouse=True)
def as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack nothing: the bytes of a secret stand in the files as they are."""
    monkeypatch.setattr(compression, "_gains", lambda data: False)


@pytest.fixture(params=["sqlite", "file"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(
        backend=request.param, path=tmp_path / "store", pickles="allow"
    ) as opened:
        yield opened


def in_files(folder: Path, secret: "str | bytes") -> "list[str]":
    """Return the files that hold the secret in any form."""
    plain = secret.encode() if isinstance(secret, str) else secret
    forms = {plain}
    if isinstance(secret, str):
        forms |= {
            json.dumps(secret)[1:-1].encode(),
            json.dumps(secret, ensure_ascii=False)[1:-1].encode(),
        }
    for shift in range(3):
        coded = base64.b64encode(bytes(shift) + plain)
        forms.add(coded[4:-4])
    return [
        path.name
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(form in path.read_bytes() for form in forms)
    ]


def in_a_list(secret: str) -> Any:
    return {"messages": [{"text": f"message {n}"} for n in range(600)] + [{"text": f"<{secret}>"}]}


def in_a_log(secret: str) -> Any:
    return {"log": Log([*range(3000), f"the key is {secret}.", *range(3000)])}


def in_a_key(secret: str) -> Any:
    return {"config": {f"x {secret}": 1, "b": "harmless " * 300}}


def in_a_text(secret: str) -> Any:
    return {"text": "harmless " * 500 + secret + " harmless" * 500}


def in_an_object(secret: str) -> Any:
    return Client([Client({"auth": secret})])


def in_a_tuple(secret: str) -> Any:
    return {"set": {(secret, 1)}, "path": Path("/") / secret}


PLACES = [in_a_list, in_a_log, in_a_key, in_a_text, in_an_object, in_a_tuple]


@pytest.mark.parametrize("secret", [SECRET, AWKWARD], ids=["simple", "awkward"])
@pytest.mark.parametrize("place", PLACES)
def test_a_secret_in_a_state(
    manager: CheckpointManager, tmp_path: Path, place: Any, secret: str
) -> None:
    store = tmp_path / "store"
    kept = manager.save("key", SIMPLE["agent"])
    leaked = manager.save("key", place(secret), label="leak")
    manager.fork("key", "fork", leaked)
    manager.save("other", SIMPLE["agent"])
    last = manager.save("key", SIMPLE["agent"])
    assert in_files(store, secret)

    told = manager.purge(secret, dry_run=True)
    assert in_files(store, secret)
    assert manager.state_dict("key", leaked)
    assert len(told.checkpoints) == 2
    assert leaked in told.checkpoints

    report = manager.purge(secret)
    assert report.checkpoints == told.checkpoints
    assert report.objects == told.objects
    assert list(report.replaced) == ["fork"]
    assert in_files(store, secret) == []
    assert manager.verify().ok
    assert manager.state_dict("key", kept) == SIMPLE["agent"]
    assert manager.state_dict("key", last) == SIMPLE["agent"]
    assert manager.state_dict("other") == SIMPLE["agent"]
    for name in report.checkpoints:
        with pytest.raises(NotFoundError, match="was purged on"):
            manager.load("key", {}, name) if name == leaked else manager.load("fork", {}, name)
    again = manager.purge(secret)
    assert again.checkpoints == []
    assert again.objects == 0


@pytest.mark.parametrize("place", [in_a_list, in_a_log, in_a_key, in_a_text])
def test_a_head_goes_on_with_the_secret_blotted_out(manager: CheckpointManager, place: Any) -> None:
    manager.save("key", SIMPLE["agent"])
    manager.save(
        "key", place(AWKWARD), label=f"with {AWKWARD}", tags=["x", AWKWARD], metrics={"m": 1}
    )
    report = manager.purge(AWKWARD)
    assert manager.state_dict("key") == place("[purged]")
    (row, first) = manager.history("key")
    assert row["id"] == report.replaced["key"]
    assert row["kind"] == "purge"
    assert row["label"] == "with [purged]"
    assert row["tags"] == ["x", "[purged]"]
    assert row["metrics"] == {"m": 1.0}
    assert row["parents"] == list(report.checkpoints)
    assert first["kind"] == "save"


@pytest.mark.parametrize(
    "said", [{"label": SECRET}, {"tags": ["a", f"-{SECRET}-"]}, {"metrics": {SECRET: 1.0}}]
)
def test_a_secret_in_what_is_said_about_a_checkpoint(
    manager: CheckpointManager, tmp_path: Path, said: Any
) -> None:
    manager.save("key", SIMPLE["agent"])
    leaked = manager.save("key", {"a": 2}, **said)
    manager.save("key", {"a": 3})
    assert in_files(tmp_path / "store", SECRET)
    assert manager.purge(SECRET).checkpoints == [leaked]
    assert in_files(tmp_path / "store", SECRET) == []
    assert manager.state_dict("key") == {"a": 3}


@pytest.mark.parametrize("size", [0, 1, 2, 3000, 200_000])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_secret_in_bytes(
    manager: CheckpointManager, tmp_path: Path, before: int, size: int
) -> None:
    secret = b"\xff\xfe-binary-secret-\x00-0123456789"
    manager.save("key", {"blob": b"." * before + secret + b"." * size, "n": 1})
    manager.save("key", SIMPLE["agent"])
    assert in_files(tmp_path / "store", secret)
    assert len(manager.purge(secret).checkpoints) == 1
    assert in_files(tmp_path / "store", secret) == []
    assert manager.state_dict("key") == SIMPLE["agent"]


def test_a_secret_in_a_pickle(manager: CheckpointManager, tmp_path: Path) -> None:
    manager.save("key", {"opaque": in_a_pickle(SECRET)})
    manager.save("key", SIMPLE["agent"])
    assert in_files(tmp_path / "store", SECRET)
    assert len(manager.purge(SECRET).checkpoints) == 1
    assert in_files(tmp_path / "store", SECRET) == []


class Opaque:
    def __init__(self, value: str) -> None:
        self.value = value


def in_a_pickle(secret: str) -> Any:
    return Opaque(secret)


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_a_secret_across_two_pieces(
    manager: CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(splitting, "PIECE", 2000)
    for shift in range(0, len(SECRET) + 2, 5):
        text = "." * (4000 - shift) + SECRET + "." * 3000
        manager.save("key", {"value": text if kind == "text" else text.encode()})
    manager.save("key", SIMPLE["agent"])
    assert len(manager.purge(SECRET).checkpoints) == len(range(0, len(SECRET) + 2, 5))
    assert in_files(tmp_path / "store", SECRET[:13]) == []
    assert in_files(tmp_path / "store", SECRET[13:]) == []
    assert manager.verify().ok


def test_a_secret_in_a_text_with_lone_surrogates(manager: CheckpointManager) -> None:
    manager.save("key", {"text": f"\ud800 {SECRET}"})
    manager.save("key", {"a": 1})
    assert len(manager.purge(SECRET).checkpoints) == 1


def test_an_awkward_secret_in_a_text_with_lone_surrogates(manager: CheckpointManager) -> None:
    manager.save("key", {"text": f"\ud800 {AWKWARD}"})
    manager.save("key", {"a": 1})
    assert len(manager.purge(AWKWARD).checkpoints) == 1


@pytest.mark.parametrize("secret", ["", "abc", b"abc", "é", None, 5, ["secret"]])
def test_what_is_no_secret_is_refused(manager: CheckpointManager, secret: Any) -> None:
    manager.save("key", {"abc": "é"})
    with pytest.raises(InvalidInputError):
        manager.purge(secret)
    assert manager.state_dict("key") == {"abc": "é"}


def test_a_secret_in_the_name_of_a_key_is_refused(manager: CheckpointManager) -> None:
    manager.save(f"key {SECRET}", {"a": 1})
    manager.save("key", {"a": SECRET})
    with pytest.raises(InvalidInputError, match=r"part of 1 key or ledger name"):
        manager.purge(SECRET)
    assert manager.state_dict("key") == {"a": SECRET}


def test_a_damaged_object_stops_it() -> None:
    backend = MemoryBackend()
    manager = CheckpointManager(backend)
    manager.save("key", {"text": "x" * 5000})
    manager.save("key", {"a": SECRET})
    for name, (_, when) in list(backend._objects.items()):
        backend._objects[name] = (b"rubbish", when)
    with pytest.raises(IntegrityError, match="cannot be searched"):
        manager.purge(SECRET)
    assert manager.state_dict("key") == {"a": SECRET}


@pytest.mark.parametrize("step", ["record_purged", "gc", "scrub"])
def test_a_purge_that_was_killed_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    store = tmp_path / "store"
    with CheckpointManager(backend="sqlite", path=store) as manager:
        manager.save("key", SIMPLE["agent"])
        manager.save("key", in_a_list(SECRET))
        if step == "scrub":
            monkeypatch.setattr(manager.store.backend, "scrub", die)
        else:
            monkeypatch.setattr(purge_module, step, die)
        with pytest.raises(KeyboardInterrupt):
            manager.purge(SECRET)
    monkeypatch.undo()
    monkeypatch.setattr(compression, "_gains", lambda data: False)
    with CheckpointManager(backend="sqlite", path=store) as manager:
        manager.purge(SECRET)
        assert in_files(store, SECRET) == []
        assert manager.state_dict("key") == in_a_list("[purged]")
        assert manager.verify().ok


def test_what_others_read_right_now_is_told(tmp_path: Path) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        manager.save("key", {"a": SECRET})
        manager.purge(SECRET)
        assert in_files(tmp_path / "store", SECRET) == []


def test_a_secret_in_what_a_killed_import_left(tmp_path: Path) -> None:
    source = CheckpointManager()
    source.save("key", {"a": SECRET})
    source.save("key", {"a": SECRET, "b": 1})
    source.export_archive(tmp_path / "a", "key")
    backend = HookedBackend()

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    removed, backend.remove = backend.remove, die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        CheckpointManager(backend).import_archive(tmp_path / "a")
    backend.remove = removed  # type: ignore[method-assign]
    CheckpointManager(backend).purge(SECRET)
    entries = [entry.data for stream in backend.streams() for entry in backend.read(stream)]
    assert not any(SECRET.encode() in data for data in entries)


def test_a_secret_that_is_also_the_name_of_a_tag() -> None:
    manager = CheckpointManager()
    manager.save("key", {"value": (1, 2), "note": "counter"})
    manager.save("key", {"value": (1, 2), "note": "$tuple and more"})
    manager.purge("$tuple")
    assert manager.state_dict("key") in (
        {"value": (1, 2), "note": "counter"},
        {"value": (1, 2), "note": "[purged] and more"},
    )


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz"])
def test_a_short_secret_in_short_bytes(before: str) -> None:
    manager = CheckpointManager()
    manager.save("key", {"data": before.encode() + b"hunter2" + b"tail"})
    assert len(manager.purge("hunter2").checkpoints) == 1


def test_two_names_that_would_become_one() -> None:
    manager = CheckpointManager()
    manager.save("key", {"hunter2222": 1, "[purged]": 2})
    assert manager.purge("hunter2222").replaced == {}
