"""Open tool calls of other versions: an earlier one had a batch, version 0.1 carries them over."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session, Suspended, tool
from tests.compat.conftest import V1
from tests.compat.test_previous_version import WHEEL
from tests.unit.session.loop.replies import USER, reply, results
from tests.unit.session.stores import Killed, killed

ARCHIVE = V1 / "batch.ckpt"
"""Written at commit d9448e0, which had the open calls in the session record. The process was killed
after the second of three calls, before its checkpoint; ids of the turn before are repeated."""
_made = []


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    _made.clear()


def double(n: int) -> int:
    _made.append(n)
    return 2 * n


@tool(name="golden_send", effect="irreversible")
def send(to: str) -> str:
    _made.append(to)
    return "sent again"


@tool(name="golden_wait", approve=True)
def wait() -> str:
    return "waited"


TOOLS = {"double": double, "golden_send": send, "golden_wait": wait}


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
    found = CheckpointManager(backend="sqlite", path=tmp_path / "store")
    assert found.import_archive(ARCHIVE) == "batch"
    return found


def test_the_batch_of_an_earlier_version_goes_on(manager: CheckpointManager) -> None:
    with killed("batch", manager, provider="anthropic") as session:
        assert [session.call_outcome(f"call_{n}").status for n in range(3)] == [
            "done",
            "done",
            "not-done",
        ]
        session._tool_calls._end = _kill
        session.run_tools(session.messages, TOOLS)
    with Session("batch", store=manager, provider="anthropic") as session:
        assert session._state.record.batches == []
        session.run_tools(session.messages, TOOLS)
        assert [value for _, value in results(session.messages)] == ["10", "2", "sent to ann", "6"]
        assert _made == [3]


def _kill(run: object) -> None:
    raise Killed


def test_the_batch_of_an_earlier_version_is_of_those_calls(manager: CheckpointManager) -> None:
    with Session("batch", store=manager, provider="anthropic") as session:
        message = session.messages.to_list()[-1]
        message["content"][0]["input"]["n"] = 7
        session.messages[-1] = message
        session.run_tools(session.messages, TOOLS)
        assert _made == [7, 3]  # the mail was sent, as the ledger says


def test_a_rollback_to_a_batch_of_an_earlier_version(manager: CheckpointManager) -> None:
    with Session("batch", store=manager, provider="anthropic") as session:
        half = session.head
        session.run_tools(session.messages, TOOLS)
        session.save()
        session.rollback(to=half, effects="warn")
        session.run_tools(session.messages, TOOLS)
        assert [value for _, value in results(session.messages)] == ["10", "2", "sent to ann", "6"]
        assert _made == [3, 3]


@pytest.mark.slow
def test_version_0_1_carries_the_open_calls_over(tmp_path: Path) -> None:
    """It does not know them; a session that it opens and saves in mid-batch loses nothing."""
    store = tmp_path / "store"
    calls = [("c1", "double", {"n": 1}), ("c2", "golden_send", {"to": "ann"})]
    with Session("work", store=store, provider="openai") as session:
        session.messages.append(USER["openai"])
        with pytest.raises(Suspended):
            session.run_tools(reply("openai", *calls, ("c3", "golden_wait", {})), TOOLS)
    previous = tmp_path / "previous"
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(previous)
    program = (
        "from agent_checkpoint import Session\n"
        f"with Session('work', store={str(store)!r}) as session:\n"
        "    assert not hasattr(session, 'run_tools')\n"
        "    session.save(label='by version 0.1')\n"
        "    session.rollback(steps=1)\n"
        "    session.save()\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(previous)}, timeout=60
    )
    with Session("work", store=store, provider="openai") as session:
        assert "by version 0.1" in [row["label"] for row in session.history()]
        assert session.call_outcome("c2").result == "sent again"
        with pytest.raises(Suspended):
            session.run_tools(session.messages, TOOLS)
        assert _made == [1, "ann"]
