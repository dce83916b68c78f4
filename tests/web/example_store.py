"""An example store: an agent that fixed a program, with forks, rollbacks, effects and approvals.

    python -m tests.web.example_store STORE REPO [NUMBER of checkpoints of a long run]

Used by the tests of the web page, and for its pictures in the documents.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_checkpoint import Checkpointable, CheckpointManager, Session, Suspended, tool
from agent_checkpoint.records import Draft

KEY = "fix-login-timeout"

AUTH = '''"""Logging in, and staying so."""

import time

SESSION_SECONDS = 60


def is_expired(session, now=None):
    now = now or time.time()
    return now - session["began"] > SESSION_SECONDS


def renew(session):
    session["began"] = time.time()
    return session
'''
TEST = """from app.auth import is_expired


def test_an_hour_is_fine():
    assert not is_expired({"began": 0}, now=3600)


def test_a_day_is_too_long():
    assert is_expired({"began": 0}, now=86_400)
"""


class Coder(Checkpointable):
    """A coding agent, as far as its state goes."""

    def __init__(self) -> None:
        self.model = "small-coder-3"
        self.plan: list[str] = []
        self.notes: dict[str, str] = {}
        self.tokens = 0
        self.limits = {"tokens": 200_000, "tools": ("read_file", "write_file", "run_tests")}


@tool(effect="read")
def read_file(path: str) -> str:
    return (here() / path).read_text()


@tool
def write_file(path: str, text: str) -> str:
    (here() / path).write_text(text)
    return f"wrote {len(text)} characters"


@tool
def run_tests(passing: int, failing: int) -> dict:
    return {"passed": passing, "failed": failing, "seconds": 1.9}


@tool(effect="irreversible", key=lambda title, **_: title)
def open_ticket(title: str, body: str) -> dict:
    return {"ticket": 1187, "url": "https://tickets.example.org/1187"}


@tool(effect="irreversible", key=lambda channel, **_: channel)
def tell_team(channel: str, text: str) -> str:
    raise TimeoutError("the chat server did not answer")


@tool(effect="irreversible", key=lambda version, **_: version, approve=True)
def deploy(version: str, servers: list, notes: str) -> str:
    return f"deployed {version}"


_HERE: list[Path] = []


def here() -> Path:
    return _HERE[-1]


@contextmanager
def clock(start: float, step: float) -> Iterator[None]:
    """Have each look at the clock be later than the one before: as if somebody had worked."""
    real, now = time.time_ns, [int(start * 1e9)]

    def later() -> int:
        now[0] += int(step * 1e9)
        return now[0]

    time.time_ns = later
    try:
        yield
    finally:
        time.time_ns = real


def make_example(store: Path, repo: Path) -> None:
    """Fill a store."""
    now = time.time()
    manager = CheckpointManager(backend="sqlite", path=store, durability="fast")
    with manager:
        with clock(now - 3 * 86_400, 40):
            _notes(manager)
        with clock(now - 7_000, 30):
            _nightly(manager)
        with clock(now - 3_300, 12):
            _fix(manager, repo)


def _notes(manager: CheckpointManager) -> None:
    state = {"topic": "prices", "answers": []}
    for number in range(4):
        state["answers"].append({"question": number, "score": 0.5 + number / 10})
        label = "all answered" if number == 3 else None
        metrics = {"score": 0.5 + number / 10}
        manager.save("survey-draft", state, label=label, tags=["draft"], metrics=metrics)
    manager.fork("survey-draft", "survey-final", "survey-draft@4")


def _nightly(manager: CheckpointManager) -> None:
    for is_full in (True, False):
        with suppress(OSError), Session("nightly-report", agent=Coder(), store=manager) as session:
            for task in session.tasks(["collect", "write", "publish"]):
                with task:
                    session.messages.append({"role": "assistant", "content": f"I {task.id} now."})
                    run_tests(passing=3, failing=0)
                    if task.id == "write" and is_full:
                        raise OSError("the disk is full")


def _fix(manager: CheckpointManager, repo: Path) -> None:
    (repo / "app").mkdir(parents=True)
    (repo / "tests").mkdir()
    (repo / "app" / "__init__.py").write_text("")
    (repo / "app" / "auth.py").write_text(AUTH)
    (repo / "tests" / "test_auth.py").write_text(TEST)
    (repo / "README.md").write_text("# Shop\n\nSigns people in.\n")
    (repo / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)
    _HERE.append(repo)
    agent = Coder()
    with suppress(Suspended), Session(KEY, agent=agent, workspace=repo, store=manager) as session:
        say = session.messages.append
        say({"role": "system", "content": "You mend programs. Run the tests before you are done."})
        say({"role": "user", "content": "People are logged out after a minute. Please fix it."})
        for task in session.tasks(["reproduce", "edit", "review", "deploy"]):
            with task:
                _WORK[task.id](session, agent)


def _reproduce(session: Session, agent: Coder) -> None:
    agent.plan = ["read the code", "find the limit", "raise it", "run the tests"]
    agent.tokens += 2_150
    session.messages.append({"role": "assistant", "content": "I look at how sessions expire."})
    read_file("app/auth.py")
    run_tests(passing=1, failing=1)
    agent.notes["cause"] = "SESSION_SECONDS is 60: a minute, and not an hour"
    open_ticket("Sessions end after a minute", body="SESSION_SECONDS in app/auth.py is 60.")


def _edit(session: Session, agent: Coder) -> None:
    session.messages.append({"role": "assistant", "content": "I take the limit out altogether."})
    good = session.save(label="before the edit", tags=["good"])
    write_file("app/auth.py", AUTH.replace("> SESSION_SECONDS", "> 10**9"))
    agent.tokens += 5_400
    with suppress(TimeoutError):
        run_tests(passing=1, failing=1)
    session.rollback(to=good)
    session.messages.append(
        {"role": "assistant", "content": "That never ends a session. I try two limits instead."}
    )
    branches = []
    for name, seconds in (("an-hour", "60 * 60"), ("half-a-day", "12 * 60 * 60")):
        with session.fork(f"{KEY}/{name}", effects="allow") as branch:
            _HERE.append(branch.workspace.path)
            branch.messages.append({"role": "assistant", "content": f"The limit is {seconds} s."})
            branch.agent.notes["limit"] = seconds
            fixed = AUTH.replace("SESSION_SECONDS = 60", f"SESSION_SECONDS = {seconds}")
            write_file("app/auth.py", fixed)
            is_good = name == "half-a-day"
            run_tests(passing=2 if is_good else 1, failing=0 if is_good else 1)
            branch.save(label=name, metrics={"score": 1.0 if is_good else 0.5})
            _HERE.pop()
            branches.append(branch)
    session.adopt(branches[1])


def _review(session: Session, agent: Coder) -> None:
    agent.tokens += 1_900
    text = (
        "All tests pass:\n\n```\ntests/test_auth.py ..  [100%]\n```\n\nThe limit is half a day. "
        "I add a line to the README and tell the team."
    )
    session.messages.append({"role": "assistant", "content": text})
    write_file("README.md", "# Shop\n\nSigns people in, for half a day.\n")
    with suppress(TimeoutError):
        tell_team("#shop", text="Sessions last for half a day now.")
    session.messages.append({"role": "user", "content": "Good. Put it on the servers."})


def _deploy(session: Session, agent: Coder) -> None:
    deploy("2.4.1", servers=["web-1", "web-2"], notes="Sessions last for half a day.")


_WORK = {"reproduce": _reproduce, "edit": _edit, "review": _review, "deploy": _deploy}


def make_long(manager: CheckpointManager, key: str = "long-run", number: int = 10_000) -> None:
    """Add a line of very many checkpoints, with forks and rollbacks on the way."""
    start, step = int((time.time() - number * 20) * 1e9), int(20e9)

    def write(name: str, index: int, kind: str, parents: Any) -> None:
        parts = {"agent": {"step": index, "note": f"looked at part {index}"}}
        draft = Draft(name, parts, kind=kind, label=f"step {index}")
        manager.store.write(draft, parents=parents, ts_ns=start + index * step)

    def name_of(index: int) -> str:
        return f"{key}_{start + index * step}-{index + 1}"

    for index in range(number):
        back = index % 250 == 249
        parents = (name_of(index - (20 if back else 1)),) if index else ()
        write(key, index, "rollback" if back else "save", parents)
        if index % 1000 == 700:
            write(f"{key}/try-{index}", index, "fork", (name_of(index),))
            for later in range(index + 1, min(index + 40, number)):
                write(f"{key}/try-{index}", later, "save", None)


if __name__ == "__main__":
    make_example(Path(sys.argv[1]), Path(sys.argv[2]))
    if len(sys.argv) > 3:
        with CheckpointManager(backend="sqlite", path=sys.argv[1], durability="fast") as long:
            make_long(long, number=int(sys.argv[3]))
