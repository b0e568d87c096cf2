"""Sinks: tasks stage rows, which are invisible until one commit publishes them, all or nothing.

A stage belongs to one attempt of one task, so a failed and repeated task leaves no rows. The commit
names the valid stages under a writer and an epoch. The engine stores the last epoch of every writer
and gives a repeated commit the same answer.
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

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .client import Backoff, Client, retryable
from .compat import DataSourceStreamArrowWriter
from .errors import InvalidOption, TopicsError
from .options import WriteOptions
from .staging import Part, Stage, Staged, Writer, parts

log = logging.getLogger("pyspark_topics")


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What one task attempt staged, and for which streaming query it ran."""

    stages: tuple[Staged, ...]
    partition: int
    query: str | None


class _Staging:
    """The part of a sink that runs in tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # One name for all tasks of a batch write, because this object is pickled.
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
        owner, stages = self._owner(query), dict[str, Stage]()
        try:
            # One part is sent while the next one is made.
            with ThreadPoolExecutor(1) as sender:
                sent: Future[None] | None = None
                for topic, part in self._parts(batches):
                    name = self._writer_of(query, topic)
                    if name not in stages:
                        bad = self._options.bad
                        stages[name] = Stage(Writer(client, name), owner, partition, bad)
                    if sent is not None:
                        sent.result()
                    sent = sender.submit(stages[name].add, part)
                if sent is not None:
                    sent.result()
        except BaseException:
            for stage in stages.values():
                stage.writer.drop(stage.id)
            raise
        finally:
            client.close()
        return TaskResult(tuple(stage.result() for stage in stages.values()), partition, query)

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Part]]:
        """Parts of at most a request's size; each of one topic where that has a writer of its
        own."""
        for part in parts(batches, self._options.topic):
            if not self._split_by_topic():
                yield "", part
                continue
            # Rows without a topic are bad ones, of whichever writer.
            topics = part.table.column("topic").fill_null("")
            for topic in topics.unique().to_pylist():
                yield topic, part.chosen(pc.equal(topics, topic))

    def _abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Never undoes a commit: published rows are no longer staged."""
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
        # Not a new name for each write, because the engine remembers every writer. A writer belongs
        # to a key.
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
    """The sink of a stream: exactly once, by query and batch."""

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
    """Logs that an epoch had been committed before, and whether it had other rows then. These are
    warnings because a worker of Spark shows nothing below."""
    staged: Counter[str] = Counter()
    for stage in stages:
        staged.update(dict(stage.topics))
    first = {topic: got["last_seq"] - got["first_seq"] + 1 for topic, got in topics.items()}
    if first == dict(staged):
        log.warning("%s: epoch %d was committed before, with %s", name, epoch.number, first)
    else:
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
