"""What can be done from the page: answers, rollback, fork, export. Previewed, and confirmed."""

import re
from pathlib import Path

import pytest

from agent_checkpoint import Approvals, CheckpointManager, ConflictError, Session
from agent_checkpoint.session.meta import read_meta
from agent_checkpoint.store.ledger import Ledger
from tests.web.conftest import Place
from tests.web.example_store import AUTH, KEY
from tests.web.test_pages import plain
from tests.web.visitor import Visitor


def head_of(visitor: Visitor, key: str = KEY) -> str:
    head = visitor.manager.store.head(key)
    assert head is not None
    return head.id


def approval(visitor: Visitor) -> str:
    (request,) = Approvals(visitor.manager.store).pending()
    return request.id


def ledger(visitor: Visitor) -> Ledger:
    head = visitor.manager.store.head(KEY)
    assert head is not None
    meta = read_meta(visitor.manager.store, head)
    assert meta is not None
    found = Ledger(visitor.manager.store, meta.family)
    found.refresh()
    return found


# -- approvals -------------------------------------------------------------------------------------


def test_a_call_is_approved_as_it_is(acting: Visitor, example: Place) -> None:
    assert "deploy" in acting.text("/approvals")
    answer = acting.post("/approve", {"approval": approval(acting)})
    assert answer.status_code == 303
    assert "Nothing waits" in acting.text("/approvals")
    with Session(KEY, store=acting.manager) as session:
        (row,) = session.carry_out()
    assert row["result"] == "deployed 2.4.1"
    assert "approved, used" in acting.text(f"/effects?key={KEY}")


def test_a_call_is_approved_with_other_arguments(acting: Visitor) -> None:
    form = {
        "approval": approval(acting),
        "key": KEY,
        "argument.version": '"2.5"',
        "argument.servers": '[\n  "web-1",\n  "web-2"\n]',
        "argument.unknown": "1",
    }
    assert acting.post("/approve", form).headers["location"].startswith("/effects")
    with Session(KEY, store=acting.manager) as session:
        (row,) = session.carry_out()
        assert row["result"] == "deployed 2.5"
        arguments = session.calls[-1]["arguments"]
    assert arguments["servers"] == ["web-1", "web-2"]
    assert arguments["notes"] == "Sessions last for half a day."


def test_arguments_that_are_no_json_are_refused(acting: Visitor) -> None:
    form = {"approval": approval(acting), "argument.version": "2.5 and more"}
    answer = acting.post("/approve", form)
    assert answer.status_code == 400
    assert "not JSON" in answer.text
    assert approval(acting)


def test_a_call_is_denied_with_a_reason(acting: Visitor) -> None:
    form = {"approval": approval(acting), "reason": "not on a Friday"}
    assert acting.post("/deny", form).status_code == 303
    with Session(KEY, store=acting.manager) as session:
        assert session.carry_out()[0]["denied"] == "not on a Friday"
    assert "not on a Friday" in acting.text("/effects", key=KEY)


def test_an_answer_is_given_once(acting: Visitor) -> None:
    name = approval(acting)
    assert acting.post("/deny", {"approval": name}).status_code == 303
    assert acting.post("/approve", {"approval": name}).status_code == 409
    assert acting.post("/approve", {"approval": "approval-none"}).status_code == 404


# -- effects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("happened", "status"), [("yes", "committed"), ("no", "failed")])
def test_a_person_says_what_became_of_an_unknown_effect(
    acting: Visitor, happened: str, status: str
) -> None:
    (effect,) = [item for item in ledger(acting).all_effects() if item.status == "unknown"]
    form = {"key": KEY, "effect": effect.id, "happened": happened, "note": "I looked."}
    if happened == "yes":
        form["result"] = '{"sent": true}'
    assert acting.post("/resolve", form).status_code == 303
    found = ledger(acting).effects[effect.id]
    assert (found.status, found.note) == (status, "I looked.")
    assert acting.post("/resolve", form).status_code == 422
    assert "It happened" not in acting.text("/effects", key=KEY)


def test_nonsense_about_an_effect_is_refused(acting: Visitor) -> None:
    (effect,) = [item for item in ledger(acting).all_effects() if item.status == "unknown"]
    form = {"key": KEY, "effect": effect.id}
    assert acting.post("/resolve", {**form, "happened": "maybe"}).status_code == 400
    assert acting.post("/resolve", {**form, "happened": "yes", "result": "{"}).status_code == 400
    assert acting.post("/resolve", {"key": KEY, "effect": "x", "happened": "no"}).status_code == 404


# -- rollback --------------------------------------------------------------------------------------


def test_a_rollback_is_asked_previewed_confirmed_and_can_be_undone(
    acting: Visitor, example: Place
) -> None:
    before = head_of(acting)
    text = plain(acting.text("/rollback", id=f"{KEY}@8"))
    assert "Nobody knows whether it stands 1" in text
    (example.repo / "new.txt").write_text("not saved yet\n")
    answer = acting.post("/rollback/preview", {"id": f"{KEY}@8", "key": KEY})
    text = plain(answer.text)
    assert "write 2 README.md app/auth.py" in text
    assert "delete 1 new.txt" in text
    assert head_of(acting) == before
    assert (example.repo / "new.txt").exists()

    form = {"id": f"{KEY}@8", "key": KEY, "head": before, "effects": "warn"}
    text = plain(acting.post("/rollback", form).text)
    assert "Rolled back" in text
    assert "roll back to that to undo this" in text
    assert not (example.repo / "new.txt").exists()
    assert (example.repo / "app" / "auth.py").read_text() == AUTH
    assert "SESSION_SECONDS" not in (example.repo / "README.md").read_text()
    with Session(KEY, store=acting.manager) as session:
        session.undo()
    assert (example.repo / "new.txt").read_text() == "not saved yet\n"


def test_a_rollback_past_what_cannot_be_undone_is_refused_as_such(
    acting: Visitor, example: Place
) -> None:
    form = {"id": f"{KEY}@2", "key": KEY, "head": head_of(acting)}
    answer = acting.post("/rollback", form)
    assert answer.status_code == 409
    text = plain(answer.text)
    assert "Refused" in text
    assert "Cannot be undone from here 1 open_ticket" in text
    assert "12 * 60 * 60" in (example.repo / "app" / "auth.py").read_text()
    assert head_of(acting) == form["head"]  # it was not even opened


def test_a_part_alone_goes_back(acting: Visitor, example: Place) -> None:
    pairs = [("id", f"{KEY}@8"), ("key", KEY), ("scope", "some"), ("part", "workspace")]
    text = plain(acting.post("/rollback/preview", pairs).text)
    assert "Goes back: workspace" in text
    answer = acting.post("/rollback", [*pairs, ("head", head_of(acting)), ("effects", "warn")])
    assert answer.status_code == 200, plain(answer.text)
    assert (example.repo / "app" / "auth.py").read_text() == AUTH
    state = acting.manager.state_dict(KEY)
    assert state["agent"]["notes"]["limit"] == "12 * 60 * 60"
    assert acting.manager.history(KEY, 1)[0]["kind"] == "restore"


def test_no_part_at_all_is_refused(acting: Visitor) -> None:
    pairs = [("id", f"{KEY}@8"), ("key", KEY), ("scope", "some")]
    assert acting.post("/rollback/preview", pairs).status_code == 400


def test_a_session_that_has_gone_on_since_the_preview_is_left_alone(
    acting: Visitor, example: Place
) -> None:
    before = head_of(acting)
    with Session(KEY, store=acting.manager) as session:
        session.save(label="meanwhile")
        head = session.head
        form = {"id": f"{KEY}@8", "key": KEY, "head": before, "effects": "warn"}
        assert acting.post("/rollback", form).status_code == 409
        assert session.head == head_of(acting) == head
        session.save()  # it was not taken over


def test_looking_and_previewing_take_no_session_over(acting: Visitor, example: Place) -> None:
    with Session(KEY, store=acting.manager) as session:
        acting.text("/rollback", id=f"{KEY}@8")
        answer = acting.post("/rollback/preview", {"id": f"{KEY}@8", "key": KEY})
        assert answer.status_code == 200
        session.save(label="still mine")
        form = {"id": f"{KEY}@8", "key": KEY, "head": head_of(acting), "effects": "warn"}
        assert acting.post("/rollback", form).status_code == 200
        with pytest.raises(ConflictError):
            session.save()
        session.close()


def test_a_fork_without_a_directory_is_refused_in_words(acting: Visitor) -> None:
    key = f"{KEY}/half-a-day"
    answer = acting.post("/rollback/preview", {"id": f"{key}@3", "key": key})
    assert "its files are gone" in plain(answer.text)
    form = {"id": f"{key}@3", "key": key, "head": head_of(acting, key)}
    answer = acting.post("/rollback", form)
    assert answer.status_code == 400
    assert "is a fork" in answer.text


def test_a_checkpoint_of_another_session_is_refused(acting: Visitor) -> None:
    form = {"id": "nightly-report@2", "key": KEY, "head": head_of(acting)}
    assert acting.post("/rollback", form).status_code == 400
    assert acting.post("/rollback", {**form, "effects": "compensate"}).status_code == 400


# -- fork and export -------------------------------------------------------------------------------


def test_a_fork_is_previewed_and_confirmed(acting: Visitor) -> None:
    form = {"id": f"{KEY}@8", "name": "another way"}
    text = plain(acting.post("/fork", form).text)
    assert "The key another way is free" in text
    assert "another way" not in acting.manager.list_keys()
    answer = acting.post("/fork", {**form, "confirmed": "yes"})
    assert answer.headers["location"] == "/timeline?key=another%20way"
    assert acting.manager.history("another way")[0]["parents"][0].endswith("-8")
    assert acting.post("/fork", {**form, "confirmed": "yes"}).status_code == 409
    assert acting.post("/fork", {"id": KEY, "name": " "}).status_code == 400


def test_an_archive_is_sent_and_can_be_imported(acting: Visitor, tmp_path: Path) -> None:
    assert "24 checkpoints" in plain(acting.text("/export", key=KEY))
    answer = acting.post("/export", {"key": KEY})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{KEY}.ckpt"'
    (tmp_path / "a.ckpt").write_bytes(answer.content)
    other = CheckpointManager()
    assert other.import_archive(tmp_path / "a.ckpt") == KEY
    assert len(other.history(KEY)) == 24


def test_nothing_is_left_of_an_archive_that_was_sent(
    acting: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    assert acting.post("/export", {"key": "none"}).status_code == 404
    assert acting.post("/export", {"key": KEY}).status_code == 200
    assert list((tmp_path / "t").iterdir()) == []


def test_a_name_that_is_no_file_name_is_none_in_the_header(acting: Visitor) -> None:
    acting.manager.save('../a"b\r\nX: y', {"n": 1})
    answer = acting.post("/export", {"key": '../a"b\r\nX: y'})
    assert re.fullmatch(
        r'attachment; filename="[\w-]+\.ckpt"', answer.headers["content-disposition"]
    )
