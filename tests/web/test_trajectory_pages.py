"""Bisect, blame, revert and replay on the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Session, bisect, replay
from tests.unit.trajectory.trajectories import Coding, mail, write
from tests.web.hostile_store import ALL, SCRIPT
from tests.web.test_hostile import is_inert
from tests.web.test_pages import plain
from tests.web.visitor import Visitor, opened

KEY = "fix-bug"
LINES = "one\ntwo\nthree\nfour\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    return place


@pytest.fixture
def visitor(tmp_path: Path, place: Path) -> "Iterator[Visitor]":
    """Steps @2 to @5: a file, a bad edit of its second line, another file, the last line."""
    with opened(tmp_path / "store") as manager:
        with Session(KEY, workspace=place, store=manager) as session:
            session.messages.append({"role": "user", "content": "make it work"})
            write("app.py", LINES)
            session.messages.append({"role": "assistant", "content": "I break the second line"})
            write("app.py", LINES.replace("two", "broken"))
            write("other.py", "1\n")
            write("app.py", LINES.replace("two", "broken") + "five\n")
        yield Visitor(manager)


def is_good(branch: Any) -> bool:
    file = branch.path / "app.py"
    return not file.exists() or "broken" not in file.read_text()


def record(manager: CheckpointManager, **values: Any) -> int:
    return manager.records(KEY, "runs").append({"kind": "bisect", "ts": 1.0, **values})


# -- bisect --------------------------------------------------------------------------------------


def test_a_bisection_shows_the_tested_checkpoints_and_the_step(visitor: Visitor) -> None:
    assert "No results yet" in plain(visitor.text("/runs", key=KEY))
    found = bisect(KEY, is_good, store=visitor.manager)
    assert found.not_recorded is None
    text = plain(visitor.text("/runs", key=KEY))
    assert "bisect is_good first bad: @3" in text
    html = visitor.text("/run", key=KEY, number=1)
    text = plain(html)
    assert "First bad step: @3" in text
    assert 'write(name="app.py"' in text
    assert "Prompt make it work" in text
    assert "I break the second line" in text
    assert "- two" not in text
    assert "2 two 2 broken" in text  # the diff side by side
    tested = {probe.checkpoint: probe.verdict for probe in found.tested}
    for verdict in ("good", "bad"):
        number = list(tested.values()).count(verdict)
        assert html.count(f'<circle class="probe {verdict}"') == number + 1  # and the legend
    assert html.count('<path class="flag"') == 2
    assert html.count('class="mark small"') == 6 - len(tested) + 1


def test_code_in_calls_is_shown_as_it_is(visitor: Visitor, place: Path) -> None:
    with Session(KEY, store=visitor.manager) as session:
        write("app.py", "if x:\n    two  spaces\n ")
        head = session.head
        bisect(KEY, is_good, store=visitor.manager, good="@2", bad="@3")
    for page, given in (
        ("/revert", {"id": head}),
        ("/checkpoint", {"id": head}),
        ("/timeline", {"key": KEY}),
        ("/blame", {"id": head, "path": "app.py"}),
    ):
        assert r"\x20" not in visitor.text(page, **given), page


def test_markers_cannot_show_a_file_that_conflicts_as_a_whole(visitor: Visitor) -> None:
    step = visitor.manager.history(KEY)[-2]["id"]
    form = {"id": step, "key": KEY, "conflicts": "markers"}
    text = plain(visitor.text(visitor.post("/revert_preview", form).headers["location"]))
    assert "Conflict markers cannot show files that conflict as a whole" in text
    assert "preview again with conflict markers" not in text


def test_skipped_checkpoints_leave_candidates(visitor: Visitor) -> None:
    def unsure(branch: Any) -> Any:
        return None if branch.checkpoint.seq == 3 else is_good(branch)

    bisect(KEY, unsure, store=visitor.manager)
    text = plain(visitor.text("/run", key=KEY, number=1))
    assert "The first bad step is one of 2" in text
    assert "Candidates" in text


def test_only_the_last_results_are_kept(visitor: Visitor) -> None:
    for _ in range(23):
        bisect(KEY, is_good, store=visitor.manager, good="@2", bad="@3")
    assert visitor.text("/runs", key=KEY).count(">bisect</a>") == 20
    assert visitor.get("/run", key=KEY, number=1).status_code == 404


def test_a_read_only_store_gives_the_result_and_records_nothing(
    visitor: Visitor, tmp_path: Path
) -> None:
    with CheckpointManager(f"sqlite://{tmp_path}/store?read_only=1") as manager:
        found = bisect(KEY, is_good, store=manager)
    assert found.first_bad is not None
    assert "read-only" in str(found.not_recorded)


def test_a_pruned_checkpoint_is_told(visitor: Visitor) -> None:
    number = record(visitor.manager, first_bad=f"{KEY}_1700000000000000000-77", tested=[])
    assert "pruned since" in plain(visitor.text("/run", key=KEY, number=number))


@pytest.mark.parametrize(
    "values",
    [
        {"tested": 7, "candidates": {}, "certainty": [1]},
        {"tested": [1, {"checkpoint": 3, "verdict": [], "runs": 5, "seconds": float("inf")}]},
        {"tested": [{"checkpoint": SCRIPT, "verdict": SCRIPT, "runs": [SCRIPT], "output": SCRIPT}]},
        {"end": SCRIPT, "first_bad": SCRIPT, "last_good": SCRIPT, "test": "".join(ALL)},
        {"candidates": list(ALL), "certainty": "".join(ALL)},
        {"kind": "replay", "divergence": {"kind": [], "expected": 1, "words": SCRIPT}},
        {"kind": "replay", "divergence": dict.fromkeys(("kind", "expected", "actual"), SCRIPT)},
        {"kind": "replay", "fork": SCRIPT, "differences": [3, {"words": "".join(ALL)}]},
        {"kind": "replay", "fork": "x" * 3000, "error": SCRIPT, "divergence": {}},
        {"kind": "replay", "matched": "x", "recorded": 10**400, "all_differences": None},
    ],
)
def test_hostile_records_are_shown_as_text(visitor: Visitor, values: "dict[str, Any]") -> None:
    number = record(visitor.manager, **values)
    for page in (visitor.text("/runs", key=KEY), visitor.text("/run", key=KEY, number=number)):
        assert is_inert(page)


@pytest.mark.parametrize(
    "values",
    [
        {"tested": [{"checkpoint": "c", "verdict": "good", "runs": [], "output": "x" * 99}] * 5000},
        {"kind": "replay", "differences": [{"words": "x" * 99}] * 20_000},
        {"kind": "replay", "divergence": {"kind": "call", "expected": "a\n" * 10**6}},
    ],
)
def test_the_page_of_a_large_record_is_small(visitor: Visitor, values: "dict[str, Any]") -> None:
    number = record(visitor.manager, **values)
    assert len(visitor.text("/run", key=KEY, number=number)) < 3_000_000


def test_records_of_another_form_are_left_out(visitor: Visitor) -> None:
    for value in (1, [], {"kind": "other", "ts": 1.0}, {"kind": "bisect", "ts": "now"}):
        visitor.manager.records(KEY, "runs").append(value)
    assert "No results yet" in plain(visitor.text("/runs", key=KEY))


# -- replay --------------------------------------------------------------------------------------


def loop(session: Session) -> None:
    session.messages.append({"role": "user", "content": "make it work"})
    write("app.py", LINES)
    session.messages.append({"role": "assistant", "content": "I break the second line"})
    write("app.py", LINES.replace("two", "mended"))


def test_a_divergence_is_shown_side_by_side(visitor: Visitor) -> None:
    with replay(KEY, loop, store=visitor.manager) as outcome:
        assert outcome.divergence is not None
        assert outcome.not_recorded is None
    assert "diverged" in plain(visitor.text("/runs", key=KEY))
    html = visitor.text("/run", key=KEY, number=1)
    text = plain(html)
    assert "1 of 4 recorded calls matched" in text
    assert "<del>broken</del>" in html
    assert "<ins>mended</ins>" in html
    assert "recorded at @3" in text


def test_a_replay_that_matches_says_so(visitor: Visitor) -> None:
    with replay(KEY, loop, store=visitor.manager, until="@2") as outcome:
        assert outcome.divergence is None
    assert "Every call was as recorded" in plain(visitor.text("/run", key=KEY, number=1))


# -- blame ---------------------------------------------------------------------------------------


def test_each_line_has_its_step(visitor: Visitor) -> None:
    html = visitor.text("/blame", id=f"{KEY}@5", path="app.py")
    text = plain(html)
    assert "5 lines at @5, from 3 steps" in text
    first, second, last = text.index("1 one"), text.index("2 broken"), text.index("5 five")
    assert text.index("@2") < first < text.index("@3", first) < second < text.index("@5", second)
    assert text.index("@5", second) < last
    assert "prompt: make it work" in text
    assert html.count("<rect") == 3
    assert "3 lines" in html
    link = plain(visitor.text("/checkpoint", id=f"{KEY}@5", part="workspace", path="app.py"))
    assert "Blame" in link


def test_blame_of_a_checkpoint_does_not_see_later_ones(visitor: Visitor) -> None:
    text = plain(visitor.text("/blame", id=f"{KEY}@2", path="app.py"))
    assert "4 lines at @2, from 1 step" in text
    assert "broken" not in text


def test_blame_names_the_other_session_of_the_directory(
    visitor: Visitor, place: Path, tmp_path: Path
) -> None:
    agent = Coding(tmp_path / "store", place)
    agent.prompt("add six")
    agent.write("app.py", (place / "app.py").read_text() + "six\n")
    agent.close()
    with Session(KEY, store=visitor.manager) as session:
        session.save(label="later")
    text = plain(visitor.text("/blame", id=KEY, path="app.py"))
    assert "claude-code/s1 @" in text
    assert "Write app.py" in text
    assert "prompt: add six" in text


def test_blame_masks_secrets_and_names_what_is_no_text(visitor: Visitor, place: Path) -> None:
    token = "ghp_" + "a1B2" * 9
    with Session(KEY, store=visitor.manager):
        write("keys.txt", f"first\ntoken = {token}\n")
        (place / "binary").write_bytes(b"\0\1\2")
        write("other.py", "2\n")
    text = visitor.text("/blame", id=KEY, path="keys.txt")
    assert token not in text
    assert "first" in text
    assert visitor.get("/blame", id=KEY, path="binary").status_code == 400
    assert visitor.get("/blame", id=KEY, path="missing").status_code == 404
    assert visitor.get("/blame", id=KEY, path="../../etc/passwd").status_code in (400, 404)


# -- revert --------------------------------------------------------------------------------------


def previewed(visitor: Visitor, step: str, **form: str) -> str:
    answer = visitor.post("/revert_preview", {"id": f"{KEY}@{step}", "key": KEY, **form})
    assert answer.status_code == 303, plain(answer.text)
    return str(answer.headers["location"])


def confirm(visitor: Visitor, place: str) -> Any:
    return visitor.post("/revert", {"of": place.partition("of=")[2]})


def test_a_step_is_shown_previewed_reverted_and_undone(visitor: Visitor, place: Path) -> None:
    before = (place / "app.py").read_text()
    head = visitor.manager.store.head(KEY)
    text = plain(visitor.text("/revert", id=f"{KEY}@3"))
    assert "Revert only @3" in text
    shown = previewed(visitor, "3")
    text = plain(visitor.text(shown))
    assert "write 1 app.py" in text
    assert "2 broken 2 two" in text
    assert "no external side effects" in text
    assert (place / "app.py").read_text() == before
    assert visitor.manager.store.head(KEY) == head  # neither the GET nor the preview wrote

    answer = confirm(visitor, shown)
    assert (answer.status_code, answer.headers["location"]) == (303, shown)
    assert (place / "app.py").read_text() == LINES + "five\n"
    assert (place / "other.py").exists()
    text = plain(visitor.text(shown))
    assert "were taken out; later work stays" in text
    after = visitor.manager.store.head(KEY)
    assert confirm(visitor, shown).status_code == 303
    assert visitor.manager.store.head(KEY) == after  # a form that is sent twice is done once
    with Session(KEY, store=visitor.manager) as session:
        session.undo()
    assert (place / "app.py").read_text() == before


def test_a_conflict_is_shown_and_nothing_is_applied(visitor: Visitor, place: Path) -> None:
    with Session(KEY, store=visitor.manager):
        write("app.py", LINES.replace("two", "again"))
    before = (place / "app.py").read_text()
    shown = previewed(visitor, "3")
    text = plain(visitor.text(shown))
    assert "Conflicts 1 app.py" in text
    assert "Line 2 now again as the step wrote it broken before the step two" in text
    assert "Nothing can be reverted" in text
    assert 'action="revert"' not in visitor.text(shown)
    assert confirm(visitor, shown).status_code == 409  # also without the button
    assert (place / "app.py").read_text() == before
    marked = previewed(visitor, "3", conflicts="markers")
    assert "1 file will contain conflict markers" in plain(visitor.text(marked))
    assert confirm(visitor, marked).status_code == 303
    assert "<<<<<<<" in (place / "app.py").read_text()


def test_files_that_changed_since_the_preview_refuse_it(visitor: Visitor, place: Path) -> None:
    shown = previewed(visitor, "3")
    text = (place / "app.py").read_text() + "by hand\n"
    (place / "app.py").write_text(text)
    answer = confirm(visitor, shown)
    assert answer.status_code == 409
    assert "Changed since the preview" in plain(answer.text)
    assert (place / "app.py").read_text() == text


def test_a_session_that_has_gone_on_refuses_it(visitor: Visitor, place: Path) -> None:
    shown = previewed(visitor, "3")
    with Session(KEY, store=visitor.manager):
        write("third.py", "3\n")
    assert confirm(visitor, shown).status_code == 409
    assert "broken" in (place / "app.py").read_text()


def test_what_may_be_another_session_s_is_kept_and_effects_are_listed(
    visitor: Visitor, place: Path, tmp_path: Path
) -> None:
    other = Coding(tmp_path / "store", place, "other")
    other.prompt("go")
    (place / "seen").write_text("")
    running = other.before("Bash", command="make")
    with Session(KEY, store=visitor.manager) as session:
        mail("ann")
        write("app.py", "mine\n")
        step = session.head.rpartition("-")[2]
        sent = str(int(step) - 1)
    other.after(running)
    other.close()
    text = plain(visitor.text(previewed(visitor, step)))
    assert "Kept, because they may be another's 1 app.py claude-code/other ran at" in text
    text = plain(visitor.text(previewed(visitor, sent)))
    assert "External side effects of the step, which stay 1 mail" in text


def test_a_step_of_a_coding_agent_is_reverted_and_undone(
    visitor: Visitor, place: Path, tmp_path: Path
) -> None:
    from tests.cli.world import run

    agent = Coding(tmp_path / "store", place)
    agent.prompt("begin")
    step = agent.write("mine.txt", "1\n")
    agent.write("later.txt", "2\n")
    agent.close()
    answer = visitor.post("/revert_preview", {"id": step or "", "key": agent.key})
    shown = str(answer.headers["location"])
    assert "delete 1 mine.txt" in plain(visitor.text(shown))
    assert confirm(visitor, shown).status_code == 303
    assert not (place / "mine.txt").exists()
    assert (place / "later.txt").exists()
    text = plain(visitor.text(shown))
    key = text.partition("agent-checkpoint undo ")[2].partition(".")[0]
    done = run("--store", tmp_path / "store", "undo", key.strip(), "--yes", at=place)
    assert done.status == 0, done.err
    assert (place / "mine.txt").read_text() == "1\n"


def test_a_key_of_another_directory_or_user_changes_nothing(
    visitor: Visitor, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of another user of this store")
    answer = visitor.post("/revert_preview", {"id": f"{KEY}@3", "key": KEY})
    assert answer.status_code == 400
    assert "not signed by this user" in plain(answer.text)


def test_forms_are_checked(visitor: Visitor, tmp_path: Path) -> None:
    form = {"id": f"{KEY}@3", "key": KEY}
    assert visitor.post("/revert_preview", {**form, "conflicts": "guess"}).status_code == 400
    assert visitor.post("/revert", {"of": "nothing"}).status_code == 404
    assert visitor.get("/revert_preview", of="nothing").status_code == 404
    assert visitor.send("/revert_preview", list(form.items())).status_code == 403  # no token
    assert visitor.get("/revert", id=f"{KEY}@1").status_code == 400  # there is no step before it
    reading = Visitor(visitor.manager, read_only=True)
    assert reading.post("/revert_preview", form).status_code == 403
    assert "read-only" in reading.text("/revert", id=f"{KEY}@3")
