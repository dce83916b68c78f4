"""Trials in this process, one after another or in threads. Owns waiting for one that hangs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Thread
from typing import Any

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.branch.session_fork import Branch, SessionForker
from agent_checkpoint.session.explore.trial_run import Strategy, run_strategy
from agent_checkpoint.session.tools.call_arguments import describe_error


def run_in_process(
    forking: SessionForker,
    key: str,
    strategy: Strategy,
    variant: Mapping[str, Any],
    *,
    driver: str,
    timeout: float | None,
) -> dict[str, Any]:
    """Run one variant in a fork of its own; return plain JSON about it.

    Raises:
        KeyboardInterrupt: a person has stopped it.
    """
    began = time.monotonic()
    try:
        branch = forking.make(key, driver=driver)
    except Exception as error:  # also of what makes its agent
        return {"error": f"Its fork could not be made: {describe_error(error)}"}
    ready = time.monotonic() - began
    place = None if branch.workspace is None else str(branch.workspace.path)
    try:
        found = _run_with_timeout(timeout, branch, strategy, variant)
    finally:
        trouble = _close_error(branch)
    found["error"] = found.get("error") or trouble
    return {**found, "ready": ready, "place": place}


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
    # A thread cannot be killed. What it does from now on is saved nowhere: its session is closed.
    words = f"It was not done after {timeout:g} s. Its thread goes on, and nothing of it is saved."
    return {"error": words, "seconds": timeout, "head": branch.head}


def _close_error(branch: Branch) -> str | None:
    try:
        branch.close()
    except CheckpointError as error:
        return f"Its fork could not be closed: {error}"
    return None
