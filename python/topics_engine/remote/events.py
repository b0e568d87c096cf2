"""Server-sent events, and the connection that delivers them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from .transport import Stream, closed

# Heartbeat periods of silence after which a stream counts as dead.
SILENT_PERIODS = 2.5

LINE_ENDS = {ord("n"): b"\n", ord("r"): b"\r", ord("b"): b"\r\n"}
"""The letters of the field `line-ends`."""


class Event(NamedTuple):
    """One event."""

    kind: str
    data: bytes
    id: str | None


class Parser:
    """Splits bytes into events; keeps an incomplete event for the next piece.

    The lines of a server end with LF. The field `line-ends` names the line ends of the data if they
    are not all LF, so that the data is what the server had, byte for byte.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes."""
        *blocks, self._rest = (self._rest + piece).split(b"\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> Event | None:
    kind, data, id_, line_ends = "message", [], None, b""
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
            case b"line-ends":
                line_ends = value
    if not data:
        return None
    if len(line_ends) == len(data) - 1:
        ends = map(LINE_ENDS.__getitem__, line_ends)
        return Event(
            kind, data[0] + b"".join(chain.from_iterable(zip(ends, data[1:], strict=True))), id_
        )
    return Event(kind, b"\n".join(data), id_)


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
