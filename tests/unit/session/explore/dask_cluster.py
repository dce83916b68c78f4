"""A dask cluster of two workers, as on two machines: each has its own home and directories."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def started(tmp_path):
    """Start a scheduler and two workers, each in a directory and a home; yield a client."""
    address_file = tmp_path / "scheduler.json"
    root = Path(__file__).parents[4]
    processes = []

    def start(name, *arguments):
        home = tmp_path / name
        (home / "empty").mkdir(parents=True)
        environment = {
            **os.environ,
            "HOME": str(home),
            "AGENT_CHECKPOINT_HOME": str(home / "own"),
            "PYTHONPATH": str(root),
        }
        command = [sys.executable, "-W", "ignore", "-m", "distributed.cli.dask_" + arguments[0]]
        with open(tmp_path / f"{name}.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    [*command, *arguments[1:]],
                    cwd=home / "empty",
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )

    start(
        "scheduler", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--scheduler-file", str(address_file),
    )  # fmt: skip
    for number in range(2):
        start(
            f"worker{number}", "worker", "--scheduler-file", str(address_file), "--host",
            "127.0.0.1", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory",
            str(tmp_path / f"worker{number}" / "scratch"),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not address_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        from distributed import Client

        with Client(scheduler_file=str(address_file), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            yield client
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
