"""After every rewind, files and conversation agree: the resumed model hears what was true then."""

import re
from typing import Any

import pytest

from tests.coding_agents.model_server import HEARD, SUMMARY, Said
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
        number = 0
        for prompt, replies in TURNS:
            first = number
            for reply in replies:
                program.model.script.append(
                    tuple(item if isinstance(item, str) else self._ask(item) for item in reply)
                )
                self.asked_in.update((file, number) for file in reply if isinstance(file, int))
                number += 1
            self.turns.append((first, number - 1))
            program.run(program.start(prompt) if first == 0 else program.resume(prompt))
        self.heard = [program.said(heard) for heard in program.model.heard]
        assert len(self.heard) == number
        listed = program.command("rewind", "-N", "100")
        self.rows = list(reversed(listed["checkpoints"]))

    def _ask(self, number: int) -> Any:
        return self.program.ask(f"echo {number} > f{number}.txt; echo made {number}")

    def expected(self, row: "dict[str, Any]") -> "tuple[list[Said], list[str]]":
        """The conversation and the files at a checkpoint."""
        before_now = [one for one in self.rows if one["seq"] <= row["seq"]]
        label = row["label"]
        if label == "before a request":  # of Qwen Code, after the results of all calls
            label = next(one["label"] for one in reversed(before_now) if "made" in one["label"])
        if found := re.search(r"f(\d)\.txt", label):
            number = int(found[1])
            first, last = PARALLEL if number in PARALLEL else (number, number)
            if label.startswith("before "):
                return self.heard[self.asked_in[number]], names(range(1, first))
            return self.heard[self.asked_in[number] + 1], names(range(1, last + 1))
        # A prompt after which nothing has changed gets no checkpoint.
        is_second = any(SECOND in one["label"] or "f5" in one["label"] for one in before_now)
        turn = 1 if is_second else 0
        if label.startswith("prompt"):
            return self.heard[self.turns[turn][0]][:-1], names(range(1, 5 if turn else 1))
        assert label.startswith(("end of turn", "session ends")), label
        last = self.turns[turn][1]
        final = ("model", TURNS[turn][1][-1][0])
        return [*self.heard[last], final], names(range(1, 6 if turn else 5))


def names(numbers: Any) -> "list[str]":
    return [f"f{number}.txt" for number in numbers]


def test_every_moment(program: Program) -> None:
    told = Told(program)
    present = program.files()
    wrong: list[Any] = []
    inside = []
    for row in told.rows:
        said, files = told.expected(row)
        name = f"@{row['seq']} {row['label']}"
        try:
            done = program.command("rewind", row["id"], "--yes")
        except AssertionError as error:
            if "between the parallel calls" not in str(error):
                raise
            inside.append(name)
            continue
        if program.files() != files:
            wrong.append((name, "files", program.files(), files))
        program.model.heard.clear()
        program.run(program.begin_anew(AGAIN) if done["starts_anew"] else program.resume(AGAIN))
        heard = program.said(program.model.heard[0])
        if heard != [*said, ("user", AGAIN)]:
            wrong.append((name, "heard", heard, said))
        program.command("rewind", done["safety_id"], "--yes")
        assert program.files() == present
    for one in wrong:
        print(*one, sep="\n   ")
    assert wrong == []
    assert all(any(f"f{number}" in name for number in PARALLEL) for name in inside)
    labels = {row["label"] for row in told.rows if row["event"] != "PostToolBatch"}
    offered = labels - {name.partition(" ")[2] for name in inside}
    # Before and after; before has no row of its own if nothing was written since the last one.
    assert sum("f3" in label or "f4" in label for label in offered) in (1, 2)


def test_past_a_compaction(program: Program) -> None:
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
    rows = program.command("rewind", "-N", "100")["checkpoints"]
    for event, length in (("PreCompact", len(said)), ("PostToolUse", 3)):
        row = next(row for row in reversed(rows) if row["event"] == event)
        done = program.command("rewind", row["id"], "--yes")
        program.model.heard.clear()
        program.run(program.resume(AGAIN))
        heard = program.said(program.model.heard[0])
        assert heard == [*said[:length], ("user", AGAIN)], event
        program.command("rewind", done["safety_id"], "--yes")
