"""A watch: an async iterator that follows topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..client import watch as plain
from ..client.backend import RemoteBackend
from ..client.values import Gap
from ..client.watch import Event, seconds_left
from .bridge import current_bridge
from .handle import AsyncHandle, Closing, runner_of

if TYPE_CHECKING:
    from .. import _core


class Watch(AsyncHandle[plain.Watch], Closing, AsyncIterator[Event]):
    """What is written to topics, as it is written; each topic in the order of its seqs.

    One task iterates; `close` from any of its loop, which ends the iteration. A cancelled wait
    takes nothing: the next one goes on. Use it in an `async with` block, or `close` it.
    """

    __slots__ = ("_busy",)

    def __init__(self, watch: plain.Watch) -> None:
        super().__init__(watch)
        # The fetch before did not wait: other tasks have not had a turn.
        self._busy = False

    @property
    def gaps(self) -> list[Gap]:
        """The gaps met so far."""
        return self._sync.gaps

    @property
    def cursor(self) -> dict[str, int]:
        """What to store: `db.watch(cursor)` goes on behind the items taken so far."""
        return self._sync.cursor

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        await self._await_items(None)
        if self._sync._closed:
            raise StopAsyncIteration
        return self._sync._take()

    async def next(self, wait: float | None = None) -> Event | None:
        """The next item; `None` when `wait` seconds have passed, or the watch is closed."""
        await self._await_items(wait)
        return self._sync._take() if self._sync._items and not self._sync._closed else None

    async def batches(self, wait: float | None = None) -> AsyncIterator[list[Event]]:
        """The same, what came together in a list; with `wait`, an empty list when nothing came in
        so many seconds.
        """
        while not self._sync._closed:
            await self._await_items(wait)
            if not self._sync._closed:
                yield self._sync._take_all()

    async def _await_items(self, wait: float | None) -> None:
        deadline = None if wait is None else time.monotonic() + wait
        while not self._sync._items and not self._sync._closed:
            if not await self._fetch(seconds_left(deadline)) and seconds_left(deadline) == 0.0:
                return

    async def _fetch(self, wait: float | None) -> bool:
        """Waits for an event; false when there is none yet. What was told is kept before the next
        `await`: a cancellation loses nothing.
        """
        if self._busy:
            await asyncio.sleep(0)
        if isinstance(self._sync._source, RemoteBackend):
            return await runner_of(self._sync._source).run(self._sync._fetch, wait)
        native = cast("_core.Watch", self._sync._source)
        deadline = None if wait is None else time.monotonic() + wait
        bridge, self._busy = current_bridge(), True
        while True:
            token = bridge.token()
            if self._sync._hear(partial(native.poll, bridge.calls, token)):
                return True
            if self._sync._closed or seconds_left(deadline) == 0.0:
                return False
            self._busy = False
            await bridge.woken(token, seconds_left(deadline))

    async def close(self) -> None:
        """Ends the iteration. Idempotent."""
        if isinstance(self._sync._source, RemoteBackend):
            await runner_of(self._sync._source).run(self._sync.close)
        else:
            self._sync.close()

    async def __aenter__(self) -> Watch:
        # A watch of a server begins here, or at its first wait; of this process it has begun.
        if isinstance(self._sync._source, RemoteBackend):
            source: Any = self._sync._source
            await runner_of(source).run(source.begin)
        return self
