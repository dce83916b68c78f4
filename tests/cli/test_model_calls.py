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
