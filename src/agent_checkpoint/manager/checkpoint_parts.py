"""Captures and restores the named parts of a checkpoint.

The argument is an agent, a dict of Statefuls, or a plain dict. Does not depend on storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agent_checkpoint import telemetry
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.codec.save_policy import NO_POLICY, SavePolicy
from agent_checkpoint.core.path_errors import as_state_error
from agent_checkpoint.core.stateful import is_stateful
from agent_checkpoint.errors import InvalidInputError, StateMismatchError
from agent_checkpoint.options import StateFormat
from agent_checkpoint.records import Draft, JsonValue, short_repr
from agent_checkpoint.store.canonical_json import exact_float
from agent_checkpoint.store.objects.reader import Reader

if TYPE_CHECKING:
    from agent_checkpoint.core.codec.encode import NewWriter
    from agent_checkpoint.core.live_objects import LiveObjects
    from agent_checkpoint.redaction import Redactor

SINGLE_PART = "agent"
"""The part name of a single agent or plain dict."""


def parts_of(subject: Any) -> dict[str, Any]:
    """Return the named parts of an argument.

    A dict whose values are all Statefuls contains parts; any other dict is one state.

    Raises:
        InvalidInputError: the argument is neither a Stateful nor a dict, or a part name is invalid.
    """
    if is_stateful(subject):
        return {SINGLE_PART: subject}
    if isinstance(subject, type):
        name = subject.__name__
        raise InvalidInputError(f"{name} is a class: pass an instance, such as {name}().")
    if not isinstance(subject, dict):
        raise InvalidInputError(
            f"{type(subject).__name__} has no state_dict() and load_state_dict(). Derive its class "
            "from Checkpointable, or pass a dict."
        )
    if not subject or not all(is_stateful(part) for part in subject.values()):
        return {SINGLE_PART: subject}
    for name in subject:
        check_text(name, "A part name")
    return dict(subject)


def capture(
    subject: Any,
    fmt: StateFormat = "json",
    new_writer: NewWriter | None = None,
    policy: SavePolicy = NO_POLICY,
) -> dict[str, JsonValue]:
    """Capture the parts of an argument as JSON; `policy` applies to what will be saved.

    Raises:
        InvalidInputError: the argument has no parts; see `parts_of`.
        StateError: a value cannot be captured.
    """
    with block_forks():
        from agent_checkpoint.core.state_codec import encode_state  # reading does without

    parts = parts_of(subject)
    with telemetry.operation("capture"):
        return {
            name: encode_state(part, name, fmt, new_writer, policy) for name, part in parts.items()
        }


def restore(
    saved: Mapping[str, JsonValue],
    subject: Any,
    *,
    strict: bool = False,
    trust_pickle: bool = False,
    reader: Reader | None = None,
    where: str = "The checkpoint",
) -> Any:
    """Load saved parts into an agent, named parts or a dict, atomically.

    Args:
        saved: the parts as JSON.
        subject: the target.
        strict: refuse states that lack fields or have unexpected ones.
        trust_pickle: load pickles without verifying their signature.
        reader: reads the objects that the parts refer to, if they come from a store.
        where: the name of the source in messages.

    Returns:
        The result of the load; by part name if several parts were passed.

    Raises:
        StateMismatchError: a requested part was not saved.
        StateError: a state cannot be decoded or loaded.
    """
    targets = parts_of(subject)
    absent = [name for name in targets if name not in saved]
    if absent:
        raise StateMismatchError(
            f"{where} has no part {', '.join(map(short_repr, absent))}. It has the parts "
            f"{', '.join(map(short_repr, saved))}. Pass a dict of objects by part name; a single "
            f"object is loaded from the part {SINGLE_PART!r}."
        )
    results = restore_parts(saved, targets, strict=strict, trust_pickle=trust_pickle, reader=reader)
    return results[SINGLE_PART] if targets.get(SINGLE_PART) is subject else results


def restore_parts(
    saved: Mapping[str, JsonValue],
    targets: Mapping[str, Any],
    *,
    strict: bool = False,
    trust_pickle: bool = False,
    reader: Reader | None = None,
    live_objects: LiveObjects | None = None,
) -> dict[str, Any]:
    """Load saved parts into their targets atomically; return the result of each load.

    Args:
        saved: the parts as JSON.
        targets: the target of each part.
        strict: refuse states that lack fields or have unexpected ones.
        trust_pickle: load pickles without verifying their signature.
        reader: reads the objects that the parts refer to, if they come from a store.
        live_objects: the objects that the parts were captured from, to restore them in place.

    Raises:
        StateError: a state cannot be decoded or loaded.
        IntegrityError: a referenced object is missing or damaged.
    """
    with block_forks():  # a program that only saves does not load them
        from agent_checkpoint.core.loading import decode_part, load_parts

    if reader is not None:
        reader.fetch(saved[name] for name in targets)
    pairs = {
        name: (
            target,
            decode_part(saved[name], name, target, trust_pickle=trust_pickle, reader=reader),
        )
        for name, target in targets.items()
    }
    return load_parts(pairs, strict=strict, live_objects=live_objects)


def states_of(
    saved: Mapping[str, JsonValue],
    targets: Mapping[str, Any] = MappingProxyType({}),
    *,
    trust_pickle: bool = False,
    reader: Reader | None = None,
) -> Any:
    """Return the saved states by part name; the state itself if the only part is `agent`.

    Args:
        saved: the parts as JSON.
        targets: live objects by part; their type hints allow types to be decoded.
        trust_pickle: load pickles without verifying their signature.
        reader: reads the objects that the parts refer to, if they come from a store.

    Raises:
        StateError: a state cannot be decoded.
        IntegrityError: a referenced object is missing or damaged.
    """
    with block_forks():
        from agent_checkpoint.core.loading import decode_part  # slow to load

    if reader is not None:
        reader.fetch(saved.values())
    states = {
        name: decode_part(
            tree, name, targets.get(name), trust_pickle=trust_pickle, reader=reader
        ).value
        for name, tree in saved.items()
    }
    return states[SINGLE_PART] if list(states) == [SINGLE_PART] else states


def make_draft(
    key: str,
    parts: Mapping[str, JsonValue],
    *,
    label: str | None = None,
    tags: Iterable[str] = (),
    metrics: Mapping[str, float] | None = None,
    policy: SavePolicy = NO_POLICY,
) -> Draft:
    """Return a validated draft of a checkpoint, with secrets redacted if the policy says so.

    Raises:
        InvalidInputError: the label, a tag or a metric is invalid, or a name contains a secret.
        StateError: a value that cannot be redacted contains a secret.
    """
    if label is not None:
        check_text(label, "A label")
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidInputError(f"tags must be a list of strings, not {short_repr(tags)}.")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InvalidInputError(f"metrics must map names to numbers, not {short_repr(metrics)}.")
    numbers = {}
    for name, value in (metrics or {}).items():
        check_text(name, "A metric name")
        numbers[name] = _number(name, value)
    draft = Draft(
        key=key,
        parts=parts,
        label=label,
        tags=tuple(check_text(tag, "A tag") for tag in tags),
        metrics=numbers,
    )
    return draft if policy.redactor is None else _redacted(draft, policy.redactor)


def check_name(name: str, what: str, redactor: Redactor | None) -> None:
    """Refuse a name that contains a secret: it identifies something, so it cannot be redacted.

    Raises:
        InvalidInputError: it does; the message does not contain it.
    """
    if redactor is not None and redactor.text(name)[1]:
        raise InvalidInputError(
            f"{what} contains a value that redact= matches, and a name cannot be redacted. "
            "Nothing was saved. Use another name."
        )


def _redacted(draft: Draft, redactor: Redactor) -> Draft:
    with block_forks():
        from agent_checkpoint.core.codec.redacted_tree import redact_tree  # slow to load

    for name, what in (
        (draft.key, "The key"),
        *((name, "A part name") for name in draft.parts),
        *((name, "A metric name") for name in draft.metrics),
    ):
        check_name(name, what, redactor)
    parts, total = {}, 0
    for name, tree in draft.parts.items():
        with as_state_error(name):
            parts[name], count = redact_tree(tree, redactor)
        total += count
    label, count = (None, 0) if draft.label is None else redactor.text(draft.label)
    tags = [redactor.text(tag) for tag in draft.tags]
    total += count + sum(number for _, number in tags)
    return draft._replace(
        parts=parts, label=label, tags=tuple(tag for tag, _ in tags), redacted=total
    )


def check_text(value: object, what: str) -> str:
    """Return a string that can be stored as UTF-8. Raises InvalidInputError."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be a string, not {type(value).__name__}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"{what} has lone surrogates and cannot be stored as UTF-8."
        ) from None
    return value


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"The metric {short_repr(name)} is not a number.") from None
    if not math.isfinite(number):
        raise InvalidInputError(f"The metric {short_repr(name)} is {number}; it must be finite.")
    return exact_float(number)
