"""Spans of the four clients, and the trace context that records keep."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, SpanKind, StatusCode, get_current_span

import topics_engine as te
from support.server import Server

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = int(PARENT[3:35], 16)


class Recorded:
    """The spans that have ended, and a tracer of the program itself."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def span(self, name: str) -> AbstractContextManager[Any]:
        """A span of the program."""
        return self.provider.get_tracer("program").start_as_current_span(name)

    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    found = Recorded()
    te.otel.instrument(found.provider)
    yield found
    te.otel.uninstrument()
    assert get_current_span() is INVALID_SPAN, "no span is left current"


@pytest.fixture(params=["embedded", "remote"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(request: pytest.FixtureRequest, client: str) -> str:
    """Of a server; empty for an embedded engine."""
    if client == "embedded":
        return ""
    live: Server = request.getfixturevalue("hot_server")
    return live.url


@pytest.fixture
def db(url: str, data_dir: Path) -> Iterator[te.Database]:
    with te.connect(url) if url else te.open(data_dir) as opened:
        yield opened


def parent_of(record: Any) -> str:
    return str(record.meta["traceparent"])


def id_of(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def id_in(traceparent: str) -> tuple[int, int]:
    _, trace, span, _ = traceparent.split("-")
    return int(trace, 16), int(span, 16)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def parent_id(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def said(span: ReadableSpan) -> dict[str, Any]:
    """The attributes that are not those of every span."""
    found = dict(span.attributes or {})
    assert found.pop("messaging.system") == "topics_engine"
    assert f"{found.pop('messaging.operation.name')} {found['messaging.destination.name']}" == (
        span.name
    )
    del found["messaging.destination.name"]
    return found


class BrokenError(Exception):
    pass


def check_story(recorded: Recorded, url: str, topic: str, letter: te.Record) -> None:
    """A request writes a record; a router copies it into a queue, whose worker fails; a consumer
    reads the dead letter.
    """
    queue, dead = f"{topic}.jobs", f"{topic}.dead"
    request, sent = recorded.one("request"), recorded.one(f"send {topic}")
    server: dict[str, Any] = {}
    if url:
        port = int(url.rpartition(":")[2])
        server = {"server.address": "127.0.0.1", "server.port": port}
    assert (sent.kind, parent_id(sent)) == (SpanKind.PRODUCER, id_of(request))
    assert said(sent) == {
        "messaging.operation.type": "send",
        "messaging.message.id": "1",
        **server,
    }
    claimed = recorded.one(f"receive {queue}")
    assert (claimed.kind, parent_id(claimed)) == (SpanKind.CLIENT, None)
    assert links(claimed) == [id_of(sent)]
    assert said(claimed) == {
        "messaging.operation.type": "receive",
        "messaging.client.id": "w",
        "messaging.batch.message_count": 1,
        **server,
    }
    job, work = recorded.one(f"process {queue}"), recorded.one("work")
    assert (job.kind, parent_id(job), links(job)) == (
        SpanKind.CONSUMER,
        id_of(sent),
        [id_of(sent)],
    )
    assert parent_id(work) == id_of(job)
    assert job.status.status_code is StatusCode.ERROR
    assert said(job) == {
        "messaging.operation.type": "process",
        "messaging.message.id": "1",
        "messaging.client.id": "w",
        "error.type": "BrokenError",
    }
    read, handled = recorded.one(f"receive {dead}"), recorded.one(f"process {dead}")
    assert links(read) == links(handled) == [id_of(sent)]
    assert said(read)["messaging.consumer.group.name"] == "audit"
    assert parent_id(handled) is None, "of a batch"
    assert said(handled) == {
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 1,
        "messaging.consumer.group.name": "audit",
    }
    assert id_in(parent_of(letter)) == id_of(sent)
    assert letter.meta is not None
    assert letter.meta["$dead_letter_from"] == queue
    assert letter.meta["$dead_letter_error"] == "BrokenError: no"
    of_trace = [span.name for span in (request, sent, job, work)]
    assert {id_of(recorded.one(name))[0] for name in of_trace} == {id_of(request)[0]}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_trace_through_a_router_a_queue_and_a_dead_letter(
    recorded: Recorded, url: str, db: te.Database, topic: str, guarantee: Any
) -> None:
    queue = db.queue(f"{topic}.jobs", max_deliveries=1, dead_letter=f"{topic}.dead")
    source, dead = db.topic(topic), db.topic(f"{topic}.dead")
    source.create()
    dead.create()
    db.router(topic, source, queue, guarantee=guarantee)
    with recorded.span("request"):
        source.append({"id": 1})
    (job,) = queue.claim("w", wait=60)
    with pytest.raises(BrokenError), job, recorded.span("work"):
        raise BrokenError("no")
    audit = dead.consumer("audit")
    batch = audit.read(wait=60)
    with te.otel.process(batch):
        pass
    batch.commit()
    (letter,) = batch
    assert isinstance(letter, te.Record)
    check_story(recorded, url, topic, letter)
    # A redrive gives the job back as it was.
    assert db.redrive(dead.name) == 1
    (again,) = queue.claim("w", wait=60)
    assert parent_of(again) == parent_of(letter)
    recorded.clear()
    with again:
        pass
    assert recorded.one(f"process {queue.name}").status.status_code is StatusCode.UNSET


def test_the_same_under_asyncio(recorded: Recorded, url: str, data_dir: Path, topic: str) -> None:
    async def story() -> None:
        opened = te.aio.connect(url) if url else await te.aio.open(data_dir)
        async with opened as db:
            queue = await db.queue(f"{topic}.jobs", max_deliveries=1, dead_letter=f"{topic}.dead")
            source, dead = db.topic(topic), db.topic(f"{topic}.dead")
            await source.create()
            await dead.create()
            await db.router(topic, source, queue)
            with recorded.span("request"):
                await source.append({"id": 1})
            (job,) = await queue.claim("w", wait=60)

            async def work() -> None:
                async with job:
                    with recorded.span("work"):
                        raise BrokenError("no")

            with pytest.raises(BrokenError):
                await work()
            audit = await dead.consumer("audit")
            batch = await audit.read(wait=60)
            with te.otel.process(batch):
                await batch.commit()
            (letter,) = batch
            assert isinstance(letter, te.Record)
            check_story(recorded, url, topic, letter)

    asyncio.run(story())


def test_tasks_have_spans_of_their_own(
    recorded: Recorded, url: str, data_dir: Path, topic: str
) -> None:
    async def work(db: te.aio.Database, n: int) -> None:
        queue = await db.queue(f"{topic}.{n}")
        with recorded.span(f"request {n}"):
            await asyncio.gather(*(queue.append(i) for i in range(3)))
        async with asyncio.timeout(120):
            done = 0
            while done < 3:
                for job in await queue.claim("w", max=2, wait=1):
                    async with job:
                        await asyncio.sleep(0)
                        with recorded.span(f"inner {n}"):
                            done += 1

    async def run() -> None:
        opened = te.aio.connect(url) if url else await te.aio.open(data_dir)
        async with opened as db:
            await asyncio.gather(*(work(db, n) for n in range(4)))

    asyncio.run(run())
    for n in range(4):
        (trace, root) = id_of(recorded.one(f"request {n}"))
        sent = {id_of(span) for span in recorded.named(f"send {topic}.{n}")}
        assert {parent_id(span) for span in recorded.named(f"send {topic}.{n}")} == {(trace, root)}
        done = recorded.named(f"process {topic}.{n}")
        assert {parent_id(span) for span in done} == sent
        assert {parent_id(span) for span in recorded.named(f"inner {n}")} == set(map(id_of, done))


def test_a_batch_has_one_context_and_records_keep_their_own(
    recorded: Recorded, db: te.Database, topic: str
) -> None:
    own = te.NewRecord(2, meta={"traceparent": PARENT, "a": "b"})
    ack = db.topic(topic).append(
        [1, own, te.NewRecord(3, tag="t", meta={"c": "d"}), te.NewRecord(4)], meta={"e": "f"}
    )
    assert ack.count == 4
    first, second, third, fourth = db.topic(topic).read()
    sent = recorded.one(f"send {topic}")
    assert links(sent) == [id_in(PARENT)]
    found = said(sent)
    assert (found["topics_engine.first_seq"], found["topics_engine.last_seq"]) == (1, 4)
    assert found["messaging.batch.message_count"] == 4
    context = parent_of(first)
    assert id_in(context) == id_of(sent)
    assert [
        item.meta for item in (first, second, third, fourth) if isinstance(item, te.Record)
    ] == [
        {"e": "f", "traceparent": context},
        {"a": "b", "traceparent": PARENT},
        {"c": "d", "traceparent": context},
        {"e": "f", "traceparent": context},
    ]
    # The links of a batch: one to each context.
    recorded.clear()
    batch = db.topic(topic).consumer("c").read()
    assert len(batch) == 4
    assert links(recorded.one(f"receive {topic}")) == [id_of(sent), id_in(PARENT)]


def test_raw_batches_tables_and_transactions(
    recorded: Recorded, db: te.Database, topic: str
) -> None:
    import pyarrow

    log = db.topic(topic)
    log.append_batch([b"x", b"y"], tag="raw")
    log.append_arrow(pyarrow.table({"data": ["1"]}))
    metas = pyarrow.array([[("a", "b")], None], pyarrow.map_(pyarrow.string(), pyarrow.string()))
    log.append_arrow(pyarrow.table({"data": ["2", "3"], "meta": metas}))
    with recorded.span("request"), db.transaction() as tx:
        tx.append(log, [4, 5], meta={"g": "h"})
    records = [item for item in log.read() if isinstance(item, te.Record)]
    assert [record.data for record in records] == [b"x", b"y", 1, 2, 3, 4, 5]
    assert [record.tag for record in records] == ["raw", "raw", None, None, None, None, None]
    sends = [id_of(span) for span in recorded.named(f"send {topic}")]
    created = recorded.one(f"create {topic}")
    assert parent_id(created) == id_of(recorded.one("request"))
    by_record = [0, 0, 1, 2, 2]
    expected = [*(sends[n] for n in by_record), id_of(created), id_of(created)]
    assert [id_in(parent_of(record)) for record in records] == expected
    assert records[3].meta is not None
    assert records[3].meta["a"] == "b"
    assert records[5].meta is not None
    assert records[5].meta["g"] == "h"
    with pytest.raises(te.InvalidRequest, match=r"records\[1\]"):
        log.append_batch([b"x", "y"])  # type: ignore[list-item]


def test_what_fails_says_so(recorded: Recorded, db: te.Database, topic: str) -> None:
    log = db.topic(topic)
    log.append(1)
    recorded.clear()
    with pytest.raises(te.Conflict):
        log.append(2, expect_head=7)
    sent = recorded.one(f"send {topic}")
    assert sent.status.status_code is StatusCode.ERROR
    assert said(sent)["error.type"] == "HeadMismatch"
    queue = db.queue(f"{topic}.jobs")
    queue.append(1)
    assert queue.drop()
    with pytest.raises(te.NotFound):
        queue.claim("w")
    claimed = recorded.one(f"receive {queue.name}")
    assert said(claimed)["error.type"] == "NotFound"
    assert claimed.status.status_code is StatusCode.ERROR
    # Arguments are refused as they are without tracing.
    with pytest.raises(te.InvalidRequest, match="meta"):
        log.append(1, meta="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tags"):
        log.append(1, tags="x")  # type: ignore[call-arg]
    with pytest.raises(te.InvalidRequest, match="process needs"):
        te.otel.process([]).__enter__()


def test_the_end_of_a_lease_is_an_error_of_its_span(
    recorded: Recorded, db: te.Database, topic: str
) -> None:
    queue = db.queue(topic)
    queue.append(1)
    (job,) = queue.claim("w")
    with pytest.raises(te.LeaseLost, match="acked or deleted"), job:
        assert queue.remove(job.seq, force=True) == 1
    assert said(recorded.one(f"process {topic}"))["error.type"] == "LeaseLost"


def test_empty_receives_and_peeks_are_no_spans(
    recorded: Recorded, db: te.Database, topic: str
) -> None:
    queue = db.queue(topic)
    queue.append(1)
    reader = db.topic(topic).consumer("c")
    recorded.clear()
    assert len(reader.peek()) == 1
    assert len(queue.claim("w")) == 1
    assert queue.claim("w") == []
    assert recorded.names() == [f"receive {topic}"]


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {"a": "b"},
        {"traceparent": ""},
        {"traceparent": PARENT[:-1]},
        {"traceparent": PARENT.replace("0af7", "0AF7")},
        {"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"},
        {"tracestate": "a=1"},
    ],
)
def test_records_without_a_valid_context_have_no_links(
    db: te.Database, topic: str, meta: dict[str, str] | None
) -> None:
    queue = db.queue(topic)
    queue.append(1, meta=meta)
    recorded = Recorded()
    te.otel.instrument(recorded.provider)
    try:
        (job,) = queue.claim("w")
        with job:
            pass
        assert get_current_span(te.otel.context_of(job)) is INVALID_SPAN
    finally:
        te.otel.uninstrument()
    for name in ("receive", "process"):
        span = recorded.one(f"{name} {topic}")
        assert (links(span), span.parent) == ([], None)


def test_a_current_span_is_the_parent(recorded: Recorded, db: te.Database, topic: str) -> None:
    queue = db.queue(topic)
    queue.append(1, meta={"traceparent": PARENT, "tracestate": "v=1"})
    recorded.clear()
    with recorded.span("worker"):
        (job,) = queue.claim("w")
        with job:
            pass
    worker = recorded.one("worker")
    for name in ("receive", "process"):
        span = recorded.one(f"{name} {topic}")
        assert (parent_id(span), links(span)) == (id_of(worker), [id_in(PARENT)])
        assert span.links[0].context.trace_state.get("v") == "1"
    with recorded.span("alone") as alone:
        pass
    assert alone.parent is None


def test_jobs_of_work_and_records_of_a_read(
    recorded: Recorded, db: te.Database, topic: str
) -> None:
    queue = db.queue(topic)
    with recorded.span("request"):
        queue.append([1, 2])
    with queue.work("w") as work:
        for _, job in zip(range(2), work, strict=False):
            with job:
                pass
    sent = recorded.one(f"send {topic}")
    assert [parent_id(s) for s in recorded.named(f"process {topic}")] == [id_of(sent)] * 2
    db.topic(f"{topic}.log").append(1)
    (record,) = db.topic(f"{topic}.log").read()
    assert isinstance(record, te.Record)
    with te.otel.process(record):
        pass
    sent = recorded.one(f"send {topic}.log")
    assert parent_id(recorded.one(f"process {topic}.log")) == id_of(sent)
    context = te.otel.context_of(record)
    assert get_current_span(context).get_span_context().trace_id == id_of(sent)[0]


def test_every_way_to_read_returns_it(recorded: Recorded, db: te.Database, topic: str) -> None:
    log = db.topic(topic)
    log.append([1, 2])
    expected = [id_of(recorded.one(f"send {topic}"))] * 2
    with db.watch({topic: te.EARLIEST}) as watch:
        seen = list(islice((item for item in watch if isinstance(item, te.Record)), 2))
    table = log.read().to_arrow()
    metas = [dict(meta) for meta in table["meta"].to_pylist()]
    for found in (log.read(), log.tail(2), log.consumer("c").read(), seen):
        assert [id_in(parent_of(record)) for record in found] == expected
    assert [id_in(meta["traceparent"]) for meta in metas] == expected


def test_a_repeat_has_another_context(recorded: Recorded, db: te.Database, topic: str) -> None:
    log = db.topic(topic)
    for deduped in (False, True):
        with recorded.span("request"):
            ack = log.append([{"id": 1}], meta={"a": "b"}, idempotency_key="k")
        assert (ack.deduped, ack.first_seq) == (deduped, 1)
    for deduped in (False, True):
        with recorded.span("request"), db.transaction(idempotency_key=topic) as tx:
            tx.append(log, 2)
        assert tx.result.deduped is deduped
    with pytest.raises(te.Conflict):
        log.append([{"id": 2}], meta={"a": "b"}, idempotency_key="k")
    first, second = log.read()
    assert id_in(parent_of(first)) == id_of(recorded.named(f"send {topic}")[0])
    assert id_in(parent_of(second)) == id_of(recorded.named(f"create {topic}")[0])


def test_metas_with_too_many_keys_get_no_context(
    recorded: Recorded, db: te.Database, topic: str
) -> None:
    metas = [{f"k{n}": "" for n in range(count)} for count in (63, 64)]
    db.topic(topic).append([te.NewRecord(1, meta=meta) for meta in metas])
    most, full = db.topic(topic).read()
    assert id_in(parent_of(most)) == id_of(recorded.one(f"send {topic}"))
    assert isinstance(full, te.Record)
    assert full.meta == metas[1]


def test_off_again(data_dir: Path) -> None:
    recorded = Recorded()
    te.otel.instrument(recorded.provider)
    te.otel.instrument(recorded.provider)
    with te.open(data_dir) as db:
        queue = db.queue("q")
        queue.append(1)
        assert recorded.names() == ["send q"], "a second call adds nothing"
        (job,) = queue.claim("w")
        te.otel.uninstrument()
        te.otel.uninstrument()
        recorded.clear()
        job.ack()
        queue.append(2)
        (job,) = queue.claim("w")
        assert job.meta is None
        with job, te.otel.process(job) as span:
            assert span is INVALID_SPAN
        assert recorded.names() == []


def test_a_block_ends_as_it_began(data_dir: Path) -> None:
    recorded = Recorded()
    with te.open(data_dir) as db:
        queue = db.queue("q")
        queue.append([1, 2])
        first, second = queue.claim("w", max=2)
        try:
            with first:
                te.otel.instrument(recorded.provider)
            with second:
                te.otel.uninstrument()
                assert get_current_span() is not INVALID_SPAN
        finally:
            te.otel.uninstrument()
    (span,) = recorded.named("process q")
    assert said(span)["messaging.message.id"] == "2"
    assert get_current_span() is INVALID_SPAN


def test_without_an_sdk_records_get_nothing(data_dir: Path) -> None:
    program = """
import sys, topics_engine as te
te.otel.instrument()
with te.open(sys.argv[1]) as db:
    queue = db.queue("q")
    queue.append(1)
    queue.append_batch([b"x"])
    queue.append([te.NewRecord(2, meta={"a": "b"})])
    jobs = queue.claim("w", max=3)
    assert [job.meta for job in jobs] == [None, None, {"a": "b"}], jobs
    for job in jobs:
        with job:
            pass
"""
    subprocess.run([sys.executable, "-c", program, str(data_dir)], check=True, timeout=300)


def test_nothing_is_imported_unless_asked() -> None:
    program = """
import sys, topics_engine as te
from topics_engine import *
db = te.open(":memory:")
db.topic("t").append(1)
assert otel.process is te.otel.process
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
db.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
