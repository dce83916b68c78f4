"""log and show: the tokens, cost and time of the model calls of a step."""

from pathlib import Path

from agent_checkpoint import Session
from tests.cli.world import run

REPLY = {"usage": {"prompt_tokens": 1200, "completion_tokens": 34}}
PRICES = {"m": {"input": 3, "output": 15}}


def test_a_step_has_its_tokens_cost_and_time(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Session("job", store=store, prices=PRICES) as session:
        session.model(lambda **_: REPLY, model="m", messages=["hi"])
        session.save(label="asked")
    log = run("--store", store, "log", "job")
    (line,) = [line for line in log.out.splitlines() if "asked" in line]
    assert "  1,200+34 tokens  cost 0.00411  0.0 s  asked" in line
    assert log.out.count("tokens") == 1
    show = run("--store", store, "show", "job@2")
    assert "\n  model    1,200+34 tokens, cost 0.00411, 0.0 s\n" in show.out
    assert "  metrics  cached_tokens=0\n" in show.out
    assert "m -> tokens" in show.out
    assert run("--store", store, "log", "job", "--json").data["checkpoints"][1]["metrics"]["cost"]


def test_show_has_the_totals_of_a_closed_session_and_its_subagents(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Session("job", store=store, prices=PRICES) as session:
        for _ in range(2):
            session.model(lambda **_: REPLY, model="m", messages=["hi"])
            session.save()
        with session.subagent("kid") as kid:
            kid.model(lambda **_: REPLY, model="m", messages=["hi"])
    show = run("--store", store, "show", "job").out
    assert "  total    3 model calls, 3,600+102 tokens, cost 0.01233, 0.0 s\n" in show
    totals = run("--store", store, "show", "job", "--json").data["totals"]
    assert (totals["model_calls"], totals["input_tokens"]) == (3, 3600)
    with Session("quiet", store=store) as session:
        session.save()
    assert "total" not in run("--store", store, "show", "quiet").out


def test_show_leaves_out_open_calls_that_have_ended(tmp_path: Path) -> None:
    store = tmp_path / "store"
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    with Session("job", store=store, provider="anthropic") as session:
        session.run_tools({"role": "assistant", "content": [call]}, {"look": lambda: 1})
    shown = run("--store", store, "show", "job@2").out
    assert "open_calls 1 tool call without results\n    t1\n" in shown
    assert "open_calls" not in run("--store", store, "show", "job").out
