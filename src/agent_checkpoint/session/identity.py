"""What an effect is the same as. Owns that name; looks into no ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.session.arguments import fingerprint
from agent_checkpoint.session.fitting import fitted
from agent_checkpoint.session.tools import Tool


def identity_of(
    tool: Tool, arguments: Mapping[str, Any], digest: str, task: str | None, number: int = 0
) -> str:
    """Return what a call is the same as: one of its key, or of its kind and number.

    Raises:
        InvalidInputError: the key cannot be told, or not be compared.
    """
    if tool.key is not None:
        name = [tool.name, "key", fingerprint(_key(tool, tool.key, arguments), "The key")]
    else:
        name = [tool.name, "call", task or "", digest, str(number)]
    return hashlib.sha256(json.dumps(name).encode()).hexdigest()


def _key(tool: Tool, key: Any, arguments: Mapping[str, Any]) -> Any:
    try:
        return fitted(key, tool.offered(arguments))
    except Exception as error:
        raise InvalidInputError(
            f"key= of the tool {tool.name} failed ({error!r}). It gets the arguments of the call "
            "by their names, without self."
        ) from error
