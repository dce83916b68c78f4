"""The conformance suite that every backend must pass.

Combines the test groups; the tests are in the modules of the groups.
"""

from __future__ import annotations

from agent_checkpoint.testing.concurrency_tests import ConcurrencyTests, DeletionTests
from agent_checkpoint.testing.name_tests import NameTests
from agent_checkpoint.testing.object_tests import ObjectTests
from agent_checkpoint.testing.opener_tests import OpenerTests
from agent_checkpoint.testing.order_tests import OrderTests
from agent_checkpoint.testing.property_tests import PropertyTests
from agent_checkpoint.testing.stream_tests import AppendTests, ReadTests


class BackendTests(
    ObjectTests,
    AppendTests,
    ReadTests,
    NameTests,
    DeletionTests,
    ConcurrencyTests,
    OpenerTests,
    OrderTests,
    PropertyTests,
):
    """The contract of `agent_checkpoint.Backend`, as tests for pytest.

    Derive a class whose name begins with `Test`, and implement the four hooks of `BackendHooks`:
    `make`, `reopen`, `raw_entry` and `raw_object`. If a test cannot pass on a medium, the medium
    cannot store checkpoints safely.
    """
