"""The floor of P5: the same copy, in a straight line, on all cores.

As many processes as cores copy their share of the directories, neighbours together: each directory
is made, and each of its files is opened, looked at, read, made, written, and given its times. What
there is to copy is told beforehand. Nothing else is done: no rules, links, owners, holes, swaps,
record of what was copied, or look at what changed meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator


class CopyFloor:
    """What there is below a directory, and a way to copy it."""

    def __init__(self, directory: str) -> None:
        walked = list(os.walk(directory))
        self._directory = directory
        self._folders = [os.path.relpath(folder, directory) for folder, _, _ in walked]
        self._names = [names for _, _, names in walked]

    def run(self, target: str) -> None:
        """Copy the directory to `target`, which does not exist."""
        cores = os.cpu_count() or 1
        children = [self._start(target, number, cores) for number in range(cores)]
        assert not any(os.waitpid(child, 0)[1] for child in children), "a process failed"
        for folder in reversed(self._folders):
            _finish(os.path.join(target, folder), os.stat(os.path.join(self._directory, folder)))

    def _start(self, target: str, number: int, cores: int) -> int:
        child = os.fork()
        if not child:
            failed = 1
            try:
                for folder, names in self._share(number, cores):
                    _copy(os.path.join(self._directory, folder), names, target, folder)
                failed = 0
            finally:
                os._exit(failed)
        return child

    def _share(self, number: int, cores: int) -> Iterator[tuple[str, list[str]]]:
        """The directories of a process, with about as many files as those of each other."""
        share = sum(map(len, self._names)) / cores
        before = 0
        for folder, names in zip(self._folders, self._names):
            if min(before // share, cores - 1) == number:
                yield folder, names
            before += len(names)


def _copy(source: str, names: list[str], target: str, folder: str) -> None:
    made = os.path.normpath(os.path.join(target, folder))
    os.makedirs(made, exist_ok=True)  # those above it may be of another process
    here = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    there = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
            continue
        file = os.open(name, os.O_RDONLY, dir_fd=here)
        new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, found.st_mode, dir_fd=there)
        os.write(new, os.read(file, found.st_size))
        _finish(new, found)
        os.close(new)
        os.close(file)
    os.close(there)
    os.close(here)


def _finish(place: str | int, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        os.chmod(place, found.st_mode & 0o777)
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
