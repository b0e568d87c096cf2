"""The methods that make spans, in the place of the methods of the handles.

Methods are replaced in their classes, so that a program without tracing pays nothing. A method of
an async handle holds the sync method that it was declared from, so no call makes two spans.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, TracerProvider, get_tracer

from .. import _core
from ..aio.consumer import Consumer as AsyncConsumer
from ..aio.queue import Job as AsyncJob
from ..aio.queue import Queue as AsyncQueue
from ..aio.topic import TopicHandle
from ..aio.transaction import Transaction as AsyncTransaction
from ..client import arguments
from ..client.consumer import Consumer
from ..client.encoding import written
from ..client.queue import Job, Queue
from ..client.topic import Topic, raw_records
from ..client.transaction import Transaction
from ..client.values import Record
from .context import (
    carrier_of,
    data_with_context,
    links_to,
    metas_in,
    metas_of,
    table_with_context,
    with_context,
)
from .spans import CLIENT_ID, COUNT, GROUP, Spans, attributes_of, server_of, set_ack

if TYPE_CHECKING:
    from .context import Item, Items

Method = Callable[..., Any]

# The methods as they are without tracing.
APPEND, APPEND_BATCH, APPEND_ARROW = Topic.append, Topic.append_batch, Topic.append_arrow
AIO_APPEND: Method = TopicHandle.append
AIO_APPEND_BATCH: Method = TopicHandle.append_batch
AIO_APPEND_ARROW: Method = TopicHandle.append_arrow
TXN_APPEND, AIO_TXN_APPEND = Transaction.append, AsyncTransaction.append
CLAIM, READ, ENTER, EXIT = Queue.claim, Consumer.read, Job.__enter__, Job.__exit__
AIO_CLAIM: Method = AsyncQueue.claim
AIO_READ, AIO_ENTER, AIO_EXIT = AsyncConsumer.read, AsyncJob.__aenter__, AsyncJob.__aexit__
ORIGINALS: list[tuple[type, str, Method]] = [
    (Topic, "append", APPEND),
    (Topic, "append_batch", APPEND_BATCH),
    (Topic, "append_arrow", APPEND_ARROW),
    (Transaction, "append", TXN_APPEND),
    (Queue, "claim", CLAIM),
    (Consumer, "read", READ),
    (Job, "__enter__", ENTER),
    (Job, "__exit__", EXIT),
    (TopicHandle, "append", AIO_APPEND),
    (TopicHandle, "append_batch", AIO_APPEND_BATCH),
    (TopicHandle, "append_arrow", AIO_APPEND_ARROW),
    (AsyncTransaction, "append", AIO_TXN_APPEND),
    (AsyncQueue, "claim", AIO_CLAIM),
    (AsyncConsumer, "read", AIO_READ),
    (AsyncJob, "__aenter__", AIO_ENTER),
    (AsyncJob, "__aexit__", AIO_EXIT),
]

_lock = threading.Lock()
_spans: Spans | None = None


def instrument(tracer_provider: TracerProvider | None) -> None:
    """Replaces the methods."""
    global _spans
    tracer = get_tracer("topics_engine", _core.__version__, tracer_provider)
    with _lock:
        _spans = spans = Spans(tracer)
        for kind, name, method in (*_sync(spans), *_async(spans)):
            setattr(kind, name, method)


def uninstrument() -> None:
    """Puts the methods back."""
    global _spans
    with _lock:
        _spans = None
        for kind, name, method in ORIGINALS:
            setattr(kind, name, method)


def process(items: Item | Items) -> AbstractContextManager[Span]:
    """A block with a span `process`."""
    spans = _spans
    return nullcontext(INVALID_SPAN) if spans is None else spans.process(items)


def _backend(handle: Any) -> Any:
    """The backend of a sync or an async handle."""
    return getattr(handle, "_sync", handle)._backend


@contextmanager
def _sending(
    spans: Spans, topic: Any, count: int | None, metas: list[Any]
) -> Iterator[tuple[Span, dict[str, str]]]:
    """A span `send`, and its context for the records."""
    attributes = attributes_of("send", topic.name, {COUNT: count}) | server_of(_backend(topic))
    with spans.current(SpanKind.PRODUCER, attributes, links_to(metas)) as span:
        yield span, carrier_of(span)


def _sending_records(
    spans: Spans, topic: Any, data: Any, options: dict[str, Any]
) -> AbstractContextManager[tuple[Span, dict[str, str]]]:
    """The same for the arguments of `append`."""
    metas = [*metas_of(data), options.get("meta")]
    return _sending(spans, topic, _count(data), metas)


def _count(data: Any) -> int | None:
    """How many records a batch has; None for a single record."""
    return None if not isinstance(data, list) else len(data)


def _injected(data: Any, options: dict[str, Any], carrier: dict[str, str]) -> tuple[Any, Any]:
    """The arguments of `append` with a context."""
    if not carrier:
        return data, options
    meta = with_context(options.get("meta"), carrier)
    return data_with_context(data, carrier), {**options, "meta": meta}


def _creating(spans: Spans, original: Method) -> Method:
    """`append` of a transaction, which is sent at the end of its block."""

    @functools.wraps(original)
    def append(self: Any, topic: Any, data: Any, **options: Any) -> None:
        name = arguments.name("topic", topic)
        attributes = attributes_of("create", name, {COUNT: _count(data)})
        links = links_to([*metas_of(data), options.get("meta")])
        with spans.current(SpanKind.PRODUCER, attributes, links) as span:
            given, named = _injected(data, options, carrier_of(span))
            original(self, topic, given, **named)

    return append


@contextmanager
def _receiving(
    spans: Spans, handle: Any, destination: str, more: dict[str, Any]
) -> Iterator[list[Any]]:
    """A span `receive` of the records that the block puts into the list. No span is current in the
    block, which may wait long.
    """
    began, items = time.time_ns(), list[Any]()
    attributes = attributes_of("receive", destination, more) | server_of(_backend(handle))
    try:
        yield items
    except Exception as error:
        spans.received(began, attributes, items, error)
        raise
    spans.received(began, attributes, items, None)


def _claiming(spans: Spans, queue: Any, worker: Any) -> AbstractContextManager[list[Any]]:
    named = worker if isinstance(worker, str) else None
    return _receiving(spans, queue, queue.name, {CLIENT_ID: named})


def _reading(spans: Spans, consumer: Any) -> AbstractContextManager[list[Any]]:
    return _receiving(spans, consumer, consumer.topic, {GROUP: consumer.name})


def records_in(batch: Any) -> list[Any]:
    """The records of a batch, without its gap."""
    return [item for item in batch.items if isinstance(item, Record)]


def acked(span: Span, data: Any, ack: Any) -> Any:
    """Sets the seqs of what was sent, and returns the ack."""
    set_ack(span, ack, single=_count(data) is None)
    return ack


def _begin_job(spans: Spans, job: Any) -> None:
    """Begins the span of the block of a job."""
    block = spans.process(job)
    block.__enter__()
    job._status.span = block


def _take_job(job: Any) -> AbstractContextManager[Any]:
    """Takes the span of the block of a job. One that was entered before `instrument` has none."""
    block: AbstractContextManager[Any] | None = getattr(job._status, "span", None)
    if block is None:
        return nullcontext()
    del job._status.span
    return block


def _end_job(block: AbstractContextManager[Any], error: BaseException | None) -> None:
    """Ends it, with what the body raised, or else the ack."""
    if error is None:
        block.__exit__(None, None, None)
    else:
        block.__exit__(type(error), error, error.__traceback__)


def _sync(spans: Spans) -> list[tuple[type, str, Method]]:
    """The methods of the sync handles."""

    @functools.wraps(APPEND)
    def append(self: Topic, data: Any, **options: Any) -> Any:
        with _sending_records(spans, self, data, options) as (span, carrier):
            given, named = _injected(data, options, carrier)
            return acked(span, data, APPEND(self, given, **named))

    @functools.wraps(APPEND_BATCH)
    def append_batch(self: Topic, records: list[bytes], **options: Any) -> Any:
        payloads = raw_records(records)
        with _sending_records(spans, self, payloads, options) as (span, carrier):
            named = {**options, "meta": carrier} if carrier else options
            run = APPEND if carrier else APPEND_BATCH
            return acked(span, payloads, run(self, payloads, **named))

    @functools.wraps(APPEND_ARROW)
    def append_arrow(self: Topic, table: Any, **options: Any) -> Any:
        table = written(table)
        with _sending(spans, self, len(table), metas_in(table)) as (span, carrier):
            given = table_with_context(table, carrier)
            return acked(span, (), APPEND_ARROW(self, given, **options))

    @functools.wraps(CLAIM)
    def claim(self: Queue, worker: str, *max: int, **options: Any) -> Any:
        with _claiming(spans, self, worker) as found:
            jobs = CLAIM(self, worker, *max, **options)
            found += jobs
            return jobs

    @functools.wraps(READ)
    def read(self: Consumer, **options: Any) -> Any:
        if not options.get("checkpoint", True):
            return READ(self, **options)
        with _reading(spans, self) as found:
            batch = READ(self, **options)
            found += records_in(batch)
            return batch

    @functools.wraps(ENTER)
    def enter(self: Job) -> Job:
        ENTER(self)
        _begin_job(spans, self)
        return self

    return [
        (Topic, "append", append),
        (Topic, "append_batch", append_batch),
        (Topic, "append_arrow", append_arrow),
        (Transaction, "append", _creating(spans, TXN_APPEND)),
        (Queue, "claim", claim),
        (Consumer, "read", read),
        (Job, "__enter__", enter),
        (Job, "__exit__", leave),
    ]


@functools.wraps(EXIT)
def leave(
    self: Job, kind: type[BaseException] | None, error: BaseException | None, *trace: object
) -> None:
    block = _take_job(self)
    try:
        EXIT(self, kind, error, *trace)
    except BaseException as failed:
        _end_job(block, failed)
        raise
    _end_job(block, error)


def _async(spans: Spans) -> list[tuple[type, str, Method]]:
    """The methods of the async handles."""

    @functools.wraps(AIO_APPEND)
    async def append(self: Any, data: Any, **options: Any) -> Any:
        with _sending_records(spans, self, data, options) as (span, carrier):
            given, named = _injected(data, options, carrier)
            return acked(span, data, await AIO_APPEND(self, given, **named))

    @functools.wraps(AIO_APPEND_BATCH)
    async def append_batch(self: Any, records: list[bytes], **options: Any) -> Any:
        payloads = raw_records(records)
        with _sending_records(spans, self, payloads, options) as (span, carrier):
            named = {**options, "meta": carrier} if carrier else options
            run = AIO_APPEND if carrier else AIO_APPEND_BATCH
            return acked(span, payloads, await run(self, payloads, **named))

    @functools.wraps(AIO_APPEND_ARROW)
    async def append_arrow(self: Any, table: Any, **options: Any) -> Any:
        table = written(table)
        with _sending(spans, self, len(table), metas_in(table)) as (span, carrier):
            given = table_with_context(table, carrier)
            return acked(span, (), await AIO_APPEND_ARROW(self, given, **options))

    @functools.wraps(AIO_CLAIM)
    async def claim(self: Any, worker: str, *max: int, **options: Any) -> Any:
        with _claiming(spans, self, worker) as found:
            jobs = await AIO_CLAIM(self, worker, *max, **options)
            found += jobs
            return jobs

    @functools.wraps(AIO_READ)
    async def read(self: Any, **options: Any) -> Any:
        if not options.get("checkpoint", True):
            return await AIO_READ(self, **options)
        with _reading(spans, self) as found:
            batch = await AIO_READ(self, **options)
            found += records_in(batch)
            return batch

    @functools.wraps(AIO_ENTER)
    async def enter(self: Any) -> Any:
        await AIO_ENTER(self)
        _begin_job(spans, self)
        return self

    return [
        (TopicHandle, "append", append),
        (TopicHandle, "append_batch", append_batch),
        (TopicHandle, "append_arrow", append_arrow),
        (AsyncTransaction, "append", _creating(spans, AIO_TXN_APPEND)),
        (AsyncQueue, "claim", claim),
        (AsyncConsumer, "read", read),
        (AsyncJob, "__aenter__", enter),
        (AsyncJob, "__aexit__", aleave),
    ]


@functools.wraps(AIO_EXIT)
async def aleave(
    self: Any, kind: type[BaseException] | None, error: BaseException | None, *trace: object
) -> None:
    block = _take_job(self)
    try:
        await AIO_EXIT(self, kind, error, *trace)
    except BaseException as failed:
        _end_job(block, failed)
        raise
    _end_job(block, error)
