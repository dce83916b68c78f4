"""What works here is found out by doing it; what killed processes leave is taken away."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.workspace.fork import drivers
from agent_checkpoint.workspace.fork.drivers import (
    begin_fork,
    best_driver,
    can_view,
    clean_up,
    end_fork,
)
from agent_checkpoint.workspace.fork.namespace_view import view_command
from agent_checkpoint.workspace.fork.overlay_mount import (
    is_called,
    is_mounted,
    mount_overlay,
    mounts,
    remove_tree,
    unmount,
)
from tests.unit.workspace.fork.test_namespace_view import BECOME_NOBODY, is_running, wait_until
from tests.unit.workspace.fork.test_overlay_mount import ODD_NAMES, no_mounts
from tests.unit.workspace.fork.test_tree_copy import loop_disk

LINUX = sys.platform.startswith("linux")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(drivers, "_support", {})


@pytest.fixture
def mountable(tmp_path):
    """A directory where overlays can be mounted; nothing of it is mounted in the end."""
    reason = no_mounts(tmp_path)
    if reason:
        pytest.skip(reason)
    yield tmp_path
    left = [mount.place for mount in mounts() if mount.place.startswith(os.fsencode(tmp_path))]
    for place in reversed(left):
        unmount(Path(os.fsdecode(place)))
    assert left == []


def everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_the_best_driver_is_one_that_works(tmp_path):
    expected = "copy" if no_mounts(tmp_path) else "overlay"
    before = os.listdir(tmp_path)
    assert best_driver(tmp_path) == expected
    assert os.listdir(tmp_path) == before


def test_an_overlay_is_no_place_for_the_changes_of_another(mountable):
    (mountable / "lower").mkdir()
    (mountable / "target").mkdir()
    mount_overlay(*(mountable / name for name in ("lower", "upper", "work", "target")))
    try:
        assert best_driver(mountable / "target") == "copy"
        assert not can_view(mountable / "target")
        assert os.listdir(mountable / "target") == []
    finally:
        unmount(mountable / "target")


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_without_mounts_blocks_are_shared_if_they_can_be(tmp_path, monkeypatch, kind):
    with loop_disk(kind, tmp_path, 400) as disk:
        assert best_driver(disk) == "overlay"
        monkeypatch.setattr(drivers, "_support", {})
        monkeypatch.setattr(drivers, "_may_mount", lambda probe: False)
        assert best_driver(disk) == "reflink"


def in_a_process(script, *arguments, before=()):
    done = subprocess.run(
        [*before, sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


PROBE = """
import os, sys
from pathlib import Path
from agent_checkpoint.workspace.fork import drivers
from agent_checkpoint.workspace.fork.namespace_view import enter_private_view
import logging, tempfile, subprocess, random, shutil  # which nobody may not be able to read
%s
print(drivers.best_driver(Path(sys.argv[1])), drivers._probe_drivers(Path(sys.argv[1])).mount)
"""


@pytest.mark.skipif(not LINUX, reason="mounts are for Linux")
def test_who_may_not_mount_gets_copies():
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    try:
        assert in_a_process(PROBE % BECOME_NOBODY, place) == ["copy", "False"]
        assert os.listdir(place) == []
    finally:
        remove_tree(place)


@pytest.mark.skipif(not LINUX, reason="mounts are for Linux")
def test_who_is_root_only_in_a_namespace_gets_copies(tmp_path):
    """Private views work there, but a mount for all to see does not."""
    unshare = ["unshare", "-Ur"]
    refused = subprocess.run([*unshare, "true"], capture_output=True, text=True)
    if refused.returncode != 0:
        pytest.skip(f"user namespaces are refused: {refused.stderr.strip()}")
    found = in_a_process(
        PROBE % "print(drivers.can_view(Path(sys.argv[1])))", tmp_path, before=unshare
    )
    assert found == [str(can_view(tmp_path)), "copy", "False"]


def test_what_was_found_out_is_remembered(tmp_path, monkeypatch):
    first = best_driver(tmp_path), can_view(tmp_path)
    monkeypatch.setattr(drivers, "_probe_view", None)
    (tmp_path / "other").mkdir()
    assert (best_driver(tmp_path / "other"), can_view(tmp_path)) == first


def test_a_probe_of_who_was_killed_is_removed(tmp_path):
    (tmp_path / ".agent-checkpoint-probe-old/lower").mkdir(parents=True)
    (tmp_path / ".agent-checkpoint-probe-new").mkdir()
    os.utime(tmp_path / ".agent-checkpoint-probe-old", (0, 0))
    best_driver(tmp_path)
    assert os.listdir(tmp_path) == [".agent-checkpoint-probe-new"]


@pytest.mark.parametrize("name", ["python", "shell", "time"])
def test_a_probe_that_fails_means_no(tmp_path, monkeypatch, name):
    if name == "python":
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    elif name == "shell":
        monkeypatch.setattr(drivers, "_PROBE_COMMAND", "exit 1")
    else:
        monkeypatch.setattr(drivers, "_PROBE_SECONDS", 0.001)
    assert not can_view(tmp_path)
    assert best_driver(tmp_path) in ("reflink", "copy")
    assert os.listdir(tmp_path) == []


def test_a_view_that_tells_wrongly_what_changed_is_not_used(tmp_path, monkeypatch):
    """Such as one that does not mark a directory which replaces another."""
    monkeypatch.setattr(drivers, "_PROBE_COMMAND", "echo more >> file; mkdir new; : > folder/x")
    assert not can_view(tmp_path)


def test_no_forks_are_made_where_nothing_is(tmp_path):
    with pytest.raises(WorkspaceError, match=r"Cannot create forks in .*missing'"):
        best_driver(tmp_path / "missing")


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_fork_leaves_nothing(mountable, name):
    base = mountable / name
    (base / "lower").mkdir(parents=True)
    (base / "lower/file").write_text("base")
    before = everything(mountable)
    fork = begin_fork(mountable / "records", base / "private", base / "fork")
    mount_overlay(base / "lower", fork.upper, fork.work, base / "fork", name=fork.mount_name)
    (base / "fork" / name).write_text("fork")
    assert is_mounted(base / "fork", name=fork.mount_name)
    assert clean_up(mountable / "records") == []
    assert (base / "fork" / name).read_text() == "fork"
    end_fork(fork)
    left = [path for path in everything(mountable) if path not in before]
    assert sorted(left) == sorted([os.path.join(name, "private"), "records"])
    end_fork(fork)  # twice is fine


def test_what_is_at_the_target_stays(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/kept").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        with pytest.raises(UnsafeWorkspaceError, match="not an empty directory"):
            begin_fork(tmp_path / "records", tmp_path / "private", tmp_path / name)
    with pytest.raises(WorkspaceError, match="Cannot create the fork"):
        begin_fork(tmp_path / "records", tmp_path / "private", tmp_path / "no/such/parent")
    end_fork(begin_fork(tmp_path / "records", tmp_path / "private", tmp_path / "empty"))
    fork = begin_fork(tmp_path / "records", tmp_path / "private", tmp_path / "made")
    (tmp_path / "made/theirs").touch()
    end_fork(fork)
    assert everything(tmp_path) == [
        *("empty", "file", "full", "full/kept", "made", "made/theirs", "private", "records")
    ]


def test_a_copy_that_is_whole_is_moved_to_its_place(tmp_path):
    fork = begin_fork(tmp_path / "records", tmp_path / "private")
    fork.files.mkdir()
    (fork.files / "file").touch()
    fork.files.rename(tmp_path / "copy")
    end_fork(fork)
    assert everything(tmp_path) == ["copy", "copy/file", "private", "records"]


OWNER = """
import os, signal, sys, time
from pathlib import Path
from agent_checkpoint.workspace.fork import drivers, overlay_mount
base, stage = Path(sys.argv[1]), sys.argv[2]

def reached(here):
    if here == stage:
        print("reached", flush=True)
        if stage == "waiting":
            time.sleep(120)
        os.kill(os.getpid(), signal.SIGKILL)

def stop_at(place, name, here, before=False):
    real = getattr(place, name)
    def stopping(*arguments, **options):
        if before:
            reached(here)
        result = real(*arguments, **options)
        reached(here)
        return result
    setattr(place, name, stopping)

stop_at(os, "write", "before the record is written", before=True)
stop_at(os, "fsync", "with a record")
real_mkdir = os.mkdir
def mkdir(path, *arguments, **options):
    real_mkdir(path, *arguments, **options)
    if "-fork-" in Path(path).name:
        reached("with a private directory")
os.mkdir = mkdir
fork = drivers.begin_fork(base / "records", base / "private", base / "fork")
reached("begun")
stop_at(overlay_mount, "_mount", "mounted")
mount = overlay_mount.mount_overlay
mount(base / "lower", fork.upper, fork.work, base / "fork", name=fork.mount_name)
(base / "fork/file").write_text("fork")
(base / "fork/folder").mkdir()
(base / "fork/folder").chmod(0)
file = open(base / "fork/open", "w")
reached("with open files")
reached("waiting")
stop_at(drivers, "unmount", "unmounted")
real_remove = drivers.remove_tree
def remove_half(path):
    overlay_mount.remove_tree(path / "upper")
    reached("half removed")
    real_remove(path)
    reached("removed")
drivers.remove_tree = remove_half
drivers.end_fork(fork)
"""
STAGES = [
    "before the record is written",
    "with a record",
    "with a private directory",
    "begun",
    "mounted",
    "with open files",
    "unmounted",
    "half removed",
    "removed",
]


@pytest.fixture
def forkable(mountable):
    (mountable / "lower").mkdir()
    (mountable / "lower/file").write_text("base")
    return mountable


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_killed_process_leaves_is_taken_away(forkable, monkeypatch, stage):
    killed = subprocess.run(
        [sys.executable, "-c", OWNER, str(forkable), stage],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout == "reached\n"
    if stage == "mounted":
        assert is_mounted(forkable / "fork")
    monkeypatch.setattr(drivers, "_TORN_AFTER", -1.0)
    assert clean_up(forkable / "records") == []
    assert not any(mount.place == os.fsencode(forkable / "fork") for mount in mounts())
    left = everything(forkable)
    assert [path for path in left if path != "private"] == ["lower", "lower/file", "records"]
    assert (forkable / "lower/file").read_text() == "base"


def test_forks_of_the_living_are_left_alone(forkable):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(forkable), "waiting"], stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout.readline() == b"reached\n"
        assert clean_up(forkable / "records") == []
        assert (forkable / "fork/file").read_text() == "fork"
        os.kill(owner.pid, signal.SIGKILL)
        # Not waited for yet: a dead process that its parent has forgotten is dead.
        wait_until(lambda: not is_running(owner.pid))
        assert clean_up(forkable / "records") == []
        assert not is_mounted(forkable / "fork")
        assert everything(forkable) == ["lower", "lower/file", "private", "records"]
    finally:
        owner.kill()
        owner.communicate()


def test_several_clean_up_at_once(forkable):
    for _ in range(3):
        subprocess.run(
            [sys.executable, "-c", OWNER, str(forkable), "with a private directory"],
            capture_output=True,
        )
    script = """
import sys
from pathlib import Path
from agent_checkpoint.workspace.fork.drivers import clean_up
print(clean_up(Path(sys.argv[1])))
"""
    cleaning = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(forkable / "records")], stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    assert [process.communicate()[0] for process in cleaning] == [b"[]\n"] * 4
    assert everything(forkable) == ["lower", "lower/file", "private", "records"]


VIEW_OWNER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from agent_checkpoint.workspace.fork.drivers import begin_fork
from agent_checkpoint.workspace.fork.namespace_view import view_command
base = Path(sys.argv[1])
fork = begin_fork(base / "records", base / "private")
lower = base / "lower"
script = "echo fork > file; setsid sleep 120 & setsid sh -c 'sleep 120' & echo ready; sleep 120"
command = ["/bin/sh", "-c", script]
command = view_command(lower, fork.upper, fork.work, lower, command, name=fork.view_name)
child = subprocess.Popen(command, cwd=lower, stdout=subprocess.PIPE)
assert child.stdout.readline() == b"ready\\n"
print(fork.record.stem, child.pid, flush=True)
time.sleep(120)
"""


def test_views_of_a_killed_process_end_with_all_in_them(tmp_path):
    if not can_view(tmp_path):
        pytest.skip("views are refused")
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower/file").write_text("base")
    owner = subprocess.Popen(
        [sys.executable, "-c", VIEW_OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    bystander = subprocess.Popen(
        view_command(*(tmp_path / name for name in ("lower", "up", "wo", "lower")), ["sleep", "60"])
    )
    try:
        token, pid = owner.stdout.readline().split()
        name = f"agent-checkpoint-view-{token}"
        assert clean_up(tmp_path / "records") == []
        assert is_running(pid)
        owner.kill()
        owner.wait()
        assert is_running(pid)
        assert clean_up(tmp_path / "records") == []
        assert not is_running(pid)
        for process in filter(str.isdigit, os.listdir("/proc")):
            assert not any(is_called(mount, name) for mount in mounts(process))
        assert bystander.poll() is None
    finally:
        for process in (owner, bystander):
            process.kill()
            process.communicate()
    assert os.listdir(tmp_path / "private") == os.listdir(tmp_path / "records") == []
    assert (tmp_path / "lower/file").read_text() == "base"


def test_nobody_takes_the_fork_away_that_they_are_in(tmp_path):
    if not can_view(tmp_path):
        pytest.skip("views are refused")
    (tmp_path / "lower").mkdir()
    fork = begin_fork(tmp_path / "records", tmp_path / "private")
    forget_owner(fork.record)
    script = """
import sys
from pathlib import Path
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.fork.drivers import ForkPaths, clean_up, end_fork
record, private = map(Path, sys.argv[1:3])
print(clean_up(record.parent))
try:
    end_fork(ForkPaths(record, private, None, False))
except WorkspaceError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(fork.record), str(fork.private)]
    lower = tmp_path / "lower"
    command = view_command(lower, fork.upper, fork.work, lower, command, name=fork.view_name)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("[]\nThis process runs in the fork "), done.stderr
    assert fork.record.exists()
    assert fork.private.exists()
    assert clean_up(tmp_path / "records") == []
    assert not fork.private.exists()


def test_a_process_in_a_fork_leaves_the_others_to_those_outside(tmp_path, own_home):
    if not can_view(tmp_path):
        pytest.skip("views are refused")
    lower, forks = tmp_path / "lower", own_home / "store/forks"
    lower.mkdir()
    forks.parent.mkdir()
    left = begin_fork(forks, tmp_path / "private")
    forget_owner(left.record)
    places = (lower, tmp_path / "up", tmp_path / "wo", lower)
    module = "agent_checkpoint.workspace.fork.fork_directory"
    command = [sys.executable, "-c", f"import {module} as all; all.clean_up_all()"]
    subprocess.run(view_command(*places, command), check=True, timeout=60)
    assert left.record.exists()
    subprocess.run(command, check=True, timeout=60)
    assert not left.record.exists()


def forget_owner(record, **changes):
    """Make a record look as if its process were dead, or whatever is said."""
    found = json.loads(record.read_text())
    found["owner"].update(changes or {"started": "1"})
    record.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({"started": "1"}, True),
        ({"pid": "4194303", "started": "1"}, True),
        ({"boot": "another"}, True),
        ({"boot": "here pid:[1]"}, False),
        ({"host": "another", "boot": "another"}, False),
        ({"pid": "no number"}, False),
        ({"pid": "9" * 40}, False),
    ],
    ids=str,
)
def test_only_forks_of_who_is_dead_for_sure_are_taken(tmp_path, changes, is_taken):
    fork = begin_fork(tmp_path / "records", tmp_path / "private")
    if "boot" in changes:
        boot = json.loads(fork.record.read_text())["owner"]["boot"].split()
        changes = {**changes, "boot": changes["boot"].replace("here", boot[0] if boot else "")}
    forget_owner(fork.record, **changes)
    assert clean_up(tmp_path / "records") == []
    assert fork.private.exists() is not is_taken
    assert fork.record.exists() is not is_taken


def test_a_forged_record_can_do_no_harm(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    fork = begin_fork(tmp_path / "records", tmp_path / "private")
    forget_owner(fork.record)
    genuine = json.loads(fork.record.read_text())
    token = "0123456789abcdef"
    forged = fork.record.with_name(f"{token}.json")
    named = tmp_path / f"agent-checkpoint-fork-{token}"
    named.symlink_to(precious)
    for change in (
        {"private": str(precious)},
        {"private": str(fork.private)},  # of another record
        {"private": str(named)},  # a link
        {"private": f"{named}/../precious"},
        {"private": named.name},
        {"private": 5},
        {"private": None, "target": str(precious)},
        {
            "target": str(precious),
            "made_target": True,
            "private": str(tmp_path / "no" / named.name),
        },
        {"target": "nul\0", "private": str(tmp_path / "no" / named.name)},
        {"owner": []},
        {"owner": None},
    ):
        forged.write_text(json.dumps({**genuine, **change}))
        fork.record.write_text("{}")
        clean_up(tmp_path / "records")
        assert (precious / "file").exists(), change
        assert fork.private.exists(), change
    for text in ("[]", "null", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass")):
        forged.write_bytes(text if isinstance(text, bytes) else text.encode())
        clean_up(tmp_path / "records")
    (tmp_path / "records/notes.json").write_text("mine")
    (tmp_path / "records/notes").write_text("mine")
    clean_up(tmp_path / "records")
    assert (tmp_path / "records/notes.json").exists()
    assert (precious / "file").exists()


def test_a_mount_of_somebody_else_at_the_target_stays(forkable):
    fork = begin_fork(forkable / "records", forkable / "private", forkable / "fork")
    mount_overlay(forkable / "lower", forkable / "upper", forkable / "work", forkable / "fork")
    forget_owner(fork.record)
    try:
        assert clean_up(forkable / "records") == []
        assert is_mounted(forkable / "fork")
        assert (forkable / "fork/file").read_text() == "base"
    finally:
        unmount(forkable / "fork")


def test_a_record_that_was_torn_is_forgotten_after_a_while(tmp_path):
    (tmp_path / "records").mkdir()
    torn = tmp_path / "records/0123456789abcdef.json"
    torn.touch()
    assert clean_up(tmp_path / "records") == []
    assert torn.exists()
    os.utime(torn, (time.time() - 100, time.time() - 100))
    assert clean_up(tmp_path / "records") == []
    assert not torn.exists()


def test_what_cannot_be_taken_away_is_told_and_stays_known(tmp_path, monkeypatch):
    fork = begin_fork(tmp_path / "records", tmp_path / "private")
    other = begin_fork(tmp_path / "records", tmp_path / "private")
    for one in (fork, other):
        forget_owner(one.record)
    real = drivers.remove_tree

    def refuse(path):
        if path == fork.private:
            raise OSError(16, "Device or resource busy")
        real(path)

    monkeypatch.setattr(drivers, "remove_tree", refuse)
    (trouble,) = clean_up(tmp_path / "records")
    assert trouble == f"Cannot remove the fork {str(fork.private)!r}: Device or resource busy."
    assert fork.record.exists()
    assert not other.record.exists()
    assert not other.private.exists()
    monkeypatch.undo()
    assert clean_up(tmp_path / "records") == []
    assert os.listdir(tmp_path / "private") == []


def test_without_records_there_is_nothing_to_do(tmp_path):
    assert clean_up(tmp_path / "missing") == []
    (tmp_path / "file").touch()
    (trouble,) = clean_up(tmp_path / "file")
    assert "Cannot read" in trouble
