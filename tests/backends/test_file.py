"""The file backend passes the shipped suite."""

from hypothesis import settings

from agent_checkpoint import FileBackend
from agent_checkpoint.backends.file_names import directory_name
from agent_checkpoint.testing import BackendMachine, BackendTests


class FileHooks:
    def make(self, place):
        return FileBackend(place / "store")

    def reopen(self, backend):
        backend.close()
        return FileBackend(backend.path)


def content(path):
    return path.read_bytes() if path.exists() else None


class TestFileBackend(FileHooks, BackendTests):
    def raw_entry(self, backend, stream, seq):
        return content(backend.path / directory_name(stream) / f"{seq}.json")

    def raw_object(self, backend, object_id):
        return content(backend.path / "objects" / object_id[:2] / object_id)


class FileMachine(FileHooks, BackendMachine):
    pass


TestFileMachine = FileMachine.TestCase
TestFileMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
