"""Encrypted backends pass the shipped suite over every medium."""

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from hypothesis import settings

from agent_checkpoint.testing import BackendMachine
from tests.backends.encrypted_stores import Encrypted
from tests.backends.test_file import FileHooks
from tests.backends.test_file import TestFileBackend as FileSuite
from tests.backends.test_memory import MemoryHooks
from tests.backends.test_memory import TestMemoryBackend as MemorySuite
from tests.backends.test_sqlite import SQLiteHooks
from tests.backends.test_sqlite import TestSQLiteBackend as SQLiteSuite


class TestEncryptedMemoryBackend(Encrypted, MemorySuite):
    pass


@pytest.mark.slow
class TestEncryptedFileBackend(Encrypted, FileSuite):
    pass


@pytest.mark.slow
class TestEncryptedSQLiteBackend(Encrypted, SQLiteSuite):
    pass


class EncryptedMemoryMachine(Encrypted, MemoryHooks, BackendMachine):
    pass


class EncryptedFileMachine(Encrypted, FileHooks, BackendMachine):
    pass


class EncryptedSQLiteMachine(Encrypted, SQLiteHooks, BackendMachine):
    pass


TestEncryptedMemoryMachine = EncryptedMemoryMachine.TestCase
TestEncryptedMemoryMachine.settings = settings(
    max_examples=10, stateful_step_count=40, deadline=None
)
TestEncryptedFileMachine = pytest.mark.slow(EncryptedFileMachine.TestCase)
TestEncryptedFileMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestEncryptedSQLiteMachine = pytest.mark.slow(EncryptedSQLiteMachine.TestCase)
TestEncryptedSQLiteMachine.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None
)
