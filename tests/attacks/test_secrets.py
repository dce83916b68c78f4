"""A14: what an agent knows stays in its store: private modes, and no content in messages."""

import errno
import hashlib
import json
import os
import pickle
import resource
import stat
import traceback
from contextlib import contextmanager

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointError,
    CheckpointManager,
    ConflictError,
    FormatError,
    IntegrityError,
    InvalidInputError,
    KeepLatest,
    MigrationError,
    NotFoundError,
    StateError,
    StateMismatchError,
    StorageError,
    UntrustedDataError,
    register_migration,
)
from agent_checkpoint.store.checkpoint_entries import seal_entry
from tests.attacks.forging import forge, pickle_tag

# Put together here, so that a traceback that shows lines of this file does not show it.
CANARY = "-".join(["sk", "canary", "7f3a9c"])


class Vault(Checkpointable):
    """Its every value is secret."""

    def __init__(self):
        self.secret = CANARY
        self.nested = {"list": [CANARY, {"deep": CANARY}], "bytes": CANARY.encode()}

    def __repr__(self):
        return f"Vault({CANARY})"


class Other(Checkpointable):
    def __init__(self):
        self.unrelated = 1


class Unpicklable:
    """Cannot be captured, and shows its content when it is shown."""

    def __init__(self):
        self.secret = CANARY
        self.handle = (lambda: None,)

    def __repr__(self):
        return f"Unpicklable({CANARY})"


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def manager(store):
    manager = CheckpointManager(backend="file", path=store)
    manager.save("vault", Vault())
    return manager


@contextmanager
def no_secret(kind):
    """Expect an error of that kind whose text, and whose causes' texts, hold no content."""
    with pytest.raises(kind) as caught:
        yield
    error = caught.value
    assert isinstance(error, CheckpointError)
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert CANARY not in str(error)
    assert CANARY not in repr(error)
    assert CANARY not in shown


# -- no content in messages ----------------------------------------------------------------------


def test_the_canary_is_really_in_the_store(manager, store):
    """Else the tests below would show nothing."""
    assert CANARY.encode() in (store / "vault" / "1.json").read_bytes()


def test_what_cannot_be_captured(manager):
    with no_secret(StateError):
        manager.save("vault", {"secret": CANARY, "bad": Unpicklable()})
    with no_secret(StateError):
        manager.save("vault", {"deep": [{"x": (CANARY, Unpicklable())}]})
    agent = Vault()
    agent.nested["self"] = agent.nested
    with no_secret(StateError):
        manager.save("vault", agent)
    agent = Vault()
    for _ in range(500):
        agent.nested = [CANARY, agent.nested]
    with no_secret(StateError):
        manager.save("vault", agent)
    with no_secret(InvalidInputError):
        manager.save("vault", [CANARY])
    with no_secret(InvalidInputError):
        manager.save("vault", CANARY)
    with no_secret(InvalidInputError):
        manager.save("vault", Vault(), metrics={"score": CANARY})


def test_what_cannot_be_pickled(store):
    manager = CheckpointManager(backend="file", path=store, fmt="pickle")
    with no_secret(StateError):
        manager.save("vault", {"secret": CANARY, "bad": Unpicklable()})


def test_what_does_not_fit(manager):
    with no_secret(StateMismatchError):
        manager.load("vault", Other())
    with no_secret(StateMismatchError):
        manager.load("vault", {"part": Vault()})
    agent = Vault()
    del agent.secret
    agent.more = CANARY
    with no_secret(StateMismatchError):
        manager.load("vault", agent, strict=True)
    with no_secret(StateError):
        Vault().load_state_dict(CANARY)
    with no_secret(StateError):
        Vault().load_state_dict([CANARY])


def test_what_cannot_be_migrated(manager):
    class Vault(Checkpointable):
        def __init__(self):
            self.secret = None

        def _checkpoint_version(self):
            return "3.0"

    with no_secret(MigrationError):
        manager.load("vault", Vault())
    register_migration("Vault", from_version="1.0", to_version="3.0", fn=lambda state: CANARY)
    with no_secret(MigrationError):
        manager.load("vault", Vault())

    class Newer(Vault):
        def _checkpoint_version(self):
            return "0.1"

        def _checkpoint_name(self):
            return "Vault"

    with no_secret(StateError):
        manager.load("vault", Newer())


def test_what_is_not_there(manager):
    with no_secret(NotFoundError):
        manager.load("vaults", Vault())
    with no_secret(NotFoundError):
        manager.load("vault", Vault(), checkpoint_id="vault~9")
    with no_secret(NotFoundError):
        manager.delete("vault", "vault@9")
    with no_secret(NotFoundError):
        manager.prune("vaults", KeepLatest(1))


def test_conflicts(manager):
    first = manager.history("vault")[0]["id"]
    manager.save("vault", Vault())
    with no_secret(ConflictError):
        manager.save("vault", Vault(), expected_head=first)
    with no_secret(ConflictError):
        manager.load("vault", Vault(), expected_head=first)
    with no_secret(ConflictError):
        manager.fork("vault", "vault")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"deep"', b'"peed"', 1),
        lambda data: data[: len(data) // 2],
        lambda data: CANARY.encode(),
        lambda data: CANARY.encode() * 100,
        lambda data: seal_entry({"key": "another", "label": CANARY}),
        lambda data: seal_entry({"key": "vault", "ts_ns": CANARY, "kind": [CANARY]}),
        lambda data: sealed(b'{"secret": ' + CANARY.encode()),
        lambda data: sealed(b'"' + CANARY.encode() + b'"'),
    ],
)
def test_damaged_entries(manager, store, tmp_path, damage):
    path = store / "vault" / "1.json"
    path.write_bytes(damage(path.read_bytes()))
    with no_secret(IntegrityError):
        manager.load("vault", Vault())
    with no_secret(IntegrityError):
        manager.export_archive(tmp_path / "archive", "vault")
    assert CANARY not in str(manager.history("vault"))
    assert CANARY not in str(manager.verify())


def sealed(body):
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def test_a_newer_format(manager, store):
    path = store / "vault" / "1.json"
    record = json.loads(path.read_bytes())
    body = json.dumps({**record, "agent_checkpoint": 99, "sha256": ""})
    path.write_bytes(sealed(body[: body.rindex(", ")].encode()))
    with no_secret(FormatError):
        manager.load("vault", Vault())


@pytest.mark.parametrize(
    "tree",
    [
        {"$unknown": CANARY},
        {"$pickle": CANARY},
        {"$pickle": {"data": CANARY}},
        pickle_tag(pickle.dumps(CANARY)),
        pickle_tag(pickle.dumps(CANARY), seal="0" * 64),
        {"$type:missing.Type": {"secret": CANARY}},
        {"$tuple": CANARY},
        {"$set": [[CANARY]]},
        {"$dict": [[CANARY]]},
        {"$tuple": [], "$set": [CANARY]},
        {"$bytes": CANARY + "!"},
    ],
    ids=lambda tree: "+".join(tree),
)
def test_damaged_states(manager, store, tree):
    forge(store, "vault", {"secret": [tree]})
    with no_secret(StateError):
        manager.state_dict("vault")
    with no_secret(StateError):
        manager.load("vault", {})
    with no_secret(StateError):
        manager.diff("vault", agent={})


@pytest.mark.parametrize(
    ("tag", "payload"),
    [
        ("$datetime", CANARY),
        ("$date", CANARY),
        ("$decimal", CANARY),
        ("$uuid", CANARY),
        ("$int", CANARY),
        ("$float", CANARY),
        ("$str", CANARY + "\\"),
        ("$complex", [CANARY, CANARY]),
        ("$defaultdict", [CANARY, []]),
        ("$ndarray", CANARY),
    ],
)
def test_damaged_values_are_not_shown(manager, store, tag, payload):
    """The cause, which is Python's own error, may quote a damaged value; our message does not."""
    forge(store, "vault", {"secret": [{tag: payload}]})
    with pytest.raises(StateError) as caught:
        manager.state_dict("vault")
    assert CANARY not in str(caught.value)


def test_a_seal_of_another_secret(manager, store, monkeypatch):
    pickled = CheckpointManager(backend="file", path=store, fmt="pickle")
    pickled.save("pickled", Vault())
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "another secret, " * 4)
    with no_secret(UntrustedDataError):
        pickled.load("pickled", Vault())
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", CANARY)
    with no_secret(UntrustedDataError):
        pickled.load("pickled", Vault())


def test_damaged_archives(manager, tmp_path):
    archive = tmp_path / "archive"
    manager.export_archive(archive, "vault")
    with no_secret(ConflictError):
        manager.import_archive(archive)
    data = archive.read_bytes()
    for damaged in (data[:-30], data[:40] + b"!!!!" + data[44:], CANARY.encode() * 9, b""):
        archive.write_bytes(damaged)
        with no_secret(IntegrityError):
            CheckpointManager().import_archive(archive)
    with no_secret(StorageError):
        manager.import_archive(tmp_path / "missing")
    with no_secret(StorageError):
        manager.export_archive(tmp_path / "no" / "such" / "folder", "vault")


def test_a_medium_that_fails(manager, store):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1]))
    try:
        with no_secret(StorageError):
            manager.save("vault", {"secret": CANARY * 1000})
        with no_secret(StorageError):
            manager.save_in_background("vault", {"secret": CANARY * 1000})
            manager.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    (store / "blocked").write_text(CANARY)
    with no_secret(StorageError):
        manager.save("blocked", Vault())


def test_the_driver_s_error_is_kept_as_the_cause(manager):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1]))
    try:
        with pytest.raises(StorageError) as caught:
            manager.save("vault", {"secret": CANARY * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert caught.value.__cause__.errno == errno.EFBIG


# -- private modes -------------------------------------------------------------------------------


@pytest.fixture
def open_umask():
    usual = os.umask(0)
    yield
    os.umask(usual)


def check_private(*roots):
    seen = [item for root in roots for item in [root, *root.rglob("*")]]
    for item in seen:
        mode = stat.S_IMODE(item.lstat().st_mode)
        assert mode == (0o700 if item.is_dir() else 0o600), item
    return seen


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("fmt", ["json", "pickle"])
def test_a_store_is_private_under_umask_0(tmp_path, own_home, fmt):
    store = tmp_path / "deep" / "store"
    with CheckpointManager(backend="file", path=store, fmt=fmt, pickles="allow") as manager:
        manager.save("vault", Vault())
        manager.save("Other", {"class": Vault, "secret": CANARY})  # needs a sealed pickle
        manager.save_in_background("vault", Vault()).result()
        manager.fork("vault", "fork")
        manager.delete("vault", "vault")
        manager.export_archive(tmp_path / "deep" / "archive", "vault")
        manager.delete("vault")
        manager.import_archive(tmp_path / "deep" / "archive")
        manager.gc()
    check_private(tmp_path / "deep")
    secrets = check_private(own_home / "config")
    assert any(item.name == "secret" for item in secrets)


@pytest.mark.usefixtures("open_umask")
def test_no_copy_of_the_content_is_left_elsewhere(tmp_path, own_home, manager, store):
    """Not in the temporary directory of the store, not at home, not beside it."""
    manager.save("vault", {"secret": CANARY * 100})
    manager.delete("vault")
    for root in (store, own_home, tmp_path):
        for item in root.rglob("*"):
            assert not item.is_file() or CANARY.encode() not in item.read_bytes(), item
