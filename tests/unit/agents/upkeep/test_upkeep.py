"""One upkeep: what is removed from a store over its budget, and what never is."""

import json
import os
import time
from itertools import chain
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError, StorageError
from agent_checkpoint.agents.agent_events import Event
from agent_checkpoint.agents.rewind import rewind_journal
from agent_checkpoint.agents.session_lock import hold_session_lock
from agent_checkpoint.agents.session_presence import record_event
from agent_checkpoint.agents.state_dir import state_directory
from agent_checkpoint.agents.upkeep import upkeep
from agent_checkpoint.agents.upkeep.automatic_retention import WATCH
from agent_checkpoint.agents.upkeep.disk_budget import (
    BUDGET,
    DEFAULT_BUDGET,
    budget_of,
    budget_state,
    is_kept,
    parse_size,
    read_last,
    set_budget,
    store_size,
)
from agent_checkpoint.agents.upkeep.upkeep import keep_to_budget, remove_old_checkpoints
from agent_checkpoint.backends.memory import MemoryBackend
from agent_checkpoint.records import Draft, Kind, draft_from
from agent_checkpoint.store.directory_claims import make_claim
from agent_checkpoint.store.maintenance.verify import verify
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.journal import Journal
from tests.unit.agents.upkeep.old_sessions import DAY, save_event, save_session, seqs, store_in

KEY = "claude-code/old"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(tmp_path / "home"))
    found = store_in(tmp_path / "store")
    save_session(found, "now", 0.0, turns=1)  # the newest checkpoint is of today
    return found


def test_by_age_it_is_all_then_turns_then_one(store: Store) -> None:
    recent = save_session(store, "recent", 2 * DAY)
    weeks = save_session(store, "weeks", 10 * DAY)
    save_session(store, "months", 60 * DAY)
    assert remove_old_checkpoints(store) > 0
    assert seqs(store, "claude-code/recent") == sorted(chain(*recent.values()))
    assert seqs(store, "claude-code/weeks") == [*weeks["prompt"], weeks["end"][-1]]
    assert seqs(store, "claude-code/months") == [18]
    assert remove_old_checkpoints(store) == 0
    assert verify(store).ok


def test_within_the_budget_nothing_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_session(store, "old", 60 * DAY)
    assert keep_to_budget(store) is None
    monkeypatch.setenv(BUDGET, "none")
    assert keep_to_budget(store) is None
    assert len(seqs(store, KEY)) == 18
    assert read_last(store.backend) is None


def test_over_the_budget_it_shrinks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = seqs(store, "claude-code/now")
    for number in range(10):
        save_session(store, f"old{number}", 60 * DAY, turns=10)
    size = store_size(store.backend)
    monkeypatch.setenv(BUDGET, str(size // 2))
    result = keep_to_budget(store)
    assert result is not None
    assert result.error is None
    assert result.removed == 10 * (60 - 1)
    assert store_size(store.backend) <= size // 2
    assert result.freed >= size // 2
    assert seqs(store, "claude-code/now") == before
    state = budget_state(store.backend)
    assert state is not None
    assert state.last == result
    assert state.problem is None
    assert verify(store).ok


def test_still_over_the_budget_is_said_and_nothing_more_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_session(store, "recent", 2 * DAY)
    monkeypatch.setenv(BUDGET, "1000")
    state = budget_state(store.backend)
    assert state is not None
    assert "when next idle" in str(state.problem)
    assert keep_to_budget(store) is not None
    assert len(seqs(store, "claude-code/recent")) == 18
    state = budget_state(store.backend)
    assert state is not None
    assert "nothing left to remove" in str(state.problem)
    assert "--budget" in str(state.problem)


def test_garbage_is_not_collected_again_and_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BUDGET, "1000")
    calls: list[float] = []
    collect = upkeep.gc
    monkeypatch.setattr(upkeep, "gc", lambda store: calls.append(time.time()) or collect(store))
    keep_to_budget(store)
    keep_to_budget(store)
    assert len(calls) == 1
    save_session(store, "old", 60 * DAY)
    keep_to_budget(store)
    assert len(calls) == 2


def test_a_failure_is_recorded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: Store) -> None:
        raise StorageError("the disk is gone")

    monkeypatch.setenv(BUDGET, "1000")
    monkeypatch.setattr(upkeep, "gc", fail)
    result = keep_to_budget(store)
    assert result is not None
    assert result.error == "the disk is gone"
    state = budget_state(store.backend)
    assert state is not None
    assert "the disk is gone" in str(state.problem)


# -- what is never removed ---------------------------------------------------------------------


def test_a_session_with_a_recent_event_is_live(store: Store) -> None:
    save_session(store, "old", 60 * DAY)
    event = Event("claude-code", "PreToolUse", "old", "/w", None)
    record_event(event, saved=False, compared=None, client=0)
    assert remove_old_checkpoints(store) == 0


def test_a_session_whose_agent_runs_is_live(store: Store) -> None:
    save_session(store, "old", 60 * DAY)
    record_event(
        Event("claude-code", "Stop", "old", "/w", None), saved=False, compared=None, client=0
    )
    (path,) = Path(str(state_directory())).glob("*.session.json")
    record = json.loads(path.read_text())
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    record.update(ts=time.time() - 50 * DAY, pid=os.getpid(), start=start)
    path.write_text(json.dumps(record))
    assert remove_old_checkpoints(store) == 0
    path.write_text(json.dumps({**record, "start": start + 1}))  # another process by now
    assert remove_old_checkpoints(store) == 17


def test_a_session_whose_last_checkpoint_is_recent_is_live(store: Store) -> None:
    save_session(store, "old", 60 * DAY)
    save_event(store, Event("claude-code", "Stop", "old", "/w", None), 60.0)
    assert remove_old_checkpoints(store) == 0


def test_a_session_that_is_locked_is_live(store: Store) -> None:
    save_session(store, "old", 60 * DAY)
    with hold_session_lock(KEY):
        assert remove_old_checkpoints(store) == 0
    assert remove_old_checkpoints(store) == 17


def test_a_session_with_an_unfinished_rewind(store: Store) -> None:
    save_session(store, "old", 60 * DAY)
    head = store.head(KEY)
    assert head is not None
    where = rewind_journal.store_name(store)
    rewind_journal.write_entry(KEY, Journal("t", "s", "d", None, (), where, head.id))
    assert remove_old_checkpoints(store) == 0
    rewind_journal.remove_entry(KEY)
    assert remove_old_checkpoints(store) == 17


def test_what_a_fork_a_rollback_or_another_key_needs(store: Store) -> None:
    save_session(store, "old", 60 * DAY)
    third, fifth = store.read(KEY, 3), store.read(KEY, 5)
    assert third is not None
    assert fifth is not None
    store.write(draft_from(third, "branch", Kind.FORK), parents=(third.id,))
    old = int((time.time() - 50 * DAY) * 1e9)
    store.write(draft_from(fifth, KEY, Kind.ROLLBACK), parents=(fifth.id,), ts_ns=old)
    remove_old_checkpoints(store)
    assert seqs(store, KEY) == [3, 5, 19]
    assert seqs(store, "branch") == [1]


def test_tagged_and_safety_checkpoints_and_saves_by_hand(store: Store) -> None:
    save_session(store, "old", 60 * DAY)
    ago = int((time.time() - 50 * DAY) * 1e9)
    parts = {"data": "x"}
    for draft in (
        Draft(KEY, parts, tags=("good",)),
        Draft(KEY, parts, label="by hand"),
        Draft(KEY, parts, kind=Kind.SAFETY, tags=("event:Stop",)),
        Draft(KEY, parts, tags=("event:Stop",), token="import"),
    ):
        store.write(draft, ts_ns=ago)
    save_event(store, Event("claude-code", "Stop", "old", "/w", None), 40 * DAY)
    remove_old_checkpoints(store)
    assert seqs(store, KEY) == [18, 19, 20, 21, 22, 23]  # 18: the parent of one saved by hand


def test_keys_of_programs_and_of_other_users(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ago = int((time.time() - 60 * DAY) * 1e9)
    for _ in range(5):
        store.write(Draft("mine", {"n": 1}, tags=("event:Stop",)), ts_ns=ago)
        store.write(Draft("codex/not-by-the-hook", {"n": 1}, tags=("event:Stop",)), ts_ns=ago)
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of somebody else, long enough")
    save_session(store, "theirs", 60 * DAY)
    monkeypatch.delenv("AGENT_CHECKPOINT_SECRET")
    assert remove_old_checkpoints(store) == 0


def test_a_store_that_was_not_used_for_long_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(tmp_path / "home"))
    store = store_in(tmp_path / "store")
    save_session(store, "old", 400 * DAY)
    assert remove_old_checkpoints(store) == 0


def test_checkpoints_of_watch_are_thinned_by_hour_and_day(store: Store, tmp_path: Path) -> None:
    key = f"workspace:{tmp_path}"
    claim = make_claim(store.backend, key, tmp_path)
    begin = (int(time.time() / DAY) - 60) * DAY
    for number in range(48):  # every half hour of a day, two months ago
        ts_ns = int((begin + number * 1800) * 1e9)
        store.write(Draft(key, {"n": number}, tags=(WATCH,), claim=claim), ts_ns=ts_ns)
    for number in range(48):  # ten days ago
        ts_ns = int((begin + 50 * DAY + number * 1800) * 1e9)
        store.write(Draft(key, {"n": number}, tags=(WATCH,), claim=claim), ts_ns=ts_ns)
    store.write(Draft(key, {"n": 0}, label="by hand", claim=claim))
    remove_old_checkpoints(store)
    # 96: the parent of the one saved by hand
    assert seqs(store, key) == [48, *range(50, 97, 2), 97]


# -- the setting ---------------------------------------------------------------------------------


def test_sizes() -> None:
    assert parse_size("5GB") == 5 * 10**9
    assert parse_size("1.5 kB") == 1500
    assert parse_size("2GiB") == 2 << 30
    assert parse_size("123") == 123
    assert parse_size("0") is None
    assert parse_size("none") is None
    for text in ("", "-1", "5 apples", "nan", "1e9", "9" * 30, "0.1"):
        with pytest.raises(InvalidInputError, match="size such as 5GB"):
            parse_size(text)


def test_where_the_budget_comes_from(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = store_in(tmp_path / "other").backend
    assert budget_of(store.backend) == DEFAULT_BUDGET
    set_budget(store.backend, 1000)
    assert budget_of(store.backend) == 1000
    assert budget_of(other) == DEFAULT_BUDGET
    set_budget(store.backend, None)
    assert budget_of(store.backend) is None
    monkeypatch.setenv(BUDGET, "7MB")
    assert budget_of(store.backend) == 7 * 10**6
    monkeypatch.setenv(BUDGET, "much")
    with pytest.raises(InvalidInputError, match=BUDGET):
        budget_of(store.backend)


def test_a_damaged_record_is_none(store: Store, tmp_path: Path) -> None:
    set_budget(store.backend, 1000)
    (path,) = (tmp_path / "home" / "hook").glob("*.budget")
    for text in ("", "[]", '{"budget": "x"}', "{", "\0" * 100):
        path.write_text(text)
        assert budget_of(store.backend) == DEFAULT_BUDGET


def test_stores_without_upkeep(tmp_path: Path) -> None:
    assert not is_kept(MemoryBackend())
    assert budget_state(MemoryBackend()) is None
    with CheckpointManager(f"sqlite://{tmp_path}/shared?shared=1") as manager:
        assert not is_kept(manager.store.backend)
        assert keep_to_budget(manager.store) is None
