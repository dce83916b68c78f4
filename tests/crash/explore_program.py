"""Explores in processes that never come to an end by themselves: python … WORKSPACE STORE WAYS.

It says `ready` once all of them are at work.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from agent_checkpoint import Session, explore


def wait_for_ever(branch, n, at):
    (branch.workspace.path / "file").write_text(f"way {n}")
    branch.save()
    (Path(at) / f"at-work-{n}").touch()
    time.sleep(600)


def main(workspace, store, ways):
    at = Path(workspace).parent
    variants = [{"n": n, "at": str(at)} for n in range(int(ways))]
    pool = ProcessPoolExecutor(len(variants), mp_context=get_context("spawn"))
    with Session("work", workspace=workspace, store=store) as session, pool:
        explore(session, wait_for_ever, variants, executor=pool)


if __name__ == "__main__":
    main(*sys.argv[1:])
