"""An encrypted PostgreSQL store passes the shipped suite, and its tables hold no plaintext."""

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")
pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from hypothesis import settings

from agent_checkpoint import CheckpointManager, EncryptionKeyError
from agent_checkpoint.testing import BackendMachine, BackendTests
from agent_checkpoint.testing.opener_tests import OpenerTests
from tests.attacks.test_encrypted_store import WORD, forms, plant
from tests.backends.encrypted_stores import KEY, Encrypted
from tests.backends.test_postgres import PostgresHooks, RawRows

pytestmark = pytest.mark.usefixtures("use_server")


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


def rows_of(server, schema):
    """Every row of every table of a schema, as the server prints it, and raw bytes."""
    tables = server.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,)
    )
    assert len(tables) >= 4
    for (table,) in tables:
        for row in server.execute(f"SELECT * FROM {schema}.{table}"):
            for value in row:
                yield (
                    bytes(value) if isinstance(value, (bytes, memoryview)) else str(value).encode()
                )


def test_no_table_holds_plaintext(server, tmp_path):
    schema = server.new_schema()
    with CheckpointManager(server.url(schema), encryption_key=KEY) as opened:
        manager = plant(opened.store.backend, tmp_path / "files")
        assert manager.verify().ok
        names = {info.id for info in manager.store.backend.list_objects()}
    hidden = [*forms(WORD), KEY, *(bytes.fromhex(name) for name in names)]
    values = list(rows_of(server, schema))
    assert len(values) > 100
    for value in values:
        assert not [word for word in hidden if word in value]
    with CheckpointManager(server.url(schema)) as plain, pytest.raises(EncryptionKeyError):
        plain.list_keys()
