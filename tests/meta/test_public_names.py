"""The public names: one sorted list, pinned here. A change of it is a change for users."""

import inspect
import subprocess
import sys

import pytest

import agent_checkpoint

# From the design's list: explore is not there yet.
PUBLIC = [
    "ApprovalDeniedError",
    "Approvals",
    "Backend",
    "CheckpointError",
    "CheckpointManager",
    "Checkpointable",
    "ConflictError",
    "EffectConflictError",
    "EffectError",
    "EffectUnknownError",
    "External",
    "FileBackend",
    "FormatError",
    "ImmutableError",
    "IntegrityError",
    "InvalidInputError",
    "KeepBest",
    "KeepEvery",
    "KeepLatest",
    "KeepNewerThan",
    "KeepTagged",
    "Log",
    "MemoryBackend",
    "MigrationError",
    "NotFoundError",
    "RestoreIncompleteError",
    "RollbackRefusedError",
    "Session",
    "StateError",
    "StateMismatchError",
    "Stateful",
    "StorageError",
    "Suspended",
    "UnsafeWorkspaceError",
    "UntrustedDataError",
    "Workspace",
    "WorkspaceError",
    "WrapperBackend",
    "backtrack",
    "checkpoint",
    "explore",
    "list_sessions",
    "register_alias",
    "register_migration",
    "register_type",
    "tool",
    "transcripts",
]


def test_the_public_names_are_these() -> None:
    assert agent_checkpoint.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    value = getattr(agent_checkpoint, name)
    assert value.__name__.rpartition(".")[2] == name
    assert inspect.getdoc(value)
    assert name in dir(agent_checkpoint)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_loaded_once(name: str) -> None:
    assert getattr(agent_checkpoint, name) is getattr(agent_checkpoint, name)
    assert vars(agent_checkpoint)[name] is getattr(agent_checkpoint, name)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'agent_checkpoint' has no attribute 'Nonsense'"):
        agent_checkpoint.Nonsense  # noqa: B018


def test_a_star_import_brings_all_of_them() -> None:
    program = "from agent_checkpoint import *; print(*sorted(n for n in dir() if n[0] != '_'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == PUBLIC


def test_the_names_for_type_checkers_are_the_same() -> None:
    source = inspect.getsource(agent_checkpoint)
    checked = {line.rpartition(" as ")[2].strip() for line in source.splitlines() if " as " in line}
    assert sorted(checked & set(PUBLIC)) == PUBLIC
