"""The MCP server, with a real client: in memory, over stdio, with and without a person to ask."""

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Optional

import pytest

pytest.importorskip("mcp", reason="mcp needs Python 3.10")

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitResult

from agent_checkpoint import CheckpointManager
from agent_checkpoint.cli.mcp.server import make_server
from agent_checkpoint.cli.store_location import StoreLocation

SECRET = "sk-ant-api03-" + "a1B2c3D4e5" * 9 + "-AAAA"


class Person:
    """Answers the questions of the server."""

    def __init__(self, action: str = "accept", restore: bool = True) -> None:
        self.action = action
        self.restore = restore
        self.asked: list[str] = []
        self.meanwhile: Any = None

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        if self.meanwhile is not None:
            self.meanwhile()
        content = {"restore": self.restore} if self.action == "accept" else None
        return ElicitResult(action=self.action, content=content)  # type: ignore[arg-type]


class World:
    def __init__(self, place: Path) -> None:
        self.store = place / "store"
        self.project = place / "project"
        self.project.mkdir()
        (self.project / "app.py").write_text("old\n")
        (self.project / ".env").write_text(f"ANTHROPIC_API_KEY={SECRET}\n")

    def call(
        self, tool: str, person: Optional[Person] = None, mode: str = "auto", **given: Any
    ) -> Any:
        return self.calls([(tool, given)], person, mode)[0]

    def calls(
        self,
        calls: list[tuple[str, dict[str, Any]]],
        person: Optional[Person] = None,
        mode: str = "auto",
    ) -> list[Any]:
        """Call tools; return what each says: data, or the text of its error."""
        location = StoreLocation(str(self.store), self.project, makes_store=True)

        async def talk() -> list[Any]:
            server = make_server(location)
            found = []
            async with Client(server, elicitation_callback=person, mode=mode) as client:
                for tool, given in calls:
                    answer = await client.call_tool(tool, given)
                    text = answer.content[0].text
                    found.append(text if answer.is_error else json.loads(text))
            return found

        return run(talk())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 300))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(tmp_path / "home"))
    return World(tmp_path)


def test_save_list_show_diff_and_fork(world: World) -> None:
    first = world.call("save_checkpoint", label="one")
    (world.project / "app.py").write_text("new\n")
    second, rows, shown, file, changes, since, fork, all_rows = world.calls(
        [
            ("save_checkpoint", {}),
            ("list_checkpoints", {}),
            ("show_checkpoint", {"id": "@1"}),
            ("show_checkpoint", {"id": "@1", "path": "app.py"}),
            ("diff_checkpoint", {"id": "@1", "other": "@2"}),
            ("diff_checkpoint", {"id": "@1"}),
            ("fork_checkpoint", {"id": "@1", "name": "try-it"}),
            ("list_checkpoints", {"limit": 10}),
        ]
    )
    assert [row["id"] for row in rows["checkpoints"]] == [second["id"], first["id"]]
    assert rows["checkpoints"][1]["label"] == "one"
    assert shown["id"] == first["id"]
    assert (file["path"], file["text"]) == ("app.py", "old\n")
    assert "-old" in changes["files"]["text"]
    assert "+new" in since["files"]["text"]
    assert fork["from"] == first["id"]
    assert all_rows["keys"] == [first["key"], "try-it"]
    assert (world.project / "app.py").read_text() == "new\n"


def test_secrets_are_masked(world: World) -> None:
    answers = world.calls(
        [
            ("save_checkpoint", {"label": f"with {SECRET}"}),
            ("list_checkpoints", {}),
            ("show_checkpoint", {"id": "@1"}),
            ("show_checkpoint", {"id": "@1", "path": ".env"}),
        ]
    )
    (world.project / ".env").write_text("")
    answers += world.calls([("diff_checkpoint", {"id": "@1"})])
    text = json.dumps(answers)
    assert SECRET not in text
    assert SECRET[:40] not in text
    assert "[masked" in text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_restore_after_a_confirmation(world: World, mode: str) -> None:
    world.call("save_checkpoint")
    (world.project / "app.py").write_text("new\n")
    person = Person()
    done = world.call("restore_checkpoint", person, mode, id="@1")
    assert done["done"] is True
    assert (world.project / "app.py").read_text() == "old\n"
    (question,) = person.asked
    assert "write app.py" in question
    assert str(world.project) in question
    again = world.call("restore_checkpoint", person, mode, id="@1")
    assert (again["done"], len(person.asked)) == (False, 1)  # nothing to do: nothing to ask


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    "person", [Person("decline"), Person("cancel"), Person("accept", restore=False)]
)
def test_a_person_who_declines(world: World, person: Person, mode: str) -> None:
    world.call("save_checkpoint")
    (world.project / "app.py").write_text("new\n")
    said = world.call("restore_checkpoint", person, mode, id="@1")
    assert "the user declined" in said
    assert (world.project / "app.py").read_text() == "new\n"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_cannot_ask_gets_the_command(world: World, mode: str) -> None:
    saved = world.call("save_checkpoint")
    (world.project / "app.py").write_text("new\n")
    tricks: list[dict[str, Any]] = [
        {},
        {"answer": {"action": "accept", "data": {"restore": True}}},
        {"confirmation": {"restore": True}},
    ]
    for trick in tricks:
        said = world.call("restore_checkpoint", None, mode, id="@1", **trick)
        assert "cannot ask a person" in said
        assert "agent-checkpoint restore " in said
        assert saved["id"].rpartition("-")[0] in said
    assert (world.project / "app.py").read_text() == "new\n"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_files_that_change_while_the_person_reads(world: World, mode: str) -> None:
    world.call("save_checkpoint")
    (world.project / "app.py").write_text("new\n")
    person = Person()
    other = world.project / "other.py"

    def edit() -> None:
        other.write_text("precious")
        person.meanwhile = None

    person.meanwhile = edit
    said = world.call("restore_checkpoint", person, mode, id="@1")
    if mode == "legacy":  # asked once; the newer protocol asks again for a changed plan
        assert "files have changed" in said
        assert (world.project / "app.py").read_text() == "new\n"
        assert other.read_text() == "precious"
    else:
        assert "other.py" not in person.asked[0]
        assert "delete other.py" in person.asked[1]
        assert said["done"] is True


def test_some_paths_only(world: World) -> None:
    world.call("save_checkpoint")
    (world.project / "app.py").write_text("new\n")
    (world.project / ".env").write_text("kept\n")
    world.call("restore_checkpoint", Person(), id="@1", paths=["app.py"])
    assert (world.project / "app.py").read_text() == "old\n"
    assert (world.project / ".env").read_text() == "kept\n"


def test_hostile_input(world: World, tmp_path: Path) -> None:
    world.call("save_checkpoint")
    (world.project / "app.py").write_text("new\n")
    outside = tmp_path / "outside.txt"
    outside.write_text("private")
    with CheckpointManager(backend="sqlite", path=world.store) as manager:
        other = manager.save("other-project", {"secret": "of another project"})
    person = Person()
    hostile: list[tuple[str, dict[str, Any]]] = [
        ("show_checkpoint", {"id": other}),
        ("show_checkpoint", {"id": "other-project"}),
        ("diff_checkpoint", {"id": "@1", "other": other}),
        ("fork_checkpoint", {"id": other, "name": "mine"}),
        ("restore_checkpoint", {"id": other}),
        ("list_checkpoints", {"key": "other-project"}),
        ("list_checkpoints", {"limit": 10**9}),
        ("show_checkpoint", {"id": "--no-mask"}),
        ("show_checkpoint", {"id": "@1", "path": "--no-mask"}),
        ("show_checkpoint", {"id": "@1", "path": "../outside.txt"}),
        ("show_checkpoint", {"id": "@1", "path": str(outside)}),
        ("show_checkpoint", {"id": "@1", "path": "app.py\0"}),
        ("show_checkpoint", {"id": "-h"}),
        ("show_checkpoint", {"id": ""}),
        ("restore_checkpoint", {"id": "@1", "paths": ["../outside.txt"]}),
        ("restore_checkpoint", {"id": "@1", "paths": ["/etc"]}),
        ("restore_checkpoint", {"id": "@1", "paths": ["no-such-file"]}),
        ("restore_checkpoint", {"id": "@999"}),
        ("fork_checkpoint", {"id": "@1", "name": ""}),
        ("save_checkpoint", {"label": "a\0b"}),
    ]
    for (tool, given), said in zip(hostile, world.calls(hostile, person)):
        assert isinstance(said, str), (tool, given, said)
        assert "Traceback" not in said
        assert "of another project" not in said
    assert person.asked == []
    assert (world.project / "app.py").read_text() == "new\n"
    assert outside.read_text() == "private"
    with CheckpointManager(backend="sqlite", path=world.store) as manager:
        assert manager.list_keys() == ["other-project", f"workspace:{world.project}"]


def test_over_stdio(world: World, tmp_path: Path) -> None:
    environment = {"AGENT_CHECKPOINT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "agent_checkpoint", "--store", str(world.store), "mcp", str(world.project)],
        env=environment,
    )
    person = Person()

    async def talk() -> None:
        async with Client(parameters, elicitation_callback=person) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert sorted(tools) == [
                "diff_checkpoint",
                "fork_checkpoint",
                "list_checkpoints",
                "restore_checkpoint",
                "save_checkpoint",
                "show_checkpoint",
            ]
            assert set(tools["restore_checkpoint"].input_schema["properties"]) == {"id", "paths"}
            saved = await client.call_tool("save_checkpoint", {})
            assert not saved.is_error
            (world.project / "app.py").write_text("new\n")
            done = await client.call_tool("restore_checkpoint", {"id": "@1"})
            assert not done.is_error, done.content

    run(talk())
    assert len(person.asked) == 1
    assert (world.project / "app.py").read_text() == "old\n"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    from tests.cli.world import run as run_command

    monkeypatch.setitem(sys.modules, "agent_checkpoint.cli.mcp.server", None)
    ran = run_command("mcp", at=world.project)
    assert ran.status == 1
    assert "The MCP server needs the extra 'mcp'" in ran.err
