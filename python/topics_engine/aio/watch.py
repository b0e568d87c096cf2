"""A watch: an async iterator that follows topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

from ..client import arguments
from ..client import watch as plain
from ..client.backend import RemoteBackend
from ..client.values import Gap
from ..client.watch import T, seconds_left
from .bridge import current_bridge
from .handle import AsyncHandle, Closing, runner_of

if TYPE_CHECKING:
    from .. import _core
    from ..client.arguments import Duration


class Watch(AsyncHandle[plain.Watch[Any]], Closing, AsyncIterator[T], Generic[T]):
    """New records of topics, each topic in the order of its seqs. One task iterates.

    A cancelled wait loses nothing: the next one continues. Use the watch in an `async with` block,
    or `await` its `close`.
    """

    __slots__ = ("_busy",)

    def __init__(self, watch: plain.Watch[T]) -> None:
        super().__init__(watch)
        # Whether the last fetch returned without waiting; then the next one yields to the loop.
        self._busy = False

    @property
    def gaps(self) -> list[Gap]:
        """The gaps found so far."""
        return self._sync.gaps

    @property
    def cursor(self) -> dict[str, int]:
        """The cursors to store: `db.watch(cursor)` continues behind the items taken so far."""
        return self._sync.cursor

    def __aiter__(self) -> Watch[T]:
        return self

    async def __anext__(self) -> T:
        await self._await_items(None)
        if self._sync._closed:
            raise StopAsyncIteration
        return cast("T", self._sync._take())

    async def next(self, wait: Duration | None = None) -> T | None:
        """Returns the next item; see `topics_engine.Watch.next`."""
        await self._await_items(arguments.optional_seconds("wait", wait))
        has_item = self._sync._items and not self._sync._closed
        return cast("T", self._sync._take()) if has_item else None

    async def batches(self, wait: Duration | None = None) -> AsyncIterator[list[T]]:
        """Iterates over lists of items that arrived together; see `topics_engine.Watch.batches`."""
        seconds = arguments.optional_seconds("wait", wait)
        while not self._sync._closed:
            await self._await_items(seconds)
            if not self._sync._closed:
                yield self._sync._take_all()

    async def _await_items(self, wait: float | None) -> None:
        deadline = None if wait is None else time.monotonic() + wait
        while not self._sync._items and not self._sync._closed:
            if not await self._fetch(seconds_left(deadline)) and seconds_left(deadline) == 0.0:
                return

    async def _fetch(self, wait: float | None) -> bool:
        """Waits for an event; returns False if none has come. The event is stored before the next
        `await`, so a cancellation loses nothing.
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

    async def __aenter__(self) -> Watch[T]:
        # A remote watch begins here or at its first wait; an embedded one has begun.
        if isinstance(self._sync._source, RemoteBackend):
            source: Any = self._sync._source
            await runner_of(source).run(source.begin)
        return self
