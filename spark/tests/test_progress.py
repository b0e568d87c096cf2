"""What a stream shows of its position, and when it waits for more rows."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark_topics import DefaultSource
from pyspark_topics.compat import ADMITS_ROWS, ReadAllAvailable
from pyspark_topics.errors import InvalidOption, TopicsError

from support.server import Server
from topics_engine.cli.main import main

from .versions import needs_admission

SCHEMA = StructType().add("seq", "long").add("data", "string")


def reader(topics, topic, **options):
    given = {"url": topics.url, "subscribe": topic, "retryTimeoutMs": "60000", **options}
    return DefaultSource(CaseInsensitiveDict(given)).streamReader(SCHEMA)


def poll(one, at):
    """The end of the next batch, as this version of Spark asks for it."""
    return one.latestOffset(at, one.getDefaultReadLimit()) if ADMITS_ROWS else one.latestOffset()


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_waits_for_enough_rows_or_long_enough(topics, topic):
    topics.append(topic, list(range(3)))
    waiting = reader(topics, topic, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    waiting._clock = clock = Clock()
    at = waiting.initialOffset()

    def rows():
        nonlocal at
        was, at = at, poll(waiting, at)
        return at["t"][topic][2] - was["t"][topic][2]

    # The first batch of a run waits for nothing: the last one may be long ago.
    assert rows() == 3
    topics.append(topic, list(range(9)))
    before = at
    assert (rows(), at) == (0, before)
    clock.now += 59.9
    assert rows() == 0
    topics.append(topic, [9])
    assert rows() == 10
    topics.append(topic, [10])
    clock.now += 59.9
    assert rows() == 0
    clock.now += 0.2
    assert rows() == 1
    # Without rows there is no batch, however long ago the last one is.
    clock.now += 1000
    assert rows() == 0


def test_a_trigger_that_ends_does_not_wait_for_rows(topics, topic, stream):
    topics.append(topic, list(range(25)))
    options = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "10"}
    assert [p["numInputRows"] for p in stream.run(**options)] == [10, 10, 5]


@needs_admission
def test_a_trigger_that_takes_all_does_not_wait_for_rows(topics, topic):
    topics.append(topic, list(range(25)))
    once = reader(topics, topic, minOffsetsPerTrigger="1000")
    once._clock = Clock()
    start = once.initialOffset()
    once.latestOffset(start, once.getDefaultReadLimit())
    assert once.latestOffset(start, ReadAllAvailable())["t"][topic][2] == 26


@needs_admission
def test_the_progress_has_positions_and_lag(topics, topic, stream):
    topics.append(f"{topic}.a", list(range(30)))
    topics.append(f"{topic}.b", list(range(10)))
    both = {"subscribe": f"{topic}.a,{topic}.b", "maxOffsetsPerTrigger": "20"}
    progress = stream.run(**both)
    found = [p["sources"][0] for p in progress]
    if isinstance(found[0]["latestOffset"], str):
        found = [
            {k: json.loads(v) if k.endswith("Offset") else v for k, v in s.items()} for s in found
        ]
    assert [s["latestOffset"]["lag"] for s in found] == [
        {f"{topic}.a": 15, f"{topic}.b": 5},
        {f"{topic}.a": 0, f"{topic}.b": 0},
    ]
    assert [s["endOffset"]["t"][f"{topic}.a"][2] for s in found] == [16, 31]
    assert found[0]["latestOffset"]["t"][f"{topic}.a"][2] == 31


def lag_of(topics, topic):
    """What `topics lag` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["--url", topics.url, "--json", "lag", topic]) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_query_registers_as_a_consumer(topics, topic, stream, tmp_path):
    topics.append(topic, list(range(30)))
    assert lag_of(topics, topic) == []
    named = {"consumer": "nightly", "maxOffsetsPerTrigger": "20"}
    stream.run(**named)
    (found,) = lag_of(topics, topic)
    # At the end, although Spark does not report the end of the last batch.
    assert (found["consumer"], found["cursor"], found["lag"]) == ("nightly", 30, 0)
    topics.append(topic, list(range(5)))
    assert lag_of(topics, topic)[0]["lag"] == 5
    stream.run(**named)
    assert lag_of(topics, topic)[0]["lag"] == 0
    # A stream that starts anew goes back, and is shown there.
    anew = reader(topics, topic, consumer="nightly")
    poll(anew, anew.initialOffset())
    assert lag_of(topics, topic)[0]["cursor"] == 0


def test_a_key_that_may_only_read_cannot_register(tmp_path):
    with Server(tmp_path / "data", api_keys="all:rwa,reader:r") as server:
        options = {"url": server.url, "subscribe": "orders", "retryTimeoutMs": "60000"}

        def poll_with(token):
            source = DefaultSource(
                CaseInsensitiveDict({**options, "token": token, "consumer": "c"})
            )
            stream = source.streamReader(SCHEMA)
            poll(stream, stream.initialOffset())

        import topics_engine as te

        with te.connect(server.url, api_key="all") as db:
            db.topic("orders").append([1])
            poll_with("all")
            with pytest.raises(TopicsError, match="\"consumer\" 'c' cannot be stored") as refused:
                poll_with("reader")
            assert refused.value.code == "forbidden"
            assert [c.name for c in db.topic("orders").consumers()] == ["c"]


def test_a_consumer_needs_a_server(tmp_path):
    options = {"path": str(tmp_path), "subscribe": "a", "consumer": "c"}
    with pytest.raises(InvalidOption, match='"consumer" needs a server'):
        DefaultSource(CaseInsensitiveDict(options)).streamReader(SCHEMA)


def test_timestamps_as_text_and_of_some_topics(topics, topic, read):
    from datetime import UTC, datetime

    a, b = f"{topic}.a", f"{topic}.b"
    topics.append(a, [1])
    topics.append(b, [2])
    moment = topics.moment()
    text = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    topics.append(a, [3])
    topics.append(b, [4])

    def data(**options):
        rows = read("data string", subscribe=f"{a},{b}", **options).collect()
        return sorted(int(row.data) for row in rows)

    assert data(startingTimestamp=text) == [3, 4]
    assert data(endingTimestamp=text) == [1, 2]
    assert data(startingTimestamp=json.dumps({a: text})) == [2, 3, 4]
    assert data(endingTimestamp=json.dumps({b: moment})) == [1, 2, 3]
    with pytest.raises(PySparkException, match="has no zone"):
        data(startingTimestamp=text.partition("+")[0])
