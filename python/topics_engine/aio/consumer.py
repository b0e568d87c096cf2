"""Consumers: readers whose cursor the engine stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from .. import _core
from ..client import arguments
from ..client import consumer as plain
from ..client.consumer import LONGEST_WAIT, Batch, Mode, parts_of, read_options
from .handle import AsyncHandle, async_method

if TYPE_CHECKING:
    from ..client.arguments import Duration, Size


class ConsumerBatch(Batch):
    """What one read returned: a gap first, if there is one, then records."""

    __slots__ = ()

    async def commit(self) -> None:
        """Stores the cursor behind the batch: all of it is done."""
        await self._of.commit(self.cursor)


class Consumer(AsyncHandle[plain.Consumer]):
    """A reader of a topic with a stored cursor. A new handle begins at that cursor, and its first
    read takes an `at_least_once` consumer over; see `topics_engine.Consumer`.

    If a read is cancelled after it got a batch, the next read of this handle returns that batch.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._sync.topic

    @property
    def name(self) -> str:
        """The name of the consumer."""
        return self._sync.name

    @property
    def mode(self) -> Mode:
        """When the cursor is stored: see `Topic.consumer`."""
        return self._sync.mode

    @property
    def cursor(self) -> int:
        """The stored cursor, as this handle knows it."""
        return self._sync.cursor

    @property
    def _reader(self) -> Any:
        """What identifies this handle in the commits of a transaction."""
        return self._sync._reader

    async def read(
        self,
        *,
        max_bytes: Size = 1 << 20,
        max_records: int = 2000,
        checkpoint: bool = True,
        wait: Duration = 0,
        tag: str | None = None,
        fail_if_busy: bool = False,
    ) -> ConsumerBatch:
        """Reads records after the handle's position; see `topics_engine.Consumer.read`."""
        how = read_options(max_bytes, max_records, checkpoint, wait, tag, fail_if_busy)
        if self._is_remote:
            fetched = await self._runner().run(self._sync._native.read, *how)
            return ConsumerBatch(*parts_of(self.topic, fetched), self)
        native = self._sync._native
        of = (self._engine, native.topic, native.name, native.reader)
        # No await between the answer and `take`: a page that is not taken goes back.
        page: Any = (await self._bridge().wait(None, _core.Calls.consumer_read, *of, how)).take()
        native.check(page)
        return ConsumerBatch(*parts_of(self.topic, page), self)

    async def batches(
        self,
        wait: Duration | None = None,
        *,
        max_bytes: Size = 1 << 20,
        max_records: int = 2000,
        tag: str | None = None,
    ) -> AsyncIterator[ConsumerBatch]:
        """Follows the topic: iterates over batches as records come. `async for batch in consumer:`
        does the same; see `topics_engine.Consumer.batches`.
        """
        limit = arguments.optional_seconds("wait", wait)
        how: Any = {"max_bytes": max_bytes, "max_records": max_records, "tag": tag}
        while True:
            batch = await self.read(wait=LONGEST_WAIT if limit is None else limit, **how)
            if batch or limit is not None:
                yield batch

    def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        return self.batches()

    async def peek(
        self, *, max_bytes: Size = 1 << 20, max_records: int = 2000, tag: str | None = None
    ) -> ConsumerBatch:
        """Returns what `read` would return now; see `topics_engine.Consumer.peek`."""
        return await self.read(
            max_bytes=max_bytes, max_records=max_records, checkpoint=False, tag=tag
        )

    commit = async_method(plain.Consumer.commit)
    seek = async_method(plain.Consumer.seek)
    drop = async_method(plain.Consumer.drop)
