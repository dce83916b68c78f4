"""Conversations that a model API accepts: find what it would refuse, and repair it.

Pure functions on lists of messages; they call no API and know no session or store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_checkpoint.options import Provider, check_option
from agent_checkpoint.transcripts.anthropic_messages import AnthropicMessages
from agent_checkpoint.transcripts.dialect import Dialect
from agent_checkpoint.transcripts.gemini_contents import GeminiContents
from agent_checkpoint.transcripts.mending import mend
from agent_checkpoint.transcripts.openai_chat import OpenAIChat
from agent_checkpoint.transcripts.openai_responses import OpenAIResponses
from agent_checkpoint.transcripts.report import CallLookup, CallOutcome, Change, Problem, Repaired

__all__ = [
    "CallLookup",
    "CallOutcome",
    "Change",
    "Problem",
    "Provider",
    "Repaired",
    "check",
    "repair",
]

_DIALECTS: dict[Provider, Dialect] = {
    "anthropic": AnthropicMessages(),
    "openai": OpenAIChat(),
    "openai-responses": OpenAIResponses(),
    "gemini": GeminiContents(),
}


def check(messages: Iterable[Any], *, provider: Provider) -> list[Problem]:
    """Return what the API would refuse in a conversation, in its order; [] if nothing.

    Raises:
        InvalidInputError: the provider is unknown, or a message is not one of this provider.
    """
    draft = mend(messages, dialect_for(provider), None)
    return sorted(draft.problems, key=lambda problem: problem.index)


def repair(
    messages: Iterable[Any],
    *,
    provider: Provider,
    session: CallLookup | None = None,
    keep_open: bool = False,
) -> Repaired:
    """Return the conversation as a new list that the API accepts; `.changes` lists the changes.

    A tool call without a result gets one that says what `session` knows about the call. Messages
    before the first problem are the same objects; the input is not changed.

    Args:
        messages: the conversation.
        provider: the API.
        session: knows the outcomes of tool calls, such as a session.
        keep_open: leave calls at the end of the conversation without results, for
            `session.run_tools`, which runs them.

    Raises:
        InvalidInputError: the provider is unknown, or a message is not one of this provider.
    """
    draft = mend(messages, dialect_for(provider), session, keep_open=keep_open)
    return Repaired(draft.result(), tuple(draft.changes))


def dialect_for(provider: Provider) -> Dialect:
    """Return the dialect of an API. Raises InvalidInputError if the provider is unknown."""
    check_option("provider", provider, Provider)
    return _DIALECTS[provider]
