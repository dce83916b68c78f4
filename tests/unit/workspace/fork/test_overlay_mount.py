"""Real overlay mounts, where the machine allows them."""

import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.fork.overlay_mount import (
    NAME,
    changes,
    is_called,
    is_mounted,
    mount_overlay,
    mounts,
    mounts_below,
    remove_tree,
    unmount,
)

ODD_NAMES = [
    "plain",
    "with space",
    "comma,upperdir=x",
    "a:b::c",
    "back\\slash\\,",
    "new\nline\ttab",
    "ünï\u2028cødé 🌿",
    "quote'\"#040\\040",
    os.fsdecode(b"not \xff utf-8 \x85"),
    "-o",
]


def no_mounts(place):
    """Say why this machine lets us mount no overlay in a directory; empty if it does."""
    if not sys.platform.startswith("linux"):
        return "overlay mounts exist on Linux only"
    base = place / "try"
    (base / "lower").mkdir(parents=True)
    (base / "target").mkdir()
    try:
        mount_overlay(base / "lower", base / "upper", base / "work", base / "target")
        unmount(base / "target")
    except WorkspaceError as error:
        return f"mounting is refused: {error}"
    finally:
        remove_tree(base)
    return ""


class Layers:
    def __init__(self, base):
        self.base = base
        self.lower, self.upper, self.work, self.target = (
            base / name for name in ("lower", "upper", "work", "target")
        )
        self.lower.mkdir(parents=True)
        self.target.mkdir()

    def mount(self, **options):
        mount_overlay(self.lower, self.upper, self.work, self.target, **options)
        return self.target


@pytest.fixture
def layers(tmp_path):
    reason = no_mounts(tmp_path)
    if reason:
        pytest.skip(reason)
    made = Layers(tmp_path / "layers")
    try:
        yield made
    finally:
        unmount(made.target)


def test_what_is_written_goes_to_the_upper_directory_alone(layers):
    (layers.lower / "file").write_text("base")
    (layers.lower / "gone").write_text("base")
    target = layers.mount()
    assert (target / "file").read_text() == "base"
    (target / "file").write_text("fork")
    (target / "gone").unlink()
    (target / "new").write_text("fork")
    assert (layers.lower / "file").read_text() == "base"
    assert sorted(os.listdir(layers.lower)) == ["file", "gone"]
    assert sorted(os.listdir(target)) == ["file", "new"]
    assert (layers.upper / "file").read_text() == "fork"
    assert unmount(target)
    assert os.listdir(target) == []


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_paths_may_have_any_character(layers, name):
    odd = Layers(layers.base / name)
    (odd.lower / "file").write_text("base")
    try:
        odd.mount()
        assert is_mounted(odd.target)
        (odd.target / name).write_text("fork")
        assert (odd.upper / name).read_text() == "fork"
        assert changes(odd.upper).names == {b"": {os.fsencode(name)}}
    finally:
        unmount(odd.target)
    assert not is_mounted(odd.target)
    assert os.listdir(odd.target) == []


def test_paths_may_be_longer_than_the_options_of_a_mount(layers):
    long = Layers(layers.base.joinpath(*["x" * 250] * 8))
    (long.lower / "file").write_text("base")
    try:
        assert (long.mount() / "file").read_text() == "base"
    finally:
        unmount(long.target)


def test_a_target_may_be_named_through_a_link(layers):
    link = layers.base / "link"
    link.symlink_to(layers.target)
    mount_overlay(layers.lower, layers.upper, layers.work, link)
    assert is_mounted(link)
    assert is_mounted(layers.target)
    assert unmount(link)
    assert not is_mounted(layers.target)


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o751])
def test_the_root_is_as_accessible_as_the_lower_directory(layers, mode):
    layers.lower.chmod(mode)
    assert stat.S_IMODE(layers.mount().stat().st_mode) == mode


def test_the_next_mount_shows_what_an_earlier_one_changed(layers):
    (layers.lower / "gone").touch()
    target = layers.mount()
    (target / "new").write_text("first")
    (target / "gone").unlink()
    unmount(target)
    layers.mount()
    assert os.listdir(target) == ["new"]
    assert (target / "new").read_text() == "first"


def test_directories_that_are_in_each_other_are_refused(layers):
    for lower, upper, work in [
        (layers.lower, layers.lower / "upper", layers.work),
        (layers.lower, layers.upper, layers.lower / "work"),
        (layers.lower, layers.upper, layers.upper / "work"),
        (layers.lower, layers.lower, layers.work),
    ]:
        with pytest.raises(UnsafeWorkspaceError, match="one contains the other"):
            mount_overlay(lower, upper, work, layers.target)
    assert os.listdir(layers.lower) == []
    assert not layers.upper.exists()


def test_a_refusal_names_the_place(layers):
    with pytest.raises(WorkspaceError, match=r"Cannot mount an overlay at .*missing'"):
        mount_overlay(layers.lower, layers.upper, layers.work, layers.base / "missing")
    with pytest.raises(WorkspaceError, match="Cannot mount"):
        mount_overlay(layers.base / "missing", layers.upper, layers.work, layers.target)


def test_what_is_in_use_goes_out_of_sight_all_the_same(layers):
    target = layers.mount()
    with open(target / "file", "w") as file:
        assert not unmount(target)
        assert not is_mounted(target)
        assert os.listdir(target) == []
        file.write("still there")
    assert unmount(target)  # nothing to do


def test_the_mount_of_somebody_else_is_left_alone(layers):
    layers.mount(name=f"{NAME}-mine")
    assert is_mounted(layers.target)
    assert is_mounted(layers.target, name=f"{NAME}-mine")
    assert not is_mounted(layers.target, name=f"{NAME}-other")
    assert unmount(layers.target, name=f"{NAME}-other")
    assert is_mounted(layers.target)
    foreign = layers.base / "foreign"
    foreign.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(foreign)], check=True)
    try:
        (foreign / "file").touch()
        assert not is_mounted(foreign)
        assert unmount(foreign)
        assert (foreign / "file").exists()
        assert mounts_below(layers.base) == [layers.target, foreign]
    finally:
        subprocess.run(["umount", str(foreign)], check=True)


def test_setuid_programs_and_devices_have_no_power_in_a_mount(layers):
    layers.mount()
    flags = os.statvfs(layers.target).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV


def test_changes_say_what_to_look_at(layers):
    paths = ("kept/a", "kept/b", "gone/a", "replaced/a", "replaced/again/a")
    for path in (*paths, "chmod/a", "to_file/a", "deep/1/2/a"):
        (layers.lower / path).parent.mkdir(parents=True, exist_ok=True)
        (layers.lower / path).write_text("base")
    (layers.lower / "to_folder").touch()
    target = layers.mount()
    assert changes(layers.upper) == ChangedPaths({b"": set()}, set())
    (target / "kept/a").write_text("fork")
    shutil.rmtree(target / "gone")
    shutil.rmtree(target / "replaced")
    (target / "replaced/again").mkdir(parents=True)
    (target / "replaced/b").touch()
    (target / "chmod").chmod(0o700)
    shutil.rmtree(target / "to_file")
    (target / "to_file").touch()
    (target / "to_folder").unlink()
    (target / "to_folder").mkdir()
    (target / "deep/1/2/a").chmod(0o600)
    (target / "new/below").mkdir(parents=True)
    (target / "new/below/link").symlink_to("/")
    os.rename(target / "new/below", target / "kept/moved")
    with pytest.raises(OSError, match="cross-device"):
        os.rename(target / "deep", target / "elsewhere")
    names = {
        b"": {
            *(b"kept", b"gone", b"replaced", b"chmod", b"to_file"),
            *(b"to_folder", b"deep", b"new"),
        },
        b"kept": {b"a", b"moved"},
        b"kept/moved": {b"link"},
        b"replaced": {b"again", b"b"},
        b"replaced/again": set(),
        b"chmod": set(),
        b"to_folder": set(),
        b"deep": {b"1"},
        b"deep/1": {b"2"},
        b"deep/1/2": {b"a"},
        b"new": set(),
    }
    known = {b"replaced", b"replaced/again", b"to_folder", b"kept/moved"}
    assert changes(layers.upper) == ChangedPaths(names, known)
    assert changes(layers.upper, layers.lower) == ChangedPaths(names, known | {b"new"})
    unmount(target)
    assert changes(layers.upper, layers.lower) == ChangedPaths(names, known | {b"new"})


def listing(root, below=b""):
    """Return every entry below a directory: its type and mode, and its content or its names."""
    found = {}
    for name in os.listdir(os.path.join(root, below)):
        path = os.path.join(below, name)
        full = os.path.join(root, path)
        mode = os.lstat(full).st_mode
        if stat.S_ISDIR(mode):
            found[path] = mode
            found.update(listing(root, path))
        elif stat.S_ISLNK(mode):
            found[path] = os.readlink(full)
        else:
            found[path] = (mode, Path(os.fsdecode(full)).read_bytes())
    return found


def put_together(base, mounted, told):
    """Return the listing that a base and the changes make, looking at changed names alone."""
    result = dict(base)

    def drop(path):
        for known in [known for known in result if known.startswith(path + b"/")]:
            del result[known]

    for directory, names in sorted(told.names.items()):
        if directory in told.replaced:
            drop(directory)
        for name in names:
            path = os.path.join(directory, name)
            full = os.path.join(mounted, path)
            result.pop(path, None)
            if not os.path.lexists(full):
                drop(path)
                continue
            mode = os.lstat(full).st_mode
            if stat.S_ISDIR(mode):
                result[path] = mode
                continue
            drop(path)
            content = Path(os.fsdecode(full)).read_bytes() if stat.S_ISREG(mode) else b""
            result[path] = (mode, content) if stat.S_ISREG(mode) else os.readlink(full)
    return result


def edit(root, rng):
    """Make a random change in a directory tree."""
    folders = [root] + [path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()]
    place = rng.choice(folders) / rng.choice("abcd")
    act = rng.choice(["write", "write", "folder", "link", "remove", "chmod", "move"])
    is_folder = place.is_dir() and not place.is_symlink()
    if act == "remove" or (act in ("write", "link") and is_folder):
        if is_folder:
            shutil.rmtree(place)
        elif os.path.lexists(place):
            place.unlink()
    if act == "write" and not place.is_symlink():
        place.write_text(str(rng.random()))
    elif act == "folder" and not os.path.lexists(place):
        place.mkdir()
    elif act == "link" and not os.path.lexists(place):
        place.symlink_to(rng.choice(["a", "../b", "/nowhere"]))
    elif act == "chmod" and os.path.lexists(place) and not place.is_symlink():
        place.chmod(rng.choice([0o700, 0o755, 0o750]))
    elif act == "move" and os.path.lexists(place):
        other = rng.choice(folders) / rng.choice("abcd")
        if not os.path.lexists(other) and other.parent.is_dir() and place not in other.parents:
            shutil.move(place, other)


@pytest.mark.parametrize("seed", range(8))
def test_base_and_changes_make_what_the_mount_shows(layers, seed):
    rng = random.Random(seed)
    for _ in range(60):
        edit(layers.lower, rng)
    base = listing(os.fsencode(layers.lower))
    target = layers.mount()
    for _ in range(40):
        edit(target, rng)
        shown = os.fsencode(target)
        now = listing(shown)
        for told in (changes(layers.upper), changes(layers.upper, layers.lower)):
            assert put_together(base, shown, told) == now
    assert listing(os.fsencode(layers.lower)) == base


def test_changes_cost_what_was_changed(layers):
    for number in range(2000):
        (layers.lower / f"{number % 50}").mkdir(exist_ok=True)
        (layers.lower / f"{number % 50}" / f"{number}").touch()
    (layers.mount() / "7" / "7").write_text("fork")
    assert changes(layers.upper, layers.lower) == ChangedPaths({b"": {b"7"}, b"7": {b"7"}}, set())


def test_an_upper_directory_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(WorkspaceError, match=r"Cannot read .*missing'"):
        changes(tmp_path / "missing")


def test_the_mount_table_is_read_as_it_is_written(tmp_path, monkeypatch):
    table = (
        b"36 35 98:0 / /mnt1 rw shared:1 - ext3 /dev/root rw\n"
        b"37 35 98:0 / /with\\040space\\012\\134 rw - overlay agent-checkpoint-x rw\n"
        b"38 35 98:0 / /a\x85b rw master:1 - tmpfs none rw\n"
        b"nonsense\n"
    )
    monkeypatch.setattr(Path, "read_bytes", lambda path: table)
    found = list(mounts())
    assert [mount.place for mount in found] == [b"/mnt1", b"/with space\n\\", b"/a\x85b"]
    assert [is_called(mount, "agent-checkpoint-x") for mount in found] == [False, True, False]
    assert not is_called(found[1], NAME)


def test_removing_follows_no_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "folder").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "folder/link").symlink_to(outside)
    os.mkfifo(tree / "fifo")
    remove_tree(tree)
    assert os.listdir(tmp_path) == ["outside"]
    remove_tree(tree)  # gone already
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        remove_tree(tmp_path / "link")
    assert os.listdir(outside) == ["kept"]


def test_removing_minds_no_mode():
    """As nobody: root may do everything anyhow."""
    script = """
import os, sys
from pathlib import Path
from agent_checkpoint.workspace.fork.overlay_mount import remove_tree
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
tree = Path(sys.argv[1], "tree")
(tree / "closed/below/more").mkdir(parents=True)
(tree / "closed/below/file").touch()
for path in ("closed/below/more", "closed/below", "closed", ""):
    (tree / path).chmod(0 if path else 0o500)
remove_tree(tree)
"""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    try:
        done = subprocess.run([sys.executable, "-c", script, str(place)], capture_output=True)
        assert done.returncode == 0, done.stderr
        assert os.listdir(place) == []
    finally:
        shutil.rmtree(place)


def test_nothing_is_too_deep_to_be_removed(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    fd = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("down", dir_fd=fd)
        below = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    remove_tree(tree)
    assert os.listdir(tmp_path) == []
