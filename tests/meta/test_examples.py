"""The examples: each runs as it is, ends well, and shows what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripted_model import LAST, scripted_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHOWS = {
    "repair.py": [
        "before: {'passed': 2, 'failed': 3}",
        "patch='sort'                 1/1   3       2",
        "patch='does not fit'         0/1",
        "ValueError: 'while intervals:' is not in intervals.py",
        "after exploring: {'passed': 2, 'failed': 3}",
        "+    for start, end in sorted(intervals):",
        "adopted: {'passed': 5, 'failed': 0} ['tried: sort, touch, longer']",
        "undone: {'passed': 2, 'failed': 3} []",
        "redone: {'passed': 5, 'failed': 0} ['tried: sort, touch, longer']",
    ],
    "anthropic_loop.py": [LAST],
    "langgraph_thread.py": [
        "asked: Publish 3 lines?",
        "files now: ['A title', 'A body', 'An end', '']",
        "files of the checkpoint: ['A title', 'A body', '']",
        "asked: Publish 2 lines?",
        "published: yes",
        "the first way: ['A title', 'A body', 'An end', '']",
    ],
    "deep_agent.py": [
        "agent: It is blue.",
        "file: Paint it blue.",
        "file of the checkpoint: Paint it red.",
        "agent: It is green.",
        "file: Paint it green.",
        "the first way: Paint it blue.",
    ],
    "openai_loop.py": [LAST],
    "claude_sdk_session.py": [
        "agent: All done.",
        "after the run: {'notes.txt': 'more', 'plan.txt': 'a mistake'}",
        "rewound: {'plan.txt': 'a plan'}",
        "fork: All done.",
        "in the fork: {'notes.txt': 'more', 'plan.txt': 'a mistake'}",
        "in the session: {'plan.txt': 'a plan'}",
    ],
    "openai_agents_session.py": [
        "waits for: ['send']",
        "result: sent 'Dear all'",
        "agent: All done.",
        "rolled back: Dear all",
    ],
    "pydantic_ai_session.py": [
        "wrote a.txt\ninterrupted\nmessages: 2\nwrote b.txt\nagent: All done.",
    ],
}
NEEDS = {
    "anthropic_loop.py": "anthropic",
    "langgraph_thread.py": "langgraph",
    "deep_agent.py": "deepagents",
    "openai_loop.py": "openai",
    "claude_sdk_session.py": "claude_agent_sdk",
    "openai_agents_session.py": "agents",
    "pydantic_ai_session.py": "pydantic_ai",
}
LEFT_BY_OTHERS = {"claude_sdk_session.py": ("claude-", "cc-")}
"""How the names of temporary files begin that the program of another project leaves behind."""


def test_every_example_is_tested() -> None:
    assert sorted(SHOWS) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", SHOWS)
def test_it_ends_well_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    scratch.mkdir()
    own = {"AGENT_CHECKPOINT_HOME": str(home), "TMPDIR": str(scratch)}
    with scripted_model() as model:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / name)],
            cwd=tmp_path,
            env={**os.environ, **own, **model.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=110,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    at = 0
    for words in SHOWS[name]:
        assert words in done.stdout[at:], done.stdout
        at = done.stdout.index(words, at)
    left = [path.name for path in scratch.iterdir()]
    assert [one for one in left if not one.startswith(LEFT_BY_OTHERS.get(name, ()))] == []
    for kind in ("forks", "bases", "branches"):
        assert not (home / kind).exists() or list((home / kind).iterdir()) == []
