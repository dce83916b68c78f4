"""The expected head of a key: refuses a save or load that another writer has overtaken."""

from __future__ import annotations

from agent_checkpoint.errors import ConflictError, Hint, NotFoundError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.store import Store


def expect_head(store: Store, key: str, expected_head: str) -> Checkpoint:
    """Return the head of a key.

    Raises:
        ConflictError: the head is not the expected checkpoint.
    """
    head = store.head(key)
    try:
        expected = find(store, expected_head, key=key)
    except NotFoundError as error:
        raise head_conflict(key, expected_head, head, is_known=False) from error
    if head is None or expected.id != head.id:
        raise head_conflict(key, expected_head, head)
    return head


def head_conflict(
    key: str, expected_head: str, head: Checkpoint | None, *, is_known: bool = True
) -> ConflictError:
    """Return the error for an unexpected head.

    Args:
        key: the key.
        expected_head: the expected id.
        head: the actual head.
        is_known: whether the key has the expected checkpoint.
    """
    expected = short_repr(expected_head, 120)
    if head is None:
        found = f"The key {short_repr(key)} has no checkpoints; the expected head is {expected}"
    else:
        found = f"The head of {short_repr(key)} is {short_repr(head.id, 120)}, not {expected}"
    why = "another writer saved, or the store was restored from an older copy"
    hint = Hint("Load again and retry, or fork.")
    if not is_known:
        why = f"the key has no such checkpoint, or {why}"
        hint = Hint(f"Pass an id that save() returned. {hint}", "head")
    return ConflictError(f"{found}: {why}.", hint=hint)
