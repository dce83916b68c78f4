"""Ctrl-C at any line of a save: nothing hangs, nothing is lost, and the session goes on."""

import subprocess
import sys

import pytest

from tests.crash import interrupting
from tests.crash.fault_process import child_environment

STEP = {"memory": 17, "sqlite": 61}


@pytest.mark.parametrize("scenario", interrupting.SCENARIOS)
@pytest.mark.parametrize("backend", STEP)
@pytest.mark.slow
def test_an_interrupt_at_any_line(request, backend, scenario, tmp_path, record_property):
    url = "memory" if backend == "memory" else f"sqlite://{tmp_path}/store?durability=fast"
    step = 1 if request.config.getoption("--full-faults") else STEP[backend]
    done = subprocess.run(
        [sys.executable, interrupting.__file__, scenario, url, "1", str(step)],
        capture_output=True,
        text=True,
        timeout=6 * 3600,  # ends a hang; a busy machine takes long
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert int(done.stdout) > 300 // step
    record_property("faults", ("interrupts", int(done.stdout)))
