"""Server-sent events, and the connection that delivers them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .transport import Stream, closed

# Heartbeat periods of silence after which a stream counts as dead.
SILENT_PERIODS = 2.5


class Event(NamedTuple):
    """One event."""

    kind: str
    data: bytes
    id: str | None


class Parser:
    """Splits bytes into events; keeps an incomplete event for the next piece."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes."""
        *blocks, self._rest = (self._rest + piece).split(b"\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> Event | None:
    kind, data, id_ = "message", [], None
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"event":
                kind = value.decode()
            case b"data":
                data.append(value)
            case b"id":
                id_ = value.decode()
    return Event(kind, b"\n".join(data), id_) if data else None


class SseConnection:
    """The current stream: opened on demand, dropped when it ends or is silent for too long."""

    def __init__(self, open_stream: Callable[[float], Stream], heartbeat: float) -> None:
        self._open = open_stream
        self._silence_limit = heartbeat * SILENT_PERIODS
        self._stream: Stream | None = None
        self._parser = Parser()
        self._heard = 0.0
        self._events: deque[Event] = deque()
        self._closed = False

    @property
    def events(self) -> deque[Event]:
        """Events that were received and not taken."""
        return self._events

    def wait(self, until: float | None) -> bool:
        """Waits for an event; returns False if none has come by `until`.

        Opens the stream if necessary, which raises the error of a refusal.
        """
        while not self._events:
            if self._stream is None:
                self._parser = Parser()
                self._stream = self._open(self._silence_limit)
                self._heard = time.monotonic()
            if self._closed:
                # `close` may have run while the stream was being opened.
                self.drop()
                raise closed()
            now = time.monotonic()
            silent = self._heard + self._silence_limit - now
            left = silent if until is None else min(silent, max(0.0, until - now))
            piece = self._stream.read(max(0.0, left))
            if piece:
                self._heard = time.monotonic()
                self._events.extend(self._parser.feed(piece))
            elif piece is not None or time.monotonic() - self._heard >= self._silence_limit:
                self.drop()
            elif until is not None and time.monotonic() >= until:
                return False
        return True

    def close(self) -> None:
        """Ends the stream and every wait. Callable from any thread."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Ends the stream; the next wait opens another one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
