"""Applies a restore plan. Owns the order of steps and the check before each step.

All contents are staged before any file is changed. Then entries are deleted, the deepest first, and
created, each file by one rename. Before and after each step the old entry is compared with the
safety checkpoint. If they differ, the entry is left unchanged.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import Hint, IntegrityError, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.restore.entry_swap import EntrySwap, check
from agent_checkpoint.workspace.restore.journal import Journal
from agent_checkpoint.workspace.restore.plan import Plan, is_git_index
from agent_checkpoint.workspace.restore.staging import (
    FSYNC_EACH_MAX,
    Staging,
    slot_name,
    sync_file_system,
)
from agent_checkpoint.workspace.safe_open import EntryChanged, directory_below, exists, opened_file
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.tree.compare import Change
from agent_checkpoint.workspace.tree.dir_state import stat_signature
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, LINK, MODE_BITS

_OLDEST_MTIME = 1  # git treats 0 as "there is no index"
CHANGED = "it changed during the restore"
RestoreProgress = Callable[[int, int], None]
"""Called during a restore with the number of files written so far, and their total."""
_REPORT_FILES = 256
"""Progress is reported after this many more files."""


class PlanExecutor:
    """Applies one plan, from staging to the last rename."""

    def __init__(
        self,
        root: int,
        plan: Plan,
        *,
        is_begun: bool = False,
        progress: RestoreProgress | None = None,
    ) -> None:
        """Prepare to apply a plan.

        Args:
            root: the descriptor of the workspace directory.
            plan: the steps to apply.
            is_begun: the journal is already on disk (crash recovery).
            progress: called with the numbers of files.
        """
        self._root = root
        self._plan = plan
        self._is_begun = is_begun
        self._progress = progress
        self.failed: dict[str, str] = {}
        """Paths whose step failed, with the reason."""
        self.left: dict[str, str] = {}
        """Paths not changed because they differ from the safety checkpoint, with the reason."""
        self.touched: dict[bytes, set[bytes]] = {}
        """Names that were created, changed or removed, by directory."""
        self.entries = EntrySwap(root)
        """Swaps entries; records concurrent versions that were kept."""
        self._modes: dict[bytes, int] = {}
        """Final modes of directories that are new, or were made writable for the restore."""

    def run(self, journal: Journal, decide: Callable[[], object] = lambda: None) -> None:
        """Apply the plan.

        Args:
            journal: the journal of the change.
            decide: called when everything is staged, before any entry is changed.

        Raises:
            IntegrityError: a stored file content is missing or damaged; no file was changed.
            WorkspaceError: two names differ only in case on a case-insensitive file system; no file
                was changed.
            OSError: staging failed; no file was changed.
        """
        steps = self._plan.steps
        files = [step for step in steps if _brings_content(step) or self._is_hard_linked(step)]
        self._check_free_space(files)
        staging = Staging(self._root, journal, is_begun=self._is_begun)
        try:
            if _ignores_case(self._root):
                _refuse_collisions(steps)
            staged = self._stage(files, staging)
            staging.begin()
        except BaseException:
            staging.cancel()
            raise
        try:
            decide()
            for step in reversed(steps):
                if step.removes_folder or _removes_file(step):
                    self._do(step, lambda step, fd: self._remove(step, fd, staging))
            for step in steps:
                if step.after is not None:
                    self._do(step, lambda step, fd: self._make(step, fd, staging, staged))
            self._set_modes()
            self._sync()
            self.entries.rescue(staging.files, {slot_name(step.path): step for step in steps})
        except BaseException:
            staging.close()  # the journal stays: crash recovery rolls it forward, if it is decided
            raise
        staging.end()

    def _stage(self, files: list[Change], staging: Staging) -> set[bytes]:
        """Write the new file contents to the staging directory; return the paths of the files.

        Raises:
            IntegrityError: a stored file content is missing or damaged; the message contains the
                path.
            OSError: a staged file cannot be written; `filename` is set.
        """
        contents = [(step.path, step.after) for step in files if step.after is not None]
        written = staging.put(contents, self._plan.tree.get)
        for number, step in enumerate(files, 1):
            try:
                next(written)
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fsdecode(step.path)) from error
            except IntegrityError as error:
                # Contents are read in batches, so the damaged content may belong to another file.
                bad = (item.path for item in files if item.after and item.after.ref in str(error))
                path = short_repr(os.fsdecode(next(bad, step.path)))
                raise type(error)(
                    f"{path} cannot be restored. {error.with_hint()}", hint=error.hint
                ) from error
            is_due = number % _REPORT_FILES == 0 or number == len(files)
            if self._progress is not None and is_due:
                self._progress(number, len(files))
        return {step.path for step in files}

    def _check_free_space(self, files: Iterable[Change]) -> None:
        """Check that the file system has space for the files to stage.

        Raises:
            OSError: not enough space (ENOSPC).
        """
        disk = os.fstatvfs(self._root)
        size = sum(step.after.size for step in files if step.after is not None)
        if size > disk.f_bavail * disk.f_frsize > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # -- one step --------------------------------------------------------------------------------

    def _is_hard_linked(self, step: Change) -> bool:
        """Return whether the file has other hard links, which a mode change would affect."""
        if not step.keeps_content or step.after is None or step.after.type != FILE:
            return False
        directory, _, name = step.path.rpartition(b"/")
        with suppress(OSError), directory_below(self._root, directory) as fd:
            return os.stat(name, dir_fd=fd, follow_symlinks=False).st_nlink > 1
        return False

    def _do(self, step: Change, act: Callable[[Change, int], None]) -> None:
        directory, _, name = step.path.rpartition(b"/")
        shown = os.fsdecode(step.path)
        if shown in self.left or shown in self.failed:
            return
        above = os.fsdecode(directory)
        if above in self.left:
            self.left[shown] = self.left[above]
            return
        try:
            with self._writable(directory) as fd:
                self.touched.setdefault(directory, set()).add(name)
                act(step, fd)
        except EntryChanged:
            self.left[shown] = CHANGED
        except FileExistsError:
            self.left[shown] = "another entry was created at its path"
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                self.left[shown] = "an entry was created in it"
                self._note_names_in(step.path)
            else:
                self.failed[shown] = error.strerror or type(error).__name__

    def _note_names_in(self, path: bytes) -> None:
        """Make the final scan find entries created in a directory, even without a watcher."""
        with suppress(OSError), directory_below(self._root, path) as fd:
            self.touched.setdefault(path, set()).update(map(os.fsencode, os.listdir(fd)))

    def _remove(self, step: Change, fd: int, staging: Staging) -> None:
        if not step.removes_folder:
            self.entries.remove(step, fd, staging)
            return
        with suppress(FileNotFoundError):  # already removed
            check(step, fd)
            os.rmdir(step.name, dir_fd=fd)

    def _make(self, step: Change, fd: int, staging: Staging, staged: set[bytes]) -> None:
        name, after = step.name, step.after
        if after is None:
            return
        if step.keeps_content and step.path not in staged:
            self._change_mode(step, fd, after.mode)
        elif after.type == FOLDER:
            os.mkdir(name, 0o700, dir_fd=fd)
            self._modes[step.path] = after.mode
        else:
            if after.type == LINK:
                os.symlink(after.target, slot_name(step.path), dir_fd=staging.files)
            elif is_git_index(step.path):
                # Git trusts its cached stat data of files older than the index. With the oldest
                # mtime, it compares every file again.
                times = (_OLDEST_MTIME, _OLDEST_MTIME)
                os.utime(slot_name(step.path), times, dir_fd=staging.files, follow_symlinks=False)
            if step.before is None or step.removes_folder:
                self.entries.add(step, fd, staging)
            else:
                self.entries.replace(step, fd, staging)

    def _change_mode(self, step: Change, fd: int, mode: int) -> None:
        look = check(step, fd)
        if step.after is not None and step.after.type == FOLDER:
            self._modes[step.path] = mode
            return
        with opened_file(fd, step.name) as file:
            if stat_signature(file.stat) != stat_signature(look.stat):
                raise EntryChanged
            os.fchmod(file.fd, mode)

    # -- directories -----------------------------------------------------------------------------

    @contextmanager
    def _writable(self, path: bytes) -> Iterator[int]:
        """Open a directory.

        If this user owns it and it is read-only, make it writable until `_set_modes`.
        """
        with directory_below(self._root, path) as fd:
            found = os.fstat(fd)
            if found.st_mode & 0o300 != 0o300 and found.st_uid == os.geteuid():
                self._modes.setdefault(path, found.st_mode & MODE_BITS)
                os.fchmod(fd, stat.S_IMODE(found.st_mode) | 0o700)
            yield fd

    def _set_modes(self) -> None:
        """Set the final modes of directories, the deepest first."""
        for path in sorted(self._modes, reverse=True):
            try:
                with directory_below(self._root, path) as fd:
                    mode = stat.S_IMODE(os.fstat(fd).st_mode)
                    if mode & MODE_BITS != self._modes[path]:
                        os.fchmod(fd, mode & ~MODE_BITS | self._modes[path])
            except (FileNotFoundError, NotADirectoryError):
                continue  # the directory was made writable and then removed
            except OSError as error:
                self.failed[os.fsdecode(path)] = error.strerror or type(error).__name__

    def _sync(self) -> None:
        """Make renames and removals durable."""
        if len(self.touched) > FSYNC_EACH_MAX:
            sync_file_system(self._root)
            return
        for path in self.touched:
            removed = suppress(FileNotFoundError, NotADirectoryError)
            with removed, directory_below(self._root, path) as fd:
                os.fsync(fd)


def _brings_content(step: Change) -> bool:
    return step.after is not None and step.after.type == FILE and not step.keeps_content


def _removes_file(step: Change) -> bool:
    """Return whether a file or link is removed, possibly to be replaced by a directory."""
    was_file = step.before is not None and step.before.type != FOLDER
    return was_file and (step.after is None or step.after.type == FOLDER)


def _ignores_case(root: int) -> bool:
    """Return whether a directory is case-insensitive, tested with the staging directory in it.

    Raises:
        OSError: it cannot be read.
    """
    return exists(STAGING.upper(), root)


def _refuse_collisions(steps: Iterable[Change]) -> None:
    """Raise an error if two entries to be created differ only in case.

    Raises:
        WorkspaceError: there are two such entries.
    """
    with block_forks():
        import unicodedata

    created: dict[str, bytes] = {}
    for step in steps:
        if step.after is not None:
            folded = unicodedata.normalize("NFC", os.fsdecode(step.path).casefold())
            other = created.setdefault(folded, step.path)
            if other != step.path:
                raise WorkspaceError(
                    f"{short_repr(os.fsdecode(other))} and {short_repr(os.fsdecode(step.path))} "
                    "differ only in case, and this file system is case-insensitive. No file was "
                    "changed.",
                    hint=Hint(
                        "Restore one of them with paths=, or restore to another file system.",
                        "paths",
                    ),
                )
