"""The public names: one sorted list, pinned here. A change of it is a change for users."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agent_checkpoint

PUBLIC = [
    "ApprovalDeniedError",
    "ApprovalQuestion",
    "ApprovalRequest",
    "Approvals",
    "Backend",
    "Backtracking",
    "Bisection",
    "BlameLine",
    "Branch",
    "CacheBackend",
    "Checkpoint",
    "CheckpointError",
    "CheckpointManager",
    "Checkpointable",
    "ConflictError",
    "CopyReport",
    "CountingBackend",
    "Divergence",
    "Effect",
    "EffectConflictError",
    "EffectContext",
    "EffectError",
    "EffectUnknownError",
    "EncryptionKeyError",
    "External",
    "FileBackend",
    "Fork",
    "FormatError",
    "GcReport",
    "HistoryRow",
    "ImmutableError",
    "IntegrityError",
    "InvalidInputError",
    "KeepBest",
    "KeepEvery",
    "KeepLatest",
    "KeepNewerThan",
    "KeepTagged",
    "LoadResult",
    "Log",
    "MemoryBackend",
    "MigrationError",
    "NotFoundError",
    "Outcome",
    "PathNote",
    "Plan",
    "Policy",
    "Probe",
    "ProbeBranch",
    "PurgeReport",
    "ReadOnlyBackend",
    "RecordLog",
    "ReplayOutcome",
    "RestoreIncompleteError",
    "RetryBackend",
    "RevertConflict",
    "RevertConflictError",
    "RevertReport",
    "RollbackRefusedError",
    "RollbackReport",
    "Session",
    "SessionRow",
    "Shared",
    "StateDict",
    "StateDifference",
    "StateError",
    "StateMismatchError",
    "Stateful",
    "Step",
    "StepCall",
    "StorageError",
    "Subagent",
    "Summary",
    "Suspended",
    "Task",
    "Tasks",
    "Tree",
    "Trial",
    "UnsafeWorkspaceError",
    "UntrustedDataError",
    "VerifyReport",
    "Workspace",
    "WorkspaceDiff",
    "WorkspaceError",
    "WrapperBackend",
    "backtrack",
    "bisect",
    "blame",
    "checkpoint",
    "copy",
    "current_workspace",
    "explore",
    "list_sessions",
    "register_alias",
    "register_migration",
    "register_type",
    "replay",
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


PACKAGE = Path(agent_checkpoint.__file__).parent
NOT_EXPORTED = {
    "BackendProperties": "for authors of backends, in `backends.base`",
    "CallCount": "a row of counts, in `backends.wrappers.counting`",
    "CallOutcome": "public in `transcripts`",
    "Changes": "for authors of backends, in `backends.base`",
    "Draft": "for other modules of the package",
    "Entry": "for authors of backends, in `records`",
    "Object": "for other modules of the package",
    "ObjectInfo": "for authors of backends, in `records`",
    "ObjectScan": "for authors of backends, in `backends.base`",
    "ForkOrigin": "for other modules of the package",
    "LogItems": "for other modules of the package",
    "ObjectRef": "the state of a part that writes its own objects",
    "Store": "for other modules of the package",
    "Transition": "for other modules of the package",
}
"""The types that public functions return and nobody needs to name, each with the reason."""


def defined_in_package() -> "dict[str, list[ast.ClassDef | ast.FunctionDef]]":
    found: dict[str, list[ast.ClassDef | ast.FunctionDef]] = {}
    for source in PACKAGE.rglob("*.py"):
        for node in ast.parse(source.read_text("utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.setdefault(node.name, []).append(node)
    return found


def named_in(annotation: "ast.expr | None") -> "set[str]":
    nodes = [] if annotation is None else ast.walk(annotation)
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def body_of(node: "ast.ClassDef | ast.FunctionDef", defined: "dict[str, list[Any]]") -> "list[Any]":
    """Return what a class and its base classes define; a function itself."""
    if not isinstance(node, ast.ClassDef):
        return [node]
    bases = [base for name in node.bases for base in defined.get(ast.unparse(name), [])]
    return [*node.body, *(one for base in bases for one in body_of(base, defined))]


def test_the_types_that_public_functions_return_are_public() -> None:
    """So that the functions of a user can be annotated."""
    defined = defined_in_package()
    returned: set[str] = set()
    for name in agent_checkpoint.__all__:
        for node in defined.get(name, []):
            for one in body_of(node, defined):
                is_function = isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
                if is_function and not one.name.startswith("_"):
                    returned |= named_in(one.returns)
    classes = {name for name, nodes in defined.items() if isinstance(nodes[0], ast.ClassDef)}
    assert (returned & classes) - set(agent_checkpoint.__all__) == set(NOT_EXPORTED)
