"""Spans by the semantic conventions of OpenTelemetry for messaging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span

from ..client.consumer import Batch
from ..client.queue import LeasedJob, QueueItem
from ..client.values import Ack, Record
from ..errors import InvalidRequest
from .context import Item, Items, context_of, links_to

SYSTEM = "topics_engine"
CLIENT_ID = "messaging.client.id"
COUNT = "messaging.batch.message_count"
GROUP = "messaging.consumer.group.name"
MESSAGE_ID = "messaging.message.id"

Attributes = dict[str, Any]


def attributes_of(operation: str, destination: str, more: Mapping[str, Any]) -> Attributes:
    """The attributes that every span has, and those of `more` that are not None."""
    found = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }
    return found | {name: value for name, value in more.items() if value is not None}


def server_of(backend: Any) -> Attributes:
    """The address of a server; nothing for an embedded engine."""
    url: str = backend.path
    return _address(url) if backend.is_remote else {}


@lru_cache(maxsize=64)
def _address(url: str) -> Attributes:
    parts = urlsplit(url)
    found = {"server.address": parts.hostname, "server.port": parts.port}
    return {name: value for name, value in found.items() if value is not None}


class Spans:
    """Makes the spans of one tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def current(
        self,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link] = (),
        parent: Context | None = None,
    ) -> Iterator[Span]:
        """A span that is current in its block. An exception is its error."""
        name = name_of(attributes)
        started = self._tracer.start_as_current_span(
            name, context=parent, kind=kind, attributes=attributes, links=links
        )
        with started as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def received(
        self, began: int, attributes: Attributes, items: Sequence[Any], error: Exception | None
    ) -> None:
        """A span of a receive that has ended: links are known then, and an empty one is no span.

        Args:
            began: nanoseconds since the Unix epoch.
            attributes: of the span.
            items: what was received.
            error: why it failed.
        """
        if not items and error is None:
            return
        span = self._tracer.start_span(
            name_of(attributes),
            kind=SpanKind.CLIENT,
            attributes=attributes | {COUNT: len(items)},
            links=links_to(item.meta for item in items),
            start_time=began,
        )
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            span.record_exception(error)
        span.end()

    @contextmanager
    def process(self, items: Item | Items) -> Iterator[Span]:
        """A span of processing records that were received."""
        found, attributes = _processed(items)
        parent = None
        is_single = isinstance(items, Record | QueueItem)
        if is_single and not get_current_span().get_span_context().is_valid:
            parent = context_of(found[0])
        links = links_to(item.meta for item in found)
        with self.current(SpanKind.CONSUMER, attributes, links, parent) as span:
            yield span


def name_of(attributes: Mapping[str, Any]) -> str:
    """The name of a span: its operation and its destination."""
    return f"{attributes['messaging.operation.name']} {attributes['messaging.destination.name']}"


def set_ack(span: Span, ack: Ack, single: bool) -> None:
    """Sets the seqs of what was sent."""
    if single:
        span.set_attribute(MESSAGE_ID, str(ack.first_seq))
    else:
        span.set_attribute("topics_engine.first_seq", ack.first_seq)
        span.set_attribute("topics_engine.last_seq", ack.last_seq)


def _processed(items: Item | Items) -> tuple[list[Item], Attributes]:
    """The records of `process`, and the attributes of its span."""
    if isinstance(items, Record | QueueItem):
        destination = items.topic if isinstance(items, Record) else items.record.topic
        worker = items.worker if isinstance(items, LeasedJob) else None
        more = {MESSAGE_ID: str(items.seq), CLIENT_ID: worker}
        return [items], attributes_of("process", destination, more)
    found = [item for item in items if isinstance(item, Record | QueueItem)]
    first = found[0] if found else None
    group = None
    if isinstance(items, Batch):
        destination, group = items._of.topic, items._of.name
    elif first is None:
        message = "process needs a record, a job, a batch, or a list of records and jobs"
        raise InvalidRequest(message, detail={"field": "items"})
    else:
        destination = first.topic if isinstance(first, Record) else first.record.topic
    return found, attributes_of("process", destination, {COUNT: len(found), GROUP: group})
