"""Kills the agent of `killed_program` at each tool boundary, and counts what a resume costs.

`python -m tests.adapters.langgraph.killing` prints the table of docs/frameworks.md.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.adapters.langgraph.killed_program import CALLS

KINDS = {
    "memory": "`InMemorySaver`",
    "sqlite": "`SqliteSaver`",
    "ours": "`CheckpointSaver`, `workspace=`, `@tool`",
}
BOUNDARIES = range(1, 2 * len(CALLS) + 1)
REPLIES = 4


class Cost(NamedTuple):
    """What the runs that were killed and resumed did more than one that was not."""

    steps: int
    """Replies of the model that were asked for again."""
    calls: int
    """Tool calls that were made again although they had had their effect."""
    effects: int
    """Irreversible effects that happened twice."""
    lines: int
    """Lines in the files that are there twice, or missing."""


def lines(file: Path) -> "list[str]":
    return file.read_text().splitlines() if file.exists() else []


def doubled(items: "list[str]") -> int:
    return sum(count - 1 for count in Counter(items).values())


def cost_of(kind: str, boundary: int, directory: Path) -> Cost:
    command = [sys.executable, "-m", "tests.adapters.langgraph.killed_program"]
    environment = {
        **os.environ,
        "KILL_AT": str(boundary),
        "AGENT_CHECKPOINT_HOME": f"{directory}/h",
    }
    killed = subprocess.run([*command, str(directory), kind], env=environment, check=False)
    assert killed.returncode == -9
    environment["KILL_AT"] = "0"
    subprocess.run([*command, str(directory), kind], env=environment, check=True)
    assert (directory / "answer").read_text() == "All done."
    written = Counter(lines(directory / "work" / "file.txt"))
    return Cost(
        len(lines(directory / "replies")) - REPLIES,
        doubled(lines(directory / "calls")),
        doubled(lines(directory / "outbox")),
        sum(abs(written[text] - 1) for text in {"one", "two", *written}),
    )


def total(kind: str, boundaries: "range | list[int]" = BOUNDARIES) -> Cost:
    sums = [0, 0, 0, 0]
    for boundary in boundaries:
        with TemporaryDirectory() as name:
            sums = [a + b for a, b in zip(sums, cost_of(kind, boundary, Path(name)))]
    return Cost(*sums)


if __name__ == "__main__":
    counted = "model steps lost | tool calls repeated | effects doubled | lines wrong in files"
    print(f"| LangGraph with | {counted} |")
    print("|---|---|---|---|---|")
    for kind, name in KINDS.items():
        print(f"| {name} | {' | '.join(map(str, total(kind)))} |")
