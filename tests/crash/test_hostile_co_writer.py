"""A store that users share, and one of them is hostile: what it can do is to destroy, no more.

Each seed is an attack of several steps by another user (really another one, where the tests run as
root). Then the victim uses all that there is. It may be refused. It must not hang, run anything,
take for its own what it has not sealed under that key, act without approval, or lose what is
outside of the shared store.
"""

import ctypes  # noqa: F401 - other users may not be able to read the directory it is in
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Approvals,
    CheckpointError,
    CheckpointManager,
    Session,
    Suspended,
    tool,
)
from agent_checkpoint.store.checkpoint_entries import seal_entry
from tests.attacks.forging import pickle_tag, poisoned

_SAMPLE, _FULL = 8, 300
_VICTIM, _ATTACKER = 65533, 65534
_SECONDS = 60
_SECRET = "the secret of the victim, which is long enough"
_LONG = "x" * 20_000
_REAL = os.geteuid() == 0
CALLED: "list[str]" = []


@tool(effect="irreversible", key=lambda what: what, approve=True)
def deploy(what: str) -> str:
    CALLED.append(what)
    return what


@tool(effect="reversible", key=lambda what: what, undo=lambda effect, what: CALLED.append(what))
def book(what: str) -> str:
    CALLED.append(what)
    return what


def as_user(user: int, work: "Callable[[], Any]") -> str:
    """Do something in a child process of another user; return how it failed, if it did."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(_SECONDS)
            if _REAL:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            os.umask(0o022)
            work()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}"[:4000].encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read().decode()
    status = os.waitpid(child, 0)[1]
    return said if status == 0 else f"ended by signal {status}"


@pytest.fixture
def public() -> "Iterator[Path]":
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    home = folder / "home"
    home.mkdir(mode=0o700)
    store = folder / "store"
    store.mkdir()
    store.chmod(0o777)
    if _REAL:
        os.chown(home, _VICTIM, _VICTIM)
        os.chown(store, _VICTIM, _VICTIM)
    yield folder
    shutil.rmtree(folder)


def prepare(public: Path, backend: str) -> None:
    """Save what the victim has, in the shared store and in one of its own."""
    with CheckpointManager(backend=backend, path=public / "home" / "own") as own:
        for number in range(3):
            own.save("k", {"own": number, "long": _LONG})
        own.save("job", {"own": 3})
    (public / "home" / "precious").write_bytes(b"mine\n" * 600_000)
    with CheckpointManager(backend=backend, path=public / "store", shared=True) as manager:
        for key in ("k", "other"):
            for number in range(3):
                manager.save(key, {key: number, "long": _LONG + str(number)})
        with suppress(Suspended), Session("job", store=manager) as session:
            book("hotel")
            session.save()
            deploy("v1")
        with suppress(Suspended), Session("second", store=manager):
            deploy("v2")
        (request,) = Approvals(manager.store).pending("second")
        Approvals(manager.store).approve(request.id)


class Attacker:
    """Steps of somebody who may write the store, and has not the secret."""

    def __init__(self, seed: int, public: Path) -> None:
        self.random = random.Random(seed)
        self.store = public / "store"
        self.home = public / "home"
        self.marker = public / "store" / "marker"

    def forged(self, data: bytes) -> bytes:
        """Return an entry in the place of another: changed, and with a hash that is right."""
        record = json.loads(data)
        for name in ("sha256", "agent_checkpoint"):
            record.pop(name, None)
        how = self.random.randrange(8)
        if how == 0:
            record.pop("seal", None)
        elif how == 1 and isinstance(record.get("parts"), dict):
            record["parts"] = {"agent": {"evil": pickle_tag(poisoned(self.marker))}}
        elif how == 2:
            record.update(type="answered", approved=True, by=None, reason=None)
        elif how == 3:
            record["seal"] = "0" * 64
        elif how == 4:
            return data[: self.random.randrange(len(data))]
        elif how == 5:
            record.update(read=99, write=99)
        elif how == 6:
            place = self.random.randrange(len(data))
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return seal_entry(record)

    def answer(self, records: "list[bytes]") -> bytes:
        """Return an answer to a request among the records, which nobody gave."""
        asked = [json.loads(data) for data in records if b'"asked"' in data]
        name = asked[-1]["request"] if asked else "approval-0"
        said = {"type": "answered", "ts_ns": 1, "request": name, "approved": True}
        return seal_entry({**said, "by": None, "reason": None, "parts": {}})

    def attack(self) -> None:
        step = self.rows if (self.store / "store.db").exists() else self.files
        for _ in range(self.random.randint(1, 4)):
            with suppress(OSError, sqlite3.Error, ValueError, IndexError):
                self.random.choice([step, step, self.places])()

    def rows(self) -> None:
        """Change the entries and objects of an SQLite store."""
        choose = self.random.choice
        with sqlite3.connect(self.store / "store.db", timeout=5) as db:
            rows = db.execute("SELECT stream, seq, mark, data FROM entries").fetchall()
            stream, seq, mark, data = choose(rows)
            how = self.random.randrange(10)
            if how <= 1:
                new = self.forged(data)
                db.execute("UPDATE entries SET data=? WHERE stream=? AND seq=?", (new, stream, seq))
            elif how == 2:
                db.execute("DELETE FROM entries WHERE stream=? AND seq=?", (stream, seq))
            elif how <= 4:  # repeated in its own stream, or moved into another
                to = stream if how == 3 else choose(rows)[0]
                new = self.random.choice([seq + 1, 10**9, 2**62])
                row = (to, new, mark, data)
                db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
                db.execute("UPDATE streams SET last=max(last, ?) WHERE id=?", (new, to))
            elif how == 5:
                ledgers = "SELECT id, last FROM streams WHERE substr(name, 1, 3)=?"
                to, last = choose(db.execute(ledgers, (b"fx/",)).fetchall())
                records = [row[3] for row in rows if row[0] == to]
                row = (to, last + 1, mark, self.answer(records))
                db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
                db.execute("UPDATE streams SET last=? WHERE id=?", (last + 1, to))
            elif how == 6:
                db.execute("UPDATE objects SET data=? WHERE number=1", (b"r" + b"evil" * 9,))
            elif how == 7:
                db.execute("UPDATE streams SET name=? WHERE id=?", (b"key/k2", stream))
            elif how == 8:
                db.execute(
                    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END"
                )
            else:
                db.execute("DELETE FROM objects WHERE number % 2")

    def files(self) -> None:
        """Change the entries and objects of a file store."""
        choose = self.random.choice
        # Not a fifo of its own making, which would keep it waiting.
        entries = [path for path in sorted(self.store.glob("**/*.json")) if path.is_file()]
        entry = choose(entries)
        how = self.random.randrange(8)
        if how <= 1:
            self.put(entry, self.forged(entry.read_bytes()))
        elif how == 2:
            entry.unlink()
        elif how <= 4:
            folder = entry.parent if how == 3 else choose(entries).parent
            number = choose([int(entry.stem) + 1, 10**9, 10**17])
            self.put(folder / f"{number}.json", entry.read_bytes())
        elif how == 5:
            folder = choose(list(self.store.glob(".fx*")))
            records = [path.read_bytes() for path in entries if path.parent == folder]
            self.put(folder / f"{len(records) + 1}.json", self.answer(records))
        elif how == 6:
            self.put(choose(list(self.store.glob("objects/*/*"))), b"r" + b"evil" * 9)
        else:
            self.replace(entry)

    def places(self) -> None:
        """Put something else in the place of any file or directory of the store."""
        found = [path for path in self.store.rglob("*") if path.name != "marker"]
        names = [".lock", ".gate", ".reserve", "reserve", ".tmp", "new.db", "store.db-wal"]
        self.replace(self.random.choice([*found, *(self.store / name for name in names)]))

    def put(self, path: Path, data: bytes) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o666)

    def replace(self, path: Path) -> None:
        away = self.store / f".away{self.random.randrange(10**6)}"
        if self.random.random() < 0.2:
            path.chmod(self.random.choice([0, 0o400, 0o777]))
            return
        if os.path.lexists(path):
            path.rename(away)
        own = self.home / "own"
        where = own / path.relative_to(self.store)
        how = self.random.randrange(7)
        if how == 0:
            path.symlink_to(where)
        elif how == 1:
            path.symlink_to(self.random.choice([own, self.home, own / "k", own / "store.db"]))
        elif how == 2:
            os.mkfifo(path)
            path.chmod(0o666)
        elif how == 3:
            path.mkdir()
            path.chmod(0o777)
        elif how == 4:
            path.symlink_to(self.home / "precious")
        elif how == 5:
            self.put(path, b"")
        else:
            os.link(self.home / "precious", path)


def use_all(public: Path, backend: str) -> None:
    """Do what a victim may do next; raise if anything but a refusal comes of it."""
    with (
        suppress(CheckpointError),
        CheckpointManager(backend=backend, path=public / "store", shared=True) as manager,
    ):
        keys: list[str] = []
        with suppress(CheckpointError):
            keys = manager.list_keys()
        for key in dict.fromkeys(["k", "other", "job", "second", *keys]):
            with suppress(CheckpointError):
                state = manager.state_dict(key)
                known = [{key: n, "long": _LONG + str(n)} for n in range(3)]
                assert key in ("job", "second") or state in known, (key, str(state)[:300])
            with suppress(CheckpointError):
                manager.history(key)
            with suppress(CheckpointError):
                (public / "home" / "out.ckpt").unlink(missing_ok=True)
                manager.export_archive(public / "home" / "out.ckpt", key)
        requests = Approvals(manager.store)
        with suppress(CheckpointError):
            for request in requests.pending():
                with suppress(CheckpointError):
                    requests.arguments(request.id)
        # Only what was answered may be done, and only where it was asked for.
        for key, what, allowed in (("job", "v1", False), ("second", "v2", True)):
            CALLED.clear()
            with suppress(CheckpointError, Suspended), Session(key, store=manager):
                with suppress(Suspended):
                    deploy(what)
                deploy("v3")
            assert CALLED in ([], ["v2"] if allowed else []), (key, CALLED)
            CALLED.clear()
            with suppress(CheckpointError, Suspended), Session(key, store=manager) as session:
                session.rollback(effects="compensate")
            assert set(CALLED) <= {"hotel"}, CALLED
        for use in (
            manager.verify,
            manager.stats,
            manager.gc,
            lambda: manager.save("k", {"k": 0, "long": _LONG + "0"}),
            lambda: manager.fork("k", "forked"),
            lambda: manager.purge("no such secret"),
            lambda: manager.delete("other"),
            lambda: manager.delete("k"),
            lambda: manager.delete("job"),
            manager.gc,
        ):
            with suppress(CheckpointError):
                use()


def present(home: Path) -> "dict[str, Any]":
    """Return what is in the victim's own directory, but for what reading makes there."""
    found = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if name != "out.ckpt" and not name.endswith(("-wal", "-shm")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[name] = oct(path.lstat().st_mode), path.lstat().st_uid, digest
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_what_a_hostile_user_of_a_shared_store_can_do(
    public: Path, backend: str, full_faults: bool, tried: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", _SECRET)
    assert as_user(_VICTIM, lambda: prepare(public, backend)) == ""
    before = present(public / "home")
    clean = public / "clean"
    shutil.copytree(public / "store", clean, copy_function=copy_owned)
    only = os.environ.get("SEED")
    seeds = range(_FULL if full_faults else _SAMPLE) if only is None else [int(only)]
    for seed in seeds:
        assert as_user(_ATTACKER, Attacker(seed, public).attack) == "", seed
        assert as_user(_VICTIM, lambda: use_all(public, backend)) == "", seed
        assert present(public / "home") == before, seed
        assert not (public / "store" / "marker").exists(), seed
        shutil.rmtree(public / "store")
        shutil.copytree(clean, public / "store", copy_function=copy_owned)
        give(clean, public / "store")
    tried("attack on a shared store", len(seeds))


def copy_owned(source: str, target: str) -> None:
    shutil.copy2(source, target)
    give(Path(source), Path(target))


def give(source: Path, target: Path) -> None:
    """Make a copy belong to whom its source does, with the mode of that."""
    pairs = [(source, target)]
    if source.is_dir():
        pairs += [(path, target / path.relative_to(source)) for path in source.rglob("*")]
    for one, other in pairs:
        found = one.lstat()
        if _REAL:
            os.chown(other, found.st_uid, found.st_gid)
        other.chmod(found.st_mode & 0o7777)


if sys.platform == "darwin":
    pytestmark = pytest.mark.skip(reason="macOS does not let a process with threads fork safely")
