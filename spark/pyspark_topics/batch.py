"""Batch reads: the records that existed when the DataFrame was created."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .access import Access, access
from .columns import arrow_schema
from .errors import DataLoss, TopicsError
from .filters import Pushed, Pushes
from .offsets import Span
from .options import EARLIEST, LATEST, Positions, ReadOptions
from .planning import Head, plan
from .reading import ReadPlan, TopicsPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

log = logging.getLogger("pyspark_topics")

SEEKS = 1_000
"""With more topics than this, a condition on the time is left to Spark."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The ranges of a DataFrame, fixed once. Pickled with the data source."""

    spans: Mapping[str, Span]

    @staticmethod
    def take(options: ReadOptions) -> Snapshot:
        engine = access(options.connection)
        with engine.keep_open():
            heads = engine.heads(options.topics)
            refuse_missing(options, heads)
            ends = positions(engine, heads, options.end)
            starts = starting(engine, heads, options)
        spans = {}
        for name, head in heads.items():
            lo, hi = starts[name], min(ends[name], head.end)
            spans[name] = Span(head.topic_id, lo, max(lo, hi))
        return Snapshot(spans)


def refuse_missing(options: ReadOptions, found: Container[str]) -> None:
    """Refuses a subscribed name that no topic has, unless the options allow it."""
    for name in () if options.allow_missing else options.topics.names:
        if name not in found:
            raise TopicsError(
                f"topic {name!r} was not found; with allowMissingTopics=true it is read once it "
                "exists",
                "topic_not_found",
            )


def positions(engine: Access, heads: Mapping[str, Head], wanted: Positions) -> dict[str, int]:
    """The next seq to read of each topic, from words, seqs or a time."""
    found = {}
    for name, head in heads.items():
        at, ts = wanted.of(name), wanted.time_of(name)
        if ts is not None:
            at = engine.seek(name, ts)
        found[name] = {EARLIEST: head.earliest, LATEST: head.end}.get(at, max(1, at))
    return found


def starting(engine: Access, heads: Mapping[str, Head], options: ReadOptions) -> dict[str, int]:
    """The first seq to read of each topic. A start that the topic has not reached is a loss: its
    records existed when the offset was noted."""
    found = positions(engine, heads, options.start)
    for name, at in found.items():
        head = heads[name]
        if at <= head.next:
            continue
        text = (
            f'"startingOffsets" begins topic {name!r} at seq {at}, but its next record is '
            f"{head.next}: was it deleted and created again?"
        )
        if options.on_gap == "fail":
            raise DataLoss(
                f"{text} With failOnDataLoss=false the read begins at the end of the topic",
                "data_loss",
                {"topic": name, "gap_from": head.next, "gap_to": at - 1, "reason": "rewound"},
            )
        log.warning("%s The read begins at the end of the topic", text)
        found[name] = head.next
    return found


class TopicsReader(DataSourceReader):
    """Plans a batch read; its tasks are a `ReadPlan`."""

    def __init__(self, options: ReadOptions, schema: StructType, snapshot: Snapshot | None) -> None:
        self._options = options
        self._snapshot = snapshot
        self._pushed = Pushed(selection=options.selection)
        self._plan = ReadPlan(
            options.connection,
            arrow_schema(schema, options.fields),
            options.on_gap,
            options.strong,
            self._pushed.selection,
            options.bad,
            options.fields,
        )

    @property
    def pushFilters(self) -> Pushes:  # noqa: N802
        return Pushes(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        # The row of a gap has neither tag nor node, so a filter in the engine would drop it.
        if self._options.on_gap == "emit" or not self._options.push_filters:
            return filters
        left = self._pushed.take(filters)
        self._plan = replace(self._plan, selection=self._pushed.selection)
        return left

    def partitions(self) -> list[InputPartition]:
        engine = access(self._options.connection)
        with engine.keep_open():
            if self._snapshot is None:
                self._snapshot = Snapshot.take(self._options)
            spans = self._narrowed(self._snapshot.spans, engine)
            tasks = plan(
                sorted(spans.items()),
                records=self._options.partition_records,
                min_partitions=self._options.min_partitions,
                split=engine.split,
                cut=engine.cut,
            )
        return [TopicsPartition(task) for task in tasks]

    def _narrowed(self, spans: Mapping[str, Span], engine: Access) -> dict[str, Span]:
        pushed = self._pushed
        found = {
            name: pushed.narrow(span)
            for name, span in spans.items()
            if pushed.topics is None or name in pushed.topics
        }
        if (pushed.ts_lo is None and pushed.ts_hi is None) or len(found) > SEEKS:
            return found
        for name, span in found.items():
            lo, hi = span.lo, span.hi
            if pushed.ts_lo is not None and len(span):
                lo = max(lo, engine.seek(name, max(0, pushed.ts_lo)))
            if pushed.ts_hi is not None and len(span):
                hi = min(hi, engine.seek(name, max(0, pushed.ts_hi)))
            found[name] = Span(span.topic_id, lo, max(lo, hi))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._plan.read(partition)

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks need only the plan, not the ranges of every topic.
        return (_Reading, (self._plan,))


class _Reading(DataSourceReader):
    """The part of a reader that a task needs."""

    def __init__(self, tasks: ReadPlan) -> None:
        self._plan = tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._plan.read(partition)
