"""Tokens of a model's reply, in the formats of the model APIs, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.options import Prices
from agent_checkpoint.records import short_repr

_KINDS = ("input", "output", "cached", "cache_written")


def tokens_in(reply: Any) -> dict[str, int] | None:
    """Return the tokens that a reply reports; None if it reports none.

    `input` counts all of the prompt; `cached` and `cache_written` are parts of it that were read
    from and written to a cache.
    """
    usage = _field(reply, "usage", "usage_metadata", "usageMetadata")
    if not isinstance(usage, Mapping):
        return None
    details = _field(usage, "prompt_tokens_details", "input_tokens_details") or {}
    written = _count(usage, "cache_creation_input_tokens")
    cached = _count(usage, "cache_read_input_tokens", "cached_content_token_count")
    cached = cached or _count(usage, "cachedContentTokenCount") or _count(details, "cached_tokens")
    total = _count(usage, "prompt_tokens", "input_tokens", "prompt_token_count", "promptTokenCount")
    total += _count(usage, "tool_use_prompt_token_count", "toolUsePromptTokenCount")
    if _is_anthropic(reply, usage):  # counts cached tokens apart
        total += cached + written
    output = _count(
        usage,
        "completion_tokens",
        "output_tokens",
        "candidates_token_count",
        "candidatesTokenCount",
    )
    output += _count(usage, "thoughts_token_count", "thoughtsTokenCount")
    found = {"input": total, "output": output, "cached": cached}
    return {**found, "cache_written": written} if written else found


def cost_of(tokens: Mapping[str, int], price: Mapping[str, Any]) -> float:
    """Return the cost of tokens, by prices per million; cached tokens cost as input by default."""
    cached, written = tokens.get("cached", 0), tokens.get("cache_written", 0)
    full = price["input"]
    total = (
        (tokens["input"] - cached - written) * full
        + cached * price.get("cached", full)
        + written * price.get("cache_written", full)
        + tokens["output"] * price["output"]
    )
    return float(round(total / 1e6, 12))


def check_prices(prices: Prices) -> None:
    """Check prices by model.

    Raises:
        InvalidInputError: a price is missing, unknown or not a number.
    """
    for model, price in prices.items():
        if not isinstance(price, Mapping) or not {"input", "output"} <= set(price) <= set(_KINDS):
            raise InvalidInputError(
                f"prices[{short_repr(model)}] must have input and output, and may have cached and "
                f"cache_written, per million tokens; not {short_repr(price)}."
            )
        for kind, value in price.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise InvalidInputError(
                    f"prices[{short_repr(model)}][{kind!r}] must be a number, not "
                    f"{short_repr(value)}."
                )


def _is_anthropic(reply: Any, usage: Mapping[str, Any]) -> bool:
    if _field(usage, "prompt_tokens", "prompt_tokens_details", "input_tokens_details") is not None:
        return False  # gateways add Anthropic's fields to a usage in OpenAI's form
    names = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return _field(reply, "type") == "message" or any(name in usage for name in names)


def _field(source: Any, *names: str) -> Any:
    if not isinstance(source, Mapping):
        return None
    return next((source[name] for name in names if source.get(name) is not None), None)


def _count(source: Any, *names: str) -> int:
    value = _field(source, *names)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
