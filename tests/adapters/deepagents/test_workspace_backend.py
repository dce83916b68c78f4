"""A Deep Agent on a workspace: files travel with the thread, and the tools behave as on a directory
of Deep Agents' own, without its faults."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import InvalidInputError, MemoryBackend, Workspace

pytest.importorskip("deepagents", reason="needs deepagents")
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from agent_checkpoint.adapters.deepagents import WorkspaceBackend, WorkspaceShellBackend
from agent_checkpoint.adapters.langgraph import CheckpointSaver

THREAD: Any = {"configurable": {"thread_id": "t"}}


class ScriptedModel(BaseChatModel):
    """Its reply depends on the number of its replies in the conversation: forks repeat it."""

    replies: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(one, AIMessage) for one in messages)
        reply = self.replies[turn] if turn < len(self.replies) else "done"
        if isinstance(reply, str):
            made = AIMessage(reply)
        else:
            calls = [
                {"name": name, "args": args, "id": f"call-{turn}-{number}"}
                for number, (name, args) in enumerate(reply)
            ]
            made = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=made)])


def write(path: str, content: str) -> Any:
    return ("write_file", {"file_path": path, "content": content})


def edit(path: str, old: str, new: str) -> Any:
    return ("edit_file", {"file_path": path, "old_string": old, "new_string": new})


def read(path: str) -> Any:
    return ("read_file", {"file_path": path})


def files(directory: Path) -> dict[str, str]:
    found = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path.relative_to(directory).as_posix(): path.read_text() for path in found}


def results(state: Any) -> list[tuple[str, str]]:
    return [(m.status, m.content) for m in state["messages"] if isinstance(m, ToolMessage)]


def agent(saver: Any, *replies: Any, backend: Any = None, **options: Any) -> Any:
    return create_deep_agent(
        ScriptedModel(replies=list(replies)),
        backend=backend or WorkspaceBackend(saver.workspace),
        checkpointer=saver,
        **options,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    return place


@pytest.fixture
def workspace(directory: Path) -> Any:
    with Workspace(directory, store=MemoryBackend()) as opened:
        yield opened


SCRIPT = [[write("/notes/plan.md", "one\n")], [edit("/notes/plan.md", "one", "two")], "all done"]
PLAN = "notes/plan.md"


@pytest.mark.parametrize("is_async", [False, True])
def test_files_travel_with_the_thread(tmp_path: Path, directory: Path, is_async: bool) -> None:
    def invoke(graph: Any, sent: Any, config: Any) -> Any:
        if is_async:
            return asyncio.run(graph.ainvoke(sent, config, durability="sync"))
        return graph.invoke(sent, config, durability="sync")

    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        state = invoke(agent(saver, *SCRIPT), {"messages": [("user", "go")]}, THREAD)
        assert [status for status, _ in results(state)] == ["success", "success"]
        assert state["messages"][-1].content == "all done"
        assert files(directory) == {PLAN: "two\n"}

    # As in another process: back to before the edit, with the files, and another way from there.
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        other = agent(saver, SCRIPT[0], [edit("/notes/plan.md", "one", "three")], "otherwise")
        before = next(
            one
            for one in other.get_state_history(THREAD)
            if one.next == ("model",) and len(results(one.values)) == 1
        )
        assert files(directory) == {PLAN: "two\n"}, "reading does not touch files"
        plan = saver.restore_files(before.config)
        assert files(directory) == {PLAN: "one\n"}
        state = invoke(other, None, before.config)
        assert results(state)[-1][0] == "success", "the edit finds the text that it replaces"
        assert state["messages"][-1].content == "otherwise"
        assert files(directory) == {PLAN: "three\n"}
        saver.workspace.restore(plan.safety)
        assert files(directory) == {PLAN: "two\n"}, "the first way is not lost"


def test_sub_agents_write_into_the_files_of_the_thread(tmp_path: Path, directory: Path) -> None:
    worker: Any = {
        "name": "worker",
        "description": "writes",
        "system_prompt": "write",
        "model": ScriptedModel(replies=[[write("/from-worker.txt", "w")], "written"]),
    }
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        task = ("task", {"description": "write it", "subagent_type": "worker"})
        graph = agent(saver, [write("/a.txt", "a")], [task], subagents=[worker])
        graph.invoke({"messages": [("user", "go")]}, THREAD, durability="sync")
        assert files(directory) == {"a.txt": "a", "from-worker.txt": "w"}
        before = next(
            one
            for one in graph.get_state_history(THREAD)
            if one.next == ("model",) and len(results(one.values)) == 1
        )
        saver.restore_files(before.config)
        assert files(directory) == {"a.txt": "a"}
        saver.restore_files(THREAD)
        assert files(directory) == {"a.txt": "a", "from-worker.txt": "w"}


def test_files_in_the_state_are_those_of_the_framework(tmp_path: Path) -> None:
    """Without a backend, files are a channel: the saver holds it as InMemorySaver does."""

    def seen(saver: Any) -> list[Any]:
        graph = create_deep_agent(ScriptedModel(replies=SCRIPT), checkpointer=saver)
        graph.invoke({"messages": [("user", "go")]}, THREAD)
        return [
            (
                one.next,
                {name: file["content"] for name, file in one.values.get("files", {}).items()},
                [message.content for message in one.values["messages"]],
            )
            for one in graph.get_state_history(THREAD)
            if one.values
        ]

    with CheckpointSaver(tmp_path / "s") as saver:
        found = seen(saver)
    assert found == seen(InMemorySaver())
    assert found[0][1] == {"/notes/plan.md": "two\n"}


def test_an_escape_is_told_to_the_model_and_the_run_goes_on(
    tmp_path: Path, directory: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (directory / "out").symlink_to(tmp_path)
    (directory / "self").symlink_to(".")
    calls = [
        read("/out/secret.txt"),
        write("/out/secret.txt", "changed"),
        write("/out/new.txt", "new"),
        edit("/out/secret.txt", "secret", "changed"),
        ("delete", {"file_path": "/out/secret.txt"}),
        ("ls", {"path": "/out"}),
        ("glob", {"pattern": "*", "path": "/out"}),
        read("/../secret.txt"),
        write("/a..b", "x"),
        ("delete", {"file_path": "/"}),
        ("delete", {"file_path": "/self"}),
    ]
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        graph = agent(saver, *([call] for call in calls))
        state = graph.invoke({"messages": [("user", "go")]}, THREAD)
        assert state["messages"][-1].content == "done"
        assert {status for status, _ in results(state)} == {"error"}
        assert "'/out/secret.txt' is not a path in the workspace" in results(state)[0][1]
        assert all(str(tmp_path) not in text for _, text in results(state))
        with pytest.raises(ValueError, match="outside root"):  # the reason for a class of ours
            FilesystemBackend(directory, virtual_mode=True).read("/out/secret.txt")
    assert secret.read_text() == "secret"
    assert sorted(path.name for path in directory.iterdir()) == ["out", "self"]
    assert not (tmp_path / "new.txt").exists()


# -- the same as the framework's own ---------------------------------------------------------------

PATHS = st.sampled_from(
    [
        *("/a.txt", "a.txt", "/d/b.txt", "/d/e/c.md", "/d", "/d/", "/", "", ".", "//a.txt"),
        *("/none/x", "/in/b.txt", "/in", "/out/x", "/out", "/loop", "/../x", "/a..b", "~/x"),
        *("/a.txt/x", "/d/./b.txt", "/\0", "/picture.png", "/ö ö.txt"),
    ]
)
TEXTS = st.sampled_from(
    ["", "one\n", "one\ntwo\none", "two", "\r\nthree\r\n", "ö\u2028x", "\ud800"]
)
OPERATIONS = st.one_of(
    st.tuples(st.just("ls"), PATHS),
    st.tuples(st.just("read"), PATHS, st.integers(-1, 3), st.integers(-1, 3)),
    st.tuples(st.just("write"), PATHS, TEXTS),
    st.tuples(st.just("edit"), PATHS, TEXTS, TEXTS, st.booleans()),
    st.tuples(st.just("delete"), PATHS),
    st.tuples(
        st.just("glob"),
        st.sampled_from(["*", "**/*.txt", "*.md", "/*.txt", "d/*", "../*", "{a,b}*", "[", ""]),
        st.none() | PATHS,
    ),
    st.tuples(st.just("grep"), TEXTS, st.none() | PATHS, st.sampled_from([None, "*.txt", "../*"])),
    st.tuples(st.just("upload_files"), st.lists(st.tuples(PATHS, st.binary(max_size=4)))),
    st.tuples(st.just("download_files"), st.lists(PATHS)),
)


def lay_out(place: Path) -> Path:
    root = place / "root"
    (root / "d").mkdir(parents=True)
    (root / "d" / "b.txt").write_text("one\ntwo\n")
    (root / "in").symlink_to("d")
    (root / "out").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (place / "x").write_text("outside")
    return root


def comparable(found: Any, root: Path) -> Any:
    if isinstance(found, list):
        return sorted((comparable(one, root) for one in found), key=repr)
    if isinstance(found, dict):
        return {k: comparable(v, root) for k, v in found.items() if k != "modified_at"}
    if hasattr(found, "__dict__"):
        return (type(found).__name__, comparable(vars(found), root))
    return found.replace(str(root), "ROOT") if isinstance(found, str) else found


def outcome(backend: Any, operation: Any, root: Path) -> Any:
    name, *arguments = operation
    try:
        return comparable(getattr(backend, name)(*arguments), root)
    except ValueError:
        return "refused"


def tree(place: Path) -> Any:
    return sorted(
        (
            path.relative_to(place).as_posix(),
            str(path.readlink())
            if path.is_symlink()
            else (path.read_bytes() if path.is_file() else ""),
        )
        for path in place.rglob("*")
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=12))
def test_every_operation_does_what_the_backend_of_the_framework_does(operations: Any) -> None:
    with TemporaryDirectory() as ours, TemporaryDirectory() as theirs:
        root, other = lay_out(Path(ours).resolve()), lay_out(Path(theirs).resolve())
        with Workspace(root, store=MemoryBackend(), watch=False) as workspace:
            backend, model = WorkspaceBackend(workspace), FilesystemBackend(other)
            for operation in operations:
                if operation[0] == "delete":
                    resolved = os.path.realpath(f"{other}/{operation[1]}".replace("\0", "0"))
                    if resolved == str(other):
                        assert "the workspace itself" in backend.delete(operation[1]).error
                        continue
                expected = outcome(model, operation, other)
                found = outcome(backend, operation, root)
                if expected == "refused":
                    assert "is not a path in the workspace" in found[1]["error"]
                else:
                    assert found == expected, operation
                assert tree(Path(ours)) == tree(Path(theirs)), operation


# -- at the same time ------------------------------------------------------------------------------


def in_threads(*tasks: Callable[[], Any]) -> None:
    failed: list[BaseException] = []

    def run(task: Callable[[], Any]) -> None:
        try:
            task()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def restored(workspace: Workspace, tree: Any) -> "bytes | None":
    workspace.restore(tree)
    file = Path(workspace.path, "f.txt")
    return file.read_bytes() if file.exists() else None


def test_a_snapshot_has_a_change_as_a_whole_or_not_at_all(workspace: Workspace) -> None:
    backend, size, is_over = WorkspaceBackend(workspace), 1 << 20, threading.Event()

    def changes() -> None:
        try:
            for number in range(60):
                if number % 3 == 2:
                    backend.upload_files([("/f.txt", b"u" * size)])
                elif number % 3 == 1:
                    assert backend.edit("/f.txt", "a" * size, "b" * size).error is None
                else:
                    backend.write("/f.txt", "a" * size)
        finally:
            is_over.set()

    seen = set()

    def snapshots() -> None:
        while not is_over.is_set():
            seen.add(workspace.snapshot())

    in_threads(changes, snapshots)
    contents = [content for one in seen if (content := restored(workspace, one)) is not None]
    assert {(len(content), len(set(content))) for content in contents} == {(size, 1)}


def test_edits_of_one_file_at_the_same_time_are_all_made(workspace: Workspace) -> None:
    words = [f"word{number};" for number in range(20)]
    file = Path(workspace.path, "f.txt")
    file.write_text("".join(words) + "x" * 1_000_000)
    backend = WorkspaceBackend(workspace)

    def change(word: str) -> None:
        assert backend.edit("/f.txt", word, word.upper()).occurrences == 1

    in_threads(*(lambda word=word: change(word) for word in words))  # type: ignore[misc]
    assert file.read_text().startswith("".join(words).upper())


# -- commands --------------------------------------------------------------------------------------


def test_commands_run_in_the_workspace_and_their_files_travel(
    tmp_path: Path, directory: Path
) -> None:
    run = ("execute", {"command": "echo from a command > out.txt; pwd"})
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        shell = WorkspaceShellBackend(saver.workspace, env={"LANG": "C"})
        assert shell.id == saver.workspace.key  # type: ignore[union-attr]
        graph = agent(saver, [run], [write("/later.txt", "x")], backend=shell)
        state = graph.invoke({"messages": [("user", "go")]}, THREAD, durability="sync")
        assert str(directory.resolve()) in results(state)[0][1]
        before = next(one for one in graph.get_state_history(THREAD) if not results(one.values))
        saver.restore_files(before.config)
        assert files(directory) == {}
        saver.restore_files(THREAD)
        assert files(directory) == {"out.txt": "from a command\n", "later.txt": "x"}


def test_a_backend_of_files_runs_no_commands(tmp_path: Path, directory: Path) -> None:
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        assert not isinstance(WorkspaceBackend(saver.workspace), SandboxBackendProtocol)
        graph = agent(saver, [("execute", {"command": "touch made.txt"})])
        state = graph.invoke({"messages": [("user", "go")]}, THREAD)
    assert [status for status, _ in results(state)] == ["error"]
    assert files(directory) == {}


def test_a_saver_without_a_workspace_is_refused(tmp_path: Path) -> None:
    with (
        CheckpointSaver(tmp_path / "s") as saver,
        pytest.raises(InvalidInputError, match="pass workspace="),
    ):
        WorkspaceBackend(saver.workspace)
