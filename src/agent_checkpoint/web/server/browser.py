"""Opening the page in a browser. Owns that nobody else learns the token by that.

What a program is started with can be read by everybody on a machine. So the browser is started with
the name of a file that only its owner can read, and the address is in there.
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
"""When the file goes: a browser has read it by then."""


@contextmanager
def in_browser(address: str) -> Iterator[None]:
    """Have a browser open an address. What it was told by is gone at the end, or before."""
    with tempfile.TemporaryDirectory(prefix="agent-checkpoint-") as folder:  # only for its owner
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
