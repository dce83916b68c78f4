"""Takes the screenshots for the documentation, of the example store.

    python -m tests.web.pictures docs/images

A second directory also gets screenshots of all pages: light, dark, and on a small screen.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from agent_checkpoint.web.server.server import listen
from tests.web.agent_store import KEY as AGENT_KEY
from tests.web.agent_store import make_agent_work
from tests.web.browsing import Tab, chromium
from tests.web.example_store import KEY, make_example
from tests.web.trajectory_store import KEY as BROKEN
from tests.web.trajectory_store import make_trajectory
from tests.web.visitor import opened

WIDE, SMALL = {"width": 1000, "height": 760}, {"width": 400, "height": 800}
TALL = {"width": 1000, "height": 1350}
AGENT = quote(AGENT_KEY, safe="")
FOR_DOCUMENTS = {
    "timeline": f"/timeline?key={KEY}",
    "checkpoint": f"/checkpoint?id={KEY}@20&part=calls",
    "diff": f"/diff?a={KEY}@8&b={KEY}@20#files",
    "step": f"/step?id={AGENT}@5",
    "bisect": f"/run?key={BROKEN}&number=1",
    "blame": f"/blame?id={BROKEN}&path=prices.py",
    "replay": f"/run?key={BROKEN}&number=2",
}
ALL = {
    "keys": "/",
    "timeline": f"/timeline?key={KEY}",
    "events": f"/timeline?key={KEY}&view=events",
    "messages": f"/checkpoint?id={KEY}",
    "calls": f"/checkpoint?id={KEY}&part=calls",
    "tasks": f"/checkpoint?id={KEY}&part=tasks",
    "state": f"/checkpoint?id={KEY}&part=agent",
    "files": f"/checkpoint?id={KEY}&part=workspace",
    "file": f"/checkpoint?id={KEY}&part=workspace&path=app/auth.py",
    "diff": f"/diff?a={KEY}@8&b={KEY}",
    "diff-files": f"/diff?a={KEY}@8&b={KEY}#files",
    "effects": f"/effects?key={KEY}",
    "rollback": f"/rollback?id={KEY}@2",
    "fork": f"/fork?id={KEY}@8",
    "export": f"/export?key={KEY}",
    "search": f"/search?key={KEY}&q=limit",
    "failed": "/timeline?key=nightly-report",
    "missing": "/checkpoint?id=none",
    "prompts": f"/timeline?key={AGENT}",
    "calls-folded": f"/timeline?key={AGENT}&view=all",
    "step": f"/step?id={AGENT}@5",
    "transcript": f"/checkpoint?id={AGENT}",
    "rewind": f"/rewind?id={AGENT}@3",
    "restore": f"/restore?id={AGENT}@3",
    "runs": f"/runs?key={BROKEN}",
    "bisect": f"/run?key={BROKEN}&number=1",
    "blame": f"/blame?id={BROKEN}&path=prices.py",
    "replay": f"/run?key={BROKEN}&number=2",
    "revert": f"/revert?id={BROKEN}@5",
}


def take(tab: Tab, pages: "dict[str, str]", folder: Path, ending: str = "") -> None:
    for name, path in pages.items():
        page = tab.open(path)
        page.wait_for_timeout(600)
        page.screenshot(path=folder / f"{name}{ending}.png")


def main(documents: Path, everything: "Path | None") -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        os.environ.update(HOME=name, AGENT_CHECKPOINT_HOME=name, XDG_CONFIG_HOME=name)
        make_example(folder / "store", folder / "shop")
        make_agent_work(folder / "store", folder / "project")
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--force-color-profile=srgb"]
        )
        with opened(folder / "store") as manager:
            make_trajectory(manager, folder / "prices")
            server = listen(manager, port=0)
            threading.Thread(target=server.run, daemon=True).start()

            def tab(scheme: str, size: Any) -> Tab:
                return Tab(browser, server.invite(), color_scheme=scheme, viewport=size)

            for name, path in FOR_DOCUMENTS.items():
                size = TALL if name == "timeline" else WIDE
                take(tab("light", size), {name: path}, documents)
            if everything is not None:
                take(tab("light", WIDE), ALL, everything, "-light")
                take(tab("dark", WIDE), ALL, everything, "-dark")
                take(tab("light", SMALL), ALL, everything, "-small")
            browser.close()
            server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
