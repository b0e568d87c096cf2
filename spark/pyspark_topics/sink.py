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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import getrandbits
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
class Staged:
    """What one task attempt staged under one writer."""

    writer: str
    stage: str
    parts: int
    records: int
    topics: tuple[tuple[str, int], ...]
    """The rows of each topic."""


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What one task attempt staged, and for which streaming query it ran."""

    stages: tuple[Staged, ...]
    partition: int
    query: str | None


class Writer:
    """Stages and commits of one writer name."""

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
        """The last epoch, and the stages that wait."""
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


class _Stage:
    """One stage while a task fills it."""

    def __init__(self, writer: Writer, owner: str) -> None:
        self.writer = writer
        self.id = f"{owner}-{uuid.uuid4().hex}"
        self._parts = self._records = 0
        self._topics: Counter[str] = Counter()

    def add(self, rows: pa.Table) -> None:
        """Counted before it is sent: a part may have arrived although its answer did not."""
        part, self._parts = self._parts, self._parts + 1
        self._records += rows.num_rows
        for one in rows.column("topic").value_counts().to_pylist():
            self._topics[one["values"]] += one["counts"]
        self.writer.stage(self.id, part, rows)

    def result(self) -> Staged:
        topics = tuple(sorted(self._topics.items()))
        return Staged(self.writer.name, self.id, self._parts, self._records, topics)


class _Staging:
    """The side of a sink that runs in tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # One name for all tasks of a batch write: this is pickled.
        self._job = uuid.uuid4().hex

    def _writer_of(self, query: str | None, topic: str) -> str:
        """The name of the writer of a topic's rows."""
        raise NotImplementedError

    def _owner(self, query: str | None) -> str:
        """What the stages of this write begin with; those of a streaming query in all its runs."""
        return self._job[:8]

    def _split_by_topic(self) -> bool:
        return False

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        partition, query = _task()
        client = Client(self._options.connection)
        owner, stages = self._owner(query), dict[str, _Stage]()
        try:
            # One part is sent while the next one is made.
            with ThreadPoolExecutor(1) as sender:
                sent: Future[None] | None = None
                for topic, rows in self._parts(batches):
                    name = self._writer_of(query, topic)
                    if name not in stages:
                        stages[name] = _Stage(Writer(client, name), owner)
                    if sent is not None:
                        sent.result()
                    sent = sender.submit(stages[name].add, rows)
                if sent is not None:
                    sent.result()
        except BaseException:
            for stage in stages.values():
                stage.writer.drop(stage.id)
            raise
        finally:
            client.close()
        return TaskResult(tuple(stage.result() for stage in stages.values()), partition, query)

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
        """Tables of at most a part's size; each of one topic where that has a writer of its own."""
        for rows in parts(batches, self._options.topic):
            if not self._split_by_topic():
                yield "", rows
                continue
            topics = rows.column("topic")
            for topic in topics.unique().to_pylist():
                yield topic, rows.filter(pc.equal(topics, topic))

    def _abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Never undoes what a commit published: that is not staged any more."""
        client = Client(self._options.connection)
        for staged in _stages(_results(messages)):
            Writer(client, staged.writer).drop(staged.stage)
        client.close()


class TopicsWriter(_Staging, DataSourceArrowWriter):
    """A batch write: with `txnAppId` and `txnVersion` the same version of an app is written once to
    each topic."""

    def _split_by_topic(self) -> bool:
        return self._options.app is not None and self._options.topic is None

    def _writer_of(self, query: str | None, topic: str) -> str:
        given = self._options
        if given.app is not None:
            # An app that writes the same version to two topics means both.
            return f"{given.app}:{given.topic or topic}"
        if given.writer is not None:
            return given.writer
        # Not one for each write: the engine remembers every writer. A writer belongs to a key.
        key = hashlib.sha256((given.connection.token or "").encode()).hexdigest()[:16]
        return f"pyspark-batch-{key}"

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        stages = _stages(_results(messages))
        client = Client(self._options.connection)
        given, owner = self._options, self._owner(None)
        try:
            if given.version is None:
                if stages:
                    writer = Writer(client, self._writer_of(None, ""))
                    publish_unnamed(writer, stages, self._job, given.connection.retry_seconds)
                    writer.sweep(owner)
                return
            names = {staged.writer for staged in stages}
            if given.topic is not None:
                # A version without rows is a version too.
                names.add(self._writer_of(None, given.topic))
            for name in sorted(names):
                of = [staged for staged in stages if staged.writer == name]
                # The app and its version say what is a repeat, whichever job runs it.
                identity = f"txnAppId={given.app}"
                epoch = Epoch(given.version, identity, owner, given.skip_stale)
                publish(Writer(client, name), epoch, of)
        finally:
            client.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class TopicsStreamWriter(_Staging, DataSourceStreamArrowWriter):
    """A stream's sink: exactly once, by query and batch."""

    def _writer_of(self, query: str | None, topic: str) -> str:
        name = self._options.writer or query
        if name is None:
            raise InvalidOption('the query has no id here: name the sink with "writerId"')
        return name

    def _owner(self, query: str | None) -> str:
        return (query or self._job).replace("-", "")[:8]

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        results = _results(messages)
        query = next((result.query for result in results), None)
        client = Client(self._options.connection)
        try:
            writer = Writer(client, self._writer_of(query, ""))
            epoch = Epoch(batchId, query or "", self._owner(query), self._options.skip_stale)
            publish(writer, epoch, _stages(results))
        finally:
            client.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


@dataclass(frozen=True)
class Epoch:
    """One epoch of a writer: the batch of a stream, or the version of an app."""

    number: int
    query: str
    """Whose it is. The engine answers its repeat, and refuses that of another query."""
    owner: str
    """What the names of its stages begin with."""
    skip_stale: bool


def publish(writer: Writer, epoch: Epoch, stages: list[Staged]) -> None:
    """Publishes an epoch, once in all. What is staged and not needed is dropped."""
    try:
        answer = writer.commit(epoch.number, stages, epoch.query)
        if answer["deduped"]:
            _report_repeat(writer.name, epoch, stages, answer["topics"])
    except TopicsError as e:
        # Another query's epoch of this number is no repeat of this one: its rows are not there.
        if e.code != "stale_epoch" or not epoch.skip_stale or "committed_by" in e.detail:
            raise
        log.warning("%s: epoch %d is skipped: %s", writer.name, epoch.number, e)
    writer.sweep(epoch.owner)


def _report_repeat(
    name: str, epoch: Epoch, stages: list[Staged], topics: Mapping[str, Mapping[str, int]]
) -> None:
    """Logs that an epoch had been committed before; warns where it had other rows then."""
    staged: Counter[str] = Counter()
    for stage in stages:
        staged.update(dict(stage.topics))
    first = {topic: got["last_seq"] - got["first_seq"] + 1 for topic, got in topics.items()}
    log.info("%s: epoch %d was committed before, with %s", name, epoch.number, first)
    if first != dict(staged):
        log.warning(
            "%s: epoch %d was committed before with rows %s and now has %s: the first commit "
            "stands; is the source deterministic?",
            name,
            epoch.number,
            first,
            dict(staged),
        )


def publish_unnamed(writer: Writer, stages: list[Staged], job: str, seconds: float) -> None:
    """Publishes stages that no epoch names. Their writer is shared by all such writes, so the epoch
    is the time. An epoch that another job has, or a later one, is `stale_epoch`: the next attempt
    takes a later one. After a lost answer, stages that no longer wait were published.
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
            writer.commit(epoch, stages, job, once=True)
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


def _results(messages: Iterable[WriterCommitMessage | None]) -> list[TaskResult]:
    """The results of tasks, in the order of the rows; a task that failed has none."""
    found = (message for message in messages if isinstance(message, TaskResult))
    return sorted(found, key=lambda result: result.partition)


def _stages(results: Iterable[TaskResult]) -> list[Staged]:
    return [staged for result in results for staged in result.stages]


def _task() -> tuple[int, str | None]:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0, None
    return context.partitionId(), context.getLocalProperty("sql.streaming.queryId")
