"""A disk that loses its power: which bytes and names may be on it at any moment.

Operations are applied to a model that knows, for every file and directory, what was made durable
by a sync and what is only pending. From there any disk that a loss of power may leave is built:
pending writes are kept, lost or torn at sectors, in any order; pending names are kept or lost.
POSIX promises no more than that: a synced file may still have no name.
"""

import posixpath
from dataclasses import dataclass, field

WRITES = ("write", "writev", "pwrite64", "pwritev", "ftruncate", "fallocate")
SYNCS = ("fsync", "fdatasync")
NAMES = ("link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir")
_HARMLESS = ("close", "lseek", "dup", "dup2", "dup3")
_REBUILT = "-shm"  # SQLite's index of its log: shared memory, made anew at the next open


@dataclass(eq=False)
class File:
    """A file, whatever its names: what is durable, what was written since, what a process sees."""

    durable: bytes = b""
    pending: list = field(default_factory=list)
    seen: bytearray = field(default_factory=bytearray)

    def write(self, at, data):
        """Write there; with None, cut the file or make it longer with zeros."""
        self.pending.append((at, data))
        _apply(self.seen, at, data)

    def sync(self, *, failed):
        """Make it durable. If that fails the kernel forgets what it could not write: it is lost,
        though it can be read, and no later sync brings it to the disk."""
        if not failed:
            self.durable = after(self.durable, self.pending)
        self.pending = []

    def now(self):
        """Its content as the process sees it."""
        return bytes(self.seen)


@dataclass(eq=False)
class Folder:
    """A directory: its names as the process sees them, and those that are durable."""

    now: dict = field(default_factory=dict)
    durable: dict = field(default_factory=dict)


@dataclass
class _Open:
    what: object
    offset: int = 0
    append: bool = False


class Disk:
    """The directory `root` and all below it, which begins empty and durable."""

    def __init__(self, root, *, ignore=lambda operation, path: False):
        """`ignore` tells of syncs that are to do nothing: what would then be lost?"""
        self.root = str(root)
        self.top = Folder()
        self.pending_names = []  # lists of (folder, name, file, folder or None)
        self._open = {}
        self._ignore = ignore
        self._paths = {}

    def hold(self, name, source):
        """Have a copy of the directory `source` in the root, durable."""
        folder = _loaded(source)
        self.top.now[name] = self.top.durable[name] = folder

    def processes_ended(self):
        """Whoever had files open is gone; the next operations are of another process."""
        self._open.clear()

    def apply(self, operation):
        """Do what the operation did. Returns whether anything on the disk changed."""
        name = operation.name
        if name == "openat":
            return self._opened(operation)
        if name in WRITES:
            return self._written(operation)
        if name in SYNCS:
            return self._synced(operation)
        if name == "truncate":
            ((folder, at),) = self._places(operation)
            folder.now[at].write(operation.number(1), None)
            return True
        if name in ("mkdir", "mkdirat"):
            return self._named([(*place, Folder()) for place in self._places(operation)])
        if name in NAMES:
            return self._renamed(operation)
        if name in _HARMLESS:
            return self._moved(operation)
        raise ValueError(f"the model of a disk does not know {name}")

    # -- what operations do ----------------------------------------------------------------------

    def _opened(self, operation):
        path, flags = operation.texts[0].decode(), operation.words[2]
        place = self._place(path)
        if place is None:
            self._open.pop(operation.result, None)
            return False
        folder, name = place
        found = folder.now.get(name) if name else folder
        changed = False
        if found is None:
            if "O_CREAT" not in flags:
                raise ValueError(f"{path} was opened and is not known")
            found = File()
            changed = self._named([(folder, name, found)])
        if "O_TRUNC" in flags:
            found.write(0, None)
            changed = True
        self._open[operation.result] = _Open(found, append="O_APPEND" in flags)
        self._paths[id(found)] = path
        return changed

    def _written(self, operation):
        opened = self._open.get(operation.number(0))
        if opened is None:
            return False
        data = b"".join(operation.texts)
        if operation.name == "fallocate":
            end = operation.number(2) + operation.number(3)
            opened.what.write(max(end, len(opened.what.seen)), None)
        elif operation.name == "ftruncate":
            opened.what.write(operation.number(1), None)
        elif operation.name in ("pwrite64", "pwritev"):
            opened.what.write(operation.number(-1), data[: operation.result])
        else:
            at = len(opened.what.seen) if opened.append else opened.offset
            opened.what.write(at, data[: operation.result])
            opened.offset = at + operation.result
        return True

    def _synced(self, operation):
        opened = self._open.get(operation.number(0))
        if opened is None or self._ignore(operation, self._paths.get(id(opened.what), "")):
            return False
        if isinstance(opened.what, File):
            opened.what.sync(failed=operation.result < 0)
        elif operation.result == 0:
            self._sync_folder(opened.what)
        return True

    def _sync_folder(self, folder):
        places = {
            (id(folder), name) for op in self.pending_names for f, name, _ in op if f is folder
        }
        # A rename across folders takes its other side along, with what came before there.
        for op in reversed(self.pending_names):
            mine = {(id(f), name) for f, name, _ in op}
            if mine & places:
                places |= mine
        kept = []
        for op in self.pending_names:
            if any((id(f), name) in places for f, name, _ in op):
                for changed, name, what in op:
                    _set(changed.durable, name, what)
            else:
                kept.append(op)
        self.pending_names = kept

    def _renamed(self, operation):
        places = self._places(operation)
        (folder, name), *other = places
        found = folder.now.get(name)
        if operation.name in ("unlink", "unlinkat", "rmdir"):
            return self._named([(folder, name, None)])
        gone = [] if operation.name.startswith("link") else [(folder, name, None)]
        return self._named([*gone, (*other[0], found)])

    def _named(self, changes):
        for folder, name, what in changes:
            _set(folder.now, name, what)
        self.pending_names.append(changes)
        return True

    def _moved(self, operation):
        opened = self._open.get(operation.number(0))
        if operation.name == "close":
            self._open.pop(operation.number(0), None)
        elif opened is not None and operation.name == "lseek":
            opened.offset = operation.result
        elif opened is not None:
            self._open[operation.result] = opened
        return False

    # -- paths -----------------------------------------------------------------------------------

    def _places(self, operation):
        places = [self._place(text.decode()) for text in operation.texts]
        if None in places or not all(name for _, name in places):
            raise ValueError(f"{operation.name} of {operation.texts} is outside of {self.root}")
        return places

    def _place(self, path):
        """The folder and the name of a path; the name of the root is empty."""
        path = posixpath.normpath(path)
        if path == self.root:
            return self.top, ""
        if not path.startswith(self.root + "/"):
            return None
        folder = self.top
        *parents, name = path[len(self.root) + 1 :].split("/")
        for parent in parents:
            folder = folder.now[parent]
        return folder, name

    # -- what may be left of it ------------------------------------------------------------------

    def build(self, target, survivors):
        """Write below `target` a disk as a loss of power may leave it.

        `survivors` decides: `.name()` whether a pending change of names is kept, and
        `.content(file)` what a file holds.
        """
        names = {}
        for op in self.pending_names:
            if survivors.name():
                for folder, name, what in op:
                    names.setdefault(id(folder), dict(folder.durable))
                    _set(names[id(folder)], name, what)
        self._build(self.top, target, names, survivors)

    def _build(self, folder, target, names, survivors):
        target.mkdir()
        for name, what in names.get(id(folder), folder.durable).items():
            if isinstance(what, Folder):
                self._build(what, target / name, names, survivors)
            elif not name.endswith(_REBUILT):
                (target / name).write_bytes(survivors.content(what))


def _loaded(source):
    if source.is_dir():
        names = {path.name: _loaded(path) for path in source.iterdir()}
        return Folder(dict(names), names)
    data = source.read_bytes()
    return File(data, [], bytearray(data))


def _set(names, name, what):
    if what is None:
        names.pop(name, None)
    else:
        names[name] = what


def after(content, changes):
    """The content once these writes are done: offsets with bytes, or with None to cut there."""
    buffer = bytearray(content)
    for at, data in changes:
        _apply(buffer, at, data)
    return bytes(buffer)


def _apply(buffer, at, data):
    if data is None:  # cut, or made longer with zeros
        del buffer[at:]
        buffer.extend(bytes(at - len(buffer)))
        return
    buffer.extend(bytes(max(0, at - len(buffer))))
    buffer[at : at + len(data)] = data
