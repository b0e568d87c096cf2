"""What a connection may take: of time, and of requests at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..asgi.messages import HttpError
from ..asgi.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a client has, and how many requests one HTTP/2 connection has open."""

    header: float = 30.0
    idle: float = 75.0
    stall: float = 30.0
    streams: int = 100

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """As the settings say."""
        return cls(
            settings.header_timeout_ms / 1000,
            settings.idle_timeout_ms / 1000,
            settings.stall_timeout_ms / 1000,
            max(1, settings.max_streams_per_connection),
        )


def headers_too_slow(seconds: float) -> HttpError:
    """The headers did not arrive in time."""
    message = f"the headers did not arrive within {seconds:g} s"
    return HttpError(408, "request_timeout", message)


class Outflow:
    """Ends a connection whose client takes nothing of what is sent to it.

    A transport that closes waits for its client to take the rest, without end if it never does.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0

    def watch(self) -> None:
        """Something waits to be taken, or the transport is closing."""
        waiting = self._transport.get_write_buffer_size()
        if self._timer is None and waiting:
            self._waiting = waiting
            self._timer = self._loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        waiting = self._transport.get_write_buffer_size()
        if waiting and waiting >= self._waiting:
            self._transport.abort()
        else:
            self.watch()

    def over(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
