"""Connections of clients that send nothing: headers have to arrive in time (bodies: see `Guard`)."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # from the opening of a connection, or from the end of a response


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which alone would wait for the end of headers for ever."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _watch_headers(self) -> None:
        """Start the timer where headers are missing; further parts of them do not restart it."""
        is_waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if is_waiting and self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self._close_silent)
        elif not is_waiting:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _close_silent(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()
