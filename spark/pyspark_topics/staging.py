"""Stages of one task attempt: parts of rows that are sent to the server, and wait for a commit."""

from __future__ import annotations

import logging
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .bad import BadRecords, BadRow, as_records, not_json, report
from .client import ARROW, Client, path_of
from .columns import SINK
from .errors import TopicsError

log = logging.getLogger("pyspark_topics")

PART_ROWS = 32_768
PART_BYTES = 8 << 20
"""A part is one request: both sides buffer it completely in memory, and the server syncs it.
Spark's own batches are smaller."""
PLANNED = (
    "A batch that a stream has planned keeps its size: maxBytesPerTrigger and maxOffsetsPerTrigger "
    "hold only for the batches after it"
)
IN_PART = re.compile(r"^records?\W?\[?\d+\]?[.:]? ?")
"""Which row of a part a refusal is about."""


@dataclass(frozen=True)
class Staged:
    """What one task attempt staged under one writer."""

    writer: str
    stage: str
    parts: int
    records: int
    topics: tuple[tuple[str, int], ...]
    """The rows of each topic."""


@dataclass(frozen=True)
class Part:
    """Rows in the engine's columns, and where they are in the partition."""

    table: pa.Table
    first: int
    """The index of the part's first row in the rows of its partition."""
    picked: pa.Array | None = None
    """The indexes of these rows behind `first`; `None`: all."""

    def number(self, at: int) -> int:
        """The index of a row in the rows of its partition, from 0."""
        return self.first + (at if self.picked is None else self.picked[at].as_py())

    def chosen(self, mask: pa.Array | pa.ChunkedArray) -> Part:
        at = pc.indices_nonzero(mask)
        picked = at if self.picked is None else self.picked.take(at)
        return Part(self.table.filter(mask), self.first, picked)


class Writer:
    """Stages and commits of one writer name."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def stage(self, stage: str, part: int, rows: pa.Table) -> None:
        """Stages a part. A repeat has no effect, so the request is repeated after a broken
        connection."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=self._client.compression)
        with pa.ipc.new_stream(sink, rows.schema, options=options) as out:
            out.write(rows)
        path = path_of("txn", self.name, "stage", stage) + f"?part={part}"
        body = memoryview(sink.getvalue())
        try:
            answer = self._client.call("POST", path, body, content=ARROW)
        except TopicsError as e:
            if e.detail.get("limit") == "txn_bytes":
                told = (
                    f"the server's staged rows fill its setting TOPICS_TXN_BYTES "
                    f"({e.detail['max']} bytes): raise it above the size of one batch, or set it "
                    f"to 0 (only the disk bounds them). {PLANNED}"
                )
            elif e.detail.get("reason") == "no_space":
                told = (
                    "the server's disk has no space for the staged rows of this batch: free or "
                    f"add space ({e.message}). {PLANNED}"
                )
            else:
                raise
            raise TopicsError(told, e.code, e.detail, e.retry_after) from e
        if answer["staged"] != rows.num_rows:
            told = f"{answer['staged']} of {rows.num_rows} rows were staged"
            raise TopicsError(told, "txn_incomplete")

    def commit(
        self, epoch: int, stages: Iterable[Staged], query: str = "", once: bool = False
    ) -> dict[str, Any]:
        body = {
            "epoch": epoch,
            "query": query,
            "stages": [
                {"id": s.stage, "parts": s.parts, "records": s.records} for s in stages if s.parts
            ],
        }
        return self._client.call("POST", path_of("txn", self.name, "commit"), body, once=once)

    def state(self) -> tuple[int, set[str]]:
        """The last epoch, and the waiting stages."""
        try:
            answer = self._client.call("GET", path_of("txn", self.name))
        except TopicsError as e:
            if e.code != "txn_not_found":
                raise
            return 0, set()
        return answer.get("last_epoch") or 0, {stage["id"] for stage in answer["staged"]}

    def drop(self, stage: str) -> None:
        """Drops staged rows that no commit will name; the server would sweep them in an hour."""
        try:
            self._client.call("DELETE", path_of("txn", self.name, "stage", stage), once=True)
        except TopicsError as e:
            log.info("stage %s of %s stays until it is swept: %s", stage, self.name, e)

    def sweep(self, owner: str) -> None:
        """Drops every stage of `owner` that still waits: those of speculative and failed attempts,
        and all of them after a commit that was a repeat."""
        try:
            waiting = self.state()[1]
        except TopicsError as e:
            log.info("stages of %s stay until they are swept: %s", self.name, e)
            return
        for stage in waiting:
            if stage.startswith(f"{owner}-"):
                self.drop(stage)


class Stage:
    """One stage while a task fills it."""

    def __init__(self, writer: Writer, owner: str, partition: int, bad: BadRecords) -> None:
        self.writer = writer
        self.id = f"{owner}-{uuid.uuid4().hex}"
        self._partition, self._bad = partition, bad
        self._parts = self._records = 0
        self._topics: Counter[str] = Counter()

    def add(self, part: Part) -> None:
        """Stages a part, without the rows that the server refuses."""
        bad: list[BadRow] = []
        nulls = _nulls(part.table)
        if nulls is not None:
            part = self._without(part, nulls, bad)
        searched = False
        while part.table.num_rows:
            try:
                self._send(part.table)
                break
            except TopicsError as e:
                index = e.detail.get("index")
                if not isinstance(index, int) or not 0 <= index < part.table.num_rows:
                    raise
                # The server counts from the part's start.
                reasons = {index: IN_PART.sub("", e.message)}
                if not searched and self._bad.kind != "fail":
                    # The server names the first one only.
                    reasons |= _not_json(part.table)
                    searched = True
                part = self._without(part, reasons, bad)
        self._dispose(bad)

    def _send(self, rows: pa.Table) -> None:
        """Counted although its answer may be lost, because the part may have arrived; not counted
        if it was refused."""
        self.writer.stage(self.id, self._parts, rows)
        self._parts += 1
        self._records += rows.num_rows
        for one in rows.column("topic").value_counts().to_pylist():
            self._topics[one["values"]] += one["counts"]

    def _without(self, part: Part, reasons: dict[int, str], bad: list[BadRow]) -> Part:
        """The part without the rows at these indexes, which are added to `bad`."""
        table = part.table
        for index, reason in sorted(reasons.items()):
            data = table.column("data")[index].as_py()
            raw = data.encode() if isinstance(data, str) else data or b""
            topic = table.column("topic")[index].as_py() or ""
            row = BadRow(topic, part.number(index), raw, reason)
            if self._bad.kind == "fail":
                raise TopicsError(f"{row.where(self._partition)} cannot be written: {reason}")
            bad.append(row)
        return part.chosen(pa.array(i not in reasons for i in range(table.num_rows)))

    def _dispose(self, bad: list[BadRow]) -> None:
        """Logs bad rows, and stages them for their topic: they are published with the others."""
        if not bad:
            return
        bad.sort(key=lambda row: row.row)
        report(self._partition, bad)
        if self._bad.kind == "topic":
            self._send(as_records(self._bad.topic, self._partition, bad))

    def result(self) -> Staged:
        topics = tuple(sorted(self._topics.items()))
        return Staged(self.writer.name, self.id, self._parts, self._records, topics)


def _nulls(table: pa.Table) -> dict[int, str] | None:
    """The rows without topic or data."""
    found: dict[int, str] = {}
    for name in ("topic", "data"):
        column = table.column(name)
        if column.null_count:
            for at in pc.indices_nonzero(column.is_null()).to_pylist():
                found.setdefault(at, f"the row has no {name}: it cannot be null in a sink")
    return found or None


def _not_json(table: pa.Table) -> dict[int, str]:
    reasons = map(not_json, table.column("data").to_pylist())
    return {at: reason for at, reason in enumerate(reasons) if reason is not None}


def parts(batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[Part]:
    """The rows in the engine's columns, in pieces that fit into a request."""
    buffered: list[pa.RecordBatch] = []
    first = rows = size = 0
    for batch in batches:
        for piece in _pieces(_shaped(batch, topic)):
            if buffered and (rows + piece.num_rows > PART_ROWS or size + piece.nbytes > PART_BYTES):
                yield Part(pa.Table.from_batches(buffered), first)
                buffered, first, rows, size = [], first + rows, 0, 0
            buffered.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if buffered:
        yield Part(pa.Table.from_batches(buffered), first)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    each = max(1, min(PART_ROWS, PART_BYTES * rows // max(1, batch.nbytes)))
    for at in range(0, rows, each):
        yield batch.slice(at, each)


def _shaped(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """Converts the session's types of a column, such as large strings, views and not-null types,
    into the engine's."""
    columns: dict[str, pa.Array] = {}
    for name in SINK:
        if name == "topic" and topic is not None:
            columns[name] = pa.repeat(pa.scalar(topic), batch.num_rows)
        elif name in batch.schema.names:
            columns[name] = _plain(batch.column(name))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_map(kind):
        wanted = pa.map_(pa.string(), pa.string())
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        wanted = pa.binary()
    else:
        wanted = pa.string()
    return column if kind == wanted else column.cast(wanted)
