"""A read: an async iterator that ends at the head of the topic at the first fetch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, cast

from ..client import read as plain
from ..client.read import T
from ..client.values import Gap
from ..errors import InvalidRequest
from .handle import AsyncHandle, Closing, async_method


class Read(AsyncHandle[plain.Read[Any]], Closing, AsyncIterator[T], Generic[T]):
    """The records of a topic from a cursor to the head, or to `to_seq`. One task iterates."""

    __slots__ = ()

    def __init__(self, read: plain.Read[T]) -> None:
        super().__init__(read)

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._sync.topic

    @property
    def gaps(self) -> list[Gap]:
        """The gaps found so far."""
        return self._sync.gaps

    @property
    def misfits(self) -> dict[str, int]:
        """Of the last call with a schema: how many values of each column did not fit."""
        return self._sync.misfits

    @property
    def cursor(self) -> int:
        """The cursor to store: pass it as `after=` to continue behind the items taken so far.

        Raises:
            InvalidRequest: the read did not begin at a seq, and has fetched nothing yet.
        """
        if self._sync._cursor is None and not self._sync._items:
            raise InvalidRequest("this read has not started: call `await read.begin()` first")
        return self._sync._position()

    @property
    def topic_id(self) -> int:
        """The id of the topic, once the read has fetched a page."""
        if self._sync._topic_id is None:
            raise InvalidRequest("this read has not started: call `await read.begin()` first")
        return self._sync._topic_id

    async def begin(self) -> None:
        """Fetches the first page, once."""
        if self._sync._topic_id is None:
            await self._fetch()

    async def _fetch(self) -> None:
        if not self._sync._done:
            with self._sync._until_closed():
                page = await self._runner().run(self._sync._read_page)
                self._sync._took(page)

    def __aiter__(self) -> Read[T]:
        return self

    async def __anext__(self) -> T:
        while not self._sync._items:
            if self._sync._done:
                raise StopAsyncIteration
            await self._fetch()
        if self._sync._closed:
            raise StopAsyncIteration
        return cast("T", self._sync._take())

    async def batches(self) -> AsyncIterator[list[T]]:
        """Iterates over lists of items, one per page."""
        while True:
            while not self._sync._items and not self._sync._done:
                await self._fetch()
            if not self._sync._items or self._sync._closed:
                return
            yield self._sync._take_all()

    async def close(self) -> None:
        """Ends the iteration. Idempotent."""
        self._sync.close()

    to_arrow = async_method(plain.Read.to_arrow)
    to_polars = async_method(plain.Read.to_polars)
    to_pandas = async_method(plain.Read.to_pandas)
