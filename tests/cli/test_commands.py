"""All commands at once: each has help, examples, a section in the documents and a test."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint.cli import extras
from agent_checkpoint.cli.args import parser_of, root_parser
from agent_checkpoint.cli.command_table import COMMANDS, CommandRow, find_command
from agent_checkpoint.cli.reference_page import page
from tests.cli.world import run, run_process

ROOT = Path(__file__).resolve().parents[2]
TESTS = "".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))
)
WITHOUT_DATA = {"mcp", "completion", "demo", "run", "ui"}


def name(listed: CommandRow) -> str:
    return listed.name


@pytest.mark.parametrize("listed", COMMANDS, ids=name)
def test_a_command_has_help_and_an_example(listed: CommandRow) -> None:
    parser = parser_of(listed.name)
    help_text = parser.format_help(80)
    assert help_text.startswith(f"usage: agent-checkpoint {listed.name}")
    assert f"agent-checkpoint {listed.name}" in listed.load().EXAMPLES
    for action in parser._actions:
        assert action.help, f"{listed.name}: {action.dest} says nothing of itself"
    ran = run(listed.name, "--help")
    assert ran.status == 0
    assert "examples:" in ran.out


@pytest.mark.parametrize("listed", COMMANDS, ids=name)
def test_a_command_is_in_the_documents_and_tested(listed: CommandRow) -> None:
    assert f"\n### {listed.name}\n" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    called = r'(run(_process)?|command|main)\(\[?(\s*"--store", [^"]+,)?'
    assert re.search(rf'{called}\s*"{listed.name}"', TESTS)


@pytest.mark.parametrize("listed", COMMANDS, ids=name)
def test_a_command_that_prints_data_has_json(listed: CommandRow) -> None:
    if listed.name not in WITHOUT_DATA:
        assert "--json" in parser_of(listed.name)._option_string_actions


@pytest.mark.parametrize("listed", COMMANDS, ids=name)
def test_examples_are_such_that_the_parser_takes_them(listed: CommandRow) -> None:
    import shlex

    for line in listed.load().EXAMPLES.strip().splitlines():
        command = line.partition("agent-checkpoint ")[2]
        # Words that explain an example stand after two spaces or more.
        command = re.split(r"  +| [|<>]", command)[0]
        words = shlex.split(command)
        while words[0] != listed.name:
            words.pop(0)
        parser_of(listed.name).parse_args(words[1:])


def test_the_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "python -m agent_checkpoint.cli.reference_page > docs/cli.md"


def test_the_help_groups_the_commands() -> None:
    shown = run("--help").out
    assert shown == root_parser().format_help()
    for group in ("files:", "sessions:", "store:", "more:"):
        assert group in shown
    assert all(re.search(rf"^  {listed.name}\s", shown, re.M) for listed in COMMANDS)
    assert max(map(len, root_parser().format_help(80).splitlines())) <= 80


def test_help_loads_no_command() -> None:
    code = (
        "import sys; from agent_checkpoint.cli.main import main; main(['--help']); "
        "print([n for n in sys.modules if n.startswith('agent_checkpoint')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "commands" not in loaded
    assert "store" not in loaded


def test_the_version() -> None:
    assert run("--version").out.startswith("agent-checkpoint 0")


def test_an_option_that_is_like_no_other_has_no_suggestion() -> None:
    assert run("log", "--nope").err.splitlines()[0].endswith("log: unknown option --nope.")


def test_nothing_was_typed() -> None:
    ran = run()
    assert ran.status == 2
    assert "usage:" in ran.err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["sav"], "did you mean save?"),
        (["rolback"], "did you mean rollback?"),
        (["history"], "did you mean agent-checkpoint log?"),
        (["save", "--lable", "x"], "did you mean --label?"),
        (["--stor", "x", "log"], "did you mean --store?"),
        (["completion", "bsh"], "did you mean bash?"),
        (["rollback", "--effects", "wran"], "did you mean warn?"),
    ],
)
def test_a_typo_is_told_in_two_lines(typed: list[str], hint: str) -> None:
    ran = run(*typed)
    assert ran.status == 2
    assert ran.out == ""
    assert hint in ran.err
    assert len(ran.err.splitlines()) == 2
    assert ran.err.splitlines()[1].startswith("Try: agent-checkpoint")


@pytest.mark.parametrize(
    "typed",
    [
        ["log", "-n", "x"],
        ["log", "a", "b"],
        ["fork", "x"],
        ["rollback", "--to", "x", "--steps", "2"],
    ],
)
def test_what_makes_no_sense(typed: list[str]) -> None:
    ran = run(*typed)
    assert ran.status == 2
    assert len(ran.err.splitlines()) == 2


def test_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*rest: object) -> None:
        raise KeyboardInterrupt

    listed = find_command("keys")
    assert listed is not None
    monkeypatch.setattr(listed.load(), "run", interrupted)
    assert run("keys").status == 130


def test_an_error_of_the_system_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*rest: object) -> None:
        raise PermissionError(13, "Permission denied", "/x")

    listed = find_command("keys")
    assert listed is not None
    monkeypatch.setattr(listed.load(), "run", failing)
    ran = run("keys")
    assert ran.status == 1
    assert ran.err.startswith("agent-checkpoint: PermissionError")


def test_doctor_tells_what_works() -> None:
    ran = run("doctor", "--json")
    assert ran.status == 0
    checks = {row["name"]: row for row in ran.data["checks"]}
    assert checks.keys() >= {
        "store",
        "durability",
        "free space",
        "inotify",
        "private views",
        "overlay mounts",
        "reflink",
        "zstd",
        "orjson",
        "isal",
        "chunking",
        "cloudpickle",
        "rich",
    }
    for row in checks.values():
        assert set(row) == {"name", "works", "detail", "use", "get"}
        assert row["use"]
    shown = run("doctor").out
    assert "store: " in shown


@pytest.mark.parametrize("exists", [True, False])
def test_doctor_of_a_store_that_cannot_be_written(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kept" / "store"
    if exists:
        place.mkdir(parents=True)
    asked = []

    def access(path: object, mode: int) -> bool:  # root may write everywhere
        asked.append(path)
        return path == place.parents[0 if exists else 1]

    monkeypatch.setattr("os.access", access)
    ran = run("--store", place, "doctor")
    assert (place if exists else tmp_path) in asked
    assert f"store: {place}, 0 keys" in ran.out
    assert ("not writable" in ran.out) == exists


def test_doctor_of_a_store_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("no store" * 1000)
    ran = run("--store", tmp_path, "doctor")
    assert ran.status == 0
    assert "choose another store: --store PATH" in ran.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_all(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).out
    for listed in COMMANDS:
        assert listed.name in script
    assert "keep-latest" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_bash_completes(tmp_path: Path) -> None:
    script = run("completion", "bash").out + "\n"
    for words in ("--store x pru", "prune --keep-l", "effects re"):
        line = f"agent-checkpoint {words}"
        script += f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({line})\n"
        script += f"COMP_CWORD={len(words.split())}\n"
        script += '_agent_checkpoint; echo "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["prune", "--keep-latest", "resolve"]


def test_fish_completes(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    lines = ["--store x pru", "prune --keep-l", "effects reso", "--ver"]
    asked = "".join(f"complete -C 'agent-checkpoint {line}'\n" for line in lines)
    done = subprocess.run(
        ["fish", "--no-config"],
        input=run("completion", "fish").out + asked,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    found = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert (found, done.stderr) == (["prune", "--keep-latest", "resolve", "--version"], "")


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("--store x pru", "prune"),
        ("prune --keep-l", "--keep-latest"),
        ("effects reso", "resolve"),
    ],
)
def test_zsh_completes(line: str, whole: str, tmp_path: Path) -> None:
    """It completes only what a person types: a terminal is needed."""
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    (tmp_path / "_agent-checkpoint").write_text(run("completion", "zsh").out)
    begin = f"PS1=; fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; "
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {"TERM": "xterm", "PATH": os.environ["PATH"]})
    try:
        os.write(terminal, f"{begin}echo rea''dy\n".encode())
        read_until(terminal, "ready")
        os.write(terminal, f"agent-checkpoint {line}\t".encode())
        read_until(terminal, whole)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, text: str) -> None:
    shown = ""
    while text not in re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]|[\x00-\x1f]", "", shown):
        assert select.select([terminal], [], [], 20)[0], shown
        shown += os.read(terminal, 1 << 16).decode(errors="replace")


def test_it_works_without_rich(tmp_path: Path, repo: Path) -> None:
    code = (
        "import sys; sys.modules['rich'] = None; from agent_checkpoint.cli.main import main; "
        "sys.exit(main(['keys', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["items"]) == 1
    assert run_process("keys", at=tmp_path).status == 0


def test_json_says_its_version(repo: Path) -> None:
    for words in (["keys"], ["show"], ["log"], ["effects", "--all"], ["approvals"], ["stats"]):
        data = json.loads(run(*words, "--json", at=repo).out)
        assert next(iter(data)) == "format_version"
        assert data["format_version"] == 1
    assert [row["seq"] for row in json.loads(run("keys", "--json").out)["items"]] == [2]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agent_checkpoint.web.server.server", None)
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "uvicorn" else name)
    ran = run("ui", at=tmp_path)
    assert (ran.status, ran.out) == (1, "")
    assert "The web UI needs the extra 'web' (uvicorn), which is not installed." in ran.err
    command = ran.err.partition("Run: ")[2]
    assert re.search(r"-m pip install 'jinja2>=[^']*' 'starlette>=[^']*' 'uvicorn>=", command)
    assert "agent-checkpoint[" not in ran.err  # on no index


def test_doctor_lists_all_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import metadata

    known = set(metadata("agent-checkpoint").get_all("Provides-Extra") or ()) - {"all"}
    assert known == set(extras.MODULES)
    shown = run("doctor").out
    for extra in known:
        assert f"installed (extra {extra})" in shown
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    shown = run("doctor").out
    assert "web: not installed (extra web)" in shown
    assert "pip install 'jinja2>=" in shown


def test_requirements_keep_their_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["a>=1; extra == 'fast'", 'b; (python_version < "3.14") and extra == "fast"', "c"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    command = extras.install_command("fast")
    assert command.endswith("""pip install 'a>=1' 'b; (python_version < "3.14")'""")


def test_the_help_of_the_demo_offers_what_it_takes() -> None:
    shown = run("demo", "--help").out
    assert "--in DIR" in shown
    assert "--store" not in shown
    assert "--shared" not in shown


def test_many_files_elsewhere_are_counted(tmp_path: Path) -> None:
    place = tmp_path / "many"
    place.mkdir()
    for number in range(40):
        (place / f"file{number}").write_text("x")
    run("save", at=place)
    shown = run("restore", ".", "--into", tmp_path / "copy", "--yes", at=place).out
    assert f"In {tmp_path / 'copy'}: 40 files to write\n" in shown
    assert len(shown.splitlines()) < 6
    assert len(list((tmp_path / "copy").iterdir())) == 40
    few = run("restore", ".", "file1", "--into", tmp_path / "few", "--yes", at=place).out
    assert "write file1" in few
