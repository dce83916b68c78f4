"""The previous version beside the current one: each completes, reads and tolerates the other."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest

from tests.cli.scene import PACKAGE, Scene, scene, wait_for
from tests.cli.test_hook import CLAUDE
from tests.compat import reader
from tests.compat.version_program import FORKED, KEY, KILLED, NOW, TALK, THEN, UNSAVED, project

pytestmark = pytest.mark.slow  # each test starts several interpreters
WHEEL = Path(__file__).with_name("previous") / "agent_checkpoint-0.2.0.dev0-py3-none-any.whl"
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from tests.compat.version_program import run
run(*map(json.loads, sys.argv[1:]))
"""
STAGING = ".agent-checkpoint-restore"
STAGED = "after workspace.restore.staging:Staging.begin"
FIRST = "before workspace.restore.apply:PlanExecutor._do"
HALF = "after workspace.restore.apply:PlanExecutor._do"
APPLIED = "after workspace.restore.apply:PlanExecutor.run"
NOT_DECIDED = "after agents.rewind.rewind_journal:write_entry"
REPLACED = "after agents.transcript_file:Replacement.put"
RESTORING = "before session.rollback.rollback:Rollback._restore"
REWIND = "agents.rewind.rewind:Rewind"
COMPLETED = ["An interrupted restore of the files was completed."]


class Version(NamedTuple):
    """A version of the package, and the directory that holds it."""

    name: str
    path: Path

    def command(self, place: Path, steps: list[list[Any]], killed_at: Optional[str]) -> list[str]:
        words = [str(place), steps, killed_at]
        return [sys.executable, "-c", PROGRAM, *map(json.dumps, words)]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{self.path}{os.pathsep}{ROOT}"}

    def run(self, place: Path, *steps: list[Any], killed_at: Optional[str] = None) -> Any:
        """Take some steps; return what the last one found, or None if it was killed."""
        done = subprocess.run(
            self.command(place, list(steps), killed_at),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if killed_at is not None:
            assert done.returncode == KILLED, (done.returncode, done.stdout, done.stderr)
            return None
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)[-1]


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Version:
    place = tmp_path_factory.mktemp("previous")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(place)
    return Version("previous", place)


@pytest.fixture
def current() -> Version:
    return Version("current", PACKAGE.parent)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture(autouse=True)
def made(place: Path) -> None:
    place.mkdir()


def files(place: Path) -> dict[str, str]:
    """Return the files of the directory, without those that version 0.1 moved aside."""
    top = project(place)
    return {
        str(path.relative_to(top)): path.read_text()
        for path in top.rglob("*")
        if path.is_file() and not str(path.relative_to(top)).startswith(f"{STAGING}.found-")
    }


def checkpoints(place: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all checkpoints by key, by a program that shares no code with either version."""
    merge_wal(place)
    return reader.read(place / "store")


def merge_wal(place: Path) -> None:
    """Have the database hold everything: a killed process leaves a -wal file, unread here."""
    with closing(sqlite3.connect(place / "store" / "store.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def saved_files(place: Path, checkpoint: dict[str, Any]) -> dict[str, str]:
    name = checkpoint["parts"]["workspace"]["$object"]
    found = reader.read_snapshot(reader.open_medium(place / "store"), name).files
    return {
        os.fsdecode(path): file.data.decode() for path, file in found.items() if file.type == b"f"
    }


def check_kept(place: Path, before: dict[str, str]) -> None:
    """Check that every content is in the directory or in a checkpoint."""
    held = [files(place)]
    for rows in checkpoints(place).values():
        held += [saved_files(place, row) for row in rows if "workspace" in row["parts"]]
    for name, text in before.items():
        assert any(found.get(name) == text for found in held), name


def check_head(place: Path, key: str) -> dict[str, Any]:
    """Check that the head matches the directory, with nothing left of the restore; return it."""
    head = checkpoints(place)[key][-1]
    assert saved_files(place, head) == files(place)
    assert not list(project(place).glob(f"{STAGING}*"))
    return head


def lines(place: Path) -> list[int]:
    return [json.loads(line)["n"] for line in (place / TALK).read_text().splitlines()]


# -- interrupted by the previous version ---------------------------------------------------------


@pytest.mark.parametrize("point", [RESTORING, STAGED, HALF, APPLIED])
def test_a_rollback_of_the_previous_version_is_completed(
    point: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["make_session"], ["roll_back", {}], killed_at=point)
    found = current.run(place, ["open_session"])
    assert found["notices"] == (COMPLETED if point in (STAGED, HALF) else [])
    assert (found["done"], found["drift"]) == (["then"], None)
    assert files(place) == THEN
    check_head(place, KEY)
    check_kept(place, {**NOW, **UNSAVED})
    assert previous.run(place, ["open_session"]) == {**found, "notices": []}


@pytest.mark.parametrize("point", [RESTORING, STAGED, HALF, APPLIED])
def test_an_adoption_of_the_previous_version_is_completed(
    point: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["make_session"], ["make_fork"], ["adopt"], killed_at=point)
    found = current.run(place, ["open_session"])
    assert found["notices"] == (COMPLETED if point in (STAGED, HALF) else [])
    assert (found["done"], found["drift"]) == (["then", "now", "forked"], None)
    assert files(place) == FORKED
    check_head(place, KEY)
    check_kept(place, NOW)


@pytest.mark.parametrize("point", [STAGED, HALF, APPLIED])
def test_a_merge_of_the_previous_version_is_completed_and_reported_as_drift(
    point: str, previous: Version, current: Version, place: Path
) -> None:
    """Version 0.1 appended the checkpoint last: nothing tells a merge from changes by others."""
    previous.run(place, ["make_session"], ["make_fork"], ["adopt", "files"], killed_at=point)
    found = current.run(place, ["open_session"])
    assert found["done"] == ["then", "now"]
    assert "forked" in found["drift"]
    assert files(place) == {**FORKED, **UNSAVED}
    check_head(place, KEY)
    assert "drift" in [row["kind"] for row in checkpoints(place)[KEY][-2:]]
    check_kept(place, {**NOW, **UNSAVED})


@pytest.mark.parametrize("point", [STAGED, HALF])
def test_a_restore_of_the_previous_version_is_completed(
    point: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["make_workspace"], ["restore_workspace"], killed_at=point)
    assert current.run(place, ["open_workspace"]) == []
    assert files(place) == THEN
    assert not list(project(place).glob(f"{STAGING}*"))
    check_kept(place, {**NOW, **UNSAVED})


@pytest.mark.parametrize(
    "point", [STAGED, HALF, "before agents.tracked_dir:TrackedDir._save_restored"]
)
def test_a_restore_by_the_command_of_the_previous_version_is_completed(
    point: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["make_saves"], ["restore"], killed_at=point)
    status, _, _ = current.run(place, ["command", "save", "--json"])
    assert status == 0
    assert files(place) == THEN
    (key,) = checkpoints(place)
    check_head(place, key)
    check_kept(place, {**NOW, **UNSAVED})


@pytest.mark.parametrize("who", ["rewind", "event"])
@pytest.mark.parametrize(
    "point",
    [
        f"before {REWIND}._restore_files",
        STAGED,
        HALF,
        f"after {REWIND}._restore_files",
        f"before {REWIND}._save_head",
    ],
)
def test_a_rewind_of_the_previous_version_is_completed(
    who: str, point: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["make_events"], ["rewind"], killed_at=point)
    if who == "event":
        current.run(place, ["event", 3])
    else:
        _, printed, _ = current.run(place, ["command", "rewind", "--json"])
        assert "Finished an interrupted rewind to @1" in json.loads(printed)["finished"]
    assert files(place) == THEN
    assert lines(place) == [1, 2]
    check_head(place, "claude-code/talk")
    check_kept(place, {**NOW, **UNSAVED})
    assert not list(Path(os.environ["AGENT_CHECKPOINT_HOME"]).rglob("*.rewind"))


@pytest.mark.parametrize(
    ("options", "done", "expected"),
    [
        ({"parts": ["workspace"]}, ["then", "now"], THEN),
        ({"parts": ["agent"]}, ["then"], {**NOW, **UNSAVED}),
        ({"keep_unseen": True}, ["then"], {**THEN, **UNSAVED}),
    ],
    ids=["files", "agent", "unseen"],
)
def test_a_rollback_of_the_previous_version_is_completed_as_far_as_it_was_meant(
    options: Any, done: Any, expected: Any, previous: Version, current: Version, place: Path
) -> None:
    steps: Any = (["make_session"], ["roll_back", options])
    previous.run(place, *steps, killed_at=RESTORING)
    found = current.run(place, ["open_session"])
    assert found["done"] == done
    assert files(place) == expected
    check_head(place, KEY)


@pytest.mark.parametrize(
    ("options", "expected", "talk"),
    [
        (["--only", "files"], THEN, [1, 2, 3, 4]),
        (["--only", "conversation"], {**NOW, **UNSAVED}, [1, 2]),
        (["--keep-git"], THEN, [1, 2]),
    ],
    ids=["files", "conversation", "keep-git"],
)
def test_a_rewind_of_the_previous_version_is_completed_as_far_as_it_was_meant(
    options: Any, expected: Any, talk: Any, previous: Version, current: Version, place: Path
) -> None:
    steps: Any = (["make_events"], ["rewind", *options])
    previous.run(place, *steps, killed_at=f"before {REWIND}.apply")
    current.run(place, ["event", 3])
    assert files(place) == expected
    assert lines(place) == talk
    check_head(place, "claude-code/talk")
    check_kept(place, {**NOW, **UNSAVED})


@pytest.mark.parametrize("again", [STAGED, HALF, APPLIED])
def test_a_rollback_of_the_previous_version_is_completed_after_two_kills(
    again: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["make_session"], ["roll_back", {}], killed_at=RESTORING)
    current.run(place, ["open_session"], killed_at=again)
    found = current.run(place, ["open_session"])
    assert (found["done"], found["drift"]) == (["then"], None)
    assert files(place) == THEN
    check_head(place, KEY)
    check_kept(place, {**NOW, **UNSAVED})


@pytest.mark.parametrize("point", [f"before {REWIND}._restore_files", HALF])
@pytest.mark.parametrize("again", [NOT_DECIDED, REPLACED])
def test_a_rewind_of_the_previous_version_is_completed_after_two_kills(
    point: str, again: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["make_events"], ["rewind"], killed_at=point)
    current.run(place, ["command", "rewind"], killed_at=again)
    current.run(place, ["event", 3])
    assert files(place) == THEN
    assert lines(place) == [1, 2]
    check_head(place, "claude-code/talk")
    check_kept(place, {**NOW, **UNSAVED})


# -- interrupted by the current version ----------------------------------------------------------

NOT_READ = "is of an interrupted restore whose journal is damaged"


@pytest.mark.parametrize("point", [STAGED, HALF, FIRST, APPLIED])
@pytest.mark.parametrize("way", ["rollback", "adopt", "merge"])
def test_the_previous_version_opens_a_session_that_was_interrupted(
    way: str, point: str, previous: Version, current: Version, place: Path
) -> None:
    steps, expected = {
        "rollback": ([["roll_back", {}]], THEN),
        "adopt": ([["make_fork"], ["adopt"]], FORKED),
        "merge": ([["make_fork"], ["adopt", "files"]], {**FORKED, **UNSAVED}),
    }[way]
    before = NOW if way == "adopt" else {**NOW, **UNSAVED}
    current.run(place, ["make_session"], *steps, killed_at=point)
    found = previous.run(place, ["open_session"])
    assert files(place) == (before if point == STAGED else expected)
    assert any(NOT_READ in notice for notice in found["notices"]) == (point != APPLIED)
    check_kept(place, before)
    for path in project(place).glob(f"{STAGING}.found-*"):
        shutil.rmtree(path)  # as the notice tells
    again = current.run(place, ["open_session"])
    assert again["done"] == found["done"]
    assert files(place) == (before if point == STAGED else expected)
    check_head(place, KEY)


def test_the_previous_version_does_not_repeat_a_rollback(
    previous: Version, current: Version, place: Path
) -> None:
    rolled_back = "after session.session:Session.rollback"
    current.run(place, ["make_session"], ["roll_back", {}], killed_at=rolled_back)
    assert files(place) == THEN
    (project(place) / "app.py").write_text(NOW["app.py"])  # as in the safety checkpoint
    assert "app.py" in previous.run(place, ["open_session"])["drift"]
    assert files(place) == {**THEN, "app.py": NOW["app.py"]}


@pytest.mark.parametrize("point", [STAGED, FIRST, HALF])
def test_the_previous_version_completes_a_plain_restore(
    point: str, previous: Version, current: Version, place: Path
) -> None:
    current.run(place, ["make_workspace"], ["restore_workspace"], killed_at=point)
    assert previous.run(place, ["open_workspace"]) == []
    assert files(place) == THEN
    assert not list(project(place).glob(f"{STAGING}*"))
    check_kept(place, {**NOW, **UNSAVED})


@pytest.mark.parametrize("point", [STAGED, HALF, FIRST, APPLIED])
def test_the_previous_command_works_where_a_restore_was_interrupted(
    point: str, previous: Version, current: Version, place: Path
) -> None:
    current.run(place, ["make_saves"], ["restore"], killed_at=point)
    status, printed, problems = previous.run(place, ["command", "save"])
    assert status == 0
    assert (NOT_READ in " ".join((printed + problems).split())) == (point != APPLIED)
    check_kept(place, {**NOW, **UNSAVED})
    status, printed, problems = current.run(place, ["command", "restore", "@1", "--yes"])
    assert status == 0
    assert files(place) == THEN


@pytest.mark.parametrize("who", ["event", "rewind", "rewind again"])
@pytest.mark.parametrize("point", [NOT_DECIDED, FIRST, HALF, APPLIED, REPLACED])
def test_the_previous_version_works_where_a_rewind_was_interrupted(
    who: str, point: str, previous: Version, current: Version, place: Path
) -> None:
    current.run(place, ["make_events"], ["rewind"], killed_at=point)
    talk = lines(place)
    if who == "event":
        previous.run(place, ["say", 5], ["event", 3])
        talk.append(5)
        if point in (NOT_DECIDED, FIRST, HALF):
            log = Path(os.environ["AGENT_CHECKPOINT_HOME"], "hook", "hook.log")
            assert NOT_READ in log.read_text()
    else:
        words = ["@1", "--yes"] if who == "rewind again" else []
        status, _, _ = previous.run(place, ["command", "rewind", *words])
        assert status == 0
        talk = [1, 2] if words else talk
    assert lines(place) == talk
    check_kept(place, {**NOW, **UNSAVED})
    now = files(place)
    current.run(place, ["command", "rewind"])
    if who == "event":  # the agent has continued: nothing is rewound behind its back
        assert (lines(place), files(place)) == (talk, now)
    elif who == "rewind again" or point != NOT_DECIDED:
        assert (lines(place), files(place)) == ([1, 2], THEN)
    else:
        assert (lines(place), files(place)) == ([1, 2, 3, 4], {**NOW, **UNSAVED})
    check_kept(place, {**NOW, **UNSAVED})
    assert not list(Path(os.environ["AGENT_CHECKPOINT_HOME"]).rglob("*.rewind"))


# -- one store -----------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "file"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BACKEND", request.param)
    return str(request.param)


def test_each_version_reads_what_the_other_wrote(
    backend: str, previous: Version, current: Version, place: Path
) -> None:
    previous.run(place, ["save_states", "previous", [1]])
    current.run(place, ["save_states", "current", [1, 2]])
    found = previous.run(place, ["save_states", "previous", [2]], ["maintain"], ["states"])
    assert len(found) == 8
    assert current.run(place, ["maintain"], ["states"]) == found


def test_equal_states_become_equal_bytes(
    backend: str, previous: Version, current: Version, place: Path
) -> None:
    media = []
    for version in (previous, current):
        (place / version.name).mkdir()
        version.run(place / version.name, ["save_states", "me", [1, 2]])
        if backend == "sqlite":
            merge_wal(place / version.name)
        media.append(reader.open_medium(place / version.name / "store"))
    # Their names are the hashes of their content; compressed, it may differ (isal, zlib).
    assert media[0].objects.keys() == media[1].objects.keys()
    assert media[0].streams.keys() == media[1].streams.keys()


def test_both_versions_save_at_once_beside_gc_and_verify(
    backend: str, previous: Version, current: Version, place: Path
) -> None:
    numbers = list(range(5))
    runs = {}
    for version in (previous, current):
        for steps in (["save_states", version.name, numbers], ["maintain", 3]):
            runs[version, steps[0]] = subprocess.Popen(
                version.command(place, [steps], None),
                env=version.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
    printed = {}
    for name, process in runs.items():
        out, problems = process.communicate(timeout=60)
        assert process.returncode == 0, problems
        (printed[name],) = json.loads(out)
    ids = printed[previous, "save_states"] + printed[current, "save_states"]
    found = current.run(place, ["states"])
    assert sorted(found) == sorted(ids)
    assert len(set(ids)) == 4 * len(numbers)
    assert previous.run(place, ["states"]) == found


def test_a_session_goes_on_in_either_version_and_does_nothing_twice(
    backend: str,
    previous: Version,
    current: Version,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SENT", str(place / "sent"))
    previous.run(place, ["make_session"])
    done = ["then", "now"]
    for version in (current, previous, current):
        done += [f"{version.name} {turn}" for turn in range(2)]
        assert version.run(place, ["take_turns", version.name, 2]) == done
    sent = (place / "sent").read_text().splitlines()
    assert sorted(sent) == sorted(
        ["current 0", "current 1", "everybody", "previous 0", "previous 1"]
    )
    assert files(place) == {**NOW, "current": "1\n", "previous": "1\n"}


def test_the_previous_version_keeps_subagents(
    previous: Version,
    current: Version,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It neither knows nor changes them, and their calls without a key keep their numbers."""
    monkeypatch.setenv("SENT", str(tmp_path / "sent"))
    current.run(place, ["make_session"], ["delegate", 1])
    before = subagents(place)
    previous.run(place, ["take_turns", "old", 2], ["make_fork"], ["adopt"])
    assert subagents(place) == before
    assert current.run(place, ["delegate", 2]) == [[True, ["1"], 1, [1]]] * 2
    (tmp_path / "sent").unlink()
    previous.run(place, ["roll_back", {"effects": "warn"}])  # to before they were there
    assert subagents(place) == {}
    assert current.run(place, ["delegate", 1]) == [[False, [], 0, []]] * 2
    assert not (tmp_path / "sent").exists()  # both calls were made before, and are replayed


def subagents(place: Path) -> dict[str, Any]:
    parts = checkpoints(place)[KEY][-1]["parts"]
    return {name: part for name, part in parts.items() if name.startswith("subagents/")}


@pytest.mark.parametrize("first", ["previous", "current"])
def test_the_version_that_opens_a_session_last_has_it(
    first: str,
    backend: str,
    previous: Version,
    current: Version,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SENT", str(place / "sent"))
    holder, other = (previous, current) if first == "previous" else (current, previous)
    holder.run(place, ["make_session"])
    taker = other.command(place, [["take_turns", other.name, 1]], None)
    taker = ["env", f"PYTHONPATH={other.environment['PYTHONPATH']}", *taker]
    assert holder.run(place, ["lose_session", taker]) == "ConflictError"
    assert (place / "sent").read_text().splitlines() == [f"{other.name} 0", "everybody"]
    assert other.run(place, ["open_session"])["done"] == ["then", "now", f"{other.name} 0"]


# -- hooks ---------------------------------------------------------------------------------------

CLIENT = Path("agent_checkpoint", "agents", "hook", "client.py")
NAMED_BY_0_1 = Path("agent_checkpoint", "cli", "hooks", "client.py")
needs_linux = pytest.mark.skipif(not Path("/proc/self/ns/mnt").exists(), reason="Linux only")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path / "hooks", "served") as found:
        yield found


def report(work: Scene, number: int) -> None:
    """Change a file and have the agent report it."""
    (work.workspace / "src" / "app.py").write_text(f"print({number})\n")
    work.tool(number)


def reported(work: Scene) -> list[tuple[str, str]]:
    """Return the tool calls that were saved, oldest first, each with its content of the file."""
    merge_wal(work.home)
    medium = reader.open_medium(work.home / "store")
    found = []
    for row in reader.read(work.home / "store")[CLAUDE]:
        saved = reader.read_snapshot(medium, row["parts"]["workspace"]["$object"]).files
        found.append((row["tags"][-1] if row["tags"] else "", saved[b"src/app.py"].data.decode()))
    return found


def tool_calls(*numbers: int) -> list[tuple[str, str]]:
    return [(f"toolu_{number}", f"print({number})\n") for number in numbers]


@needs_linux
def test_daemons_of_both_versions_save_the_events_of_one_session(
    previous: Version, current: Version, work: Scene
) -> None:
    clients = [version.path / CLIENT for version in (previous, current)]
    for number in range(1, 7):
        work.client = clients[number % 2]
        report(work, number)
    assert reported(work) == tool_calls(*range(1, 7))
    assert [len(work.servers(client)) for client in clients] == [1, 1]
    assert work.log == ""
    work.command("hook", "stop")
    wait_for(lambda: not any(map(work.servers, clients)))


@needs_linux
@pytest.mark.parametrize("daemon", ["previous", "current"])
def test_a_daemon_serves_a_client_of_the_other_version(
    daemon: str, previous: Version, current: Version, work: Scene
) -> None:
    serving, other = (previous, current) if daemon == "previous" else (current, previous)
    work.client = serving.path / CLIENT
    report(work, 1)
    (socket,) = work.sockets()
    client = other.path / CLIENT
    found = client.stat()
    signature = f"{found.st_dev:x}-{found.st_ino:x}-{found.st_mtime_ns:x}"
    (socket.parent / f"{os.uname().nodename[:40]}-{signature}.sock").symlink_to(socket.name)
    work.client = client
    report(work, 2)
    assert len(work.servers(serving.path / CLIENT)) == 1
    assert reported(work) == tool_calls(1, 2)
    if not work.servers():  # a client that waits too long, on a busy machine, starts its own
        assert work.log == ""


@needs_linux
@pytest.mark.parametrize("daemon", ["previous", "current"])
def test_a_rewind_by_one_version_beside_the_daemon_of_the_other(
    daemon: str, previous: Version, current: Version, work: Scene
) -> None:
    serving, other = (previous, current) if daemon == "previous" else (current, previous)
    work.client = serving.path / CLIENT
    for number in (1, 2, 3):
        report(work, number)
    path = str(other.path)
    assert "Rewound to @1" in work.command("rewind", "@1", "--yes", PYTHONPATH=path)
    assert (work.workspace / "src" / "app.py").read_text() == "print(1)\n"
    assert len(work.transcript.read_text().splitlines()) == 2
    report(work, 4)
    kept = reported(work)
    assert kept[:3] == tool_calls(1, 2, 3)
    assert kept[-1:] == tool_calls(4)
    assert work.log == ""


@needs_linux
@pytest.mark.parametrize("client", [CLIENT, NAMED_BY_0_1], ids=["installed", "0.1"])
def test_an_installed_hook_survives_the_upgrade(
    client: Path, previous: Version, current: Version, work: Scene, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    package = installed / "agent_checkpoint"
    no_cache = shutil.ignore_patterns("__pycache__")
    shutil.copytree(previous.path / "agent_checkpoint", package, ignore=no_cache)
    work.command("hook", "install", "claude-code", PYTHONPATH=str(installed))
    settings = work.place / "home" / ".claude" / "settings.json"
    settings.write_text(settings.read_text().replace(str(CLIENT), str(client)))
    ours = json.loads(settings.read_text())["hooks"]["PostToolUse"][0]["hooks"][0]["command"]
    assert str(installed / client) in ours

    def run_hook(number: int) -> None:
        (work.workspace / "src" / "app.py").write_text(f"print({number})\n")
        event = work.event("claude-code.post-tool-use", tool_use_id=f"toolu_{number}")
        subprocess.run(
            ["/bin/sh", "-c", ours],
            input=json.dumps(event).encode(),
            env=work.environment,
            cwd=work.workspace,
            check=True,
            timeout=60,
        )

    run_hook(1)
    work.client = installed / CLIENT
    (old,) = work.servers()
    shutil.rmtree(package)
    shutil.copytree(PACKAGE, package, ignore=no_cache)
    run_hook(2)
    wait_for(lambda: old not in work.servers())
    assert len(work.servers()) == 1
    assert reported(work) == tool_calls(1, 2)
    assert work.log == ""
    work.command("hook", "install", "claude-code", PYTHONPATH=str(installed))
    handlers = json.loads(settings.read_text())["hooks"]["PostToolUse"]
    (command,) = [hook["command"] for group in handlers for hook in group["hooks"]]
    assert str(installed / CLIENT) in command
