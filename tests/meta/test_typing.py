"""What type checkers find in the code of users: typos in options, and nothing in correct code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from agent_checkpoint import options
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.options import Driver, Merge, SaveAfter, check_option

PROGRAM = """
from agent_checkpoint import CheckpointManager, KeepBest, Session, Workspace, backtrack, checkpoint
from agent_checkpoint import explore
from agent_checkpoint.backends.file import FileBackend
from agent_checkpoint.backends.sqlite import SQLiteBackend

CheckpointManager(backend="sqlite", fmt="json", durability="full", compression="zstd")
CheckpointManager(backend="memory://")
CheckpointManager(fmt="jsn")  # typo
CheckpointManager(durability="ful")  # typo
CheckpointManager(compression="zstandard")  # typo
FileBackend("a", compression="none")  # typo
SQLiteBackend("a", durability="quick")  # typo
KeepBest(1, "score", mode="min")
KeepBest(1, "score", mode="lowest")  # typo
checkpoint(CheckpointManager(), key="a", on_error="rollback")
checkpoint(CheckpointManager(), key="a", on_error="roll back")  # typo
Workspace(".").fork("b", driver="overlay")
Workspace(".").fork("b", driver="overlayfs")  # typo
session = Session("a", every=3, on_drift="raise")
Session("a", every="task")
Session("a", every="call")  # typo
Session("a", on_drift="fail")  # typo
session.rollback(effects="compensate")
session.rollback(effects="allow")  # typo
session.fork("b", effects="allow", driver="copy")
session.fork("b", effects="warn")  # typo
session.fork("b", driver="cp")  # typo
session.adopt("b", merge="files")
session.adopt("b", merge="all")  # typo
session.tasks(["a"], on_resume="continue")
session.tasks(["a"], on_resume="resume")  # typo
explore(session, lambda branch: 1, [], effects="refuse").best(mode="min")
explore(session, lambda branch: 1, [], effects="no")  # typo
explore(session, lambda branch: 1, []).best(mode="least")  # typo
backtrack(session, lambda session: 1, [], effects="allow")  # typo
"""


AGENT = """
from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from agent_checkpoint import (
    ApprovalQuestion, ApprovalRequest, Backtracking, Branch, Checkpoint, Checkpointable,
    CheckpointManager, Effect, EffectContext, Fork, GcReport, HistoryRow, KeepLatest, LoadResult,
    Log, Outcome, PathNote, Plan, Policy, PurgeReport, RollbackReport, Session, SessionRow,
    StateDict, Summary, Task, Tasks, Tree, Trial, VerifyReport, Workspace, WorkspaceDiff,
    backtrack, explore, list_sessions, register_type, tool,
)


class Agent(Checkpointable):
    def __init__(self) -> None:
        self.log = Log()
        self.lines: Log[str] = Log()
        self.numbers = Log([1, 2])
        self.count = 0


@register_type(version="2.0")
class Point:
    x: int = 0


register_type(Point, version="2.0")
register_type(Point, lambda point: point.x, lambda x: Point(), name="a", version="2.0")


class KeepNone(Policy):
    def keep(self, newest_first: Any) -> set[int]:
        first: Checkpoint = newest_first[0]
        return {first.seq}


@tool
def add(a: int, b: int) -> int:
    return a + b


def ask(question: ApprovalQuestion) -> bool:
    return question.tool == "send"


def recipient(to: str, **_: Any) -> str:
    return to


@tool(effect="irreversible", key=recipient, approve=ask)
def send(to: str, *, effect: EffectContext) -> str:
    return effect.key


def strategy(branch: Branch, t: float) -> float:
    branch.messages.append({"role": "user", "content": str(t)})
    return t


@tool(effect="irreversible", key=recipient)
def mail(to: str, body: str, *, effect: EffectContext | None = None) -> int:
    assert effect is not None
    return len(effect.key)


def write_file(name: str, text: str) -> str:
    return name + text


TOOLS = [write_file, mail]
BY_NAME = {"write": write_file, "mail": mail, "add": add}


def loop(session: Session) -> int:
    session.run_tools(session.messages, TOOLS)
    session.run_tools(session.messages, BY_NAME)
    session.run_tools(session.messages, [add])
    session.run_tools(session.messages, ["add"])  # wrong
    return mail("ann", "Hello")


def work(agent: Agent, manager: CheckpointManager) -> None:
    agent.log.append({"role": "user"})
    agent.log[-1] = "text"
    line: str = agent.lines[0]
    texts: list[str] = agent.lines[1:]
    number: int = agent.numbers[0]
    plain: list[str] = agent.lines.to_list()
    result: LoadResult = agent.load_state_dict(agent.state_dict())
    missing: list[str] = result.missing_keys
    rows: list[HistoryRow] = manager.history("key", 5)
    row = rows[0]
    key: str = row["id"]
    ts: float | None = row["ts"]
    reason: str | None = row.get("error")
    future: Future[str] = manager.save_in_background("key", agent)
    gc: GcReport = manager.gc()
    verified: VerifyReport = manager.verify()
    purged: PurgeReport = manager.purge("secret")
    policy: Policy = KeepLatest(1) | KeepNone()
    manager.prune("key", policy)
    state: StateDict = StateDict(a=1)
    sessions: list[SessionRow] = list_sessions(manager.store)


def run(session: Session) -> int:
    session.messages = session.messages[-5:]
    session.messages = [{"role": "user", "content": "so far"}, *session.messages[1:]]
    session.messages = (message for message in [1, 2])
    tasks: Tasks = session.tasks
    for task in session.tasks(["read", "edit"]):
        current: Task = task
        with task:
            number: int = add(1, b=2)
    effects: list[Effect] = session.effects
    requests: list[ApprovalRequest] = session.approvals.pending()
    last: str = session.history()[0]["id"]
    report: RollbackReport = session.rollback(steps=1)
    files: Plan | None = report.files
    branch: Branch = session.fork("b")
    session.adopt(branch)
    outcome: Outcome = explore(session, strategy, [{"t": 0.0}, {"t": 0.7}])
    best: Trial = outcome.best("score")
    summary: Summary | None = outcome.summary(0)
    again: Backtracking = backtrack(session, strategy, [{"t": 0.5}])
    return add(1, 2)


def files(workspace: Workspace) -> None:
    tree: Tree = workspace.snapshot()
    notes: tuple[PathNote, ...] = tuple(tree.notes)
    diff: WorkspaceDiff = workspace.diff(tree)
    plan: Plan = workspace.restore(tree, dry_run=True)
    fork: Fork = workspace.fork("../b")


session = Session("a")
session.key = "b"  # wrong
session.calls = []  # wrong
add("a", 2)  # wrong
agent = Agent()
agent.lines.append(5)  # wrong
CheckpointManager().history("key")[0]["label"].upper()  # wrong
"""


def mypy(program: Path, *options: str) -> "tuple[set[int], str]":
    """Return the lines with errors."""
    api = pytest.importorskip("mypy.api")
    cache = Path(__file__).parents[2] / ".mypy_cache" / "typing"
    out, problems, _ = api.run(
        [
            "--config-file=",
            "--follow-imports=silent",
            f"--cache-dir={cache}",
            *options,
            str(program),
        ]
    )
    assert not problems
    return {int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line}, out


def works(command: str) -> bool:
    try:
        done = subprocess.run([command, "--version"], capture_output=True, timeout=120)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def pyright(program: Path) -> "tuple[set[int], str]":
    """Return the lines with errors in strict mode."""
    command = shutil.which("pyright", path=Path(sys.executable).parent) or shutil.which("pyright")
    if command is None or not works(command):
        pytest.skip("needs pyright, which loads its program from the npm registry")
    config = {"include": [program.name], "typeCheckingMode": "strict"}
    quiet = ["reportUnusedVariable"]  # the program has names for their types alone
    (program.parent / "pyrightconfig.json").write_text(
        json.dumps({**config, **dict.fromkeys(quiet, False)})
    )
    done = subprocess.run(
        [command, "--outputjson", "--pythonpath", sys.executable, "-p", str(program.parent)],
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1 for one in errors}, json.dumps(errors, indent=1)


def marked(program: str, mark: str) -> "set[int]":
    lines = enumerate(program.splitlines(), 1)
    return {number for number, line in lines if line.endswith(f"# {mark}")}


def test_a_type_checker_finds_typos_in_options(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found, out = mypy(program)
    assert found == marked(PROGRAM, "typo"), out


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_an_agent_needs_no_annotation_of_ours(tmp_path: Path, checker: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(AGENT)
    found, out = mypy(program, "--strict") if checker == "mypy" else pyright(program)
    assert found == marked(AGENT, "wrong"), out


@pytest.mark.parametrize(
    ("words", "others", "expected"),
    [
        (Driver, (), "x must be 'auto', 'overlay', 'reflink' or 'copy', not 'cp'."),
        (Merge, (), "x must be 'files', not 'cp'."),
        (Merge, ("None",), "x must be 'files' or None, not 'cp'."),
        (SaveAfter, ("a number",), "x must be 'tool', 'task', 'manual' or a number, not 'cp'."),
    ],
)
def test_every_option_is_checked_with_the_same_message(words, others, expected) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_option("x", "cp", words, *others)
    assert str(caught.value) == expected
    for word in get_args(words):
        check_option("x", word, words)


def test_an_option_of_any_type_is_refused() -> None:
    for value in (None, 1, True, [], {}, b"auto"):
        with pytest.raises(InvalidInputError, match="not "):
            check_option("driver", value, options.Driver)
