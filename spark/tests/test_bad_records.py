"""Bad records, in both directions: they fail the task, are logged, or go to a topic."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark_topics import DefaultSource, staging
from pyspark_topics.errors import TopicsError

from support.server import Server

RAW = bytes(range(256))


def mixed(topics, topic, count, binary):
    """Text records; those with the given numbers are binary."""
    records = [{"data": n} for n in range(count)]
    for n in binary:
        records[n] = {"data_b64": base64.b64encode(RAW).decode(), "tag": "raw", "node": "n1"}
    for at in range(0, count, 10_000):
        body = {"records": records[at : at + 10_000]}
        topics.client.call("POST", f"/v0/topics/{topic}", body)


def rows_of(topics, topic, **options):
    """Reads in this process, so that what is logged is seen."""
    given = {"url": topics.url, "subscribe": topic, "retryTimeoutMs": "60000", **options}
    source = DefaultSource(CaseInsensitiveDict(given))
    reader = source.reader(StructType().add("seq", "long").add("data", "string"))
    rows = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += [int(text) for text in batch.column("data").to_pylist()]
    return rows


@pytest.mark.parametrize(
    "binary", [[0], [1, 2], [7], [9_999, 20_000], [30_999], [0, 15_000, 30_999]]
)
def test_a_source_leaves_binary_records_out(topics, topic, caplog, binary):
    mixed(topics, topic, 31_000, binary)
    rows = rows_of(topics, topic, badRecords="log", maxRecordsPerPartition="16000")
    assert rows == [n for n in range(31_000) if n not in binary]
    told = [r.message for r in caplog.records if "is binary" in r.message]
    assert told == [
        f"record {n + 1} of topic {topic!r} is binary, not JSON text: it is left out"
        for n in binary
    ]


def test_a_source_copies_binary_records(topics, topic):
    mixed(topics, topic, 100, [3, 50])
    dead = f"{topic}.dead"
    for _ in range(2):
        # A task that runs again copies nothing twice.
        assert len(rows_of(topics, topic, badRecords=f"topic:{dead}")) == 98
    first, second = topics.rows(dead)
    assert base64.b64decode(first["data_b64"]) == RAW
    assert (first["$tag"], first["$node"]) == ("raw", "n1")
    assert first["meta"] == {
        "bad_topic": topic,
        "bad_seq": "4",
        "bad_reason": "binary data in a text column",
    }
    assert second["meta"]["bad_seq"] == "51"


def test_a_source_fails_by_default_and_names_the_record(topics, topic, read):
    mixed(topics, topic, 100, [3])
    with pytest.raises(PySparkException, match="record 4 is binary"):
        read().collect()
    assert read(badRecords="log").count() == 99


def test_a_directory_leaves_binary_records_out_too(tmp_path, caplog):
    import topics_engine as te

    with te.open(tmp_path / "data") as db:
        db.topic("t").append([1, RAW, 3])
    options = CaseInsensitiveDict({"path": str(tmp_path / "data"), "subscribe": "t"})
    options["badRecords"] = "log"
    reader = DefaultSource(options).reader(StructType().add("data", "string"))
    (partition,) = reader.partitions()
    rows = [text for batch in reader.read(partition) for text in batch["data"].to_pylist()]
    assert rows == ["1", "3"]
    assert "record 2 of topic 't' is binary" in caplog.text


def write(topics, options, *batches, columns="data"):
    """Runs the tasks of a write in this process, and commits it."""
    given = CaseInsensitiveDict({"url": topics.url, "retryTimeoutMs": "60000", **options})
    schema = StructType()
    for name in columns.split():
        schema = schema.add(name, "string")
    writer = DefaultSource(given).writer(schema, False)
    done = writer.write(iter([pa.RecordBatch.from_pydict(batch) for batch in batches]))
    writer.commit([done])


def test_a_sink_names_topic_partition_and_row(spark, topics, topic):
    frame = spark.range(0, 60_000, 1, 2).selectExpr(
        "if(id = 59999, 'not json', cast(id AS string)) AS data"
    )
    # The second of two partitions of 30 000 rows; the engine sees them in several parts.
    told = f"row 29999 of partition 1, for topic '{topic}' cannot be written: .*not valid JSON"
    with pytest.raises(PySparkException, match=told):
        frame.write.format("topics").mode("append").save(url=topics.url, topic=topic)
    assert topics.client.call("POST", "/v0/state", {"topics": [topic]})["topics"] == {}


BAD = {3: "nope", 40: None, 41: "{", 77: "NaN", 149: "[" * 500 + "]" * 500, 150: '"\\ud800"x'}


def some_bad(at, rows):
    return {"data": [BAD.get(n, str(n)) if n in BAD else str(n) for n in range(at, at + rows)]}


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(staging, "PART_ROWS", 50)


def test_a_sink_leaves_bad_rows_out(topics, topic, caplog, small_parts):
    good = [n for n in range(200) if n not in BAD]
    write(topics, {"topic": topic, "badRecords": "log"}, some_bad(0, 120), some_bad(120, 80))
    assert topics.data(topic) == good
    told = [r.message for r in caplog.records if "is left out" in r.message]
    assert [line.split(" of ")[0] for line in told] == [f"row {n}" for n in BAD]
    assert all(f"partition 0, for topic {topic!r}" in line for line in told)


def test_a_sink_publishes_bad_rows_with_the_others(topics, topic, small_parts):
    dead = f"{topic}.dead"
    app = {"txnAppId": topic, "txnVersion": "1"}
    options = {"topic": topic, "badRecords": f"topic:{dead}", **app}
    for _ in range(2):
        # The same version again: neither the good rows nor the bad ones are written twice.
        write(topics, options, some_bad(0, 200))
    assert len(topics.data(topic)) == 200 - len(BAD)
    letters = topics.rows(dead)
    assert [int(row["meta"]["bad_row"]) for row in letters] == list(BAD)
    assert [base64.b64decode(row["data_b64"]).decode() for row in letters] == [
        text or "" for text in BAD.values()
    ]
    assert {row["meta"]["bad_topic"] for row in letters} == {topic}
    assert all(row["meta"]["bad_reason"] for row in letters)


def test_many_bad_rows_are_counted_in_the_log(topics, topic, caplog):
    write(topics, {"topic": topic, "badRecords": "log"}, {"data": ["x"] * 5000 + ["1"]})
    assert topics.data(topic) == [1]
    told = [r.message for r in caplog.records if r.name == "pyspark_topics"]
    assert len(told) == 11
    assert told[-1] == "partition 0: 4990 more rows are left out"


def test_rows_of_several_topics_are_named_by_theirs(topics, topic, caplog):
    a, b = f"{topic}.a", f"{topic}.b"
    rows = {"topic": [a, b, a, None, b], "data": ["1", "2", "?", "4", "!"]}
    options = {"badRecords": "log", "txnAppId": topic, "txnVersion": "1"}
    write(topics, options, rows, columns="topic data")
    assert (topics.data(a), topics.data(b)) == ([1], [2])
    told = "\n".join(r.message for r in caplog.records)
    for row, name in ((2, a), (4, b), (3, "")):
        assert f"row {row} of partition 0, for topic {name!r}" in told
    with pytest.raises(TopicsError, match=r"row 1 of partition 0, for topic .* has no topic"):
        write(topics, {}, {"topic": [a, None], "data": ["1", "2"]}, columns="topic data")


def test_full_stages_name_their_setting(tmp_path):
    with Server(tmp_path / "data", txn_bytes=100_000) as server:
        options = {"topic": "t", "retryTimeoutMs": "3000"}
        with pytest.raises(TopicsError, match=r"TOPICS_TXN_BYTES \(100000 bytes\): raise") as e:
            write(server, options, {"data": ['"' + "x" * 1000 + '"'] * 200})
        assert "set it to 0" in e.value.message
        assert "planned keeps its size" in e.value.message


def test_a_record_that_is_too_large_is_a_bad_one(topics, topic, caplog):
    large = json.dumps("x" * (2 << 20))
    write(topics, {"topic": topic, "badRecords": "log"}, {"data": ["1", large, "3"]})
    assert topics.data(topic) == [1, 3]
    assert "row 1 of partition 0" in caplog.text
