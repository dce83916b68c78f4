"""Timeouts and limits for idle connections, so that they cannot block the server.

A client without a token can connect and send nothing. So the head of a request must arrive within a
few seconds, and pauses in its body must not be longer. The number of waiting connections is
limited.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 5.0
"""Timeout in seconds for the head of a request, and for a pause in its body."""
MAX_IDLE = 100


class Connection(H11Protocol):
    """A connection that is closed if it stays idle."""

    _timer: asyncio.TimerHandle | None = None

    @property
    def _idle(self) -> dict[Connection, None]:
        """Idle connections of this server, oldest first."""
        found: dict[Connection, None] = self.server_state.__dict__.setdefault("idle", {})
        return found

    def connection_made(self, transport: Any) -> None:
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        """Forward received bytes, and stop or restart the timeout."""
        super().data_received(data)
        if self.cycle is not None and self.cycle.more_body:
            self._stop_timer()  # the body continues: restart the timeout
        self._update_timer()

    def on_response_complete(self) -> None:
        """Start the timeout for the next request."""
        super().on_response_complete()
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_timer()
        super().connection_lost(exc)

    def _update_timer(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(SECONDS, self._close)
            self._idle[self] = None
            if len(self._idle) > MAX_IDLE:
                next(iter(self._idle))._close()

    def _close(self) -> None:
        self._stop_timer()
        self.transport.close()

    def _stop_timer(self) -> None:
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
