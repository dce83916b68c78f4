"""Rewind and restore from the page: the previews of the commands; only what was shown runs."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_checkpoint.agents.hook.protocol import CLIENT
from tests.cli.world import run
from tests.web.agent_store import KEY, OTHER, PRICES, ROUNDED, AgentWork, make_agent_work
from tests.web.test_pages import plain
from tests.web.visitor import Visitor, opened


class Work(NamedTuple):
    """A store, the directory of its sessions, and a visitor of its page."""

    store: Path
    place: Path
    visitor: Visitor

    @property
    def transcript(self) -> Path:
        return self.place.parent / f"{KEY.partition('/')[2]}.jsonl"

    def command(self, *typed: str) -> Any:
        done = run("--store", f"sqlite:///{self.store}", *typed, "--json", at=self.place)
        assert done.status == 0, done.err
        return done.data

    def files(self) -> "dict[str, str]":
        files = (path for path in self.place.rglob("*") if path.is_file())
        return {str(path.relative_to(self.place)): path.read_text() for path in files}

    def head(self, key: str = KEY) -> str:
        head = self.visitor.manager.store.head(key)
        assert head is not None
        return head.id

    def seq_of(self, words: str) -> int:
        rows = self.visitor.manager.history(KEY)
        return next(int(row["id"].rpartition("-")[2]) for row in rows if row["label"] == words)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    place = tmp_path / "project"
    make_agent_work(tmp_path / "store", place)
    with opened(tmp_path / "store") as manager:
        yield Work(tmp_path / "store", place, Visitor(manager))


def previewed(work: Work, page: str, form: Any) -> str:
    answer = work.visitor.post(f"/{page}_preview", form)
    assert answer.status_code == 303, plain(answer.text)
    return str(answer.headers["location"])


def confirm(work: Work, page: str, place: str, **form: str) -> Any:
    return work.visitor.post(f"/{page}", {"of": place.partition("of=")[2], **form})


def test_a_rewind_is_asked_previewed_confirmed_and_undone(work: Work) -> None:
    before, lines = work.files(), work.transcript.read_text().splitlines()
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    assert "Rewind to this checkpoint…" in work.visitor.text("/checkpoint", id=target)
    text = plain(work.visitor.text("/rewind", id=target))
    assert "files and conversation" in text
    head = work.head()
    place = previewed(work, "rewind", {"id": target})
    text = plain(work.visitor.text(place))
    told = work.command("rewind", target, "--dry-run")
    for path in told["write"] + told["delete"]:
        assert path in text
    assert told["transcript"] in text
    assert "1 other session worked here" in text
    assert OTHER in text
    assert "with the true results of its tool calls" in text
    ending = text.partition("How that conversation ends")[2]
    assert "command: cat shop/prices.py" in ending
    assert "return sum(item.price for item in items)" in ending  # the result, written late
    assert "calls Edit" not in ending
    assert (work.files(), work.head()) == (before, head)

    answer = confirm(work, "rewind", place)
    assert (answer.status_code, answer.headers["location"]) == (303, place), plain(answer.text)
    text = plain(work.visitor.text(place))
    assert "Rewound to @" in text
    assert "claude --resume" in text
    assert work.files() == {"shop/prices.py": PRICES}
    kept = work.transcript.read_text().splitlines()
    assert kept == lines[: len(kept)]
    assert json.loads(kept[-1])["message"]["content"][0]["content"] == PRICES
    after = work.head()
    assert confirm(work, "rewind", place).headers["location"] == place
    assert work.head() == after  # a form that is sent twice is done once

    (undo,) = [one for one in work.visitor.text(place).split('href="') if "Undo…" in one]
    back = undo.partition('"')[0].replace("&amp;", "&")
    assert "Rewind to @" in plain(work.visitor.text(back))
    safety = back.partition("id=")[2]
    place = previewed(work, "rewind", [("id*", safety)])
    assert confirm(work, "rewind", place).status_code == 303
    assert work.files() == before
    assert work.transcript.read_text().splitlines() == lines


def test_only_the_changes_of_this_session_are_a_choice(work: Work) -> None:
    (work.place / "by-hand.txt").write_text("human")
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    place = previewed(work, "rewind", {"id": target, "mine": "yes"})
    text = plain(work.visitor.text(place))
    told = work.command("rewind", target, "--mine", "--dry-run")
    assert sorted(told["not_mine"]) == ["README.md", "by-hand.txt"]
    for path, why in told["not_mine"].items():
        assert f"{path}: {why}" in text
    assert "other session worked here" not in text
    assert confirm(work, "rewind", place).status_code == 303
    kept = {"shop/prices.py": PRICES, "by-hand.txt": "human", "README.md": "# Shop\n"}
    assert work.files() == kept


@pytest.mark.parametrize("only", ["files", "conversation"])
def test_files_or_conversation_alone(work: Work, only: str) -> None:
    before, lines = work.files(), work.transcript.read_text()
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    place = previewed(work, "rewind", {"id": target, "only": only})
    text = plain(work.visitor.text(place))
    word = "The conversation is not rewound." if only == "files" else "Files are not rewound."
    assert word in text
    assert confirm(work, "rewind", place).status_code == 303
    assert (work.files() == before) is (only == "conversation")
    assert (work.transcript.read_text() == lines) is (only == "files")


def test_nothing_is_rewound_if_a_file_has_changed_since_the_preview(work: Work) -> None:
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    place = previewed(work, "rewind", {"id": target})
    (work.place / "shop" / "prices.py").write_text("by hand\n")
    answer = confirm(work, "rewind", place)
    assert answer.status_code == 409
    assert "changed since the preview" in plain(answer.text)
    assert (work.place / "shop" / "prices.py").read_text() == "by hand\n"
    assert (work.place / "CHANGELOG.md").exists()


def test_nothing_is_rewound_if_the_session_has_gone_on_since_the_preview(work: Work) -> None:
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    place = previewed(work, "rewind", {"id": target})
    agent = AgentWork(work.store, work.place)  # a call that changes nothing
    agent.event("PostToolUse", tool_name="Bash", tool_input={}, tool_use_id="toolu_late")
    agent.close()
    answer = confirm(work, "rewind", place)
    assert answer.status_code == 409
    assert "The session has a newer checkpoint" in plain(answer.text)
    assert (work.place / "CHANGELOG.md").exists()


def test_nothing_is_rewound_if_the_agent_has_written_since_the_preview(work: Work) -> None:
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    place = previewed(work, "rewind", {"id": target})
    with work.transcript.open("a") as file:
        file.write("{}\n")
    answer = confirm(work, "rewind", place)
    assert answer.status_code == 409
    assert "The conversation has changed since the preview" in plain(answer.text)
    assert (work.place / "CHANGELOG.md").exists()


def test_a_form_that_is_sent_many_times_at_once_is_done_once(work: Work) -> None:
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    place = previewed(work, "rewind", {"id": target})
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: confirm(work, "rewind", place), range(4)))
    assert [answer.status_code for answer in answers] == [303] * 4
    kinds = [row["kind"] for row in work.visitor.manager.history(KEY)]
    assert kinds.count("rollback") == 1


@pytest.fixture
def running(work: Work) -> "Iterator[subprocess.Popen[bytes]]":
    """A process called `claude` that has reported a tool call and waits for its input to end."""
    claude = work.place.parent / "claude"
    claude.symlink_to("/bin/sh")
    event = work.place.parent / "event.json"
    fields = {"hook_event_name": "PostToolUse", "session_id": KEY.partition("/")[2]}
    fields.update(cwd=str(work.place), transcript_path=str(work.transcript), tool_name="Bash")
    event.write_text(json.dumps({**fields, "tool_input": {}, "tool_use_id": "toolu_running"}))
    hook = f"{shlex.quote(sys.executable)} -I {shlex.quote(str(CLIENT))} claude-code"
    process = subprocess.Popen(
        [str(claude), "-c", f"{hook} < {shlex.quote(str(event))}; echo done; read line; exit 0"],
        env={
            **os.environ,
            "AGENT_CHECKPOINT_HOOK_DIRECT": "1",
            "AGENT_CHECKPOINT_STORE": str(work.store),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"done\n"
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait()


@pytest.mark.slow
def test_a_running_agent_must_be_agreed_to(work: Work, running: "subprocess.Popen[bytes]") -> None:
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    assert f"claude (process {running.pid})" in plain(work.visitor.text("/rewind", id=target))
    place = previewed(work, "rewind", {"id": target})
    assert "lose their past" in plain(work.visitor.text(place))
    answer = confirm(work, "rewind", place)
    assert answer.status_code == 409
    assert "Nothing was changed" in plain(answer.text)
    assert (work.place / "CHANGELOG.md").exists()
    files = previewed(work, "rewind", {"id": target, "only": "files"})
    assert "does not know that files change" in plain(work.visitor.text(files))
    assert "while_running" not in work.visitor.text(files)
    assert confirm(work, "rewind", place, while_running="yes").status_code == 303
    assert work.files() == {"shop/prices.py": PRICES}


def test_an_imported_checkpoint_is_not_rewound_to(work: Work, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    work.visitor.manager.export_archive(archive, KEY)
    with opened(tmp_path / "elsewhere") as manager:
        manager.import_archive(archive)
        visitor = Visitor(manager)
        for page in ("rewind", "restore"):
            answer = visitor.get(f"/{page}", id=KEY)
            assert answer.status_code == 400
            assert "--into DIR" in plain(answer.text)
            assert visitor.post(f"/{page}_preview", {"id": KEY}).status_code == 400
    assert (work.place / "CHANGELOG.md").exists()


def test_a_read_only_page_rewinds_nothing(work: Work) -> None:
    visitor = Visitor(work.visitor.manager, read_only=True)
    for page in ("rewind", "restore"):
        assert "read-only" in plain(visitor.text(f"/{page}", id=KEY))
        for place in (f"/{page}_preview", f"/{page}"):
            assert visitor.post(place, {"id": KEY, "of": "x"}).status_code == 403


def test_a_preview_of_another_kind_is_not_confirmed(work: Work) -> None:
    place = previewed(work, "restore", {"id": KEY})
    assert confirm(work, "rewind", place).status_code == 404
    assert confirm(work, "rollback", place).status_code == 404


# -- restore ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Work]:
    """A directory that `save` has saved twice."""
    place = tmp_path / "project"
    place.mkdir()
    for text in ("one\n", "two\n"):
        (place / "notes.md").write_text(text)
        (place / f"{text.strip()}.txt").write_text(text)
        store = f"sqlite:///{tmp_path / 'store'}"
        assert run("--store", store, "save", at=place).status == 0
    with opened(tmp_path / "store") as manager:
        yield Work(tmp_path / "store", place, Visitor(manager))


def test_a_restore_is_previewed_confirmed_and_undone(saved: Work) -> None:
    (key,) = saved.visitor.manager.store.list_keys()
    assert "Restore files…" in saved.visitor.text("/checkpoint", id=f"{key}@1")
    before = saved.files()
    place = previewed(saved, "restore", {"id": f"{key}@1"})
    text = plain(saved.visitor.text(place))
    assert "write 1 notes.md" in text
    assert "delete 1 two.txt" in text
    assert saved.files() == before
    assert confirm(saved, "restore", place).status_code == 303
    assert saved.files() == {"notes.md": "one\n", "one.txt": "one\n"}
    assert "Undo…" in saved.visitor.text(place)
    after = saved.head(key)
    assert confirm(saved, "restore", place).status_code == 303
    assert saved.head(key) == after
    safety = saved.visitor.text(place).partition("restore?id=")[2].partition('"')[0]
    place = previewed(saved, "restore", [("id*", safety)])
    assert confirm(saved, "restore", place).status_code == 303
    assert saved.files() == before


def test_one_file_is_restored(saved: Work) -> None:
    (key,) = saved.visitor.manager.store.list_keys()
    asked = {"id": f"{key}@1", "part": "workspace", "path": "notes.md"}
    assert "Restore this file…" in saved.visitor.text("/checkpoint", **asked)
    for fields in ({"path*": "notes.md"}, {"paths": "\r\nnotes.md\r\n"}):
        (saved.place / "notes.md").write_text("two\n")
        place = previewed(saved, "restore", {"id": f"{key}@1", **fields})
        assert "two.txt" not in plain(saved.visitor.text(place))
        assert confirm(saved, "restore", place).status_code == 303
        assert saved.files()["notes.md"] == "one\n"
        assert (saved.place / "two.txt").exists()


@pytest.mark.parametrize("path", ["../store", "/etc/passwd", "none", "a/../../b"])
def test_no_path_leads_out_of_the_directory(saved: Work, path: str) -> None:
    (key,) = saved.visitor.manager.store.list_keys()
    (saved.place.parent / "b").write_text("not ours")
    before = saved.files()
    answer = saved.visitor.post("/restore_preview", {"id": f"{key}@1", "paths": path})
    assert answer.status_code in (400, 404), plain(answer.text)
    assert saved.files() == before


def test_nothing_is_restored_if_a_file_has_changed_since_the_preview(saved: Work) -> None:
    (key,) = saved.visitor.manager.store.list_keys()
    place = previewed(saved, "restore", {"id": f"{key}@1"})
    (saved.place / "notes.md").write_text("by hand\n")
    answer = confirm(saved, "restore", place)
    assert answer.status_code == 409
    assert saved.files()["notes.md"] == "by hand\n"


def test_files_of_a_coding_agent_are_restored_without_its_conversation(work: Work) -> None:
    lines = work.transcript.read_text()
    target = f"{KEY}@{work.seq_of('Bash cat shop/prices.py')}"
    place = previewed(work, "restore", {"id": target, "paths": "shop"})
    assert confirm(work, "restore", place).status_code == 303
    assert work.files()["shop/prices.py"] == PRICES != ROUNDED
    assert work.transcript.read_text() == lines
