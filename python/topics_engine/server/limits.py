"""What a connection may take: of time, and of requests at once."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from dataclasses import dataclass
from typing import Any

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


CLOSE_LINGER = 1.0
"""How long a closed connection waits for its client to say goodbye, as TLS asks for."""


MIN_BYTES_PER_SECOND = 8 << 10
"""What a client takes at least, on average, of what waits for it. The kernel sees only whether it
takes anything; one byte now and then would hold an answer for days."""


def set_user_timeout(sock: Any, seconds: float) -> None:
    """A client of this socket, or of those that it accepts, may take nothing for so long.

    The kernel ends the connection. It sees each byte that is taken; a transport sees some when a
    good part of the kernel's buffer has been, and over TLS only what has not been encrypted yet.
    Only Linux has such a limit: elsewhere, which is for development, the transport's view decides.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(seconds * 1000)))


def unacked_bytes(transport: asyncio.Transport) -> int:
    """Bytes that a client has not taken, of those that can be seen: 0 is none."""
    sock = transport.get_extra_info("socket")
    queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


def transfer_seconds(size: int) -> float:
    """Seconds that a client has for so many bytes, beyond those for which it may take nothing."""
    return size / MIN_BYTES_PER_SECOND


class WriteTimeout:
    """What is sent to a client, and when it is given up."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = self._default_seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        # Set while the transport's buffer is full.
        self._full: asyncio.TimerHandle | None = None
        self._close_by = 0.0
        self._over = False

    def set_stall_factor(self, times: float) -> None:
        """The client may take nothing for so many times as long as usual."""
        seconds = self._default_seconds * times
        if seconds != self._seconds and not self._transport.is_closing():
            self._seconds = seconds
            set_user_timeout(self._transport.get_extra_info("socket"), seconds)

    def pause_writing(self) -> None:
        """The transport's buffer is full. The connection ends unless it drains in time; what the
        client takes meanwhile does not renew that time.
        """
        if self._full is None and not self._over:
            size = self._transport.get_write_buffer_size()
            self._full = self._loop.call_later(
                self._seconds + transfer_seconds(size), self._transport.abort
            )

    def resume_writing(self) -> None:
        """The buffer has drained."""
        if self._full is not None:
            self._full.cancel()
            self._full = None

    def transport_closing(self) -> None:
        """The transport closes when its client has taken the rest, and over TLS said goodbye: who
        has it all and says nothing is not waited for.
        """
        if self._timer is None and not self._over and self._transport.is_closing():
            rest = transfer_seconds(unacked_bytes(self._transport))
            self._close_by = self._loop.time() + self._seconds + rest
            self._schedule_check()

    def _schedule_check(self) -> None:
        self._timer = self._loop.call_later(CLOSE_LINGER, self._check)

    def _check(self) -> None:
        self._timer = None
        if unacked_bytes(self._transport) and self._loop.time() < self._close_by:
            self._schedule_check()
        else:
            self._transport.abort()

    def connection_lost(self) -> None:
        """The connection is gone, and its descriptor somebody else's."""
        self._over = True
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
