"""OpenTelemetry: spans of sends, receives and jobs, and the trace context in the meta of records.

```python
te.otel.instrument()
```

Needs the extra `otel`, which installs the API of OpenTelemetry; the SDK and its exporters are the
choice of the program.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..extras import extra

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from .context import Item, Items

__all__ = ["context_of", "instrument", "process", "uninstrument"]


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """From now on all handles of the process make spans, sync and async, embedded and remote:

    - `append`, `append_batch` and `append_arrow`: a span `send`. Records without a trace context
      get its context, in the keys `traceparent` and `tracestate` of their meta. `append` of a
      transaction is a span `create`, because its records are sent later.
    - `claim` of a queue and `read` of a consumer, if they return records or fail: a span `receive`.
    - the block of `with job:`: a span `process`, which ends after the ack.

    Spans are linked to the contexts of the records that they are about. A second call replaces the
    provider.

    Args:
        tracer_provider: makes the spans (default: the global one of OpenTelemetry).

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed (`pip install 'topics-engine[otel]'`).

    Example:
        ```python
        te.otel.instrument()
        ```
    """
    with extra("otel", "otel.instrument"):
        from . import wrappers
    wrappers.instrument(tracer_provider)


def uninstrument() -> None:
    """Undoes `instrument`. Spans that are open end as usual. Idempotent.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed (`pip install 'topics-engine[otel]'`).
    """
    with extra("otel", "otel.uninstrument"):
        from . import wrappers
    wrappers.uninstrument()


def process(items: Item | Items) -> AbstractContextManager[Span]:
    """A block that processes records: a span `process`, linked to their contexts. The context of
    a single record is the parent, unless a span is current.

    `with job:` makes this span itself. Without `instrument` the block makes no span.

    Args:
        items: a record, a job, a batch of a consumer, or a list of them from one topic.

    Returns:
        A context manager of the span.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed (`pip install 'topics-engine[otel]'`).

    Example:
        ```python
        for batch in billing.batches(wait=5):
            with te.otel.process(batch):
                handle(batch)
            batch.commit()
        ```
    """
    with extra("otel", "otel.process"):
        from . import wrappers
    return wrappers.process(items)


def context_of(item: Item) -> Context:
    """The trace context of a record, to start spans in. It is empty if the record has none, or an
    invalid one.

    Args:
        item: a record or a job.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed (`pip install 'topics-engine[otel]'`).

    Example:
        ```python
        with tracer.start_as_current_span("charge", context=te.otel.context_of(record)):
            charge(record.data)
        ```
    """
    with extra("otel", "otel.context_of"):
        from . import context
    return context.context_of(item)
