"""What was found at each kind of moment, for each agent: the results of test runs.

`make agents RECORD=1` writes them; `python -m tests.coding_agents.moments` prints the table of the
documentation.
"""

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FIRST_PROMPT, NEXT_PROMPT = "first prompt", "next prompt"
BEFORE_CALL, AFTER_CALL = "before a call", "after a call"
BEFORE_PARALLEL, AFTER_PARALLEL = "before parallel calls", "after parallel calls"
END, COMPACTION = "end of a turn", "before a compaction"

_ALL = (
    *(FIRST_PROMPT, NEXT_PROMPT, BEFORE_CALL, AFTER_CALL),
    *(BEFORE_PARALLEL, AFTER_PARALLEL, END),
)
EXPECTED = {"headless": _ALL, "terminal": _ALL, "compaction": (COMPACTION,)}
"""The moments that each kind of run must have."""
RESULTS = Path(__file__).parent / "results"


class Moments:
    """The results of one test with one agent."""

    def __init__(self, agent: str, package: str, *, is_recorded: bool) -> None:
        self._agent = agent
        self._package = package
        self._is_recorded = is_recorded
        self._found: dict[str, dict[str, bool]] = {}

    def seen(self, moment: str, *, files: bool, model: bool) -> None:
        """Note whether files, and what the resumed model heard, were exact at a moment."""
        found = self._found.setdefault(moment, {"files": True, "model": True})
        found["files"] &= files
        found["model"] &= model

    def check(self, run: str, *, only_files: bool = False, without: "tuple[str, ...]" = ()) -> None:
        """Fail if a moment was wrong, or was not there. Write the results if asked."""
        if self._is_recorded:
            day = datetime.now(timezone.utc).date().isoformat()
            about = {"package": self._package, "date": day, "moments": self._found}
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / f"{self._agent}-{run}.json"
            path.write_text(json.dumps(about, indent=2) + "\n")
        must = ("files",) if only_files else ("files", "model")
        wrong = [name for name, one in self._found.items() if not all(one[what] for what in must)]
        missing = [name for name in EXPECTED[run] if name not in {*self._found, *without}]
        assert (wrong, missing) == ([], [])


NAMES = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "gemini": "Gemini CLI",
    "qwen": "Qwen Code",
    "copilot": "Copilot CLI",
    "opencode": "opencode",
    "cline": "Cline",
    "goose": "goose",
}


def table() -> str:
    """Return the committed results as a table: moments by agents, headless and on a terminal."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    last = {agent: _last(agent, found) for agent in NAMES}
    heads = [
        f"{NAMES[agent]} {one['package'].rpartition('@')[2]}".strip() for agent, one in last.items()
    ]
    dates = [one["date"] for one in last.values()]
    lines = [f"| moment | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for moment in (*_ALL, COMPACTION):
        kinds = ("compaction",) if moment == COMPACTION else ("headless", "terminal")
        cells = [
            ", ".join(_cell(found.get(f"{agent}-{kind}"), moment) for kind in kinds)
            for agent in NAMES
        ]
        lines.append(f"| {moment} | {' | '.join(cells)} |")
    return "\n".join([*lines, f"| tested | {' | '.join(dates)} |"]) + "\n"


def _last(agent: str, found: "dict[str, Any]") -> "dict[str, Any]":
    """Return the newest result of an agent; only its name if there is none."""
    runs = [found[f"{agent}-{kind}"] for kind in EXPECTED if f"{agent}-{kind}" in found]
    return max(runs, key=lambda run: run["date"], default={"package": "", "date": "not run"})


def _cell(result: "dict[str, Any] | None", moment: str) -> str:
    if result is None or moment not in result["moments"]:
        return "not run"
    one = result["moments"][moment]
    return "exact" if one["files"] and one["model"] else "files" if one["files"] else "wrong"


if __name__ == "__main__":
    print(table(), end="")
