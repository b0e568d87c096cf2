"""A client of event streams that sees every line."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, NamedTuple

from .http_client import connection
from .opened_clients import register
from .waiting import DEADLINE


class Event(NamedTuple):
    id: str
    kind: str
    data: Any


class Events:
    """One open stream. Iterating waits for the next event; comments are collected separately."""

    def __init__(
        self, port: int, path: str, headers: dict[str, str] | None = None, timeout: float = DEADLINE
    ) -> None:
        self._connection = connection(port, timeout)
        self._seconds = timeout
        # The fields of an event that is not complete yet.
        self._event = Event("", "", None)
        self._lines: list[str] = []
        try:
            self._connection.request("GET", path, headers=headers or {})
            self._sock = self._connection.sock
            self.response = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self.status = self.response.status
        self.comments: list[str] = []
        self.retry = 0
        self.last_id = ""
        self.body = b"" if self.status == 200 else self.response.read()
        register(self)

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        deadline = time.monotonic() + self._seconds
        while (event := self.read()) is None:
            # Heartbeats are bytes, so the timeout of the socket does not end the wait.
            if time.monotonic() > deadline:
                raise TimeoutError(f"no event within {self._seconds:g} s, only comments")
        return event

    def read(self) -> Event | None:
        """The next event, or `None` after a comment: a heartbeat comes when no event does."""
        while True:
            line = self.response.readline().decode()
            # A closed connection can leave an incomplete line.
            if not line.endswith("\n"):
                raise StopIteration
            line = line.rstrip("\n")
            name, _, value = line.partition(": ")
            if line.startswith(":"):
                self.comments.append(line)
                return None
            event = self._event
            if name == "retry":
                self.retry = int(value)
            elif name == "id":
                self._event = event._replace(id=value)
            elif name == "event":
                self._event = event._replace(kind=value)
            elif name == "data":
                self._lines.append(value)
            elif not line and event.kind:
                event = event._replace(data=json.loads("\n".join(self._lines)))
                self._event, self._lines = Event("", "", None), []
                self.last_id = event.id or self.last_id
                return event

    def until(self, kind: str) -> Event:
        return next(event for event in self if event.kind == kind)

    def values(self, count: int) -> list[Any]:
        """Payloads of this number of records."""
        got: list[Any] = []
        while len(got) < count:
            event = next(self)
            assert event.kind in ("record", "caught-up"), event
            if event.kind == "record":
                got += [record["data"] for record in event.data["records"]]
        return got

    def kill(self) -> None:
        """Disconnects without closing; bytes in flight are lost."""
        sock = self._sock
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
