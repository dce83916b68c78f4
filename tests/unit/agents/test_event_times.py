"""Times of events and transcript lines: one form, or none."""

import json

import pytest

from agent_checkpoint.agents.agent_events import AGENTS, TIMED, read_event
from agent_checkpoint.agents.transcript_lines import said_at

TIME = "2026-11-18T04:07:28.893Z"


@pytest.mark.parametrize("agent", AGENTS)
def test_the_time_of_an_event_is_read_if_lines_have_times_too(agent: str) -> None:
    event = {"hook_event_name": "Stop", "session_id": "s", "cwd": "/", "timestamp": TIME}
    assert read_event(agent, json.dumps(event).encode()).time == (TIME if agent in TIMED else None)


@pytest.mark.parametrize(
    "time",
    [
        *(None, 1794974848893, "", "now", f"{TIME} ", f"{TIME}\n", "2026-11-18T04:07:28Z"),
        *("2026-11-18T04:07:28.893+01:00", "\N{FULLWIDTH DIGIT TWO}026-11-18T04:07:28.893Z"),
    ],
)
def test_times_in_another_form_are_not_compared(time: object) -> None:
    event = {"hook_event_name": "Stop", "session_id": "s", "cwd": "/", "timestamp": time}
    assert read_event("qwen", json.dumps(event).encode()).time is None
    assert said_at(json.dumps({"timestamp": time})) is None


@pytest.mark.parametrize("line", ["", "{", "[]", "3", "null", "{}", "[" * 100_000])
def test_lines_without_a_time(line: str) -> None:
    assert said_at(line) is None


def test_the_time_of_a_line() -> None:
    assert said_at(json.dumps({"type": "user", "timestamp": TIME})) == TIME
