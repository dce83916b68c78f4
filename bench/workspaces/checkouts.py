"""The files that workspaces are measured on: a real checkout, and many copies of it side by side.

The small one is the source distribution of Django, about 6,900 files in 3,200 directories, 45 MB.
The large one is the small one COPIES times over, in numbered directories, about 97,000 files. A
line at the end of each tells the copies apart: no real directory has all of its files many times.
Neither has a `.git` or a `.gitignore`, so that all sides capture the same files.

pip downloads the distribution once, into the user's cache directory; its hash is checked each time.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

REQUIREMENT = "django==5.2.19"
ARCHIVE = "django-5.2.19.tar.gz"
SHA256 = "ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1"
COPIES = 14
EDITED = range(1_000, 50_000)
"""How many bytes a source file has that is worth an edit."""


class NoCheckoutError(Exception):
    """There is nothing to measure on; the text says why."""


@dataclass(frozen=True)
class Checkout:
    """A directory of files, as it was made."""

    path: Path
    files: tuple[str, ...]
    """The path of every file, relative to the directory."""
    directories: int
    bytes: int
    sources: tuple[str, ...]
    """Those of them that people and agents edit, in an order of no meaning."""

    def source(self, number: int) -> str:
        """One of the source files, another one for each number."""
        return self.sources[number % len(self.sources)]

    def warm(self) -> None:
        """Read everything once, so that no side finds the caches of the system empty."""
        for name in self.files:
            (self.path / name).read_bytes()


def small(path: Path) -> Checkout:
    """Unpack the real checkout at the path.

    Raises:
        NoCheckoutError: it is not in the cache, and cannot be downloaded.
    """
    unpacked = path.with_name("unpacked")
    with tarfile.open(_archive()) as archive:
        archive.extractall(unpacked, filter="data")
    (top,) = unpacked.iterdir()
    top.rename(path)
    unpacked.rmdir()
    return look(path)


def large(of: Checkout, path: Path) -> Checkout:
    """Make the copies below the path."""
    contents = [(name, (of.path / name).read_bytes()) for name in of.files]
    programs = {name for name in of.files if os.access(of.path / name, os.X_OK)}
    folders = sorted({os.path.dirname(name) for name in of.files})
    for number in range(COPIES):
        copy = path / f"copy-{number:02}"
        for folder in folders:
            (copy / folder).mkdir(parents=True, exist_ok=True)
        for name, content in contents:
            target = copy / name
            target.write_bytes(content + b"# %d\n" % number)
            if name in programs:
                target.chmod(0o755)
    return look(path)


def look(path: Path) -> Checkout:
    """The checkout that is at the path."""
    files, sources, directories, size = [], [], 0, 0
    for folder, _, names in os.walk(path):
        directories += 1
        for name in names:
            file = Path(folder, name)
            relative = str(file.relative_to(path))
            files.append(relative)
            length = file.stat().st_size
            size += length
            if name.endswith(".py") and length in EDITED:
                sources.append(relative)
    sources.sort()
    random.Random("changes").shuffle(sources)
    return Checkout(path, tuple(sorted(files)), directories, size, tuple(sources))


def _archive() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "agent-checkpoint-bench"
    archive = place / ARCHIVE
    if not archive.exists():
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "download"]
        command += ["--no-deps", "--no-binary", ":all:", "--dest", str(place), REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            told = done.stderr.strip().splitlines() or ["no reason given"]
            raise NoCheckoutError(f"pip could not download {REQUIREMENT}: {told[-1]}")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise NoCheckoutError(f"{archive} is not the file that was released: delete it")
    return archive
