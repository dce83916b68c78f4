"""The process of one trial. Owns the order in which it comes to life; tells its result by a file.

It enters its view before anything of the user's is loaded, so that the files of the fork are the
only ones that it ever sees.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.disk.posix import open_private
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.explore.worker import JOB, PAYLOAD, RESULT
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.workspace.fork.isolated import ForkNamespace
from agent_checkpoint.workspace.fork.namespace_view import end_with


def main() -> int:
    """Run the trial that the argument names. Returns the exit status."""
    began = time.monotonic()
    private = Path(sys.argv[1])
    told = json.loads((private / JOB).read_text())
    try:
        found = _run(told, private, began)
    except (CheckpointError, OSError) as error:
        found = {"error": f"Its fork could not be made: {error}"}
    except Exception as error:  # of the user's code as it was loaded
        found = {"error": f"It could not be loaded: {describe_error(error)}"}
    draft = private / f"{RESULT}.draft"
    with open(draft, "w", opener=open_private) as file:
        file.write(json.dumps(found))
    draft.replace(private / RESULT)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that the strategy has left would be waited for


def _run(told: dict[str, Any], private: Path, began: float) -> dict[str, Any]:
    view = None if told["view"] is None else ForkNamespace(told["view"])
    end_with(told["parent"])
    if told["files"] is not None:
        os.chdir(told["files"])
    from agent_checkpoint.manager.manager import CheckpointManager
    from agent_checkpoint.session.branch.session_fork import open_branch
    from agent_checkpoint.session.explore.payload import decode_payload
    from agent_checkpoint.session.explore.trial_run import run_strategy
    from agent_checkpoint.workspace.workspace import Workspace

    strategy, variant, agent, parts = decode_payload((private / PAYLOAD).read_bytes()).values()
    with CheckpointManager(told["store"], fmt=told["fmt"]) as manager:
        workspace = None
        if view is not None:
            workspace = view.open(manager.store, told["options"])
        elif told["files"] is not None:
            workspace = Workspace(told["files"], manager.store, force=True, **told["options"])
        branch = open_branch(
            manager,
            told["point"],
            told["key"],
            agent=agent() if told["makes_agent"] else agent,
            parts=parts,
            workspace=workspace,
            every=told["every"],
            effects=told["effects"],
        )
        ready = time.monotonic() - began
        place = None if workspace is None else str(workspace.path)
        found = run_strategy(branch, strategy, variant)
        branch._is_ended = True  # it was saved, and its files are taken away from outside
        branch.close()
    return {**found, "ready": ready, "place": place}
