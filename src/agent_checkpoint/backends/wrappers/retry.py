"""A wrapper that repeats calls while the store is unreachable or busy."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from agent_checkpoint import telemetry
from agent_checkpoint.backends.base import (
    NO_OBJECTS,
    Backend,
    BackendProperties,
    Changes,
    ObjectScan,
)
from agent_checkpoint.backends.wrapper import WrapperBackend
from agent_checkpoint.backends.wrappers.url_options import with_options
from agent_checkpoint.errors import (
    ConflictError,
    InvalidInputError,
    MissingObjectsError,
    StorageError,
)
from agent_checkpoint.records import Entry, ObjectInfo, short_repr

T = TypeVar("T")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


class RetryBackend(WrapperBackend):
    """Repeats a call that failed with a retryable StorageError; other errors are raised at once.

    The pause before the next attempt is random, between 0 and a limit that doubles from 0.1 s up
    to 10 s, so that many clients do not return at the same moment.

    An append with an unknown outcome is repeated only with `after`: the store then refuses a
    duplicate, and the entry that it has instead tells whether the lost attempt was stored. This
    takes for granted that two writers never append the same bytes, as entries contain ids. Without
    `after`, the error is raised.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        attempts: int = 5,
        sleep: Callable[[float], object] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Wrap a backend.

        Args:
            inner: the backend.
            attempts: how often to try a call, at most.
            sleep: waits a number of seconds.
            uniform: returns a random number between two numbers.

        Raises:
            InvalidInputError: `attempts` is not a positive number.
        """
        super().__init__(inner)
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise InvalidInputError(
                f"retry must be a positive number of attempts, not {short_repr(attempts)}."
            )
        self._attempts = attempts
        self._sleep = sleep
        self._uniform = uniform

    @property
    def properties(self) -> BackendProperties:
        """Those of the wrapped backend, with the number of attempts in the URL."""
        inner = self.inner.properties
        return inner._replace(url=with_options(inner.url, retry=self._attempts))

    # -- objects ---------------------------------------------------------------------------------

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Forward, with retries: an existing object is not changed."""
        self._call(lambda: self.inner.put_objects(objects))

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Forward, with retries."""
        wanted = list(ids)
        return self._call(lambda: self.inner.get_objects(wanted))

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Forward, with retries."""
        wanted = list(ids)
        return self._call(lambda: self.inner.missing_objects(wanted))

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Forward, with retries. An iteration that fails starts again, without what it yielded."""
        return self._iterate(self.inner.list_objects, lambda info: info.id)

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Forward, with retries, until a generator of ids has begun: it runs once."""
        if isinstance(ids, Collection):
            return self._call(lambda: self.inner.delete_objects(ids))
        begun = False

        def once() -> Iterator[str]:
            nonlocal begun
            begun = True
            yield from ids

        return self._call(lambda: self.inner.delete_objects(once()), lambda _: not begun)

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Forward, with retries."""
        return self._call(lambda: self.inner.find_objects(first, position))

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Forward, with retries."""
        self._call(lambda: self.inner.replace_objects(objects))

    # -- streams ---------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Forward, with retries that append at most once.

        Raises:
            StorageError: as the wrapped backend. `outcome_unknown` if that of an attempt is.
        """
        failed: list[StorageError] = []

        def attempt() -> int:
            try:
                return self.inner.append(
                    stream, entry, after=after, objects=objects, requires=requires
                )
            except (ConflictError, MissingObjectsError):
                # Another writer's entry, or the one of an attempt whose reply was lost?
                for found in self.inner.read(stream, after=after, limit=1) if failed else ():
                    if after is not None and found.data == entry:
                        return found.seq
                raise
            except StorageError as error:
                failed.append(error)
                raise

        try:
            return self._call(attempt, lambda e: after is not None or not e.outcome_unknown)
        except StorageError as error:
            unknown = [earlier for earlier in failed if earlier.outcome_unknown]
            if unknown and not error.outcome_unknown:
                raise unknown[0] from error
            raise

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Forward, with retries."""
        return self._call(
            lambda: self.inner.read(
                stream, before=before, after=after, limit=limit, newest_first=newest_first
            )
        )

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Forward, with retries: numbers are not reused."""
        doomed = list(seqs)
        self._call(lambda: self.inner.remove(stream, doomed))

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Forward, with retries, as `list_objects`."""
        return self._iterate(lambda: self.inner.streams(prefix), lambda name: name)

    # -- the rest --------------------------------------------------------------------------------

    def scrub(self) -> None:
        """Forward, with retries."""
        self._call(self.inner.scrub)

    def is_replaced(self) -> bool:
        """Forward, with retries."""
        return self._call(self.inner.is_replaced)

    def changes(self, position: Any = None) -> Changes:
        """Forward, with retries."""
        found = self._call(lambda: self.inner.changes(position))
        if position is None or found.position is None:  # everything, so iterations may fail
            return Changes(self.streams(), self.list_objects(), found.position)
        return found

    def _call(
        self, action: Callable[[], T], can_repeat: Callable[[StorageError], bool] = lambda _: True
    ) -> T:
        """Return the result of an action, which is repeated. Raises its errors."""
        for attempt in range(1, self._attempts):
            try:
                return action()
            except StorageError as error:
                if not error.retryable or not can_repeat(error):
                    raise
                telemetry.count("retry", error=type(error).__name__)
            limit = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt - 1, 20))
            self._sleep(self._uniform(0.0, limit))
        return action()

    def _iterate(self, start: Callable[[], Iterator[T]], name: Callable[[T], str]) -> Iterator[T]:
        """Iterate over the items, each once, although iterations may fail. Raises StorageError."""
        items: Iterator[T] | None = None
        seen: set[str] = set()

        def following() -> T | None:
            nonlocal items
            try:
                if items is None:
                    items = start()
                return next((item for item in items if name(item) not in seen), None)
            except StorageError:
                items = None  # a failed generator looks like one that is at its end
                raise

        while (item := self._call(following)) is not None:
            seen.add(name(item))
            yield item
