"""The process that stays: it is safe to kill, to stop, to replace, and to have none of it."""

import fcntl
import os
import random
import shutil
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Optional

import pytest

from tests.cli.scene import PACKAGE, Scene, scene, wait_for
from tests.cli.test_hook import CLAUDE

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/mnt").exists(), reason="Linux only")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "served") as found:
        yield found


def has_ended(process: int) -> bool:
    """Tell whether it has let go of its lock and socket, too: when its last thread has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
        threads = os.listdir(f"/proc/{process}/task")
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z" and len(threads) == 1


def tools(work: Scene) -> list[str]:
    return [row["tags"][-1] for row in reversed(work.history(CLAUDE))]


def test_there_is_one_for_all_events(work: Scene) -> None:
    processes = [
        work.start("claude-code", work.event("claude-code.post-tool-use", tool_use_id=f"t{n}"))
        for n in range(5)
    ]
    for process in processes:
        process.communicate(timeout=60)
    (first,) = work.servers()
    work.tool(7)
    assert work.servers() == [first]
    assert len(tools(work)) == 6


def test_it_does_not_keep_the_environment_of_the_agent(work: Scene) -> None:
    event = work.event("claude-code.post-tool-use", tool_use_id="t1")
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "canary",
        "ANTHROPIC_API_KEY": "canary",
        "AGENT_CHECKPOINT_TOKEN": "canary",
        "SOME_TOKEN": "canary",
    }
    work.hook("claude-code", event, LC_ALL="C.UTF-8", XDG_CONFIG_HOME="", **secrets)
    (server,) = work.servers()
    lines = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    names = {line.partition(b"=")[0].decode() for line in lines if line}
    assert names - {"COVERAGE_PROCESS_CONFIG"} == {
        "PATH",
        "HOME",
        "AGENT_CHECKPOINT_HOME",
        "LC_ALL",
        "XDG_CONFIG_HOME",
    }
    assert not any(b"canary" in line for line in lines)


def test_callers_with_other_settings_do_not_get_those_of_the_first(
    work: Scene, tmp_path: Path
) -> None:
    def seal_of(session: str, store: Optional[Path] = None) -> object:
        with work.manager(store) as manager:
            (head,) = manager.history(f"claude-code/{session}", n=1)
            return manager.state_dict(head["id"].rpartition("_")[0])["hook"]["seal"]

    def hook(session: str, **environment: str) -> None:
        event = work.event("claude-code.post-tool-use", tool_use_id="t", session_id=session)
        work.hook("claude-code", event, **environment)

    hook("first", AGENT_CHECKPOINT_SECRET="the first secret, which is long")
    hook("second", AGENT_CHECKPOINT_SECRET="the second secret, which is long")
    hook("third")
    hook("fourth", AGENT_CHECKPOINT_STORE=str(tmp_path / "other"))
    assert len({str(seal_of(name)) for name in ("first", "second", "third")}) == 3
    assert seal_of("fourth", tmp_path / "other")
    assert sorted(work.keys()) == [f"claude-code/{n}" for n in ("first", "second", "third")]
    assert len(work.servers()) == 1


def test_a_store_of_another_package_is_opened_with_the_whole_environment(work: Scene) -> None:
    event = work.event("claude-code.post-tool-use", tool_use_id="t1")
    work.hook("claude-code", event, AGENT_CHECKPOINT_STORE="s3://bucket/prefix")
    assert work.servers() == []
    assert "No backend is registered for s3:// URLs" in work.log


def test_it_is_apart_from_the_agent(work: Scene) -> None:
    work.tool(2)
    (server,) = work.servers()
    assert os.getsid(server) == server
    assert os.readlink(f"/proc/{server}/cwd") == "/"
    for fd in range(3):
        assert os.readlink(f"/proc/{server}/fd/{fd}") == "/dev/null"


def test_only_the_user_can_reach_it(work: Scene) -> None:
    work.tool(2)
    (socket,) = work.sockets()
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_is_not_served(work: Scene) -> None:
    import socket

    work.tool(2)
    (path,) = work.sockets()
    for place in (path.parent, *path.parent.parents):
        if place == Path("/tmp"):
            break
        place.chmod(0o755)
    path.chmod(0o777)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(path.parent)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(5)
                connection.connect(path.name)
                connection.sendall(b"end\n")
                status = 0 if connection.recv(1) == b"" else 2
        except ConnectionError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.3)
    assert len(work.servers()) == 1
    path.parent.chmod(0o700)


def test_killed_it_is_replaced_and_nothing_is_lost(work: Scene) -> None:
    work.tool(2)
    (server,) = work.servers()
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: has_ended(server))
    assert len(work.sockets()) == 1  # stale
    work.tool(3)
    try:  # on a busy machine, the hook saves before it is up
        wait_for(lambda: bool(work.servers()), 60)
    except AssertionError:
        raise AssertionError(f"no new daemon: {work.log!r}, {work.sockets()}") from None
    (other,) = work.servers()
    assert other != server
    assert tools(work) == ["toolu_2", "toolu_3"]
    assert work.log == ""


@pytest.mark.slow
def test_one_that_is_dying_and_has_its_lock_yet_is_waited_for(work: Scene) -> None:
    work.tool(2)
    (path,) = work.sockets()
    work.command("hook", "stop")
    wait_for(lambda: not work.servers())
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        event = work.event("claude-code.post-tool-use", tool_use_id="toolu_3")
        process = work.start("claude-code", event)
        wait_for(lambda: bool(work.servers()))
        time.sleep(0.3)
    process.communicate(timeout=60)
    wait_for(lambda: bool(work.sockets()))
    assert tools(work) == ["toolu_2", "toolu_3"]
    work.tool(4)
    assert len(work.servers()) == 1


@pytest.mark.slow
def test_killed_while_it_saves_the_hook_saves(work: Scene) -> None:
    work.tool(2)
    for number in range(3000):
        (work.workspace / f"file{number}").write_text(f"{number}" * 200)
    (server,) = work.servers()
    event = work.event("claude-code.post-tool-use", tool_use_id="toolu_3")
    process = work.start("claude-code", event)
    time.sleep(0.15)
    os.kill(server, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert tools(work) == ["toolu_2", "toolu_3"]
    with work.manager() as manager:
        assert manager.verify().ok


@pytest.mark.slow
def test_killed_again_and_again_nothing_is_lost_or_saved_twice(work: Scene) -> None:
    done = threading.Event()
    dice = random.Random("kills")

    def kill() -> None:
        while not done.wait(dice.uniform(0.1, 0.5)):
            for server in work.servers():
                with suppress(ProcessLookupError):
                    os.kill(server, dice.choice([signal.SIGKILL, signal.SIGTERM]))

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for number in range(0, 45, 3):
            processes = []
            for one in range(number, number + 3):
                (work.workspace / f"file{one % 7}").write_text(str(one))
                event = work.event(
                    "claude-code.post-tool-use",
                    session_id=f"session{one % 2}",
                    tool_use_id=f"toolu_{one}",
                )
                processes.append(work.start("claude-code", event))
            for process in processes:
                printed, complaints = process.communicate(timeout=60)
                assert (process.returncode, printed, complaints) == (0, b"", b"")
    finally:
        done.set()
        killer.join()
    found = [
        row["tags"][-1] for one in range(2) for row in work.history(f"claude-code/session{one}")
    ]
    assert sorted(found) == sorted(f"toolu_{number}" for number in range(45))
    with work.manager() as manager:
        assert manager.verify().ok


def test_if_it_does_not_answer_the_hook_saves(work: Scene) -> None:
    work.tool(2)
    (server,) = work.servers()
    os.kill(server, signal.SIGSTOP)
    try:
        work.tool(3)
        assert tools(work) == ["toolu_2", "toolu_3"]
    finally:
        os.kill(server, signal.SIGCONT)
    wait_for(lambda: len(tools(work)) == 2)


@pytest.mark.slow
def test_it_ends_when_it_has_nothing_to_do(work: Scene) -> None:
    work.environment["AGENT_CHECKPOINT_HOOK_IDLE"] = "0.1"
    work.tool(2)
    wait_for(lambda: not work.servers())
    assert work.sockets() == []
    work.tool(3)
    assert tools(work) == ["toolu_2", "toolu_3"]


@pytest.mark.slow
def test_it_ends_when_it_is_told_to(work: Scene) -> None:
    work.tool(2)
    (server,) = work.servers()
    assert "Stopped the daemon" in work.command("hook", "stop")
    wait_for(lambda: not work.servers())
    work.tool(3)
    (server,) = work.servers()
    os.kill(server, signal.SIGTERM)
    wait_for(lambda: not work.servers())
    assert work.sockets() == []
    assert "No daemon is running" in work.command("hook", "stop")
    assert [path.name for path in (work.home / "store").glob("*-wal")] == []  # closed in order


def test_the_client_runs_at_the_path_that_old_settings_name(work: Scene) -> None:
    work.client = PACKAGE / "cli" / "hooks" / "client.py"
    work.tool(2)
    assert len(work.servers(PACKAGE / "agents" / "hook" / "client.py")) == 1
    assert tools(work) == ["toolu_2"]


@pytest.mark.slow
def test_a_new_version_replaces_it(work: Scene, tmp_path: Path) -> None:
    package = tmp_path / "installed" / "agent_checkpoint"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    work.client = package / "agents" / "hook" / "client.py"
    work.tool(2)
    (old,) = work.servers()
    saving = package / "agents" / "hook" / "event_saver.py"
    saving.write_text(saving.read_text().replace("label=event.label", "label='by the new one'"))
    text = work.client.read_text()
    work.client.unlink()  # as an installer does
    work.client.write_text(text)
    work.tool(3)
    assert work.history(CLAUDE)[0]["label"] == "by the new one"
    wait_for(lambda: old not in work.servers())
    assert len(work.servers()) == 1
    shutil.rmtree(package)  # uninstalled
    wait_for(lambda: not work.servers())
    assert tools(work) == ["toolu_2", "toolu_3"]


def test_what_others_may_enter_is_not_used(work: Scene) -> None:
    (work.home / "hook").mkdir(parents=True, mode=0o755)
    work.tool(2)
    assert work.servers() == []
    assert tools(work) == ["toolu_2"]


def test_another_place_is_not_mixed_up_with_its_own(work: Scene) -> None:
    work.tool(2)
    data = work.place / "data"
    event = work.event("claude-code.post-tool-use", tool_use_id="toolu_3")
    work.hook("claude-code", event, XDG_DATA_HOME=str(data))
    assert tools(work) == ["toolu_2", "toolu_3"]
    assert len(work.servers()) == 1


def test_a_store_that_was_removed_is_made_anew(work: Scene) -> None:
    work.tool(2)
    work.tool(3)
    (server,) = work.servers()
    shutil.rmtree(work.home / "store")
    work.tool(4)
    assert tools(work) == ["toolu_4"]
    work.tool(5)
    assert tools(work) == ["toolu_4", "toolu_5"]
    assert work.servers() == [server]


def test_a_store_that_was_replaced_by_a_copy_is_opened_anew(work: Scene) -> None:
    work.tool(2)
    (server,) = work.servers()
    store = work.home / "store"
    shutil.copytree(store, work.home / "copy")
    shutil.rmtree(store)
    (work.home / "copy").rename(store)
    work.tool(3)
    assert tools(work) == ["toolu_2", "toolu_3"]
    assert work.servers() == [server]


def test_changes_are_seen_while_it_watches(work: Scene) -> None:
    for number in range(20):
        (work.workspace / "src" / "app.py").write_text(f"print({number})\n")
        work.tool(number)
    with work.manager() as manager:
        trees = {str(found.parts["workspace"]) for found in manager.store.newest_first(CLAUDE)}
    assert len(trees) == 20
