"""What the design says that users type, sections 2.1 to 2.3, line by line, as far as it exists.

Left out, because they are not there yet: the stores postgresql and s3.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    ConflictError,
    KeepBest,
    KeepEvery,
    KeepLatest,
    MigrationError,
    StateMismatchError,
    Workspace,
    checkpoint,
    register_alias,
    register_migration,
)
from tests.agents import managers


class MyAgent(Checkpointable):
    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.config: dict[str, Any] = {}
        self.call_count = 0
        self._cache: dict[str, Any] = {}  # leading underscore: not captured


class PinnedAgent(Checkpointable):
    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.config: dict[str, Any] = {}
        self.call_count = 0

    def _checkpoint_fields(self) -> list[str]:  # optional: pin what is captured
        return ["memory", "call_count"]

    def _checkpoint_version(self) -> str:  # optional: default "1.0"
        return "2.0"


@pytest.fixture
def agent() -> MyAgent:
    agent = MyAgent()
    agent.memory.append({"role": "user"})
    agent.call_count = 2
    return agent


@pytest.fixture(params=["memory", "file", "pickle", "sqlite"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    with managers(tmp_path)[request.param] as manager:
        yield manager


# -- 2.1 state -------------------------------------------------------------------------------------


def test_state_dict(agent: MyAgent) -> None:
    state = agent.state_dict()
    assert state == {
        "memory": [{"role": "user"}],
        "config": {},
        "call_count": 2,
        "__version__": "1.0",
        "__class__": "MyAgent",
    }
    agent.memory.append("later")
    assert state["memory"] == [{"role": "user"}]


def test_pinned_fields_and_version() -> None:
    assert PinnedAgent().state_dict() == {
        "memory": [],
        "call_count": 0,
        "__version__": "2.0",
        "__class__": "PinnedAgent",
    }


def test_load_state_dict(agent: MyAgent) -> None:
    state, other = agent.state_dict(), MyAgent()
    missing_keys, unexpected_keys = other.load_state_dict(state)
    assert (missing_keys, unexpected_keys) == ([], [])
    result = other.load_state_dict({"call_count": 3, "colour": "red"})
    assert result.missing_keys == ["memory", "config"]
    assert result.unexpected_keys == ["colour"]
    assert (other.memory, other.call_count) == ([{"role": "user"}], 3)


def test_load_state_dict_strictly(agent: MyAgent) -> None:
    state, other = agent.state_dict(), MyAgent()
    other.load_state_dict(state, strict=True)
    with pytest.raises(StateMismatchError) as caught:
        other.load_state_dict({"call_count": 9, "a": 1, "b": 2}, strict=True)
    for name in ("memory", "config", "a", "b"):
        assert re.search(rf"\b{name}\b", str(caught.value))
    assert other.state_dict() == state


def test_clone(agent: MyAgent) -> None:
    twin = agent.clone()
    assert twin.state_dict() == agent.state_dict()
    assert twin.memory is not agent.memory
    assert twin._cache is agent._cache


def test_diff(agent: MyAgent) -> None:
    other = agent.clone()
    agent.call_count, other.call_count = 5, 10
    assert agent.diff(other) == {"added": {}, "removed": {}, "changed": {"call_count": (5, 10)}}


def test_register_migration() -> None:
    class Migrated(Checkpointable):
        def __init__(self) -> None:
            self.path: list[str] = []

        def _checkpoint_version(self) -> str:
            return "2.0"

    def migrate_v1_to_v2(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "path": [*state["path"], "1.0"]}

    def migrate_v15_to_v2(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "path": [*state["path"], "1.5"]}

    old = {"path": [], "__class__": "Migrated", "__version__": "1.0"}
    agent = Migrated()
    register_migration("Migrated", from_version="1.0", fn=migrate_v1_to_v2)
    agent.load_state_dict(old)
    assert agent.path == ["1.0"]
    register_migration("Migrated", from_version="1.5", fn=migrate_v15_to_v2)
    agent.load_state_dict(old)
    assert agent.path == ["1.0", "1.5"]
    register_migration("Migrated", from_version="1.0", to_version="1.5", fn=migrate_v1_to_v2)
    agent.load_state_dict(old)
    assert agent.path == ["1.0", "1.5"]
    with pytest.raises(MigrationError, match="newer"):
        agent.load_state_dict({**old, "__version__": "2.1"})


def test_register_alias() -> None:
    class Renamed(Checkpointable):
        def __init__(self) -> None:
            self.n = 0

    agent, old = Renamed(), {"n": 7, "__class__": "NamedBefore"}
    with pytest.raises(StateMismatchError, match=r"Renamed.*NamedBefore"):
        agent.load_state_dict(old)
    register_alias("NamedBefore", "Renamed")
    agent.load_state_dict(old)
    assert agent.n == 7


# -- 2.2 manager -----------------------------------------------------------------------------------


def test_managers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for manager in (
        CheckpointManager(),
        CheckpointManager(backend="memory"),
        CheckpointManager(backend="file", path="ckpts"),
        CheckpointManager(backend="file", path="ckpts2", fmt="pickle"),
    ):
        manager.save("key", {"x": 1})
        assert manager.state_dict("key") == {"x": 1}
    assert (tmp_path / "ckpts" / "key" / "1.json").is_file()


def test_save_and_load(manager: CheckpointManager, agent: MyAgent) -> None:
    cid = manager.save("session_123", agent)
    assert re.fullmatch(r"session_123_\d+-1", cid)
    agent.call_count = 3
    cid2 = manager.save(
        "session_123", agent, label="before deploy", metrics={"score": 0.9}, tags=["good"]
    )
    new_agent = MyAgent()
    manager.load("session_123", new_agent)
    assert new_agent.call_count == 3
    manager.load("session_123", new_agent, checkpoint_id=cid)
    assert new_agent.call_count == 2
    assert manager.state_dict("session_123", checkpoint_id=None)["call_count"] == 3
    (row,) = manager.history("session_123", n=1)
    assert row.pop("ts") == pytest.approx(int(re.findall(r"\d+", cid2)[1]) / 1e9)
    assert row == {
        "id": cid2,
        "kind": "save",
        "label": "before deploy",
        "tags": ["good"],
        "metrics": {"score": 0.9},
        "parents": [cid],
        "parts": ["agent"],
    }


def test_save_parts_and_a_plain_dict(manager: CheckpointManager, agent: MyAgent) -> None:
    a, b = agent, MyAgent()
    manager.save("session_123", {"planner": a, "coder": b})
    planner, coder = MyAgent(), MyAgent()
    manager.load("session_123", {"planner": planner, "coder": coder})
    assert (planner.call_count, coder.call_count) == (2, 0)
    assert manager.history("session_123")[0]["parts"] == ["planner", "coder"]
    manager.save("session_123", {"x": 1})
    assert manager.state_dict("session_123") == {"x": 1}


def test_list_keys_and_history(manager: CheckpointManager, agent: MyAgent) -> None:
    ids = [manager.save("session_123", agent) for _ in range(7)]
    manager.save("other", agent)
    assert manager.list_keys() == ["other", "session_123"]
    assert manager.list_keys(prefix="session_") == ["session_123"]
    assert [row["id"] for row in manager.history("session_123", n=5)] == ids[:1:-1]


def test_short_forms_of_ids(manager: CheckpointManager) -> None:
    for n in range(1, 5):
        manager.save("key", {"n": n})
    assert manager.state_dict("key", checkpoint_id="key") == {"n": 4}
    assert manager.state_dict("key", checkpoint_id="key~2") == {"n": 2}
    assert manager.state_dict("key", checkpoint_id="key@1") == {"n": 1}


def test_rollback_context(manager: CheckpointManager, agent: MyAgent) -> None:
    with pytest.raises(ValueError, match="bad"), manager.rollback_context("before_risky_op", agent):
        agent.call_count = 99
        agent.memory.clear()
        raise ValueError("bad")
    assert (agent.call_count, agent.memory) == (2, [{"role": "user"}])


def test_manager_diff(manager: CheckpointManager, agent: MyAgent) -> None:
    agent.call_count = 5
    id1 = manager.save("my_key", agent)
    agent.call_count = 10
    expected = {"added": {}, "removed": {}, "changed": {"call_count": (5, 10)}}
    assert manager.diff("my_key", agent=agent) == expected
    id2 = manager.save("my_key", agent)
    assert manager.diff("my_key", checkpoint_id_a=id1, checkpoint_id_b=id2) == expected
    agent.memory = [{"role": "user"}, {"role": "user"}, {"role": "assistant"}]
    manager.save("my_key", agent)
    agent.memory[2]["role"] = "tool"
    changed = manager.diff("my_key", agent=agent, deep=True)["changed"]
    assert changed == {"memory[2].role": ("assistant", "tool")}


def test_fork_and_delete(manager: CheckpointManager, agent: MyAgent) -> None:
    cid = manager.save("session_123", agent)
    manager.fork("session_123", "alt", checkpoint_id=None)
    assert manager.history("alt")[0]["parents"] == [cid]
    with pytest.raises(ConflictError):
        manager.fork("session_123", "alt")
    manager.save("session_123", agent)
    manager.delete("session_123", checkpoint_id=cid)
    assert len(manager.history("session_123")) == 1
    manager.delete("session_123", checkpoint_id=None)
    assert manager.list_keys() == ["alt"]


def test_prune_verify_gc_stats(manager: CheckpointManager) -> None:
    for n in range(1, 41):
        manager.save("session_123", {"n": n}, metrics={"score": -abs(n - 5)})
    manager.prune("session_123", KeepLatest(20) | KeepBest(3, "score") | KeepEvery(10))
    kept = {manager.state_dict("session_123", r["id"])["n"] for r in manager.history("session_123")}
    assert kept == {4, 5, 6, 10, 20, *range(21, 41)}
    assert manager.verify().ok
    manager.gc()
    assert manager.stats()["checkpoints"] == len(kept)


def test_archive(manager: CheckpointManager, agent: MyAgent, tmp_path: Path) -> None:
    manager.save("session_123", agent)
    manager.export_archive(tmp_path / "run.ckpt", "session_123")
    other = CheckpointManager()
    other.import_archive(tmp_path / "run.ckpt")
    new_agent = MyAgent()
    other.load("session_123", new_agent)
    assert new_agent.state_dict() == agent.state_dict()


def test_save_in_background(manager: CheckpointManager, agent: MyAgent) -> None:
    future = manager.save_in_background("session_123", agent)
    agent.call_count = 99
    assert manager.state_dict("session_123", future.result())["call_count"] == 2


def test_the_same_verbs_for_asyncio(manager: CheckpointManager, agent: MyAgent) -> None:
    async def main() -> None:
        cid = await manager.asave("session_123", agent, label="async")
        new_agent = MyAgent()
        await manager.aload("session_123", new_agent, checkpoint_id=cid)
        assert new_agent.state_dict() == agent.state_dict()

    asyncio.run(main())


def test_checkpoint_every_fifth_call(manager: CheckpointManager, agent: MyAgent) -> None:
    @checkpoint(manager, key="my_agent", every=5)
    def process(agent: MyAgent, msg: str) -> str:
        agent.call_count += 1
        return msg

    for _ in range(16):
        assert process(agent, "hi") == "hi"
    saved = [manager.state_dict("my_agent", r["id"]) for r in manager.history("my_agent")]
    assert [state["call_count"] for state in saved] == [17, 12, 7]


def test_checkpoint_with_a_key_of_its_own_and_rollback(manager: CheckpointManager) -> None:
    class Named(Checkpointable):
        def __init__(self, name: str) -> None:
            self.name = name
            self.done: list[str] = []

        @checkpoint(manager, key=lambda agent, *a, **k: agent.name, on_error="rollback")
        def process(self, msg: str) -> None:
            self.done.append(msg)
            if msg == "bad":
                raise ValueError(msg)

    named = Named("a")
    named.process("good")
    with pytest.raises(ValueError, match="bad"):
        named.process("bad")
    assert named.done == ["good"]
    assert manager.state_dict("a")["done"] == ["good"]


def test_expected_head(manager: CheckpointManager, agent: MyAgent) -> None:
    cid = manager.save("session_123", agent)
    newer = manager.save("session_123", agent, expected_head=cid)
    with pytest.raises(ConflictError):
        manager.save("session_123", agent, expected_head=cid)
    with pytest.raises(ConflictError):
        manager.load("session_123", agent, expected_head=cid)
    manager.load("session_123", agent, expected_head=newer)


# -- 2.3 workspace ---------------------------------------------------------------------------------


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    (repo / "src").mkdir(parents=True)
    (repo / "src" / "app.py").write_text("print('hello')\n")
    (repo / "notes.log").write_text("1")
    return repo


@pytest.mark.parametrize("driver", ["auto", "copy"])
def test_workspace(manager: CheckpointManager, repo: Path, driver: str) -> None:
    with Workspace(repo, store=manager.store, ignore=["*.log"], gitignore=True, watch=True) as ws:
        tree = ws.snapshot()
        (repo / "src" / "app.py").write_text("print('bye')\n")
        (repo / "src" / "new.py").write_text("new")
        diff = ws.diff(tree)
        assert (diff.added, diff.removed) == (["src/new.py"], [])
        assert diff.changed == {"src/app.py": ("content",)}
        assert "-print('hello')\n+print('bye')\n" in str(diff)
        plan = ws.restore(tree, dry_run=True)
        assert (plan.write, plan.delete, plan.leave) == (["src/app.py"], ["src/new.py"], {})
        ws.restore(tree, paths=["src/app.py"])
        assert (repo / "src" / "app.py").read_text() == "print('hello')\n"
        assert (repo / "src" / "new.py").read_text() == "new"
        ws.restore(tree)
        assert ws.snapshot().id == tree.id
        fork = ws.fork(repo.parent / "try-a", tree=None, driver=driver)
        (fork.path / "src" / "app.py").unlink()
        fork.close()
        with ws.hold(), ws.fork(repo.parent / "try-a", driver=driver) as fork:
            (fork.path / "src" / "app.py").unlink()
        assert (repo / "src" / "app.py").is_file()
        assert not (repo.parent / "try-a").exists()


def test_a_workspace_as_a_part(manager: CheckpointManager, agent: MyAgent, repo: Path) -> None:
    a, b = agent, MyAgent()
    cid = manager.save("session_123", {"planner": a, "coder": b, "workspace": Workspace(repo)})
    (repo / "src" / "app.py").unlink()
    parts: dict[str, Any] = {"planner": MyAgent(), "coder": b, "workspace": Workspace(repo)}
    manager.load("session_123", parts, checkpoint_id=cid)
    assert parts["planner"].state_dict() == a.state_dict()
    assert (repo / "src" / "app.py").read_text() == "print('hello')\n"
