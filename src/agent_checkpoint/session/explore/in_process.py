"""Runs trials in this process, sequentially or in threads. Owns their timeout."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Thread
from typing import Any

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.options import Driver
from agent_checkpoint.session.branch.session_fork import ForkPoint
from agent_checkpoint.session.explore.trial_run import Strategy, run_strategy
from agent_checkpoint.session.session import Branch, create_branch
from agent_checkpoint.session.tools.call_arguments import describe_error


def run_in_process(
    point: ForkPoint,
    key: str,
    strategy: Strategy,
    variant: Mapping[str, Any],
    *,
    driver: Driver,
    timeout: float | None,
) -> dict[str, Any]:
    """Run one variant in its own fork; return its result as JSON.

    Raises:
        KeyboardInterrupt: the user interrupted it.
    """
    began = time.monotonic()
    try:
        branch = create_branch(point, key, driver=driver)
    except Exception as error:  # including errors of the agent= function
        return {"error": f"The fork could not be created: {describe_error(error)}"}
    ready = time.monotonic() - began
    path = None if branch.workspace is None else str(branch.workspace.path)
    try:
        outcome = _run_with_timeout(timeout, branch, strategy, variant)
    finally:
        close_error = _close_error(branch)
    outcome["error"] = outcome.get("error") or close_error
    return {**outcome, "ready": ready, "place": path}


def _run_with_timeout(
    timeout: float | None, branch: Branch, strategy: Strategy, variant: Mapping[str, Any]
) -> dict[str, Any]:
    if timeout is None:
        return run_strategy(branch, strategy, variant)
    ends: list[dict[str, Any]] = []

    def run() -> None:
        try:
            ends.append(run_strategy(branch, strategy, variant))
        except BaseException as error:
            ends.append({"error": describe_error(error)})

    thread = Thread(target=run, daemon=True, name=f"trial {branch.key}"[:100])
    thread.start()
    thread.join(timeout)
    if ends:
        return ends[0]
    # A thread cannot be killed. Its session is closed, so its later changes are not saved.
    message = (
        f"Timed out after {timeout:g} s. The thread keeps running, but its changes are not saved."
    )
    return {"error": message, "seconds": timeout, "head": branch.head}


def _close_error(branch: Branch) -> str | None:
    try:
        branch.close()
    except CheckpointError as error:
        return f"The fork could not be closed: {error}"
    return None
