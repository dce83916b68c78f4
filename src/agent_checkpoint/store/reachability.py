"""What entries need. Owns following references from entries to objects; changes nothing.

Entries of every stream may refer to objects, by the tags of `splitting` in their `parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

from agent_checkpoint.errors import FormatError, IntegrityError
from agent_checkpoint.store.objects.object_format import Object, TerminalRef, open_object
from agent_checkpoint.store.objects.reader import ObjectSource, fetch_objects, object_names

_AT_ONCE = 16
"""Objects that are read together to be looked at one by one; each may have 32 MiB."""


def roots_of(record: dict[str, Any], where: str) -> set[str]:
    """Return the names of the objects that the record of an entry refers to.

    Raises:
        IntegrityError: a reference is malformed; `where` names the entry in the message.
    """
    parts = record.get("parts", {})
    try:
        return set(object_names(parts.values()))
    except (IntegrityError, AttributeError):
        raise IntegrityError(f"{where} does not say which objects it needs.") from None


RefGraph = dict[str, Optional[tuple[str, ...]]]
"""What each object refers to; None of one that was only called an end, and not read."""


Fetch = Callable[[ObjectSource, Iterable[str]], Iterator[tuple[str, Object]]]


def mark(
    source: ObjectSource, roots: Iterable[str], seen: RefGraph, *, fetch: Fetch = fetch_objects
) -> None:
    """Add to `seen` all that can be reached from the roots, each with what it refers to.

    Ends are not read, as long as nothing speaks of them otherwise: a forged object must not keep
    from others what they refer to. What was read already is not read again.

    Args:
        source: where the objects are.
        roots: the names to begin with.
        seen: what was seen so far.
        fetch: how objects are read; those that it leaves out are not followed.

    Raises:
        IntegrityError: an object is missing or damaged, so nobody can tell what it refers to.
        FormatError: this installation cannot unpack one.
        StorageError: the medium failed.
    """
    wanted = list(roots)
    while wanted:
        ends = [name for name in wanted if type(name) is TerminalRef]
        inner = {
            name for name in wanted if type(name) is not TerminalRef and seen.get(name) is None
        }
        seen.update((end, None) for end in ends if end not in seen)
        wanted = []
        for name, found in fetch(source, inner):
            seen[name] = found.refs
            wanted += found.refs


def reachable(roots: Iterable[str], seen: RefGraph) -> set[str]:
    """Return what can be reached from the roots, of what `mark` has seen."""
    found: set[str] = set()
    wanted = set(roots)
    while wanted:
        found |= wanted
        wanted = {ref for name in wanted for ref in seen.get(name) or ()} - found
    return found


def children_first(roots: Iterable[str], seen: RefGraph) -> Iterator[str]:
    """Iterate over what can be reached from the roots, each after all that it refers to."""
    done: set[str] = set()
    stack = [(name, False) for name in roots]
    while stack:
        name, is_open = stack.pop()
        if name in done:
            continue
        if is_open:
            done.add(name)
            yield name
        else:
            stack.append((name, True))
            stack += [(ref, False) for ref in seen.get(name) or () if ref not in done]


def read_or_reason(
    source: ObjectSource, names: Iterable[str]
) -> Iterator[tuple[str, Object | str]]:
    """Iterate over objects, giving the reason instead of one that is missing or damaged.

    Raises:
        StorageError: the medium failed.
    """
    wanted = list(names)
    for at in range(0, len(wanted), _AT_ONCE):
        some = wanted[at : at + _AT_ONCE]
        try:
            found = source.get_objects(some)
        except (IntegrityError, FormatError) as error:
            if len(some) == 1:
                yield some[0], str(error)
            else:  # which of them is it?
                for name in some:
                    yield from read_or_reason(source, [name])
            continue
        for name in some:
            if name not in found:
                yield name, f"The object {name} is missing."
                continue
            try:
                whole: Object | str = open_object(name, found[name])
            except (IntegrityError, FormatError) as error:
                whole = str(error)
            yield name, whole
