"""A strategy to explore with, and the program of P15, in a module that takes no time to load.

    python -m bench.strategy WORKSPACE STORE TRIALS

Each line of the input asks for one run; the answer is a line. A trial loads the main program again,
as a process of multiprocessing does: so it is a small one.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def tell_time(branch: object) -> dict[str, float]:
    """Return when it is called."""
    return {"at": time.time()}


def main() -> int:
    """Answer each line of the input with the times of one run: of one variant, and of many."""
    from concurrent.futures import ProcessPoolExecutor

    from agent_checkpoint import Session

    workspace, store, trials = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with (
        Session("bench", workspace=workspace, store=store) as session,
        ProcessPoolExecutor(trials) as pool,
    ):
        session.save()
        list(pool.map(time.sleep, [0.1] * trials))  # each has a job, so each is started
        _until_last(session, pool, 1)  # not counted: looks once which forks the system can make
        for _ in sys.stdin:
            one = _until_last(session, pool, 1)
            many = _until_last(session, pool, trials)
            print(json.dumps({"one": one, "beyond": (many - one) / (trials - 1)}), flush=True)
    return 0


def _until_last(session: Any, pool: Any, variants: int) -> float:
    """The nanoseconds from the call until the last strategy is called."""
    from agent_checkpoint import explore
    from bench.strategy import tell_time as strategy  # not of the main program

    began = time.time()
    outcome = explore(session, strategy, [{}] * variants, executor=pool)
    return 1e9 * (max(trial.metrics["at"] for trial in outcome) - began)


if __name__ == "__main__":
    sys.exit(main())
