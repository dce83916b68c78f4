"""Masked archives: no secret in them, everything else as it was, and effects are not repeated."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Approvals,
    Checkpointable,
    CheckpointManager,
    EffectUnknownError,
    IntegrityError,
    InvalidInputError,
    Log,
    Session,
    StateError,
    Suspended,
    Workspace,
    tool,
)
from agent_checkpoint.core.codec.redacted_tree import mask_tree
from agent_checkpoint.records import Draft
from agent_checkpoint.store.archive.archive_file import OBJECT, _frames, export_archive
from agent_checkpoint.store.objects.object_format import open_object
from tests.secrets_of_each_kind import CORES, SECRETS, places
from tests.unit.session.stores import BACKENDS, Killed, killed, manager_on
from tests.unit.store.carried import fill

TOKEN = SECRETS["github-token"]
MASKED = "[masked:github-token]"


def content(path: Path) -> bytes:
    """Return the content of an archive, with its objects decompressed."""
    pieces = []
    with path.open("rb") as file:
        for kind, _, data in _frames(file, path):
            is_object = kind == OBJECT
            pieces.append(open_object(data[:32].hex(), data[32:]).payload if is_object else data)
    return b"\n".join(pieces)


def has(path: Path, secret: str) -> bool:
    """Return whether an archive has a secret, plain, in JSON or in base64."""
    plain = secret.encode()
    forms = {plain, json.dumps(secret)[1:-1].encode()}
    forms |= {base64.b64encode(bytes(shift) + plain)[4:-4] for shift in range(3)}
    found = content(path)
    return any(form in found for form in forms)


class Vault(Checkpointable):
    """A state with a secret in every kind of value."""

    def __init__(self, secret: str = "") -> None:
        self.plain = secret
        self.deep = [{"a": (secret, {secret})}]
        self.keys = {secret: 1, (secret, 2): 3}
        self.long = "x " * 2000 + secret
        self.bytes = secret.encode()
        self.blob = b"x " * 2000 + secret.encode()
        self.log: Log[Any] = Log([{"n": n, "text": f"{n} {secret}"} for n in range(200)])
        self.path = Path("/tmp", "" if "/" in secret else secret)
        self.numbers = list(range(600))


@pytest.mark.parametrize("kind", SECRETS)
def test_every_kind_of_secret_in_every_kind_of_value(kind: str, tmp_path: Path) -> None:
    manager = CheckpointManager()
    manager.save("key", Vault(SECRETS[kind]), label=SECRETS[kind], tags=[SECRETS[kind]])
    assert manager.export_archive(tmp_path / "exact", "key") == 1
    assert has(tmp_path / "exact", CORES[kind])
    assert manager.export_archive(tmp_path / "masked", "key", mask=True) == 1
    assert not has(tmp_path / "masked", CORES[kind])
    other = CheckpointManager()
    other.import_archive(tmp_path / "masked")
    assert places(other, CORES[kind]) == []
    assert other.verify().ok
    loaded = Vault()
    other.load("key", loaded)
    assert "[masked:" in loaded.plain
    assert loaded.numbers == list(range(600))
    assert [item["n"] for item in loaded.log] == list(range(200))
    assert all("[masked:" in item["text"] for item in loaded.log)
    assert "[masked:" in other.history("key")[0]["label"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_archive_without_matches_is_the_same(backend: str, tmp_path: Path) -> None:
    with manager_on(backend, tmp_path) as manager:
        fill(manager)
        manager.export_archive(tmp_path / "exact", "key")
        report = export_archive(manager.store, tmp_path / "masked", "key", mask_tree)
    assert (tmp_path / "masked").read_bytes() == (tmp_path / "exact").read_bytes()
    assert (report.checkpoints, report.masked, report.masked_checkpoints) == (6, 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_rest_is_kept(backend: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / ".env").write_text(f"GITHUB={TOKEN}\n")
    (files / "app.py").write_text("print(1)\n")
    with manager_on(backend, tmp_path) as manager:
        workspace = Workspace(files, store=manager.store)
        manager.save("key", {"a": {"n": 1}, "workspace": workspace}, label="first")
        manager.save("key", {"a": {"n": 2}}, label="gone")
        parts = {"a": {"n": 2, "password": "hunter2"}, "workspace": workspace}
        manager.save("key", parts, label="second", tags=["good"], metrics={"score": 0.5})
        manager.save("key", {"a": {"n": 3, "token": TOKEN, "text": "x" * 9000}})
        manager.delete("key", "key@2")
        report = export_archive(manager.store, tmp_path / "a", "key", mask_tree)
        rows = manager.history("key")
        workspace.close()
    assert (report.checkpoints, report.masked, report.masked_checkpoints) == (3, 2, 2)
    assert report.files_with_secrets == 1
    other = CheckpointManager()
    other.import_archive(tmp_path / "a")
    assert other.verify().ok
    found = other.history("key")
    for name in ("ts", "label", "tags", "metrics", "parts", "kind"):
        assert [row[name] for row in found] == [row[name] for row in rows]
    assert [len(row["parents"]) for row in found] == [1, 1, 0]
    assert other.state_dict("key")["a"] == {"n": 3, "token": MASKED, "text": "x" * 9000}
    second = other.state_dict("key", "key@2")
    assert second["a"] == {"n": 2, "password": "[masked:assignment]"}
    (tmp_path / "restored").mkdir()
    with Workspace(tmp_path / "restored", store=other.store) as restored:
        found = second["workspace"]
        restored.load_state_dict(found)
    assert (tmp_path / "restored" / ".env").read_text() == f"GITHUB={TOKEN}\n"
    assert not has(tmp_path / "a", "hunter2")


def test_numbers_are_those_of_the_store(tmp_path: Path) -> None:
    manager = CheckpointManager()
    for n in range(3):
        manager.save("key", {"n": n, "token": TOKEN})
    manager.delete("key", "key@2")
    exact, masked = tmp_path / "exact", tmp_path / "masked"
    manager.export_archive(exact, "key")
    manager.export_archive(masked, "key", mask=True)
    for path in (exact, masked):
        other = CheckpointManager()
        other.import_archive(path)
        assert [row["ts"] for row in other.history("key")] == [
            row["ts"] for row in manager.history("key")
        ]
        assert other.history("key")[0]["parents"] == [manager.history("key")[0]["parents"][0]]


# -- what cannot be masked -----------------------------------------------------------------------


class Opaque:
    def __init__(self) -> None:
        self.api_key = TOKEN


def test_a_pickle_with_a_secret_is_refused(tmp_path: Path) -> None:
    manager = CheckpointManager(pickles="allow")
    manager.save("key", {"client": [Opaque()]})
    (tmp_path / "a").write_text("before")
    with pytest.raises(StateError, match=r"agent\.client\[0\] contains a secret") as refused:
        manager.export_archive(tmp_path / "a", "key", mask=True)
    assert TOKEN not in str(refused.value)
    assert "--no-mask" in str(refused.value)
    assert (tmp_path / "a").read_text() == "before"
    assert manager.export_archive(tmp_path / "a", "key") == 1


@pytest.mark.parametrize("place", ["key", "part", "metric", "parent"])
def test_a_secret_in_a_name_is_refused(place: str, tmp_path: Path) -> None:
    manager = CheckpointManager()
    name = f"a {TOKEN}"
    key = name if place == "key" else "key"
    if place == "parent":
        manager.save(name, {"n": 1})
        manager.fork(name, "key")
    else:
        metrics = {name: 1.0} if place == "metric" else None
        part = name if place == "part" else "a"
        manager.save(key, {part: Vault(), "b": Vault()}, metrics=metrics)
    with pytest.raises(InvalidInputError, match="names cannot be masked") as refused:
        manager.export_archive(tmp_path / "a", key, mask=True)
    assert TOKEN not in str(refused.value)
    assert manager.export_archive(tmp_path / "a", key) == 1


MALFORMED: "list[Any]" = [
    {"$pickle": 1},
    {"$pickle": {"data": "AAAA"}},
    {"$bytes": 7},
    {"$dict": [1]},
    {"$dict": 1},
    {"$defaultdict": []},
    {"$ndarray": {}},
    {"$state": 1},
    {"$str": 1},
]


@pytest.mark.parametrize("tree", MALFORMED, ids=str)
def test_a_malformed_state_is_an_error(tree: Any, tmp_path: Path) -> None:
    manager = CheckpointManager()
    manager.store.write(Draft("key", {"agent": {"a": tree}}))
    with pytest.raises(IntegrityError, match="malformed"):
        manager.export_archive(tmp_path / "a", "key", mask=True)
    assert not (tmp_path / "a").exists()
    assert manager.export_archive(tmp_path / "a", "key") == 1


# -- sessions ------------------------------------------------------------------------------------


class Outside:
    """A service that counts what it is asked."""

    def __init__(self, name: str, **options: Any) -> None:
        self.done: list[str] = []
        self.dies = False
        options = {"effect": "irreversible", **options}

        @tool(name=name, **options)
        def push(token: str, password: str = "") -> str:
            self.done.append(token)
            if self.dies:
                raise Killed
            return f"pushed with {token}"

        self.push = push


def imported(manager: CheckpointManager, folder: Path) -> CheckpointManager:
    manager.export_archive(folder / "a", "job", mask=True)
    other = CheckpointManager(backend="sqlite", path=folder / "other")
    other.import_archive(folder / "a")
    assert other.verify().ok
    return other


@pytest.mark.parametrize("kind", ["github-token", "npm-token", "assignment", "private-key"])
def test_everything_of_a_session(kind: str, tmp_path: Path) -> None:
    secret, core = SECRETS[kind], CORES[kind]
    outside = Outside(f"push {kind}")
    asking = Outside(f"ask {kind}", approve=True)

    @tool(name=f"show {kind}")
    def show(text: str) -> "list[str]":
        return [text]

    manager = CheckpointManager()
    with pytest.raises(Suspended), Session("job", agent=Vault(secret), store=manager) as session:
        session.messages.append({"role": "user", "content": f"use {secret}"})
        (task,) = session.tasks(["one"])
        with task:
            task.note, task.result = secret, [secret]
            show(secret)
            outside.push(secret, password="correcthorse")
        session.save(label=f"after {secret}", tags=[secret])
        asking.push(secret)
    manager.export_archive(tmp_path / "exact", "job")
    with imported(manager, tmp_path) as other:
        for piece in (core, core[:30], "correcthorse"):
            assert has(tmp_path / "exact", piece)
            assert not has(tmp_path / "a", piece)
            assert places(other, piece) == []
        with Session("job", agent=Vault(), store=other) as session:
            assert "[masked:" in session.messages[0]["content"]
            assert "[masked:" in session.calls[0]["arguments"]["text"]
            assert "[masked:" in session.calls[1]["result"]


@pytest.mark.parametrize(
    "options", [{}, {"key": lambda password, **_: password}, {"key": lambda token, **_: token}]
)
def test_an_effect_is_found_again(options: "dict[str, Any]", tmp_path: Path) -> None:
    outside = Outside("push after import", **options)
    manager = CheckpointManager()
    with Session("job", store=manager) as session:
        first = session.save()
        outside.push(TOKEN, password="p")
        session.rollback(to=first, effects="warn")
    with imported(manager, tmp_path) as other, Session("job", store=other):
        assert outside.push(TOKEN, password="p") == f"pushed with {MASKED}"
    assert outside.done == [TOKEN]


def test_an_effect_in_doubt_is_verified_with_real_arguments(tmp_path: Path) -> None:
    asked: list[str] = []

    def verify(token: str) -> str:
        asked.append(token)
        return "it was"

    outside = Outside("push in doubt", verify=verify)
    outside.dies = True
    manager = CheckpointManager()
    with killed("job", manager):
        outside.push(TOKEN)
    with imported(manager, tmp_path) as other, Session("job", store=other):
        assert outside.push(TOKEN) == "it was"
    assert outside.done == asked == [TOKEN]


@pytest.mark.parametrize("first", ["none", SECRETS["npm-token"], TOKEN[:-1] + "Z"])
def test_a_call_with_masked_edits_is_not_made(first: str, tmp_path: Path) -> None:
    """Neither with the mask, nor with the arguments that the approver replaced."""
    outside = Outside("push edited", effect="idempotent", approve=True, key=lambda **_: "k")
    outside.dies = True
    manager = CheckpointManager()
    with pytest.raises(Suspended) as waits, Session("job", store=manager):
        outside.push(first)
    Approvals(manager).approve(waits.value.approval_id, edit={"token": TOKEN})
    with killed("job", manager):
        outside.push(first)
    with imported(manager, tmp_path) as other, Session("job", store=other):
        assert not has(tmp_path / "a", TOKEN)
        with pytest.raises(EffectUnknownError, match="outcome is unknown"):
            outside.push(first)
    assert outside.done == [TOKEN]


def test_long_dicts_with_other_keys(tmp_path: Path) -> None:
    """Their members are stored as a list, of pairs."""
    state: dict[Any, Any] = {(n, "x" * 20): n for n in range(500)}
    state["password"] = "hunter2"
    state[TOKEN], state[TOKEN[:-1] + "Z"] = 1, 2
    manager = CheckpointManager()
    manager.save("key", {"a": state})
    manager.export_archive(tmp_path / "a", "key", mask=True)
    other = CheckpointManager()
    other.import_archive(tmp_path / "a")
    found = other.state_dict("key")["a"]
    expected = {**state, "password": "[masked:assignment]", MASKED: 1, f"{MASKED} (2)": 2}
    del expected[TOKEN], expected[TOKEN[:-1] + "Z"]
    assert found == expected


def test_a_long_list_is_masked_once(tmp_path: Path) -> None:
    seen: list[int] = []

    def counted(tree: Any, name: str) -> Any:
        seen.append(len(json.dumps(tree, default=str)))
        return mask_tree(tree, name)

    manager, log = CheckpointManager(), Log[Any]()
    for n in range(60):
        log.append({"n": n, "text": "word " * 200 + (TOKEN if n == 7 else "")})
        manager.save("key", {"messages": log, "n": n})
    report = export_archive(manager.store, tmp_path / "a", "key", counted)
    assert report.masked == report.masked_checkpoints == 53
    other = CheckpointManager()
    other.import_archive(tmp_path / "a")
    assert other.verify().ok
    assert [item["n"] for item in other.state_dict("key")["messages"]] == list(range(60))
    whole = len(json.dumps(log.to_list()))
    assert sum(seen) < 5 * whole
