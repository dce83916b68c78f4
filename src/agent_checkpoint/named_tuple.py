"""NamedTuple as in `typing`, several times as fast to define.

It does not compile the annotations, and all classes share their methods and the code of `__new__`.
`from agent_checkpoint import CheckpointManager, Workspace` defines some forty of them.
"""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Methods:
        """What all named tuples have in common. As a base class it would slow down instances."""

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self))

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
            return f"{type(self).__name__}({fields})"

    _METHODS = {
        name: vars(_Methods)[name]
        for name in ("_make", "_replace", "_asdict", "__getnewargs__", "__repr__")
    }

    class _Definition(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            names = {"co_name": "__new__", "co_varnames": ("cls", *fields)}
            code = _new(len(fields)).__code__.replace(**names)
            new = FunctionType(code, {"tuple_new": tuple.__new__}, "__new__")
            new.__qualname__ = f"{name}.__new__"
            new.__defaults__ = tuple(defaults.values())
            for at, field in enumerate(fields):
                body[field] = _tuplegetter(at, None)
            shared = {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
            own = {"__slots__": (), "__new__": new, **shared}
            return type(name, (tuple,), {**_METHODS, **own, **body})

    @cache
    def _new(count: int) -> FunctionType:
        """Return a `__new__` with this number of fields, whose names are to be replaced."""
        fields = "".join(f"_{number}, " for number in range(count))
        return eval(f"lambda cls, {fields}: tuple_new(cls, ({fields}))")  # noqa: S307 - numbers only

    class NamedTuple(metaclass=_Definition):
        """The base of a class whose annotated members are the fields of a tuple."""
