"""The SDK's own contracts, and what they leave open: repeats, other writers, restarts."""

import asyncio
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager

sdk = pytest.importorskip("claude_agent_sdk")
from claude_agent_sdk.testing import run_session_store_conformance  # noqa: E402

from agent_checkpoint.adapters.claude_agent_sdk import SessionStore  # noqa: E402

KEY: Any = {"project_key": "p", "session_id": "s"}
SUB: Any = {**KEY, "subpath": "subagents/agent-1"}


def entry(number: int, **fields: Any) -> Any:
    return {"type": "x", "uuid": f"u{number}", "n": number, **fields}


def test_the_contracts_of_the_sdk(manager: CheckpointManager) -> None:
    def fresh() -> SessionStore:
        for key in manager.list_keys():
            manager.delete(key)
        return SessionStore(manager)

    asyncio.run(run_session_store_conformance(fresh))


@pytest.mark.parametrize(
    "method", ["list_sessions", "list_session_summaries", "delete", "list_subkeys"]
)
def test_no_contract_is_skipped(method: str) -> None:
    default = getattr(sdk.SessionStore, method)
    assert callable(getattr(SessionStore, method))
    assert getattr(SessionStore, method) is not default


def test_a_path_is_a_store_that_another_process_can_open(tmp_path: Path) -> None:
    async def work() -> Any:
        await SessionStore(tmp_path / "store").append(KEY, [entry(1)])
        return await SessionStore(tmp_path / "store").load(KEY)

    assert asyncio.run(work()) == [entry(1)]


def test_an_entry_with_a_known_uuid_is_not_repeated(manager: CheckpointManager) -> None:
    async def work() -> Any:
        store = SessionStore(manager)
        await store.append(KEY, [entry(1), entry(2), entry(2)])
        await store.append(KEY, [entry(2), entry(3)])
        await SessionStore(manager).append(KEY, [entry(3), entry(4)])  # of another process
        await store.append(KEY, [entry(4), entry(5)])
        return await store.load(KEY)

    assert asyncio.run(work()) == [entry(number) for number in (1, 2, 3, 4, 5)]


def test_entries_without_a_uuid_are_all_kept(manager: CheckpointManager) -> None:
    async def work() -> Any:
        store = SessionStore(manager)
        for _ in range(2):
            await store.append(KEY, [{"type": "title"}, {"type": "title", "uuid": None}])
        return await store.load(KEY)

    assert len(asyncio.run(work())) == 4


def test_a_deleted_transcript_begins_again(manager: CheckpointManager) -> None:
    async def work() -> Any:
        store, other = SessionStore(manager), SessionStore(manager)
        await store.append(KEY, [entry(1)])
        await other.delete(KEY)
        await store.append(KEY, [entry(1), entry(2)])
        return await store.load(KEY)

    assert asyncio.run(work()) == [entry(1), entry(2)]


def test_writers_in_several_threads_lose_nothing(manager: CheckpointManager) -> None:
    def write(start: int) -> None:
        async def work() -> None:
            store = SessionStore(manager)
            for number in range(start, start + 6):
                await store.append(KEY, [entry(number)])

        asyncio.run(work())

    threads = [Thread(target=write, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [one["n"] for one in asyncio.run(SessionStore(manager).load(KEY)) or []]
    assert sorted(found) == [start + n for start in (0, 100, 200) for n in range(6)]
    assert all(
        [n for n in found if n // 100 == s] == sorted(n for n in found if n // 100 == s)
        for s in range(3)
    )


def test_an_append_costs_its_own_entries(tmp_path: Path) -> None:
    def text(number: int) -> str:
        return "".join(sha256(f"{number} {n}".encode()).hexdigest() for n in range(30))

    manager = CheckpointManager(tmp_path / "store")
    store = SessionStore(manager)
    store.append_entries(KEY, [entry(number, text=text(number)) for number in range(500)])
    before = manager.stats()["stored_bytes"]
    for number in range(500, 510):
        store.append_entries(KEY, [entry(number, text=text(number))])
    assert manager.stats()["stored_bytes"] - before < before / 10


def test_names_are_not_confused(manager: CheckpointManager) -> None:
    async def work() -> None:
        store = SessionStore(manager)
        await store.append({"project_key": "a/b", "session_id": "c"}, [entry(1)])
        await store.append({"project_key": "a", "session_id": "b/c"}, [entry(2)])
        await store.append({"project_key": "a", "session_id": "b", "subpath": "c"}, [entry(3)])
        assert [row["session_id"] for row in await store.list_sessions("a")] == ["b/c"]
        assert await store.list_subkeys({"project_key": "a", "session_id": "b"}) == ["c"]
        assert await store.load({"project_key": "a/b", "session_id": "c"}) == [entry(1)]

    asyncio.run(work())


def test_the_functions_of_the_sdk_read_and_fork_it(manager: CheckpointManager) -> None:
    async def work() -> None:
        store = SessionStore(manager)
        session = "11111111-1111-4111-8111-111111111111"
        key: Any = {"project_key": sdk.project_key_for_directory("/w"), "session_id": session}
        base = {"sessionId": session, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"}
        first, second = (f"2222222{n}-2222-4222-8222-222222222222" for n in (1, 2))
        say: Any = {**base, "type": "user", "uuid": first, "parentUuid": None}
        answer: Any = {**base, "type": "assistant", "uuid": second, "parentUuid": first}
        await store.append(
            key,
            [
                {**say, "message": {"role": "user", "content": "hello"}},
                {**answer, "message": {"role": "assistant", "content": []}},
            ],
        )
        listed = await sdk.list_sessions_from_store(store, directory="/w")
        assert [info.first_prompt for info in listed] == ["hello"]
        forked = await sdk.fork_session_via_store(store, session, directory="/w")
        assert len(await store.load({**key, "session_id": forked.session_id}) or []) >= 2

    asyncio.run(work())


KEYS = st.builds(
    lambda project, session, sub: {
        "project_key": project,
        "session_id": session,
        **({} if sub is None else {"subpath": sub}),
    },
    st.sampled_from("pq"),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, None, "subagents/x", "subagents/y"]),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "append", "delete"]), KEYS, st.integers(1, 3)),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_it_behaves_as_the_store_of_the_sdk(steps: Any) -> None:
    async def work() -> None:
        theirs, ours = sdk.InMemorySessionStore(), SessionStore(CheckpointManager())
        for number, (what, key, count) in enumerate(steps):
            for store in (theirs, ours):
                if what == "append":
                    await store.append(key, [entry(10 * number + one) for one in range(count)])
                else:
                    await store.delete(key)
            for project in "pq":
                for session in "ab":
                    main: Any = {"project_key": project, "session_id": session}
                    subs = sorted(await theirs.list_subkeys(main))
                    assert sorted(await ours.list_subkeys(main)) == subs
                    for one in (main, *({**main, "subpath": sub} for sub in subs)):
                        assert (await ours.load(one) or None) == (await theirs.load(one) or None)
                listed = {row["session_id"] for row in await ours.list_sessions(project)}
                assert listed == {
                    session
                    for session in "ab"
                    if await theirs.load({"project_key": project, "session_id": session})
                }
                summed = {
                    row["session_id"]: row["data"]
                    for row in await ours.list_session_summaries(project)
                }
                expected = {
                    row["session_id"]: row["data"]
                    for row in await theirs.list_session_summaries(project)
                    if row["data"]
                }
                assert {k: v for k, v in summed.items() if v} == expected

    asyncio.run(work())
