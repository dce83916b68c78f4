"""current_workspace: the files of the session, fork or sub-agent in which a tool is called."""

from pathlib import Path

import pytest

from agent_checkpoint import InvalidInputError, Session, current_workspace, tool


@tool
def write_note(text: str) -> None:
    (current_workspace().path / "note").write_text(text)


def test_a_tool_writes_to_the_fork_in_which_it_is_called(tmp_path: Path) -> None:
    place = tmp_path / "w"
    place.mkdir()
    with Session("job", workspace=place) as session:
        with session.fork("try") as branch:
            write_note("fork")
            assert branch.workspace is not None
            assert current_workspace() is branch.workspace
            assert (branch.workspace.path / "note").read_text() == "fork"
        assert not (place / "note").exists()
        with session.subagent("kid"):
            write_note("kid")
        assert (place / "note").read_text() == "kid"


def test_without_a_session_or_workspace_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="A session is not current in this thread"):
        current_workspace()
    with (
        Session("bare", store=tmp_path / "store"),
        pytest.raises(InvalidInputError, match="A session has no workspace"),
    ):
        current_workspace()
