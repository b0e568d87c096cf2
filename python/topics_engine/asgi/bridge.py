"""The seam between the native core and the event loop.

A verb is either answered inside the call or later, by a thread of the engine: then its answer comes
through one eventfd and becomes the result of a future. Writes are staged as they come; one flush at
the end of a loop tick writes all of them as one group.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from .messages import HttpError

Answer = tuple[int, bytes]
Completion = tuple[int, int, bytes]


class CoreBridge(Protocol):
    """What the loop needs of `_core.Bridge`."""

    @property
    def fd(self) -> int: ...
    def drain(self) -> list[Completion]: ...


class CoreHttp(Protocol):
    """What the loop needs of `_core.Http`."""

    @property
    def bridge(self) -> CoreBridge: ...
    @property
    def staged(self) -> bool: ...
    def call(
        self,
        route: str,
        name: str,
        query: bytes,
        body: bytes,
        flags: int,
        token: int,
        key: bytes = b"",
    ) -> Answer | None: ...
    def flush(self) -> None: ...
    def cancel(self, token: int) -> None: ...
    def set_ready(self, ready: bool) -> None: ...
    def close(self) -> None: ...


class LoopBridge:
    """Calls verbs on one event loop and hands their answers to whoever awaits them."""

    def __init__(self, http: CoreHttp) -> None:
        self._http = http
        self._bridge = http.bridge
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._token = 0
        self._flush_due = False
        self._loop.add_reader(self._bridge.fd, self._drain)

    @property
    def pending(self) -> int:
        """How many answers are still to come."""
        return len(self._pending)

    def call(
        self, route: str, name: str, query: bytes, body: bytes, flags: int, key: bytes
    ) -> tuple[int, Answer | None]:
        """The call's token, and the answer if it is there already."""
        self._token = token = self._token + 1
        answer = self._http.call(route, name, query, body, flags, token, key)
        if answer is None:
            self._pending[token] = self._loop.create_future()
            if self._http.staged:
                self.flush_soon()
        return token, answer

    def flush_soon(self) -> None:
        """Has what is staged led at the end of the loop's tick."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def answer_of(self, token: int) -> asyncio.Future[Answer]:
        """The future of an answer that was not there at once."""
        return self._pending[token]

    def give_up(self, token: int) -> None:
        """Nobody waits for this answer any more; its slot in the engine is freed."""
        if self._pending.pop(token, None) is not None:
            self._http.cancel(token)

    def _flush(self) -> None:
        self._flush_due = False
        self._http.flush()
        # What it completed is there already; the eventfd says nothing of it.
        self._drain()

    def _drain(self) -> None:
        for token, status, body in self._bridge.drain():
            future = self._pending.pop(token, None)
            if future is not None and not future.done():
                future.set_result((status, body))

    def end_waits(self) -> None:
        """Whoever waits for records gets what there is; staged writes are led to their end."""
        self._http.set_ready(False)
        self._http.flush()
        self._http.close()
        self._drain()

    def close(self) -> None:
        """Stops listening. Whoever still waits is told; what became of a write is not known."""
        self._loop.remove_reader(self._bridge.fd)
        for future in self._pending.values():
            if not future.done():
                gone = HttpError(503, "shutting_down", "the server went down meanwhile")
                future.set_exception(gone)
        self._pending.clear()
