"""Opens the page in a browser without leaking the token.

Every user of a machine can read the command lines of processes. So the browser is started with the
path of a private file that redirects to the address.
"""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from threading import Timer

_SECONDS = 60.0
"""Seconds until the file is deleted; the browser has read it by then."""


@contextmanager
def open_in_browser(address: str) -> Iterator[None]:
    """Open a URL in the browser, through a private redirect file.

    The file is deleted after 60 seconds, or at the end of the block.
    """
    with tempfile.TemporaryDirectory(prefix="agent-checkpoint-") as folder:  # mode 0700
        path = Path(folder, "open.html")
        page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(address)}">'
        path.touch(0o600)
        path.write_text(f"{page}<title>agent-checkpoint</title>")
        timer = Timer(_SECONDS, path.unlink, kwargs={"missing_ok": True})
        timer.daemon = True
        timer.start()
        try:
            webbrowser.open(path.as_uri())
            yield
        finally:
            timer.cancel()
