"""Conformance tests for backends: a test suite and a state machine for the contract of `Backend`.

Does not depend on any particular backend.

    class TestMine(BackendTests):      # needs pytest
        def make(self, place): ...
        def reopen(self, backend): ...
        def raw_entry(self, backend, stream, seq): ...
        def raw_object(self, backend, object_id): ...

    class MyMachine(BackendMachine):   # needs hypothesis too
        def make(self, place): ...
        def reopen(self, backend): ...

    TestMyMachine = MyMachine.TestCase

A backend must pass all tests. Implement these hooks only; do not override or skip tests.
"""

from __future__ import annotations

from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from agent_checkpoint.testing.backend_machine import BackendMachine as BackendMachine
    from agent_checkpoint.testing.backend_tests import BackendTests as BackendTests

__all__ = ["BackendMachine", "BackendTests"]

_MODULE_OF = {"BackendMachine": "backend_machine", "BackendTests": "backend_tests"}

# Assertion rewriting: a failed assert shows both sides, as in the backend author's tests.
pytest.register_assert_rewrite(*(module.name for module in iter_modules(__path__, f"{__name__}.")))


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # at first use: hypothesis may not be installed

    return getattr(import_module(f"{__name__}.{module}"), name)
