"""Automatic retention never drops what it must keep, is idempotent, and never un-drops with age."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint.agents.upkeep.automatic_retention import (
    ALL_SECONDS,
    TURN_SECONDS,
    WATCH,
    AutomaticRetention,
    KeepThese,
    is_automatic,
)
from agent_checkpoint.records import Checkpoint, Kind
from agent_checkpoint.store.maintenance.retention import KeepLatest

NOW = 1_800_000_000.0
DAY = 86400.0
EVENTS = (
    ("UserPromptSubmit", "prompt: do it"),
    ("UserPromptSubmit", "before a request"),
    ("BeforeAgent", "prompt"),
    ("PostToolUse", "Bash make"),
    ("PreToolUse", "before Bash make"),
    ("Stop", "end of turn"),
    ("AfterAgent", "end of turn"),
    ("SessionEnd", "session ends"),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Checkpoint]:
    """Draw a key, newest first: events, saves by hand, safety checkpoints, with gaps and clocks."""
    length = draw(st.integers(0, 40))
    is_watched = draw(st.booleans())
    clock = st.floats(-1 * DAY, 60 * DAY) | st.floats(0, 3 * 3600.0)
    found: list[Checkpoint] = []
    for seq in range(1, length + 1):
        if draw(st.integers(0, 5)) == 0:
            continue  # removed before
        kind, tags, label, token = Kind.SAVE, (), "", None
        what = draw(st.integers(0, 9))
        if what == 0:
            kind = draw(st.sampled_from([Kind.SAFETY, Kind.ROLLBACK, Kind.RESTORE, Kind.FORK]))
        elif what == 1:
            tags, label = draw(st.sampled_from([((), "by hand"), (("good",), "")]))
        else:
            name, label = draw(st.sampled_from(EVENTS))
            tags = (WATCH,) if is_watched else (f"event:{name}", "tool:Bash", "toolu_1")
            token = "import" if what == 2 else None
        ts_ns = int((NOW - draw(clock)) * 1e9)
        parents = (found[0].id,) if found and draw(st.booleans()) else ()
        found.insert(
            0, Checkpoint("k", seq, ts_ns, kind, label, tags, {}, parents, {}, token=token)
        )
    return found


def kept(history: list[Checkpoint], now: float) -> list[Checkpoint]:
    numbers = AutomaticRetention(now).keep(history)
    return [item for item in history if item.seq in numbers]


@settings(max_examples=int(os.environ.get("EXAMPLES", "300")), deadline=None)
@given(histories())
def test_it_never_drops_what_it_must_keep(history: list[Checkpoint]) -> None:
    numbers = {item.seq for item in kept(history, NOW)}
    assert numbers <= {item.seq for item in history}
    for place, item in enumerate(history):
        age = NOW - item.ts_ns / 1e9
        is_prompt = item.tags[:1] in (("event:UserPromptSubmit",), ("event:BeforeAgent",))
        if place == 0 or age < ALL_SECONDS or not is_automatic(item):
            assert item.seq in numbers
        if is_prompt and (item.label or "").startswith("prompt") and age < TURN_SECONDS:
            assert item.seq in numbers


@given(histories())
def test_what_is_old_is_one_a_session(history: list[Checkpoint]) -> None:
    later = NOW + TURN_SECONDS + 100 * DAY
    left = [item for item in kept(history, later)[1:] if is_automatic(item)]
    assert all(WATCH in item.tags for item in left)
    days = [item.ts_ns // (86400 * 10**9) for item in left]
    assert len(set(days)) == len(days)  # of `watch`, one a day


@given(histories(), st.floats(0, 100 * DAY))
def test_it_is_idempotent(history: list[Checkpoint], later: float) -> None:
    once = kept(history, NOW + later)
    assert kept(once, NOW + later) == once


@given(histories(), st.floats(0, 100 * DAY), st.floats(0, 100 * DAY))
def test_nothing_comes_back_with_age(history: list[Checkpoint], age: float, more: float) -> None:
    sooner, later = kept(history, NOW + age), kept(history, NOW + age + more)
    assert {item.seq for item in later} <= {item.seq for item in sooner}
    assert kept(sooner, NOW + age + more) == later  # pruning in between changes nothing


@given(histories(), st.integers(1, 5))
def test_it_composes(history: list[Checkpoint], number: int) -> None:
    policy = AutomaticRetention(NOW) | KeepLatest(number) | KeepThese([x.id for x in history[-1:]])
    numbers = policy.keep(history)
    for item in [*history[:number], *history[-1:], *kept(history, NOW)]:
        assert item.seq in numbers
