"""An encrypted PostgreSQL store passes the shipped suite, and its tables hold no plaintext."""

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")
pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from hypothesis import settings

from agent_checkpoint.testing import BackendMachine, BackendTests
from agent_checkpoint.testing.opener_tests import OpenerTests
from tests.backends.encrypted_stores import Encrypted
from tests.backends.postgres_server import server  # noqa: F401 - a fixture
from tests.backends.test_postgres import PostgresHooks, RawRows


@pytest.fixture(autouse=True, scope="module")
def use_server(server):  # noqa: F811
    PostgresHooks.server = server


@pytest.mark.slow  # about a minute
class TestEncryptedPostgresBackend(Encrypted, RawRows, BackendTests):
    pass


class TestEncryptedPostgresSmoke(Encrypted, RawRows, OpenerTests):
    pass


class EncryptedPostgresMachine(Encrypted, PostgresHooks, BackendMachine):
    pass


TestEncryptedPostgresMachine = pytest.mark.slow(EncryptedPostgresMachine.TestCase)
TestEncryptedPostgresMachine.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None
)
