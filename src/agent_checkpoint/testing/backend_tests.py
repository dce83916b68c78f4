"""The conformance suite that every backend passes.

Owns how its chapters are put together; the promises themselves are in the chapters.
"""

from __future__ import annotations

from agent_checkpoint.testing.append_tests import AppendTests
from agent_checkpoint.testing.concurrency_tests import ConcurrencyTests
from agent_checkpoint.testing.deletion_tests import DeletionTests
from agent_checkpoint.testing.name_tests import NameTests
from agent_checkpoint.testing.object_tests import ObjectTests
from agent_checkpoint.testing.read_tests import ReadTests


class BackendTests(ObjectTests, AppendTests, ReadTests, NameTests, DeletionTests, ConcurrencyTests):
    """All that `agent_checkpoint.Backend` promises, as tests for pytest.

    Derive a class whose name begins with `Test` and give it the four hooks of `BackendHooks`:
    `make`, `reopen`, `raw_entry` and `raw_object`. A test that a medium cannot pass means that it
    cannot hold checkpoints safely.
    """
