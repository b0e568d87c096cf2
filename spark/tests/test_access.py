"""Keys: the rights that a source and a sink need, and that keys are never shown."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from support.server import Server

KEYS = "all-of-it,only-reads:read,only-writes:write:out."


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with keys, and a topic; yields its address."""
    keys = {"TOPICS_API_KEYS": KEYS}
    with Server(tmp_path_factory.mktemp("guarded") / "data", env=keys) as server:
        client = Client(Connection(server.url, "all-of-it", None, 60.0))
        client.call("POST", "/v0/topics/in", {"records": [{"data": n} for n in range(10)]})
        yield server.url


def load(spark, url, token=None, **options):
    options |= {} if token is None else {"token": token}
    return spark.read.format("topics").options(url=url, subscribe="in", **options).load()


def write(frame, url, topic, token):
    frame.select("data").write.format("topics").mode("append").save(
        url=url, topic=topic, token=token
    )


def test_a_source_reads_with_a_key_that_reads(spark, guarded):
    assert load(spark, guarded, "only-reads").count() == 10
    for token in (None, "a-guess", "only-writes"):
        with pytest.raises(PySparkException, match=r"unauthorized|forbidden"):
            load(spark, guarded, token).count()


def test_a_sink_writes_with_a_key_that_writes_to_its_topic(spark, guarded):
    rows = load(spark, guarded, "only-reads")
    write(rows, guarded, "out.a", "only-writes")
    read = load(spark, guarded, "all-of-it", startingOffsets="earliest")
    assert read.count() == 10
    client = Client(Connection(guarded, "all-of-it", None, 60.0))
    assert client.call("GET", "/v0/topics/out.a")["count"] == 10
    for topic, token in (("other", "only-writes"), ("out.a", "only-reads")):
        with pytest.raises(PySparkException, match="forbidden"):
            write(rows, guarded, topic, token)
    assert client.call("GET", "/v0/topics/out.a")["count"] == 10


def test_a_stream_uses_its_keys(spark, guarded, tmp_path):
    frame = spark.readStream.format("topics").load(url=guarded, subscribe="in", token="only-reads")
    writer = frame.select("data").writeStream.format("topics").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path)).option("token", "only-writes")
    writer.start(url=guarded, topic="out.stream").awaitTermination()
    client = Client(Connection(guarded, "all-of-it", None, 60.0))
    assert client.call("GET", "/v0/topics/out.stream")["count"] == 10


def test_a_sink_goes_on_with_another_key_once_its_writer_is_handed_over(spark, guarded, tmp_path):
    admin = Client(Connection(guarded, "all-of-it", None, 60.0))

    def run(token):
        frame = spark.readStream.format("topics")
        frame = frame.load(url=guarded, subscribe="rotated", token="all-of-it").select("data")
        writer = frame.writeStream.format("topics").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path)).option("token", token)
        query = writer.start(url=guarded, topic="out.rotated")
        query.awaitTermination()
        return query.id

    def append(rows):
        records = {"records": [{"data": row} for row in rows]}
        admin.call("POST", "/v0/topics/rotated", records)

    append(range(10))
    writer = run("only-writes")
    append(range(10, 15))
    with pytest.raises(PySparkException, match="forbidden"):
        run("all-of-it")
    label = hashlib.sha256(b"all-of-it").hexdigest()[:16]
    admin.call("PUT", f"/v0/txn/{writer}/owner", {"owner": label})
    assert run("all-of-it") == writer
    body = {"from_seq": "earliest", "limit": 100}
    page = admin.call("POST", "/v0/topics/out.rotated/diff", body)
    assert sorted(record["data"] for record in page["records"]) == list(range(15))


def test_a_failing_run_does_not_show_its_key(spark, guarded, tmp_path, capfd, caplog):
    """Everything that failing reads, writes and streams print: exceptions, logs, outputs."""
    said = []

    def fail(run):
        with pytest.raises(PySparkException) as why:
            run()
        said.append(str(why.value))
        said.append("".join(traceback.format_exception(why.value)))

    key = "a-guess-8f31"
    fail(lambda: load(spark, guarded, key).count())
    fail(lambda: load(spark, "http://127.0.0.1:1", key, retryTimeoutMs="300").count())
    fail(lambda: load(spark, guarded, key + "\n").count())
    fail(lambda: load(spark, f"http://me:{key}@127.0.0.1:1").count())
    rows = load(spark, guarded, "only-reads")
    fail(lambda: write(rows, guarded, "out.a", key))
    frame = spark.readStream.format("topics").load(url=guarded, subscribe="in", token=key)
    writer = frame.select("data").writeStream.format("topics").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path)).option("token", key)
    fail(lambda: writer.start(url=guarded, topic="out.b").awaitTermination())
    said += [*capfd.readouterr(), caplog.text]
    assert sum("unauthorized" in text for text in said) >= 3
    assert not any(key in text for text in said)


def test_plans_do_not_show_a_key(spark, guarded):
    frame = load(spark, guarded, "only-reads")
    execution = frame._jdf.queryExecution()
    shown = execution.toString() + execution.explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
    )
    assert "in" in shown
    assert "only-reads" not in shown
