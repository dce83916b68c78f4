"""`doctor`: what works on this machine, what it is good for, and how to get it."""

from __future__ import annotations

import os
import platform
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from agent_checkpoint import __version__
from agent_checkpoint.backends.default_paths import default_store
from agent_checkpoint.cli.hints import in_commands
from agent_checkpoint.cli.output import Answer, Out, format_count, format_size, one_line
from agent_checkpoint.cli.progress_backend import place_of
from agent_checkpoint.cli.prompts import add_json
from agent_checkpoint.cli.store_location import Places
from agent_checkpoint.errors import CheckpointError, StateError
from agent_checkpoint.seal import ENVIRONMENT, entry_key, secret_file

EXAMPLES = """
agent-checkpoint doctor                  of this machine and your store
agent-checkpoint --store ./store doctor --json
"""


class _Check(NamedTuple):
    name: str
    works: bool
    detail: str
    use: str
    get: str


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    add_json(parser)


def run(args: Namespace, places: Places) -> Answer:
    """Try everything."""
    checks = [*_store(places), _secret(), *_kernel(), *_packages()]
    data = {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "checks": [check._asdict() for check in checks],
    }
    return Answer(data, lambda out: _show(out, data, checks))


def _store(places: Places) -> list[_Check]:
    use = "keeping checkpoints"
    try:
        with places.manager() as manager:
            backend: Any = manager.store.backend
            keys = len(manager.list_keys())
            place = getattr(backend, "path", None)
            durability = getattr(backend, "durability", None)
            where = place_of(backend)
    except (CheckpointError, OSError) as error:
        return [
            _Check(
                "store",
                False,
                one_line(in_commands(str(error)), 500),
                use,
                "name another: --store PATH",
            )
        ]
    words = f"{one_line(where, 300)}, {format_count(keys, 'key')}"
    can_write = place is None or os.access(_existing(Path(place)), os.W_OK | os.X_OK)
    if can_write:
        found = [_Check("store", True, words, use, "")]
    else:
        get = "make it writable, or name another: --store PATH"
        found = [_Check("store", False, f"{words}, and it cannot be written", use, get)]
    if backend.shared:
        words = "others may write it: only checkpoints sealed under your secret are used"
        found.append(_Check("shared store", True, words, use, ""))
    if durability is not None:
        is_full = durability == "full"
        words = "survives a loss of power" if is_full else "may lose the last saves with the power"
        get = "" if is_full else "durability=full in the store's URL"
        found.append(_Check("durability", is_full, f"{durability}: {words}", use, get))
    if place is not None:
        free, whole = _room(Path(place))
        enough = free > 1 << 30
        words = f"{format_size(free)} free of {format_size(whole)}"
        get = "agent-checkpoint prune, then gc; or a store on another disk"
        found.append(_Check("free space", enough, words, use, "" if enough else get))
    return found


def _secret() -> _Check:
    use = "sealed pickles, shared stores, and telling your own records from others'"
    try:
        is_there = entry_key(create=False) is not None
    except StateError as error:
        get = f"as it says, or set {ENVIRONMENT}"
        return _Check("secret", False, one_line(error.__cause__ or error, 500), use, get)
    if os.environ.get(ENVIRONMENT):
        return _Check("secret", True, f"{ENVIRONMENT} is set", use, "")
    where = one_line(secret_file(), 300)
    return _Check("secret", True, where if is_there else f"{where}, when first needed", use, "")


def _room(place: Path) -> tuple[int, int]:
    found = os.statvfs(_existing(place))
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _existing(place: Path) -> Path:
    return next(path for path in (place, *place.parents) if path.exists())


def _kernel() -> list[_Check]:
    from agent_checkpoint.workspace.changes.inotify import Watcher, WatchError
    from agent_checkpoint.workspace.fork.drivers import best_driver, can_view
    from agent_checkpoint.workspace.fork.tree_copy import can_reflink

    try:
        Watcher().close()
        watch = (True, "changes are told by the kernel")
    except (WatchError, OSError, AttributeError) as error:
        watch = (False, one_line(error, 200))
    try:
        near = _existing(default_store().parent)
        # What a probe leaves when it is killed goes with the next temporary directory.
        base = near if os.access(near, os.W_OK) else Path(tempfile.gettempdir())
        with tempfile.TemporaryDirectory(dir=base, prefix=".agent-checkpoint-doctor-") as name:
            probe = Path(name)
            where = f"in {base}"
            views = _tried(lambda: can_view(probe))
            overlay = _tried(lambda: best_driver(probe) == "overlay")
            reflink = _tried(lambda: can_reflink(probe))
    except (CheckpointError, OSError) as error:
        where, views, overlay, reflink = one_line(error, 200), False, False, False
    return [
        _Check(
            "inotify",
            *watch,
            "snapshots that look only at what changed",
            "Linux, and enough of fs.inotify.max_user_watches",
        ),
        _Check(
            "private views",
            views,
            where,
            "trials of explore() that see their files at the original path",
            "Linux, as root or with user namespaces allowed",
        ),
        _Check(
            "overlay mounts",
            overlay,
            where,
            "forks of directories at once, whatever their size",
            "Linux, as root",
        ),
        _Check(
            "reflink",
            reflink,
            where,
            "copies of files that share their blocks",
            "a file system such as btrfs or XFS",
        ),
    ]


def _tried(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except (CheckpointError, OSError):
        return False


def _packages() -> list[_Check]:
    from agent_checkpoint.store import canonical_json
    from agent_checkpoint.store.objects import compression
    from agent_checkpoint.workspace.scan import chunking

    rows = (
        ("zstd", compression.zstd is not None, "stores made with compression=zstd", "fast"),
        (
            "orjson",
            canonical_json.orjson is not None,
            "large states read and written faster",
            "fast",
        ),
        (
            "chunking",
            chunking._is_installed(),
            "small changes in large files cost little",
            "chunks",
        ),
        (
            "cloudpickle",
            find_spec("cloudpickle") is not None,
            "explore() with functions of a notebook or prompt",
            "explore",
        ),
        ("rich", find_spec("rich") is not None, "tables, colours and progress here", "cli"),
    )
    return [
        _Check(
            name,
            works,
            "installed" if works else "not installed",
            use,
            f"pip install 'agent-checkpoint[{extra}]'",
        )
        for name, works, use, extra in rows
    ]


def _show(out: Out, data: dict[str, Any], checks: list[_Check]) -> None:
    out.line(
        f"agent-checkpoint {data['version']}, Python {data['python']}, {data['system']}",
        style="bold",
    )
    for check in checks:
        sign = ("✓" if check.works else "✗") if out.has_signs else ("ok" if check.works else "--")
        out.line(f"{sign} {check.name}: {check.detail}", style="green" if check.works else "yellow")
        if not check.works:
            out.line(f"    for {check.use}")
            if check.get:
                out.line(f"    get it: {check.get}")
    missing = [check for check in checks if not check.works]
    if not missing:
        out.line("All of it works.")
    elif all(check.name != "store" for check in missing):
        out.line("The rest works without these.")
