"""The handle of a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _core
from ..client import topic as plain
from ..client.encoding import rows
from ..client.topic import ack_of
from ..client.values import Ack
from ..client.watch import seconds_left
from ..errors import Throttled
from .consumer import Consumer
from .handle import ReprMixin, async_method, long_async_method, same_signature, wrapping
from .read import Read

if TYPE_CHECKING:
    from ..client.backend import Acked

# Limits that clear by themselves: a write may wait for them.
WAITABLE_LIMITS = frozenset({"staging_bytes", "memory_bytes", "topic_busy"})

T = TypeVar("T", bound=plain.Topic)


class TopicHandle(ReprMixin[T]):
    """The methods of topics and queues."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._sync.name

    create = async_method(plain.Topic.create)
    append_arrow = async_method(plain.Topic.append_arrow)
    read = wrapping(plain.Topic.read, Read)
    tail = async_method(plain.Topic.tail)
    consumer = async_method(plain.Topic.consumer, Consumer)
    consumers = async_method(plain.Topic.consumers)
    drop_consumer = async_method(plain.Topic.drop_consumer)
    seek = async_method(plain.Topic.seek)
    delete = async_method(plain.Topic.delete)
    state = async_method(plain.Topic.state)
    sync = long_async_method(plain.Topic.sync)
    drop = async_method(plain.Topic.drop)

    @same_signature(plain.Topic.append)
    async def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        meta: Mapping[str, str] | None = None,
        ttl_ms: int = 0,
        **options: Any,
    ) -> Ack:
        records = rows(data, tag, meta, ttl_ms)
        given = self._options(**options)
        return await self._write(
            lambda calls, token: calls.append(token, self._engine, self.name, records, given),
            lambda: self._sync.append(data, tag=tag, meta=meta, ttl_ms=ttl_ms, **options),
        )

    @same_signature(plain.Topic.append_batch)
    async def append_batch(
        self, records: list[bytes], *, tag: str | None = None, **options: Any
    ) -> Ack:
        given = self._options(**options)
        return await self._write(
            lambda calls, token: calls.append_batch(
                token, self._engine, self.name, records, tag, given
            ),
            lambda: self._sync.append_batch(records, tag=tag, **options),
        )

    def _options(
        self,
        node: str | None = None,
        key: str | None = None,
        expect_head: int | None = None,
        sync: bool = False,
        create: bool | None = None,
        wait: bool = True,
    ) -> _core._WriteOptions:
        return node, key, expect_head, sync, create, self._sync._config, wait

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
            return ack_of(await bridge.answer(token) if acked is None else acked)
        except Throttled as error:
            if error.detail.get("limit") not in WAITABLE_LIMITS:
                raise
        return await bridge.run(blocking)

    @same_signature(plain.Topic.wait)
    async def wait(self, after: int, wait: float | None = None) -> bool:
        deadline = None if wait is None else time.monotonic() + wait
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

    The topic is created by `create` or by the first write, with the options that the handle was
    made with. If the topic exists and differs in one of them, that call raises `Conflict`. A
    cancelled write may be stored or not; with a `key` it is safe to repeat.
    """

    __slots__ = ()
