"""What an import loads: the standard library alone, and nothing slow before it is needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import agent_checkpoint

PACKAGE = Path(agent_checkpoint.__file__).parent
OPTIONAL = ["attr", "attrs", "isal", "numpy", "orjson", "pydantic", "typing_extensions"]

# Prints what a statement has loaded beyond what Python loads by itself.
LOADED = """
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""

needs_the_list = pytest.mark.skipif(
    sys.version_info < (3, 10), reason="Python 3.9 does not list its own modules"
)


def loaded_by(statement: str, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", LOADED.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
    )
    names: list[str] = json.loads(done.stdout)
    return names


def foreign(modules: list[str]) -> list[str]:
    ours = {"agent_checkpoint", *sys.stdlib_module_names}  # type: ignore[attr-defined]
    return [
        module
        for module in modules
        # The build's settings, which zoneinfo reads, are a module of Python's own without a place
        # in its list.
        if module.partition(".")[0] not in ours and not module.startswith("_sysconfigdata_")
    ]


@needs_the_list
def test_importing_the_package_loads_the_standard_library_alone() -> None:
    modules = loaded_by("import agent_checkpoint")
    assert foreign(modules) == []
    assert [module for module in modules if module.startswith("agent_checkpoint.")] == []


@pytest.mark.parametrize("slow", ["asyncio", "concurrent", "inspect", "json", "logging", *OPTIONAL])
def test_importing_the_package_does_not_load(slow: str) -> None:
    assert slow not in loaded_by("import agent_checkpoint")


@pytest.mark.parametrize("slow", ["asyncio", "difflib", "importlib.metadata", "numpy", "sqlite3"])
def test_no_public_name_loads(slow: str) -> None:
    assert slow not in loaded_by("from agent_checkpoint import *")


# Most of these take a millisecond or more, and a first save needs none of them.
SLOW = [
    "ast", "asyncio", "backports.zstd", "base64", "compression.zstd", "concurrent",
    "dataclasses", "datetime", "decimal", "difflib", "dis", "fractions", "importlib.metadata",
    "inspect", "logging", "pickle", "pickletools", "platform", "random", "secrets", "socket",
    "sqlite3", "tokenize", "traceback", "unicodedata", "uuid", "zoneinfo",
]  # fmt: skip
SELDOM = [
    "backends.wrappers.encryption_keys", "core.codec.arrays", "core.codec.class_values",
    "core.codec.decode", "core.codec.library_scalars", "core.codec.pickles",
    "core.codec.redacted_tree", "core.codec.structures", "core.codec.type_registry",
    "core.external_snapshot", "core.loading", "core.migrations", "core.state_diff", "formatting",
    "manager.checkpoint_diff", "manager.expected_head", "redaction", "store.archive",
    "store.import_journal", "store.lookup", "store.maintenance", "store.reachability",
    "transcripts", "workspace.changes.overlay_upper", "workspace.directory_key", "workspace.fork",
    "workspace.restore", "workspace.scan.index_position", "workspace.scan.stat_pass",
]  # fmt: skip
"""Parts of the package that a first save does not need."""
OF_SESSIONS = ["core.copying", "core.log", "session", "store.ledger"]
"""Parts of the package that only a session needs, or a state with a `Log`."""
SELDOM_IN_SESSIONS = [
    "session.branch", "session.effects", "session.explore", "session.loop.model_calls",
    "session.loop.tool_calls", "session.loop.usage", "session.revert", "session.rollback",
    "session.session_list", "session.steps", "session.subagent_list", "session.task_progress",
    "session.tool_runner", "session.tools", "store.ledger.ledger_calls",
]  # fmt: skip
"""Parts of a session that its opening and a save do not need."""


def unwanted(loaded: list[str], seldom: list[str]) -> list[str]:
    names = {*SLOW, *(f"agent_checkpoint.{name}" for name in seldom)}
    return [
        module for module in loaded if any(f"{module}.".startswith(f"{name}.") for name in names)
    ]


def test_manager_and_workspace_load_nothing_slow() -> None:
    loaded = loaded_by("from agent_checkpoint import CheckpointManager, Workspace")
    of_saves = ["core.codec.encode", "core.state_codec"]  # reading and snapshots do without
    assert unwanted(loaded, [*SELDOM, *OF_SESSIONS, *of_saves]) == []


def test_a_session_loads_nothing_slow() -> None:
    loaded = loaded_by("from agent_checkpoint import Session")
    assert unwanted(loaded, [*SELDOM, *SELDOM_IN_SESSIONS]) == []


@pytest.mark.parametrize("names", ["Checkpointable", "CheckpointManager, Workspace", "Session"])
def test_an_import_compiles_no_annotation(names: str) -> None:
    # The first one takes 3 ms: Python then makes a class of every kind of syntax tree node.
    program = f"""
import typing
def refuse(self, text, *args, **options):
    raise AssertionError(text)
typing.ForwardRef.__init__ = refuse
from agent_checkpoint import {names}
"""
    assert loaded_by(program) != []


def test_opening_and_saving_a_session_loads_nothing_seldom(tmp_path: Path) -> None:
    # A mount of another test, at this moment, would be a reason for a stat pass.
    program = f"""
from agent_checkpoint import Session
from agent_checkpoint.backends.os_support.mounts import MountTable
MountTable.have_changed = lambda self: False
with Session("key", workspace={str(tmp_path)!r}, store="memory://") as session:
    session.save()
"""
    loaded = [name for name in loaded_by(program) if name.startswith("agent_checkpoint.")]
    assert unwanted(loaded, [*SELDOM, *SELDOM_IN_SESSIONS]) == []


def test_a_first_save_and_snapshot_load_nothing_slow(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file").write_text("text")
    program = f"""
import os, sys
sys.modules["orjson"] = None  # it loads much by itself, at the first large value
os.environ["AGENT_CHECKPOINT_HOME"] = {str(tmp_path / "home")!r}
from agent_checkpoint import CheckpointManager, Workspace
with CheckpointManager({f"sqlite://{tmp_path}/store"!r}) as manager:
    manager.save("key", {{"value": [1, 2.5, {{"text": None}}]}})
    with Workspace({str(tmp_path / "files")!r}, manager, watch=False) as workspace:
        workspace.snapshot()
"""
    slow = {*SLOW, "shutil", "signal", "subprocess", "tempfile"}
    allowed = {"datetime", "sqlite3"}  # SQLite's module loads that of dates
    loaded = {name.partition(".")[0] for name in loaded_by(program)}
    assert sorted((slow - allowed) & loaded) == []


def test_one_name_does_not_load_the_others() -> None:
    modules = loaded_by("from agent_checkpoint import ConflictError")
    ours = [module for module in modules if module.startswith("agent_checkpoint.")]
    assert ours == ["agent_checkpoint.errors"]


@needs_the_list
@pytest.mark.parametrize(
    "statement", ["from agent_checkpoint import *", "import agent_checkpoint.demo"]
)
def test_everything_works_without_any_installed_package(tmp_path: Path, statement: str) -> None:
    # Not even site-packages is on the path: only a directory with the package in it.
    (tmp_path / "agent_checkpoint").symlink_to(PACKAGE)
    program = f"sys.path.insert(0, {str(tmp_path)!r})\n{statement}"
    assert foreign(loaded_by(program, "-I", "-S")) == []


def test_saving_and_loading_works_without_any_installed_package(tmp_path: Path) -> None:
    (tmp_path / "agent_checkpoint").symlink_to(PACKAGE)
    program = f"""
sys.path.insert(0, {str(tmp_path)!r})
from agent_checkpoint import CheckpointManager
manager = CheckpointManager(backend="file", path={str(tmp_path / "store")!r})
manager.save("key", {{"value": (1, 2.5, {{3}})}})
assert manager.state_dict("key") == {{"value": (1, 2.5, {{3}})}}
"""
    modules = loaded_by(program, "-I", "-S")
    assert not set(OPTIONAL) & set(modules)


def test_no_submodule_replaces_a_public_name() -> None:
    """Importing a submodule sets it as an attribute of the package, over a name that is public."""
    program = """
import pkgutil, agent_checkpoint, importlib
public = {name: getattr(agent_checkpoint, name) for name in agent_checkpoint.__all__}
for found in pkgutil.walk_packages(agent_checkpoint.__path__, "agent_checkpoint."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
for name, value in public.items():
    assert getattr(agent_checkpoint, name) is value, name
"""
    subprocess.run([sys.executable, "-c", program], check=True)
