"""A scripted coding agent without a model. Owns its tools and strategies."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from agent_checkpoint import Checkpointable, Session, tool
from agent_checkpoint.demo.project import run_tests

KEY = "fix-invoices"
TASKS = ("read the code", "mend the discount", "run the tests")
FIRST_PATCH = '''\
"""Invoices."""


def total(prices, discount):
    """The sum of prices in cents, less a discount in per cent."""
    whole = sum(prices)
    return whole - whole * discount / 100
'''
WAYS = {
    "round up": "round(sum(prices) * (100 - discount) / 100 + 0.5)",
    "round down": "sum(prices) * (100 - discount) // 100",
}


WORLD: dict[str, Path] = {}
"""External state, which checkpoints do not contain."""


class Coder(Checkpointable):
    """The state of the agent."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.edits = 0


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@tool
def write_file(path: str, text: str) -> int:
    """Write a file; return the number of characters."""
    return Path(path).write_text(text)


@tool
def test(place: str) -> list[int]:
    """Run the tests; return the numbers of passed tests and of all tests."""
    return list(run_tests(Path(place)))


@tool
def shell(command: str, place: str) -> int:
    """Run a command; return its exit status."""
    return subprocess.run(command, shell=True, cwd=place, check=False).returncode  # noqa: S602


@tool(effect="irreversible", key=lambda version: version, approve=True)
def publish(version: str) -> str:
    """Publish a version: an external side effect that cannot be undone."""
    with WORLD["register"].open("a") as file:
        file.write(f"invoices {version}\n")
    return f"invoices {version} is published"


def open_session(home: Path) -> Session:
    """Open the agent's session, or resume it."""
    WORLD["register"] = home / "register.txt"
    return Session(KEY, agent=Coder(), workspace=home / "project", store=home / "store")


def think(session: Session, thought: str) -> None:
    """Append a message to the conversation."""
    session.messages.append({"role": "assistant", "content": thought})


def work(home: Path, *, stumbles: bool) -> None:
    """Run the remaining tasks; with `stumbles`, wait in the middle of a task to be killed."""
    with open_session(home) as session:
        coder: Any = session.agent
        place = Path(str(session.workspace.path)) if session.workspace else home
        state = "session resumed" if session.resumed else "session started"
        known = len(session.messages)
        print(f"{state} with {known} message{'' if known == 1 else 's'}", flush=True)
        for task in session.tasks(TASKS):
            with task:
                print(f"task: {task.id}", flush=True)
                if task.id == TASKS[0]:
                    source = read_file(str(place / "invoice.py"))
                    coder.findings.append("the discount is not divided by 100")
                    think(
                        session, f"{len(source.splitlines())} lines. Divide the percentage by 100."
                    )
                elif task.id == TASKS[1]:
                    text = FIRST_PATCH[: len(FIRST_PATCH) // 2] if stumbles else FIRST_PATCH
                    write_file(str(place / "invoice.py"), text)
                    coder.edits += 1
                    if stumbles:
                        print("half of invoice.py is written", flush=True)
                        input()
                    think(session, "The percentage is now divided by 100.")
                else:
                    passed, of = test(str(place))
                    task.result = f"{passed} of {of}"
                    think(session, f"{passed} of {of} tests pass. The total is not an integer yet.")
                    print(f"{passed} of {of} tests pass", flush=True)


def try_way(branch: Session, way: str) -> dict[str, float]:
    """Apply one strategy to the files of a fork, and run the tests there."""
    place = Path(str(branch.workspace.path)) if branch.workspace else Path()
    patched = FIRST_PATCH.replace("whole - whole * discount / 100", WAYS[way])
    write_file(str(place / "invoice.py"), patched.replace("    whole = sum(prices)\n", ""))
    passed, of = test(str(place))
    think(branch, f"With {way!r}, {passed} of {of} tests pass.")
    return {"passed": passed, "of": of}
