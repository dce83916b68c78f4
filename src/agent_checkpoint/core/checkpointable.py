"""The `Checkpointable` mixin and its hooks. Copying, loading and diffs are in their own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.captured_fields import overrides
from agent_checkpoint.core.class_names import register_class
from agent_checkpoint.core.path_errors import as_state_error
from agent_checkpoint.core.stateful import LoadResult, is_stateful
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr

if TYPE_CHECKING:
    from typing_extensions import Self


class Checkpointable:
    """A mixin that implements `state_dict()` and `load_state_dict()`, as in PyTorch.

    Captures the attributes without a leading underscore, or those that `_checkpoint_fields()`
    returns. Four optional hooks change the defaults.
    """

    __slots__ = ()
    _checkpoint_base = True

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of the captured fields, with `__version__` and `__class__`.

        Raises:
            StateError: a value cannot be copied; the message contains its path.
        """
        with block_forks():
            from agent_checkpoint.core.codec.encode import own_state
            from agent_checkpoint.core.copying import snapshot

        with as_state_error("agent", self):
            # Not an overriding state_dict(): it may be the caller, through super().
            state: dict[str, Any] = snapshot(own_state(self))
            return state

    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> LoadResult:
        """Load a state atomically.

        Fields missing from the state keep their current value.

        Args:
            state: a result of `state_dict()`, possibly of an older version of the class.
            strict: refuse a state that lacks fields or has unexpected ones.

        Raises:
            StateMismatchError: the state is of another class, or `strict` is set and fields differ.
            MigrationError: the state cannot be migrated to the current version.
            StateError: a value cannot be rebuilt or assigned.
        """
        with block_forks():
            from agent_checkpoint.core.loading import load

        return load(self, state, strict=strict)

    def clone(self) -> Self:
        """Return a copy with its own captured state; other attributes are shared.

        Raises:
            StateError: a value cannot be copied.
        """
        with block_forks():
            from agent_checkpoint.core.copying import cloned

        with as_state_error("agent", self):
            twin = cloned(self)
        if overrides(self, "state_dict") or overrides(self, "load_state_dict"):
            twin.load_state_dict(self.state_dict())
        return twin

    def diff(self, other: Checkpointable, *, deep: bool = False) -> dict[str, dict[str, Any]]:
        """Return the changes from this state to another: added, removed, changed.

        Args:
            other: the object to compare with.
            deep: report paths inside values (`memory[2].role`) instead of whole fields.

        Raises:
            InvalidInputError: `other` is not a Stateful.
            StateError: a value cannot be copied.
        """
        with block_forks():
            from agent_checkpoint.core.state_diff import diff_states

        if not is_stateful(other):
            raise InvalidInputError(f"diff() takes a Stateful, not {short_repr(other)}.")
        return diff_states(self.state_dict(), other.state_dict(), deep=deep)

    # -- hooks -----------------------------------------------------------------------------------

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_class(cls)

    def _checkpoint_fields(self) -> list[str]:
        """Return the names of the attributes to capture.

        The default is all attributes without a leading underscore.
        """
        names = dict.fromkeys(getattr(self, "__dict__", {}))
        for cls in type(self).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            names.update(dict.fromkeys([slots] if isinstance(slots, str) else slots))
        return [name for name in names if not name.startswith("_") and hasattr(self, name)]

    def _checkpoint_version(self) -> str:
        """Return the version of the layout of the captured fields."""
        return "1.0"

    @classmethod
    def _checkpoint_name(cls) -> str:
        """Return the name by which states refer to this class."""
        return cls.__name__

    @classmethod
    def _checkpoint_new(cls, state: dict[str, Any]) -> Self:
        """Rebuild an object from its migrated state.

        `__init__` is not called, because it may have side effects.
        """
        fresh = cls.__new__(cls)
        fresh.load_state_dict(state)
        return fresh
