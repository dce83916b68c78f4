"""Encrypted stores that a released format wrote: their keys open them, and no other key does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from agent_checkpoint import CheckpointManager, EncryptionKeyError, Session
from agent_checkpoint.backends.sqlite import SQLiteBackend
from tests.backends.encrypted_stores import Decryption
from tests.compat import session_subject
from tests.compat.make_encrypted import FIRST_KEY, HERE, KEYS
from tests.compat.session_subject import KEY, Clerk, mail
from tests.compat.test_golden import digest, parts_again

EXPECTED: "dict[str, dict[str, list[dict[str, Any]]]]" = json.loads(
    (HERE / "expected.json").read_text(encoding="utf-8")
)


@pytest.fixture(params=KEYS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    """A copy of the store: an opened store is never only read."""
    return Path(shutil.copytree(HERE / name, tmp_path / name))


def opened(name: str, path: Path, key: Any) -> CheckpointManager:
    return CheckpointManager(backend=name, path=path, encryption_key=key)


def test_every_state_reads_back_as_it_was(name: str, path: Path) -> None:
    with opened(name, path, KEYS[name]) as manager:
        keys = {*EXPECTED[name], *([KEY] if name == "sqlite" else [])}
        assert set(manager.list_keys()) == keys
        for key, rows in EXPECTED[name].items():
            found = manager.history(key)[::-1]
            assert [row["id"] for row in found] == [row["id"] for row in rows]
            for row in rows:
                assert digest(parts_again(manager, row, key, row["id"])) == row["sha256"]


def test_it_is_sound_and_can_be_gone_on_with(name: str, path: Path) -> None:
    with opened(name, path, KEYS[name]) as manager:
        for key in EXPECTED[name]:
            head = manager.history(key, n=1)[0]["id"]
            manager.save(key, {"step": "one more"}, expected_head=head)
            assert manager.state_dict(key) == {"step": "one more"}
        manager.gc()
        report = manager.verify()
        assert report.ok, report.problems


def test_its_session_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    session_subject.DONE.clear()
    path = Path(shutil.copytree(HERE / "sqlite", tmp_path / "sqlite"))
    agent = Clerk()
    with (
        opened("sqlite", path, KEYS["sqlite"]) as manager,
        Session(KEY, agent=agent, store=manager),
    ):
        assert agent.letters == 2
        assert mail("ann", "long " * 1000) == {"to": "ann", "bytes": 5000}
    assert session_subject.DONE == []


@pytest.mark.parametrize("key", [FIRST_KEY, bytes(32), "another passphrase", None], ids=str)
def test_another_key_opens_nothing_and_writes_nothing(name: str, path: Path, key: Any) -> None:
    """Also the key before the rotation."""
    with opened(name, path, key) as manager:
        for verb in (
            manager.list_keys,
            lambda: manager.save("plain", {"n": 1}),
            lambda: manager.state_dict("plain"),
            manager.gc,
        ):
            with pytest.raises(EncryptionKeyError):
                verb()
    with opened(name, path, KEYS[name]) as manager:
        assert len(manager.history("plain")) == len(EXPECTED[name]["plain"])


def test_the_design_note_is_enough_to_decrypt_it(tmp_path: Path) -> None:
    inner = SQLiteBackend(shutil.copytree(HERE / "sqlite", tmp_path / "sqlite"))
    known = Decryption(inner, KEYS["sqlite"])
    ((_, data),) = inner.read(known.stream("key/Capitals/and slashes"))
    assert b"needs escaping" in known.entry("key/Capitals/and slashes", data)
    inner.close()
