"""Server-sent events, and the stream that they come by."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .transport import Stream, closed

# Heartbeats that may fail to come before a stream is dead.
SILENT_PERIODS = 2.5


class Event(NamedTuple):
    """One event."""

    kind: str
    data: bytes
    id: str | None


class Parser:
    """Bytes in, events out. What is not whole yet waits for the rest."""

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
    """The stream of the moment: opened when there is none, dropped when it ends or falls silent."""

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
        """What came and was not taken."""
        return self._events

    def wait(self, until: float | None) -> bool:
        """Waits for an event; false when there is none at that time. Opens the stream if need be,
        which may raise what a refusal says.
        """
        while not self._events:
            if self._stream is None:
                self._parser = Parser()
                self._stream = self._open(self._silence_limit)
                self._heard = time.monotonic()
            if self._closed:
                # Also where it was closed while the stream was being opened.
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
        """Ends the stream, and whoever waits. From anywhere."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Ends the stream; the next wait opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
