"""The process of one trial. Owns its startup order; writes its result to a file.

It enters its mount namespace before any user code is loaded, so that user code sees only the files
of the fork.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.os_support.posix import open_private
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.explore.worker import JOB, PAYLOAD, RESULT, files_key
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.workspace.fork.isolated import ForkNamespace
from agent_checkpoint.workspace.fork.namespace_view import end_with


def main() -> int:
    """Run the trial in the directory of `argv[1]`. Returns the exit status."""
    began = time.monotonic()
    private = Path(sys.argv[1])
    spec = json.loads((private / JOB).read_text())
    try:
        result = _run(spec, private, began)
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


def _run(spec: dict[str, Any], private: Path, began: float) -> dict[str, Any]:
    view = None if spec["view"] is None else ForkNamespace(spec["view"])
    end_with(spec["parent"])
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
