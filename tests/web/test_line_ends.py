"""Names with line ends: browsers change them in forms, which would name another key."""

from urllib.parse import quote

import pytest

from agent_checkpoint import Approvals, CheckpointManager, InvalidInputError, Session
from agent_checkpoint.web.page_text import decode_field, encode_field
from tests.web.browsing import Served, Tab, chromium, press
from tests.web.test_what_is_seen import asked
from tests.web.visitor import Visitor

open_in_browser = pytest.mark.skipif(
    chromium() is None, reason="there is no chromium on this machine"
)
ALIKE = ["a\nb", "a\r\nb", "a\rb", "a b"]


@pytest.mark.parametrize(
    "text", [*ALIKE, "", "a+b%0A&=", "é\u202e\U0001f600", "\udcff\udc80", "a*b", "\x00\x7f"]
)
def test_what_is_coded_comes_back_as_it_was(text: str) -> None:
    assert decode_field(encode_field(text)) == text
    assert encode_field(text).isascii()
    assert not set(encode_field(text)) & set("\r\n\"'<>& +")


@pytest.mark.parametrize("text", ["a b", "a\nb", "%0a", "%", "%zz", "é", "%41", "a/b"])
def test_what_is_coded_otherwise_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        decode_field(text)
    visitor = Visitor(CheckpointManager())
    assert visitor.client.get("/timeline", params={"key*": text}).status_code == 400
    assert visitor.post("/export", {"key*": text}).status_code == 400


@pytest.fixture
def manager() -> CheckpointManager:
    made = CheckpointManager()
    for key in ALIKE:
        made.save(key, {"n": 1})
        made.save(key, {"n": 2})
    return made


@open_in_browser
@pytest.mark.parametrize("key", ALIKE)
@pytest.mark.slow
def test_forms_act_on_the_key_that_they_are_of(
    served: Served, manager: CheckpointManager, key: str
) -> None:
    tab: Tab = served.tab(manager)
    page = tab.open(f"/fork?id={quote(key, safe='')}@1")
    page.get_by_label("Name of the fork").fill("the fork")
    press(page, "Preview")
    press(page, "Fork")
    page.wait_for_url("**/timeline?key=the%20fork")
    (row,) = manager.history("the fork")
    assert row["parents"] == [manager.history(key)[-1]["id"]]

    page = tab.open(f"/timeline?key={quote(key, safe='')}")
    page.wait_for_selector(".live.on")
    manager.save(key, {"n": 3}, label="of this one")
    page.get_by_text("of this one").first.wait_for()
    page.locator("#find").fill("nothing")
    page.locator("#find").press("Enter")
    page.get_by_text("in 3 checkpoints. Search complete.").wait_for()

    page = tab.open(f"/diff?a={quote(key, safe='')}@1&b={quote(key, safe='')}@2")
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("1 difference", exact=True).wait_for()
    assert page.get_by_role("alert").count() == 0

    page = tab.open(f"/export?key={quote(key, safe='')}")
    with page.expect_download() as download:
        press(page, "Download")
    other = CheckpointManager()
    other.import_archive(download.value.path())
    assert other.list_keys() == [key]


@open_in_browser
@pytest.mark.parametrize("key", ALIKE[:3])
@pytest.mark.slow
def test_sessions_and_parts_are_the_ones_that_were_chosen(served: Served, key: str) -> None:
    with CheckpointManager() as manager:
        for name in ALIKE:
            boxes = {part: Box() for part in ALIKE}
            with Session(name, store=manager, parts=boxes) as session:
                session.save(label="one")
                for box in boxes.values():
                    box.n = 2
                session.save(label="two")
        tab = served.tab(manager)
        (target,) = [row for row in manager.history(key) if row["label"] == "one"]
        page = tab.open(f"/rollback?id={quote(target['id'], safe='')}")
        page.get_by_label("only:").check()
        page.locator(f'input[name="part*"][value="{encode_field(key)}"]').check()
        press(page, "Preview")
        press(page, "Roll back")
        page.get_by_role("heading", name="Rolled back").wait_for()
        states = {part: manager.state_dict(key)[part]["n"] for part in ALIKE}
        assert states == {part: 1 if part == key else 2 for part in ALIKE}
        others = [name for name in ALIKE if name != key]
        assert all(manager.history(name)[0]["kind"] != "rollback" for name in others)


class Box:
    """A part of a session."""

    n = 1

    def state_dict(self) -> "dict[str, int]":
        return {"n": self.n}

    def load_state_dict(self, state: "dict[str, int]") -> None:
        self.n = state["n"]


@open_in_browser
@pytest.mark.slow
def test_an_answer_is_given_to_the_session_that_asked(served: Served) -> None:
    with CheckpointManager() as manager:
        names = {key: asked(manager, key, n=1) for key in ALIKE[:3]}
        page = served.tab(manager).open(f"/effects?key={quote(ALIKE[1], safe='')}")
        page.wait_for_selector(".live.on")
        page.wait_for_timeout(700)
        press(page, "Approve")
        page.get_by_text("approved", exact=True).wait_for()
        open_ones = {key: Approvals(manager.store).get(name).is_open for key, name in names.items()}
        assert open_ones == {ALIKE[0]: True, ALIKE[1]: False, ALIKE[2]: True}
