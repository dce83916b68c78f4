"""What a test has one version of the library do, in a process of its own.

The current version and the previous one both run this file. So it uses public names and the command
only; a test names the function at which the process is killed.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from agent_checkpoint import Checkpointable, CheckpointManager, Log, Session, Workspace, tool
from agent_checkpoint.cli.main import main

KILLED = 77
KEY = "work"
THEN = {"app.py": "print(1)\n", "gone": "then\n", "kept": "always\n"}
NOW = {"app.py": "print(2)\n", "new": "now\n", "kept": "always\n"}
UNSAVED = {"draft": "unsaved\n"}
FORKED = {"app.py": "print(3)\n", "forked": "in the fork\n", "kept": "always\n"}
TALK = "transcript.jsonl"


def run(place: str, steps: list[list[Any]], killed_at: str | None) -> None:
    """Call functions of this file and print what they return; die in the last of them."""
    found = []
    for number, (name, *arguments) in enumerate(steps, 1):
        if killed_at is not None and number == len(steps):
            kill_at(*killed_at.split())
        found.append(globals()[name](Path(place), *arguments))
    print(json.dumps(found))


def kill_at(when: str, where: str) -> None:
    """End this process before or after a function, `module:Class.function`, is first called."""
    module, _, path = where.partition(":")
    *above, name = path.split(".")
    owner: Any = importlib.import_module(f"agent_checkpoint.{module}")
    for part in above:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    def killed(*arguments: Any, **options: Any) -> None:
        if when == "after":
            function(*arguments, **options)
        os._exit(KILLED)

    setattr(owner, name, killed)


# -- directories ---------------------------------------------------------------------------------


def write(directory: Path, files: dict[str, str]) -> None:
    """Make these the files of a directory."""
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        if path.is_file():
            path.unlink()
    for name, text in files.items():
        (directory / name).write_text(text)


def project(place: Path) -> Path:
    return place / "project"


# -- sessions ------------------------------------------------------------------------------------


class Worker(Checkpointable):
    def __init__(self) -> None:
        self.done: list[str] = []


@tool(effect="irreversible", key=lambda to: to)
def send(to: str) -> str:
    with Path(os.environ["SENT"]).open("a") as file:
        file.write(f"{to}\n")
    return f"sent to {to}"


def opened(place: Path, **options: Any) -> Session:
    store = CheckpointManager(backend=os.environ.get("BACKEND", "sqlite"), path=place / "store")
    return Session(KEY, agent=Worker(), workspace=project(place), store=store, **options)


def make_session(place: Path) -> None:
    """Save a session with the files `THEN`, then with `NOW`."""
    write(project(place), THEN)
    with opened(place) as session:
        session.agent.done.append("then")
        session.save(label="then")
        write(project(place), NOW)
        session.agent.done.append("now")
        session.save(label="now")


def roll_back(place: Path, options: dict[str, Any]) -> None:
    """Roll back to `THEN`; one file was not saved before."""
    with opened(place) as session:
        write(project(place), {**NOW, **UNSAVED})
        (then,) = [row["id"] for row in session.history() if row["label"] == "then"]
        session.rollback(to=then, **options)


def make_fork(place: Path) -> None:
    """Fork the session; the fork has the files `FORKED`."""
    with opened(place) as session, session.fork("try") as branch:
        branch.agent.done.append("forked")
        write(branch.workspace.path, FORKED)
        branch.save()


def adopt(place: Path, merge: str | None = None) -> None:
    """Adopt the fork; for a merge, the session has a new file as well."""
    with opened(place) as session:
        if merge is not None:
            write(project(place), {**NOW, **UNSAVED})
        session.adopt("try", merge=merge)


def open_session(place: Path) -> dict[str, Any]:
    """Open the session, and tell what it found."""
    with opened(place) as session:
        return {
            "done": list(session.agent.done),
            "drift": None if session.drift is None else str(session.drift),
            "notices": [*session.notices, *session.workspace.notices],
        }


@tool(effect="irreversible")
def send_again(to: str) -> str:
    """Send without a key: each call is counted."""
    return send.__wrapped__(to)


def delegate(place: Path, turn: int) -> list[Any]:
    """Open two sub-agents, which earlier versions do not know, and go on in each."""
    found: list[Any] = []
    with opened(place) as session:
        for name in ("one", "two"):
            worker = Worker()
            child = session.subagent(name, agent=worker)
            found.append([child.resumed, list(worker.done), len(child.calls), child.messages[:]])
            child.__enter__()
            worker.done.append(f"{turn}")
            child.messages.append(turn)
            send_again("ann")
            child.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)  # it has not finished
    return found


def take_turns(place: Path, who: str, turns: int) -> list[str]:
    """Open the session, make one call and one of everybody, save; `turns` times."""
    for turn in range(turns):
        with opened(place) as session:
            session.agent.done.append(f"{who} {turn}")
            send(f"{who} {turn}")
            send("everybody")
            session.messages.append({"role": "assistant", "content": f"I am {who}."})
            (project(place) / who).write_text(f"{turn}\n")
            session.save(label=f"{who} {turn}")
    with opened(place) as session:
        return list(session.agent.done)


def lose_session(place: Path, other: list[str]) -> str:
    """Hold the session while another process opens it; return the error of the next call."""
    import subprocess

    session = opened(place)
    subprocess.run(other, check=True, stdout=subprocess.DEVNULL)
    try:
        with session:
            send("too late")
    except Exception as error:
        return type(error).__name__
    return "nothing happened"


# -- directories without a session ---------------------------------------------------------------


def make_workspace(place: Path) -> None:
    write(project(place), THEN)
    with Workspace(project(place), place / "store") as workspace:
        workspace.snapshot(label="then")
        write(project(place), NOW)
        workspace.snapshot(label="now")


def restore_workspace(place: Path) -> None:
    write(project(place), {**NOW, **UNSAVED})
    with Workspace(project(place), place / "store") as workspace:
        workspace.restore(f"{workspace.key}@1")


def open_workspace(place: Path) -> list[str]:
    with Workspace(project(place), place / "store") as workspace:
        return workspace.notices


# -- the command ---------------------------------------------------------------------------------


def command(place: Path, *words: str) -> Any:
    """Run the command in the directory; return its status and everything it printed."""
    os.chdir(project(place))
    os.environ["AGENT_CHECKPOINT_STORE"] = str(place / "store")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(list(words))
    return [status, out.getvalue(), err.getvalue()]


def make_saves(place: Path) -> None:
    write(project(place), THEN)
    command(place, "save")
    write(project(place), NOW)
    command(place, "save")


def restore(place: Path) -> Any:
    write(project(place), {**NOW, **UNSAVED})
    return command(place, "restore", "@1", "--yes")


def event(place: Path, number: int) -> None:
    """Have a coding agent report a tool call."""
    told = {
        "session_id": "talk",
        "transcript_path": str(place / TALK),
        "cwd": str(project(place)),
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "true"},
        "tool_use_id": f"toolu_{number}",
    }
    (place / "event").write_text(json.dumps(told))
    os.environ["AGENT_CHECKPOINT_HOOK_DIRECT"] = "1"
    stdin = os.open(place / "event", os.O_RDONLY)
    os.dup2(stdin, 0)
    os.close(stdin)
    command(place, "hook", "claude-code")


def say(place: Path, number: int) -> None:
    with (place / TALK).open("a") as file:
        file.write(json.dumps({"n": number}) + "\n")


def make_events(place: Path) -> None:
    """Make a coding agent's session: two lines at `THEN`, four at `NOW`."""
    project(place).mkdir()
    (project(place) / ".git").mkdir()
    for number, files in ((1, THEN), (2, NOW)):
        say(place, number * 2 - 1)
        say(place, number * 2)
        write(project(place), files)
        event(place, number)


def rewind(place: Path, *options: str) -> Any:
    write(project(place), {**NOW, **UNSAVED})
    return command(place, "rewind", "@1", "--yes", *options)


# -- one store -----------------------------------------------------------------------------------


class SharedAgent(Checkpointable):
    """A part with everything that a format has: long lists and texts, bytes, sets, numbers."""

    def __init__(self) -> None:
        self.log = Log()
        self.values: dict[str, Any] = {}


def save_states(place: Path, who: str, numbers: list[int]) -> list[str]:
    """Save states to a key of one's own and to one of both; return the ids."""
    found = []
    with CheckpointManager(backend=os.environ["BACKEND"], path=place / "store") as manager:
        for number in numbers:
            for key in (who, "both"):
                agent = SharedAgent()
                if key in manager.list_keys():
                    manager.load(key, agent)
                agent.log.append(f"{who} {number}")
                agent.values = {
                    "text": f"{who} é🎉 " * 2000,
                    "bytes": bytes(range(256)) * 300,
                    "set": {number, who},
                    "tuple": (1.5, None, True),
                    "list": list(range(number, 3000)),
                }
                found.append(manager.save(key, agent, label=f"{who} {number}"))
    return found


def states(place: Path) -> dict[str, str]:
    """Return every state in the store, as a hash of all its values."""
    found = {}
    with CheckpointManager(backend=os.environ["BACKEND"], path=place / "store") as manager:
        for key in manager.list_keys():
            for row in manager.history(key):
                agent = SharedAgent()
                manager.load(key, agent, checkpoint_id=row["id"])
                values = {**agent.values, "set": sorted(map(str, agent.values["set"]))}
                text = repr((row["label"], list(agent.log), values))
                found[row["id"]] = hashlib.sha256(text.encode()).hexdigest()
    return found


def maintain(place: Path, rounds: int = 1) -> None:
    """Collect garbage and verify."""
    with CheckpointManager(backend=os.environ["BACKEND"], path=place / "store") as manager:
        for _ in range(rounds):
            manager.gc()
            report = manager.verify()
            assert report.ok, report
