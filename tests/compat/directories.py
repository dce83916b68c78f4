"""The directory that the golden workspaces are of, in its two states, and what is on a disk.

As with `subjects.py`: nothing here may change after a release.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.compat.reader import File

IGNORE = ("*.tmp", "/local/")
WIDE = 600
"""So many entries make a wide directory, of several parts."""
LARGE = b"x" * 2**20 + b"and a little more than one chunk"

FIRST: dict[bytes, File] = {
    b".checkpointignore": File(b"f", 0o644, b"*.log\n"),
    b"README.md": File(b"f", 0o644, b"# golden\n"),
    b"a line\nbreak": File(b"f", 0o600, b"odd name\n"),
    b"bin": File(b"d", 0o755),
    b"bin/run": File(b"f", 0o755, b"#!/bin/sh\nexit 0\n"),
    b"bin/setuid": File(b"f", 0o755, b"its bit is not kept\n"),
    b"empty": File(b"d", 0o700),
    b"large.bin": File(b"f", 0o640, LARGE),
    b"link": File(b"l", 0o777, b"src/app.py"),
    b"no bytes": File(b"f", 0o444, b""),
    b"not utf-8 \xff": File(b"f", 0o644, b"odd name\n"),
    b"nowhere": File(b"l", 0o777, b"../there is/n\xc3\xb8thing"),
    b"src": File(b"d", 0o755),
    b"src/app.py": File(b"f", 0o644, b"print('hello')\n"),
    b"src/deep": File(b"d", 0o755),
    b"src/deep/er": File(b"d", 0o750),
    b"src/deep/er/same.py": File(b"f", 0o644, b"print('hello')\n"),
    b"wide": File(b"d", 0o755),
    **{b"wide/%03d" % place: File(b"f", 0o644, b"few\n") for place in range(WIDE)},
    b"\xc3\xa9\xf0\x9f\x8e\x89": File(b"f", 0o644, "é🎉\n".encode()),
}
"""Every type of entry, by path, as a snapshot has them."""

GONE = (b"README.md", b"bin/run", b"bin/setuid", b"bin", b"link", b"src/deep/er/same.py")
SECOND: dict[bytes, File] = {
    **{path: file for path, file in FIRST.items() if path not in GONE},
    b"README.md": File(b"d", 0o755),
    b"README.md/in a directory": File(b"f", 0o644, b"a file became a directory\n"),
    b"bin": File(b"l", 0o777, b"src"),
    b"large.bin": File(b"f", 0o640, LARGE[:-5] + b"other"),
    b"link": File(b"f", 0o644, b"a link became a file\n"),
    b"src/app.py": File(b"f", 0o600, b"print('hello')\n"),
    b"wide/300": File(b"f", 0o644, b"another\n"),
    b"wide/one more": File(b"l", 0o777, b"300"),
}
"""The same a few steps later: other types, contents, modes, names."""

NOTES = (("bin/setuid", "setuid"), ("pipe", "special"))
"""Of the first state; the second has the pipe alone."""


def make(root: Path, files: dict[bytes, File]) -> None:
    """Make a directory with these files in it, and with what a snapshot leaves out."""
    root.mkdir(mode=0o700)
    top = os.fsencode(root)
    for path, (kind, mode, data) in files.items():
        place = os.path.join(top, path)
        if kind == b"d":
            os.mkdir(place)
        elif kind == b"l":
            os.symlink(data, place)
        else:
            Path(os.fsdecode(place)).write_bytes(data)
            os.chmod(place, mode)
    for path, (kind, mode, _) in files.items():
        if kind == b"d":
            os.chmod(os.path.join(top, path), mode)
    if b"bin/setuid" in files:
        os.chmod(root / "bin" / "setuid", 0o4755)
    os.mkfifo(root / "pipe")
    (root / "left out.log").write_text("by .checkpointignore")
    (root / "left out.tmp").write_text("by ignore=")
    (root / "local").mkdir()
    (root / "local" / "left out").write_text("by ignore=")


def on_disk(root: Path) -> dict[bytes, File]:
    """Return what is in a directory, but for what a snapshot of it leaves out."""
    found: dict[bytes, File] = {}
    top = os.fsencode(root)
    for folder, below, names in os.walk(top):
        for name in (*below, *names):
            place = os.path.join(folder, name)
            path = os.path.relpath(place, top)
            entry = os.lstat(place)
            mode = stat.S_IMODE(entry.st_mode) & 0o777
            if stat.S_ISLNK(entry.st_mode):
                found[path] = File(b"l", 0o777, os.readlink(place))
            elif stat.S_ISDIR(entry.st_mode):
                found[path] = File(b"d", mode)
            elif stat.S_ISREG(entry.st_mode):
                found[path] = File(b"f", mode, Path(os.fsdecode(place)).read_bytes())
    return {
        path: file
        for path, file in found.items()
        if not path.startswith(b"left out") and path.split(b"/")[0] != b"local"
    }
