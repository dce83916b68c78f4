"""After every rewind, files and conversation agree: the resumed model hears what was true then.

While the model thinks, a person writes a file. So every moment has a checkpoint, however fast the
agent writes its transcript.
"""

import re
from typing import Any

import pytest

from tests.coding_agents.model_server import HEARD, SUMMARY, Said
from tests.coding_agents.moments import (
    AFTER_CALL,
    AFTER_PARALLEL,
    BEFORE_CALL,
    BEFORE_PARALLEL,
    COMPACTION,
    END,
    FIRST_PROMPT,
    NEXT_PROMPT,
    Moments,
)
from tests.coding_agents.programs import Codex, Program

pytestmark = pytest.mark.slow

FIRST, SECOND, AGAIN = "make four files", "make a fifth file", "continue from here"
TURNS: "list[tuple[str, list[tuple[Any, ...]]]]" = [
    (FIRST, [("I begin.", 1), (2,), (3, 4), ("That was the first turn.",)]),
    (SECOND, [("I continue.", 5), ("That was the second turn.",)]),
]
"""The prompts, and the replies of the model: texts, and numbers of files to make."""
PARALLEL = (3, 4)


class Told:
    """The session that the tests rewind, as it was when it happened."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.asked_in: dict[int, int] = {}
        self.turns: list[tuple[int, int]] = []
        program.model.before_answer = lambda request: self._write("thinking", request)
        number = 0
        for turn, (prompt, replies) in enumerate(TURNS if program.resumes else TURNS[:1]):
            first = number
            for reply in replies:
                program.model.script.append(
                    tuple(item if isinstance(item, str) else self._ask(item) for item in reply)
                )
                self.asked_in.update((file, number) for file in reply if isinstance(file, int))
                number += 1
            self.turns.append((first, number - 1))
            self._write("prompt", turn)
            program.turn(program.start(prompt) if turn == 0 else program.resume(prompt), number)
        program.model.before_answer = lambda request: None
        self.heard = [program.said(heard) for heard in program.model.heard]
        assert len(self.heard) == number
        self.rows = program.rows()

    def _ask(self, number: int) -> Any:
        return self.program.ask(f"echo {number} > f{number}.txt; echo made {number}")

    def _write(self, why: str, number: int) -> None:
        (self.program.project / f"{why}{number}.txt").write_text(why)

    def expected(self, row: "dict[str, Any]") -> "tuple[str, list[Said], list[str]]":
        """Return the moment of a checkpoint, and the conversation and the files of then."""
        before_now = [one for one in self.rows if one["seq"] <= row["seq"]]
        label = row["label"]
        if label == "before a request":  # of Qwen Code, after the results of all calls
            label = next(one["label"] for one in reversed(before_now) if "made" in one["label"])
        if found := re.search(r"f(\d)\.txt", label):
            number = int(found[1])
            asked = self.asked_in[number]
            is_batch = number in PARALLEL
            first, last = PARALLEL if is_batch else (number, number)
            if label.startswith("before "):
                moment = BEFORE_PARALLEL if is_batch else BEFORE_CALL
                return moment, self.heard[asked], files(first - 1, asked)
            moment = AFTER_PARALLEL if is_batch else AFTER_CALL
            return moment, self.heard[asked + 1], files(last, asked)
        turn = 1 if any(one["label"] == f"prompt: {SECOND}" for one in before_now) else 0
        first, last = self.turns[turn]
        made = 5 if turn else 4
        if label.startswith("prompt"):
            moment = NEXT_PROMPT if turn else FIRST_PROMPT
            return moment, self.heard[first][:-1], files(made - 1 if turn else 0, first - 1, turn)
        assert label.startswith(("end of turn", "session ends")), label
        final = ("model", TURNS[turn][1][-1][0])
        return END, [*self.heard[last], final], files(made, last)


def files(made: int, request: int, turn: "int | None" = None) -> "list[str]":
    """Return the files of a moment: those of the agent, and those that a person wrote."""
    turn = (1 if request >= len(TURNS[0][1]) else 0) if turn is None else turn
    found = [f"f{number}.txt" for number in range(1, made + 1)]
    found += [f"thinking{number}.txt" for number in range(request + 1)]
    return sorted([*found, *(f"prompt{number}.txt" for number in range(turn + 1))])


@pytest.mark.parametrize(
    "on_terminal",
    [pytest.param(False, id="headless"), pytest.param(True, id="terminal", marks=pytest.mark.long)],
)
def test_every_moment(program: Program, moments: Moments, on_terminal: bool) -> None:
    program.on_terminal = on_terminal
    if on_terminal and not program.rewinds_conversation:
        return
    told = Told(program)
    present = program.files()
    after_parallel = [row for row in told.rows if told.expected(row)[0] == AFTER_PARALLEL]
    inside = []
    for row in told.rows:
        moment, said, expected_files = told.expected(row)
        name = f"@{row['seq']} {row['label']}"
        try:
            done = program.command("rewind", row["id"], "--yes")
        except AssertionError as error:
            if "between the parallel calls" not in str(error):
                raise
            inside.append(name)
            continue
        are_files = program.files() == expected_files
        if not are_files:
            print(name, "files", program.files(), expected_files, sep="\n   ")
        if not program.rewinds_conversation:
            if moment == AFTER_PARALLEL and row != after_parallel[-1]:
                program.command("rewind", done["safety_id"], "--yes")
                continue  # files of a moment between the calls, which may run one after the other
            assert "keeps conversations in " in done["transcript_missing"]
            moments.seen(moment, files=are_files, model=False)
            program.command("rewind", done["safety_id"], "--yes")
            continue
        program.model.heard.clear()
        again = program.begin_anew(AGAIN) if done["starts_anew"] else program.resume(AGAIN)
        program.turn(again, 1, is_whole=False)
        heard = program.said(program.model.heard[0])
        is_heard = heard == [*said, ("user", AGAIN)]
        if not is_heard:
            print(name, "heard", heard, said, sep="\n   ")
        moments.seen(moment, files=are_files, model=is_heard)
        program.command("rewind", done["safety_id"], "--yes")
        assert program.files() == present
    run = "terminal" if on_terminal else "headless"
    without = () if program.resumes else (NEXT_PROMPT,)
    moments.check(run, only_files=not program.rewinds_conversation, without=without)
    assert all(any(f"f{number}" in name for number in PARALLEL) for name in inside)


def test_past_a_compaction(program: Program, moments: Moments) -> None:
    """The model hears the conversation before it was compacted, not the summary."""
    if program.agent not in ("claude-code", "codex"):
        return  # headless, others compact only a conversation that fills the window
    ask = program.ask("echo 1 > f1.txt; echo made 1")
    program.model.script = [(ask,), ("That was it.",)]
    if isinstance(program, Codex):
        usual = program.settings.read_text()
        program.settings.write_text(f"model_auto_compact_token_limit = 10\n{usual}")
    program.run(program.start(FIRST))
    if isinstance(program, Codex):
        program.settings.write_text(usual)
    else:
        program.run(program.resume("/compact"))
    said = program.said(HEARD[program.dialect](program.model.others[0][1]))[:-1]
    assert [one[0] for one in said] == ["user", "call", "result"]
    if program.agent == "claude-code":  # after the turn; the last reply is not summarized
        said.append(("model", "That was it."))
    program.run(program.resume(SECOND))
    assert any(SUMMARY in one[-1] for one in program.model.heard[-1])
    lengths = {"PreCompact": len(said), "PostToolUse": 3}
    for row in program.rows():
        if row["event"] not in lengths:
            continue
        done = program.command("rewind", row["id"], "--yes")
        program.model.heard.clear()
        program.run(program.resume(AGAIN))
        heard = program.said(program.model.heard[0])
        is_heard = heard == [*said[: lengths[row["event"]]], ("user", AGAIN)]
        if not is_heard:
            print(row["label"], heard, said, sep="\n   ")
        moments.seen(COMPACTION, files=program.files() == ["f1.txt"], model=is_heard)
        program.command("rewind", done["safety_id"], "--yes")
    moments.check("compaction")
