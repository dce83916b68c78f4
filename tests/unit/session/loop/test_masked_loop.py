"""A session of a masked archive, in the middle of a turn: no call is made twice or with masks."""

from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session, tool
from tests.secrets_of_each_kind import SECRETS, places
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results
from tests.unit.session.stores import Killed, killed

TOKEN = SECRETS["github-token"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_turn_goes_on_after_an_import(provider: str, tmp_path: Path) -> None:
    pushed: list[str] = []

    @tool(effect="irreversible", name="push in a masked turn")
    def push(token: str) -> str:
        pushed.append(token)
        return f"pushed with {token}"

    @tool(effect="irreversible", name="stop in a masked turn")
    def stop(token: str) -> str:
        pushed.append(token)
        raise Killed

    tools = {"push": push, "stop": stop, "read": lambda path: f"content of {path}"}
    message = reply(
        provider,
        ("c1", "push", {"token": TOKEN}),
        ("c2", "stop", {"token": TOKEN}),
        ("c3", "push", {"token": f"another {TOKEN}"}),
        ("c4", "read", {"path": "a"}),
    )
    manager = CheckpointManager()
    with killed("job", manager, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(message, tools)
    manager.export_archive(tmp_path / "a", "job", mask=True)
    other = CheckpointManager()
    other.import_archive(tmp_path / "a")
    assert places(other, TOKEN) == []
    with Session("job", store=other, provider=provider) as session:
        assert session.call_outcome("c1").status == "done"
        assert session.call_outcome("c2").status == "unknown"
        session.run_tools(session.messages, tools)
        told = dict(results(session.messages))
    assert told["c1"] == "pushed with [masked:github-token]"
    assert "is unknown" in str(told["c2"])
    assert "had no effect" in str(told["c3"])
    assert "content of a" in str(told["c4"])
    assert pushed == [TOKEN, TOKEN]
