"""Errors: message and hint, copies in another process, causes."""

import copy
import pickle

import pytest

from agent_checkpoint import errors
from agent_checkpoint.errors import CheckpointError, Hint, NotFoundError, StorageError

CLASSES = [
    found
    for found in vars(errors).values()
    if isinstance(found, type)
    and issubclass(found, CheckpointError)
    and found not in (errors.MissingObjectsError, errors.ApprovalDeniedError)
]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_hint_follows_the_first_line(cls: "type[CheckpointError]") -> None:
    hint = Hint("Call f().", "f", name="x")
    error = cls("It failed.\n  because", hint=hint)
    assert str(error) == "It failed. Call f().\n  because"
    assert error.with_hint("Run f.") == "It failed. Run f.\n  because"
    assert error.with_hint() == "It failed.\n  because"
    assert str(cls("It failed.")) == "It failed."
    assert cls("It failed.").hint is None


@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_copy_has_the_hint(again) -> None:
    hint = Hint("Call f().", "f", name="x")
    for error in (
        NotFoundError("No x.", hint=hint),
        StorageError("Full.", no_room=True, hint=hint),
        errors.RollbackRefusedError("Refused.", {"a": 1}, hint=hint),
    ):
        twin = again(error)
        assert (type(twin), str(twin), twin.args) == (type(error), str(error), error.args)
        assert (twin.hint, twin.hint.code, twin.hint.values) == (hint, "f", {"name": "x"})
    assert again(StorageError("Full.", no_room=True, hint=hint)).no_room


def test_a_cause_is_kept() -> None:
    with pytest.raises(StorageError) as caught:
        try:
            raise OSError("disk")
        except OSError as error:
            raise StorageError("Failed.", hint=Hint("Retry.")) from error
    assert isinstance(caught.value.__cause__, OSError)
