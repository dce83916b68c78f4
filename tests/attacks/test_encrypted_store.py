"""An encrypted store on a hostile medium: no plaintext in it, and no altered data out of it."""

import hashlib

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import (
    CheckpointManager,
    FileBackend,
    IntegrityError,
    MemoryBackend,
    Session,
    Workspace,
    tool,
)
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.wrappers.encryption import EncryptedBackend
from agent_checkpoint.backends.wrappers.store_cipher import StoreCipher
from agent_checkpoint.records import Entry

KEY = bytes(range(32))
WORD = "Xylophone"
"""Part of everything that is planted."""


def object_id(data):
    return hashlib.sha256(data).hexdigest()


# -- no plaintext ----------------------------------------------------------------------------------


@tool(effect="idempotent", key=lambda to: f"{WORD}-effect-{to}")
def send_plain_word(to):
    return f"{WORD} was sent to {to}"


def plant(store, files):
    """Use every verb that stores something, with the word in all of it."""
    files.mkdir()
    (files / f"{WORD}.txt").write_text(f"{WORD} in a file\n" * 3)
    (files / "large.bin").write_bytes(f"{WORD} {'x' * 50}\n".encode() * 40_000)
    (files / "link").symlink_to(f"{WORD}-target")
    manager = CheckpointManager(store)
    state = {f"{WORD}-field": WORD, "long": [f"{WORD} {n}" for n in range(500)], "b": b"Xylophone"}
    for number in range(3):
        state["n"] = number
        manager.save(
            f"{WORD}-key", state, label=f"{WORD}-label", tags=[f"{WORD}-tag"],
            metrics={f"{WORD}-metric": 1.0},
        )  # fmt: skip
    manager.save("files", {f"{WORD}-part": Workspace(files, store=manager)})
    manager.fork(f"{WORD}-key", f"{WORD}-fork")
    with Session(f"{WORD}-session", store=manager, workspace=files) as session:
        session.messages.append({"role": "user", "content": f"{WORD} said"})
        send_plain_word(WORD)
        (files / f"{WORD}.txt").write_text(f"{WORD} again")
        session.save(label=f"{WORD} done")
        session.rollback(steps=1, effects="warn")
    return manager


def forms(text):
    """The encodings of a text that a medium could hold."""
    data = text.encode()
    return [data, data.lower(), data.hex().encode(), "\0".join(text).encode()]


@pytest.mark.parametrize("medium", [SQLiteBackend, FileBackend])
def test_no_file_of_the_store_holds_plaintext(tmp_path, medium):
    manager = plant(EncryptedBackend(medium(tmp_path / "store"), KEY), tmp_path / "files")
    assert manager.verify().ok
    names = {info.id for info in manager.store.backend.list_objects()}
    hidden = [*forms(WORD), KEY, KEY.hex().encode(), *(name.encode() for name in names)]
    hidden += [bytes.fromhex(name) for name in names]

    def check():
        files = [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
        assert len(files) > 2
        for file in files:
            for data in (file.read_bytes(), str(file).encode()):
                assert not [word for word in hidden if word in data], file

    check()  # with the write-ahead log
    manager.close()
    check()


def test_plaintext_is_found_without_encryption(tmp_path):
    """The search above finds what is there."""
    plant(SQLiteBackend(tmp_path / "store"), tmp_path / "files").close()
    found = [
        f
        for f in (tmp_path / "store").rglob("*")
        if f.is_file() and WORD.encode() in f.read_bytes()
    ]
    assert found


def test_a_purge_works_on_ciphertext(tmp_path):
    manager = CheckpointManager(EncryptedBackend(SQLiteBackend(tmp_path / "store"), KEY))
    manager.save("a", {"secret": f"{WORD}-secret", "rest": 1})
    assert manager.purge(f"{WORD}-secret").checkpoints
    assert manager.state_dict("a") != {"secret": f"{WORD}-secret", "rest": 1}
    assert manager.verify().ok


# -- altered objects -------------------------------------------------------------------------------


@pytest.fixture
def inner():
    return MemoryBackend()


@pytest.fixture
def backend(inner):
    return EncryptedBackend(inner, KEY)


def replace_object(inner, name, data):
    inner.delete_objects([name])
    inner.put_objects({name: data})


def test_every_altered_byte_of_an_object_is_noticed(inner, backend):
    data = b"content"
    name = object_id(data)
    backend.put_objects({name: data})
    ((stored, content),) = inner.get_objects([i.id for i in inner.list_objects()]).items()
    for at in range(len(content)):
        altered = bytearray(content)
        altered[at] ^= 1
        replace_object(inner, stored, bytes(altered))
        assert backend.get_objects([name]) == {name: b""}
    for cut in (b"", content[:1], content[:20], content[:-1], content + b"\0", data):
        replace_object(inner, stored, cut)
        assert backend.get_objects([name]) == {name: b""}
    replace_object(inner, stored, content)
    assert backend.get_objects([name]) == {name: data}


def test_swapped_objects_are_noticed(inner, backend):
    one, two = b"one", b"two"
    backend.put_objects({object_id(one): one, object_id(two): two})
    (first, a), (second, b) = inner.get_objects([i.id for i in inner.list_objects()]).items()
    replace_object(inner, first, b)
    replace_object(inner, second, a)
    assert set(backend.get_objects([object_id(one), object_id(two)]).values()) == {b""}


def test_an_object_is_no_entry(inner, backend):
    backend.put_objects({object_id(b"one"): b"one"})
    ((_, data),) = inner.get_objects([i.id for i in inner.list_objects()]).items()
    backend.append("key/a", b"entry")
    (stream,) = [name for name in inner.streams() if name.startswith("key/")]
    inner.append(stream, bytes(8) + data)
    assert backend.read("key/a", after=1) == [Entry(2, b"")]


def test_the_same_object_twice_looks_different(inner):
    other = MemoryBackend()
    for medium in (inner, other):
        EncryptedBackend(medium, KEY).put_objects({object_id(b"one"): b"one"})
    assert not {i.id for i in inner.list_objects()} & {i.id for i in other.list_objects()}


def test_equal_objects_share_one_name_within_a_store(inner):
    for _ in range(3):
        EncryptedBackend(inner, KEY).put_objects({object_id(b"one"): b"one"})
    assert len(list(inner.list_objects())) == 1


# -- altered streams -------------------------------------------------------------------------------


def stream_of(inner, kind="key"):
    (name,) = [name for name in inner.streams() if name.startswith(f"{kind}/")]
    return name


def set_entries(inner, stream, entries):
    """Replace the entries of a stream on the medium, as its operator can."""
    present = inner._streams[stream]
    present.clear()
    present.update({entry.seq: entry.data for entry in entries})
    inner._last[stream] = max(inner._last[stream], *present)


def readings(backend, stream="key/a"):
    """All that several ways to read a stream return, by number."""
    seqs = [entry.seq for entry in backend.read(stream)]
    found = {}
    for entries in (
        backend.read(stream),
        backend.read(stream, newest_first=True),
        backend.read(stream, limit=1, newest_first=True),
        *(backend.read(stream, after=seq - 1, limit=1) for seq in seqs if seq - 1 in seqs),
        *(backend.read(stream, before=seq + 1, limit=1, newest_first=True) for seq in seqs),
    ):
        for seq, data in entries:
            assert found.setdefault(seq, data) == data, seq
    return found


def test_every_altered_byte_of_an_entry_is_noticed(inner, backend):
    for number in range(3):
        backend.append("key/a", b"entry %d" % number)
    stream = stream_of(inner)
    entries = inner.read(stream)
    for at in range(len(entries[1].data)):
        altered = bytearray(entries[1].data)
        altered[at] ^= 1
        set_entries(inner, stream, [entries[0], Entry(2, bytes(altered)), entries[2]])
        assert readings(backend) == {1: b"entry 0", 2: b"", 3: b"entry 2"}
    for cut in (b"", entries[1].data[:8], entries[1].data[:-1], b"entry 1"):
        set_entries(inner, stream, [entries[0], Entry(2, cut), entries[2]])
        assert readings(backend) == {1: b"entry 0", 2: b"", 3: b"entry 2"}


def test_a_forged_plaintext_entry_is_refused(inner, backend):
    """An entry whose hash is right, as anyone can make it, but without the key."""
    CheckpointManager(backend).save("a", {"n": 1})
    plain = MemoryBackend()
    CheckpointManager(plain).save("a", {"n": 666})
    seq = inner.append(stream_of(inner), plain.read("key/a")[0].data)
    manager = CheckpointManager(EncryptedBackend(inner, KEY))
    with pytest.raises(IntegrityError):
        manager.state_dict("a")
    assert manager.state_dict("a@1") == {"n": 1}
    assert [problem.checkpoint for problem in manager.verify().problems] == [f"a@{seq}"]
    manager.save("a", {"n": 2})  # a damaged head does not stop an agent
    assert manager.state_dict("a") == {"n": 2}


def test_swapped_entries_are_refused(inner, backend):
    for number in range(4):
        backend.append("key/a", b"entry %d" % number)
    stream = stream_of(inner)
    entries = inner.read(stream)
    for one in range(4):
        for two in range(one):
            swapped = list(entries)
            swapped[one] = Entry(one + 1, entries[two].data)
            swapped[two] = Entry(two + 1, entries[one].data)
            set_entries(inner, stream, swapped)
            found = readings(backend)
            assert found[one + 1] == found[two + 1] == b"", (one, two)


def test_an_entry_repeated_at_the_end_is_refused(inner, backend):
    for number in range(3):
        backend.append("key/a", b"entry %d" % number)
    stream = stream_of(inner)
    for entry in inner.read(stream)[:2]:
        inner.append(stream, entry.data)
    assert readings(backend) == {1: b"entry 0", 2: b"entry 1", 3: b"entry 2", 4: b"", 5: b""}
    assert backend.append("key/a", b"next") == 6
    assert readings(EncryptedBackend(inner, KEY))[6] == b"next"


def test_an_entry_of_another_stream_is_refused(inner, backend):
    backend.append("key/a", b"a")
    backend.append("fx/a", b"ledger")
    inner.append(stream_of(inner), inner.read(stream_of(inner, "fx"))[0].data)
    assert backend.read("key/a") == [Entry(1, b"a"), Entry(2, b"")]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_whatever_is_read_is_in_the_order_in_which_it_was_written(data):
    """The operator may drop, repeat, reorder and renumber entries."""
    inner = MemoryBackend()
    writers = [EncryptedBackend(inner, KEY) for _ in range(2)]
    for number in range(data.draw(st.integers(1, 7), "entries")):
        seq = writers[data.draw(st.integers(0, 1))].append("key/a", b"%d" % number)
        if data.draw(st.booleans()):
            writers[0].remove("key/a", [data.draw(st.integers(1, seq))])
    names = [name for name in inner.streams() if name.startswith("key/")]
    if not names:
        return
    name = names[0]
    entries = inner.read(name)
    chosen = data.draw(st.lists(st.sampled_from(entries), min_size=1, max_size=8))
    seqs = sorted(
        data.draw(st.sets(st.integers(1, 12), min_size=len(chosen), max_size=len(chosen)))
    )
    set_entries(inner, name, [Entry(seq, entry.data) for seq, entry in zip(seqs, chosen)])
    for options in ({}, {"newest_first": True}, {"limit": 3}, {"limit": 2, "newest_first": True}):
        found = [int(entry.data) for entry in writers[1].read("key/a", **options) if entry.data]
        found = found[::-1] if options.get("newest_first") else found
        assert found == sorted(set(found))
    assert len(writers[1].read("key/a")) == len(chosen)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_honest_history_is_damaged(data):
    """Several writers, and removals anywhere, at any time."""
    backends = [EncryptedBackend(inner := MemoryBackend(), KEY)]
    backends += [EncryptedBackend(inner, KEY) for _ in range(2)]
    present = {}
    for number in range(data.draw(st.integers(1, 20), "steps")):
        backend = backends[data.draw(st.integers(0, 2))]
        if present and data.draw(st.integers(0, 2)) == 0:
            seq = data.draw(st.sampled_from(sorted(present)))
            backend.remove("key/a", [seq])
            del present[seq]
        else:
            newest = max(present, default=0)
            after = data.draw(st.sampled_from([None, newest]))
            present[backend.append("key/a", b"%d" % number, after=after)] = b"%d" % number
        assert readings(backends[data.draw(st.integers(0, 2))]) == present


def test_removed_entries_leave_the_others_in_place(inner, backend):
    """Retention removes entries in the middle and at the end; the rest is not damaged."""
    for number in range(8):
        backend.append("key/a", b"entry %d" % number)
    backend.remove("key/a", [2, 4, 5, 8])
    assert backend.append("key/a", b"after a removed one") == 9
    backend.remove("key/a", [1, 9])
    other = EncryptedBackend(inner, KEY)
    assert other.append("key/a", b"last") == 10
    expected = {3: b"entry 2", 6: b"entry 5", 7: b"entry 6", 10: b"last"}
    assert readings(backend) == readings(other) == expected


def test_a_renamed_stream_is_refused(inner, backend):
    CheckpointManager(backend).save("a", {"n": 1})
    stream = stream_of(inner)
    (entry,) = inner.read(stream)
    renamed = f"key/{stream[4:-1]}{'a' if stream[-1] != 'a' else 'b'}"
    for name in (renamed, f"key/{stream[4:].upper()}", "key/plain", f"fx/{stream[4:]}", "meta/x"):
        inner.append(name, entry.data)
        manager = CheckpointManager(EncryptedBackend(inner, KEY))
        with pytest.raises(IntegrityError, match="not authentic"):
            manager.gc()
        if name.startswith("key/"):
            with pytest.raises(IntegrityError, match="not authentic"):
                manager.list_keys()
        assert manager.state_dict("a") == {"n": 1}
        inner.remove(name, [1])
    assert CheckpointManager(backend).list_keys() == ["a"]


def test_a_stream_under_the_name_of_another_is_refused(inner, backend):
    backend.append("key/a", b"entry of a")
    backend.append("key/b", b"entry of b")
    known = {backend._opened.decrypt_stream(name): name for name in inner.streams()}
    one, two = known["key/a"], known["key/b"]
    streams = inner._streams
    streams[one], streams[two] = streams[two], streams[one]
    assert readings(backend, "key/a") == readings(backend, "key/b") == {1: b""}


# -- the cipher ------------------------------------------------------------------------------------


def test_names_are_permuted():
    cipher, other = StoreCipher(), StoreCipher()
    ids = [object_id(b"%d" % number) for number in range(200)] + ["0" * 64, "f" * 64]
    names = [cipher.encrypt_name(name) for name in ids]
    assert [cipher.decrypt_name(name) for name in names] == ids
    assert len({*names, *ids, *(other.encrypt_name(name) for name in ids)}) == 3 * len(ids)


def test_a_bit_of_an_id_changes_its_whole_name():
    cipher = StoreCipher()
    base = int(cipher.encrypt_name("0" * 64), 16)
    for bit in range(256):
        changed = base ^ int(cipher.encrypt_name(f"{1 << bit:064x}"), 16)
        for half in (changed >> 128, changed % (1 << 128)):
            assert 30 < bin(half).count("1") < 98


def test_equal_contents_have_different_ciphertexts():
    cipher = StoreCipher()
    assert len({cipher.encrypt(b"content", b"place") for _ in range(100)}) == 100
