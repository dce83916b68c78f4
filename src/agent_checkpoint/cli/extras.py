"""The optional dependencies: what each extra is for, and how to install it on this machine."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec

from agent_checkpoint.errors import CheckpointError

MODULES = {
    "fast": ("orjson", "isal"),
    "chunks": ("pyfastcdc",),
    "explore": ("cloudpickle",),
    "cli": ("rich",),
    "web": ("jinja2", "starlette", "uvicorn"),
    "postgres": ("psycopg",),
    "otel": ("opentelemetry",),
    "encryption": ("cryptography",),
    "mcp": ("mcp",),
    "langgraph": ("langgraph",),
    "deepagents": ("deepagents",),
    "claude-agent-sdk": ("claude_agent_sdk",),
    "openai-agents": ("agents",),
    "pydantic-ai": ("pydantic_ai",),
}
"""The modules of each extra, apart from zstd, which newer versions of Python have."""


def is_installed(extra: str) -> bool:
    """Return whether all modules of an extra are installed."""
    return all(find_spec(module) is not None for module in MODULES[extra])


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    It names the packages, not the extra: pip can install these also if this package itself came
    from a file, a repository or a source tree, and is on no index.
    """
    packages = _requirements(extra) or list(MODULES[extra])
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *packages])


def missing_extra(extra: str, what: str) -> CheckpointError:
    """Return the error for a feature whose extra is not installed."""
    missing = [module for module in MODULES[extra] if find_spec(module) is None]
    return CheckpointError(
        f"{what} needs the extra {extra!r} ({', '.join(missing)}), which is not installed. "
        f"Run: {install_command(extra)}"
    )


def _requirements(extra: str) -> list[str]:
    """Return the requirements of an extra from the metadata of this package, if it has any."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("agent-checkpoint") or []
    except PackageNotFoundError:  # a source tree on the path
        return []
    found = []
    clause = re.compile(rf"(\s+and\s+)?extra\s*==\s*['\"]{extra}['\"]")
    for line in lines:
        name, _, marker = line.partition(";")
        if clause.search(marker):
            marker = clause.sub("", marker).strip()
            found.append(f"{name.strip()}; {marker}" if marker else name.strip())
    return found
