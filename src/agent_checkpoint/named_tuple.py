"""NamedTuple as in `typing`, without compiling the annotations.

`typing.NamedTuple` compiles each one: the import of the package would take a quarter more time.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Definition(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.get("__annotations__", {})
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for member, value in body.items():
                setattr(made, member, value)
            return made

    class NamedTuple(metaclass=_Definition):
        """The base of a class whose annotated members are the fields of a tuple."""
