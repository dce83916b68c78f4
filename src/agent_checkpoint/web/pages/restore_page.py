"""Restore of files from a checkpoint with preview and confirmation, as the command `restore`.

Only directories with this user's signature are restored: a checkpoint from elsewhere does not
choose where to write.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.agents.directory_keys import (
    directory_key,
    is_directory_key,
    is_foreign,
    trusted_directory,
)
from agent_checkpoint.agents.tracked_dir import open_tracked, restore_and_save
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.directory_claims import newest_readable
from agent_checkpoint.web.pages.confirmation import Pending, confirmation, keep, preview_page
from agent_checkpoint.web.plan_rows import plan_rows
from agent_checkpoint.web.rendering import Site, posted, query_params, required
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_reader import find
from agent_checkpoint.workspace.workspace import Workspace

_MAX_PATHS = 100


class PendingRestore(Pending):
    """A previewed restore, with its plan after the confirmation."""

    page = "restore_preview"

    def __init__(
        self,
        site: Site,
        target: Checkpoint,
        paths: list[str] | None,
        *,
        keep_git: bool,
        keep_unseen: bool,
    ) -> None:
        super().__init__()
        self.target, self.paths = target, paths
        self.directory, self.tree = _place(site, target)
        self._options: dict[str, Any] = {
            "exclude": [".git"] if keep_git else [],
            "keep_unseen": keep_unseen,
        }
        for path in paths or ():
            if not os.path.lexists(self.directory / path):
                find(self.tree, path)  # raises NotFoundError
        head = newest_readable(site.store, target.key) or target
        is_own = is_directory_key(site.store, head, self.directory)
        self._key = target.key if is_own else directory_key(site.store, self.directory)
        self.is_foreign = is_foreign(site.store, target)
        with self._opened(site) as workspace:
            self.notices = list(workspace.notices)
            self.plan = workspace.restore(self.tree, paths=paths, dry_run=True, **self._options)

    def run(self, site: Site, form: dict[str, str], name: str) -> None:
        """Restore. Raises PlanChangedError if files have changed since the preview."""
        with self._opened(site) as workspace:
            self.done = restore_and_save(
                workspace, self.target, self.tree, self.paths, only_if=self.plan, **self._options
            )

    def show(
        self, site: Site, name: str, step: str, *, status: int = 200, why: str = ""
    ) -> Response:
        """Return the page of a step."""
        plan = self.plan if self.done is None else self.done
        return _page(
            site,
            self.target,
            step=step,
            status=status,
            why=why,
            directory=self.directory,
            name=name,
            paths=self.paths,
            plan=plan,
            files=plan_rows(plan),
            is_foreign=self.is_foreign,
            notices=self.notices,
        )

    def _opened(self, site: Site) -> Workspace:
        rules = {"ignore": self.tree.ignore, "gitignore": self.tree.gitignore}
        workspace = open_tracked(self.directory, site.store, self._key, **rules)
        workspace.saved_in = (self.target.key,)
        return workspace


def restore_page(site: Site, request: Request) -> Response:
    """Ask what to restore. Scans no files."""
    params = query_params(request)
    target = site.find(required(params, "id"))
    directory, _ = _place(site, target)
    return _page(site, target, step="ask", directory=directory, path=params.get("path", ""))


@posted
def create_restore_preview(site: Site, form: dict[str, str]) -> Response:
    """Create a preview, which scans the files and restores nothing."""
    target = site.find(required(form, "id"))
    typed = [line.strip() for line in form.get("paths", "").splitlines()]
    paths = [form["path"]] if form.get("path") else [line for line in typed if line]
    if len(paths) > _MAX_PATHS:
        raise InvalidInputError(f"At most {_MAX_PATHS} paths can be restored at once.")
    pending = PendingRestore(
        site,
        target,
        paths or None,
        keep_git="keep_git" in form,
        keep_unseen="keep_unseen" in form,
    )
    return keep(site, pending)


restore_preview_page = preview_page(PendingRestore)
restore = confirmation(PendingRestore)


def _place(site: Site, target: Checkpoint) -> tuple[Path, Tree]:
    """Return the directory of a checkpoint and its files there.

    Raises:
        NotFoundError: the checkpoint has no files, or the directory is gone.
        InvalidInputError: the directory is not verified to be this user's.
    """
    tree = tree_in(site.store, target)
    if tree is None:
        raise NotFoundError("The checkpoint has no files.")
    directory = trusted_directory(site.store, target)
    if directory is None:
        raise InvalidInputError(
            f"The directory of {short_repr(target.id, 120)} is not known, or not verified to be "
            "yours. Use `agent-checkpoint restore ID --into DIR`."
        )
    if not directory.is_dir():
        raise NotFoundError(f"There is no directory {short_repr(str(directory), 200)}.")
    return directory, tree


def _page(
    site: Site, target: Checkpoint, *, step: str, status: int = 200, **values: Any
) -> Response:
    values = {"why": "", **values}
    return site.page("restore.html", status, target=target, key=target.key, step=step, **values)
