"""The packages in `plugins/` have the same hooks as `hook install`."""

import json
from pathlib import Path

import pytest

import agent_checkpoint
from agent_checkpoint.agents.settings.agent_settings import FORMATS

PLUGINS = Path(__file__).parents[4] / "plugins"
MANIFESTS = {
    "claude-code": ".claude-plugin/plugin.json",
    "codex": ".codex-plugin/plugin.json",
    "gemini": "gemini-extension.json",
    "qwen": "qwen-extension.json",
    "copilot": "plugin.json",
}


@pytest.mark.parametrize("agent", MANIFESTS)
def test_hooks_and_version(agent: str) -> None:
    form = FORMATS[agent]
    hooks = json.loads((PLUGINS / agent / "hooks" / "hooks.json").read_text())["hooks"]
    assert list(hooks) == [*form.events, *form.newer]
    for ((group,),) in zip(hooks.values()):
        (handler,) = group["hooks"]
        assert handler["command"].startswith(f"agent-checkpoint-hook {agent} 2>/dev/null || ")
        assert handler["timeout"] == 30 * form.seconds
    manifest = json.loads((PLUGINS / agent / MANIFESTS[agent]).read_text())
    assert manifest["version"] == agent_checkpoint.__version__.partition(".dev")[0]
