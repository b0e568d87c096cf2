"""The handle of a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from .. import _core
from ..client import arguments
from ..client import topic as plain
from ..client.arguments import EARLIEST
from ..client.closing import Handle
from ..client.encoding import rows
from ..client.topic import ack_of, raw_records, write_options
from ..client.values import Ack, Record
from ..client.watch import seconds_left
from ..errors import Throttled
from .consumer import Consumer
from .handle import ReprMixin, async_method, documented_by, long_async_method, same_signature
from .read import Read

if TYPE_CHECKING:
    from ..client.arguments import Duration, Position, Time
    from ..client.backend import Acked
    from ..client.read import Item, OnGap, ReadOptions, WithoutGaps

# Limits that clear by themselves: a write may wait for them.
WAITABLE_LIMITS = frozenset({"staging_bytes", "memory_bytes", "topic_busy"})

T = TypeVar("T", bound=plain.Topic)


class TopicHandle(ReprMixin[T]):
    """The methods of topics and queues."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._sync.name

    if not TYPE_CHECKING:

        def __aiter__(self):
            raise TypeError(f"a {self._sync._kind} is not iterable: {self._sync._iterated_by}")

    create = async_method(plain.Topic.create)
    ensure = async_method(plain.Topic.ensure)
    configure = async_method(plain.Topic.configure)
    append_arrow = async_method(plain.Topic.append_arrow)
    tail = async_method(plain.Topic.tail)
    lazy = async_method(plain.Topic.lazy)
    infer_schema = async_method(plain.Topic.infer_schema)
    consumer = async_method(plain.Topic.consumer, Consumer)
    consumers = async_method(plain.Topic.consumers)
    drop_consumer = async_method(plain.Topic.drop_consumer)
    seek = async_method(plain.Topic.seek)
    delete = async_method(plain.Topic.delete)
    trim = async_method(plain.Topic.trim)
    state = async_method(plain.Topic.state)
    sync = long_async_method(plain.Topic.sync)
    drop = async_method(plain.Topic.drop)

    @overload
    def read(
        self,
        after: Position = EARLIEST,
        *,
        gaps: WithoutGaps,
        **options: Unpack[ReadOptions],
    ) -> Read[Record]: ...
    @overload
    def read(
        self,
        after: Position = EARLIEST,
        *,
        gaps: OnGap = "yield",
        **options: Unpack[ReadOptions],
    ) -> Read[Item]: ...
    @documented_by(plain.Topic.read)
    def read(self, after: Position = EARLIEST, **options: Any) -> Read[Any]:
        return Read(self._sync.read(after, **options))

    @same_signature(plain.Topic.append)
    async def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        meta: Mapping[str, str] | None = None,
        ttl: Duration = 0,
        lane: int | None = None,
        group: str | None = None,
        delay: Duration = 0,
        deliver_at: Time | None = None,
        **options: Any,
    ) -> Ack:
        encoded = rows(data, tag, meta, ttl, lane, group, delay, deliver_at)
        records = arguments.not_empty(encoded)
        given = self._options(**options)
        named = write_options(**options)
        return await self._write(
            lambda calls, token: calls.append(token, self._engine, self.name, records, given),
            lambda: self._sync._append(records, named),
        )

    @same_signature(plain.Topic.append_batch)
    async def append_batch(
        self, records: list[bytes], *, tag: str | None = None, **options: Any
    ) -> Ack:
        given = self._options(**options)
        payloads = raw_records(records)
        tag = arguments.optional_text("tag", tag)
        return await self._write(
            lambda calls, token: calls.append_batch(
                token, self._engine, self.name, payloads, tag, given
            ),
            lambda: self._sync.append_batch(records, tag=tag, **options),
        )

    def _options(self, **options: Any) -> _core._WriteOptions:
        of = write_options(**options)
        return (
            of["node"],
            of["key"],
            of["expect_head"],
            of["sync"],
            of["create"],
            self._sync._config,
            of["disable_backpressure"],
        )

    async def _write(
        self,
        stage: Callable[[_core.Calls, int], Acked | None],
        blocking: Callable[[], Ack],
    ) -> Ack:
        """Starts a write and awaits its ack, which is there immediately if no sync is needed.

        If memory is short and the write may wait, it waits on a thread.
        """
        bridge = self._bridge()
        token = bridge.token()
        try:
            acked = stage(bridge.calls, token)
            ack = ack_of(await bridge.answer(token) if acked is None else acked)
            if ack.created and isinstance(self._sync._options.get("dead_letter"), Handle):
                await bridge.run(self._sync._written, ack)
            return ack
        except Throttled as error:
            if error.detail.get("limit") not in WAITABLE_LIMITS:
                raise
        return await bridge.run(blocking)

    @same_signature(plain.Topic.wait)
    async def wait(self, after: int, timeout: Duration | None = None) -> bool:
        after = arguments.seq("after", after)
        seconds = arguments.optional_seconds("timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            bridge = self._bridge()
            if self._sync.wait(after, 0):
                return True
            rest = seconds_left(deadline)
            if rest == 0.0:
                return False
            await bridge.wait(rest, _core.Calls.head, self._engine, self.name, after)


class Topic(TopicHandle[plain.Topic]):
    """A topic by name, usable from several event loops.

    The options that the handle was made with apply when the topic is created; see
    `topics_engine.Topic`. A cancelled write may be stored or not; with an `idempotency_key` it is
    safe to repeat.
    """

    __slots__ = ()
