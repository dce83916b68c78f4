"""Live updates in a real browser, in any number of tabs."""

import threading
from urllib.parse import quote

import pytest

from agent_checkpoint import Approvals, CheckpointManager, Session
from agent_checkpoint.web.server.server import listen, open_in_browser
from tests.web.browsing import Served, Tab, chromium
from tests.web.conftest import Place
from tests.web.example_store import KEY
from tests.web.visitor import opened

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")


@pytest.mark.slow
def test_a_page_follows_the_agent_without_a_reload(served: Served, example: Place) -> None:
    with opened(example.store) as manager:
        tab = served.tab(manager)
        page = tab.open(f"/timeline?key={KEY}")
        page.wait_for_selector(".live.on")
        page.evaluate("window.same = true")
        page.keyboard.press("j")
        with Session(KEY, store=manager) as session:
            session.save(label="made while the page was open")
            page.get_by_text("made while the page was open").wait_for()
            page.locator("#overview [data-row='37']").wait_for(state="attached")
        page.get_by_text("26 checkpoints, plus").or_(
            page.get_by_text("27 checkpoints, plus")
        ).wait_for()
        assert page.evaluate("document.activeElement.closest('.row').dataset.row") == "35"
        # Cut off for a while: nothing is missed.
        tab.context.set_offline(True)
        manager.fork(KEY, "a fork in the dark")
        tab.context.set_offline(False)
        page.locator(".chip", has_text="a fork in the dark").wait_for()
        assert page.evaluate("window.same") is True
        tab.troubles = [text for text in tab.troubles if "ERR_" not in text]


@pytest.mark.slow
def test_any_number_of_tabs_is_live(served: Served, example: Place) -> None:
    with opened(example.store) as manager:
        tab = served.tab(manager)
        pages = [tab.page, *(tab.context.new_page() for _ in range(9))]
        paths = ["/", f"/timeline?key={KEY}", f"/effects?key={KEY}", "/timeline?key=survey-draft"]
        for number, page in enumerate(pages):
            page.goto(tab.origin + paths[number % 4])
        for page in pages:
            page.locator(".live.on").wait_for()
        with Session(KEY, store=manager) as session:
            session.save(label="for all tabs")
            for page in pages[1::4]:
                page.locator(".row", has_text="for all tabs").wait_for()


@pytest.mark.slow
def test_a_server_that_was_restarted_is_told(served: Served, manager: CheckpointManager) -> None:
    first = listen(manager, host="127.0.0.1", port=0)
    thread = threading.Thread(target=first.run, daemon=True)
    thread.start()
    tab = Tab(served.browser, first.address)
    tab.page.wait_for_selector(".live.on")
    first.stop()
    thread.join(20)
    tab.page.get_by_text("connecting…").wait_for()
    second = listen(manager, host="127.0.0.1", port=first.port)
    thread = threading.Thread(target=second.run, daemon=True)
    thread.start()
    tab.page.get_by_text("The server has stopped").wait_for()
    tab.page.wait_for_selector("#live.ended")
    second.stop()
    thread.join(20)
    assert [text for text in tab.troubles if "ERR_CONNECTION_REFUSED" not in text] == []
    tab.context.close()


@pytest.mark.slow
def test_the_file_that_a_browser_is_told_by(
    served: Served, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []
    monkeypatch.setattr("webbrowser.open", files.append)
    with open_in_browser(served.serve(manager)):
        page = served.browser.new_context().new_page()
        page.goto(files[0])
        page.get_by_role("heading", name="Keys and sessions").wait_for()
        assert "token" not in page.url
        page.context.close()


@pytest.mark.slow
def test_what_was_chosen_stays_so_and_the_older_is_on_the_left(
    served: Served, example: Place
) -> None:
    with opened(example.store) as manager:
        page = served.tab(manager).open(f"/timeline?key={KEY}")
        page.wait_for_selector(".live.on")
        page.locator('.row[data-row="30"] .pick').click()
        with Session(KEY, store=manager) as session:
            session.save(label="made meanwhile")
        page.get_by_text("made meanwhile").wait_for()
        pressed = page.locator('.pick[aria-pressed="true"]')
        assert pressed.count() == 1
        newer = pressed.get_attribute("data-pick")
        older = page.locator('.row[data-row="20"] .pick').get_attribute("data-pick")
        page.locator('.row[data-row="20"] .pick').click()
        page.wait_for_url("**/diff?**")
        assert f"a*={quote(str(older), safe='')}&b*={quote(str(newer), safe='')}" in page.url


@pytest.mark.slow
def test_pages_to_answer_on_follow_but_never_take_away_what_is_typed(
    served: Served, example: Place
) -> None:
    with opened(example.store) as manager:
        page = served.tab(manager).open("/approvals")
        other = served.tab(manager).open(f"/effects?key={KEY}")
        for each in (page, other):
            each.wait_for_selector(".live.on")
            each.evaluate("window.same = true")
        other.locator("textarea").first.fill('"not sent yet"')
        (request,) = Approvals(manager.store).pending()
        Approvals(manager.store).deny(request.id, "too early")
        for each in (page, other):
            each.get_by_text("already answered or void").wait_for()
            each.get_by_text("This list has changed").wait_for()
            assert each.evaluate("window.same") is True
        assert other.locator("textarea").first.input_value() == '"not sent yet"'
        page.get_by_role("button", name="Reload").click()
        page.get_by_text("No pending approvals.").wait_for()
        other.get_by_role("button", name="Reload").click()
        other.get_by_text("too early").wait_for()
