"""Shared: a value in a state that is stored as an object of its own. Owns its encoding."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.core.codec.encode import ENCODERS, Encoder
from agent_checkpoint.store.objects.splitting import SharedValue


class Shared:
    """Wraps a value that is saved several times, in lists, states or records: it is stored once.

    A load returns the value itself. Worthwhile from about 500 bytes on; longer values than 4 KiB
    are shared without it. The value is not copied: do not change it until it is saved.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, memo: object) -> Shared:
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _unwrapped, (self.value,)  # a pickle contains the value itself

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Shared) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shared({self.value!r})"


class SharedConstant(Shared):
    """A Shared whose value never changes, without objects of a class: it is encoded only once."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.encoded: tuple[int, SharedValue] | None = None
        """The depth at which it was encoded, and the result."""


def _unwrapped(value: Any) -> Any:
    return value


def _encode(encoder: Encoder, shared: Any, depth: int) -> Any:
    return SharedValue(encoder.value(shared.value, depth))


def _encode_once(encoder: Encoder, shared: Any, depth: int) -> Any:
    known = shared.encoded
    if known is None or known[0] < depth:  # deeper down it may be too deep
        known = shared.encoded = depth, _encode(encoder, shared, depth)
    return known[1]


ENCODERS[Shared] = _encode
ENCODERS[SharedConstant] = _encode_once
