"""What a type checker finds in the code of users: typos in options that take a few words."""

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


def test_a_type_checker_finds_typos_in_options(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    cache = Path(__file__).parents[2] / ".mypy_cache" / "typing"
    out, problems, _ = api.run(
        ["--config-file=", "--follow-imports=silent", f"--cache-dir={cache}", str(program)]
    )
    assert not problems
    found = {int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line}
    lines = enumerate(PROGRAM.splitlines(), 1)
    assert found == {number for number, line in lines if line.endswith("# typo")}, out


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
