"""The work of a task: reads the records of its ranges as Arrow batches of the requested columns."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from .access import Access, ScanRequest, access
from .bad import BadRecords
from .client import Backoff, Client, path_of, retryable
from .columns import is_binary
from .errors import DataLoss, Interrupted, TopicsError
from .options import Connection, OnGap, Selection
from .planning import Loss, Range
from .typed import MISFITS, RAW, TypedField

log = logging.getLogger("pyspark_topics")

GAP = ("gap_to", "gap_reason")
BINARY = re.compile(r"record (\d+) is binary")
"""The refusal of a scan whose text column meets a binary record. It has no code of its own: a scan
of a directory reports it as text."""


class TopicsPartition(InputPartition):
    """The ranges of one task, and losses that it reports as rows."""

    def __init__(self, ranges: tuple[Range | Loss, ...]) -> None:
        super().__init__(ranges)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The common state of all tasks of a read. Pickled."""

    connection: Connection
    schema: pa.Schema
    on_gap: OnGap
    strong: bool
    selection: Selection
    bad: BadRecords
    typed: tuple[TypedField, ...] = ()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Reads a task; Spark passes an empty partition if there is none."""
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
    """One range, read to its end across broken connections."""

    def __init__(self, engine: Access, plan: ReadPlan, whole: Range) -> None:
        self._engine = engine
        self._plan = plan
        self._range = whole
        self._last = whole.hi - 1
        self._cursor = whole.lo - 1
        """The last processed seq: seqs up to it are not requested again."""
        self._stop = self._last
        """The end of the next request: the record behind it is bad, unless the range ends there."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        backoff = Backoff(self._plan.connection.retry_seconds)
        while self._cursor < self._last:
            before = self._cursor
            try:
                yield from self._attempt()
                # The planned range ends at or below the head. With `strong` consistency the stream
                # can end earlier, before records that are not synced yet.
                trouble: TopicsError = Interrupted(
                    f"{self._range} ended at {self._cursor}", "short_read"
                )
            except TopicsError as e:
                if e.code == "topic_not_found":
                    yield from self._lost(self._cursor + 1, self._last, "deleted")
                    self._cursor = self._last
                    return
                if (seq := self._binary_seq(e)) is not None:
                    self._stop = seq - 1
                    if self._cursor == self._stop:
                        self._leave_out(seq)
                    continue
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
            # Deleted and filtered records may follow the last record.
            self._cursor = max(self._cursor, min(scan.to_seq, self._stop))
        if self._cursor == self._stop < self._last:
            self._leave_out(self._stop + 1)

    def _request(self) -> ScanRequest:
        """The unread part."""
        plan, one = self._plan, self._range
        typed = {one.name: one.engine for one in plan.typed}
        wanted = tuple(name for name in plan.schema.names if name != "seq" and name not in typed)
        # `_raw` and `_misfits` tell about every typed column.
        every = {RAW, MISFITS} & set(plan.schema.names)
        shown = [name for name in typed if every or name in plan.schema.names]
        return ScanRequest(
            topic=one.topic,
            topic_id=one.topic_id,
            after=self._cursor,
            upto=self._stop,
            columns=(*wanted, "seq", *GAP),
            binary=is_binary(plan.schema),
            strong=plan.strong,
            selection=plan.selection,
            fields=tuple((name, typed[name]) for name in shown),
            base=one.base,
        )

    def _binary_seq(self, error: TopicsError) -> int | None:
        """The seq of a binary record that a text column cannot show, unless such records fail the
        task."""
        found = BINARY.search(error.message)
        if found is None or self._plan.bad.kind == "fail":
            return None
        seq = int(found[1])
        return seq if self._cursor < seq <= self._last else None

    def _leave_out(self, seq: int) -> None:
        """Logs or copies a bad record, and goes on behind it. A task that runs again copies it
        again; the idempotency key drops the second copy for as long as the engine keeps it."""
        topic, bad = self._range.topic, self._plan.bad
        what = f"record {seq} of topic {topic!r} is binary, not JSON text"
        if bad.kind == "topic":
            self._copy(seq, bad.topic)
            log.warning("%s: it is copied to %r", what, bad.topic)
        else:
            log.warning("%s: it is left out", what)
        self._cursor, self._stop = seq, self._last

    def _copy(self, seq: int, to: str) -> None:
        one = self._range
        request = replace(
            self._request(),
            after=seq - 1,
            upto=seq,
            columns=("seq", "node", "tag", "data"),
            binary=True,
            selection=Selection(),
            fields=(),
        )
        with self._engine.scan(request) as scan:
            (row,) = (row for batch in scan.batches() for row in batch.to_pylist())
        meta = {
            "bad_topic": one.topic,
            "bad_seq": str(seq),
            "bad_reason": "binary data in a text column",
        }
        record = {"data_b64": base64.b64encode(row["data"]).decode(), "meta": meta}
        record |= {name: row[name] for name in ("node", "tag") if row[name]}
        body = {"records": [record], "idempotency_key": f"bad-{one.topic_id}-{seq}"}
        client = Client(self._plan.connection)
        try:
            client.call("POST", path_of("topics", to), body)
        finally:
            client.close()

    def _rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The cursor moves when the rows below it have been yielded."""
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
    none = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(none)
