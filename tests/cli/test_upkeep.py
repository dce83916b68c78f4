"""A store that stays small by itself: the hook daemon and `watch` keep to a disk budget."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

from agent_checkpoint.agents.hook.protocol import LOCATION_VARIABLES, SECRET
from agent_checkpoint.agents.upkeep.disk_budget import store_size
from agent_checkpoint.backends.os_support.reserve import SIZE
from agent_checkpoint.store.maintenance.verify import verify
from agent_checkpoint.store.store import Store
from tests.cli.scene import Scene, scene
from tests.cli.scene import wait_for as wait_seconds
from tests.cli.test_hook import CLAUDE
from tests.unit.agents.upkeep.old_sessions import DAY, save_session, seqs, store_in

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/mnt").exists(), reason="Linux only")


def wait_for(condition: Callable[[], bool]) -> None:
    wait_seconds(condition, 240)  # the process has a low priority


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with scene(tmp_path, "served") as found:
        found.environment["AGENT_CHECKPOINT_HOOK_IDLE"] = "10"  # upkeep after half a second
        for name in (*LOCATION_VARIABLES, SECRET):  # the same secret and state directory
            monkeypatch.delenv(name, raising=False)
            if name in found.environment:
                monkeypatch.setenv(name, found.environment[name])
        yield found


@pytest.fixture
def store(work: Scene) -> Iterator[Store]:
    found = store_in(work.home / "store")
    yield found
    found.backend.close()


def fill(store: Store, work: Scene, sessions: int = 2) -> dict[str, list[int]]:
    """Save sessions of different ages; return the numbers of the one that is ten days old."""
    for number in range(sessions):
        save_session(store, f"old{number}", 60 * DAY, turns=8, root=str(work.workspace))
    return save_session(store, "weeks", 10 * DAY, turns=8, root=str(work.workspace))


def smaller(store: Store) -> int:
    """Return a budget that is half of the objects less than what the store takes in use."""
    store.backend.close()  # with it goes the WAL
    path = store.backend.properties.path
    assert path is not None
    closed = store_size(store.backend) - (path / ".reserve").stat().st_size
    return closed + SIZE - sum(info.size for info in store.backend.list_objects()) // 2


def upkeeps(work: Scene) -> list[int]:
    """The processes that do the upkeep of this scene."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
            ours = f"AGENT_CHECKPOINT_HOME={work.home}".encode() in environment
            if ours and b"--upkeep" in command:
                found.append(int(process.name))
    return found


def test_a_store_that_grows_past_its_budget_shrinks_by_itself(work: Scene, store: Store) -> None:
    weeks = fill(store, work)
    budget = smaller(store)
    work.environment["AGENT_CHECKPOINT_BUDGET"] = str(budget)
    for number in range(3):
        work.tool(number)
    live = seqs(store, CLAUDE)
    wait_for(lambda: seqs(store, "claude-code/old1") == [48])
    wait_for(lambda: store_size(store.backend) <= budget)
    wait_for(lambda: not upkeeps(work))
    for number in range(2):
        assert seqs(store, f"claude-code/old{number}") == [48]
    assert seqs(store, "claude-code/weeks") == [*weeks["prompt"], weeks["end"][-1]]
    assert seqs(store, CLAUDE) == live
    assert verify(store).ok
    assert work.log == ""
    work.tool(9)
    assert len(seqs(store, CLAUDE)) == len(live) + 1
    told = json.loads(work.command("stats", "--json"))["budget"]
    assert told["budget"] == budget
    assert told["problem"] is None
    assert told["last_upkeep"]["removed"] == 2 * 47 + 8 * 6 - 9


def test_over_the_budget_all_commands_say_so(work: Scene, store: Store) -> None:
    work.environment["AGENT_CHECKPOINT_BUDGET"] = "1000"
    work.tool(1)
    before = seqs(store, CLAUDE)
    wait_for(lambda: "nothing left to remove" in work.command("stats"))
    assert seqs(store, CLAUDE) == before
    for command in ("stats", "doctor", "hook status"):
        printed = work.command(*command.split())
        assert "The store is over its budget: " in printed, command
        assert "budget 1 kB" in printed
        assert "--budget" in printed
    (state,) = json.loads(work.command("hook", "status", "--json"))["budgets"].values()
    assert state["is_over"]


def test_a_hook_call_ends_an_upkeep_and_does_not_wait_for_it(work: Scene, store: Store) -> None:
    fill(store, work, 1)
    work.environment["AGENT_CHECKPOINT_BUDGET"] = "1000"
    work.tool(1)
    stopped: list[int] = []

    def stop() -> bool:
        for process in upkeeps(work):
            os.kill(process, signal.SIGSTOP)  # as if it held the lock of the store for ever
            stopped.append(process)
        return bool(stopped)

    wait_for(stop)
    work.tool(2)
    wait_for(lambda: not set(stopped) & set(upkeeps(work)))
    assert len(seqs(store, CLAUDE)) == 2
    wait_for(lambda: seqs(store, "claude-code/old0") == [48])  # it is done again, later


def test_it_ends_with_the_daemon(work: Scene, store: Store) -> None:
    fill(store, work, 1)
    work.environment["AGENT_CHECKPOINT_BUDGET"] = "1000"
    work.tool(1)
    wait_for(lambda: [os.kill(process, signal.SIGSTOP) for process in upkeeps(work)] != [])
    work.command("hook", "stop")
    wait_for(lambda: not upkeeps(work))


@pytest.mark.slow
def test_killed_at_any_time_it_leaves_a_good_store(work: Scene, store: Store) -> None:
    live = save_session(store, "live", 0.0)
    environment = {**work.environment, "AGENT_CHECKPOINT_BUDGET": "1000"}
    command = [sys.executable, "-I", "-S", str(work.client), "--upkeep", ""]
    begin = time.monotonic()
    subprocess.run(command, env=environment, check=True)
    whole = time.monotonic() - begin
    for seed in range(12):
        save_session(store, f"old{seed}", 60 * DAY, turns=10)
        process = subprocess.Popen(command, env=environment)
        time.sleep(random.Random(seed).uniform(0.3, 1.3) * whole)
        process.kill()
        process.wait()
        assert verify(store).ok
        assert seqs(store, "claude-code/live") == sorted(chain(*live.values()))
        assert 60 in seqs(store, f"claude-code/old{seed}")
    subprocess.run(command, env=environment, check=True)
    assert all(seqs(store, f"claude-code/old{seed}") == [60] for seed in range(12))
    assert verify(store).ok


def test_the_option_of_hook_install(work: Scene, store: Store) -> None:
    work.command("hook", "install", "claude-code", "--budget", "3GB")
    assert "budget 3 GB" in work.command("stats")
    assert "budget 3 GB" in work.command("hook", "status")
    assert "budget 3 GB" in work.command("doctor")
    assert "budget 7 MB" in work.command("stats", AGENT_CHECKPOINT_BUDGET="7MB")
    assert "no budget" in work.command("stats", AGENT_CHECKPOINT_BUDGET="0")
    work.command("hook", "install", "claude-code", "--budget", "0")
    assert "no budget" in work.command("stats")
    assert "size such as 5GB" in work.command(
        "hook", "install", "claude-code", "--budget", "many", status=2
    )
    assert "AGENT_CHECKPOINT_BUDGET" in work.command(
        "stats", AGENT_CHECKPOINT_BUDGET="many", status=2
    )


def test_watch_keeps_to_a_budget(work: Scene, store: Store) -> None:
    fill(store, work)
    budget = smaller(store)
    option = ["--budget", str(budget)]
    key = f"workspace:{work.workspace}"
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_checkpoint", "watch", "--every", "0.1", *option],
        cwd=work.workspace,
        env=work.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: seqs(store, "claude-code/old0") == [48])
        wait_for(lambda: store_size(store.backend) <= budget)
    finally:
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=60)
    assert complaints == ""
    head = store.head(key)
    assert head is not None
    assert head.tags == ("event:watch",)
    assert verify(store).ok
    work.command("watch", "--budget", "many", status=2)
