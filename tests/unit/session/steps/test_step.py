"""A step: its calls, arguments, prompt and messages, whoever wrote the checkpoints."""

import pytest

from agent_checkpoint import Session, tool
from agent_checkpoint.session.steps.line import line_of
from agent_checkpoint.session.steps.step import StepReader
from tests.cli.world import run
from tests.unit.trajectory.trajectories import Coding, write


def steps(manager, key):
    line = line_of(manager.store, manager.store.head(key))
    reader = StepReader(manager.store)
    return [reader.step(a, b, end=line[-1]) for a, b in zip([None, *line], line)]


@tool
def explode() -> None:
    raise ValueError("boom")


def test_a_step_of_a_session(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        session.messages.append({"role": "user", "content": "please"})
        write("a", "1")
        found = steps(manager, "s")[-1]
    (call,) = found.calls
    assert (found.key, found.agent, found.at, found.kind) == ("s", "session", "@2", "save")
    assert (call.tool, call.arguments) == ("write", {"name": "a", "text": "1"})
    assert call.words == 'write(name="a", text="1")' == found.words
    assert found.prompt == "please"
    assert found.messages == [{"role": "user", "content": "please"}]
    assert found.before.endswith("-1")
    assert call.ts <= found.ts
    assert found.to_dict()["calls"][0]["tool"] == "write"


def test_a_failed_call_has_its_error(manager, place):
    with Session("s", workspace=place, store=manager):
        with pytest.raises(ValueError, match="boom"):
            explode()
        (call,) = steps(manager, "s")[-1].calls
    assert call.error == "ValueError: boom"


def test_a_call_of_a_subagent_names_it(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        with session.subagent("helper"):
            write("a", "1")
        calls = [call for step in steps(manager, "s") for call in step.calls]
    assert [(call.agent, call.tool) for call in calls] == [("helper", "write")]
    assert calls[0].words.startswith("helper: write(")


def test_several_calls_in_one_checkpoint(manager, place):
    with Session("s", workspace=place, store=manager, every=2):
        write("a", "1")
        write("a", "2")
        last = steps(manager, "s")[-1]
    assert [call.arguments["text"] for call in last.calls] == ["1", "2"]


def test_steps_of_a_coding_agent(manager, place, tmp_path):
    agent = Coding(tmp_path / "store", place)
    agent.prompt("fix it")
    agent.write("a.py", "new\n")
    agent.close()
    *_, last = steps(manager, agent.key)
    assert (last.agent, last.prompt) == ("claude-code", "fix it")
    (call,) = last.calls
    assert (call.tool, call.words) == ("Write", "Write a.py")
    assert call.arguments == {"file_path": str(place / "a.py"), "content": "new\n"}


def test_a_change_between_two_calls_belongs_to_no_call(manager, place, tmp_path):
    agent = Coding(tmp_path / "store", place)
    agent.write("a.py", "1\n")
    (place / "a.py").write_text("by a person\n")
    agent.write("b.py", "2\n")
    agent.close()
    *_, between, _ = steps(manager, agent.key)
    assert between.calls == ()
    assert "before Write b.py" in between.words


def test_a_step_of_run(manager, place, tmp_path):
    done = run("--store", tmp_path / "store", "run", "--", "sh", "-c", "echo 1 > f", at=place)
    assert done.status == 0
    before, after = steps(manager, manager.list_keys()[0])
    assert (before.calls, after.agent) == ((), "run")
    assert after.calls[0].arguments == ["sh", "-c", "echo 1 > f"]


def test_a_step_of_save_has_no_call(manager, place, tmp_path):
    (place / "a").write_text("1")
    run("--store", tmp_path / "store", "save", "-m", "first", at=place)
    (found,) = steps(manager, manager.list_keys()[0])
    assert (found.agent, found.calls, found.words) == ("", (), "first")


def test_prompts_of_a_long_line_need_few_reads(manager, place, monkeypatch):
    with Session("s", workspace=place, store=manager) as session:
        for number in range(40):
            if number % 20 == 0:
                session.messages.append({"role": "user", "content": f"prompt {number}"})
            write("a", str(number))
        line = line_of(manager.store, manager.store.head("s"))
    reader, reads = StepReader(manager.store), []
    real = reader.messages
    monkeypatch.setattr(reader, "messages", lambda item: reads.append(item) or real(item))
    prompts = reader.prompts(line)
    assert prompts == [None, *["prompt 0"] * 20, *["prompt 20"] * 20]
    assert len(reads) < 20


@pytest.mark.parametrize(
    "line", [{"type": "api-request-blob"}, {"isMeta": True}, {"isSidechain": True}], ids=str
)
def test_what_claude_code_adds_is_no_prompt(manager, place, tmp_path, line):
    agent = Coding(tmp_path / "store", place)
    agent.prompt("fix it")
    message = {"role": "user", "content": "<system-reminder> of many pages"}
    agent.say({"type": "user", "message": message, **line})
    agent.write("a", "1")
    agent.close()
    assert steps(manager, agent.key)[-1].prompt == "fix it"


def test_content_in_blocks_is_a_prompt(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        blocks = [{"type": "text", "text": "look"}, {"type": "image", "source": {}}]
        session.messages.append({"role": "user", "content": blocks})
        session.messages.append({"role": "user", "content": [{"type": "tool_result"}]})
        session.save()
        assert steps(manager, "s")[-1].prompt == "look"
