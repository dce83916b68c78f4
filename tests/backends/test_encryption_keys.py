"""Where a key of an encrypted store comes from, the check of a key, and its rotation."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
import traceback

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    EncryptionKeyError,
    FileBackend,
    IntegrityError,
    InvalidInputError,
    MemoryBackend,
)
from agent_checkpoint.backends.wrappers.encryption import EncryptedBackend
from agent_checkpoint.backends.wrappers.encryption_keys import EnvironmentKey
from agent_checkpoint.records import Entry

KEY = bytes(range(32))
OTHER = bytes(reversed(range(32)))
PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def inner():
    return MemoryBackend()


@pytest.fixture
def filled(inner):
    backend = EncryptedBackend(inner, KEY)
    backend.append("key/a", b"one")
    return inner


def contents(backend):
    """Everything that is stored, to compare it."""
    streams = {name: backend.read(name) for name in backend.streams()}
    return streams, backend.get_objects([info.id for info in backend.list_objects()])


def record_of(backend):
    return json.loads(backend.read("meta/format", limit=1, newest_first=True)[0].data)


# -- the forms of a key ----------------------------------------------------------------------------


def private(path, data, mode=0o600):
    path.write_bytes(data)
    path.chmod(mode)
    return path


def forms(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_KEY", PASSPHRASE)
    yield PASSPHRASE
    yield PASSPHRASE.encode()
    yield private(tmp_path / "key", PASSPHRASE.encode())
    yield private(tmp_path / "line", PASSPHRASE.encode() + b"\n")
    yield EnvironmentKey("THE_KEY")
    yield lambda: PASSPHRASE
    yield lambda: private(tmp_path / "key", PASSPHRASE.encode())
    yield [KEY, PASSPHRASE]
    yield (lambda: [KEY], PASSPHRASE)


def test_every_form_of_a_key_opens_the_store(inner, tmp_path, monkeypatch):
    scrypt = hashlib.scrypt
    monkeypatch.setattr(hashlib, "scrypt", lambda *a, **options: scrypt(*a, **{**options, "n": 2}))
    EncryptedBackend(inner, PASSPHRASE).append("key/a", b"one")
    for form in forms(tmp_path, monkeypatch):
        assert EncryptedBackend(inner, form).read("key/a") == [Entry(1, b"one")]


def test_a_file_of_32_bytes_is_taken_as_it_is(inner, tmp_path):
    key = KEY[:31] + b"\n"
    EncryptedBackend(inner, private(tmp_path / "key", key)).append("key/a", b"one")
    assert EncryptedBackend(inner, key).read("key/a") == [Entry(1, b"one")]


def test_a_function_is_called_once(inner):
    calls = []
    backend = EncryptedBackend(inner, lambda: calls.append(1) or KEY)
    assert backend.read("key/a") == backend.read("key/a") == []
    backend.append("key/a", b"one")
    backend.rotate_key()
    assert len(calls) == 1


@pytest.mark.parametrize("text", ["p" * 32, "ü" * 16, "p" * 31])
def test_a_passphrase_of_32_bytes_is_not_taken_for_random_bytes(inner, tmp_path, text):
    """Nor is a line of 31 characters in a file, whose line break is not part of the key."""
    EncryptedBackend(inner, private(tmp_path / "a", f"{text}\n".encode())).append("key/a", b"one")
    assert record_of(inner)["key"]["kdf"] == "scrypt"
    for key in (text, text.encode(), private(tmp_path / "b", text.encode())):
        assert EncryptedBackend(inner, key).read("key/a") == [Entry(1, b"one")]
    other = MemoryBackend()
    EncryptedBackend(other, text.encode()).append("key/a", b"one")
    assert record_of(other)["key"]["kdf"] == "scrypt"


@pytest.mark.parametrize(("key", "kdf"), [(KEY, "blake2b"), (PASSPHRASE, "scrypt")])
@pytest.mark.parametrize("as_text", [False, True])
def test_guessable_keys_are_hashed_slowly(inner, key, kdf, as_text):
    if as_text:  # 32 characters are no 32 random bytes
        key, kdf = "p" * 32, "scrypt"
    EncryptedBackend(inner, key).append("key/a", b"one")
    assert record_of(inner)["key"]["kdf"] == kdf
    EncryptedBackend(inner, key).read("key/a")


@pytest.mark.parametrize("key", [b"", "", b"x" * 15, "x" * 15, b"x" * 4097])
def test_a_key_of_another_length_is_refused(inner, key):
    with pytest.raises(EncryptionKeyError, match="must have 16 to"):
        EncryptedBackend(inner, key).append("key/a", b"one")
    assert contents(inner) == ({}, {})


@pytest.mark.parametrize("key", [17, None, [], (), {"key": KEY}, [KEY, 17], lambda: None])
def test_other_types_are_refused(inner, key):
    with pytest.raises(InvalidInputError, match="encryption_key= must be"):
        EncryptedBackend(inner, key).append("key/a", b"one")
    assert contents(inner) == ({}, {})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o660])
def test_a_key_file_that_others_can_use_is_refused(inner, tmp_path, mode):
    path = private(tmp_path / "key", KEY, mode)
    with pytest.raises(EncryptionKeyError, match="chmod"):
        EncryptedBackend(inner, path).append("key/a", b"one")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_key_file_of_another_user_is_refused(inner, tmp_path):
    path = private(tmp_path / "key", KEY)
    os.chown(path, 12345, 12345)
    with pytest.raises(EncryptionKeyError, match="owned by uid 12345"):
        EncryptedBackend(inner, path).append("key/a", b"one")


def test_key_files_that_cannot_be_read(inner, tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, why in (("missing", "No such file"), ("fifo", "regular"), ("", "directory|regular")):
        with pytest.raises(EncryptionKeyError, match=why):
            EncryptedBackend(inner, tmp_path / name).append("key/a", b"one")


def test_the_name_of_a_file_is_no_passphrase(inner, tmp_path):
    path = private(tmp_path / "key", KEY)
    with pytest.raises(EncryptionKeyError, match="pass a Path"):
        EncryptedBackend(inner, str(path)).append("key/a", b"one")


def test_an_unset_variable(inner, monkeypatch):
    monkeypatch.delenv("THE_KEY", raising=False)
    with pytest.raises(EncryptionKeyError, match="THE_KEY"):
        EncryptedBackend(inner, EnvironmentKey("THE_KEY")).read("key/a")


# -- the check -------------------------------------------------------------------------------------

VERBS = {
    "put": lambda backend: backend.put_objects({"ab" * 32: b"object"}),
    "get": lambda backend: backend.get_objects(["ab" * 32]),
    "missing": lambda backend: backend.missing_objects(["ab" * 32]),
    "list": lambda backend: list(backend.list_objects()),
    "delete": lambda backend: backend.delete_objects(["ab" * 32]),
    "append": lambda backend: backend.append("key/a", b"two"),
    "read": lambda backend: backend.read("key/a"),
    "remove": lambda backend: backend.remove("key/a", [1]),
    "streams": lambda backend: list(backend.streams()),
    "rotate": lambda backend: backend.rotate_key(),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_wrong_key_does_nothing(filled, verb):
    before = contents(filled)
    with pytest.raises(EncryptionKeyError, match="does not open"):
        verb(EncryptedBackend(filled, OTHER))
    assert contents(filled) == before


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_key_for_a_plaintext_store_does_nothing(inner, verb):
    CheckpointManager(inner).save("a", {"n": 1})
    before = contents(inner)
    with pytest.raises(EncryptionKeyError, match="is not encrypted"):
        verb(EncryptedBackend(inner, KEY))
    assert contents(inner) == before


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_store_without_its_key_record_is_not_a_new_one(filled, verb):
    filled.remove("meta/format", [1])
    before = contents(filled)
    with pytest.raises(EncryptionKeyError, match="no key record"):
        verb(EncryptedBackend(filled, KEY))
    assert contents(filled) == before


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_damaged_key_record(filled, verb):
    (entry,) = filled.read("meta/format")
    for altered in (
        entry.data[:-9] + b'00000000"',
        entry.data.replace(b"blake2b", b"scrypt"),
        b"{",
    ):
        seq = filled.append("meta/format", altered)
        with pytest.raises(IntegrityError, match="key record"):
            verb(EncryptedBackend(filled, KEY))
        filled.remove("meta/format", [seq])


MANAGER_VERBS = {
    "save": lambda manager: manager.save("b", {"n": 1}),
    "load": lambda manager: manager.state_dict("a"),
    "keys": lambda manager: manager.list_keys(),
    "history": lambda manager: manager.history("a"),
    "verify": lambda manager: manager.verify(),
    "gc": lambda manager: manager.gc(),
    "stats": lambda manager: manager.stats(),
    "delete": lambda manager: manager.delete("a"),
    "fork": lambda manager: manager.fork("a", "b"),
    "purge": lambda manager: manager.purge("something"),
}


@pytest.mark.parametrize("verb", MANAGER_VERBS.values(), ids=MANAGER_VERBS.keys())
def test_an_encrypted_store_without_a_key_is_left_alone(inner, verb):
    CheckpointManager(EncryptedBackend(inner, KEY)).save("a", {"n": 1})
    before = contents(inner)
    with pytest.raises(EncryptionKeyError, match="is encrypted"):
        verb(CheckpointManager(inner))
    assert contents(inner) == before


def test_reading_a_new_store_writes_nothing(tmp_path):
    backend = EncryptedBackend(FileBackend(tmp_path / "store"), KEY)
    assert contents(backend) == ({}, {})
    backend.remove("key/a", [1])
    backend.delete_objects(["ab" * 32])
    backend.put_objects({})
    assert not (tmp_path / "store").exists()


def test_two_first_writers_use_one_data_key(inner):
    backends = [EncryptedBackend(inner, KEY) for _ in range(8)]
    barrier = threading.Barrier(len(backends))

    def write(number):
        barrier.wait()
        backends[number].append("key/a", b"%d" % number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(backends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(inner.read("meta/format")) == 1
    entries = EncryptedBackend(inner, KEY).read("key/a")
    assert sorted(entry.data for entry in entries) == [b"%d" % n for n in range(len(backends))]


def test_a_plain_and_an_encrypted_first_writer_cannot_both_win(inner):
    class Late(MemoryBackend):
        """Another process makes a plaintext store between the check and the key record."""

        def append(self, stream, entry, **options):
            if not self.read("meta/format"):
                super().append("meta/format", b'{"features": []}')
            return super().append(stream, entry, **options)

    with pytest.raises(EncryptionKeyError, match="is not encrypted"):
        EncryptedBackend(Late(), KEY).append("key/a", b"one")


# -- where the key must not be ---------------------------------------------------------------------


def test_the_key_is_in_no_text_and_no_pickle(inner):
    for key in (KEY, PASSPHRASE):
        backend = EncryptedBackend(inner, key)
        texts = [repr(backend), str(backend.properties), repr(CheckpointManager(backend))]
        if key == KEY:
            backend.append("key/a", b"one")
        else:
            with pytest.raises(EncryptionKeyError) as caught:
                backend.append("key/a", b"two")
            texts.append("".join(traceback.format_exception(caught.type, caught.value, None)))
        for text in texts:
            assert PASSPHRASE not in text
            assert repr(KEY) not in text
            assert KEY.hex() not in text
        for value in (backend, backend._opened or backend):
            with pytest.raises(InvalidInputError, match="cannot be pickled"):
                pickle.dumps(value)
        assert backend.properties.url is None


def test_the_data_key_is_not_in_the_store(filled):
    backend = EncryptedBackend(filled, KEY)
    backend.read("key/a")
    data_key = backend._opened._data_key
    for _, data in filled.read("meta/format"):
        assert data_key not in data
        assert data_key.hex().encode() not in data


# -- rotation --------------------------------------------------------------------------------------


def test_two_keys_are_valid_until_the_rotation_is_done(filled):
    assert EncryptedBackend(filled, [OTHER, KEY]).append("key/a", b"two") == 2
    old = EncryptedBackend(filled, KEY)
    assert len(old.read("key/a")) == 2
    EncryptedBackend(filled, [OTHER, KEY]).rotate_key()
    for key in (OTHER, [OTHER, KEY], [KEY, OTHER]):
        assert len(EncryptedBackend(filled, key).read("key/a")) == 2
    with pytest.raises(EncryptionKeyError):
        EncryptedBackend(filled, KEY).read("key/a")
    assert old.append("key/a", b"three") == 3  # a process that had it open loses nothing
    assert len(EncryptedBackend(filled, OTHER).read("key/a")) == 3
    assert len(filled.read("meta/format")) == 1


def test_a_rotation_encrypts_the_data_key_only(filled):
    before = contents(filled)
    EncryptedBackend(filled, [OTHER, KEY]).rotate_key()
    after = contents(filled)
    assert before[0].pop("meta/format") != after[0].pop("meta/format")
    assert before == after


def test_rotating_twice_changes_nothing_more(filled):
    EncryptedBackend(filled, [OTHER, KEY]).rotate_key()
    before = contents(filled)
    EncryptedBackend(filled, [OTHER, KEY]).rotate_key()
    EncryptedBackend(filled, OTHER).rotate_key()
    assert contents(filled) == before


@pytest.mark.parametrize("dies_in", ["append", "remove"])
@pytest.mark.parametrize("is_done", [False, True])
def test_an_interrupted_rotation_is_finished_by_the_next(filled, monkeypatch, dies_in, is_done):
    method = getattr(MemoryBackend, dies_in)

    def die(self, *args, **options):
        if is_done:
            method(self, *args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MemoryBackend, dies_in, die)
        with pytest.raises(KeyboardInterrupt):
            EncryptedBackend(filled, [OTHER, KEY]).rotate_key()
    for key in ([OTHER, KEY], [KEY, OTHER]):
        assert EncryptedBackend(filled, key).read("key/a") == [Entry(1, b"one")]
    EncryptedBackend(filled, [OTHER, KEY]).rotate_key()
    assert EncryptedBackend(filled, OTHER).read("key/a") == [Entry(1, b"one")]
    assert len(filled.read("meta/format")) == 1


def test_of_two_rotations_to_different_keys_one_fails(filled):
    late = EncryptedBackend(filled, KEY)
    assert late.read("key/a") == [Entry(1, b"one")]
    EncryptedBackend(filled, KEY).rotate_key(OTHER)
    before = contents(filled)
    with pytest.raises(EncryptionKeyError, match="last rotated to"):
        late.rotate_key(PASSPHRASE)
    assert contents(filled) == before
    assert late.append("key/a", b"two") == 2
    assert len(EncryptedBackend(filled, OTHER).read("key/a")) == 2


def test_a_rotation_without_the_key_record(filled):
    backend = EncryptedBackend(filled, KEY)
    backend.read("key/a")
    filled.remove("meta/format", [1])
    with pytest.raises(EncryptionKeyError, match="no key record"):
        backend.rotate_key(OTHER)


def test_two_rotations_at_once(filled):
    class Slow(MemoryBackend):
        """Another process rotates between the read and the append."""

        def append(self, stream, entry, **options):
            if options.get("after") == 1:
                MemoryBackend.append(self, stream, self.read(stream)[0].data)
                raise ConflictError("moved")
            return super().append(stream, entry, **options)

    slow = Slow()
    slow.append("meta/format", filled.read("meta/format")[0].data)
    EncryptedBackend(slow, [OTHER, KEY]).rotate_key()
    assert len(slow.read("meta/format")) == 1
    assert EncryptedBackend(slow, OTHER).read("key/a") == []


def test_a_plaintext_process_does_not_import_cryptography():
    code = (
        "import sys; from agent_checkpoint import CheckpointManager, EncryptionKeyError\n"
        "m = CheckpointManager(); m.save('a', {'n': 1}); m.gc()\n"
        "assert 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
