import pytest

pytest.importorskip("claude_agent_sdk")
