"""Reports operations to an observer, such as OpenTelemetry. Without one, nothing is measured.

`agent_checkpoint.adapters.otel` sets the observer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Observer(Protocol):
    """Receives operations and counts. Its methods must not raise."""

    def operation(
        self, name: str, attributes: Mapping[str, Any]
    ) -> AbstractContextManager[dict[str, Any]]:
        """Measure a block. It adds attributes that are known later to the returned dict."""

    def count(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Count an occurrence."""


class _Ignored(AbstractContextManager["dict[str, Any]"]):
    """A block that nobody measures."""

    def __enter__(self) -> dict[str, Any]:
        return {}

    def __exit__(self, *exc_info: object) -> None:
        return None


_IGNORED = _Ignored()
_observer: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Report the operations of this process to an observer; None: to nobody."""
    global _observer
    _observer = observer


def operation(name: str, **attributes: Any) -> AbstractContextManager[dict[str, Any]]:
    """Measure a block as an operation, with its errors."""
    return _IGNORED if _observer is None else _observer.operation(name, attributes)


def count(name: str, **attributes: Any) -> None:
    """Count an occurrence."""
    if _observer is not None:
        _observer.count(name, attributes)
