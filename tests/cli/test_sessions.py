"""rollback, fork, tasks, effects, approvals: sessions without the code of their agents."""

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agent_checkpoint import ApprovalDeniedError, Approvals, ConflictError, Session, Suspended
from tests.cli.world import Coder, charge, explode, opened, publish, run, run_process


def head_of(key: str) -> str:
    with opened() as manager:
        head = manager.store.head(key)
        assert head is not None
        return head.id


def test_rollback_takes_files_and_state_back(session: Path) -> None:
    done = run_process("rollback", "--to", "@5", "--yes", at=session)
    assert done.status == 0, done.err
    assert "restart it" in done.out
    assert sorted(item.name for item in session.iterdir()) == ["app.py", "read.txt"]
    agent = Coder()
    with Session("fix", agent=agent) as again:
        assert agent.steps == 1
        assert len(again.messages) == 1


def test_what_was_there_before_a_rollback_can_be_had_again(session: Path) -> None:
    done = run("rollback", "fix", "--to", "@5", "--yes", "--json")
    assert run("rollback", "fix", "--to", done.data["safety_id"], "--yes").status == 0
    assert len(list(session.iterdir())) == 4


def test_a_preview_disturbs_nobody(session: Path) -> None:
    before = head_of("fix")
    with Session("fix", agent=Coder()) as held:
        told = run("rollback", "fix", "--to", "@5", "--dry-run")
        assert told.status == 0
        assert "delete edit.txt" in told.out
        held.save()
    assert head_of("fix") != before
    assert len(list(session.iterdir())) == 4


def test_a_running_agent_is_fenced_off(session: Path) -> None:
    held = Session("fix", agent=Coder())
    assert run("rollback", "fix", "--to", "@5", "--yes").status == 0
    with pytest.raises(ConflictError):
        held.save()
    held.close()


def test_a_rollback_past_a_mail_is_refused(session: Path) -> None:
    before = head_of("fix")
    refused = run("rollback", "fix", "--to", "@1", "--yes")
    assert refused.status == 4
    assert "irreversible: send_mail(" in refused.out
    assert "--effects warn" in refused.out
    assert "session." not in refused.out
    assert head_of("fix") == before
    data = run("rollback", "fix", "--to", "@1", "--yes", "--json").data
    assert data["effects"]["irreversible"][0]["tool"] == "send_mail"
    assert data["done"] is False
    done = run("rollback", "fix", "--to", "@1", "--effects", "warn", "--yes")
    assert done.status == 0
    assert "Do not repeat it" in done.out


def test_only_the_files_go_back(session: Path) -> None:
    done = run("rollback", "fix", "--to", "@1", "--parts", "workspace", "--yes", "--json")
    assert done.status == 0
    assert [item.name for item in session.iterdir()] == ["app.py"]
    assert run("show", "fix", "--json").data["parts"]["agent"]["value"] == {"steps": 3}


def test_what_others_have_changed_is_the_first_step(session: Path) -> None:
    (session / "app.py").write_text("by hand\n")
    told = run("rollback", "--dry-run", "--json", at=session).data
    assert told["target"] == head_of("fix")
    assert told["files"]["write"] == ["app.py"]
    assert run("rollback", "--yes", at=session).status == 0
    assert (session / "app.py").read_text() == "print('hello')\n"


def test_a_preview_and_the_deed_are_the_same(session: Path) -> None:
    told = run("rollback", "fix", "--steps", 2, "--effects", "warn", "--dry-run", "--json").data
    done = run("rollback", "fix", "--steps", 2, "--effects", "warn", "--yes", "--json").data
    assert done["done"] is True
    for name in ("target", "parts"):
        assert told[name] == done[name]
    for name in ("write", "delete"):
        assert told["files"][name] == done["files"][name]


def test_undoing_needs_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("shop") as opened_session:
        charge("7")
        opened_session.save()
    refused = run_process(
        "rollback", "shop", "--to", "@1", "--effects", "compensate", "--yes", at=tmp_path
    )
    assert refused.status == 4
    assert "--import MODULE" in refused.out
    root = Path(__file__).parents[2]
    done = run_process(
        "rollback",
        "shop",
        "--to",
        "@1",
        "--effects",
        "compensate",
        "--yes",
        "--import",
        "tests.cli.world",
        at=root,
        PYTHONPATH=f"{root}:{':'.join(sys.path)}",
    )
    assert done.status == 0, done.err
    assert "compensated: charge(" in done.out
    assert run("rollback", "shop", "--import", "no.such.module").status == 2


def test_rollback_of_what_is_no_session(repo: Path) -> None:
    with opened() as manager:
        manager.save("plain", {"x": 1})
    refused = run("rollback", "plain")
    assert refused.status == 2
    assert "is not a session" in refused.err
    assert run("rollback", at=repo).status == 3
    assert run("rollback", "nothing").status == 3
    assert run("rollback", "plain", "--steps", -1).status == 2


def test_fork_with_files_of_its_own(session: Path, tmp_path: Path) -> None:
    done = run("fork", "fix", "try", "--at", "@5", "--into", tmp_path / "try")
    assert done.status == 0, done.err
    assert sorted(item.name for item in (tmp_path / "try").iterdir()) == ["app.py", "read.txt"]
    assert run("log", "--json", at=tmp_path / "try").data["key"] == "try"
    agent = Coder()
    with Session("try", agent=agent) as branch:
        assert agent.steps == 1
        assert branch.workspace is not None
        assert branch.workspace.path == (tmp_path / "try").resolve()
    assert len(list(session.iterdir())) == 4
    assert "try@" in run("log", "fix").out
    assert "fork of fix@5" in run("log", "--all", at=tmp_path / "try").out


def test_fork_of_a_plain_key() -> None:
    with opened() as manager:
        manager.save("plain", {"x": 1})
        manager.save("plain", {"x": 2})
    data = run("fork", "plain", "other", "--at", "plain@1", "--json").data
    assert data["key"] == "other"
    assert run("show", "other", "--json").data["parts"]["agent"]["value"] == {"x": 1}
    assert run("fork", "plain", "other").status == 4
    assert run("fork", "plain", "more", "--at", "other").status == 2


def test_a_fork_that_fails_leaves_no_key(session: Path, tmp_path: Path) -> None:
    assert run("fork", "fix", "try", "--into", session).status == 2
    assert run("keys", "try", "--json").data == []
    (tmp_path / "file").write_text("in the way")
    assert run("fork", "fix", "try", "--into", tmp_path / "file" / "try").status == 2
    assert run("keys", "try", "--json").data == []
    assert run("fork", "fix", "fix", "--into", tmp_path / "new").status == 4
    assert not (tmp_path / "new").exists()
    with opened() as manager:
        manager.save("plain", {"x": 1})
    assert run("fork", "plain", "try", "--into", tmp_path / "new").status == 3
    assert run("keys", "try", "--json").data == []


def test_tasks_of_a_session(session: Path) -> None:
    shown = run("tasks", at=session).out
    assert "3 of 3 done" in shown
    data = run("tasks", "fix", "--json").data
    assert [row["status"] for row in data["tasks"]] == ["completed"] * 3
    assert set(data["tasks"][0]) == {"id", "status", "attempt", "note", "result", "waits_for"}


def test_tasks_of_all_sessions(session: Path, request_id: str) -> None:
    rows = {row["key"]: row for row in run("tasks", "--all", "--json").data}
    assert rows["release"]["pending"] == [request_id]
    assert rows["fix"]["directory"] == str(session.resolve())
    shown = run("tasks", "--all").out
    assert "3/3" in shown
    assert "1 to approve" in shown


def test_effects_of_a_session(session: Path) -> None:
    shown = run("effects", at=session)
    assert "send_mail(" in shown.out
    row = run("effects", "fix", "--json").data[0]
    assert (row["status"], row["kind"], row["session"]) == ("committed", "irreversible", "fix")
    assert run("effects", "fix", "--unknown", "--json").data == []


@pytest.mark.parametrize(("said", "becomes"), [("--happened", "committed"), ("--not", "failed")])
def test_a_person_says_what_became_of_an_effect(said: str, becomes: str) -> None:
    with Session("rocket"), suppress(TimeoutError):
        explode("north")
    row = run("effects", "--all", "--unknown", "--json").data[0]
    shown = run("effects", "rocket").out
    assert f"effects resolve {row['id']} --happened" in shown
    assert run("effects", "resolve", row["id"]).status == 2
    done = run("effects", "resolve", row["id"][:6], said, "--note", "I looked", "--json")
    assert done.status == 0, done.err
    assert done.data["status"] == becomes
    assert run("effects", "--all", "--unknown", "--json").data == []
    assert run("effects", "resolve", row["id"], said).status == 1
    assert run("effects", "resolve", "nothing", said).status == 3
    assert run("effects", "resolve").status == 2


def test_an_approval(request_id: str) -> None:
    shown = run("approvals").out
    assert "publish(" in shown
    assert 'notes: "Many things."' in shown
    rows = run("approvals", "list", "release", "--json").data
    assert [(row["id"], row["arguments"]["version"]) for row in rows] == [(request_id, "1.2")]
    assert run("approvals", "approve", request_id[:12]).status == 0
    assert run("approvals", "approve", request_id).status == 4
    assert run("approvals", "--json").data == []
    assert run("approvals", "--all", "--json").data[0]["status"] == "approved"
    with Session("release"):
        assert publish("1.2", "Many things.") == "published 1.2: Many things."


def test_a_denial(request_id: str) -> None:
    done = run("approvals", "deny", request_id, "--reason", "too late", "--by", "Ann", "--json")
    assert (done.data["status"], done.data["reason"], done.data["by"]) == (
        "denied",
        "too late",
        "Ann",
    )


def test_a_denial_that_the_agent_knows_of(request_id: str) -> None:
    run("approvals", "deny", request_id, "--reason", "too late", "--by", "Ann")
    with Session("release"), pytest.raises(ApprovalDeniedError):
        publish("1.2", "Many things.")
    (row,) = run("approvals", "--all", "--json").data
    assert (row["status"], row["answer"], row["by"]) == ("used", "denied", "Ann")
    shown = run("approvals", "--all").out
    assert "  denied by Ann, used\n" in shown
    assert "    too late\n" in shown


def test_a_task_that_waits_for_an_approval() -> None:
    with pytest.raises(Suspended) as waiting, Session("release") as opened_session:
        for task in opened_session.tasks(["build", "publish"]):
            with task:
                if task.id == "publish":
                    publish("1.2", "Many things.")
    name = waiting.value.approval_id
    rows = run("tasks", "release", "--json").data["tasks"]
    assert [row["waits_for"] for row in rows] == [[], [name]]
    assert f"publish  in_progress, waits for {name}\n" in run("tasks", "release").out


def test_the_beginning_of_two_requests() -> None:
    names = []
    for version in ("1.2", "1.3"):
        with pytest.raises(Suspended) as waiting, Session(f"release-{version}"):
            publish(version, "Many things.")
        names.append(waiting.value.approval_id)
    ran = run("approvals", "approve", "approval-")
    assert ran.status == 2
    assert f"it matches 2 requests: {', '.join(sorted(names))}." in ran.err


def test_an_approval_with_other_arguments(request_id: str) -> None:
    assert run("approvals", "edit", request_id, "--set-json", "notes=Fewer").status == 2
    for option in ("--set", "--set-json"):
        assert run("approvals", "edit", request_id, option, "notes").status == 2
        assert run("approvals", "edit", request_id, option, 'note="x"').status == 2
    assert run("approvals", "edit", request_id, "--set", "notes=Fewer.").status == 0
    with Session("release"):
        assert publish("1.2", "Many things.") == "published 1.2: Fewer."
        assert publish("1.2", "Many things.") == "published 1.2: Fewer."  # from the ledger
    shown = run("log", "release").out
    assert shown.count("publish(version='1.2', notes='Fewer.')") == 2
    assert "notes='Many things.'" not in shown
    shown = run("approvals", "--all").out
    assert re.search(r"  approved by \S+, used\n", shown)


def test_an_edit_keeps_the_type_of_the_argument(request_id: str) -> None:
    """`version=1.3` became a number, and the approved call failed."""
    done = run("approvals", "edit", request_id, "--set", "version=1.3", "--json").data
    assert done["arguments"] == {"version": "1.3", "notes": "Many things."}
    with Session("release"):
        assert publish("1.2", "Many things.") == "published 1.3: Many things."


def test_an_answer_is_revoked(request_id: str) -> None:
    assert "approvals revoke" in run("approvals", "edit", request_id, "--set", "notes=x").out
    revoked = run("approvals", "revoke", request_id, "--by", "ann", "--json").data
    assert revoked["status"] == "pending"
    assert revoked["reason"] == "the earlier answer (approved) was revoked by ann"
    assert revoked["arguments"] == {"version": "1.2", "notes": "Many things."}
    assert run("approvals", "revoke", request_id).status == 4
    assert "revoked by ann" in run("approvals").out
    assert run("approvals", "deny", request_id, "--reason", "no").status == 0
    assert "waits for another answer" in run("approvals", "revoke", request_id).out


def test_an_approval_in_an_editor(
    request_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i.bak "s/Many/No/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "true")
    assert run("approvals", "edit", request_id).status == 2  # nothing was changed
    monkeypatch.setenv("EDITOR", "false")
    assert run("approvals", "edit", request_id).status == 1
    monkeypatch.setenv("EDITOR", str(editor))
    assert run("approvals", "edit", request_id).status == 0
    with opened() as manager:
        assert Approvals(manager.store).arguments(request_id)["notes"] == "No things."


def test_no_request_of_that_name(request_id: str) -> None:
    assert run("approvals", "approve", "nothing").status == 3
    assert run("approvals", "approve").status == 2
    wrong = run("approvals", "aprove", request_id)
    assert wrong.status == 2
    assert "did you mean approve?" in wrong.err


def test_diff_stat_counts_messages_and_names_values(session: Path) -> None:
    del session
    full, short = run("diff", "fix@1", "fix"), run("diff", "fix@1", "fix", "--stat")
    assert "I read now." in full.out
    assert "I read now." not in short.out
    assert "messages: 3 added\n" in short.out
    assert "  ~ agent.steps\n" in short.out
    assert "  + read.txt\n" in short.out


def test_a_request_is_denied_with_a_reason_after_its_id(request_id: str) -> None:
    assert run("approvals", "approve", request_id, "because").status == 2
    assert run("approvals", "deny", request_id, "no", "--reason", "no").status == 2
    assert run("approvals", "deny", request_id, "not on a Friday").status == 0
    with (
        pytest.raises(ApprovalDeniedError, match="not on a Friday"),
        Session("release"),
    ):
        publish("1.2", "Many things.")


def test_a_used_answer_names_who_gave_it_and_what_was_edited(request_id: str) -> None:
    run("approvals", "edit", request_id, "--set", "notes=Few", "--by", "me")
    with Session("release"):
        assert publish("1.2", "Many things.") == "published 1.2: Few"
    shown = run("approvals", "--all").out
    assert "  approved by me, used\n" in shown
    assert 'notes (edited): "Few"' in shown
    assert 'version: "1.2"' in shown
    assert run("approvals", "--all", "--json").data[0]["edited"] == ["notes"]
