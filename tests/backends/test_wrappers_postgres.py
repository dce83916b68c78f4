"""Each wrapper, and all together, pass the shipped suite on PostgreSQL."""

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from hypothesis import settings

from agent_checkpoint.testing import BackendMachine, BackendTests
from agent_checkpoint.testing.object_tests import ObjectTests
from tests.backends.test_postgres import PostgresHooks, RawRows
from tests.backends.test_wrappers import Cached, Counted, Reading, Retrying, Wrapped

pytestmark = pytest.mark.usefixtures("use_server")


class TestAllOnPostgresSmoke(Wrapped, RawRows, ObjectTests):
    """The part of the suite that is most about the cache."""


@pytest.mark.slow
class TestRetryOnPostgres(Retrying, RawRows, BackendTests):
    pass


@pytest.mark.slow
class TestCacheOnPostgres(Cached, RawRows, BackendTests):
    pass


@pytest.mark.slow
class TestCountingOnPostgres(Counted, RawRows, BackendTests):
    pass


@pytest.mark.slow
class TestReadOnlyOnPostgres(Reading, RawRows, BackendTests):
    pass


@pytest.mark.slow
class TestAllOnPostgres(Wrapped, RawRows, BackendTests):
    pass


class AllOnPostgresMachine(Wrapped, PostgresHooks, BackendMachine):
    pass


TestAllOnPostgresMachine = AllOnPostgresMachine.TestCase
TestAllOnPostgresMachine.pytestmark = [pytest.mark.slow]
TestAllOnPostgresMachine.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)
