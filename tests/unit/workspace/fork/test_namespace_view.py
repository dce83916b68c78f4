"""Processes that see a fork's files at the original path, as root and as nobody in particular."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.fork.namespace_view import (
    NO_VIEW,
    VIEW,
    end_view,
    is_in_view,
    view_command,
)
from agent_checkpoint.workspace.fork.overlay_mount import (
    changes,
    mounts,
    mounts_below,
    remove_tree,
)
from agent_checkpoint.workspace.fork.supervised_command import supervised
from tests.unit.workspace.fork.test_overlay_mount import ODD_NAMES

NOBODY = 65534
LINUX = sys.platform.startswith("linux")

# What a process does to become nobody: it gives up being root, and its groups. It stays one that
# may write to its own files in /proc, as one that was never root.
BECOME_NOBODY = f"""
import ctypes, os
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""
ENTER = """
import os, sys
from pathlib import Path
from agent_checkpoint.workspace.fork.namespace_view import enter_private_view
lower, upper, work, at = map(Path, sys.argv[1:5])
"""
AS_NOBODY = (
    ENTER
    + BECOME_NOBODY
    + "enter_private_view(lower, upper, work, at)\nos.execvp(sys.argv[5], sys.argv[5:])"
)


class Place:
    """A workspace, and the upper directories of as many forks as are wanted."""

    def __init__(self, base, is_nobody):
        self.base = base
        self.is_nobody = is_nobody
        self.workspace = base / "work space"
        self.workspace.mkdir()
        (self.workspace / "file").write_text("base")
        (self.workspace / "folder").mkdir()
        (self.workspace / "folder/below").write_text("base")
        if is_nobody:
            for path in [base, *base.rglob("*")]:
                os.chown(path, NOBODY, NOBODY)

    def upper(self, fork="one"):
        return self.base / f"{fork}-upper"

    def command(self, command, fork="one"):
        places = (self.workspace, self.upper(fork), self.base / f"{fork}-work", self.workspace)
        if not self.is_nobody:
            return view_command(*places, command)
        # The interpreter may be one that nobody cannot start: it is started before.
        return [sys.executable, "-c", AS_NOBODY, *map(str, places), *command]

    def run(self, *command, fork="one", **options):
        return subprocess.run(
            self.command(command, fork), capture_output=True, text=True, timeout=60, **options
        )

    def shell(self, script, fork="one"):
        done = self.run("/bin/sh", "-ec", script, fork=fork, cwd=self.workspace)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def own_place():
    """A place for views, as whom the tests run."""
    with place_for(is_nobody=False) as made:
        yield made


@pytest.fixture(params=["ourselves", "nobody"] if os.geteuid() == 0 else ["ourselves"])
def place(request):
    """A place for views, as whom the tests run and as nobody in particular."""
    with place_for(request.param == "nobody") as made:
        yield made


@contextmanager
def place_for(is_nobody):
    """Give a place for views; the test is skipped where they are refused."""
    if not LINUX:
        pytest.skip("private views exist on Linux only")
    base = Path(tempfile.mkdtemp(prefix="agent checkpoint,views:"))
    base.chmod(0o755)
    try:
        made = Place(base, is_nobody)
        tried = made.run("true", fork="tried")
        skip_if_refused(tried)
        assert tried.returncode == 0, tried.stderr
        yield made
        assert not any(mount.place.startswith(os.fsencode(base)) for mount in mounts())
    finally:
        remove_tree(base)


def skip_if_refused(done):
    """Skip the test if a process could have no view; whatever else it died of is no reason."""
    last = done.stderr.strip().rpartition("\n")[2]
    if "Cannot create a private mount namespace" in last or "Cannot mount an overlay" in last:
        pytest.skip(f"views are refused: {last}")


def wait_until(is_so, seconds=20):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_command_sees_its_own_files_at_the_original_path(place):
    shown = place.shell(
        "pwd; cat file; echo fork > file; echo more > folder/below; rm -r folder;"
        f"mkdir folder; echo new > '{place.workspace}/new'; cat new"
    )
    assert shown == f"{place.workspace}\nbasenew\n"
    assert (place.workspace / "file").read_text() == "base"
    assert (place.workspace / "folder/below").read_text() == "base"
    assert not (place.workspace / "new").exists()
    assert (place.upper() / "file").read_text() == "fork\n"
    assert changes(place.upper(), place.workspace) == ChangedPaths(
        {b"": {b"file", b"folder", b"new"}, b"folder": set()}, {b"folder"}
    )


def test_the_next_command_goes_on_where_the_last_one_ended(place):
    place.shell("echo fork > file; rm folder/below")
    assert place.shell("cat file; ls folder") == "fork\n"


def test_commands_at_the_same_path_see_only_their_own_edits(place):
    # Each edits, waits until all have edited, and then looks.
    script = """
    echo "$0" > file; echo "$0" > "only-$0"; rm folder/below; echo "$0" > folder/mine
    echo edited; read go
    cat file folder/mine; ls; ls folder
    """
    forks = ["one", "two", "three", "four"]
    running = {
        fork: subprocess.Popen(
            place.command(["/bin/sh", "-ec", script, fork], fork),
            cwd=place.workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for fork in forks
    }
    try:
        for process in running.values():
            assert process.stdout.readline() == "edited\n"
        for fork, process in running.items():
            shown, _ = process.communicate("go\n", timeout=60)
            assert shown.split() == [fork, fork, "file", "folder", f"only-{fork}", "mine"]
            assert process.returncode == 0
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    assert sorted(os.listdir(place.workspace)) == ["file", "folder"]
    assert (place.workspace / "file").read_text() == "base"
    for fork in forks:
        assert (place.upper(fork) / "file").read_text() == f"{fork}\n"


def test_everybody_stays_who_they_are(place):
    numbers = place.shell("id -u; id -g; stat -c %u file; touch new; stat -c %u new").split()
    user, group = (NOBODY, NOBODY) if place.is_nobody else (os.geteuid(), os.getegid())
    assert numbers == [str(user), str(group), str(user), str(user)]
    assert (place.upper() / "new").stat().st_uid == user


def test_nobody_gains_a_right_in_a_view():
    """A process that goes on in a view without starting a program has no more rights, either."""
    script = (
        ENTER
        + BECOME_NOBODY
        + """
enter_private_view(lower, upper, work, at)
try:
    open(at / "closed").read()
except PermissionError:
    print("closed")
print(open("/proc/self/status").read().partition("CapEff:")[2].split()[0].strip("0"))
"""
    )
    is_root = os.geteuid() == 0
    with place_for(is_nobody=is_root) as made:
        closed = made.workspace / "closed"
        closed.touch()
        if is_root:
            os.chown(closed, NOBODY, NOBODY)
        closed.chmod(0)
        places = (made.workspace, made.upper(), made.base / "work", made.workspace)
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, places)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.split() == ["closed"], done.stderr


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_paths_and_arguments_may_have_any_character(place, name):
    odd = place.base / name
    odd.mkdir()
    inner = Place(odd, place.is_nobody)
    script = 'printf %s "$1" > "$1"; cat < "$1"'
    done = subprocess.run(
        inner.command(["/bin/sh", "-ec", script, "sh", name]),
        cwd=inner.workspace,
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == os.fsencode(name), done.stderr
    assert changes(inner.upper()).names == {b"": {os.fsencode(name)}}
    assert not (inner.workspace / name).exists()


def test_a_view_ends_with_its_processes_however_they_end(place):
    process = subprocess.Popen(
        place.command(["/bin/sh", "-c", "echo ready; exec sleep 60"]), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        seen = [mount.place for mount in mounts(str(process.pid))]
        assert os.fsencode(place.workspace) in seen
        assert is_in_view(VIEW, str(process.pid))
        assert not is_in_view(VIEW[:-1], str(process.pid))
        assert not is_in_view(VIEW[1:], str(process.pid))
        assert not is_in_view(VIEW)
    finally:
        process.kill()
        process.communicate()
    assert not is_in_view(VIEW, str(process.pid))


def test_processes_of_a_view_can_be_ended_and_no_others(own_place):
    view = (own_place.workspace, own_place.upper(), own_place.base / "work", own_place.workspace)
    script = "setsid sleep 60 & setsid setsid sleep 60 & echo ready; sleep 60"
    other = subprocess.Popen(own_place.command(["sleep", "60"], "other"))
    process = subprocess.Popen(
        view_command(*view, ["/bin/sh", "-c", script], name=f"{VIEW}-test"),
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        end_view(f"{VIEW}-test")
        assert process.wait(timeout=10) == -signal.SIGKILL
        everybody = [pid for pid in os.listdir("/proc") if pid.isdigit()]
        assert not any(is_in_view(f"{VIEW}-test", pid) for pid in everybody)
        assert other.poll() is None
    finally:
        for one in (process, other):
            one.kill()
            one.communicate()


@pytest.mark.parametrize("is_in_view", [True, False])
def test_a_command_can_end_with_the_process_that_started_it(own_place, is_in_view):
    """With all that it has started, also in other process groups."""
    view = [str(path) for path in (own_place.workspace, own_place.upper(), own_place.base / "work")]
    script = "sleep 70 & setsid sh -c 'sleep 71 & sleep 72' & echo started; wait"
    starter = f"""
import os, subprocess, time
from pathlib import Path
from agent_checkpoint.workspace.fork.namespace_view import view_command
from agent_checkpoint.workspace.fork.supervised_command import supervised
lower, upper, work = map(Path, {view!r})
command = ["sh", "-c", {script!r}]
if {is_in_view}:
    command = view_command(lower, upper, work, lower, command, ends_with=os.getpid())
else:
    command = supervised(command)
print(subprocess.Popen(command).pid, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    try:
        assert process.stdout.readline() == "started\n"
        wait_until(lambda: len(below(pid)) == 5)
        pids = [pid, *below(pid)]
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_running, pids)))
    finally:
        process.kill()
        process.communicate()


def below(pid):
    """The descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found[1:]


def test_a_supervised_command_ends_what_it_leaves_behind(tmp_path):
    script = f"setsid sleep 60 & echo $! > {tmp_path}/pid; exit 3"
    assert subprocess.run(supervised(["sh", "-c", script])).returncode == 3
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_the_status_of_a_supervised_command_is_handed_on(script, status):
    assert subprocess.run(supervised(["sh", "-c", script])).returncode == status
    assert subprocess.run(supervised(["/no/such/command"]), stderr=-3).returncode == 127


def test_the_status_of_the_command_is_handed_on(place):
    assert place.run("/bin/sh", "-c", "exit 7").returncode == 7
    assert place.run("/bin/sh", "-c", "kill -9 $$").returncode == -signal.SIGKILL


def test_commands_that_cannot_be_run_are_told_as_a_shell_does(own_place):
    missing = own_place.run("/no/such/command")
    assert missing.returncode == 127
    assert "cannot run /no/such/command" in missing.stderr
    assert own_place.run(str(own_place.workspace)).returncode == 126


def test_without_a_view_nothing_is_run(own_place):
    ran = own_place.base / "ran"
    view = (
        own_place.workspace,
        own_place.workspace / "upper",
        own_place.base / "work",
        own_place.workspace,
    )
    done = subprocess.run(
        view_command(*view, ["touch", str(ran)]), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == NO_VIEW
    assert "one contains the other" in done.stderr
    program = [sys.executable, "-m", "agent_checkpoint.workspace.fork.namespace_view"]
    for arguments in ([], ["a", "b", "c", "d", "e", "0", "touch", str(ran)]):
        done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == NO_VIEW
        assert "usage" in done.stderr
    assert not ran.exists()


def test_files_of_the_workspace_are_not_taken_for_modules(own_place):
    for name in ("agent_checkpoint.py", "ctypes.py", "signal.py", "pathlib.py"):
        (own_place.workspace / name).write_text("raise SystemExit('taken')")
    assert own_place.shell("echo fine") == "fine\n"


def test_nothing_is_mounted_outside_though_mounts_are_shared(own_place):
    if os.geteuid() != 0:
        pytest.skip("only root can share mounts")
    base = str(own_place.base)
    subprocess.run(["mount", "--bind", base, base], check=True)
    try:
        subprocess.run(["mount", "--make-shared", base], check=True)
        process = subprocess.Popen(
            own_place.command(["/bin/sh", "-c", "echo ready; read go"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout.readline() == b"ready\n"
        assert mounts_below(own_place.base) == []
        process.communicate()
    finally:
        subprocess.run(["umount", "-R", base], check=True)


def test_the_command_has_ordinary_signals(own_place):
    ignored = int(own_place.shell("grep SigIgn /proc/self/status").split()[1], 16)
    # Others may be ignored by whoever runs the tests, as nohup does.
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


@pytest.mark.skipif(not LINUX, reason="private views exist on Linux only")
def test_a_process_with_threads_is_refused(tmp_path):
    script = (
        ENTER
        + """
import threading
from agent_checkpoint.errors import WorkspaceError
stop = threading.Event()
threading.Thread(target=stop.wait).start()
try:
    enter_private_view(lower, upper, work, at)
except WorkspaceError as error:
    print(error)
stop.set()
"""
    )
    places = [str(tmp_path / name) for name in ("lower", "upper", "work", "lower")]
    done = subprocess.run([sys.executable, "-c", script, *places], capture_output=True, text=True)
    assert (
        done.stdout == "A process with several threads cannot enter a private mount namespace.\n"
    ), done.stderr


def test_processes_that_see_a_mount_which_is_no_view_are_safe():
    with pytest.raises(UnsafeWorkspaceError, match="not the name of a private overlay mount"):
        end_view("agent-checkpoint")


def test_a_process_that_does_not_end_is_told(monkeypatch):
    monkeypatch.setattr(
        "agent_checkpoint.workspace.fork.namespace_view._processes_in", lambda name: ["1"]
    )
    monkeypatch.setattr(
        "agent_checkpoint.workspace.fork.namespace_view._kill", lambda name, pid: None
    )
    monkeypatch.setattr("agent_checkpoint.workspace.fork.namespace_view._KILL_SECONDS", 0.05)
    with pytest.raises(WorkspaceError, match="did not exit"):
        end_view(f"{VIEW}-test")
