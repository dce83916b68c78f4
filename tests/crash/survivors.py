"""What is left of pending writes and names after a loss of power: nothing, all, or some of it."""

import random

from tests.crash.power_loss import after


class Lost:
    """Nothing that was not synced is left."""

    def name(self):
        return False

    def content(self, file):
        return file.durable


class Kept:
    """Everything reached the disk in time."""

    def name(self):
        return True

    def content(self, file):
        return file.now()


class NamesKept(Lost):
    """The names are there, as file systems like to do first, and the contents are not."""

    def name(self):
        return True


class Torn:
    """Some of it, by a seed: writes out of order, each sector as it was at some moment."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._names = self._random.choice((0.0, 0.5, 1.0))

    def name(self):
        return self._random.random() < self._names

    def content(self, file):
        if not file.pending:
            return file.durable
        way = self._random.choice((self._in_order, self._whole_writes, self._sectors))
        return way(file)

    def _in_order(self, file):
        """All up to some write, which itself is torn."""
        last = self._random.randrange(len(file.pending))
        at, data = file.pending[last]
        part = data if data is None else data[: self._random.randrange(len(data) + 1)]
        return after(file.durable, [*file.pending[:last], (at, part)])

    def _whole_writes(self, file):
        share = self._random.choice((0.1, 0.5, 0.9))
        return after(file.durable, [w for w in file.pending if self._random.random() < share])

    def _sectors(self, file):
        """Each sector as it was at one of a few moments."""
        size = self._random.choice((512, 4096))
        share = self._random.choice((0.02, 0.5, 0.98))
        moments = sorted(self._random.randrange(len(file.pending)) for _ in range(3))
        states = [file.durable, *(after(file.durable, file.pending[:m]) for m in moments)]
        newest = file.now()
        length = len(self._random.choice([*states, newest]))
        result = bytearray(newest[:length].ljust(length, b"\0"))
        for at in range(0, length, size):
            if self._random.random() < share:
                end = min(at + size, length)
                result[at:end] = self._random.choice(states)[at:end].ljust(end - at, b"\0")
        return bytes(result)
