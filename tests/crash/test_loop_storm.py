"""Random agent loops with sub-agents and approvals, killed and interrupted at random lines."""

import subprocess
import sys

import pytest

from tests.crash.fault_process import child_environment


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 4))
def test_no_call_is_repeated_or_skipped(first: int, full_faults: bool) -> None:
    count = 4 if full_faults else 1
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.crash.loop_storm", str(first), str(count)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-3000:]
