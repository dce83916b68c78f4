"""An agent that is killed at a tool boundary and started again: what is lost, repeated, doubled.

Each framework has a program, `python PROGRAM DIRECTORY own|ours`, that runs the agent, or continues
where it was: with the framework's own persistence or with this library. It makes the calls of
`TURNS` by `append_line` and `announce` of this module. The scripted model calls `asked`.

`python -m tests.adapters.killing` prints the table of docs/frameworks.md.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from agent_checkpoint import Session, tool

TURNS: "list[list[tuple[str, dict[str, str]]]]" = [
    [("append_line", {"file": "a.txt", "line": "one"}), ("announce", {"text": "first"})],
    [("announce", {"text": "second"})],
    [("append_line", {"file": "b.txt", "line": "two"})],
]
CALLS = [call for turn in TURNS for call in turn]
LAST = "All done."
BOUNDARIES = range(1, 2 * len(CALLS) + 1)
"""Each tool is killed when it starts, and when it has had its effect."""
PROGRAMS = {
    "Claude Agent SDK": "claude_agent_sdk/killed_program.py",
    "OpenAI Agents SDK": "openai_agents/killed_program.py",
    "Pydantic AI": "pydantic_ai/killed_program.py",
}
KILL_AT = "KILL_AT"


class Tools:
    """The tools, as plain functions: what they do is logged, and they die at a boundary."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.work = directory / "work"
        self.outbox = directory / "outbox"
        self._passed = 0
        self._kill_at = int(os.environ.get(KILL_AT, 0))

    def append_line(self, file: str, line: str) -> str:
        """Append a line to a file."""
        self._begin(f"append_line {file} {line}")
        log(self.work / file, line)
        self._boundary()
        return f"appended to {file}"

    def announce(self, text: str) -> str:
        """Announce a message to everybody. It cannot be taken back."""
        self._begin(f"announce {text}")
        log(self.outbox, text)
        self._boundary()
        return "announced"

    def find_announcement(self, text: str) -> "str | None":
        """Return the outcome of `announce`, if it had its effect."""
        return "announced" if text in lines(self.outbox) else None

    def announce_once(self) -> Any:
        """Return `announce` as a tool with a ledger."""
        return tool(
            effect="irreversible",
            key=lambda text, **_: text,
            verify=lambda text, **_: self.find_announcement(text),
        )(self.announce)

    def session(self) -> Session:
        """Open the session of the agent, with its files."""
        store = self.directory / "store"
        return Session("lines", workspace=self.work, store=store, on_drift="restore")

    def _begin(self, call: str) -> None:
        self._boundary()
        log(self.directory / "calls", call)

    def _boundary(self) -> None:
        self._passed += 1
        if self._passed == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def asked(directory: Path, results: int) -> "list[tuple[str, dict[str, str]]]":
    """Return the calls of the model's next reply; none when it is done."""
    log(directory / "replies", str(results))
    for turn in TURNS:
        if results < len(turn):
            return turn
        results -= len(turn)
    return []


def log(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def lines(path: Path) -> "list[str]":
    return path.read_text().splitlines() if path.exists() else []


class Damage(NamedTuple):
    """What a kill cost: numbers over all boundaries; all zero is exact."""

    steps_lost: int = 0
    """Replies of the model that were asked for again."""
    tools_repeated: int = 0
    effects_doubled: int = 0
    effects_missing: int = 0
    wrong_files: int = 0
    """Runs that ended with other files than a run that is not killed."""

    def __add__(self, other: Any) -> "Damage":
        return Damage(*(one + two for one, two in zip(self, other)))


def again(found: "list[str]") -> int:
    return len(found) - len(set(found))


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(program: Path, directory: Path, persistence: str, kill_at: int) -> Ended:
    """Run the program, and end what it leaves behind, such as a CLI that waits for the model."""
    with (directory / "stdout").open("w") as out, (directory / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(program), str(directory), persistence],
            env={**os.environ, KILL_AT: str(kill_at), "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait(timeout=110)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    texts = [(directory / name).read_text() for name in ("stdout", "stderr")]
    return Ended(process.returncode, *texts)


def kill_and_resume(program: Path, persistence: str, boundary: int) -> Damage:
    with TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "work").mkdir()
        done = run(program, directory, persistence, boundary)
        assert done.returncode == -signal.SIGKILL, (done.returncode, done.stdout, done.stderr)
        done = run(program, directory, persistence, 0)
        assert done.returncode == 0, done.stderr
        assert LAST in done.stdout, done.stdout
        files = {path.name: lines(path) for path in (directory / "work").iterdir()}
        sent = Counter(lines(directory / "outbox"))
        expected = [given["text"] for name, given in CALLS if name == "announce"]
        return Damage(
            again(lines(directory / "replies")),
            again(lines(directory / "calls")),
            sum((sent - Counter(expected)).values()),
            sum((Counter(expected) - sent).values()),
            files != {"a.txt": ["one"], "b.txt": ["two"]},
        )


def table(
    programs: "dict[str, str]" = PROGRAMS, progress: "Callable[[str], Any]" = print
) -> "Iterator[tuple[str, str, Damage]]":
    for framework, program in programs.items():
        for persistence in ("own", "ours"):
            total = Damage()
            for boundary in BOUNDARIES:
                found = kill_and_resume(Path(__file__).parent / program, persistence, boundary)
                progress(f"{framework} {persistence} {boundary}: {found}")
                total += found
            yield framework, persistence, total


if __name__ == "__main__":
    wanted = {name: path for name, path in PROGRAMS.items() if not sys.argv[1:] or name in sys.argv}
    print(f"| {len(BOUNDARIES)} kills each | persistence | {' | '.join(Damage._fields)} |")
    for row in table(wanted, lambda words: print(words, file=sys.stderr)):
        print(f"| {row[0]} | {row[1]} | {' | '.join(map(str, row[2]))} |")
