"""Small file systems that can really be filled, for who may mount them."""

import errno
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

KINDS = ["tmpfs", pytest.param("ext4", marks=pytest.mark.slow)]


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


@contextmanager
def small_disk(kind, place, megabytes, inodes=4000):
    """Mount a file system of so many megabytes; the test is skipped where that is refused."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small file system")
    mounted = place / "disk"
    mounted.mkdir()
    if kind == "tmpfs":
        options = f"size={megabytes}m,nr_inodes={inodes},mode=700"
        done = run("mount", "-t", "tmpfs", "-o", options, "none", mounted)
    else:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("there is no mkfs.ext4")
        image = place / "disk.img"
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        # No blocks set aside for root, who would not find the disk full.
        made = run("mkfs.ext4", "-q", "-m", "0", "-b", "4096", "-N", inodes, image)
        assert made.returncode == 0, made.stderr
        done = run("mount", "-o", "loop", image, mounted)
    if done.returncode != 0:
        pytest.skip(f"mounting is refused: {done.stderr.strip()}")
    try:
        yield mounted
    finally:
        # Lazily: after a test that failed, files may still be open.
        assert run("umount", "-l", mounted).returncode == 0


def fill(disk):
    """Leave not a byte free, and return the file that takes them."""
    filler = disk / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    size = 1 << 20
    try:
        while size:
            try:
                os.write(fd, b"\xff" * size)
                os.fsync(fd)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    finally:
        os.close(fd)
    found = os.statvfs(disk)
    assert found.f_bavail * found.f_frsize < 8192
    return Path(filler)


def use_up_inodes(disk):
    """Leave no file to be made, and return the directory of those that keep it so."""
    folder = disk / "many"
    with suppress(FileExistsError):
        folder.mkdir()
    with suppress(OSError):
        while True:
            (folder / os.urandom(8).hex()).touch(exist_ok=False)
    assert os.statvfs(disk).f_favail == 0
    return folder


@contextmanager
def read_only(disk):
    """Let nobody write to a mounted file system during the block."""
    assert run("mount", "-o", "remount,ro", disk).returncode == 0
    try:
        yield
    finally:
        assert run("mount", "-o", "remount,rw", disk).returncode == 0
