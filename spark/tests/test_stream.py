"""Streaming reads: admission, restarts, topics that are deleted and created, gaps."""

from __future__ import annotations

import json
import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark_topics import DefaultSource
from pyspark_topics.compat import ADMITS_ROWS

from support.waiting import until

from .versions import needs_admission


def numbers(topics, topic):
    return sorted(topics.data(topic))


def test_a_stream_goes_on_where_its_checkpoint_is(topics, topic, stream):
    topics.append(topic, list(range(100)))
    stream.run()
    assert numbers(topics, stream.sink) == list(range(100))
    topics.append(topic, list(range(100, 150)))
    stream.run()
    assert numbers(topics, stream.sink) == list(range(150))
    planned = stream.offsets()
    topic_id = topics.state(topic)["topic_id"]
    assert planned[0] == {"v": 1, "t": {topic: [topic_id, 1, 101]}}
    assert planned[1] == {"v": 1, "t": {topic: [topic_id, 101, 151]}}


def test_nothing_new_is_no_batch(topics, topic, stream):
    topics.append(topic, [1, 2])
    stream.run()
    before = stream.offsets()
    assert stream.run() == []
    assert stream.offsets() == before


def test_admission_by_records_is_in_proportion_to_the_lag(topics, topic, stream):
    topics.append(f"{topic}.a", list(range(30)))
    topics.append(f"{topic}.b", list(range(30, 40)))
    both = {"subscribe": f"{topic}.a,{topic}.b", "maxOffsetsPerTrigger": "8"}
    progress = stream.run(**both)
    assert [p["numInputRows"] for p in progress] == [8, 8, 8, 8, 8]
    first = stream.offsets()[0]["t"]
    assert [hi - lo for _, lo, hi in first.values()] == [6, 2]
    assert numbers(topics, stream.sink) == list(range(40))


def test_admission_by_bytes(topics, topic, stream):
    topics.append(topic, ["x" * 998 for _ in range(100)])
    progress = stream.run(maxBytesPerTrigger="10000")
    assert sum(p["numInputRows"] for p in progress) == 100
    assert len(progress) >= 10
    assert all(p["numInputRows"] <= 11 for p in progress)


@pytest.mark.parametrize(
    ("limit", "most"), [({"maxOffsetsPerTrigger": "7"}, 7), ({"maxBytesPerTrigger": "1000"}, 11)]
)
def test_limits_hold_in_a_query_that_goes_on(topics, topic, stream, limit, most):
    def run():
        rows = stream.spark.readStream.format("topics").options(**limit)
        rows = rows.load(url=topics.url, subscribe=topic).select("data")
        out = rows.writeStream.format("topics").trigger(processingTime="0 seconds")
        out = out.option("checkpointLocation", str(stream.checkpoint))
        query = out.start(url=topics.url, topic=stream.sink)
        query.processAllAvailable()
        query.stop()
        return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]

    topics.append(topic, ["x" * 98 for _ in range(30)])
    found = run()
    assert (sum(found), max(found) <= most, len(found) <= 5) == (30, True, True)
    # Its next run begins at the checkpoint.
    topics.append(topic, ["y" * 98 for _ in range(10)])
    again = run()
    assert (sum(again), max(again) <= most) == (10, True)
    assert sorted(topics.data(stream.sink)) == sorted(topics.data(topic))


@pytest.mark.skipif(ADMITS_ROWS, reason="Spark 4.2 and later divide what availableNow reads")
def test_available_now_is_one_batch(topics, topic, stream):
    topics.append(topic, list(range(100)))

    def run(**options):
        query = stream.query(**options)
        query.awaitTermination()
        return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]

    # With a limit it stops there, and the next run goes on.
    assert run(maxOffsetsPerTrigger="30") == [30]
    assert run(maxOffsetsPerTrigger="30") == [30]
    assert run() == [40]
    # A batch that was planned before is the one batch of its run.
    topics.append(topic, list(range(100, 110)))
    stream.forget_commit(2)
    assert run() == [40]
    assert run() == [10]
    assert numbers(topics, stream.sink) == list(range(110))


def test_a_query_goes_on_when_nobody_reads_the_rows_of_a_batch(topics, topic, stream):
    """Spark does not plan a batch that `foreachBatch` leaves alone."""
    topics.append(topic, list(range(20)))
    rows = stream.spark.readStream.format("topics").option("maxOffsetsPerTrigger", "5")
    out = rows.load(url=topics.url, subscribe=topic).writeStream
    query = out.foreachBatch(lambda frame, batch: None).start()
    query.processAllAvailable()
    query.stop()
    ends = [p["sources"][0]["endOffset"] for p in query.recentProgress]
    assert f"[{topics.state(topic)['topic_id']}, 16, 21]" in str(ends[-1])


@needs_admission
def test_available_now_ends_at_the_heads_of_its_start(topics, topic, stream):
    topics.append(topic, list(range(20)))

    def late(frame):
        # More rows arrive during the first batch: they belong to the next run.
        url, name = topics.url, topic

        @f.udf("string")
        def append(data):
            import urllib.request

            if data == "0":
                body = b'{"records":[{"data":100},{"data":101}]}'
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(f"{url}/v0/topics/{name}", body, headers)
                urllib.request.urlopen(request).read()
            return data

        return frame.select(append("data").alias("data"))

    progress = stream.run(late, maxOffsetsPerTrigger="5")
    assert [p["numInputRows"] for p in progress] == [5, 5, 5, 5]
    stream.run()
    assert numbers(topics, stream.sink) == [*range(20), 100, 101]


def test_a_stream_from_the_latest_loses_nothing_to_a_crash_in_its_first_rows(
    topics, topic, stream, tmp_path
):
    topics.append(topic, list(range(10)))
    flag = tmp_path / "fail"
    flag.touch()
    where = str(flag)

    @f.udf("string")
    def fail(data):
        import os

        if os.path.exists(where):
            raise ValueError("on purpose")
        return data

    def change(frame):
        return frame.select(fail("data").alias("data"))

    # The query starts at the head; then a batch has rows, and fails.
    spark = stream.spark
    frame = spark.readStream.format("topics").load(
        url=topics.url, subscribe=topic, startingOffsets="latest"
    )
    query = (
        change(frame)
        .writeStream.format("topics")
        .option("checkpointLocation", str(stream.checkpoint))
        .start(url=topics.url, topic=stream.sink)
    )
    until(lambda: query.recentProgress or not query.isActive, 120)
    topics.append(topic, list(range(100, 110)))
    with pytest.raises(PySparkException, match="on purpose"):
        query.awaitTermination(120)
    planned = stream.offsets()
    assert planned[max(planned)]["t"][topic][1:] == [11, 21]
    flag.unlink()
    topics.append(topic, list(range(200, 205)))
    stream.run(change, startingOffsets="latest")
    assert numbers(topics, stream.sink) == [*range(100, 110), *range(200, 205)]


def test_a_stream_begins_at_a_time(topics, topic, stream):
    topics.append(topic, list(range(5)))
    at = topics.moment()
    topics.append(topic, list(range(5, 8)))
    stream.run(startingTimestamp=str(at))
    assert numbers(topics, stream.sink) == [5, 6, 7]


def test_new_topics_of_a_pattern_begin_at_their_start(topics, topic, stream):
    pattern = {"subscribePattern": rf"{topic}\.in\..*", "startingOffsets": "latest"}
    topics.append(f"{topic}.in.a", [1, 2])
    stream.run(**pattern)
    topics.append(f"{topic}.in.b", [3, 4])
    topics.append(f"{topic}.in.a", [5])
    stream.run(**pattern)
    assert numbers(topics, stream.sink) == [3, 4, 5]


def test_a_topic_that_is_named_and_comes_later(topics, topic, stream):
    with pytest.raises(PySparkException, match="allowMissingTopics"):
        stream.run(startingOffsets="latest")
    later = {"startingOffsets": "latest", "allowMissingTopics": "true"}
    stream.run(**later)
    topics.append(topic, [1, 2])
    stream.run(**later)
    assert numbers(topics, stream.sink) == [1, 2]


def test_a_topic_deleted_and_created_again(topics, topic, stream):
    topics.append(topic, list(range(5)))
    stream.run()
    topics.drop(topic)
    topics.append(topic, list(range(10, 20)))
    with pytest.raises(PySparkException, match="recreated"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert numbers(topics, stream.sink) == [*range(5), *range(10, 20)]
    topics.append(topic, [20])
    stream.run()
    assert numbers(topics, stream.sink) == [*range(5), *range(10, 21)]


def test_a_topic_created_again_under_a_planned_batch(topics, topic, stream):
    topics.append(topic, list(range(5)))
    stream.run()
    stream.forget_commit(0)
    topics.drop(topic)
    topics.append(topic, list(range(10, 13)))
    with pytest.raises(PySparkException, match="recreated"):
        stream.run()
    # The planned rows are gone; their epoch was published, so no row is doubled.
    stream.run(failOnDataLoss="false")
    assert numbers(topics, stream.sink) == [*range(5), *range(10, 13)]


def test_a_topic_deleted_under_the_stream(topics, topic, stream):
    topics.append(topic, list(range(5)))
    stream.run()
    topics.drop(topic)
    # It was read to its end.
    stream.run()
    topics.append(topic, [7])
    stream.run(failOnDataLoss="false")
    assert numbers(topics, stream.sink) == [*range(5), 7]


def test_a_topic_deleted_with_unread_records(topics, topic, stream):
    both = {"subscribePattern": re.escape(topic) + r"\.[ab]"}
    topics.append(f"{topic}.a", list(range(5)))
    stream.run(maxOffsetsPerTrigger="3", **both)
    # As if the run had ended after its first batch.
    for folder in ("offsets", "commits"):
        (stream.checkpoint / folder / "1").unlink()
    topics.drop(f"{topic}.a")
    topics.append(f"{topic}.b", [7])
    with pytest.raises(PySparkException, match="deleted"):
        stream.run(**both)
    assert numbers(topics, stream.sink) == list(range(5))


def trimmed(topics, topic):
    """The last 10 of 30 records are stored."""
    topics.create(topic, cap_records=10, discard="old")
    topics.append(topic, list(range(3)))
    topics.append(topic, list(range(3, 30)))
    assert topics.state(topic)["earliest_seq"] == 21


def described(frame):
    """The row of a gap has no data: its description is in meta."""
    return frame.select(f.coalesce("data", f.to_json("meta")).alias("data"))


def test_a_tombstone_fails_a_stream(topics, topic, stream):
    trimmed(topics, topic)
    with pytest.raises(PySparkException, match=r"records 1 to 20 of topic .* are lost \(cap\)"):
        stream.run(startingOffsets=f'{{"{topic}": 1}}')


def test_a_tombstone_is_logged(topics, topic, stream):
    trimmed(topics, topic)
    stream.run(startingOffsets=f'{{"{topic}": 1}}', failOnDataLoss="false")
    assert numbers(topics, stream.sink) == list(range(20, 30))


@pytest.mark.parametrize("gaps", ["log", "emit"])
def test_every_range_that_is_lost_is_logged(topics, topic, caplog, gaps):
    # Runs in this process, because the log of a task goes to its executor.
    names = [f"{topic}.a", f"{topic}.b"]
    for name in names:
        trimmed(topics, name)
    starts = json.dumps(dict.fromkeys(names, 1))
    options = {"url": topics.url, "subscribe": ",".join(names), "startingOffsets": starts}
    options |= {"gaps": gaps, "minPartitions": "6"}
    reader = DefaultSource(CaseInsensitiveDict(options)).reader(StructType().add("seq", "long"))
    rows = [seq for p in reader.partitions() for b in reader.read(p) for seq in b[0].to_pylist()]
    told = re.findall(r"records (\d+) to (\d+) of topic '(.*?)' are lost \(cap\)", caplog.text)
    lost = [(name, seq) for lo, hi, name in told for seq in range(int(lo), int(hi) + 1)]
    assert lost == [(name, seq) for name in names for seq in range(1, 21)]
    gap_rows = [int(lo) for lo, _, _ in told if gaps == "emit"]
    assert sorted(rows) == sorted([*gap_rows, *range(21, 31), *range(21, 31)])


def test_a_topic_created_again_becomes_a_row(topics, topic, stream):
    topics.append(topic, list(range(5)))
    stream.run()
    topics.append(topic, list(range(5, 8)))
    # The batch is planned, and its topic is replaced before its tasks read it.
    with pytest.raises(PySparkException, match="on purpose"):
        stream.run(lambda frame: frame.select(f.raise_error(f.lit("on purpose")).alias("data")))
    topics.drop(topic)
    topics.append(topic, [10])
    stream.run(described, gaps="emit")
    found = topics.data(stream.sink)
    # The planned range is lost; the next batch begins with the other topic.
    assert [row for row in found if isinstance(row, dict)] == [
        {"gap_from": "6", "gap_to": "8", "gap_reason": "recreated"},
        {"gap_from": "9", "gap_to": "9", "gap_reason": "recreated"},
    ]
    assert [row for row in found if not isinstance(row, dict)] == [*range(5), 10]


@pytest.mark.parametrize("gaps", ["log", "emit"])
def test_a_lost_range_is_one_batch_whatever_the_limit(topics, topic, stream, gaps):
    topics.create(topic, cap_records=10)
    topics.append(topic, list(range(10)))
    stream.run(described, maxOffsetsPerTrigger="10", gaps=gaps)
    topics.append(topic, list(range(10, 500)))
    stream.run(described, maxOffsetsPerTrigger="10", gaps=gaps)
    assert len(stream.offsets()) == 2
    rows = topics.data(stream.sink)
    lost = {"gap_from": "11", "gap_to": "490", "gap_reason": "cap"}
    assert [row for row in rows if isinstance(row, dict)] == ([lost] if gaps == "emit" else [])
    assert [row for row in rows if not isinstance(row, dict)] == [*range(10), *range(490, 500)]


def test_records_deleted_on_purpose_are_one_step(topics, topic, stream):
    topics.append(topic, list(range(10)))
    stream.run(maxOffsetsPerTrigger="10")
    topics.append(topic, list(range(10, 500)))
    topics.client.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 491})
    stream.run(maxOffsetsPerTrigger="10")
    assert len(stream.offsets()) == 2
    assert numbers(topics, stream.sink) == [*range(10), *range(490, 500)]


def test_a_tombstone_becomes_a_row(topics, topic, stream):
    trimmed(topics, topic)
    stream.run(described, startingOffsets=f'{{"{topic}": 1}}', gaps="emit")
    gap, *rows = topics.data(stream.sink)
    assert gap == {"gap_from": "1", "gap_to": "20", "gap_reason": "cap"}
    assert rows == list(range(20, 30))


def test_a_tombstone_in_the_range_of_a_batch(topics, topic, read):
    trimmed(topics, topic)
    options = {"startingOffsets": f'{{"{topic}": 5}}', "endingOffsets": f'{{"{topic}": 25}}'}
    with pytest.raises(PySparkException, match="data_loss"):
        read(**options).collect()
    rows = read(failOnDataLoss="false", **options).collect()
    assert sorted(row.seq for row in rows) == [21, 22, 23, 24]
    first, *rest = read(gaps="emit", **options).orderBy("seq").collect()
    assert (first.topic, first.seq, first.ts, first.data) == (topic, 5, None, None)
    assert first.meta == {"gap_from": "5", "gap_to": "20", "gap_reason": "cap"}
    assert [row.seq for row in rest] == [21, 22, 23, 24]
    # Each part of a range within the gap reports its own share of it.
    rows = read(gaps="emit", minPartitions="5", **options).orderBy("seq").collect()
    gaps = [(int(r.meta["gap_from"]), int(r.meta["gap_to"])) for r in rows if r.data is None]
    assert [seq for lo, hi in gaps for seq in range(lo, hi + 1)] == list(range(5, 21))


def test_what_was_deleted_on_purpose_is_no_gap(topics, topic, read):
    topics.append(topic, list(range(10)))
    topics.client.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 5})
    rows = read(startingOffsets=f'{{"{topic}": 1}}').collect()
    assert sorted(row.seq for row in rows) == [5, 6, 7, 8, 9, 10]


@pytest.mark.slow
def test_ten_thousand_topics_in_a_stream(spark, topics, topic, tmp_path):
    names = [f"{topic}.{n:05}" for n in range(10_000)]
    for at in range(0, len(names), 500):
        appends = [{"topic": n, "records": [{"data": 1}]} for n in names[at : at + 500]]
        topics.client.call("POST", "/v0/txn", {"appends": appends})
    seen = []
    frame = spark.readStream.format("topics").load(
        url=topics.url, subscribePattern=rf"{topic}\.\d+"
    )
    query = (
        frame.writeStream.foreachBatch(lambda df, _: seen.append(df.agg(f.count("*")).first()[0]))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen == [10_000]
    planned = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1])
    assert len(planned["t"]) == 10_000
