"""A hypothesis state machine that compares a backend with a model of plain dicts.

Owns the model and the rules. Does not depend on any particular backend.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import ConflictError, MissingObjectsError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.backend_hooks import check_hooks, object_id

# Few names, so that rules use the same streams; a medium might confuse each with another.
STREAMS = st.just("key/a") | st.sampled_from(["key/A", "fx/a", "key/a/" + "é" * 99])
OBJECT_IDS = [object_id(b"%d" % number) for number in range(6)]
IDS = st.sets(st.sampled_from(OBJECT_IDS), max_size=3)
OBJECTS = st.dictionaries(st.sampled_from(OBJECT_IDS), st.binary(max_size=8), max_size=3)
ENTRIES = st.binary(max_size=20)
EDGES = st.none() | st.integers(0, 9)


class BackendMachine(RuleBasedStateMachine):
    """Checks that after any sequence of calls the backend has the same content as the model.

    Derive a class with the hooks `make` and `reopen`, which may be those of `BackendTests`, and
    assign its `TestCase` to a module-level name, so that pytest collects it.
    """

    def __init__(self) -> None:
        super().__init__()
        check_hooks(self, "make", "reopen")
        self._folder = TemporaryDirectory(prefix="backend-machine-")
        self.backend = self.make(Path(self._folder.name))
        self.objects: dict[str, bytes] = {}
        self.streams: dict[str, dict[int, bytes]] = {}
        self.last: dict[str, int] = {}

    @abstractmethod
    def make(self, place: Path) -> Backend:
        """Return a new, empty backend. It may use `place`, an empty directory for this run."""

    @abstractmethod
    def reopen(self, backend: Backend) -> Backend:
        """Open the data of a backend again; return the new backend. The old one is discarded."""

    def teardown(self) -> None:
        """Close the backend and remove its directory."""
        self.backend.close()
        self._folder.cleanup()

    # -- steps -----------------------------------------------------------------------------------

    @rule(objects=OBJECTS)
    def put_objects(self, objects: dict[str, bytes]) -> None:
        """Put new and existing objects."""
        self.backend.put_objects(objects)
        self._keep(objects)

    @rule(ids=IDS)
    def delete_objects(self, ids: set[str]) -> None:
        """Delete objects, stored or not."""
        self.backend.delete_objects(ids)
        for name in ids:
            self.objects.pop(name, None)

    @rule(ids=IDS)
    def get_objects(self, ids: set[str]) -> None:
        """Compare `get_objects` and `missing_objects` with the model."""
        stored = {name: self.objects[name] for name in ids if name in self.objects}
        assert self.backend.get_objects(ids) == stored
        assert self.backend.missing_objects(ids) == ids - stored.keys()

    @rule(stream=STREAMS, entries=st.lists(ENTRIES, min_size=1, max_size=4), objects=OBJECTS)
    def append(self, stream: str, entries: list[bytes], objects: dict[str, bytes]) -> None:
        """Append entries without conditions."""
        for entry in entries:
            self._appended(stream, entry, self.backend.append(stream, entry, objects=objects))
            self._keep(objects)

    @rule(
        stream=STREAMS,
        entry=ENTRIES,
        after=EDGES,
        at_head=st.booleans(),
        objects=OBJECTS,
        requires=IDS,
    )
    def append_if(
        self,
        stream: str,
        entry: bytes,
        after: int | None,
        at_head: bool,
        objects: dict[str, bytes],
        requires: set[str],
    ) -> None:
        """Append with `after` and `requires`, which may or may not be satisfied."""
        newest = max(self.streams.get(stream, ()), default=0)
        after = newest if at_head else after
        requires = requires - objects.keys()
        missing = requires - self.objects.keys()
        try:
            seq = self.backend.append(
                stream, entry, after=after, objects=objects, requires=requires
            )
        # If both conditions fail, the contract does not specify which error is raised.
        except ConflictError:
            assert after not in (None, newest)
        except MissingObjectsError as error:
            refused = error.ids
            assert missing
            assert refused == missing
        else:
            assert after in (None, newest)
            assert not missing
            self._appended(stream, entry, seq)
            self._keep(objects)
            return
        # A refused append may have stored its objects or not.
        self._keep(self.backend.get_objects(objects.keys() - self.objects.keys()), among=objects)

    @rule(stream=STREAMS, seqs=st.sets(st.integers(1, 9), max_size=3))
    def remove(self, stream: str, seqs: set[int]) -> None:
        """Remove entries of a stream, existing or not."""
        self._remove(stream, seqs)

    @rule(stream=STREAMS, times=st.integers(1, 3))
    def remove_newest(self, stream: str, times: int) -> None:
        """Remove the newest entry of a stream, one or several times."""
        for _ in range(times):
            self._remove(stream, {max(self.streams.get(stream, ()), default=0)})

    @rule(stream=STREAMS)
    def remove_all(self, stream: str) -> None:
        """Remove all entries of a stream."""
        self._remove(stream, set(self.streams.get(stream, ())))

    @rule(
        stream=STREAMS,
        before=EDGES,
        after=EDGES,
        limit=st.none() | st.integers(0, 4),
        newest_first=st.booleans(),
    )
    def read(
        self,
        stream: str,
        before: int | None,
        after: int | None,
        limit: int | None,
        newest_first: bool,
    ) -> None:
        """Read a window of a stream."""
        expected = [
            Entry(seq, entry)
            for seq, entry in sorted(self.streams.get(stream, {}).items(), reverse=newest_first)
            if (before is None or seq < before) and (after is None or seq > after)
        ]
        found = self.backend.read(
            stream, before=before, after=after, limit=limit, newest_first=newest_first
        )
        assert found == expected[:limit]

    @rule(stream=STREAMS, cut=st.integers(0, 6))
    def list_streams(self, stream: str, cut: int) -> None:
        """List the streams with a prefix."""
        prefix = stream[:cut]
        expected = sorted(name for name in self.streams if name.startswith(prefix))
        assert sorted(self.backend.streams(prefix)) == expected

    @rule()
    def open_again(self) -> None:
        """Reopen the backend, and continue with the new instance."""
        self.backend = self.reopen(self.backend)

    # -- what holds after every step -------------------------------------------------------------

    @invariant()
    def objects_are_equal(self) -> None:
        """The backend has exactly the objects of the model."""
        assert self.backend.get_objects(OBJECT_IDS) == self.objects
        sizes = {info.id: info.size for info in self.backend.list_objects()}
        assert sizes == {name: len(data) for name, data in self.objects.items()}

    @invariant()
    def streams_are_equal(self) -> None:
        """The backend has exactly the streams and entries of the model."""
        assert sorted(self.backend.streams()) == sorted(self.streams)
        for stream, present in self.streams.items():
            expected = [Entry(seq, present[seq]) for seq in sorted(present)]
            assert self.backend.read(stream) == expected

    # -- the model -------------------------------------------------------------------------------

    def _keep(self, objects: Mapping[str, bytes], among: Mapping[str, bytes] | None = None) -> None:
        for name, data in objects.items():
            assert among is None or among[name] == data
            self.objects.setdefault(name, data)

    def _appended(self, stream: str, entry: bytes, seq: int) -> None:
        assert seq == self.last.get(stream, 0) + 1
        self.last[stream] = seq
        self.streams.setdefault(stream, {})[seq] = entry

    def _remove(self, stream: str, seqs: set[int]) -> None:
        self.backend.remove(stream, seqs)
        present = self.streams.get(stream, {})
        for seq in seqs & present.keys():
            del present[seq]
        if not present:
            self.streams.pop(stream, None)
