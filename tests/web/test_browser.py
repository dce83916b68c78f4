"""The page in a real browser: navigation, actions, keyboard, themes, hostile and large stores."""

from pathlib import Path
from urllib.parse import quote

import pytest

from agent_checkpoint import Approvals, CheckpointManager, Session
from tests.web.agent_store import KEY as AGENT
from tests.web.agent_store import AgentWork, make_agent_work
from tests.web.browsing import Served, chromium, press
from tests.web.conftest import Place
from tests.web.example_store import AUTH, KEY, make_long
from tests.web.hostile_store import KEY as HOSTILE
from tests.web.hostile_store import SESSION
from tests.web.visitor import opened

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")


@pytest.mark.slow
def test_looking_around(served: Served, manager: CheckpointManager) -> None:
    tab = served.tab(manager)
    page = tab.page
    page.get_by_role("link", name=KEY, exact=True).click()
    page.wait_for_selector(".live.on")
    assert page.locator(".row").count() == 36
    page.get_by_text("before the edit").first.click()
    page.wait_for_url("**/checkpoint?**")
    page.get_by_role("link", name="agent", exact=True).click()
    page.get_by_text("SESSION_SECONDS is 60").wait_for()
    page.get_by_role("link", name="workspace", exact=True).click()
    page.get_by_role("link", name="app/").click()
    page.get_by_role("link", name="auth.py").click()
    page.get_by_text("def is_expired").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_text() == AUTH
    page.go_back()
    page.get_by_role("link", name="Compare with head").first.click()
    page.locator("details.change", has_text="app/auth.py").locator("ins").first.wait_for()


@pytest.mark.slow
def test_values_of_a_state_are_opened_one_by_one(served: Served, tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        manager.save("key", {"many": [{"inner": {"n": number}} for number in range(300)]})
        page = served.tab(manager).open("/checkpoint?id=key")
        page.get_by_text("many").first.click()
        page.get_by_text("200 more").click()
        page.get_by_text("100 more").click()
        page.locator("summary", has_text="299").click()
        page.get_by_text("inner").last.wait_for()


@pytest.mark.slow
def test_the_keyboard_is_enough(served: Served, manager: CheckpointManager) -> None:
    page = served.tab(manager).page
    press = page.keyboard.press
    press("j")
    assert page.evaluate("document.activeElement.textContent") == KEY
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    press("Enter")
    page.wait_for_url("**/timeline?**")
    for key in "jjjk":
        press(key)
    assert page.evaluate("document.activeElement.closest('.row').dataset.row") == "34"
    press("x")
    page.get_by_text("Select a second checkpoint").wait_for()
    for key in "jj":
        press(key)
    press("x")
    page.wait_for_url("**/diff?**")
    press("g")
    page.wait_for_url(lambda url: url.endswith("/"))
    press("?")
    assert page.locator("dialog#keys").is_visible()
    press("Escape")
    assert not page.locator("dialog#keys").is_visible()
    press("/")
    page.keyboard.type("half")
    press("Enter")
    page.wait_for_url("**/?q=half")
    page.get_by_text("1 key with").wait_for()


def test_light_and_dark(served: Served, manager: CheckpointManager) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(255, 255, 255)", "rgb(18, 22, 28)"
    page = served.tab(manager, color_scheme="dark").page
    assert page.evaluate(colour) == dark
    page.get_by_role("button", name="Light or dark theme").click()
    assert page.evaluate(colour) == light
    page.reload()
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="light")
    page.keyboard.press("t")
    assert page.evaluate(colour) == dark


@pytest.mark.slow
def test_small_screens(served: Served, manager: CheckpointManager) -> None:
    tab = served.tab(manager, viewport={"width": 400, "height": 800})
    key = quote(KEY)
    for path in (
        "/",
        f"/timeline?key={key}",
        f"/checkpoint?id={key}",
        f"/checkpoint?id={key}&part=calls",
        f"/checkpoint?id={key}&part=workspace",
        f"/diff?a={key}@8&b={key}",
        f"/effects?key={key}",
        f"/rollback?id={key}@8",
    ):
        page = tab.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path


@pytest.mark.parametrize("width", [390, 1280])
def test_marks_stand_beside_their_rows(served: Served, width: int) -> None:
    with CheckpointManager() as manager:
        manager.save("main", {"n": 0})
        for number in range(30):
            manager.fork("main", f"main/{number}", "main@1")
        for number in range(30):
            manager.save(f"main/{number}", {"n": number}, label="a label that is rather long")
        tab = served.tab(manager, viewport={"width": width, "height": 800})
        page = tab.open("/timeline?key=main")
        offsets = page.evaluate(
            """() => {
              const middle = (item) => { const box = item.getBoundingClientRect();
                return box.top + box.height / 2; };
              const marks = [...document.querySelectorAll("circle.mark")].filter(
                (item) => item.closest(".graph")).reverse();
              return [...document.querySelectorAll(".row")].map(
                (row, place) => Math.abs(middle(row) - middle(marks[place])));
            }"""
        )
        assert len(offsets) == 61
        assert max(offsets) < 2
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_colours_can_be_told_apart(served: Served, manager: CheckpointManager) -> None:
    page = served.tab(manager).page
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = {theme!r}")
        for pair, least in (
            ("rollback soft", 4.5),
            ("fork soft", 4.5),
            ("field bg", 3),
            ("muted soft", 4.5),
        ):
            ratio = page.evaluate(
                """(pair) => {
                  const style = getComputedStyle(document.documentElement);
                  const light = (name) => {
                    const hex = style.getPropertyValue("--" + name).trim();
                    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
                      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
                    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
                  };
                  const [low, high] = pair.split(" ").map(light).sort((a, b) => a - b);
                  return (high + 0.05) / (low + 0.05);
                }""",
                pair,
            )
            assert ratio >= least, (theme, pair, ratio)


@pytest.mark.slow
def test_from_a_refusal_one_gets_back_to_the_form(served: Served, example: Place) -> None:
    with opened(example.store) as manager:
        page = served.tab(manager).open("/approvals")
        page.locator("textarea").nth(1).fill("no quotes")  # of a list
        press(page, "Approve")
        page.get_by_text("A string needs quotes").wait_for()
        page.get_by_role("button", name="Go back").click()
        page.locator("textarea").first.wait_for()
        assert len(Approvals(manager.store).pending()) == 1


@pytest.mark.slow
def test_acting_with_a_preview_and_a_confirmation(served: Served, example: Place) -> None:
    with opened(example.store) as manager:
        tab = served.tab(manager)
        page = tab.open(f"/effects?key={KEY}")
        page.locator("textarea").first.fill("2.5")
        press(page, "Approve")
        page.get_by_text("approved", exact=True).wait_for()
        page = tab.open(f"/effects?key={KEY}")
        press(page, "It did not happen")
        page.get_by_text("failed", exact=True).wait_for()

        page = tab.open(f"/rollback?id={KEY}@2")
        press(page, "Preview")
        page.get_by_text("Cannot be undone from here").wait_for()
        press(page, "Roll back")
        page.get_by_role("heading", name="Refused").wait_for()
        page.get_by_role("link", name="New preview").click()
        press(page, "Preview")
        page.get_by_label("roll back although").check()
        press(page, "Roll back")
        page.get_by_role("heading", name="Rolled back").wait_for()
        assert (example.repo / "app" / "auth.py").read_text() == AUTH

        page = tab.open(f"/fork?id={KEY}@8")
        page.get_by_label("Name of the fork").fill("by hand")
        press(page, "Preview")
        press(page, "Fork")
        page.wait_for_url("**/timeline?key=by%20hand")
        assert "by hand" in manager.list_keys()

        page = tab.open(f"/export?key={KEY}")
        with page.expect_download() as download:
            press(page, "Download the archive")
        assert download.value.suggested_filename == f"{KEY}.ckpt"


@pytest.mark.slow
def test_search_results_come_in(served: Served, manager: CheckpointManager) -> None:
    page = served.tab(manager).open(f"/timeline?key={KEY}")
    page.keyboard.press("/")
    page.keyboard.type("half a day")
    page.keyboard.press("Enter")
    page.get_by_text("Search complete.").wait_for()
    page.get_by_role("link", name="README.md:3").click()
    page.get_by_text("Signs people in, for half a day.").wait_for()


@pytest.mark.slow
def test_hostile_content_does_nothing(served: Served, hostile_store: Path) -> None:
    with opened(hostile_store) as manager:
        tab = served.tab(manager)
        key, session = quote(HOSTILE, safe=""), quote(SESSION, safe="")
        for path in (
            "/",
            "/approvals",
            f"/timeline?key={key}",
            f"/checkpoint?id={key}@1",
            f"/checkpoint?id={key}&part=agent",
            f"/checkpoint?id={key}&part=workspace",
            f"/checkpoint?id={key}&part=workspace&path=page.html",
            f"/diff?a={key}@1&b={key}",
            f"/search?key={key}&q=%3Cscript%3E",
            f"/effects?key={session}",
            f"/checkpoint?id={session}&part=tasks",
            f"/timeline?key={session}",
            "/checkpoint?id=%3Cscript%3Ewindow.owned%3D1%3C%2Fscript%3E",
        ):
            page = tab.open(path)
            page.wait_for_load_state("load")
            page.wait_for_timeout(150)
            assert page.evaluate("window.owned === undefined"), path
            assert page.title() != "owned"
            assert page.locator("main script, main img, main svg[onload]").count() == 0
        page.get_by_role("alert").get_by_text("<script>window.owned=1</script>").wait_for()


@pytest.mark.slow
def test_ten_thousand_checkpoints(served: Served) -> None:
    with CheckpointManager() as manager:
        make_long(manager)
        tab = served.tab(manager)
        page = tab.open("/timeline?key=long-run")
        page.locator('.row[data-row="10389"]').wait_for()
        # By the overview, to the middle; and by scrolling, to the very first.
        page.locator("#overview a").nth(80).click(force=True)
        page.locator('.row[data-row="5250"]').wait_for()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.locator('.row[data-row="0"]').wait_for()
        assert page.locator(".row").count() <= 400
        manager.save("long-run", {"step": -1}, label="one more on top")
        page.evaluate("scrollTo(0, 0)")
        page.get_by_text("one more on top").wait_for()
        assert page.locator(".row").count() <= 600


def test_a_small_screen_shows_times_and_forks(served: Served) -> None:
    with CheckpointManager() as manager:
        with Session("main", store=manager) as session, session.fork("try-a") as branch:
            branch.save(label="a step with a long label that does not fit on a small screen at all")
        tab = served.tab(manager, viewport={"width": 400, "height": 800})
        page = tab.open("/timeline?key=main")
        page.wait_for_selector(".row")
        assert page.locator(".row time:visible").count() == page.locator(".row").count()
        chips = page.locator(".row .chip.of")
        assert chips.count() >= 2
        for chip in chips.all():
            found = chip.evaluate(
                "one => [one.scrollWidth <= one.clientWidth + 1, getComputedStyle(one).color]"
            )
            assert (found[0], found[1] != "rgba(0, 0, 0, 0)") == (True, True)


@pytest.mark.slow
def test_a_coding_agent_is_rewound_from_the_page(served: Served, tmp_path: Path) -> None:
    make_agent_work(tmp_path / "store", tmp_path / "project")
    with opened(tmp_path / "store") as manager:
        page = served.tab(manager).page
        page.get_by_role("link", name=AGENT, exact=True).click()
        page.get_by_text("Totals like 19.99").click()
        page.get_by_role("link", name="Bash cat shop/prices.py").click()
        page.wait_for_url("**/step?**")
        page.get_by_role("link", name="Rewind to after this call…").click()
        page.get_by_label("only changes of this session").check()
        press(page, "Preview")
        page.get_by_text("outside of this session's calls").wait_for()
        assert (tmp_path / "project" / "CHANGELOG.md").exists()
        press(page, "Rewind")
        page.get_by_text("Rewound to @3").wait_for()
        assert not (tmp_path / "project" / "CHANGELOG.md").exists()
        assert (tmp_path / "project" / "README.md").exists()  # of the other session
        page.get_by_role("link", name="Undo…").click()
        press(page, "Preview")
        press(page, "Rewind")
        page.get_by_text("Show the timeline").click()
        assert (tmp_path / "project" / "CHANGELOG.md").exists()
        page.locator(".live.on").wait_for()


@pytest.mark.slow
def test_the_prompts_of_an_agent_follow_it(served: Served, tmp_path: Path) -> None:
    make_agent_work(tmp_path / "store", tmp_path / "project")
    with opened(tmp_path / "store") as manager:
        tab = served.tab(manager)
        page = tab.open(f"/timeline?key={quote(AGENT, safe='')}")
        page.locator(".live.on").wait_for()
        page.get_by_text("Totals like 19.99").click()
        work = AgentWork(tmp_path / "store", tmp_path / "project")
        work.prompt("One more thing.")
        page.get_by_text("One more thing.").wait_for()
        page.get_by_text("Edit shop/prices.py").wait_for()  # still open
        rows = tab.open(f"/timeline?key={quote(AGENT, safe='')}&view=all")
        rows.locator(".live.on").wait_for()
        given = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "toolu_x"}
        work.line("assistant", "I call.")
        work.event("PreToolUse", **given)
        rows.get_by_text("before Bash make").wait_for()
        (work.place / "made").write_text("x")
        work.event("PostToolUse", **given)
        rows.locator(".label", has_text="before Bash make").wait_for(state="detached")
        rows.locator(".label", has_text="Bash make").wait_for()
        work.close()


@pytest.mark.slow
def test_pages_of_an_agent_on_a_small_screen(served: Served, tmp_path: Path) -> None:
    make_agent_work(tmp_path / "store", tmp_path / "project")
    with opened(tmp_path / "store") as manager:
        tab = served.tab(manager, viewport={"width": 400, "height": 800})
        key = quote(AGENT, safe="")
        for path in (
            f"/timeline?key={key}",
            f"/timeline?key={key}&view=all",
            f"/step?id={key}@5",
            f"/checkpoint?id={key}",
            f"/rewind?id={key}@3",
            f"/restore?id={key}@3",
            f"/search?key={key}&q=round",
        ):
            page = tab.open(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        page.locator("mark").first.wait_for()
