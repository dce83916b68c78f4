"""Forks of a workspace: isolated from it and from each other, and gone when they are closed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, UnsafeWorkspaceError, Workspace, WorkspaceError
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.fork.drivers import best_driver
from agent_checkpoint.workspace.scan.reading import entry_reader
from tests.unit.workspace.disk import describe


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "app.py").write_text("print(1)\n")
    (root / "src" / "deep" / "lib.py").write_text("x = 1\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("src/app.py")
    (root / "empty").mkdir()
    for name in ("one", "two"):  # the same size and time
        (root / name).mkdir()
        (root / name / "version").write_text(name)
        os.utime(root / name / "version", (499162500, 499162500))
    time.sleep(0.05)  # what is as new as a look at it is read again at the next
    return root


@pytest.fixture
def workspace(repo: Path) -> Iterator[Workspace]:
    with Workspace(repo, CheckpointManager().store) as opened:
        yield opened


DRIVERS = ["overlay", "copy"]


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "overlay" and best_driver(tmp_path) != "overlay":
        pytest.skip("overlays cannot be mounted here")
    return str(request.param)


def mounts(*places: Path) -> "list[str]":
    """Return the mounts in some directories; other tests make others at the same time."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(str(place) in line for place in places)]


def change(root: Path) -> None:
    """Make every kind of change."""
    (root / "src" / "app.py").write_text("print(2)\n")
    (root / "src" / "deep" / "lib.py").unlink()
    (root / "src" / "deep").rmdir()
    (root / "src" / "deep").write_text("a file now")
    (root / "new" / "below").mkdir(parents=True)
    (root / "new" / "below" / "file").write_text("new")
    (root / "run").chmod(0o644)
    (root / "link").unlink()
    (root / "link").symlink_to("elsewhere")
    (root / "empty").rmdir()


class TestIsolation:
    def test_a_fork_begins_as_the_workspace_and_is_apart_from_it(
        self, workspace: Workspace, driver: str, tmp_path: Path
    ) -> None:
        before = describe(workspace.path)
        with workspace.hold() as tree, workspace.fork(tmp_path / "try", driver=driver) as fork:
            assert describe(fork.path) == before
            assert fork.snapshot().id == tree.id
            change(fork.path)
            assert describe(workspace.path) == before
            assert fork.snapshot().id != tree.id
        assert workspace.snapshot().id == tree.id

    def test_two_forks_edit_the_same_paths(
        self, workspace: Workspace, driver: str, tmp_path: Path
    ) -> None:
        with workspace.hold():
            one = workspace.fork(tmp_path / "one", driver=driver)
            two = workspace.fork(tmp_path / "two", driver=driver)
            (one.path / "src" / "app.py").write_text("one")
            (two.path / "src" / "app.py").write_text("two")
            assert (one.path / "src" / "app.py").read_text() == "one"
            assert (two.path / "src" / "app.py").read_text() == "two"

    def test_without_a_hold_later_changes_of_the_workspace_do_not_show(
        self, workspace: Workspace, driver: str, tmp_path: Path
    ) -> None:
        before = describe(workspace.path)
        with workspace.fork(tmp_path / "try", driver=driver) as fork:
            change(workspace.path)
            assert describe(fork.path) == before

    def test_a_fork_may_begin_as_an_earlier_tree(
        self, workspace: Workspace, driver: str, tmp_path: Path
    ) -> None:
        before, tree = describe(workspace.path), workspace.snapshot()
        change(workspace.path)
        with workspace.fork(tmp_path / "try", tree, driver=driver) as fork:
            assert describe(fork.path) == before

    def test_forks_of_one_tree_share_a_base_which_goes_with_the_last(
        self, workspace: Workspace, tmp_path: Path, own_home: Path
    ) -> None:
        if best_driver(tmp_path) != "overlay":
            pytest.skip("overlays cannot be mounted here")
        bases = own_home / "store" / "bases"
        one = workspace.fork(tmp_path / "one", driver="overlay")
        two = workspace.fork(tmp_path / "two", driver="overlay")
        assert len(list(bases.iterdir())) == 1
        one.close()
        assert (two.path / "run").exists()
        two.close()
        assert list(bases.iterdir()) == []


def write_in_place(root: Path) -> None:
    file = root / "src" / "app.py"
    times = file.stat()
    file.write_text("print(3)\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_file(root: Path) -> None:
    new, file = root / "new", root / "src" / "app.py"
    new.write_text("print(4)\n")
    shutil.copystat(file, new)
    new.replace(file)


def swap_directories(root: Path) -> None:
    """Exchange two directories; neither time of a file in them changes."""
    for old, new in (("one", "swapped"), ("two", "one"), ("swapped", "two")):
        shutil.move(root / old, root / new)  # a rename, unless an overlay refuses it


class TestSnapshots:
    def test_a_fork_is_captured_exactly_at_every_step(
        self, workspace: Workspace, driver: str, tmp_path: Path
    ) -> None:
        with workspace.hold() as tree, workspace.fork(tmp_path / "try", driver=driver) as fork:
            change(fork.path)
            for again in range(3):
                fresh = Workspace(fork.path, CheckpointManager().store, watch=False)
                assert fork.snapshot().id == fresh.snapshot().id
                if again == 0:  # what was made is gone again, and leaves nothing in the layer
                    (fork.path / "new" / "below" / "file").unlink()
                    (fork.path / "new" / "below").rmdir()
                else:
                    fork.restore(tree)
            assert fork.snapshot().id == tree.id

    def test_only_what_changed_is_read(
        self,
        workspace: Workspace,
        driver: str,
        tmp_path: Path,
        reads: "list[bytes]",
    ) -> None:
        with workspace.hold(), workspace.fork(tmp_path / "try", driver=driver) as fork:
            del reads[:]
            (fork.path / "src" / "app.py").write_text("other")
            fork.snapshot()
            assert set(reads) == {b"app.py"}

    def test_nothing_is_read_if_nothing_changed(
        self,
        workspace: Workspace,
        driver: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*arguments: object) -> object:
            raise AssertionError(arguments)

        with workspace.fork(tmp_path / "try", driver=driver) as fork:
            for name in ("read_whole", "_read_link"):
                monkeypatch.setattr(entry_reader, name, fail)
            assert fork.snapshot(full=True).id == fork.tree.id

    @pytest.mark.parametrize(
        "alter", [write_in_place, replace_file, swap_directories], ids=lambda each: each.__name__
    )
    def test_what_has_size_and_mtime_of_the_original_is_read(
        self, workspace: Workspace, driver: str, tmp_path: Path, alter: Callable[[Path], None]
    ) -> None:
        with workspace.fork(tmp_path / "try", driver=driver) as fork:
            alter(fork.path)
            fresh = Workspace(fork.path, CheckpointManager().store, watch=False)
            assert fork.snapshot().id == fresh.snapshot().id != fork.tree.id

    def test_what_was_written_during_the_copy_is_read(
        self, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app, read = workspace.path / "src" / "app.py", os.read

        def write_first(fd: int, size: int) -> bytes:
            if os.readlink(f"/proc/self/fd/{fd}") == str(app):
                app.write_text("print(9)\n")
            return read(fd, size)

        with workspace.hold():
            with monkeypatch.context() as patch:
                patch.setattr(os, "read", write_first)
                fork = workspace.fork(tmp_path / "try", driver="copy")
            with fork:
                fresh = Workspace(fork.path, CheckpointManager().store, watch=False)
                assert fork.snapshot().id == fresh.snapshot().id

    def test_the_last_state_outlives_the_fork(
        self, workspace: Workspace, driver: str, tmp_path: Path
    ) -> None:
        fork = workspace.fork(tmp_path / "try", driver=driver)
        change(fork.path)
        after = describe(fork.path)
        fork.close()
        saved = workspace.store.head(fork.key)
        assert saved is not None
        with workspace.fork(
            tmp_path / "again",
            ObjectRef(saved.parts["workspace"]["$object"], workspace.store.backend),
        ) as again:
            assert describe(again.path) == after


class TestClosing:
    def test_nothing_is_left(
        self, workspace: Workspace, driver: str, tmp_path: Path, own_home: Path
    ) -> None:
        table, beside = mounts(tmp_path), sorted(tmp_path.iterdir())
        with pytest.raises(RuntimeError), workspace.fork(tmp_path / "try", driver=driver) as fork:
            change(fork.path)
            raise RuntimeError
        assert sorted(tmp_path.iterdir()) == beside
        assert mounts(tmp_path) == table
        for folder in ("forks", "bases"):
            left = own_home / "store" / folder
            assert not left.exists() or list(left.iterdir()) == []

    def test_what_a_killed_process_left_is_taken_away(
        self, repo: Path, driver: str, tmp_path: Path, own_home: Path
    ) -> None:
        program = (
            "import os, signal, sys\n"
            "from agent_checkpoint import CheckpointManager, Workspace\n"
            "workspace = Workspace(sys.argv[1], CheckpointManager().store)\n"
            "fork = workspace.fork(sys.argv[2], driver=sys.argv[3])\n"
            "(fork.path / 'mine').write_text('x')\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        table = mounts(tmp_path)
        arguments = [sys.executable, "-c", program, str(repo), str(tmp_path / "try"), driver]
        assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
        Workspace(repo, CheckpointManager().store).close()
        assert mounts(tmp_path) == table
        assert not list(tmp_path.glob("agent-checkpoint-*"))
        assert not any((own_home / "store" / "forks").iterdir())
        # What a copy holds is the user's: nobody saved it.
        assert (tmp_path / "try" / "mine").exists() == (driver == "copy")

    def test_forks_that_nobody_holds_are_closed_at_the_end_of_a_hold(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        with workspace.hold():
            workspace.fork(tmp_path / "try")
        assert not (tmp_path / "try").exists()


class TestRefusals:
    def test_a_place_that_is_taken(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "try").mkdir()
        (tmp_path / "try" / "file").touch()
        for driver in ("auto", *DRIVERS):
            with pytest.raises(UnsafeWorkspaceError, match="already exists"):
                workspace.fork(tmp_path / "try", driver=driver)
        assert os.listdir(tmp_path / "try") == ["file"]

    def test_a_place_in_the_workspace_or_around_it(self, workspace: Workspace) -> None:
        for path in (workspace.path, workspace.path / "src" / "try", workspace.path.parent):
            with pytest.raises(UnsafeWorkspaceError):
                workspace.fork(path)

    def test_a_driver_that_does_not_exist(self, workspace: Workspace, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="driver must be 'auto', 'overlay', "):
            workspace.fork(tmp_path / "try", driver="magic")

    def test_a_restore_while_forks_read_through(self, workspace: Workspace) -> None:
        with workspace.hold() as tree, pytest.raises(WorkspaceError, match="is held"):
            workspace.restore(tree)

    def test_two_holds(self, workspace: Workspace) -> None:
        again = workspace.hold()
        with workspace.hold(), pytest.raises(WorkspaceError, match="already held"):
            again.__enter__()
        with workspace.hold():
            pass
