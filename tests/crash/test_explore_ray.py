"""Trials on a Ray cluster with a store in PostgreSQL; a worker is killed among them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs ray: pip install --group faults (Python 3.10 or newer)")
pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ALONE = ["unshare", "--net", *([] if os.getuid() == 0 else ["--map-root-user"])]
TRIALS = 20


def test_a_worker_is_killed(postgres_server, tmp_path, own_home, tried):
    """The results are complete, and each trial counts once."""
    refused = subprocess.run([*ALONE, "true"], capture_output=True, text=True)
    if refused.returncode:
        pytest.skip(f"no network namespace can be made here: {refused.stderr.strip()}")
    place, outbox = tmp_path / "work", tmp_path / "outbox"
    place.mkdir()
    (place / "src").mkdir()
    (place / "run.sh").write_text("echo\n")
    schema = postgres_server.new_schema()
    store = (  # by its socket: the namespace does not reach the server's address
        f"postgresql://postgres@/postgres?host={postgres_server.directory}"
        f"&port={postgres_server.port}&schema={schema}"
    )
    program = [sys.executable, "-W", "ignore", "-m", "tests.crash.ray_program"]
    done = subprocess.run(
        [*ALONE, *program, str(place), store, str(outbox), str(TRIALS)],
        capture_output=True,
        text=True,
        timeout=1800,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "AGENT_CHECKPOINT_SECRET": "one secret for the whole cluster, as it must be",
        },
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (tmp_path / "killed").exists()
    assert report["errors"] == [None] * TRIALS
    assert {(row["files"], row["memory"]) for row in report["metrics"]} == {(2, 0)}
    # An effect of the attempt that was killed is replayed, not repeated.
    assert sorted(outbox.read_text().split()) == sorted(report["keys"])
    assert sorted(report["stored"]) == sorted(["work", *report["keys"]])
    assert (place / "tried").read_text() == report["keys"][TRIALS // 2]
    tried("trials on a Ray cluster whose worker is killed", TRIALS)
