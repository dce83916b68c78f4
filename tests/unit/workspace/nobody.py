"""Work as a user without privileges, also where the tests run as root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_checkpoint import CheckpointManager, Workspace

NOBODY = 65534


@contextmanager
def place_of_nobody() -> Iterator[Path]:
    """Give a directory that an unprivileged user owns; those of pytest are closed to others."""
    above = Path(tempfile.mkdtemp())
    try:
        root = above / "root"
        root.mkdir()
        if os.geteuid() == 0:
            above.chmod(0o755)
            os.chown(root, NOBODY, NOBODY)
        _load_everything(above)
        yield root
    finally:
        shutil.rmtree(above)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Do without the rights of root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _load_everything(above: Path) -> None:
    """Import what is imported late: the standard library may be closed to others, too."""
    root = above / "other"
    root.mkdir()
    (root / "file").write_text("some")
    with Workspace(root, CheckpointManager().store) as workspace:
        tree = workspace.snapshot()
        (root / "file").write_text("other")
        workspace.diff(tree).text()
        workspace.restore(tree)
