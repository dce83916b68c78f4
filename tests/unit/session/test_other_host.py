"""Opening a session with the secret, or as the name, of another host. See also crash/test_hosts."""

import pytest

from agent_checkpoint import Checkpointable, External, Session, UntrustedDataError
from agent_checkpoint.store.directory_claims import HOST


class Unknown:
    """Saved as a pickle."""


class Moving(Checkpointable):
    def __init__(self):
        self.opaque = Unknown()


def delegate(session):
    session.subagent("helper", agent=Moving()).__enter__()


@pytest.mark.parametrize(
    ("options", "act"),
    [
        ({"agent": Moving()}, lambda session: None),
        (
            {"parts": {"image": External("image", take=Unknown, restore=lambda handle: None)}},
            lambda session: None,
        ),
        ({}, delegate),
    ],
    ids=["agent", "external part", "sub-agent"],
)
def test_who_cannot_load_a_pickle_does_not_become_the_owner(
    store, tmp_path, monkeypatch, options, act
):
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of the first host")
    monkeypatch.setenv(HOST, "first")
    place = tmp_path / "work"
    place.mkdir()
    first = Session("work", workspace=place, store=store, pickles="allow", **options)
    act(first)
    head = first.save()
    with monkeypatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", "of the second host")
        patch.setenv(HOST, "second")
        with pytest.raises(UntrustedDataError, match="AGENT_CHECKPOINT_SECRET"):
            Session("work", workspace=tmp_path / "other", store=store, **options)
    assert first.history(1)[0]["id"] == head
    first.save()  # not fenced off
