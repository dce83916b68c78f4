"""Explores on a Ray cluster of two workers: python … WORKSPACE STORE OUTBOX TRIALS.

Ray listens on every interface: the program runs in a network namespace of its own, which has only
a loopback. It prints, as JSON, what the test looks at.
"""

import fcntl
import json
import socket
import struct
import sys
from concurrent.futures import Executor

import ray

from agent_checkpoint import Session, explore
from tests.unit.session.explore import strategies
from tests.unit.session.explore.strategies import Spender

SIOCSIFFLAGS = 0x8914
IFF_UP = 1


class RayExecutor(Executor):
    """Runs each call as a Ray task, again on another worker if its worker dies."""

    def submit(self, fn, /, *args, **kwargs):
        return ray.remote(max_retries=3)(fn).remote(*args, **kwargs).future()


def start_loopback():
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def main(workspace, store, outbox, trials):
    start_loopback()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    count = int(trials)
    variants = [
        {"place": outbox, "parent": True if n == count // 2 else None} for n in range(count)
    ]
    with Session("work", agent=Spender(), workspace=workspace, store=store) as session:
        outcome = explore(session, strategies.tried_before, variants, executor=RayExecutor())
        report = {
            "errors": [trial.error for trial in outcome],
            "metrics": [trial.metrics for trial in outcome],
            "keys": [trial.key for trial in outcome],
            "stored": session.manager.list_keys(),
        }
        outcome.trials[count // 2].adopt()
    ray.shutdown()
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
