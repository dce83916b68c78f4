"""A plan that was shown and confirmed: later writes are neither overwritten nor left unsaid."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint.cli.output import Output
from agent_checkpoint.workspace.restore import atomic_rename
from tests.cli.scene import Scene, scene
from tests.cli.test_rewind import running_claude
from tests.cli.world import run

Answer = Callable[..., "list[str]"]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Have questions answered, each after something is done; return the list of questions."""

    def plan(*acts: "Callable[[], Any]", then: bool) -> "list[str]":
        asked: list[str] = []

        def confirm(out: Output, question: str) -> bool:
            asked.append(question)
            out.has_asked = True
            if len(asked) <= len(acts):
                acts[len(asked) - 1]()
                return True
            return then

        monkeypatch.setattr(Output, "confirm", confirm)
        return asked

    return plan


@pytest.mark.parametrize("name", ["app.py", "notes.md"])
@pytest.mark.parametrize("then", [True, False])
def test_restore_asks_again_if_files_have_changed(
    repo: Path, answer: Answer, name: str, then: bool
) -> None:
    asked = answer(lambda: (repo / name).write_text("written since"), then=then)
    done = run("restore", "@1", at=repo)
    assert len(asked) == 2
    assert "Files have changed since the preview: nothing was done." in done.out
    assert done.status == (0 if then else 4)
    if not then:
        assert (repo / name).read_text() == "written since"
        assert (repo / "app.py").read_text() != "print('hello')\n"
        return
    assert (repo / "app.py").read_text() == "print('hello')\n"
    back = done.out.splitlines()[-1].partition("agent-checkpoint ")[2]
    assert run(*back.split(), "--yes", at=repo).status == 0
    assert (repo / name).read_text() == "written since"


def test_restore_is_done_at_once_if_nothing_has_changed(repo: Path, answer: Answer) -> None:
    asked = answer(lambda: None, then=False)
    assert run("restore", "@1", at=repo).status == 0
    assert len(asked) == 1


def test_what_has_nothing_to_do_with_it_may_change(repo: Path, answer: Answer) -> None:
    asked = answer(lambda: (repo / "notes.md").write_text("written since"), then=False)
    assert run("restore", "@1", "app.py", at=repo).status == 0
    assert len(asked) == 1
    assert (repo / "notes.md").read_text() == "written since"


def test_what_is_written_during_a_restore_is_told(
    repo: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, edits = (
        atomic_rename._rename,
        [lambda: (repo / "app.py").write_text("written meanwhile")],
    )

    def rename_late(source: Any, target: Any, flags: int) -> None:
        if b"app.py" in (source.name, target.name) and edits:
            edits.pop()()
        rename(source, target, flags)

    answer(lambda: monkeypatch.setattr(atomic_rename, "_rename", rename_late), then=False)
    done = run("restore", "@1", at=repo)
    assert done.status == 0
    assert "keep app.py: it changed during the restore" in done.out
    assert (repo / "app.py").read_text() == "written meanwhile"


@pytest.mark.parametrize("name", ["app.py", "came.txt"])
@pytest.mark.parametrize("then", [True, False])
def test_rollback_asks_again_if_files_have_changed(
    session: Path, answer: Answer, name: str, then: bool
) -> None:
    asked = answer(lambda: (session / name).write_text("written since"), then=then)
    done = run("rollback", "fix", "--to", "@5", at=session)
    assert len(asked) == 2
    assert "Files have changed since the preview: nothing was done." in done.out
    assert done.status == (0 if then else 4)
    found = sorted(item.name for item in session.iterdir())
    if then:
        assert found == ["app.py", "read.txt"]
    else:
        assert (session / name).read_text() == "written since"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        for name in ("HOME", "AGENT_CHECKPOINT_HOME"):
            monkeypatch.setenv(name, found.environment[name])
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        for number in (2, 3):
            (found.workspace / "src" / "app.py").write_text(f"print({number})\n")
            found.tool(number)
        yield found


@pytest.mark.parametrize("then", [True, False])
def test_rewind_asks_again_if_files_have_changed(work: Scene, answer: Answer, then: bool) -> None:
    path = work.workspace / "src" / "app.py"
    asked = answer(lambda: path.write_text("written since"), then=then)
    done = run("rewind", "@1", at=work.workspace)
    assert len(asked) == 2, done
    assert "Files have changed since the preview: nothing was done." in done.out
    assert done.status == (0 if then else 4)
    assert path.read_text() == ("print(2)\n" if then else "written since")
    assert len(work.transcript.read_text().splitlines()) == (2 if then else 3)
    assert run("rewind", "--json", at=work.workspace).data["finished"] is None


@pytest.mark.parametrize("then", [True, False])
@pytest.mark.parametrize("only", [(), ("--only", "conversation")])
def test_rewind_asks_again_if_the_transcript_was_replaced(
    work: Scene, answer: Answer, only: "tuple[str, ...]", then: bool
) -> None:
    other = work.place / "other.jsonl"
    other.write_text('{"n": 7}\n')
    asked = answer(lambda: other.replace(work.transcript), then=then)
    done = run("rewind", "@1", *only, at=work.workspace)
    assert len(asked) == 2, done
    assert "The conversation has changed since the preview: nothing was done." in done.out
    assert "which was rewritten since" in done.out
    assert done.status == (0 if then else 4)
    assert len(work.transcript.read_text().splitlines()) == (2 if then else 1)


def test_rewind_asks_again_if_the_directory_of_the_transcript_leads_elsewhere(
    work: Scene, answer: Answer
) -> None:
    for name in ("here", "there"):
        (work.place / name).mkdir()
    work.transcript = work.transcript.rename(work.place / "here" / "transcript.jsonl")
    kept = work.place / "there" / "transcript.jsonl"
    kept.write_text('{"of": "another"}\n')
    link = work.place / "link"
    link.symlink_to("here")
    work.transcript = link / "transcript.jsonl"
    work.tool(4)
    work.tool(5)

    def lead_elsewhere() -> None:
        link.unlink()
        link.symlink_to("there")

    asked = answer(lead_elsewhere, then=False)
    done = run("rewind", "@3", at=work.workspace)
    assert len(asked) == 2, done
    assert str(kept) in done.out
    assert kept.read_text() == '{"of": "another"}\n'


def test_rewind_is_refused_if_the_agent_was_started_since(work: Scene, answer: Answer) -> None:
    with ExitStack() as ended:
        asked = answer(lambda: ended.enter_context(running_claude(work)), then=True)
        done = run("rewind", "@1", at=work.workspace)
        assert (len(asked), done.status) == (1, 4)
        assert "has this session open" in done.err
    assert len(work.transcript.read_text().splitlines()) == 3
