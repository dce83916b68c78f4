"""`doctor`: checks which features work on this machine, and how to enable the others."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_checkpoint import __version__
from agent_checkpoint.agents.upkeep.disk_budget import budget_state
from agent_checkpoint.backends.default_paths import default_store
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.extras import install_command, is_installed
from agent_checkpoint.cli.hints import error_text
from agent_checkpoint.cli.output import CommandResult, Output, format_count, format_size, one_line
from agent_checkpoint.cli.progress_backend import describe_store
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import CheckpointError, StateError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.seal import ENVIRONMENT, entry_key, secret_file

EXAMPLES = """
agent-checkpoint doctor                  check this machine and the default store
agent-checkpoint --store ./store doctor --json   check another store, print JSON
"""

_FRAMEWORKS = {
    "langgraph": "LangGraph",
    "deepagents": "Deep Agents",
    "claude-agent-sdk": "the Claude Agent SDK",
    "openai-agents": "the OpenAI Agents SDK",
    "pydantic-ai": "Pydantic AI",
}
"""The agent frameworks that have an extra."""


class _Check(NamedTuple):
    name: str
    works: bool
    detail: str
    use: str
    get: str


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Run all checks."""
    checks = [*_store(location), _secret(), *_kernel(), *_packages()]
    data = {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "checks": [check._asdict() for check in checks],
    }
    return CommandResult(data, lambda out: _show(out, data, checks))


def _store(location: StoreLocation) -> list[_Check]:
    use = "storing checkpoints"
    try:
        with location.manager() as manager:
            backend = manager.store.backend
            keys = len(manager.list_keys())
            properties = backend.properties
            where = describe_store(backend)
            budget = budget_state(backend)
    except (CheckpointError, OSError) as error:
        why, get = one_line(error_text(error), 500), "choose another store: --store PATH"
        return [_Check("store", False, why, use, get)]
    words = f"{one_line(where, 300)}, {format_count(keys, 'key')}"
    place, durability = properties.path, properties.durability
    can_write = place is None or os.access(_existing(place), os.W_OK | os.X_OK)
    get = "" if can_write else "make it writable, or choose another store: --store PATH"
    found = [_Check("store", can_write, words + ("" if can_write else ", not writable"), use, get)]
    if properties.shared:
        words = "writable by other users: only checkpoints signed with your secret are trusted"
        found.append(_Check("shared store", True, words, use, ""))
    if durability is not None:
        is_full = durability == "full"
        words = "survives power loss" if is_full else "power loss may lose the latest saves"
        get = "" if is_full else "durability=full in the store's URL"
        found.append(_Check("durability", is_full, f"{durability}: {words}", use, get))
    if place is not None:
        free, whole = _room(place)
        enough = free > 1 << 30
        words = f"{format_size(free)} free of {format_size(whole)}"
        get = "run agent-checkpoint prune, then gc; or move the store to another disk"
        found.append(_Check("free space", enough, words, use, "" if enough else get))
    if budget is not None:
        use = "a store that stays small by itself, with the hook or watch"
        words, problem = budget.words, budget.problem
        found.append(_Check("disk budget", problem is None, words, use, problem or ""))
    return found


def _secret() -> _Check:
    use = "signing pickles, shared stores and directory records"
    try:
        is_there = entry_key(create=False) is not None
    except StateError as error:
        get = f"fix the error above, or set {ENVIRONMENT}"
        return _Check("secret", False, one_line(error.__cause__ or error, 500), use, get)
    if os.environ.get(ENVIRONMENT):
        return _Check("secret", True, f"{ENVIRONMENT} is set", use, "")
    where = one_line(secret_file(), 300)
    return _Check("secret", True, where if is_there else f"{where}, created on first use", use, "")


def _room(place: Path) -> tuple[int, int]:
    found = os.statvfs(_existing(place))
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _existing(place: Path) -> Path:
    return next(path for path in (place, *place.parents) if path.exists())


def _kernel() -> list[_Check]:
    from agent_checkpoint.workspace.changes.changed_paths import WatchError
    from agent_checkpoint.workspace.changes.inotify import Watcher
    from agent_checkpoint.workspace.fork.drivers import best_driver, can_view
    from agent_checkpoint.workspace.fork.reflink import can_reflink

    try:
        Watcher().close()
        watch = (True, "the kernel reports changes")
    except (WatchError, OSError, AttributeError) as error:
        watch = (False, one_line(error, 200))
    try:
        near = _existing(default_store().parent)
        # Next to the store: the probes depend on the file system.
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
            "snapshots that read only changed paths",
            "Linux, with a sufficient fs.inotify.max_user_watches",
        ),
        _Check(
            "private views",
            views,
            where,
            "explore() trials with their files at the original path (mount namespaces)",
            "Linux, as root or with user namespaces enabled",
        ),
        _Check(
            "overlay mounts",
            overlay,
            where,
            "instant forks of directories of any size",
            "Linux, as root",
        ),
        _Check(
            "reflink",
            reflink,
            where,
            "copy-on-write file copies",
            "a file system with reflinks, such as btrfs or XFS",
        ),
    ]


def _tried(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except (CheckpointError, OSError):
        return False


def _packages() -> list[_Check]:
    from agent_checkpoint.store.objects import compression
    from agent_checkpoint.workspace.scan.reading import chunking

    rows = (
        (
            "zstd",
            compression.load_zstd() is not None,
            "stores created with compression=zstd",
            "fast",
        ),
        (
            "orjson",
            find_spec("orjson") is not None,
            "faster reading and writing of large states",
            "fast",
        ),
        ("isal", find_spec("isal") is not None, "faster compression with zlib", "fast"),
        (
            "chunking",
            chunking.is_installed(),
            "content-defined chunking: small changes of large files store little",
            "chunks",
        ),
        (
            "cloudpickle",
            is_installed("explore"),
            "explore() with functions defined in a notebook or REPL",
            "explore",
        ),
        ("rich", is_installed("cli"), "colors and progress bars", "cli"),
        ("web", is_installed("web"), "the timeline in a browser: agent-checkpoint ui", "web"),
        ("psycopg", is_installed("postgres"), "stores in PostgreSQL", "postgres"),
        ("opentelemetry", is_installed("otel"), "spans and metrics", "otel"),
        ("cryptography", is_installed("encryption"), "encrypted stores", "encryption"),
        ("mcp", is_installed("mcp"), "the MCP server: agent-checkpoint mcp", "mcp"),
        *(
            (extra, is_installed(extra), f"the adapter for {name}", extra)
            for extra, name in _FRAMEWORKS.items()
        ),
    )
    states = {True: "installed", False: "not installed"}
    return [
        _Check(
            name,
            works,
            f"{states[works]} (extra {extra})",
            use,
            install_command(extra),
        )
        for name, works, use, extra in rows
    ]


def _show(out: Output, data: dict[str, Any], checks: list[_Check]) -> None:
    out.line(
        f"agent-checkpoint {data['version']}, Python {data['python']}, {data['system']}",
        style="bold",
    )
    for check in checks:
        sign = ("✓" if check.works else "✗") if out.has_unicode else ("ok" if check.works else "--")
        out.line(f"{sign} {check.name}: {check.detail}", style="green" if check.works else "yellow")
        if not check.works:
            out.line(f"    for {check.use}")
            if check.get:
                out.line(f"    to enable: {check.get}")
    missing = [check for check in checks if not check.works]
    if not missing:
        out.line("All features work.")
    elif all(check.name != "store" for check in missing):
        out.line("All other features work.")
