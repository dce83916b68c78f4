"""The process of one trial. Owns its startup order and its files; writes its result to a file.

It enters its mount namespace before any user code is loaded, so that user code sees only the files
of the fork.

    <private>/job           the job, as JSON
    <private>/payload       strategy, variant, agent and parts, pickled
    <private>/output        stdout and stderr of the trial
    <private>/result        the result, as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from agent_checkpoint.backends.os_support.posix import open_private, url_quoted
from agent_checkpoint.core.stateful import is_version
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.store.objects.compression import find_zstd
from agent_checkpoint.workspace.fork.isolated import ForkNamespace
from agent_checkpoint.workspace.fork.supervised_command import end_with

JOB, PAYLOAD, OUTPUT, RESULT = "job", "payload", "output", "result"
_USED = (
    "logging",
    "encodings.ascii",
    "multiprocessing.spawn",
    "orjson",
    "platform",
    "uuid",
    "agent_checkpoint.backends.sqlite",
    "agent_checkpoint.core.codec.arrays",
    "agent_checkpoint.core.codec.pickles",
    "agent_checkpoint.core.codec.structures",
    "agent_checkpoint.core.external_snapshot",
    "agent_checkpoint.core.live_objects",
    "agent_checkpoint.core.loading",
    "agent_checkpoint.core.state_codec",
    "agent_checkpoint.core.state_diff",
    "agent_checkpoint.manager.expected_head",
    "agent_checkpoint.manager.manager",
    "agent_checkpoint.session.explore.payload",
    "agent_checkpoint.session.explore.trial_run",
    "agent_checkpoint.session.loop.tool_calls",
    "agent_checkpoint.session.rollback.rollback_target",
    "agent_checkpoint.session.session",
    "agent_checkpoint.session.tool_runner",
    "agent_checkpoint.session.tools.recorded_calls",
    "agent_checkpoint.store.archive.importer",
    "agent_checkpoint.workspace.fork.fork_directory",
    "agent_checkpoint.workspace.tree.workspace_diff",
    "agent_checkpoint.workspace.workspace",
)
"""Modules that many trials load, with those that they import. None has threads or connections."""


def files_key(key: str) -> str:
    """Return the key of the safety checkpoint of a trial that restores its files from the store."""
    return f"{key}/files"


def preload() -> None:
    """Import what every trial needs, and nothing of the user's."""
    for name in _USED:
        with suppress(ImportError):  # orjson
            import_module(name)
    # What is found out once a process: patterns that are compiled, and a module that is looked for.
    for used in (parse_checkpoint_id, url_quoted, is_version):
        used("key_1-1")
    find_zstd()


def main() -> NoReturn:
    """Run the trial in the directory of `argv[1]`; `argv[2]` is the process that started it."""
    run_trial(Path(sys.argv[1]), int(sys.argv[2]))


def run_trial(private: Path, parent: int) -> NoReturn:
    """Run the trial in a directory, and exit.

    Args:
        private: the directory with the job.
        parent: the process that started this one. When it ends, this one is killed.
    """
    began = time.monotonic()
    spec = json.loads((private / JOB).read_text())
    try:
        result = _run(spec, private, parent, began)
    except (CheckpointError, OSError) as error:
        result = {"error": f"The fork could not be created: {error}"}
    except Exception as error:  # raised by user code while it was loaded
        result = {"error": f"The trial could not be loaded: {describe_error(error)}"}
    draft = private / f"{RESULT}.draft"
    with open(draft, "w", opener=open_private) as file:
        file.write(json.dumps(result))
    draft.replace(private / RESULT)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a normal exit would wait for threads that the strategy left running


def _run(spec: dict[str, Any], private: Path, parent: int, began: float) -> dict[str, Any]:
    view = None if spec["view"] is None else ForkNamespace(spec["view"])
    end_with(parent)
    if spec["files"] is not None:
        os.chdir(spec["files"])
    from agent_checkpoint.manager.manager import CheckpointManager
    from agent_checkpoint.session.explore.payload import decode_payload
    from agent_checkpoint.session.explore.trial_run import run_strategy
    from agent_checkpoint.session.session import open_branch
    from agent_checkpoint.session.subagent import state_of
    from agent_checkpoint.workspace.workspace import Workspace, open_in_namespace

    content = decode_payload((private / PAYLOAD).read_bytes())
    strategy, variant, agent, parts, redact = content.values()
    with CheckpointManager(
        spec["store"], fmt=spec["fmt"], pickles=spec["pickles"], redact=redact
    ) as manager:
        workspace = None
        if view is not None:
            workspace = open_in_namespace(view, manager.store, spec["options"])
        elif spec["files"] is not None:
            workspace = Workspace(spec["files"], manager.store, force=True, **spec["options"])
            workspace.key = files_key(spec["key"])
        branch = open_branch(
            manager,
            spec["point"],
            spec["key"],
            agent=agent() if spec["makes_agent"] else agent,
            parts=parts,
            workspace=workspace,
            every=spec["every"],
            provider=spec["provider"],
            prices=spec["prices"],
            effects=spec["effects"],
            restart=True,  # the worker of an earlier attempt has died
        )
        if spec["files"] is not None and manager.store.newest(files_key(spec["key"])):
            manager.delete(files_key(spec["key"]))  # the directory was empty
        ready = time.monotonic() - began
        place = None if workspace is None else str(workspace.path)
        result = run_strategy(branch, strategy, variant)
        state_of(branch).is_ended = True  # already saved; the worker removes the files
        branch.close()
    return {**result, "ready": ready, "place": place}
