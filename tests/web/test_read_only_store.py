"""The page of a store that is open read-only: all pages are shown, an action says why it fails."""

from collections.abc import Iterator

import pytest

from agent_checkpoint import Approvals, CheckpointManager
from tests.web.conftest import Place
from tests.web.example_store import KEY
from tests.web.visitor import Visitor


@pytest.fixture
def reading(shared: Place) -> "Iterator[Visitor]":
    with CheckpointManager(f"sqlite://{shared.store}?read_only=1&count=1") as manager:
        yield Visitor(manager)


def test_pages_are_shown(reading: Visitor, looking: Visitor) -> None:
    head = reading.manager.history(KEY)[0]["id"]
    for page, asked in (
        ("/", {}),
        ("/approvals", {}),
        ("/timeline", {"key": KEY}),
        ("/effects", {"key": KEY}),
        ("/checkpoint", {"id": head}),
    ):
        found = reading.get(page, **asked)
        assert found.status_code == looking.get(page, **asked).status_code == 200, page


def test_an_action_says_that_the_store_is_read_only(reading: Visitor) -> None:
    (request,) = Approvals(reading.manager.store).pending()
    answer = reading.approve(request.id)
    assert answer.status_code >= 400
    assert "is open read-only. Nothing was written." in answer.text
    assert Approvals(reading.manager.store).pending() == [request]
