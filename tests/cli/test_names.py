"""What names of keys and checkpoints mean: `.`, `@17`, `~2`, the same in every command."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session
from tests.cli.test_commands import read_until
from tests.cli.world import explode, opened, run


def test_a_dot_is_the_directory_in_every_command(repo: Path) -> None:
    head = run("show", "--json", at=repo).data["id"]
    assert run("show", ".", "--json", at=repo).data["id"] == head
    assert run("fork", ".", "other", "--json", at=repo).data["from"] == head
    assert run("diff", ".", "@1", "--json", at=repo).data["from"] == head
    assert run("diff", "@1", ".", "--json", at=repo).data["to"] == head
    assert run("log", ".", "--json", at=repo).data["head"] == head
    assert run("prune", ".", "--keep-latest", "1", "--dry-run", "--json", at=repo).status == 0
    assert "2 checkpoints" in run("delete", ".", at=repo).out


def test_a_dot_elsewhere_is_not_found(tmp_path: Path, repo: Path) -> None:
    for typed in (("diff", ".", "@1"), ("fork", ".", "x"), ("delete", ".", "--yes")):
        ran = run(*typed, at=tmp_path)
        assert (ran.status, ran.out) == (3, "")
        assert "has no checkpoints yet" in ran.err


@pytest.mark.parametrize("name", ["@1", "~1", "@~1"])
def test_short_forms_of_the_key(repo: Path, name: str) -> None:
    first = run("show", "@1", "--json", at=repo).data["id"]
    assert run("show", name, "--json", at=repo).data["id"] == first
    assert run("fork", ".", "other", "--at", name, "--json", at=repo).data["from"] == first


def test_a_key_of_that_name_wins(repo: Path) -> None:
    with opened() as manager:
        mine = manager.save("@1", {"x": 1})
    assert run("show", "@1", "--json", at=repo).data["id"] == mine


# -- completion ------------------------------------------------------------------------------------


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command be found as shells find it."""
    script = tmp_path / "bin" / "agent-checkpoint"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m agent_checkpoint "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")


@pytest.fixture
def keys(repo: Path, tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path / "other") as manager:
        for key in (
            "fix-bug",
            "fix:odd",
            "$(touch hacked)",
            "a b",
            "x;y",
            "`id`",
            "-rf",
            "new\nline",
        ):
            manager.save(key, {"x": 1})
        manager.save("fix-bug", {"x": 2})
    return repo


def test_names_that_start_with_a_prefix(keys: Path, tmp_path: Path) -> None:
    def found(prefix: str, store: object = tmp_path / "other") -> list[str]:
        return run("--store", store, "completion", "names", "--", prefix, at=keys).out.split("\n")[
            :-1
        ]

    assert found("") == ["fix-bug", "fix:odd"]  # nothing that a shell would interpret
    assert found("fix-b") == ["fix-bug"]
    assert found("fix-bug@") == ["fix-bug@2", "fix-bug@1"]
    assert [name[:8] for name in found("fix-bug_")] == ["fix-bug_", "fix-bug_"]
    assert found("nothing") == [""]
    assert found("", tmp_path / "missing") == [""]
    default = run("completion", "names", "@", at=keys).out.split()
    assert default == ["@2", "@1"]


@pytest.mark.usefixtures("on_path")
def test_bash_completes_names(keys: Path, tmp_path: Path) -> None:
    of_other = f"agent-checkpoint --store {tmp_path}/other"
    asked = [
        (f"{of_other} log fix-", f"{of_other} log fix-"),
        (f"{of_other} show fix:o", f"{of_other} show fix : o"),
        (f"{of_other} log --sto", f"{of_other} log --sto"),
        ("agent-checkpoint restore @", "agent-checkpoint restore @"),
        (f"{of_other} log ", f"{of_other} log ''"),
        (f"agent-checkpoint --store={tmp_path}/other log fix-", "agent-checkpoint log fix-"),
        (f"agent-checkpoint log --store {tmp_path}/other fix-", "agent-checkpoint log fix-"),
        (f"agent-checkpoint log --store={tmp_path}/other fix-", "agent-checkpoint log fix-"),
        ("agent-checkpoint --store ", "agent-checkpoint --store ''"),
        ("agent-checkpoint log --store=", "agent-checkpoint log --store = ''"),
    ]
    script = run("completion", "bash").out + "\n"
    for line, words in asked:
        script += f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({words})\n"
        script += (
            'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _agent_checkpoint; echo "${COMPREPLY[@]}"\n'
        )
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, cwd=keys)
    lines = done.stdout.splitlines()
    assert (lines[:4], done.stderr) == (["fix-bug", "odd", "--store", "@2 @1"], "")
    assert lines[4].split()[-2:] == ["fix-bug", "fix:odd"]
    assert lines[5:] == ["fix-bug"] * 3 + ["", ""]  # the last two: files
    assert not (keys / "hacked").exists()


@pytest.mark.usefixtures("on_path")
def test_shells_complete_requests_and_effects(request_id: str, tmp_path: Path) -> None:
    with Session("rocket"), suppress(TimeoutError):
        explode("north")
    (effect,) = [row["id"] for row in run("effects", "--all", "--unknown", "--json").data]
    lines = ["approvals approve appr", "approvals revoke appr", f"effects resolve {effect[:3]}"]
    script = run("completion", "bash").out + "\n"
    for line in lines:
        words = f"agent-checkpoint {line}"
        script += f"COMP_LINE='{words}' COMP_POINT={len(words)} COMP_WORDS=({words})\n"
        script += 'COMP_CWORD=3; _agent_checkpoint; echo "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == ([request_id, "", effect], "")
    if shutil.which("fish") is not None:
        asked = "".join(f"complete -C 'agent-checkpoint {line}'\n" for line in lines)
        fish = run("completion", "fish").out + asked
        shown = subprocess.run(["fish", "--no-config"], input=fish, capture_output=True, text=True)
        assert {request_id, effect} <= set(shown.stdout.split())
    run("approvals", "approve", request_id)
    revoked = run("completion", "--after", "approvals revoke", "names")
    assert revoked.out.split() == [request_id]
    assert run("completion", "--after", "approvals deny", "names").out == "\n"


@pytest.mark.usefixtures("on_path")
def test_fish_completes_names(keys: Path, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    lines = [f"--store {tmp_path}/other log fix", "restore @"]
    asked = "".join(f"complete -C 'agent-checkpoint {line}'\n" for line in lines)
    done = subprocess.run(
        ["fish", "--no-config"],
        input=run("completion", "fish").out + asked,
        capture_output=True,
        text=True,
        cwd=keys,
    )
    found = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert (sorted(found), done.stderr) == (["@1", "@2", "fix-bug", "fix:odd"], "")


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize(("line", "whole"), [("log fix-b", "fix-bug"), ("show fix:", "fix:odd")])
def test_zsh_completes_names(line: str, whole: str, keys: Path, tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    (tmp_path / "_agent-checkpoint").write_text(run("completion", "zsh").out)
    begin = f"PS1=; fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; "
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        home = {"TERM": "xterm", "PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        os.execvpe("zsh", ["zsh", "-f", "-i"], home)
    try:
        os.write(terminal, f"{begin}echo rea''dy\n".encode())
        read_until(terminal, "ready")
        os.write(terminal, f"agent-checkpoint --store {tmp_path}/other {line}\t".encode())
        read_until(terminal, whole)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
