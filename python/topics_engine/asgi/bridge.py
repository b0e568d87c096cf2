"""The seam between the native core and the event loop.

A verb is either answered inside the call or later, by a thread of the engine: then its answer comes
through one eventfd and becomes the result of a future. Writes are staged as they come; one flush at
the end of a loop tick writes all of them as one group.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

Answer = tuple[int, bytes]


class CoreBridge(Protocol):
    """What the loop needs of `_core.Bridge`."""

    @property
    def fd(self) -> int: ...
    def drain(self) -> list[tuple[int, int, bytes]]: ...


class CoreHttp(Protocol):
    """What the loop needs of `_core.Http`."""

    def call(
        self, route: str, name: str, query: bytes, body: bytes, key: bytes, token: int
    ) -> Answer | None: ...
    def cancel(self, token: int) -> None: ...
    def flush(self) -> None: ...


class LoopBridge:
    """Calls verbs on one event loop and hands their answers to whoever awaits them."""

    def __init__(self, http: CoreHttp, bridge: CoreBridge) -> None:
        self._http = http
        self._bridge = bridge
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._token = 0
        self._flush_due = False
        self._loop.add_reader(bridge.fd, self._drain)

    @property
    def pending(self) -> int:
        """How many answers are still to come."""
        return len(self._pending)

    def call(
        self, route: str, name: str, query: bytes, body: bytes, key: bytes
    ) -> Answer | tuple[int, asyncio.Future[Answer]]:
        """The answer, or a token and the future of it."""
        self._token = token = self._token + 1
        answer = self._http.call(route, name, query, body, key, token)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        if answer is not None:
            return answer
        future = self._loop.create_future()
        self._pending[token] = future
        return token, future

    def give_up(self, token: int) -> None:
        """Nobody waits for this answer any more; its slot in the engine is freed."""
        if self._pending.pop(token, None) is not None:
            self._http.cancel(token)

    def _flush(self) -> None:
        self._flush_due = False
        self._http.flush()
        # What needed no sync is complete now; the eventfd would say so one tick later.
        self._drain()

    def _drain(self) -> None:
        for token, status, body in self._bridge.drain():
            future = self._pending.pop(token, None)
            if future is not None and not future.done():
                future.set_result((status, body))

    def close(self) -> None:
        """Stops listening. Whoever still waits is told that the server is going."""
        self._loop.remove_reader(self._bridge.fd)
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()
