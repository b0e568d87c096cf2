"""Streaming reads: a sequence of batches, each a span of every topic with new records."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from .access import access
from .batch import refuse_missing, starting
from .columns import arrow_schema
from .compat import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from .consumer import named_consumer
from .offsets import GONE_BATCHES, Offset, Span
from .options import ReadOptions
from .planning import Head, Loss, Range, plan, share
from .reading import ReadPlan, TopicsPartition, loss_of

log = logging.getLogger("pyspark_topics")

POLL = 0.01
"""The minimum of seconds between two polls of the heads; more if answers are slow, because Spark
polls as fast as it is answered."""
MAX_IDLE_POLL = 0.1
"""Each poll without new rows doubles the time to the next one, up to this. An idle query then costs
little in the JVM, in Python and on the server, and a new row waits no longer than this."""
EXACT_FILLS = 64
"""The number of topics of a batch whose sizes the engine computes; those of other topics are
estimated."""


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance per run of a query, in its own process. Spark guarantees neither `commit` nor
    `stop`, so nothing depends on them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._tasks = ReadPlan(
            options.connection,
            arrow_schema(schema, options.fields),
            options.on_gap,
            options.strong,
            options.selection,
            options.bad,
            options.fields,
        )
        self._consumer = named_consumer(options)
        self._initial: Offset | None = None
        self._known: dict[str, Head] = {}
        self._seen: dict[str, Head] = {}
        """The last head of each topic, also of those that are no longer there."""
        self._planned: Mapping[str, Span] = {}
        """The end of the last planned batch."""
        self._batch_at = -math.inf
        """When the last batch was planned."""
        self._next_poll = 0.0
        self._pause = POLL
        self._clock = time.monotonic
        self._pinned: dict[str, Head] | None = None
        self._warned: set[str] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Spark calls it twice at a first start; both calls return the same offset."""
        if self._initial is None:
            engine = access(self._options.connection)
            with engine.keep_open():
                heads = self._heads()
                refuse_missing(self._options, heads)
                starts = starting(engine, heads, self._options)
            self._seen = heads
            self._initial = Offset(
                {
                    name: Span(head.topic_id, starts[name], starts[name])
                    for name, head in heads.items()
                }
            )
        return self._initial.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        assert self._options.max_bytes is not None
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._pinned = self._heads()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Returns `start` itself if there are no new records, because Spark compares strings."""
        return self._latest(start, limit)

    def _latest(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        """The end of the next batch; without a limit of Spark's the options' own ones hold."""
        end = self._end_of_batch(start, limit)
        self._pause = POLL if end is not start else min(2 * self._pause, MAX_IDLE_POLL)
        return end

    def _end_of_batch(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        heads = self._heads() if self._pinned is None else self._pinned
        was = Offset.parse(start)
        self._planned = was.spans
        if self._consumer is not None:
            self._consumer.store(was)
        spans = self._next(was, heads)
        if self._waits_for_more(spans, limit) and not _has_jumped(was, spans):
            return start
        rows, size = self._options.max_offsets, self._options.max_bytes
        if isinstance(limit, ReadAllAvailable):
            rows = size = None
        elif isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if rows is not None:
            spans = _at_most(spans, rows)
        if size is not None:
            spans = self._fill(spans, heads, size)
        if not any(len(span) for span in spans.values()) and not _has_jumped(was, spans):
            return start
        self._planned, self._batch_at = spans, self._clock()
        return self._offset(was, spans, heads).json()

    def _offset(self, was: Offset, spans: Mapping[str, Span], heads: Mapping[str, Head]) -> Offset:
        """The end of a batch, without the topics that were deleted long ago."""
        topics = self._options.topics
        gone = {}
        for name in spans:
            # A topic that is left out of the subscription is not looked for.
            if name not in heads and topics.pattern is not None and topics.matches(name):
                gone[name] = was.gone.get(name, 0) + 1
        kept = {n: span for n, span in spans.items() if gone.get(n, 0) <= GONE_BATCHES}
        unread = frozenset(
            name
            for name, span in kept.items()
            if (span.hi < heads[name].end if name in heads else name in was.unread)
        )
        return Offset(kept, unread, {name: n for name, n in gone.items() if name in kept})

    def _waits_for_more(self, spans: Mapping[str, Span], limit: ReadLimit | None) -> bool:
        """Whether the next batch has too few rows and the last one is not long ago. A trigger that
        ends with the available rows does not wait for others."""
        least = self._options.min_offsets
        if least is None or self._pinned is not None or isinstance(limit, ReadAllAvailable):
            return False
        waited = self._clock() - self._batch_at
        return sum(map(len, spans.values())) < least and waited < self._options.max_delay

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The result of the last poll, for the progress report, with the lag of each topic: the
        seqs behind the planned batch. Spark has no other place for it: it asks a Python source for
        no metrics."""
        if not self._known:
            return None
        ends = {name: Span(h.topic_id, h.end, h.end) for name, h in self._known.items()}
        return {**Offset(ends).json(), "lag": self._lag()}

    def _lag(self) -> dict[str, int]:
        found = {}
        for name, head in sorted(self._known.items()):
            span = self._planned.get(name)
            read = span is not None and span.topic_id == head.topic_id
            at = span.hi if span is not None and read else head.earliest
            found[name] = max(0, head.end - max(at, head.earliest))
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        was, now = Offset.parse(start), Offset.parse(end)
        engine = access(self._options.connection)
        with engine.keep_open():
            tasks: list[tuple[Range | Loss, ...]] = [
                *plan(
                    now.to_read(was),
                    records=self._options.partition_records,
                    min_partitions=self._options.min_partitions,
                    cut=engine.cut,
                )
            ]
        # The engine says why skipped seqs have no record: each range is read whole, so that a loss
        # is reported once.
        skipped = list(_skipped(was, now))
        tasks = [*plan(skipped, records=sys.maxsize, min_partitions=1), *tasks]
        # The same at every run of the batch: the offsets alone say what is lost.
        losses = tuple(_losses(was, now)) if self._options.on_gap == "emit" else ()
        if losses:
            tasks.insert(0, losses)
        return [TopicsPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._tasks.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark keeps the checkpoint; this reader stores nothing."""

    def stop(self) -> None:
        """The end of the process releases every resource."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Reading, (self._tasks,))

    def _heads(self) -> dict[str, Head]:
        """The current heads, never cached ones: a caller that appends rows and then waits until
        the stream has processed all available rows waits for a poll without new rows."""
        time.sleep(max(0.0, self._next_poll - time.monotonic()))
        asked = time.monotonic()
        self._known = access(self._options.connection).heads(self._options.topics)
        answered = time.monotonic()
        self._next_poll = answered + max(self._pause, 2 * (answered - asked))
        return self._known

    def _next(self, start: Offset, heads: Mapping[str, Head]) -> dict[str, Span]:
        """From where each topic was left to its end."""
        refuse_missing(self._options, {**start.spans, **heads})
        spans = {}
        for name, was in start.spans.items():
            head = heads.get(name)
            if head is None:
                # A topic that the query no longer subscribes to keeps its place. One that is not
                # there when a trigger pins the heads may be one to come.
                if self._options.topics.matches(name) and self._had_unread(name, was, start):
                    self._report(Loss(name, was.hi, was.hi, "deleted"))
                spans[name] = Span(was.topic_id, was.hi, was.hi)
            elif head.topic_id != was.topic_id:
                self._report(Loss(name, was.hi, was.hi, "recreated"))
                spans[name] = Span(head.topic_id, head.earliest, head.end)
            elif was.hi > head.next:
                self._report(Loss(name, head.next, was.hi - 1, "rewound"))
                spans[name] = Span(head.topic_id, head.next, head.next)
            else:
                # The seqs between the last position and the first stored record have no rows: a
                # limit does not count them, and `partitions` reads them for what was lost.
                lo = max(was.hi, head.earliest)
                spans[name] = Span(head.topic_id, lo, max(lo, head.end))
        for name, head in heads.items():
            if name not in start.spans:
                spans[name] = Span(head.topic_id, head.earliest, head.end)
        self._seen = {name: h for name, h in self._seen.items() if name in spans} | dict(heads)
        return spans

    def _had_unread(self, name: str, was: Span, start: Offset) -> bool:
        """Whether a deleted topic had records behind the last position, as far as this run or the
        checkpoint has seen."""
        seen = self._seen.get(name)
        if seen is not None and seen.topic_id == was.topic_id and was.hi < seen.end:
            return True
        return name in start.unread

    def _report(self, loss: Loss) -> None:
        if self._options.on_gap == "fail":
            raise loss_of(loss)
        if loss.topic not in self._warned:
            self._warned.add(loss.topic)
            log.warning("%s", loss_of(loss).message)

    def _fill(
        self, spans: dict[str, Span], heads: Mapping[str, Head], size: int
    ) -> dict[str, Span]:
        """The first part of the spans with this number of bytes: at least one record."""
        weights = {
            name: max(1, round(len(span) * heads[name].record_bytes))
            for name, span in spans.items()
            if len(span)
        }
        if sum(weights.values()) <= size:
            return spans
        engine = access(self._options.connection)
        rooms = share(weights, size)
        exact = sorted(weights, key=lambda name: (-weights[name], name))[:EXACT_FILLS]
        found = dict(spans)
        with engine.keep_open():
            for name, weight in weights.items():
                span, room = spans[name], rooms[name]
                hi = span.lo + len(span) * room // weight
                if name in exact and room:
                    hi = engine.fill(Range(span.topic_id, name, span.lo, span.hi), room)
                found[name] = Span(span.topic_id, span.lo, hi)
        if not any(len(span) for span in found.values()):
            first = exact[0]
            found[first] = Span(spans[first].topic_id, spans[first].lo, spans[first].lo + 1)
        return found


class SelfLimitedReader(TopicsStreamReader):
    """The reader for a Spark that tells it neither the start nor the limit of a batch: before 4.2.

    It knows the start: a returned offset is the end of a batch that runs before the next call, and
    a query that starts again from its checkpoint plans the last offset in it before anything else.
    It does not know the trigger. `availableNow` is one batch there, so only the limits that the
    user has set hold.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._at: dict[str, Any] | None = None
        """The end of the last batch."""
        self._warns_of_cut = options.max_offsets is not None or options.max_bytes is not None

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        start = self.initialOffset() if self._at is None else self._at
        self._at = self._latest(start, None)
        if self._warns_of_cut and self._at is not start and self._at.get("unread"):
            self._warns_of_cut = False
            log.warning(
                "maxOffsetsPerTrigger or maxBytesPerTrigger ends a batch before the newest record. "
                "With the trigger availableNow, which is one batch in Spark %s, the query ends "
                "after it, and the next run reads on: leave the limits out there",
                pyspark.__version__,
            )
        return self._at

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if self._at is None:
            self._at = end
        return super().partitions(start, end)


class _Reading(DataSourceStreamReader):
    """The part of a reader that a task needs."""

    def __init__(self, tasks: ReadPlan) -> None:
        self._tasks = tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._tasks.read(partition)


def _losses(was: Offset, now: Offset) -> Iterator[Loss]:
    """What a batch finds lost before it reads: topics that were re-created or lost their end."""
    for name, span in sorted(now.spans.items()):
        before = was.spans.get(name)
        if before is not None and before.topic_id != span.topic_id:
            yield Loss(name, before.hi, before.hi, "recreated")
        elif before is not None and span != before and span.lo < before.hi:
            yield Loss(name, span.lo, before.hi - 1, "rewound")


def _has_jumped(was: Offset, spans: Mapping[str, Span]) -> bool:
    """Whether a topic starts elsewhere than at its last position, so that an empty batch has
    something to report: below it (its next records are new), or above it (records are gone)."""
    return any(
        span.topic_id == spans[name].topic_id and spans[name].lo != span.hi
        for name, span in was.spans.items()
    )


def _skipped(was: Offset, now: Offset) -> Iterator[tuple[str, Span]]:
    """The seqs between the last positions and the starts of a batch."""
    for name, span in sorted(now.spans.items()):
        before = was.spans.get(name)
        if before is not None and before.topic_id == span.topic_id and before.hi < span.lo:
            yield name, Span(span.topic_id, before.hi, span.lo)


def _at_most(spans: dict[str, Span], rows: int) -> dict[str, Span]:
    given = share({name: len(span) for name, span in spans.items()}, rows)
    return {
        name: Span(span.topic_id, span.lo, span.lo + given[name]) for name, span in spans.items()
    }
