"""Rollback from the page: only the previewed rollback runs, and only once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, ConflictError, Session
from agent_checkpoint.web.pages import rollback_page
from tests.web.conftest import Place
from tests.web.example_store import AUTH, KEY, open_ticket
from tests.web.test_pages import plain
from tests.web.visitor import Visitor


def head_of(visitor: Visitor, key: str = KEY) -> str:
    head = visitor.manager.store.head(key)
    assert head is not None
    return head.id


def previewed(acting: Visitor, form: Any) -> str:
    """Have a rollback previewed, and return where the preview is shown."""
    answer = acting.post("/preview", form)
    assert answer.status_code == 303, plain(answer.text)
    return str(answer.headers["location"])


def confirm(acting: Visitor, place: str, **form: str) -> Any:
    """Confirm what is shown there."""
    return acting.post("/rollback", {"of": place.partition("of=")[2], **form})


def test_a_rollback_is_asked_previewed_confirmed_and_can_be_undone(
    acting: Visitor, example: Place
) -> None:
    before = head_of(acting)
    text = plain(acting.text("/rollback", id=f"{KEY}@8"))
    assert "Outcome unknown 1" in text
    (example.repo / "new.txt").write_text("not saved yet\n")
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    text = plain(acting.text(place))
    assert "write 2 README.md app/auth.py" in text
    assert "delete 1 new.txt" in text
    assert head_of(acting) == before
    assert (example.repo / "new.txt").exists()

    answer = confirm(acting, place, effects="warn")
    assert (answer.status_code, answer.headers["location"]) == (303, place)
    text = plain(acting.text(place))
    assert "Rolled back" in text
    assert "To undo this rollback, roll back to it." in text
    assert not (example.repo / "new.txt").exists()
    assert (example.repo / "app" / "auth.py").read_text() == AUTH
    assert "SESSION_SECONDS" not in (example.repo / "README.md").read_text()
    after = head_of(acting)
    assert confirm(acting, place, effects="warn").headers["location"] == place
    assert head_of(acting) == after  # a form that is sent twice is done once
    with Session(KEY, store=acting.manager) as session:
        session.undo()
    assert (example.repo / "new.txt").read_text() == "not saved yet\n"


def test_a_preview_of_an_imported_checkpoint_names_what_could_run(
    acting: Visitor, tmp_path: Path
) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for place in (theirs, mine):
        (place / ".git" / "hooks").mkdir(parents=True)
    (theirs / ".git" / "hooks" / "pre-push").write_text("#!/bin/sh\n")
    (theirs / ".git" / "hooks" / "pre-push").chmod(0o755)
    with CheckpointManager(backend="sqlite", path=tmp_path / "elsewhere") as manager:
        Session("evil", workspace=theirs, store=manager).close()
        manager.export_archive(tmp_path / "evil.ckpt", "evil")
    acting.manager.import_archive(tmp_path / "evil.ckpt")
    Session("evil", workspace=mine, store=acting.manager, rebind=True).close()
    text = plain(acting.text(previewed(acting, {"id": "evil@1", "key": "evil"})))
    assert "These files come from an imported or unverified checkpoint" in text
    assert "becomes executable:.git/hooks/pre-push" in text
    assert "is run or read by git:.git/hooks/pre-push" in text
    own = plain(acting.text(previewed(acting, {"id": f"{KEY}@8", "key": KEY})))
    assert "unverified" not in own


def test_a_rollback_past_what_cannot_be_undone_is_refused_as_such(
    acting: Visitor, example: Place
) -> None:
    before = head_of(acting)
    answer = confirm(acting, previewed(acting, {"id": f"{KEY}@2", "key": KEY}))
    assert answer.status_code == 409
    text = plain(answer.text)
    assert "Refused" in text
    assert "Cannot be undone from here 1 open_ticket" in text
    assert "12 * 60 * 60" in (example.repo / "app" / "auth.py").read_text()
    assert head_of(acting) == before  # it was not even opened


@pytest.mark.slow
def test_a_part_alone_goes_back(acting: Visitor, example: Place) -> None:
    pairs = [("id", f"{KEY}@8"), ("key", KEY), ("scope", "some"), ("part*", "workspace")]
    place = previewed(acting, pairs)
    assert "Rolls back: workspace" in plain(acting.text(place))
    answer = confirm(acting, place, effects="warn")
    assert answer.status_code == 303, plain(answer.text)
    assert (example.repo / "app" / "auth.py").read_text() == AUTH
    state = acting.manager.state_dict(KEY)
    assert state["agent"]["notes"]["limit"] == "12 * 60 * 60"
    assert acting.manager.history(KEY, 1)[0]["kind"] == "restore"


def test_files_that_nobody_saved_are_left_alone_if_that_is_wanted(
    acting: Visitor, example: Place
) -> None:
    (example.repo / "mine").mkdir()
    (example.repo / "mine" / "new.txt").write_text("not saved yet\n")
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY, "keep_unseen": "yes"})
    text = plain(acting.text(place))
    assert "write 2 README.md app/auth.py" in text
    assert "mine/new.txt: not in a checkpoint yet" in text
    assert "delete" not in text
    answer = confirm(acting, place, effects="warn")
    assert answer.status_code == 303, plain(answer.text)
    assert (example.repo / "mine" / "new.txt").read_text() == "not saved yet\n"
    assert (example.repo / "app" / "auth.py").read_text() == AUTH


def test_no_part_at_all_is_refused(acting: Visitor) -> None:
    pairs = [("id", f"{KEY}@8"), ("key", KEY), ("scope", "some")]
    assert acting.post("/preview", pairs).status_code == 400


def test_a_session_that_has_gone_on_since_the_preview_is_left_alone(
    acting: Visitor, example: Place
) -> None:
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    with Session(KEY, store=acting.manager) as session:
        session.save(label="meanwhile")
        head = session.head
        answer = confirm(acting, place, effects="warn")
        assert answer.status_code == 409
        assert "newer checkpoint than the preview: nothing was done" in plain(answer.text)
        assert session.head == head_of(acting) == head
        session.save()  # it was not taken over


@pytest.mark.parametrize("what", ["edited", "came"])
def test_files_that_changed_since_the_preview_are_left_alone(
    acting: Visitor, example: Place, what: str
) -> None:
    before = head_of(acting)
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    path = example.repo / ("app/auth.py" if what == "edited" else "came.txt")
    path.write_text("written after the preview\n")
    answer = confirm(acting, place, effects="warn")
    assert answer.status_code == 409
    assert "Files have changed since the preview: nothing was done" in plain(answer.text)
    assert path.read_text() == "written after the preview\n"
    assert head_of(acting) == before


@pytest.mark.parametrize("when", ["checked", "opened"])
@pytest.mark.parametrize("what", ["edited", "came"])
def test_files_that_are_written_while_it_is_confirmed_are_left_alone(
    acting: Visitor, example: Place, what: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was looked at before, what counts is the safety checkpoint of the rollback."""
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    path = example.repo / ("app/auth.py" if what == "edited" else "came.txt")
    readme = (example.repo / "README.md").read_text()

    class Late(Session):
        def rollback(self, *args: Any, **options: Any) -> Any:
            path.write_text("written when all had been checked\n")
            return super().rollback(*args, **options)

    late = "written when all had been checked\n"
    with monkeypatch.context() as patch:
        if when == "opened":
            patch.setattr(rollback_page, "Session", Late)
        else:
            patch.setattr(rollback_page, "_check_unchanged", lambda *args: path.write_text(late))
        answer = confirm(acting, place, effects="warn")
    assert answer.status_code == 409
    assert "Files have changed since the preview: nothing was done" in plain(answer.text)
    assert path.read_text() == "written when all had been checked\n"
    assert (example.repo / "README.md").read_text() == readme
    again = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    assert confirm(acting, again, effects="warn").status_code == 303
    assert (example.repo / "app" / "auth.py").read_text() == AUTH
    assert not (example.repo / "came.txt").exists()


def test_nobody_agrees_to_effects_that_were_not_shown(acting: Visitor, example: Place) -> None:
    with Session(KEY, store=acting.manager, every="manual") as session:
        place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
        open_ticket("Another one", body="made after the preview, and not saved yet")
        answer = confirm(acting, place, effects="warn")
        assert answer.status_code == 409
        assert "changed since the preview" in plain(answer.text)
        session.save()  # it was not taken over


def test_effects_that_are_made_while_it_is_confirmed_are_not_agreed_to(
    acting: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Session(KEY, store=acting.manager, every="manual")
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})

    def late(*args: Any) -> None:
        with holder:
            open_ticket("A late one", body="made when all had been checked")

    monkeypatch.setattr(rollback_page, "_check_unchanged", late)
    answer = confirm(acting, place, effects="warn")
    assert answer.status_code == 409
    assert "changed since the preview" in plain(answer.text)
    assert acting.manager.history(KEY, 1)[0]["kind"] == "open"


def test_whoever_saves_while_it_is_confirmed_is_not_taken_over(
    acting: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(KEY, store=acting.manager, every="manual") as holder:
        place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
        monkeypatch.setattr(
            rollback_page, "_check_unchanged", lambda *args: holder.save(label="late")
        )
        answer = confirm(acting, place, effects="warn")
        assert answer.status_code == 409
        assert "nothing was done" in plain(answer.text)
        assert acting.manager.history(KEY, 1)[0]["label"] == "late"
        holder.save()


def test_a_form_that_is_sent_many_times_at_once_is_done_once(acting: Visitor) -> None:
    number = len(acting.manager.history(KEY))
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: confirm(acting, place, effects="warn"), range(5)))
    assert {answer.headers["location"] for answer in answers} == {place}
    kinds = [row["kind"] for row in acting.manager.history(KEY)][:-number]
    assert kinds == ["rollback", "safety", "open"]


def test_a_preview_that_is_not_kept_is_told(acting: Visitor) -> None:
    assert acting.get("/preview", of="none").status_code == 404
    assert acting.post("/rollback", {"of": "none"}).status_code == 404
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    for _ in range(20):
        previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    assert acting.get(place).status_code == 404


def test_looking_and_previewing_take_no_session_over(acting: Visitor, example: Place) -> None:
    with Session(KEY, store=acting.manager) as session:
        acting.text("/rollback", id=f"{KEY}@8")
        previewed(acting, {"id": f"{KEY}@8", "key": KEY})
        session.save(label="still mine")
        place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
        assert confirm(acting, place, effects="warn").status_code == 303
        with pytest.raises(ConflictError):
            session.save()
        session.close()


def test_a_fork_without_a_directory_is_refused_in_words(acting: Visitor) -> None:
    key = f"{KEY}/half-a-day"
    place = previewed(acting, {"id": f"{key}@3", "key": key})
    assert "its files were removed" in plain(acting.text(place))
    answer = confirm(acting, place)
    assert answer.status_code == 400
    assert "is a fork" in answer.text


def test_a_checkpoint_of_another_session_is_refused(acting: Visitor) -> None:
    form = {"id": "nightly-report@2", "key": KEY}
    assert acting.post("/preview", form).status_code == 400
    place = previewed(acting, {"id": f"{KEY}@8", "key": KEY})
    assert confirm(acting, place, effects="compensate").status_code == 400
