"""Connections that say nothing. Owns that they keep nobody out.

Everybody who reaches the port can connect, and needs no token to say nothing. So the beginning of a
request must be there a few seconds after it was begun, and its body must not pause for longer than
that. Of the connections that wait for either only some are kept.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 5.0
"""How long the beginning of a request may take, and a pause in its body."""
MOST_SILENT = 100


class Connection(H11Protocol):
    """A connection that is closed if no request comes."""

    _timer: asyncio.TimerHandle | None = None

    @property
    def _silent(self) -> dict[Connection, None]:
        """Those of this server that wait for a request, the oldest first."""
        found: dict[Connection, None] = self.server_state.__dict__.setdefault("silent", {})
        return found

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take some bytes, which may make a request."""
        super().data_received(data)
        if self.cycle is not None and self.cycle.more_body:
            self._forget()  # its body goes on: it waits anew
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget()
        super().connection_lost(exc)

    def _wait(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._forget()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(SECONDS, self._end)
            self._silent[self] = None
            if len(self._silent) > MOST_SILENT:
                next(iter(self._silent))._end()

    def _end(self) -> None:
        self._forget()
        self.transport.close()

    def _forget(self) -> None:
        self._silent.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
