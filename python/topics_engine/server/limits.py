"""Limits on a connection: timeouts, and the number of open requests."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..asgi.limiter import ByteBudget
from ..asgi.messages import HttpError
from ..asgi.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts in seconds, the open requests of one HTTP/2 connection, and the bytes of all
    connections that are unsent or being received.
    """

    header: float = 30.0
    idle: float = 75.0
    stall: float = 30.0
    body: float = 30.0
    streams: int = 100
    unsent: _core.UnsentBytes = field(default_factory=_core.UnsentBytes)
    receiving: ByteBudget = field(default_factory=lambda: ByteBudget("max_receiving_bytes", 0))

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits of these settings."""
        return cls(
            settings.header_timeout_ms / 1000,
            settings.idle_timeout_ms / 1000,
            settings.stall_timeout_ms / 1000,
            settings.body_timeout_ms / 1000,
            max(1, settings.max_streams_per_connection),
        )


def headers_too_slow(seconds: float) -> HttpError:
    """The error of headers that did not arrive in time."""
    message = f"the headers did not arrive within {seconds:g} s"
    return HttpError(408, "request_timeout", message)


CLOSE_LINGER = 1.0
"""Seconds that a closed connection waits for the client's close_notify over TLS."""


MIN_BYTES_PER_SECOND = 8 << 10
"""The lowest average rate at which a client must read. TCP_USER_TIMEOUT alone would let a client
that reads single bytes hold a response for days."""


ROOM_SECONDS = 5.0
"""How often the progress of a client is checked that has not read what was sent to it."""

ROOM_BYTES = int(ROOM_SECONDS) * (64 << 10)
"""Bytes that it must have read since, when there is no room for other answers."""


def set_user_timeout(sock: Any, seconds: float) -> None:
    """Sets TCP_USER_TIMEOUT on a socket, or on a listener for the sockets that it accepts.

    The kernel ends the connection of a client that acknowledges nothing for so long. The kernel
    sees every acknowledged byte; a transport sees progress only in large steps, and over TLS only
    unencrypted bytes. Only Linux has the option; elsewhere the transport's view decides.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(seconds * 1000)))


MAX_NOTSENT_BYTES = 128 << 10
"""Bytes that the kernel takes of a connection before it sends them."""


def limit_notsent(sock: socket.socket) -> None:
    """Sets TCP_NOTSENT_LOWAT on a listener, for the sockets that it accepts.

    What a client does not read waits in the engine then, and not in the send buffer of its
    socket: megabytes for each stream with a backlog. Without the option the send buffer decides.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_NOTSENT_BYTES)


def unacked_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the client has not acknowledged, as far as transport and kernel know them; 0 when
    the connection is lost.
    """
    sock = transport.get_extra_info("socket")
    # A TLS transport of uvloop loses its socket one loop tick before `connection_lost` is called.
    if sock is None or sock.fileno() < 0:
        return 0
    queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


def transfer_seconds(size: int) -> float:
    """Seconds that a client may take for `size` bytes, in addition to the stall timeout."""
    return size / MIN_BYTES_PER_SECOND


class WriteTimeout:
    """Ends the connection of a client that does not read."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        seconds: float,
        *,
        unsent: _core.UnsentBytes | None = None,
        abort: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._abort = abort or transport.abort
        self._seconds = self._default_seconds = seconds
        self._unsent = unsent or _core.UnsentBytes()
        self._timer: asyncio.TimerHandle | None = None
        # Set while the transport's buffer is full.
        self._full: asyncio.TimerHandle | None = None
        self._room: asyncio.TimerHandle | None = None
        # The bytes that are counted as unsent, and those that were left at the last check.
        self._held = self._left = 0
        self._close_by = 0.0
        self._over = False

    def set_stall_factor(self, times: float) -> None:
        """Sets the stall timeout, as a multiple of the default."""
        seconds = self._default_seconds * times
        if seconds != self._seconds and not self._transport.is_closing():
            self._seconds = seconds
            set_user_timeout(self._transport.get_extra_info("socket"), seconds)

    def pause_writing(self) -> None:
        """The transport's buffer is full: ends the connection unless it drains in time. Progress
        does not renew the time.
        """
        if self._full is None and not self._over:
            size = self._transport.get_write_buffer_size()
            self._full = self._loop.call_later(self._seconds + transfer_seconds(size), self._end)
            self._unsent.take(size)
            self._held = self._left = size
            self._room = self._loop.call_later(ROOM_SECONDS, self._make_room)

    def resume_writing(self) -> None:
        """The buffer has drained."""
        if self._full is not None:
            self._full.cancel()
            self._full = None
        if self._room is not None:
            self._room.cancel()
            self._room = None
        self._unsent.give(self._held)
        self._held = 0

    def _make_room(self) -> None:
        """Ends the connection of a client that reads too slowly while there is no room for other
        answers.
        """
        left = self._transport.get_write_buffer_size()
        if self._unsent.full and self._left - left < ROOM_BYTES:
            self._end()
        else:
            self._left = left
            self._room = self._loop.call_later(ROOM_SECONDS, self._make_room)

    def _end(self) -> None:
        # Before the transport reports the loss: others may send meanwhile.
        self.resume_writing()
        self._abort()

    def transport_closing(self) -> None:
        """The transport is closing: aborts it once the client has everything, or when its time is
        over.

        Over TLS, the transport would wait for the client's close_notify.
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
            self._abort()

    def connection_lost(self) -> None:
        """Cancels the timers: the descriptor may belong to another connection now."""
        self._over = True
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
