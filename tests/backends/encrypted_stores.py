"""A second decryption, written only from design/034, for tests that look at the medium."""

import base64
import hashlib
import json

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

KEY = bytes(range(32))


def prf(key, data, size=32):
    return hashlib.blake2b(data, key=key, digest_size=size).digest()


class Decryption:
    """Reads the data key from the format record of a backend, and decrypts what is stored there."""

    def __init__(self, inner, key=KEY):
        record = json.loads(inner.read("meta/format", limit=1, newest_first=True)[0].data)
        item = record["key"]
        assert item["kdf"] == "blake2b"
        wrapping = AESGCM(prf(key, bytes.fromhex(item["salt"])))
        data_key = wrapping.decrypt(bytes(12), bytes.fromhex(item["wrapped"]), b"data key")
        self.rounds = [prf(data_key, b"name %d" % number) for number in range(4)]
        self.siv = AESSIV(prf(data_key, b"stream 1") + prf(data_key, b"stream 2"))
        self.content = prf(data_key, b"content")

    def name(self, object_id):
        data = bytes.fromhex(object_id)
        a, b = data[:16], data[16:]
        for key in self.rounds:
            a, b = b, bytes(x ^ y for x, y in zip(a, prf(key, b, 16)))
        return (a + b).hex()

    def stream(self, stream):
        kind, rest = stream.split("/", 1)
        hidden = base64.b32encode(self.siv.encrypt(rest.encode(), [kind.encode()])).decode()
        return f"{kind}/{hidden.lower().rstrip('=')}"

    def open(self, data, place):
        assert data[0] == 1
        key = prf(self.content, data[1:17] + place)
        return AESGCM(key).decrypt(bytes(12), data[17:], place)

    def object(self, object_id, data):
        return self.open(data, b"object " + bytes.fromhex(object_id))

    def entry(self, stream, data):
        return self.open(data[8:], b"entry " + data[:8] + stream.encode())


class Encrypted:
    """Adds encryption to the backends of a suite; its raw hooks decrypt what is on the medium."""

    def make(self, place):
        from agent_checkpoint.backends.wrappers.encryption import EncryptedBackend

        return EncryptedBackend(super().make(place), KEY)

    def reopen(self, backend):
        return type(backend)(super().reopen(backend.inner), KEY)

    def raw_entry(self, backend, stream, seq):
        known = self._decryption(backend)
        data = known and super().raw_entry(backend.inner, known.stream(stream), seq)
        return None if data is None else known.entry(stream, data)

    def raw_object(self, backend, object_id):
        known = self._decryption(backend)
        data = known and super().raw_object(backend.inner, known.name(object_id))
        return None if data is None else known.object(object_id, data)

    def _decryption(self, backend):
        try:
            return Decryption(backend.inner)
        except IndexError:  # nothing is stored yet
            return None
