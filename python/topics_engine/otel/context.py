"""The W3C trace context of records: keys of their meta."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..client.consumer import Batch
from ..client.queue import QueueItem
from ..client.values import NewRecord, Record

Item: TypeAlias = Record | QueueItem
Items: TypeAlias = Batch | Sequence[Item]

PARENT = "traceparent"
KEYS = frozenset({PARENT, "tracestate"})
# Most keys of a meta, and most links of a span in the default settings of the SDK.
MAX_KEYS = 64
MAX_LINKS = 128

# Not the propagator of the program: the meta of a record has these keys, whatever else is set up.
PROPAGATOR = TraceContextTextMapPropagator()


def context_of(item: Item) -> Context:
    """The context of a record; an empty one if it has none, or an invalid one."""
    return PROPAGATOR.extract(_known(item.meta), Context())


def _known(meta: Any) -> dict[str, str]:
    """The context in a meta, without other keys."""
    if not isinstance(meta, Mapping):
        return {}
    return {key: meta[key] for key in KEYS if isinstance(meta.get(key), str)}


def links_to(metas: Iterable[Any]) -> list[Link]:
    """Links to the contexts in metas: one to each context, as batches share one."""
    found: dict[str, Link] = {}
    for meta in metas:
        if not meta or not isinstance(meta, Mapping):
            continue
        parent = meta.get(PARENT)
        if isinstance(parent, str) and parent not in found:
            span = get_current_span(PROPAGATOR.extract(_known(meta), Context()))
            if span.get_span_context().is_valid:
                found[parent] = Link(span.get_span_context())
                if len(found) == MAX_LINKS:
                    break
    return list(found.values())


def carrier_of(span: Span) -> dict[str, str]:
    """The context of a span as keys of a meta; empty if there is no SDK."""
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier


def metas_of(data: Any) -> list[Any]:
    """The metas that the records of an append have of their own."""
    items = data if isinstance(data, list) else (data,)
    return [item.meta for item in items if type(item) is NewRecord and item.meta]


def metas_in(table: Any) -> list[Any]:
    """The metas of the rows of a table."""
    if "meta" not in table.column_names:
        return []
    return [None if row is None else dict(row) for row in table["meta"].to_pylist()]


def with_context(meta: Any, carrier: Mapping[str, str]) -> Any:
    """A meta with a context, unless it has one, or too many keys. What is no meta stays as it is:
    the call refuses it.
    """
    if meta is None:
        return carrier
    if not isinstance(meta, Mapping) or KEYS & meta.keys():
        return meta
    if len(meta) + len(carrier) > MAX_KEYS:
        return meta
    return {**meta, **carrier}


def data_with_context(data: Any, carrier: Mapping[str, str]) -> Any:
    """The records of an append; those with a meta of their own get the context there."""
    if isinstance(data, list):
        return [_record_with_context(item, carrier) for item in data]
    return _record_with_context(data, carrier)


def _record_with_context(item: Any, carrier: Mapping[str, str]) -> Any:
    if type(item) is not NewRecord or item.meta is None:
        return item
    given = {name: getattr(item, name) for name in NewRecord.__match_args__}
    return NewRecord(**{**given, "meta": with_context(item.meta, carrier)})


def table_with_context(table: Any, carrier: Mapping[str, str]) -> Any:
    """A `pyarrow.Table` with the context in the column `meta`."""
    import pyarrow

    if not carrier:
        return table
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    if "meta" not in table.column_names:
        metas = pyarrow.array([list(carrier.items())] * len(table), kind)
        return table.append_column("meta", metas)
    rows = [list(with_context(meta, carrier).items()) for meta in metas_in(table)]
    at = table.column_names.index("meta")
    return table.set_column(at, "meta", pyarrow.array(rows, kind))
