"""A plan carried out. Owns the order of steps and the look before each; decides nothing.

Contents are staged before anything is touched. Then what has to go goes, the deepest first, and
what has to come comes, each file in one rename. Before a step and after it, what was there must be
what the safety checkpoint holds: if it is not, it is left alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.restore.case_insensitive import ignores_case, refuse_collisions
from agent_checkpoint.workspace.restore.entry_swap import EntrySwap, StoredVersions, check
from agent_checkpoint.workspace.restore.plan import Plan, Step, is_git_index
from agent_checkpoint.workspace.restore.staging import (
    FEW,
    Journal,
    Staging,
    slot_name,
    sync_file_system,
)
from agent_checkpoint.workspace.safe_open import Changing, directory_below, opened_file
from agent_checkpoint.workspace.tree.dir_state import stamp_of
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, LINK, MODE_BITS

_LONG_AGO = 1  # 0 would mean to git that there is no index
CHANGED = "it changed while the restore was under way"


class PlanExecutor:
    """One restore, from staging to the last rename."""

    def __init__(self, root: int, plan: Plan, *, is_begun: bool = False) -> None:
        """Prepare.

        Args:
            root: the directory, open.
            plan: what is to be done.
            is_begun: whether another began it, whose journal stays until it is finished.
        """
        self._root = root
        self._plan = plan
        self._is_begun = is_begun
        self.failed: dict[str, str] = {}
        """What could not be done, and why."""
        self.left: dict[str, str] = {}
        """What turned out to be no longer what the safety checkpoint holds."""
        self.touched: dict[bytes, set[bytes]] = {}
        """The names that were made, changed or removed, by directory."""
        self.entries = EntrySwap(root)
        """Puts files in place; knows what was kept of others."""
        self._modes: dict[bytes, int] = {}
        """Directories that have got another mode for a while, or are to get one at last."""

    def run(self, journal: Journal) -> None:
        """Carry the plan out.

        Raises:
            IntegrityError: a content is missing or damaged; nothing was touched.
            WorkspaceError: two names would be one here; nothing was touched.
            OSError: it cannot be staged; nothing was touched.
        """
        steps = self._plan.steps
        files = [step for step in steps if _brings_content(step) or self._is_shared(step)]
        self._check_room(files)
        staging = Staging(self._root, journal, is_begun=self._is_begun)
        try:
            if ignores_case(self._root):
                refuse_collisions(steps)
            staged = self._stage(files, staging)
            if self._is_begun:
                staging.go_on()
            else:
                staging.begin(journal)
        except BaseException:
            if self._is_begun:
                staging.close()
            else:
                staging.end()
            raise
        try:
            for step in reversed(steps):
                if step.removes_folder or _makes_room(step):
                    self._do(step, lambda step, fd: self._remove(step, fd, staging))
            for step in steps:
                if step.after is not None:
                    self._do(step, lambda step, fd: self._make(step, fd, staging, staged))
            self._set_modes()
            self._sync()
            known = {
                slot_name(step.path): StoredVersions(step.path, step.before, step.after)
                for step in steps
            }
            self.entries.rescue(staging.files, known)
        except BaseException:
            staging.close()  # the journal stays: the next who opens the workspace goes on
            raise
        staging.end()

    def _stage(self, files: list[Step], staging: Staging) -> set[bytes]:
        """Write contents beside their places; return the paths. An error names the file.

        Raises:
            IntegrityError: one is missing or damaged.
            OSError: one cannot be written.
        """
        contents = ((step.path, step.after) for step in files if step.after is not None)
        written = staging.put(contents, self._plan.tree.get)
        for step in files:
            try:
                next(written)
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fsdecode(step.path)) from error
            except IntegrityError as error:
                # Contents are read some at a time: it may be that of another one.
                bad = (item.path for item in files if item.after and item.after.ref in str(error))
                path = short_repr(os.fsdecode(next(bad, step.path)))
                raise type(error)(f"{path} cannot be restored. {error}") from error
        return {step.path for step in files}

    def _check_room(self, files: Iterable[Step]) -> None:
        """See to it that what is to be staged fits on the disk, before a part of it fills it up.

        Raises:
            OSError: it does not.
        """
        found = os.fstatvfs(self._root)
        size = sum(step.after.size for step in files if step.after is not None)
        if size > found.f_bavail * found.f_frsize > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # -- one step --------------------------------------------------------------------------------

    def _is_shared(self, step: Step) -> bool:
        """Tell whether a new mode would also be that of other names, perhaps outside."""
        if not step.keeps_content or step.after is None or step.after.type != FILE:
            return False
        directory, _, name = step.path.rpartition(b"/")
        with suppress(OSError), directory_below(self._root, directory) as fd:
            return os.stat(name, dir_fd=fd, follow_symlinks=False).st_nlink > 1
        return False

    def _do(self, step: Step, act: Callable[[Step, int], None]) -> None:
        directory, _, name = step.path.rpartition(b"/")
        shown = os.fsdecode(step.path)
        if shown in self.left or shown in self.failed:
            return
        above = os.fsdecode(directory)
        if above in self.left:  # something else is there
            self.left[shown] = self.left[above]
            return
        try:
            with self._writable(directory) as fd:
                self.touched.setdefault(directory, set()).add(name)
                act(step, fd)
        except Changing:
            self.left[shown] = CHANGED
        except FileExistsError:
            self.left[shown] = "something has taken its place"
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                self.left[shown] = "something has come into it"
            else:
                self.failed[shown] = error.strerror or type(error).__name__

    def _remove(self, step: Step, fd: int, staging: Staging) -> None:
        if not step.removes_folder:
            self.entries.remove(step, fd, staging)
            return
        with suppress(FileNotFoundError):  # somebody was faster
            check(step, fd)
            os.rmdir(_name(step), dir_fd=fd)

    def _make(self, step: Step, fd: int, staging: Staging, staged: set[bytes]) -> None:
        name, after = _name(step), step.after
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
                # Git trusts what it noted of files that are older than its index. This one is as
                # old as can be: it looks at every file once more.
                times = (_LONG_AGO, _LONG_AGO)
                os.utime(slot_name(step.path), times, dir_fd=staging.files, follow_symlinks=False)
            if step.before is None or step.removes_folder:
                self.entries.add(step, fd, staging)
            else:
                self.entries.replace(step, fd, staging)

    def _change_mode(self, step: Step, fd: int, mode: int) -> None:
        look = check(step, fd)
        if step.after is not None and step.after.type == FOLDER:
            self._modes[step.path] = mode
            return
        with opened_file(fd, _name(step)) as file:
            if stamp_of(file.stat) != stamp_of(look.stat):
                raise Changing
            os.fchmod(file.fd, mode)

    # -- directories -----------------------------------------------------------------------------

    @contextmanager
    def _writable(self, path: bytes) -> Iterator[int]:
        """Give a directory, opened; if it is ours and refuses changes, they are allowed for now."""
        with directory_below(self._root, path) as fd:
            found = os.fstat(fd)
            if found.st_mode & 0o300 != 0o300 and found.st_uid == os.geteuid():
                self._modes.setdefault(path, found.st_mode & MODE_BITS)
                os.fchmod(fd, stat.S_IMODE(found.st_mode) | 0o700)
            yield fd

    def _set_modes(self) -> None:
        """Give directories the modes that they are to have, the deepest first."""
        for path in sorted(self._modes, reverse=True):
            try:
                with directory_below(self._root, path) as fd:
                    mode = stat.S_IMODE(os.fstat(fd).st_mode)
                    if mode & MODE_BITS != self._modes[path]:
                        os.fchmod(fd, mode & ~MODE_BITS | self._modes[path])
            except (FileNotFoundError, NotADirectoryError):
                continue  # it had to be changed to be removed
            except OSError as error:
                self.failed[os.fsdecode(path)] = error.strerror or type(error).__name__

    def _sync(self) -> None:
        """Make durable what was renamed and removed."""
        if len(self.touched) > FEW:
            sync_file_system(self._root)
            return
        for path in self.touched:
            removed = suppress(FileNotFoundError, NotADirectoryError)
            with removed, directory_below(self._root, path) as fd:
                os.fsync(fd)


def _name(step: Step) -> bytes:
    return step.path.rpartition(b"/")[2]


def _brings_content(step: Step) -> bool:
    return step.after is not None and step.after.type == FILE and not step.keeps_content


def _makes_room(step: Step) -> bool:
    """Tell whether a file or link goes, for good or for a directory."""
    was_file = step.before is not None and step.before.type != FOLDER
    return was_file and (step.after is None or step.after.type == FOLDER)
