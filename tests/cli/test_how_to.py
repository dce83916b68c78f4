"""The how-to page: what it shows in a shell is what happens there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "command-line.md"
SHIM = f'agent-checkpoint() {{ "{sys.executable}" -m agent_checkpoint "$@"; }}\n'


def matches(shown: str, printed: str) -> bool:
    pattern = ".*".join(map(re.escape, shown.split("…")))
    # Under load a moment may be some seconds.
    pattern = pattern.replace("just\\ now", "(?:just now|[0-9]+ s ago)")
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.slow
def test_the_shell_shows_what_the_page_shows(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", text, flags=re.M | re.S)
    assert len(blocks) >= 4
    script = SHIM + "".join(f"{source}printf '\\0'\n" for source, _ in blocks)
    done = subprocess.run(
        ["bash", "-e"],
        input=script,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for (source, shown), printed in zip(blocks, done.stdout.split("\0")):
        assert matches(shown, printed), f"{source}prints\n{printed}\nand shows\n{shown}"


def test_events_can_be_typed_as_shown(tmp_path: Path) -> None:
    text = (PAGE.parent / "coding-agents.md").read_text(encoding="utf-8")
    ((source, shown),) = re.findall(
        r"^```sh\n(mkdir tried.*?)^```\n\n```text\n(.*?)^```", text, flags=re.M | re.S
    )
    done = subprocess.run(
        ["bash", "-e"],
        input=SHIM + source,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1", "AGENT_CHECKPOINT_HOOK_DIRECT": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert matches(shown, done.stdout), done.stdout


def test_the_page_names_every_command_with_json() -> None:
    from agent_checkpoint.cli.command_table import COMMANDS

    text = PAGE.read_text(encoding="utf-8")
    for listed in COMMANDS:
        assert f"`{listed.name}" in text or f"agent-checkpoint {listed.name}" in text, listed.name
