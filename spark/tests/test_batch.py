"""Batch reads from a server."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark_topics import DefaultSource
from pyspark_topics.compat import KEEPS_EMPTY_ROWS

import topics_engine as te
from support.payloads import PAYLOADS

COLUMNS = ["topic", "seq", "ts", "node", "tag", "meta", "data"]


def test_all_columns(topics, topic, read):
    records = [
        {"data": {"n": 1}, "tag": "a:1", "node": "w1", "meta": {"k": "v", "e": ""}},
        {"data": None},
    ]
    topics.client.call("POST", f"/v0/topics/{topic}", {"records": records})
    frame = read()
    assert frame.columns == COLUMNS
    first, second = frame.orderBy("seq").collect()
    assert (first.topic, first.seq, first.node, first.tag) == (topic, 1, "w1", "a:1")
    assert (first.meta, json.loads(first.data)) == ({"k": "v", "e": ""}, {"n": 1})
    assert abs(first.ts.replace(tzinfo=UTC).timestamp() - time.time()) < 3600  # clock: an hour
    assert (second.seq, second.node, second.tag, second.meta, second.data) == (
        2,
        None,
        None,
        None,
        "null",
    )


def test_a_schema_is_a_projection_that_reaches_the_engine(topics, topic, read):
    topics.append(topic, [{"n": n} for n in range(10)], tag="t")
    frame = read("seq long, data string")
    assert frame.columns == ["seq", "data"]
    assert [row.seq for row in frame.orderBy("seq").collect()] == list(range(1, 11))
    assert read("tag string").distinct().collect()[0].tag == "t"
    before = topics.client.call("GET", f"/v0/topics/{topic}")["bytes"]
    assert before > 0


def test_includemeta_leaves_a_column_out(topics, topic, read):
    topics.append(topic, [1])
    assert read(includeMeta="false").columns == [c for c in COLUMNS if c != "meta"]


def test_a_schema_of_other_columns_or_types_is_refused(topics, topic, read):
    topics.append(topic, [1])
    for schema, word in (("seq int", "seq"), ("price double", "price")):
        with pytest.raises(PySparkException, match=word):
            read(schema).collect()


def test_binary(topics, topic, read):
    import base64

    raw = bytes(range(256))
    record = {"data_b64": base64.b64encode(raw).decode()}
    topics.client.call("POST", f"/v0/topics/{topic}", {"records": [record, {"data": [1]}]})
    rows = read(dataType="binary").orderBy("seq").collect()
    assert [bytes(row.data) for row in rows] == [raw, b"[1]"]
    rows = read("data binary").collect()
    assert raw in [bytes(row.data) for row in rows]
    with pytest.raises(PySparkException, match="binary"):
        read().collect()


def test_payloads_come_back_byte_for_byte(topics, topic, read):
    texts = list(PAYLOADS.values())
    with te.connect(topics.url) as db:
        db.topic(topic).append_arrow(pa.table({"data": texts}))
    assert [row.data for row in read().orderBy("seq").collect()] == texts
    rows = read(dataType="binary").orderBy("seq").collect()
    assert [bytes(row.data) for row in rows] == [text.encode() for text in texts]


@pytest.mark.parametrize("partitions", [1, 7])
def test_every_record_once_whatever_the_partitions(topics, topic, read, partitions):
    topics.append(topic, list(range(5000)))
    frame = read("seq long, data string", minPartitions=str(partitions))
    assert frame.rdd.getNumPartitions() >= partitions
    assert sorted(int(row.data) for row in frame.collect()) == list(range(5000))


def test_a_partition_has_so_many_records_at_most(topics, topic, read):
    topics.append(topic, list(range(5000)))
    frame = read("seq long", maxRecordsPerPartition="1000")
    sizes = [row["count"] for row in frame.groupBy(f.spark_partition_id()).count().collect()]
    assert len(sizes) >= 5
    assert max(sizes) <= 1000
    assert sum(sizes) == 5000


SEQS = {"seq": "seq long", "both": "topic string, seq long", "none": ""}


@pytest.mark.parametrize("schema", SEQS.values(), ids=SEQS)
def test_a_count_without_other_columns_reads_no_record(topics, topic, read, schema):
    if not schema and not KEEPS_EMPTY_ROWS:
        pytest.skip("Spark 4.0 has no rows without columns: the source refuses them")
    topics.append(topic, ["x" * 100] * 5000)
    topics.client.call("POST", f"/v0/topics/{topic}", {"records": [{"data_b64": "/w=="}]})

    def read_bytes() -> int:
        return topics.client.call("GET", "/v0/metrics")["read_bytes"]

    before = read_bytes()
    frame = read(schema or StructType())
    assert frame.count() == 5001
    assert read_bytes() == before
    with pytest.raises(PySparkException, match="binary"):
        read("seq long, data string").count()
    assert read_bytes() > before


def test_offsets_and_timestamps(topics, topic, read):
    topics.append(topic, list(range(5)))
    at = topics.moment()
    topics.append(topic, list(range(5, 10)))

    def data(**options):
        return sorted(int(row.data) for row in read("data string", **options).collect())

    assert data(startingOffsets=f'{{"{topic}": 3}}') == list(range(2, 10))
    assert data(startingOffsets=f'{{"{topic}": 3}}', endingOffsets=f'{{"{topic}": 5}}') == [2, 3]
    assert data(startingOffsets="latest") == []
    assert data(startingTimestamp=str(at)) == list(range(5, 10))
    assert data(endingTimestamp=str(at)) == list(range(5))
    assert data(endingOffsets="earliest") == []
    beyond = {"startingOffsets": f'{{"{topic}": 500}}'}
    with pytest.raises(PySparkException, match="begins topic"):
        data(**beyond)
    assert data(failOnDataLoss="false", **beyond) == []


def test_strong_reads_wait_for_what_they_planned_to_be_synced(topics, topic, read):
    topics.create(topic, durability="fsync")
    topics.append(topic, list(range(1000)))
    assert read(consistency="strong").count() == 1000


def test_a_scan_comes_in_batches_of_thousands(topics, topic):
    topics.append(topic, ["x" * 100] * 150_000)
    options = CaseInsensitiveDict({"url": topics.url, "subscribe": topic})
    reader = DefaultSource(options).reader(StructType().add("seq", "long").add("data", "string"))
    (partition,) = reader.partitions()
    *sizes, last = [batch.num_rows for batch in reader.read(partition)]
    assert sum(sizes) + last == 150_000
    assert all(8_000 <= size <= 65_536 for size in sizes)


def test_an_empty_topic_and_a_missing_one(topics, topic, read):
    topics.create(topic)
    assert read().collect() == []
    with pytest.raises(PySparkException, match="topic_not_found"):
        read(subscribe=f"{topic}.none").collect()
    assert read(subscribePattern=r"nothing\.of\.the\.kind\..*").collect() == []


def test_patterns_match_whole_names(topics, topic, read):
    for name in ("a.x", "a.y", "ab", "b.x"):
        topics.append(f"{topic}.{name}", [name])
    found = read(subscribePattern=rf"{topic}\.a\..*").collect()
    assert sorted(row.data for row in found) == ['"a.x"', '"a.y"']
    found = read(subscribePattern=rf"{topic}\.(ab|b\.x)").collect()
    assert sorted(row.data for row in found) == ['"ab"', '"b.x"']


def test_a_dataframe_counted_twice_while_a_writer_appends_is_one_snapshot(topics, topic, read):
    topics.append(topic, list(range(100)))
    frame, later = read(), read()
    chosen = read("seq long")
    assert (frame.count(), chosen.count()) == (100, 100)
    topics.append(topic, list(range(50)))
    assert frame.count() == 100
    assert frame.filter("seq > 10").count() == 90
    assert frame.select(f.max("seq")).collect()[0][0] == 100
    assert chosen.filter("seq > 10").count() == 90
    # The DataFrame is created before the appends and counted after them.
    assert later.count() == 100
    assert read().count() == 150


def test_a_snapshot_holds_in_sessions_that_push_filters(pushing, topics, topic, read):
    topics.append(topic, list(range(100)))
    frame = read()
    topics.append(topic, list(range(50)))
    # Each condition is planned again, in another process; no condition persists.
    assert frame.filter("seq > 10").count() == 90
    assert frame.filter("seq > 20").count() == 80
    assert frame.count() == 100
    assert frame.filter("seq > 10").count() == 90


def test_pushed_filters_are_applied_by_the_engine(pushing, topics, topic, read):
    topics.append(f"{topic}.a", list(range(20)), tag="eu:1", node="n1")
    topics.append(f"{topic}.a", list(range(20)), tag="us:1", node="n2")
    at = datetime.fromtimestamp(topics.moment() / 1000, UTC)
    topics.append(f"{topic}.b", list(range(20)), tag="eu:2")
    for condition, expected, pushed in (
        (f.col("seq") <= 5, 10, True),
        ((f.col("seq") > 5) & (f.col("seq") < 8), 4, True),
        (f.col("topic") == f"{topic}.b", 20, True),
        (f.col("tag") == "eu:1", 20, False),
        (f.col("tag").startswith("eu:"), 40, False),
        (f.col("node") == "n1", 20, False),
        (f.col("node").isin("n1", "n2"), 40, True),
        ((f.col("tag").startswith("eu:")) & (f.col("data") == "3"), 2, False),
        (f.col("ts") >= f.lit(at), 20, False),
        (f.col("ts") < f.lit(at), 40, False),
        ((f.col("tag") == "eu:1") | (f.col("seq") == 40), 21, False),
        (f.col("node").isNull(), 20, False),
    ):
        frame = read(subscribePattern=rf"{topic}\..*", pushFilters="true")
        chosen = frame.filter(condition)
        assert chosen.count() == expected, str(condition)
        # Conditions that are not applied exactly stay with Spark, in a separate node.
        plan = chosen._jdf.queryExecution().executedPlan().toString()
        assert bool(re.search(r"\bFilter ", plan)) is not pushed, plan


def test_why_pushing_filters_takes_an_option(pushing, topics, topic, read):
    """Spark 4.3 keeps one planned read for each loaded table, and every other scan of the same
    table gets
    the result that the last condition left. If this test fails, Spark has fixed this and the option
    can
    be removed.
    """
    topics.append(topic, list(range(100)))
    frame = read(pushFilters="true")
    assert frame.filter("seq > 90").count() == 10
    assert frame.count() == 10
    frame = read(pushFilters="true")
    both = frame.filter("seq > 90").unionAll(frame.filter("seq > 50"))
    assert both.count() != 60
    # One DataFrame for each condition, as the documentation recommends.
    both = read(pushFilters="true").filter("seq > 90")
    assert both.unionAll(read(pushFilters="true").filter("seq > 50")).count() == 60
    # Without the option every result is correct.
    frame = read()
    assert frame.filter("seq > 90").unionAll(frame.filter("seq > 50")).count() == 60
    assert frame.count() == 100


@pytest.mark.slow
def test_more_than_ten_thousand_topics_by_pattern(topics, topic, read):
    # More topics than one answer of the server lists.
    names = [f"{topic}.{n:05}" for n in range(10_500)]
    for at in range(0, len(names), 500):
        appends = [
            {"topic": n, "records": [{"data": i}]} for i, n in enumerate(names[at : at + 500])
        ]
        topics.client.call("POST", "/v0/txn", {"appends": appends})
    frame = read("topic string, seq long", subscribePattern=rf"{topic}\.\d+")
    rows = frame.agg(f.count("*"), f.count_distinct("topic"), f.sum("seq")).collect()[0]
    assert tuple(rows) == (10_500, 10_500, 10_500)
