"""Topics of a directory that no server has open."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark_topics import DefaultSource
from pyspark_topics.client import Backoff
from pyspark_topics.compat import PUSHES_FILTERS
from pyspark_topics.errors import InvalidOption

import topics_engine as te
from support.waiting import until
from topics_engine import testing

from .versions import run_to_end


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A directory with topics of every kind."""
    where = tmp_path / "data"
    with te.open(str(where)) as db:
        db.topic("a").append([{"n": n} for n in range(20_000)], tag="eu:1", origin="n1")
        db.topic("a").append([{"n": n} for n in range(20_000, 25_000)], tag="us:1", origin="n2")
        db.topic("b").append([1, 2, 3])
        db.topic("raw").append([b"\x00\xff"])
        trimmed = db.topic("trimmed", cap_records=10)
        trimmed.append(list(range(5)))
        trimmed.append(list(range(5, 30)))
    return where


def load(spark, where, **options):
    return spark.read.format("topics").options(**options).load(str(where))


def test_a_directory_is_read(spark, closed):
    frame = load(spark, closed, subscribe="a", minPartitions="4")
    assert frame.rdd.getNumPartitions() >= 4
    rows = frame.select("seq", f.get_json_object("data", "$.n").cast("int").alias("n")).collect()
    assert sorted(row.n for row in rows) == list(range(25_000))
    assert all(row.seq == row.n + 1 for row in rows)
    # The directory is unchanged, and no worker has it open any more.
    with te.open(str(closed)) as db:
        assert db.topic("b").append(4).first_seq == 4


def test_a_copy_is_read_while_the_original_is_written(spark, closed, tmp_path):
    copy = shutil.copytree(closed, tmp_path / "monday")
    with te.open(str(closed)) as db:
        db.topic("b").append([4, 5])
        assert load(spark, f"file://{copy}", subscribe="b").count() == 3


def test_patterns_and_projections(spark, closed):
    found = load(spark, closed, subscribePattern="[ab]").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in found} == {"a": 25_000, "b": 3}
    frame = (
        spark.read.format("topics")
        .schema("data string, seq long")
        .load(path=str(closed), subscribe="b")
    )
    assert [tuple(row) for row in frame.orderBy("seq").collect()] == [("1", 1), ("2", 2), ("3", 3)]


def test_filters(pushing, spark, closed):
    for condition, expected in (
        (f.col("tag") == "us:1", 5_000),
        (f.col("tag").startswith("eu:"), 20_000),
        (f.col("node") == "n1", 20_000),
        (f.col("seq").between(101, 200), 100),
    ):
        frame = load(spark, closed, subscribe="a", pushFilters="true")
        assert frame.filter(condition).count() == expected, str(condition)


def test_bytes(spark, closed):
    assert (
        bytes(load(spark, closed, subscribe="raw", dataType="binary").first().data) == b"\x00\xff"
    )
    with pytest.raises(PySparkException, match="binary"):
        load(spark, closed, subscribe="raw").collect()


def test_gaps(spark, closed):
    options = {"subscribe": "trimmed", "startingOffsets": '{"trimmed": 1}'}
    with pytest.raises(PySparkException, match="data_loss"):
        load(spark, closed, **options).collect()
    assert load(spark, closed, failOnDataLoss="false", **options).count() == 10
    assert load(spark, closed, gaps="emit", **options).count() == 11


def test_a_stream_from_a_directory(spark, topics, topic, closed, tmp_path):
    def run():
        frame = spark.readStream.format("topics").option("maxOffsetsPerTrigger", 10_000)
        frame = frame.load(path=str(closed), subscribePattern="[ab]")
        writer = frame.select("data").writeStream.format("topics").trigger(availableNow=True)
        checkpoint = tmp_path / "checkpoint"
        writer = writer.option("checkpointLocation", str(checkpoint))
        done = run_to_end(partial(writer.start, url=topics.url, topic=topic), checkpoint)
        return [p["numInputRows"] for p in done]

    assert run() == [10_000, 10_000, 5_003]
    with te.open(str(closed)) as db:
        db.topic("b").append([4, 5])
    assert run() == [2]
    assert len(topics.data(topic)) == 25_005


def test_what_is_open_or_not_there_is_refused(spark, closed, tmp_path):
    with te.open(str(closed)), pytest.raises(PySparkException, match="locked"):
        load(spark, closed, subscribe="a").collect()
    with pytest.raises(PySparkException):
        load(spark, tmp_path / "nothing", subscribe="a").collect()
    with pytest.raises(PySparkException, match="topic_not_found"):
        load(spark, closed, subscribe="none").collect()


@pytest.fixture
def archived(tmp_path: Path) -> tuple[str, Path, te.Settings]:
    """The URL of a prefix, the directory that is archived to it, and the settings for that."""
    url = f"file://{tmp_path}/remote"
    settings: te.Settings = {
        "remote_url": url,
        "remote_base_interval_ms": 100,
        "segment_max_events": 1000,
    }
    with te.open(tmp_path / "data", **settings) as db:
        orders = db.topic("orders", durability="fsync")
        orders.append([te.NewRecord({"n": n}, tag=f"t:{n % 3}") for n in range(3000)])
        db.checkpoint()
        orders.delete(seqs=[7, 8, 2000])
        db.checkpoint()
        orders.append([te.NewRecord({"n": n}, tag="new") for n in range(3000, 6500)])

        def is_whole() -> bool:
            db.checkpoint()
            try:
                with te.open(url, read_only=True) as view:
                    has_all = view.topic("orders").state().head_seq == 6500
            except (te.InvalidRequest, te.NotFound):
                return False
            return has_all and db.metrics()["packs"] > 0

        until(is_whole, 60)
    return url, tmp_path / "data", settings


def test_a_prefix_is_read_like_its_server(spark, archived):
    url, directory, settings = archived
    with testing.Server(directory, **settings) as server:
        served = spark.read.format("topics").load(url=server.url, subscribe="orders")
        expected = sorted(served.collect(), key=lambda row: row.seq)
        # The server has the directory open meanwhile.
        frame = load(spark, url, subscribe="orders", minPartitions="4")
        assert frame.rdd.getNumPartitions() >= 4
        assert sorted(frame.collect(), key=lambda row: row.seq) == expected
    assert [row.seq for row in expected][:8] == [1, 2, 3, 4, 5, 6, 9, 10]
    assert (len(expected), expected[-1].seq) == (6497, 6500)
    pushed = {"pushFilters": "true"} if PUSHES_FILTERS else {}
    for condition, wanted in (
        (f.col("tag") == "t:1", [row for row in expected if row.tag == "t:1"]),
        (f.col("seq").between(2990, 3010), [r for r in expected if 2990 <= r.seq <= 3010]),
    ):
        found = load(spark, url, subscribe="orders", **pushed).filter(condition)
        assert sorted(found.collect(), key=lambda row: row.seq) == wanted
    offsets = {"startingOffsets": '{"orders": 11}', "endingOffsets": '{"orders": 21}'}
    some = load(spark, url, subscribe="orders", **offsets)
    assert sorted(row.seq for row in some.collect()) == list(range(11, 21))


def test_a_stream_from_a_prefix_goes_on_with_what_is_shipped(
    spark, topics, topic, archived, tmp_path
):
    url, directory, settings = archived

    def run() -> None:
        stream = spark.readStream.format("topics").load(path=url, subscribe="orders")
        writer = stream.select("data").writeStream.format("topics").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.start(url=topics.url, topic=topic).awaitTermination()

    run()
    assert topics.state(topic)["count"] == 6497
    with te.open(directory, **settings) as db:
        db.topic("orders").append([{"n": n} for n in range(10)])
    run()
    assert topics.state(topic)["count"] == 6507


@pytest.fixture
def cold(tmp_path: Path) -> tuple[Path, str]:
    """A directory most of whose segments are only in an object store, and its URL."""
    where, url = tmp_path / "data", f"file://{tmp_path}/remote"
    settings: te.Settings = {
        "remote_url": url,
        "remote_base_interval_ms": 100,
        "segment_max_events": 1000,
    }
    with te.open(where, **settings, hot_retain_segments=1) as db:
        db.topic("a", durability="fsync").append([{"n": n} for n in range(8_000)])

        def is_cold() -> bool:
            db.checkpoint()
            return len(list(where.rglob("*.data"))) <= 2

        until(is_cold, 60)
    return where, url


def test_cold_segments_are_read_from_the_remote(spark, topics, topic, cold, tmp_path):
    where, url = cold
    frame = load(spark, where, subscribe="a", remote=url, minPartitions="3")
    assert sorted(row.seq for row in frame.select("seq", "data").collect()) == [*range(1, 8001)]
    stream = spark.readStream.format("topics").load(path=str(where), subscribe="a", remote=url)
    writer = stream.select("data").writeStream.format("topics").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.start(url=topics.url, topic=topic).awaitTermination()
    assert topics.state(topic)["count"] == 8000


def test_cold_segments_without_their_remote_are_refused_without_a_retry(cold, monkeypatch):
    where, _ = cold

    def never(_self: Backoff, error: Exception, _least: float = 0.0) -> None:
        raise AssertionError(f"waited after {error}")

    monkeypatch.setattr(Backoff, "wait", never)
    given = CaseInsensitiveDict({"path": str(where), "subscribe": "a"})
    reader = DefaultSource(given).reader(StructType().add("data", "string"))
    with pytest.raises(InvalidOption, match='name it with the option "remote"'):
        [b for p in reader.partitions() for b in reader.read(p)]
