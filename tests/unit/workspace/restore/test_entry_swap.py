"""Edits in the middle of a restore's step: between the look and the rename, and after it."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.errors import RestoreIncompleteError
from agent_checkpoint.workspace.restore import atomic_rename, entry_swap
from agent_checkpoint.workspace.restore.atomic_rename import (
    Entry,
    ExchangeUnsupported,
    exchange,
    put,
    take,
)
from agent_checkpoint.workspace.restore.plan import Plan
from agent_checkpoint.workspace.tree.snapshot import Tree
from tests.unit.workspace.disk import IS_ROOT, File, Link, describe, make, without_syncs

THINGS = {
    b"d/replaced": File(b"target"),
    b"d/linked": Link(b"target"),
    b"d/added": File(b"target"),
    b"d/other": File(b"target"),
}
LEFT = "it changed during the restore"
Act = Callable[[], Any]


@pytest.fixture
def root() -> Iterator[Path]:
    with TemporaryDirectory(dir=without_syncs()) as name:
        root = Path(name, "root")
        root.mkdir()
        make(root, THINGS)
        yield root


@pytest.fixture
def ws(root: Path, manager: CheckpointManager) -> Iterator[Workspace]:
    """A workspace that was captured and then changed in every way."""
    with Workspace(root, manager.store) as workspace:
        workspace.snapshot()
        (root / "d/replaced").write_text("present")
        (root / "d/deleted").write_text("present")
        (root / "d/other").write_text("present")
        (root / "d/added").unlink()
        (root / "d/linked").unlink()
        (root / "d/linked").symlink_to("present")
        yield workspace


@pytest.fixture
def tree(ws: Workspace) -> Tree:
    found = ws.store.head(ws.key)
    assert found is not None
    return ws.restore(found.id, dry_run=True).tree


# -- what the system can do ----------------------------------------------------------------------


def everything(rename: Any) -> Any:
    return rename


def no_exchange(rename: Any) -> Any:
    def refuse(source: Entry, target: Entry, flags: int) -> None:
        if flags == atomic_rename._EXCHANGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        rename(source, target, flags)

    return refuse


def no_flags(rename: Any) -> Any:
    def refuse(source: Entry, target: Entry, flags: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    return refuse


def mounted(rename: Any) -> Any:
    """Return a rename for which the workspace's directories are each a file system."""

    def refuse(source: Entry, target: Entry, flags: int) -> None:
        if os.fstat(source.fd).st_ino != os.fstat(target.fd).st_ino:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target, flags)

    return refuse


def mounted_without_exchange(rename: Any) -> Any:
    return mounted(no_exchange(rename))


SYSTEMS = [everything, no_exchange, no_flags, mounted, mounted_without_exchange]


class Renames:
    """Does something right before and right after the first rename of a name that happens."""

    def __init__(self, patch: pytest.MonkeyPatch, system: Any) -> None:
        self._rename = system(atomic_rename._rename)
        self._plans: dict[bytes, list[Optional[Act]]] = {}
        patch.setattr(atomic_rename, "_rename", self._call)
        if system is no_flags:
            for name in ("link", "rename"):
                patch.setattr(os, name, self._plain(getattr(os, name)))

    def around(self, path: Path, before: Optional[Act] = None, after: Optional[Act] = None) -> None:
        self._plans[os.fsencode(path.name)] = [before, after]

    def _call(self, source: Entry, target: Entry, flags: int) -> None:
        with self._around(source.name, target.name):
            self._rename(source, target, flags)

    def _plain(self, call: Any) -> Any:
        def around(source: bytes, target: bytes, **where: Any) -> None:
            with self._around(source, target):
                call(source, target, **where)

        return around

    @contextmanager
    def _around(self, *names: bytes) -> Iterator[None]:
        plan = next((self._plans[name] for name in names if name in self._plans), [None, None])
        before, plan[0] = plan[0], None
        if before is not None:
            before()
        yield
        after, plan[1] = plan[1], None
        if after is not None:
            after()


@pytest.fixture(params=SYSTEMS)
def renames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Renames:
    return Renames(monkeypatch, request.param)


# -- edits ---------------------------------------------------------------------------------------


def remove(path: Path) -> None:
    if path.is_symlink() or path.exists():
        path.unlink()


def written(path: Path, text: str) -> None:
    remove(path) if path.is_symlink() else None
    path.write_text(text)


def renamed(path: Path, text: str) -> None:
    new = path.parent.parent.with_name("written elsewhere")
    new.write_text(text)
    new.rename(path)


def linked(path: Path, text: str) -> None:
    remove(path)
    path.symlink_to(text)


def made_a_directory(path: Path, text: str) -> None:
    remove(path)
    path.mkdir()
    (path / "within").write_text(text)


def with_another_mode(path: Path, text: str) -> None:
    written(path, text)
    path.chmod(0o700)


EDITS = [written, renamed, linked, made_a_directory, with_another_mode]


def texts(root: Path, path: str) -> "set[str]":
    """What is at a path: a content, what a link says, or what is in the one file of a directory."""
    found = {
        name: entry for name, entry in describe(root).items() if name.startswith(path.encode())
    }
    return {entry.content.decode() for entry in found.values() if entry.content}


def check_rest(ws: Workspace, path: str) -> None:
    """All else was restored, and nothing of ours is left."""
    found = describe(ws.path)
    for name, thing in THINGS.items():
        if name.decode() != path:
            content = thing.target if isinstance(thing, Link) else thing.content
            assert found[name].content == content
    assert path == "d/deleted" or b"d/deleted" not in found
    assert not [name for name in found if b"agent-checkpoint" in name]


PATHS = ["d/replaced", "d/linked", "d/deleted", "d/added"]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("path", PATHS)
def test_an_edit_right_before_the_rename_is_left_alone(
    ws: Workspace, tree: Tree, renames: Renames, path: str, edit: Any
) -> None:
    renames.around(ws.path / path, lambda: edit(ws.path / path, "edit"))
    plan = ws.restore(tree)
    assert texts(ws.path, path) == {"edit"}
    assert path in plan.leave
    assert plan.kept == {}
    check_rest(ws, path)


@pytest.mark.parametrize("edit", [written, renamed, linked, made_a_directory])
@pytest.mark.parametrize("path", ["d/replaced", "d/deleted"])
def test_an_edit_before_the_rename_and_one_after_it(
    ws: Workspace, tree: Tree, renames: Renames, path: str, edit: Any
) -> None:
    """The later one has the place; the other one is kept, and told of."""
    place = ws.path / path
    renames.around(place, lambda: written(place, "first"), lambda: edit(place, "second"))
    plan = ws.restore(tree)
    assert set(plan.leave) >= {path}
    ((of, kept),) = plan.kept.items()
    assert (of, kept) == (path, f"{path}.kept-1")
    assert texts(ws.path, f"{path}.kept-1") == {"first"}
    assert texts(ws.path, path) == {"first", "second"}
    assert f"kept {path} as {kept}" in str(plan)
    check_rest(ws, path)


@pytest.mark.parametrize("path", ["d/replaced", "d/deleted"])
def test_names_of_kept_versions_are_free_ones(
    ws: Workspace, tree: Tree, renames: Renames, path: str
) -> None:
    place = ws.path / path

    def take_names() -> None:
        for number in (1, 2):
            place.with_name(f"{place.name}.kept-{number}").write_text("mine")

    renames.around(
        place,
        lambda: (written(place, "first"), take_names()),
        lambda: renamed(place, "second"),
    )
    assert ws.restore(tree).kept == {path: f"{path}.kept-3"}
    assert texts(ws.path, f"{path}.kept-3") == {"first"}


@pytest.mark.parametrize("path", ["d/replaced", "d/deleted"])
def test_a_directory_that_goes_with_an_edit_in_our_hands(
    ws: Workspace, tree: Tree, renames: Renames, path: str
) -> None:
    place, away = ws.path / path, ws.path.with_name("away")

    def move_away() -> None:
        place.parent.rename(away)

    renames.around(place, lambda: written(place, "edit"), move_away)
    try:
        kept = ws.restore(tree).kept
    except Exception as error:  # other files cannot be restored where there is no directory
        kept = getattr(error, "kept", {})
    assert kept == {}
    assert (away / place.name).read_text() == "edit"


@pytest.mark.parametrize("path", ["d/replaced", "d/linked", "d/deleted"])
def test_what_is_removed_right_before_the_rename(
    ws: Workspace, tree: Tree, renames: Renames, path: str
) -> None:
    renames.around(ws.path / path, lambda: remove(ws.path / path))
    plan = ws.restore(tree)
    assert plan.leave == {}
    assert describe(ws.path).keys() == {b"d", *THINGS}


def test_an_edit_right_after_the_rename_is_no_failure(
    ws: Workspace, tree: Tree, renames: Renames
) -> None:
    place = ws.path / "d/replaced"
    renames.around(place, None, lambda: renamed(place, "edit"))
    plan = ws.restore(tree)
    assert set(plan.leave) == {"d/replaced"}
    assert place.read_text() == "edit"


def test_an_edit_of_the_same_size_and_time(ws: Workspace, tree: Tree, renames: Renames) -> None:
    """As long as a file is as new as the look at it, only the content tells."""
    place = ws.path / "d/replaced"

    def edit() -> None:
        found = place.stat()
        written(place, "pRESENT")
        os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))

    future = time.time() + 3600  # says nothing
    os.utime(place, (future, future))
    renames.around(place, edit)
    assert set(ws.restore(tree).leave) == {"d/replaced"}
    assert place.read_text() == "pRESENT"


def test_a_mode_is_not_set_on_another_file(
    ws: Workspace, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ws.path / "d/other").chmod(0o640)
    tree = ws.snapshot()
    (ws.path / "d/other").chmod(0o600)
    check = entry_swap.check

    def check_and_edit(*args: Any) -> Any:
        try:
            return check(*args)
        finally:
            renamed(ws.path / "d/other", "edit")

    monkeypatch.setattr("agent_checkpoint.workspace.restore.apply.check", check_and_edit)
    assert set(ws.restore(tree).leave) == {"d/other"}
    assert (ws.path / "d/other").stat().st_mode & 0o777 == 0o644


# -- whoever has it open -------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux tells who has a file open")
@pytest.mark.parametrize("path", ["d/replaced", "d/deleted"])
def test_whoever_has_it_open_may_finish_writing(
    ws: Workspace, tree: Tree, renames: Renames, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_swap, "_WRITER_SECONDS", 60)
    monkeypatch.setattr(entry_swap, "_ALL_WRITERS_SECONDS", 60)
    place = ws.path / path
    waited, opened = threading.Event(), []

    def finish() -> None:
        waited.wait(60)
        with opened[0] as file:
            times = os.fstat(file.fileno())
            file.write(b"edit123")
            file.flush()
            # The time of a write is that of its beginning, before the look.
            os.utime(file.fileno(), ns=(times.st_atime_ns, times.st_mtime_ns))

    thread = threading.Thread(target=finish)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda some: (waited.set(), sleep(some)))
    renames.around(place, lambda: opened.append(place.open("r+b")))
    thread.start()
    try:
        plan = ws.restore(tree)
    finally:
        waited.set()
        thread.join()
    assert plan.leave == {path: LEFT}
    assert plan.open == []
    assert place.read_text() == "edit123"


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux tells who has a file open")
@pytest.mark.parametrize("path", ["d/replaced", "d/deleted"])
def test_whoever_has_it_open_for_long_is_told_of(
    ws: Workspace, tree: Tree, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_swap, "_ALL_WRITERS_SECONDS", 0)
    with (ws.path / path).open("ab"):
        plan = ws.restore(tree)
    assert (plan.open, plan.leave) == ([path], {})
    assert f"open for writing in another process: {path}" in str(plan)
    check_rest(ws, "")


# -- interrupted ---------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Ends a restore as a kill does, but for the process."""


def stop() -> None:
    raise Interrupted


def recovered(ws: Workspace) -> Plan:
    with Workspace(ws.path, ws.store) as again:
        assert again.recovered is not None
        return again.recovered


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("path", ["d/replaced", "d/linked", "d/deleted"])
def test_an_edit_in_our_hands_when_the_process_dies(
    ws: Workspace, tree: Tree, renames: Renames, path: str, edit: Any
) -> None:
    """The next process looks at it, too, and gives it back."""
    place = ws.path / path
    renames.around(place, lambda: edit(place, "edit"), stop)
    with pytest.raises(Interrupted):
        ws.restore(tree)
    plan = recovered(ws)
    places = {path, *plan.kept.values()}
    assert any(texts(ws.path, found) == {"edit"} for found in places)
    if path == "d/deleted":
        assert plan.leave
    check_rest(ws, path)


@pytest.mark.parametrize("path", PATHS)
def test_what_is_held_is_dropped_also_after_a_crash(
    ws: Workspace, tree: Tree, renames: Renames, path: str
) -> None:
    renames.around(ws.path / path, None, stop)
    with pytest.raises(Interrupted):
        ws.restore(tree)
    plan = recovered(ws)
    assert (plan.kept, plan.leave) == ({}, {})
    assert describe(ws.path).keys() == {b"d", *THINGS}


def test_a_second_crash_while_it_is_staged_again(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half of what is staged is not taken for a version of somebody's."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        Renames(patch, everything).around(ws.path / "d/deleted", None, stop)
        ws.restore(tree)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(os, "fchmod", lambda *_: stop())
        Workspace(ws.path, ws.store)
    plan = recovered(ws)
    assert (plan.kept, plan.leave) == ({}, {})
    assert describe(ws.path).keys() == {b"d", *THINGS}


def test_what_nobody_can_name_is_kept(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        Renames(patch, everything).around(ws.path / "d/deleted", None, stop)
        ws.restore(tree)
    (ws.path / ".agent-checkpoint-restore/files" / ("0" * 64)).write_text("whose is this?")
    (ws.path / ".agent-checkpoint-restore/files/0").write_text("staged by an earlier version")
    plan = recovered(ws)
    assert plan.kept == {"unnamed": "unnamed.kept-1"}
    assert (ws.path / "unnamed.kept-1").read_text() == "whose is this?"


def test_what_came_out_and_may_not_be_read_goes_back(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another user's, and could be what is held by all that is seen of it."""
    place = ws.path / "d/replaced"
    opened = entry_swap.opened_file

    @contextmanager
    def refuse(directory: int, name: bytes) -> Iterator[Any]:
        with opened(directory, name) as file:
            if os.pread(file.fd, 7, 0) == b"another":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            yield file

    Renames(monkeypatch, everything).around(place, lambda: renamed(place, "another"))
    monkeypatch.setattr(entry_swap, "opened_file", refuse)
    assert ws.restore(tree).leave == {"d/replaced": LEFT}
    assert place.read_text() == "another"
    check_rest(ws, "d/replaced")


# -- where another file system is mounted ---------------------------------------------------------


@pytest.mark.parametrize("system", [mounted, mounted_without_exchange])
def test_what_only_looks_like_ours_is_somebody_s(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch, system: Any
) -> None:
    theirs = [ws.path / "d" / f".agent-checkpoint-{end}" for end in ("new", "old", "old.old")]
    for path in theirs:
        path.write_text("theirs")
    Renames(monkeypatch, system)
    plan = ws.restore(tree)
    assert plan.leave == {}
    check_rest(ws, "")
    assert plan.safety is not None
    ws.restore(plan.safety)
    assert [path.read_text() for path in theirs] == ["theirs"] * 3
    assert (ws.path / "d/replaced").read_text() == "present"


def test_a_copy_for_which_there_is_no_room(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Renames(monkeypatch, mounted)
    monkeypatch.setattr(os, "utime", full)  # when the content is written
    with pytest.raises(RestoreIncompleteError, match="space"):
        ws.restore(tree)
    assert (ws.path / "d/replaced").read_text() == "present"
    assert not [name for name in describe(ws.path) if b"agent-checkpoint" in name]


def test_killed_in_the_middle_of_a_copy(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        Renames(patch, mounted)
        patch.setattr(os, "utime", lambda *_, **__: stop())
        ws.restore(tree)
    plan = recovered(ws)
    assert (plan.kept, plan.leave) == ({}, {})
    check_rest(ws, "")


# -- the calls -----------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_an_exchange(here: int, tmp_path: Path) -> None:
    try:
        exchange(Entry(b"a", here), Entry(b"b", here))
    except ExchangeUnsupported:
        pytest.skip("this file system cannot")
    assert (tmp_path / "a").read_text() == "b"
    assert (tmp_path / "b").read_text() == "a"
    with pytest.raises(FileNotFoundError):
        exchange(Entry(b"a", here), Entry(b"c", here))


@pytest.mark.parametrize("system", [everything, no_flags])
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("move", [put, take])
def test_a_move_overwrites_nothing(
    here: int, monkeypatch: pytest.MonkeyPatch, system: Any, links: bool, move: Any
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(atomic_rename, "_rename", system(atomic_rename._rename))
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(FileExistsError):
        move(Entry(b"a", here), Entry(b"b", here))
    move(Entry(b"a", here), Entry(b"c", here))
    assert sorted(os.listdir(here)) == ["b", "c"]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="the number is one of Linux")
def test_a_library_without_the_function(
    here: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes

    class Library:
        def __init__(self, *_: object, **__: object) -> None:
            self.syscall = real.syscall

    real = ctypes.CDLL(None, use_errno=True)
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", Library)
        atomic_rename._rename_function.cache_clear()
        call = atomic_rename._rename_function()
        patch.setattr(atomic_rename, "_SYSCALL_NUMBERS", {})
        atomic_rename._rename_function.cache_clear()
        missing = atomic_rename._rename_function()
    atomic_rename._rename_function.cache_clear()
    assert call(here, b"a", here, b"c", atomic_rename._NOREPLACE) == 0
    assert call(here, b"c", here, b"b", atomic_rename._NOREPLACE) == errno.EEXIST
    assert missing(here, b"c", here, b"d", 0) == errno.ENOSYS


def test_a_python_without_ctypes(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["ctypes"] = None
from pathlib import Path
from agent_checkpoint import Workspace
root = Path(sys.argv[1])
root.mkdir()
files = [root / str(number) for number in range(70)]
[file.write_text("target") for file in files]
with Workspace(root, "file://" + sys.argv[2]) as ws:
    tree = ws.snapshot()
    [file.write_text("present") for file in files]
    ws.restore(tree)
    print({file.read_text() for file in files}, ws.watch_trouble)
"""
    words = [sys.executable, "-c", program, tmp_path / "root", tmp_path / "store"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout[:10]) == ("", "{'target'}")
    assert "ctypes" in done.stdout


@pytest.mark.skipif(not IS_ROOT, reason="only root mounts; `mounted` above stands in for others")
def test_a_file_system_that_is_mounted_in_the_workspace(
    ws: Workspace, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    (ws.path / "m").mkdir()
    if library.mount(b"none", os.fsencode(ws.path / "m"), b"tmpfs", 0, None) != 0:
        pytest.skip("mounts are not allowed here")
    try:
        for name in ("replaced", "deleted"):
            (ws.path / "m" / name).write_text("target")
        (ws.path / "m/deleted").unlink()
        then = ws.snapshot()
        for name in ("replaced", "deleted"):
            (ws.path / "m" / name).write_text("present")
        if "m/replaced" not in ws.restore(then, dry_run=True).write:
            pytest.skip("what is mounted is not captured")
        renames = Renames(monkeypatch, everything)
        for name in ("replaced", "deleted"):
            place = ws.path / "m" / name
            renames.around(place, lambda place=place: written(place, "edit"))
        assert set(ws.restore(then).leave) == {"m/replaced", "m/deleted"}
        monkeypatch.undo()
        assert ws.restore(then).leave == {}
        assert os.listdir(ws.path / "m") == ["replaced"]
    finally:
        library.umount2(os.fsencode(ws.path / "m"), 2)
