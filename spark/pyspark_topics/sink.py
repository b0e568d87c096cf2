"""Sinks: tasks stage rows, which nobody sees; one commit publishes them, all or nothing.

A stage belongs to one attempt of one task, so a task that fails and runs again leaves nothing
behind. The commit names the stages that count, under a writer and an epoch: the engine keeps the
last epoch of every writer, and answers its repeat as the first time.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import getrandbits
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from .client import ARROW, Backoff, Client, path_of, retryable
from .columns import SINK
from .errors import InvalidOption, TopicsError
from .options import WriteOptions

log = logging.getLogger("pyspark_topics")

PART_ROWS = 32_768
PART_BYTES = 8 << 20
"""A part is one request: buffered whole in memory here and there, and synced. Spark's own batches
are smaller."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task attempt staged, and for which query it says it did."""

    writer: str
    stage: str
    parts: int
    records: int
    partition: int
    query: str | None


class Writer:
    """Stages of one writer name."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def stage(self, stage: str, part: int, rows: pa.Table) -> None:
        """A repeat is a no-op, so a broken connection is no reason to give up."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as out:
            out.write(rows)
        path = path_of("txn", self.name, "stage", stage) + f"?part={part}"
        body = sink.getvalue().to_pybytes()
        answer = self._client.call("POST", path, body, content=ARROW)
        if answer["staged"] != rows.num_rows:
            told = f"{answer['staged']} of {rows.num_rows} rows were staged"
            raise TopicsError(told, "txn_incomplete")

    def commit(self, epoch: int, stages: Iterable[Staged], once: bool = False) -> dict[str, Any]:
        body = {
            "epoch": epoch,
            "stages": [
                {"id": s.stage, "parts": s.parts, "records": s.records} for s in stages if s.parts
            ],
        }
        return self._client.call("POST", path_of("txn", self.name, "commit"), body, once=once)

    def state(self) -> tuple[int, set[str]]:
        """The last epoch, and the stages that wait."""
        try:
            answer = self._client.call("GET", path_of("txn", self.name))
        except TopicsError as e:
            if e.code != "txn_not_found":
                raise
            return 0, set()
        return answer.get("last_epoch") or 0, {stage["id"] for stage in answer["staged"]}

    def drop(self, stage: str) -> None:
        """Staged rows that nobody will commit; they would go by themselves in an hour."""
        try:
            self._client.call("DELETE", path_of("txn", self.name, "stage", stage), once=True)
        except TopicsError as e:
            log.info("stage %s of %s stays until it is swept: %s", stage, self.name, e)


class _Staging:
    """The side of a sink that runs in tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # One name for all tasks of a batch write: this is pickled.
        self._job = uuid.uuid4().hex

    def _writer_of(self, query: str | None) -> str:
        raise NotImplementedError

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        partition, query = _task()
        client = Client(self._options.connection)
        writer = Writer(client, self._writer_of(query))
        stage, part, records = f"{self._job[:8]}-{uuid.uuid4().hex}", 0, 0
        try:
            # One part is under way while the next one is made.
            with ThreadPoolExecutor(1) as behind:
                sent: Future[None] | None = None
                for rows in parts(batches, self._options.topic):
                    if sent is not None:
                        sent.result()
                    sent = behind.submit(writer.stage, stage, part, rows)
                    part, records = part + 1, records + rows.num_rows
                if sent is not None:
                    sent.result()
        except BaseException:
            # The first part too: it may be there although nobody said so.
            writer.drop(stage)
            raise
        finally:
            client.close()
        return Staged(writer.name, stage, part, records, partition, query)

    def _abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Never undoes what a commit published: that is not staged any more."""
        client = Client(self._options.connection)
        for message in _staged(messages):
            if message.parts:
                Writer(client, message.writer).drop(message.stage)
        client.close()


class TopicsWriter(_Staging, DataSourceArrowWriter):
    """A batch write: with `txnAppId` and `txnVersion` the same version is written once."""

    def _writer_of(self, query: str | None) -> str:
        given = self._options
        if given.app is not None:
            # An app that writes the same version to two topics means both.
            return given.app if given.topic is None else f"{given.app}:{given.topic}"
        if given.writer is not None:
            return given.writer
        # Not one for each write: the engine remembers every writer. A writer belongs to a key.
        key = hashlib.sha256((given.connection.token or "").encode()).hexdigest()[:16]
        return f"pyspark-batch-{key}"

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        stages = _staged(messages)
        client = Client(self._options.connection)
        writer = Writer(client, self._writer_of(None))
        version = self._options.version
        try:
            if version is not None:
                publish(writer, version, stages, self._options.skip_stale)
            elif any(stage.parts for stage in stages):
                publish_unnamed(writer, stages, self._options.connection.retry_seconds)
        finally:
            client.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class TopicsStreamWriter(_Staging, DataSourceStreamArrowWriter):
    """A stream's sink: exactly once, by query and batch."""

    def _writer_of(self, query: str | None) -> str:
        name = self._options.writer or query
        if name is None:
            raise InvalidOption('the query has no id here: name the sink with "writerId"')
        return name

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        stages = _staged(messages)
        query = next((stage.query for stage in stages), None)
        client = Client(self._options.connection)
        try:
            writer = Writer(client, self._writer_of(query))
            publish(writer, batchId, stages, self._options.skip_stale)
        finally:
            client.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


def publish(writer: Writer, epoch: int, stages: list[Staged], skip_stale: bool) -> None:
    """Publishes an epoch, once in all. What is staged and not needed is dropped."""
    try:
        answer = writer.commit(epoch, stages)
        done = bool(answer["deduped"])
    except TopicsError as e:
        if e.code != "stale_epoch" or not skip_stale:
            raise
        log.warning("%s: epoch %d is passed over: %s", writer.name, epoch, e)
        done = True
    if done:
        for stage in stages:
            if stage.parts:
                writer.drop(stage.stage)


def publish_unnamed(writer: Writer, stages: list[Staged], seconds: float) -> None:
    """Publishes stages that no epoch names. Their writer is shared by all such writes, so the epoch
    is the time; where another write has a later one, or an answer got lost, it shows in whether the
    stages still wait.
    """
    backoff = Backoff(seconds)
    unknown = False
    while True:
        last, waiting = writer.state()
        lost = [s.stage for s in stages if s.parts and s.stage not in waiting]
        if lost and unknown:
            return
        if lost:
            raise TopicsError(f"stage {lost[0]} of {writer.name} was swept", "txn_incomplete")
        epoch = max(last + 1, (time.time_ns() // 1_000_000) << 10) | getrandbits(10)
        try:
            if not writer.commit(epoch, stages, once=True)["deduped"]:
                return
        except TopicsError as e:
            if retryable(e):
                unknown = True
            elif e.code != "stale_epoch" and not (e.code == "txn_incomplete" and unknown):
                raise
            backoff.wait(e, e.retry_after)


def parts(batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[pa.Table]:
    """The rows in the engine's columns, in pieces that a request can carry."""
    buffered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _pieces(_shaped(batch, topic)):
            if buffered and (rows + piece.num_rows > PART_ROWS or size + piece.nbytes > PART_BYTES):
                yield pa.Table.from_batches(buffered)
                buffered, rows, size = [], 0, 0
            buffered.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if buffered:
        yield pa.Table.from_batches(buffered)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    each = max(1, min(PART_ROWS, PART_BYTES * rows // max(1, batch.nbytes)))
    for at in range(0, rows, each):
        yield batch.slice(at, each)


def _shaped(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """Sinks get whatever types the session has for a column: large strings, views, not null."""
    columns: dict[str, pa.Array] = {}
    for name in SINK:
        if name == "topic" and topic is not None:
            columns[name] = pa.repeat(pa.scalar(topic), batch.num_rows)
        elif name in batch.schema.names:
            columns[name] = _plain(batch.column(name))
    for name in ("topic", "data"):
        if columns[name].null_count:
            raise TopicsError(f"a row has no {name}: it cannot be null in a sink")
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


def _staged(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """What tasks said, in the order of the rows; a task that failed said nothing."""
    return sorted((m for m in messages if isinstance(m, Staged)), key=lambda m: m.partition)


def _task() -> tuple[int, str | None]:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0, None
    return context.partitionId(), context.getLocalProperty("sql.streaming.queryId")
