"""Backends that are right as long as one instance is used at a time."""

import os
import pickle
import threading
import time

from agent_checkpoint import FileBackend, MemoryBackend, WrapperBackend


class Snapshotting(MemoryBackend):
    """Reads everything when it is opened, and writes everything back with each change."""

    def __init__(self, place):
        super().__init__()
        self.place = place
        if place.exists():
            self._objects, self._streams, self._last = pickle.loads(place.read_bytes())

    def _write(self):
        with self._lock:
            draft = self.place.with_name("draft")
            draft.write_bytes(pickle.dumps((self._objects, self._streams, self._last)))
            os.replace(draft, self.place)

    def put_objects(self, objects):
        super().put_objects(objects)
        self._write()

    def delete_objects(self, ids):
        super().delete_objects(ids)
        self._write()

    def append(self, stream, entry, **options):
        seq = super().append(stream, entry, **options)
        self._write()
        return seq

    def remove(self, stream, seqs):
        super().remove(stream, seqs)
        self._write()

    def reopened(self):
        return Snapshotting(self.place)


_LOCK = threading.RLock()


def _under_lock(name):
    def call(self, *args, **options):
        with _LOCK:
            if self.place.exists():
                self._objects, self._streams, self._last = pickle.loads(self.place.read_bytes())
            result = getattr(MemoryBackend, name)(self, *args, **options)
            if name in ("put_objects", "delete_objects", "append", "remove"):
                time.sleep(0.001)  # so that others have time to do the same
                self._write()
            return result

    return call


class ThreadLocked(Snapshotting):
    """Reads everything before each call, under a lock that other processes do not know of."""

    for _name in ("put_objects", "get_objects", "missing_objects", "list_objects"):
        vars()[_name] = _under_lock(_name)
    for _name in ("delete_objects", "append", "read", "remove", "streams"):
        vars()[_name] = _under_lock(_name)

    def _write(self):
        draft = self.place.with_name(f"draft {os.getpid()}")
        draft.write_bytes(pickle.dumps((self._objects, self._streams, self._last)))
        os.replace(draft, self.place)

    def reopened(self):
        return ThreadLocked(self.place)


class TrustingCache(WrapperBackend):
    """Remembers which objects exist, and does not ask for them again."""

    def __init__(self, inner):
        super().__init__(inner)
        self.known = set()

    def missing_objects(self, ids):
        asked = set(ids) - self.known
        missing = super().missing_objects(asked)
        self.known |= asked - missing
        return missing

    def delete_objects(self, ids):
        super().delete_objects(self._forgotten(ids))

    def _forgotten(self, ids):
        for name in ids:
            self.known.discard(name)
            yield name

    def reopened(self):
        return TrustingCache(FileBackend(self.inner.path))
