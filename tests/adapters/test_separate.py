"""An adapter loads its own framework, and none of the others."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

FRAMEWORKS = {
    "atif": "agent_checkpoint",
    "claude_agent_sdk": "claude_agent_sdk",
    "deepagents": "deepagents",
    "langgraph": "langgraph",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
}


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_an_adapter_loads_no_other_framework(adapter: str) -> None:
    if find_spec(FRAMEWORKS[adapter]) is None:
        pytest.skip(f"needs {FRAMEWORKS[adapter]}")
    program = f"import sys, agent_checkpoint.adapters.{adapter}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    others = {*FRAMEWORKS.values()} - {"agent_checkpoint", FRAMEWORKS[adapter]}
    if adapter == "deepagents":  # which is built on it
        others.discard("langgraph")
    assert not others & set(done.stdout.split())


@pytest.mark.parametrize("adapter", [name for name in FRAMEWORKS if name != "atif"])
def test_an_adapter_without_its_framework_names_its_extra(adapter: str) -> None:
    program = (
        f"import sys; sys.modules[{FRAMEWORKS[adapter]!r}] = None\n"
        f"import agent_checkpoint.adapters.{adapter}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    told = done.stderr.splitlines()[-1]
    assert told.startswith("ImportError: ")
    assert f"pip install -U 'agent-checkpoint[{adapter.replace('_', '-')}]'" in told
