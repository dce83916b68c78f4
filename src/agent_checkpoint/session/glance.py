"""A session that is looked at and not opened. Owns telling what a rollback would do.

Whoever opens a session takes it over. Who only wants to know disturbs nobody: nothing is appended
to its key or its ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.errors import InvalidInputError, NotFoundError, WorkspaceError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import show
from agent_checkpoint.session.effects import Effects
from agent_checkpoint.session.files import Files
from agent_checkpoint.session.meta import read_meta
from agent_checkpoint.session.report import RollbackReport
from agent_checkpoint.session.rollback import Rollback
from agent_checkpoint.session.saving import Saving
from agent_checkpoint.session.targets import find_target
from agent_checkpoint.session.work import Work
from agent_checkpoint.store.ledger import Epoch, Ledger
from agent_checkpoint.workspace.naming import PART as FILES
from agent_checkpoint.workspace.staging import STAGING
from agent_checkpoint.workspace.workspace import Workspace


class Foresight(NamedTuple):
    """What a rollback would do, and why nothing is said of the files, if so."""

    report: RollbackReport
    no_files: str | None


def foresee_rollback(
    manager: CheckpointManager,
    key: str,
    to: str,
    *,
    parts: Iterable[str] | None = None,
    keep_unseen: bool = False,
    look: bool = False,
) -> Foresight:
    """Return what a rollback of a session would do, without opening it.

    Args:
        manager: of the store.
        key: the session.
        to: the checkpoint to go back to.
        parts: what goes back; everything if not given.
        keep_unseen: as for `Session.rollback`.
        look: look at the files of its directory, too; contents that are new there are stored.

    Raises:
        NotFoundError: there is no such session or checkpoint.
        InvalidInputError: it is no session, or the checkpoint is none of its past.
        CheckpointError: something cannot be read.
    """
    work = _glance(manager, key)
    way = Rollback(work, find_target(work, to, 0), parts=parts, keep_unseen=keep_unseen)
    if FILES not in way.report.parts:
        return Foresight(way.report, None)
    why = "the directory was not looked at" if not look else _why_no_files(work)
    if why is not None:
        return Foresight(way.report, why)
    try:
        with Workspace(str(work._meta.workspace), manager.store, watch=False) as workspace:
            work._files = Files(workspace)
            return Foresight(way.preview(), None)
    except WorkspaceError as error:
        return Foresight(way.report, str(error))


def _glance(manager: CheckpointManager, key: str) -> Work:
    store = manager.store
    head = store.head(key)
    if head is None:
        raise NotFoundError(f"There is no session {show(key)}.")
    meta = read_meta(store, head)
    if meta is None:
        raise InvalidInputError(f"{show(key)} is no session: nothing in it can be rolled back.")
    if meta.key != key:
        meta = meta.fork(key, head.parents[0] if head.kind == "fork" else None)
    work = Work(key, None, None, "manual")
    work.manager, work._owns_manager = manager, False
    work._meta = meta
    work._ledger = Ledger(store, meta.family)
    work._ledger.refresh()
    work._epoch = Epoch(key, 0)
    work._effects = Effects(work._ledger, meta, work._epoch, work._calls.owner)
    work._saving = Saving(manager, meta, head)
    return work


def _why_no_files(work: Work) -> str | None:
    """Return why the directory of a session cannot be looked at from here, if so."""
    said = work._meta.workspace
    if said is None:
        return "the session has no directory of its own: it is a fork, and its files are gone"
    if not work._meta.is_bound:
        return "it was not you who said where its files are, or on another machine"
    place = Path(said)
    if not place.is_dir():
        return f"there is no directory {show(said, 200)}: it will be made"
    if (place / STAGING.decode()).exists():
        return "a restore was interrupted there; it is finished when the session is opened"
    return None
