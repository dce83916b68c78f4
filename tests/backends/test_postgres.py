"""The PostgreSQL backend passes the shipped suite on a real server, and what is its own."""

import re

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from hypothesis import settings

from agent_checkpoint.backends.postgres import PostgresBackend
from agent_checkpoint.testing import BackendMachine, BackendTests
from agent_checkpoint.testing.concurrency_tests import DeletionTests
from agent_checkpoint.testing.opener_tests import OpenerTests
from tests.backends import postgres_server
from tests.backends.postgres_server import server  # noqa: F401 - a fixture

ID = "ab" * 32


def schema_of(backend):
    return re.search("schema=([a-z0-9_]+)", backend.url)[1]


class PostgresHooks:
    server: postgres_server.PostgresServer

    def make(self, place):
        return PostgresBackend(self.server.url(self.server.new_schema()))

    def reopen(self, backend):
        backend.close()
        self.server.wait_until_idle(schema_of(backend))
        return PostgresBackend(backend.url)


@pytest.fixture(autouse=True, scope="module")
def use_server(server):  # noqa: F811
    PostgresHooks.server = server


class RawRows(PostgresHooks):
    def raw_entry(self, backend, stream, seq):
        schema = schema_of(backend)
        return self.value(
            backend,
            f"SELECT data FROM {schema}.entries JOIN {schema}.streams ON streams.id = stream "
            "WHERE name = %s AND seq = %s",
            (stream.encode(), seq),
        )

    def raw_object(self, backend, object_id):
        query = f"SELECT data FROM {schema_of(backend)}.objects WHERE id = %s"
        return self.value(backend, query, (bytes.fromhex(object_id),))

    def value(self, backend, query, values):
        (found,) = self.server.execute(f"SELECT to_regclass('{schema_of(backend)}.store')")
        rows = self.server.execute(query, values) if found[0] else []
        return rows[0][0] if rows else None


@pytest.mark.slow  # about a minute
class TestPostgresBackend(RawRows, BackendTests):
    pass


class TestPostgresSmoke(RawRows, DeletionTests, OpenerTests):
    """The parts of the suite that are most about locks."""


class PostgresMachine(PostgresHooks, BackendMachine):
    pass


TestPostgresMachine = PostgresMachine.TestCase
TestPostgresMachine.pytestmark = [pytest.mark.slow]
TestPostgresMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
