"""Sinks: all or nothing, once, whatever fails."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark_topics import DefaultSource, staging
from pyspark_topics.client import Client
from pyspark_topics.errors import TopicsError
from pyspark_topics.options import Connection
from pyspark_topics.sink import Epoch, publish, publish_unnamed
from pyspark_topics.staging import Staged, Writer


def numbers(topics, topic):
    return sorted(topics.data(topic))


def write(frame, topics, **options):
    given = {"url": topics.url, **options}
    frame.write.format("topics").mode("append").options(**given).save()


def ids(spark, n, partitions=2):
    return spark.range(0, n, 1, partitions).selectExpr("cast(id as string) AS data")


def waiting(topics, writer):
    names = topics.client.call("GET", "/v0/txn")["writers"]
    if writer not in [one["writer"] for one in names]:
        return []
    return topics.client.call("GET", f"/v0/txn/{writer}")["staged"]


def test_a_batch_is_written(spark, topics, topic):
    write(ids(spark, 25_000, 3), topics, topic=topic)
    assert numbers(topics, topic) == list(range(25_000))


def test_all_columns_are_written(spark, topics, topic):
    frame = spark.createDataFrame(
        [(f"{topic}.a", "n1", "t1", {"k": "v"}, '{"x":1}'), (f"{topic}.b", None, None, None, "[]")],
        "topic string, node string, tag string, meta map<string,string>, data string",
    )
    write(frame, topics)
    (first,) = topics.rows(f"{topic}.a")
    assert (first["$node"], first["$tag"], first["meta"], first["data"]) == (
        "n1",
        "t1",
        {"k": "v"},
        {"x": 1},
    )
    (second,) = topics.rows(f"{topic}.b")
    assert second["data"] == []
    assert "$tag" not in second or second["$tag"] is None
    # The option takes precedence over the column.
    write(frame, topics, topic=f"{topic}.c")
    assert topics.data(f"{topic}.c") == [{"x": 1}, []]


def test_binary_data_stay_binary(spark, topics, topic, read):
    write(spark.createDataFrame([(b"\x00\xff",)], "data binary"), topics, topic=topic)
    assert bytes(read(dataType="binary").first().data) == b"\x00\xff"


def test_topics_copied_by_spark_are_the_same(spark, topics, topic, read):
    topics.append(topic, [{"n": n} for n in range(1000)], tag="a", node="w", meta={"k": "v"})
    write(read().select("node", "tag", "meta", "data"), topics, topic=f"{topic}.copy")

    def plain(name):
        return [{k: v for k, v in row.items() if k != "$ts"} for row in topics.rows(name)]

    assert plain(f"{topic}.copy") == plain(topic)


@pytest.mark.parametrize(
    ("columns", "options", "word"),
    [
        ("id", {"topic": "t"}, "id"),
        ("'a' AS tag", {"topic": "t"}, "data"),
        ("'1' AS data", {}, "topic"),
        ("id AS data", {"topic": "t"}, "data"),
        ("1 AS tag, '1' AS data", {"topic": "t"}, "tag"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_row_is(spark, topics, columns, options, word):
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=word):
        write(frame, topics, **options)


@pytest.mark.parametrize("mode", ["overwrite", "ignore", "error", "errorifexists", None])
def test_a_mode_but_append_is_refused_with_words_that_name_append(spark, topics, topic, mode):
    writer = ids(spark, 1).write.format("topics")
    with pytest.raises(PySparkException, match=r'(?i)"?append"?'):
        (writer.mode(mode) if mode else writer).save(url=topics.url, topic=topic)
    assert topics.client.call("POST", "/v0/state", {"topics": [topic]})["topics"] == {}


def test_a_write_that_fails_in_one_task_writes_nothing(spark, topics, topic):
    bad = f.when(f.col("data") == "19999", "not json").otherwise(f.col("data"))
    frame = ids(spark, 20_000, 2).select(bad.alias("data"))
    with pytest.raises(PySparkException, match="JSON"):
        write(frame, topics, topic=topic, writerId=topic)
    assert waiting(topics, topic) == []
    names = topics.client.call("POST", "/v0/state", {"topics": [topic]})
    assert names["topics"] == {}


def failing(times):
    """Raises at the last row, in the first attempts of a task."""

    @f.udf("string")
    def fail(data, last):
        from pyspark import TaskContext

        if data == last and TaskContext.get().attemptNumber() < times:
            raise ValueError("on purpose")
        return data

    return lambda last: fail("data", f.lit(last)).alias("data")


def test_a_task_that_fails_twice_and_is_retried(spark, topics, topic):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = ids(spark, 2000, 1).select(failing(2)("1999"))
        write(frame, topics, topic=topic, txnAppId=topic, txnVersion="1")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert numbers(topics, topic) == list(range(2000))
    assert waiting(topics, f"{topic}:{topic}") == []


def test_a_stream_task_that_fails_twice_and_is_retried(topics, topic, stream):
    topics.append(topic, list(range(1000)))
    stream.run(lambda frame: frame.select(failing(2)("999")))
    assert numbers(topics, stream.sink) == list(range(1000))


def test_an_app_writes_a_version_once(spark, topics, topic):
    for version, n in ((1, 10), (1, 10), (2, 5)):
        write(ids(spark, n), topics, topic=topic, txnAppId=topic, txnVersion=str(version))
    assert len(topics.data(topic)) == 15
    # The same version in another topic is another write.
    write(ids(spark, 3), topics, topic=f"{topic}.b", txnAppId=topic, txnVersion="2")
    assert len(topics.data(f"{topic}.b")) == 3
    with pytest.raises(PySparkException, match="stale_epoch"):
        write(ids(spark, 7), topics, topic=topic, txnAppId=topic, txnVersion="1")
    stale = {"txnAppId": topic, "txnVersion": "1", "staleEpoch": "skip"}
    write(ids(spark, 7), topics, topic=topic, **stale)
    assert len(topics.data(topic)) == 15
    assert waiting(topics, f"{topic}:{topic}") == []


def test_writes_without_a_name_share_a_writer_and_nothing_else(topics, topic):
    def one(n):
        client = Client(Connection(topics.url, None, None, 60.0))
        writer, stage = Writer(client, topic), f"stage-{n}"
        rows = {"topic": [f"{topic}.{n % 2}"] * 50, "data": [str(i) for i in range(50)]}
        writer.stage(stage, 0, pa.Table.from_pydict(rows))
        publish_unnamed(writer, [Staged(topic, stage, 1, 50, ())], f"job-{n}", 20.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    for n in range(2):
        assert numbers(topics, f"{topic}.{n}") == sorted([*range(50)] * 20)
    assert waiting(topics, topic) == []


def batch_of(first, rows, pad=""):
    return pa.RecordBatch.from_pydict({"data": [f'"{first + i}{pad}"' for i in range(rows)]})


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], []),
        ([batch_of(0, 0), batch_of(0, 0)], []),
        ([batch_of(0, 10), batch_of(10, 0), batch_of(10, 5)], [15]),
        # Small batches share a part as far as they fit.
        ([batch_of(i * 30, 30) for i in range(7)], [90, 90, 30]),
        ([batch_of(0, 250)], [100, 100, 50]),
        ([batch_of(0, 90), batch_of(90, 120), batch_of(210, 80)], [90, 100, 100]),
        # A few rows may have too many bytes.
        ([batch_of(0, 5, "x" * 3000), batch_of(5, 20)], [3, 22]),
        ([batch_of(0, 2, "x" * 20_000)], [1, 1]),
    ],
)
def test_parts_are_what_a_request_can_carry(monkeypatch, batches, expected):
    monkeypatch.setattr(staging, "PART_ROWS", 100)
    monkeypatch.setattr(staging, "PART_BYTES", 10_000)
    made = list(staging.parts(batches, "t"))
    found = [part.table for part in made]
    assert [part.first for part in made] == [sum(expected[:n]) for n in range(len(expected))]
    assert [part.num_rows for part in found] == expected
    rows = [text for part in found for text in part["data"].to_pylist()]
    assert rows == [text for batch in batches for text in batch["data"].to_pylist()]
    assert all(set(part["topic"].to_pylist()) == {"t"} for part in found)


def task(topics, topic, batches):
    """Runs a task of a batch write in this process; returns the writer and its stage."""
    options = CaseInsensitiveDict({"url": topics.url, "topic": topic, "writerId": topic})
    one = DefaultSource(options).writer(StructType().add("data", "string"), False)
    return one, one.write(iter(batches))


def test_rows_keep_their_order_over_the_parts_of_a_task(topics, topic, monkeypatch):
    monkeypatch.setattr(staging, "PART_ROWS", 100)
    one, done = task(topics, topic, [batch_of(i * 70, 70) for i in range(10)])
    (only,) = done.stages
    assert (only.parts, only.records, only.topics) == (10, 700, ((topic, 700),))
    assert [stage["records"] for stage in waiting(topics, topic)] == [700]
    one.commit([done])
    assert topics.data(topic) == [str(n) for n in range(700)]
    assert waiting(topics, topic) == []


def test_an_attempt_that_breaks_off_leaves_nothing(topics, topic, monkeypatch):
    monkeypatch.setattr(staging, "PART_ROWS", 10)

    def broken(good):
        yield from (batch_of(i * 10, 10) for i in range(good))
        raise ValueError("on purpose")

    bad = pa.RecordBatch.from_pydict({"data": ["not json"] * 10})
    for good in (0, 1, 2, 5):
        with pytest.raises(ValueError, match="on purpose"):
            task(topics, topic, broken(good))
        with pytest.raises(TopicsError, match="JSON"):
            task(topics, topic, [*(batch_of(i * 10, 10) for i in range(good)), bad])
    assert waiting(topics, topic) == []


PHASES = ("planned", "staged", "published", "committed")


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_stream_restarted_at_every_phase_of_a_batch(topics, topic, stream, proxy, phase):
    topics.append(topic, list(range(100)))
    stream.run()
    topics.append(topic, list(range(100, 200)))
    brief = {"url": proxy.url, "retryTimeoutMs": "300"}
    stream.sink_options = brief
    if phase == "planned":
        proxy.break_next("/stage/", "refuse", times=1000)
    elif phase == "staged":
        proxy.break_next("/commit", "refuse", times=1000)
    elif phase == "published":
        # It is published, but the answer is lost, and no retry is possible.
        proxy.break_next("/commit", "forget", times=1000)
    if phase == "committed":
        stream.run()
        stream.forget_commit(1)
    else:
        with pytest.raises(PySparkException):
            stream.run()
    assert 1 in stream.offsets()
    published = phase in ("published", "committed")
    assert len(topics.data(stream.sink)) == (200 if published else 100)
    proxy.heal()
    topics.append(topic, list(range(200, 250)))
    # Another plan: the batch is staged again, in other parts.
    stream.run(minPartitions="5", maxOffsetsPerTrigger="20")
    assert numbers(topics, stream.sink) == list(range(250))


def test_two_queries_into_one_topic(topics, topic, stream, tmp_path, spark):
    other = type(stream)(spark, topics, f"{topic}.b", stream.sink, tmp_path / "other")
    topics.append(topic, list(range(100)))
    topics.append(f"{topic}.b", list(range(100, 200)))
    queries = [s.query(maxOffsetsPerTrigger="25") for s in (stream, other)]
    for query in queries:
        query.awaitTermination()
    for one in (stream, other):
        one.forget_commit(max(one.offsets()))
        one.run()
    assert numbers(topics, stream.sink) == list(range(200))


def test_foreach_batch_names_its_writes(spark, topics, topic, stream, tmp_path):
    topics.append(topic, list(range(10)))

    def each(frame, batch):
        for sink in ("even", "all"):
            rows = frame.filter("cast(data as int) % 2 = 0") if sink == "even" else frame
            write(
                rows.select("data"),
                topics,
                topic=f"{topic}.{sink}",
                txnAppId=topic,
                txnVersion=str(batch),
            )

    def run():
        frame = spark.readStream.format("topics").load(url=topics.url, subscribe=topic)
        query = frame.writeStream.foreachBatch(each).trigger(availableNow=True)
        query.option("checkpointLocation", str(stream.checkpoint)).start().awaitTermination()

    run()
    stream.forget_commit(0)
    run()
    assert numbers(topics, f"{topic}.all") == list(range(10))
    assert numbers(topics, f"{topic}.even") == [0, 2, 4, 6, 8]


def test_a_writer_whose_checkpoint_was_lost(topics, topic, stream):
    """Its query id is new: that its batch numbers were used before says nothing about its rows."""
    stream.sink_options = {"writerId": topic}
    topics.append(topic, list(range(30)))
    stream.run()
    stream.checkpoint = stream.checkpoint.with_name("anew")
    topics.append(topic, list(range(30, 40)))
    for options in ({}, {"staleEpoch": "skip"}):
        stream.sink_options = {"writerId": topic, **options}
        # Batch 0 is the last epoch and would be taken for its repeat.
        with pytest.raises(PySparkException, match="stale_epoch"):
            stream.run()
        assert numbers(topics, stream.sink) == list(range(30))
    topics.client.call("DELETE", f"/v0/txn/{topic}")
    stream.run()
    assert numbers(topics, stream.sink) == sorted([*range(30), *range(40)])
    assert waiting(topics, topic) == []


def test_two_queries_under_one_writer_name(topics, topic, stream, tmp_path, spark):
    other = type(stream)(spark, topics, f"{topic}.b", stream.sink, tmp_path / "other")
    topics.append(topic, list(range(100)))
    topics.append(f"{topic}.b", list(range(100, 200)))
    for one in (stream, other):
        one.sink_options = {"writerId": topic}
    stream.run()
    with pytest.raises(PySparkException) as refused:
        other.run()
    ids = [json.loads((s.checkpoint / "metadata").read_text())["id"] for s in (stream, other)]
    assert all(one in str(refused.value) for one in ids)
    assert numbers(topics, stream.sink) == list(range(100))
    other.sink_options = {"writerId": f"{topic}.other"}
    other.run()
    assert numbers(topics, stream.sink) == list(range(200))


def test_an_app_writes_a_version_once_in_each_topic_of_a_column(spark, topics, topic):
    def rows(*names):
        frame = [(f"{topic}.{name}", f'"{name}{n}"') for name in names for n in range(5)]
        return spark.createDataFrame(frame, "topic string, data string")

    app = {"txnAppId": topic, "txnVersion": "3"}
    for names in (("a",), ("b",), ("a", "b", "c"), ("c", "a")):
        write(rows(*names), topics, **app)
    for name in ("a", "b", "c"):
        assert topics.data(f"{topic}.{name}") == [f"{name}{n}" for n in range(5)]
        assert waiting(topics, f"{topic}:{topic}.{name}") == []
    # The option and the column name the same topics.
    write(rows("d"), topics, topic=f"{topic}.a", **app)
    assert len(topics.data(f"{topic}.a")) == 5


def test_a_repeat_with_other_rows_is_logged_and_the_first_commit_stands(topics, topic, caplog):
    def commit(rows):
        client = Client(Connection(topics.url, None, None, 60.0))
        writer, stage = Writer(client, topic), f"own-{rows}"
        columns = {"topic": [topic] * rows, "data": ["1"] * rows}
        writer.stage(stage, 0, pa.Table.from_pydict(columns))
        done = Staged(topic, stage, 1, rows, ((topic, rows),))
        publish(writer, Epoch(7, "query", "own", False), [done])

    # A worker of Spark shows warnings and nothing below.
    commit(3)
    assert not caplog.records
    commit(3)
    (repeat,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"epoch 7 was committed before, with {{'{topic}': 3}}" in repeat.message
    commit(4)
    assert "deterministic" in caplog.records[-1].message
    assert len(topics.data(topic)) == 3
    assert waiting(topics, topic) == []


def test_a_commit_drops_the_stages_of_abandoned_attempts(topics, topic):
    one, lost = task(topics, topic, [batch_of(0, 10)])
    won = one.write(iter([batch_of(0, 10)]))
    _, foreign = task(topics, topic, [batch_of(0, 10)])
    assert len(waiting(topics, topic)) == 3
    one.commit([won])
    assert [stage["id"] for stage in waiting(topics, topic)] == [foreign.stages[0].stage]
    assert len(topics.data(topic)) == 10
    assert lost.stages[0].stage != won.stages[0].stage


def test_complete_mode_is_refused(spark, topics, topic, tmp_path):
    topics.append(topic, [1])
    frame = spark.readStream.format("topics").load(url=topics.url, subscribe=topic)
    counts = frame.groupBy("topic").count().selectExpr("cast(count as string) AS data")
    writer = counts.writeStream.format("topics").outputMode("complete").option("url", topics.url)
    writer = writer.option("topic", f"{topic}.out").trigger(availableNow=True)
    with pytest.raises(PySparkException, match="complete"):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
