"""Reads what strace wrote down of a process: the calls that change files, with every byte.

Knows the form of strace's lines; what the calls mean for a disk is for `power_loss` to say.
"""

import re
from dataclasses import dataclass

RECORDED = (
    *("openat", "close", "dup", "dup2", "dup3", "lseek"),
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "truncate", "fallocate"),
    *("fsync", "fdatasync", "sync_file_range", "copy_file_range", "sendfile"),
    *("link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir", "symlink", "symlinkat"),
)
OPTIONS = ("-xx", "-s", "10000000")
"""What to tell strace: all bytes, as hexadecimal digits."""

_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+|\?)( .*)?$", re.DOTALL)
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


@dataclass(frozen=True)
class Operation:
    """A call: its name, texts as bytes, other arguments as they are written; -1 if it failed."""

    name: str
    texts: tuple
    words: tuple
    result: int

    def number(self, place):
        """The argument at this place, as a number."""
        return int(self.words[place], 0)


def read_operations(text):
    """The calls of a log, in order. Those that failed did nothing and are left out, but for syncs.

    Raises ValueError for a line that is not understood: a call that is passed over in silence
    would make the disk that is rebuilt a wrong one.
    """
    return [operation for line in text.splitlines() for operation in _read(line)]


def _read(line):
    if re.match(r"^(?:\d+ +)?(\+\+\+|---)", line):  # an exit, a signal
        return []
    match = _LINE.match(line)
    if match is None and line.endswith("<unfinished ...>"):  # killed there; `?` is another form
        return []
    if match is None:
        raise ValueError(f"not understood: {line[:200]}")
    name, arguments, result, _ = match.groups()
    if result == "?" or (result == "-1" and name not in ("fsync", "fdatasync")):
        return []
    texts = []

    def take(found):
        if found[2]:
            raise ValueError(f"cut: {line[:200]}")
        texts.append(bytes.fromhex(found[1].replace("\\x", "")))
        return f"text{len(texts) - 1}"

    words = tuple(word.strip() for word in _STRING.sub(take, arguments).split(","))
    return [Operation(name, tuple(texts), words, int(result))]
