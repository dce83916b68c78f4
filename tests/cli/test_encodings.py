"""Every command ends properly where the locale knows ASCII only, whatever the names are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import Session
from agent_checkpoint.cli.command_table import COMMANDS
from agent_checkpoint.formatting import escape_text, json_text, one_line, shell_quote

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
KEY = "schlüssel-日本"
ARGUMENTS: dict[str, list[list[str]]] = {
    "save": [[], ["--json"]],
    "log": [[], ["--json"], [KEY]],
    "show": [[KEY], [KEY, "--json"], ["größe"]],
    "diff": [[], ["--json"]],
    "restore": [["@1", "--dry-run"], ["@1", "--yes", "--json"]],
    "undo": [["--dry-run", "--json"], ["größe"]],
    "watch": [["keine-größe"]],
    "run": [["--", "true", "größe"]],
    "rollback": [[KEY, "--dry-run"], [KEY, "--dry-run", "--json"]],
    "fork": [[KEY, f"{KEY}-ast", "--json"]],
    "bisect": [
        [KEY, "--", "test", "!", "-e", "größe"],
        [KEY, "--json", "--", "grep", "ü", "ä.txt"],
    ],
    "blame": [["ä.txt"], ["ä.txt", "--json"], ["fehlt-größe"]],
    "revert": [["@3", "--dry-run"], ["@3", "--yes", "--json"], ["größe"]],
    "tasks": [[], ["--json"]],
    "effects": [[KEY], ["--json"]],
    "approvals": [[], ["--json"]],
    "hook": [["status"], ["status", "--json"], ["größe"]],
    "rewind": [["--json"]],
    "keys": [[], ["--json"]],
    "stats": [[], ["--json"]],
    "verify": [[], ["--json"]],
    "prune": [[KEY, "--keep", "1", "--dry-run"]],
    "delete": [[f"{KEY}-fehlt", "--yes"]],
    "gc": [["--json"]],
    "purge": [["--dry-run"]],
    "rotate-key": [["--to-env", "NAME"]],
    "copy": [["quelle-größe", "memory://"], [".", "ziel-größe", KEY, "--json"]],
    "export": [[KEY, "archiv-größe"]],
    "import": [["archiv-fehlt-größe"]],
    "import-langgraph": [["fehlt-größe"]],
    "ui": [["--port", "größe"]],
    "demo": [["--größe"]],
    "doctor": [[], ["--json"]],
    "completion": [["bash"]],
    "mcp": [["--größe"]],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "größe-日本"
    place.mkdir()
    (place / "ä.txt").write_text("ü")
    (place / os.fsdecode(b"\xff\xfe")).write_text("no text at all")
    with Session(KEY, workspace=place, store=tmp_path / "store") as session:
        session.messages.append({"role": "user", "content": "ñandú 日本 \u3164"})
        session.save(label="étiquette")
        (place / "ä.txt").write_text("new")
        session.save()
    return place


def run(
    place: Path, *words: str, environment: dict[str, str] = ASCII
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "agent_checkpoint", "--store", str(place.parent / "store"), *words],
        cwd=place,
        env={**os.environ, **environment},
        input="größe-und-mehr".encode(),
        capture_output=True,
        timeout=120,
    )


def test_all_commands_are_tried() -> None:
    assert ARGUMENTS.keys() == {command.name for command in COMMANDS}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.slow
def test_a_command_ends_properly_in_ascii(place: Path, name: str) -> None:
    for words in ARGUMENTS[name]:
        done = run(place, name, *words)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert b"Error:" not in done.stderr.replace(b"RewindError:", b""), done.stderr.decode()
        assert done.returncode in (0, 1, 2, 3, 4), done
        assert (done.stdout + done.stderr).isascii()
        if "--json" in words and done.returncode == 0:
            json.loads(done.stdout)


@pytest.mark.slow
def test_the_same_key_is_meant_in_every_locale(place: Path) -> None:
    plain: dict[str, str] = {"LC_ALL": "C.UTF-8"}
    for environment in (plain, ASCII):
        assert run(place, "save", environment=environment).returncode == 0
        done = run(place, "show", KEY, "--json", environment=environment)
        assert json.loads(done.stdout)["key"] == KEY
    (one, other) = (
        json.loads(run(place, "keys", "--json", environment=environment).stdout)
        for environment in (plain, ASCII)
    )
    assert one == other


BLANK = ["\u034f", "\u115f", "\u1160", "\u17b4", "\u2800", "\u3164", "\uffa0", "\u200b", "\u202e"]
BLANK += ["\ufe00", "\ufe0f", "\U000e0100", "\U000e0041", "\u00ad", "\u2066", "\u180e"]


@pytest.mark.parametrize("char", BLANK, ids=ascii)
def test_a_letter_of_which_nothing_is_seen_is_written_out(char: str) -> None:
    text = f"a{char}b"
    for shown in (escape_text(text), one_line(text), shell_quote(text), json_text({"x": text})):
        assert char not in shown
        assert "\\" in shown
    assert json.loads(json_text({"x": text})) == {"x": text}


def test_what_is_seen_stays() -> None:
    for text in ("größe 日本 ❤\ufe0f", "naïve", "שלום"):
        assert escape_text(text) == one_line(text) == text
        assert json.loads(json_text([text])) == [text]
        assert shell_quote(text) == f"'{text}'"
