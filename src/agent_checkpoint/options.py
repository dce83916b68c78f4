"""Types of options, so that type checkers and editors know them; the check of those of a few words.

`effect=` of tools is not here: the table of effect kinds describes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Union, get_args

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr

BackendName = Literal["memory", "file", "sqlite"]
Compression = Literal["zlib", "zstd"]
Conflicts = Literal["refuse", "markers"]
Driver = Literal["auto", "overlay", "reflink", "copy"]
Durability = Literal["full", "fast"]
ForkEffects = Literal["refuse", "allow"]
Merge = Literal["files"]
Mode = Literal["max", "min"]
OnDivergence = Literal["stop", "live"]
OnDrift = Literal["keep", "restore", "raise"]
OnError = Literal["rollback"]
OnResume = Literal["restart", "continue"]
Pickles = Literal["allow", "warn", "refuse"]
Provider = Literal["anthropic", "openai", "openai-responses", "gemini"]
RollbackEffects = Literal["refuse", "warn", "compensate"]
SaveAfter = Literal["tool", "task", "manual"]
Every = Union[SaveAfter, int]
StateFormat = Literal["json", "pickle"]
Prices = Mapping[str, Mapping[str, Union[int, float]]]


def check_option(name: str, value: object, words: object, *others: str) -> None:
    """Check that an option is one of the words of a Literal.

    Args:
        name: the name of the option.
        value: its value.
        words: the Literal.
        others: descriptions of its other values, which the caller checks first.

    Raises:
        InvalidInputError: it is none of them.
    """
    known = get_args(words)
    if value not in known:
        *most, last = [*map(repr, known), *others]
        expected = f"{', '.join(most)} or {last}" if most else last
        raise InvalidInputError(f"{name} must be {expected}, not {short_repr(value)}.")
