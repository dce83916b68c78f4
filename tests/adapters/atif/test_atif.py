"""Trajectories: what is exported is valid ATIF, and an import has the same steps again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, ConflictError, InvalidInputError, Log, Session
from agent_checkpoint.adapters.atif import export_trajectory, import_trajectory
from agent_checkpoint.cli.main import main

ANTHROPIC = [
    {"role": "user", "content": "go"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hmm", "signature": "s"},
            {"type": "text", "text": "I read"},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"file": "a"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "A"}]}
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
]
CHAT = [
    {"role": "user", "content": "go"},
    {
        "role": "assistant",
        "content": "I read",
        "reasoning_content": "hmm",
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "read", "arguments": '{"file": "a"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "t1", "content": "A"},
    {"role": "assistant", "content": "done"},
]
RESPONSES = [
    {"role": "user", "content": "go"},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hmm"}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I read", "annotations": []}],
    },
    {"type": "function_call", "call_id": "t1", "name": "read", "arguments": '{"file": "a"}'},
    {"type": "function_call_output", "call_id": "t1", "output": "A"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
]
GEMINI = [
    {"role": "user", "parts": [{"text": "go"}]},
    {
        "role": "model",
        "parts": [
            {"text": "I read"},
            {"functionCall": {"id": "t1", "name": "read", "args": {"file": "a"}}},
        ],
    },
    {
        "role": "user",
        "parts": [{"functionResponse": {"id": "t1", "name": "read", "response": {"text": "A"}}}],
    },
    {"role": "model", "parts": [{"text": "done"}]},
]
CLAUDE = [
    {"type": "queue-operation", "operation": "enqueue"},
    *(
        {"type": one["role"], "message": one, "timestamp": "2026-01-01T00:00:00Z"}
        for one in ANTHROPIC
    ),
]
PYDANTIC = [
    {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}]},
    {
        "kind": "response",
        "model_name": "m",
        "parts": [
            {"part_kind": "thinking", "content": "hmm"},
            {"part_kind": "text", "content": "I read"},
            {
                "part_kind": "tool-call",
                "tool_name": "read",
                "args": '{"file": "a"}',
                "tool_call_id": "t1",
            },
        ],
    },
    {
        "kind": "request",
        "parts": [{"part_kind": "tool-return", "tool_call_id": "t1", "content": "A"}],
    },
    {"kind": "response", "parts": [{"part_kind": "text", "content": "done"}]},
]
FORMATS = {
    "anthropic": ANTHROPIC,
    "chat": CHAT,
    "responses": RESPONSES,
    "gemini": GEMINI,
    "claude": CLAUDE,
    "pydantic": PYDANTIC,
}


def exported(messages: Any, **options: Any) -> Any:
    manager = CheckpointManager()
    manager.save("s", {"messages": Log(messages), "other": Log()})
    return export_trajectory(manager, "s", **options)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_steps(name: str) -> None:
    trajectory = exported(FORMATS[name])
    assert trajectory["schema_version"] == "ATIF-v1.8"
    steps = [
        {k: v for k, v in step.items() if k not in ("timestamp", "model_name")}
        for step in trajectory["steps"]
    ]
    if name != "gemini":  # it does not say what it thought
        assert steps[1].pop("reasoning_content") == "hmm"
    call = {"tool_call_id": "t1", "function_name": "read", "arguments": {"file": "a"}}
    assert steps == [
        {"step_id": 1, "source": "user", "message": "go"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "I read",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "t1", "content": "A"}]},
        },
        {"step_id": 3, "source": "agent", "message": "done"},
    ]


def test_the_metrics_are_those_of_the_model_calls() -> None:
    manager = CheckpointManager()
    with Session(
        "s", store=manager, provider="anthropic", prices={"m": {"input": 1e6, "output": 1e6}}
    ) as session:
        session.messages.append({"role": "user", "content": "go"})
        reply = {
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "hi"}],
            "usage": {"input_tokens": 2, "output_tokens": 3},
        }
        session.run_tools(session.model(lambda **_: reply, model="m", messages=[]), [])
    found = export_trajectory(manager, "s")
    assert found["agent"]["model_name"] == "m"
    assert found["final_metrics"]["total_prompt_tokens"] == 2
    assert found["final_metrics"]["total_completion_tokens"] == 3
    assert found["final_metrics"]["total_cost_usd"] == 5


def test_sub_agents_are_embedded() -> None:
    manager = CheckpointManager()
    with Session("s", store=manager) as session:
        session.messages.append({"role": "user", "content": "go"})
        with session.subagent("helper") as child:
            child.messages.append({"role": "user", "content": "help"})
    found = export_trajectory(manager, "s")
    assert [one["trajectory_id"] for one in found["subagent_trajectories"]] == ["helper"]
    assert found["subagent_trajectories"][0]["steps"][0]["message"] == "help"


def test_secrets_are_masked_when_asked_for() -> None:
    key = "sk-ant-api03-" + "a1B2" * 12
    assert key in json.dumps(exported([{"role": "user", "content": key}]))
    assert key not in json.dumps(exported([{"role": "user", "content": key}], mask=True))


def test_a_checkpoint_without_a_conversation_is_refused() -> None:
    manager = CheckpointManager()
    manager.save("s", {"messages": Log(), "other": Log()})
    with pytest.raises(InvalidInputError, match="no conversation"):
        export_trajectory(manager, "s")


# -- import ----------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
CALLS = st.lists(st.tuples(TEXT, st.dictionaries(TEXT, TEXT, max_size=2)), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["user", "system"]), TEXT),
        st.tuples(st.just("agent"), st.text(max_size=5), CALLS, st.booleans()),
    ),
    min_size=1,
    max_size=6,
)


def trajectory_of(steps: Any) -> Any:
    made: list[dict[str, Any]] = []
    for number, (source, text, *more) in enumerate(steps, 1):
        step: dict[str, Any] = {"step_id": number, "source": source, "message": text}
        if more and more[0]:
            step["tool_calls"] = [
                {"tool_call_id": f"c{number}.{n}", "function_name": name, "arguments": given}
                for n, (name, given) in enumerate(more[0])
            ]
            if more[1]:
                step["observation"] = {
                    "results": [
                        {"source_call_id": call["tool_call_id"], "content": "r"}
                        for call in step["tool_calls"]
                    ]
                }
        made.append(step)
    agent = {"name": "a", "version": "1"}
    return {"schema_version": "ATIF-v1.8", "session_id": "s", "agent": agent, "steps": made}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_an_import_has_the_same_steps(steps: Any) -> None:
    manager, trajectory = CheckpointManager(), trajectory_of(steps)
    assert import_trajectory(manager, json.dumps(trajectory)) == "s"
    assert export_trajectory(manager, "s")["steps"] == trajectory["steps"]
    assert len(manager.history("s")) == len(steps)


def test_an_import_is_a_session_that_can_be_forked_at_a_step() -> None:
    manager = CheckpointManager()
    trajectory = trajectory_of([("user", "go"), ("agent", "a", [], False), ("user", "more")])
    trajectory["steps"][1]["metrics"] = {"prompt_tokens": 3, "cost_usd": 0.5}
    import_trajectory(manager, trajectory, key="run")
    assert manager.history("run")[1]["metrics"] == {"input_tokens": 3, "cost": 0.5}
    with Session("run", store=manager, provider="openai") as session:
        assert [one["content"] for one in session.messages] == ["go", "a", "more"]
        with session.fork("try", at="@2") as branch:
            assert [one["content"] for one in branch.messages] == ["go", "a"]


def test_images_become_their_names() -> None:
    trajectory = trajectory_of([("user", "x")])
    source = {"media_type": "image/png", "path": "a.png"}
    trajectory["steps"][0]["message"] = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": source},
    ]
    manager = CheckpointManager()
    import_trajectory(manager, trajectory)
    assert export_trajectory(manager, "s")["steps"][0]["message"] == "see\n[image: a.png]"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update(schema_version="X"), "not a version of ATIF"),
        (lambda t: t.update(steps=[]), "no steps"),
        (lambda t: t.update(steps={}), "trajectory.steps"),
        (lambda t: t["steps"][0].update(step_id=2), r"steps\[0\].step_id"),
        (lambda t: t["steps"][0].update(source="robot"), "system, user or agent"),
        (lambda t: t["steps"][0].update(message=None), r"steps\[0\].message"),
        (lambda t: t["steps"][1].update(tool_calls=[{}]), r"tool_calls\[0\].tool_call_id"),
        (
            lambda t: t["steps"][1].update(observation={"results": [{"source_call_id": "x"}]}),
            "has no call",
        ),
    ],
)
def test_what_is_no_trajectory_is_refused(change: Any, words: str) -> None:
    manager, trajectory = CheckpointManager(), trajectory_of([("user", "a"), ("agent", "", [], 0)])
    change(trajectory)
    with pytest.raises(InvalidInputError, match=words):
        import_trajectory(manager, trajectory)
    assert manager.list_keys() == []


def test_other_text_and_an_existing_key_are_refused() -> None:
    manager = CheckpointManager()
    with pytest.raises(InvalidInputError, match="not JSON"):
        import_trajectory(manager, "{")
    with pytest.raises(InvalidInputError):
        import_trajectory(manager, "[]")
    import_trajectory(manager, trajectory_of([("user", "a")]))
    with pytest.raises(ConflictError, match="already exists"):
        import_trajectory(manager, trajectory_of([("user", "a")]))


def test_the_command_exports_and_imports(tmp_path: Path, capsys: Any) -> None:
    store, file = tmp_path / "store", tmp_path / "run.json"
    with CheckpointManager(store) as manager:
        manager.save("s", {"messages": Log(CHAT), "other": Log()})
    assert main(["--store", str(store), "export", "s", str(file), "--format", "atif"]) == 0
    assert "3 steps" in capsys.readouterr().out
    other = ["--store", str(tmp_path / "other")]
    assert main([*other, "import", str(file), "--format", "atif", "--key", "new"]) == 0
    with CheckpointManager(tmp_path / "other") as manager:
        assert export_trajectory(manager, "new")["steps"] == json.loads(file.read_text())["steps"]
    assert main([*other, "import", str(file), "--key", "new"]) != 0


# -- the models of the format ----------------------------------------------------------------------

HARBOR = "harbor==0.25.0"
VALIDATE = """
import json, sys
from harbor.models.trajectories import Trajectory
for one in json.load(sys.stdin):
    Trajectory.model_validate(one)
print("valid")
"""


@pytest.fixture(scope="session")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the package harbor, whose models need only pydantic.

    Without its hundred dependencies, which conflict with ours. It asks for Python 3.12 as a whole.
    """
    if sys.version_info < (3, 11):
        pytest.skip("the models of harbor need Python 3.11")
    place = tmp_path_factory.mktemp("harbor")
    options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--python-version", "3.12"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(place), HARBOR],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"pip cannot fetch {HARBOR}: {done.stderr[-300:]}")
    return place


def validated(harbor: Path, trajectories: "list[Any]") -> str:
    """Return "valid", or what the models of harbor say against the first that is not."""
    done = subprocess.run(
        [sys.executable, "-c", VALIDATE],
        input=json.dumps(trajectories),
        env={**os.environ, "PYTHONPATH": str(harbor)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.slow
def test_the_models_of_harbor_accept_what_is_exported(harbor: Path) -> None:
    manager = CheckpointManager()
    with Session("sub", store=manager) as session:
        session.messages.extend(ANTHROPIC)
        with session.subagent("helper") as child:
            child.messages.extend(CHAT)
    found = [exported(messages) for messages in FORMATS.values()]
    found.append(export_trajectory(manager, "sub"))
    found.append(exported([{"role": "tool", "tool_call_id": "none", "content": "lost"}]))
    assert validated(harbor, found) == "valid"

    wrong = {**found[0], "steps": [{**found[0]["steps"][0], "unknown": 1}]}
    assert "unknown" in validated(harbor, [*found, wrong]), "the models do look"
