"""A real browser for tests, which records errors, dialogs and requests to other servers."""

import shutil
import threading
from typing import Any, Optional

from agent_checkpoint import CheckpointManager
from agent_checkpoint.web.server.server import listen

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> Optional[str]:
    """Path of the browser; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def press(page: Any, name: str) -> None:
    """Press a button that changes something, once the page takes it."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(700)
    page.get_by_role("button", name=name).click()


class Tab:
    """A page in a browser that notes every error, dialog and request that goes elsewhere."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.origin = address.partition("?")[0].rpartition("/")[0]
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append("dialog"))
        self.page.on("request", self._asked)
        self.page.goto(address)

    def open(self, path: str) -> Any:
        self.page.goto(self.origin + path)
        return self.page

    def close(self) -> None:
        self.context.close()
        assert self.troubles == []

    def _heard(self, message: Any) -> None:
        # An answer that is no success is told in the console as well, and wanted by some tests.
        if message.type in ("error", "warning") and "the server responded" not in message.text:
            self.troubles.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:", "about:")):
            self.troubles.append(f"asked elsewhere: {request.url}")


class Served:
    """Servers of one test, and the tabs that look at them."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self._ends: list[Any] = []

    def serve(self, manager: CheckpointManager) -> str:
        server = listen(manager, port=0)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        self._ends.append(lambda: (server.stop(), thread.join(20)))
        return server.address

    def tab(self, manager: CheckpointManager, **options: Any) -> Tab:
        tab = Tab(self.browser, self.serve(manager), **options)
        self._ends.append(tab.close)
        return tab

    def end(self) -> None:
        for end in reversed(self._ends):
            end()
