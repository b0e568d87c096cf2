"""Consumers: readers whose cursor the engine stores."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from ..client import consumer as plain
from ..client.consumer import ConsumerBatch, Mode, batch_of, read_options
from ..client.watch import seconds_left
from ..errors import Conflict
from .bridge import Bridge
from .handle import AsyncHandle, async_method, same_signature

if TYPE_CHECKING:
    from .. import _core
    from ..client.arguments import Duration


class Consumer(AsyncHandle[plain.Consumer]):
    """A reader of a topic with a stored cursor. A new handle begins at that cursor.

    If a read is cancelled after it got a batch, the next read of this handle returns that batch.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self._sync.topic

    @property
    def name(self) -> str:
        return self._sync.name

    @property
    def mode(self) -> Mode:
        return self._sync.mode

    @property
    def cursor(self) -> int:
        """The stored cursor, as this handle knows it."""
        return self._sync.cursor

    @same_signature(plain.Consumer.read)
    async def read(
        self,
        *,
        max_bytes: int = 1 << 20,
        max_records: int = 2000,
        checkpoint: bool = True,
        wait: Duration = 0,
        tag: str | None = None,
        fail_if_busy: bool = False,
    ) -> ConsumerBatch:
        native = cast("_core.Consumer", self._sync._native)
        how = read_options(max_bytes, max_records, checkpoint, wait, tag, fail_if_busy)
        max_bytes, max_records, checkpoint, seconds, match, _ = how
        deadline = time.monotonic() + seconds
        while True:
            bridge = self._bridge()
            token = bridge.token()
            native.read_later(bridge.calls, token, max_bytes, max_records, checkpoint, match)
            try:
                # No await between the answer and `take`: a page that is not taken goes back.
                page = (await bridge.answer(token)).take()
            except Conflict as busy:
                if fail_if_busy or busy.code != "consumer_busy":
                    raise
                page = None
            if page is None:
                await self._wait_until_free(bridge)
                continue
            rest = seconds_left(deadline)
            if len(page) or page.tombstone is not None or not rest:
                return batch_of(self.topic, page)
            if page.caught_up:
                await bridge.wait(rest, native.more, page.next_from_seq)

    async def _wait_until_free(self, bridge: Bridge) -> None:
        """Waits until no other reader reads from an `at_most_once` consumer."""
        token = bridge.token()
        cast("_core.Consumer", self._sync._native).turn(bridge.calls, token)
        await bridge.answer(token)

    peek = async_method(plain.Consumer.peek)
    commit = async_method(plain.Consumer.commit)
    seek = async_method(plain.Consumer.seek)
    drop = async_method(plain.Consumer.drop)
