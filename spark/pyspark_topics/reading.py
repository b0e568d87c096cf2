"""What a task does: the records of its ranges as Arrow batches of the columns asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from .access import Access, ScanRequest, access
from .client import Backoff, retryable
from .columns import is_binary
from .errors import DataLoss, Interrupted, TopicsError
from .filters import Selection
from .options import Connection, OnGap
from .planning import Loss, Range

log = logging.getLogger("pyspark_topics")

GAP = ("gap_to", "gap_reason")


class TopicsPartition(InputPartition):
    """The ranges of one task, and losses that it reports as rows."""

    def __init__(self, ranges: tuple[Range | Loss, ...]) -> None:
        super().__init__(ranges)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What all tasks of a read have in common. Pickled."""

    connection: Connection
    schema: pa.Schema
    on_gap: OnGap
    strong: bool
    selection: Selection

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Spark makes one empty partition of none at all."""
        if partition is None or not partition.value:
            return
        engine = access(self.connection)
        with engine.keep_open():
            for one in partition.value:
                if isinstance(one, Loss):
                    yield self.gap_row(one)
                else:
                    yield from _RangeRead(engine, self, one).batches()

    def gap_row(self, loss: Loss) -> pa.RecordBatch:
        """The row that stands for lost records with `gaps=emit`: null `data`, `meta` says which."""
        meta = {
            "gap_from": str(loss.first),
            "gap_to": str(loss.last),
            "gap_reason": loss.reason,
        }
        row = {"topic": loss.topic, "seq": loss.first, "meta": list(meta.items())}
        columns = [pa.array([row.get(f.name)], type=f.type) for f in self.schema]
        return _rows_of(columns, self.schema, 1)


def loss_of(loss: Loss) -> DataLoss:
    what = f"records {loss.first} to {loss.last} of topic {loss.topic!r} are lost ({loss.reason})"
    if loss.reason in ("deleted", "recreated"):
        what = (
            f"topic {loss.topic!r} was {loss.reason} since seq {loss.first - 1} was read: records "
            "of its former life may be lost"
        )
    return DataLoss(
        f"{what}; the options failOnDataLoss=false (go on and log) and gaps=emit (go on with a "
        "row) go on without them",
        "data_loss",
        {
            "topic": loss.topic,
            "gap_from": loss.first,
            "gap_to": loss.last,
            "reason": loss.reason,
        },
    )


class _RangeRead:
    """One range, read to its end whatever happens to the connection."""

    def __init__(self, engine: Access, plan: ReadPlan, whole: Range) -> None:
        self._engine = engine
        self._plan = plan
        self._range = whole
        self._last = whole.hi - 1
        self._cursor = whole.lo - 1
        """The last seq that was dealt with: nothing up to it is asked for again."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        backoff = Backoff(self._plan.connection.retry_seconds)
        while self._cursor < self._last:
            before = self._cursor
            try:
                yield from self._attempt()
                # The head that the range was planned with has been seen; but where only what is
                # synced counts the stream may end before it.
                trouble: TopicsError = Interrupted(
                    f"{self._range} ended at {self._cursor}", "short_read"
                )
            except TopicsError as e:
                if e.code == "topic_not_found":
                    yield from self._lost(self._cursor + 1, self._last, "deleted")
                    self._cursor = self._last
                    return
                if not retryable(e):
                    raise
                log.warning("%s after seq %d: %s; going on there", self._range, self._cursor, e)
                trouble = e
            if self._cursor > before:
                backoff.reset()
                continue
            backoff.wait(trouble, trouble.retry_after)

    def _attempt(self) -> Iterator[pa.RecordBatch]:
        one = self._range
        with self._engine.scan(self._request()) as scan:
            if scan.topic_id != one.topic_id:
                yield from self._lost(self._cursor + 1, self._last, "recreated")
                self._cursor = self._last
                return
            for batch in scan.batches():
                yield from self._rows(batch)
            # Behind the last record there may be deleted and filtered ones.
            self._cursor = max(self._cursor, min(scan.to_seq, self._last))

    def _request(self) -> ScanRequest:
        """What is not read yet."""
        plan, one = self._plan, self._range
        wanted = tuple(name for name in plan.schema.names if name != "seq")
        return ScanRequest(
            topic=one.topic,
            topic_id=one.topic_id,
            after=self._cursor,
            upto=self._last,
            columns=(*wanted, "seq", *GAP),
            binary=is_binary(plan.schema),
            strong=plan.strong,
            selection=plan.selection,
        )

    def _rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The cursor moves when what lies below it has been taken."""
        gap_to = batch.column("gap_to")
        at = 0
        if gap_to.null_count < len(gap_to):
            for row in pc.indices_nonzero(gap_to.is_valid()).to_pylist():
                yield from self._records(batch.slice(at, row - at))
                first, last = batch.column("seq")[row].as_py(), gap_to[row].as_py()
                last = min(last, self._last)
                yield from self._lost(first, last, batch.column("gap_reason")[row].as_py())
                self._cursor = max(self._cursor, last)
                at = row + 1
        yield from self._records(batch.slice(at) if at else batch)

    def _records(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.num_rows:
            schema = self._plan.schema
            columns = [
                batch.column(field.name).cast(field.type)
                if batch.schema.field(field.name).type != field.type
                else batch.column(field.name)
                for field in schema
            ]
            last = batch.column("seq")[-1].as_py()
            yield _rows_of(columns, schema, batch.num_rows)
            self._cursor = last

    def _lost(self, first: int, last: int, reason: str) -> Iterator[pa.RecordBatch]:
        loss = Loss(self._range.topic, first, last, reason)
        if self._plan.on_gap == "fail":
            raise loss_of(loss)
        log.warning("%s", loss_of(loss).message)
        if self._plan.on_gap == "emit":
            yield self._plan.gap_row(loss)


def _rows_of(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))
