"""The sequence numbers of a stream in the file backend: existing entries and used numbers.

17.json     entry 17
last        the highest number whose entry was removed while it was the newest
17.gone     the same for entry 17, removed while the disk was full: its emptied, renamed file
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent_checkpoint.backends.os_support.posix import (
    is_disk_full,
    open_single_link,
    read_regular,
    scan_directory,
    sync_directory,
    write_new,
)

NUMBERS_END = 10**18

_NUMBERED_FILE = re.compile(r"([1-9][0-9]{0,17})\.(json|gone)")
_LAST_FILE = re.compile(rb"[0-9]{1,18}\n?")
_LONGEST_LAST = 20


def entry_file(folder: Path, seq: int) -> Path:
    """Return the file of an entry."""
    return folder / f"{seq}.json"


def entry_numbers(folder: Path) -> set[int]:
    """Return the numbers of the existing entries.

    Raises:
        OSError: the file system failed.
    """
    return {seq for seq, is_entry in _numbered(folder).items() if is_entry}


def newest_and_next(folder: Path) -> tuple[int, int]:
    """Return the number of the newest entry, 0 if there is none, and the next free number.

    Raises:
        OSError: the file system failed, or a number is out of range.
    """
    found = _numbered(folder)
    newest = max((seq for seq in found if found[seq]), default=0)
    free = max(_read_last(folder), *found, 0) + 1
    if free >= NUMBERS_END:
        raise OSError(f"{folder} contains a sequence number that is out of range")
    return newest, free


def record_number(folder: Path, tmp: Path, seq: int) -> None:
    """Record durably that a number was used. If the disk is full, this also removes its entry.

    Raises:
        OSError: the file system failed.
    """
    if seq <= _read_last(folder):
        return
    try:
        os.replace(write_new(tmp, b"%d\n" % seq), folder / "last")
        sync_directory(folder)
    except OSError as error:
        if not is_disk_full(error):
            raise
        # A rename needs neither a block nor an inode, and removes the entry atomically.
        mark = folder / f"{seq}.gone"
        entry_file(folder, seq).rename(mark)
        with open_single_link(mark, os.O_WRONLY) as fd:
            os.ftruncate(fd, 0)
        sync_directory(folder)
    else:
        _drop_marks(folder, seq)


def _numbered(folder: Path) -> dict[int, bool]:
    # By number, whether it is an entry. Links and directories of such a name are ignored.
    found: dict[int, bool] = {}
    if folder.is_symlink():
        return found
    for item in scan_directory(folder):
        match = _NUMBERED_FILE.fullmatch(item.name)
        if match is not None:
            is_entry = match[2] == "json" and item.is_file(follow_symlinks=False)
            found[int(match[1])] = is_entry or found.get(int(match[1]), False)
    return found


def _drop_marks(folder: Path, last: int) -> None:
    for item in list(scan_directory(folder)):
        match = _NUMBERED_FILE.fullmatch(item.name)
        is_mark = match is not None and match[2] == "gone" and int(match[1]) <= last
        if is_mark and item.is_file(follow_symlinks=False):
            os.unlink(item.path)


def _read_last(folder: Path) -> int:
    try:
        text = read_regular(folder / "last", _LONGEST_LAST)
    except FileNotFoundError:
        return 0
    if text is None or _LAST_FILE.fullmatch(text) is None:
        raise OSError(
            f"{folder / 'last'} is damaged; write the highest number of this stream into it"
        )
    return int(text)
