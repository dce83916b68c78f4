"""The memory backend passes the shipped suite."""

from hypothesis import settings

from agent_checkpoint import MemoryBackend
from agent_checkpoint.testing import BackendMachine, BackendTests


class MemoryHooks:
    def make(self, place):
        return MemoryBackend()

    def reopen(self, backend):
        return backend


class TestMemoryBackend(MemoryHooks, BackendTests):
    def raw_entry(self, backend, stream, seq):
        return backend._streams.get(stream, {}).get(seq)

    def raw_object(self, backend, object_id):
        data, _ = backend._objects.get(object_id, (None, None))
        return data


class MemoryMachine(MemoryHooks, BackendMachine):
    pass


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
