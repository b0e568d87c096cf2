"""The measurements of one Spark session, as JSON lines.

python -m bench.measure CORES WHAT URL FOLDER [--broker ADDRESS] [--pid PID]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_spark import session
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from .cpu import cpu_seconds, descendants
from .kafka import PEERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES = 3
SOURCE, ROWS = "bench", 10_000_000
SINK_ROWS = 2_000_000
RATE, SECONDS = 1000, 20
WARM = 3
"""Micro-batches before those whose latency counts."""
IDLE_SECONDS = 10
FLIGHTS, FLIGHT_ROWS = "flights", 1_000_000
CODECS = ("none", "lz4", "zstd")


def print_result(name: str, **values: Any) -> None:
    print(json.dumps({"name": name, **values}), flush=True)


def median_of(work: Callable[[], object], rows: int, before: Callable[[], object]) -> float:
    """Rows per second: the median of a few runs after a warm-up run, which does not count."""
    rates = []
    for _ in range(TIMES + 1):
        before()
        started = time.perf_counter()
        work()
        rates.append(rows / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _read_once(make: Callable[[], DataFrame]) -> None:
    discard(make())


def nothing() -> None:
    """The preparation of a run that needs none."""


def read(spark: SparkSession, to: dict[str, str], mode: str) -> None:
    for columns, schema in (("all columns", None), ("seq, data", "seq long, data string")):

        def frame(schema: str | None = schema) -> DataFrame:
            reader = spark.read.format("topics")
            return (reader.schema(schema) if schema else reader).load(subscribe=SOURCE, **to)

        assert frame().count() == ROWS
        rate = median_of(partial(_read_once, frame), ROWS, nothing)
        print_result(f"read {mode}, {columns}", rows_per_s=round(rate))
    # Spark does not tell a source which columns a query needs, so `count()` of a frame with all
    # columns transfers all of them.
    for columns, schema in (("all columns", None), ("seq alone", "seq long")):

        def count(schema: str | None = schema) -> None:
            reader = spark.read.format("topics")
            (reader.schema(schema) if schema else reader).load(subscribe=SOURCE, **to).count()

        print_result(
            f"read {mode}, {columns}, count()", rows_per_s=round(median_of(count, ROWS, nothing))
        )


def parquet(spark: SparkSession, url: str, folder: Path) -> None:
    """The same rows in Spark's own format."""
    file = str(folder / "rows.parquet")
    if not Path(file).exists():
        spark.read.format("topics").load(url=url, subscribe=SOURCE).write.parquet(file)
    for columns in (["*"], ["seq", "data"]):

        def frame(columns: list[str] = columns) -> DataFrame:
            return spark.read.parquet(file).select(*columns)

        rate = median_of(partial(_read_once, frame), ROWS, nothing)
        shown = "all columns" if columns == ["*"] else "seq, data"
        print_result(f"read Parquet, {shown}", rows_per_s=round(rate))
    rate = median_of(lambda: spark.read.parquet(file).count(), ROWS, nothing)
    print_result("read Parquet, count()", rows_per_s=round(rate))


def made(spark: SparkSession) -> DataFrame:
    """Rows of 160 bytes for a sink, in memory."""
    text = "concat('{\"n\":', 10000000 + id, ',\"pad\":\"', repeat('x', 137), '\"}') AS data"
    rows = spark.range(0, SINK_ROWS, 1, 2).selectExpr(text).cache()
    rows.count()
    return rows


def sink(spark: SparkSession, url: str, folder: Path, server: int) -> None:
    rows = made(spark)
    client = Client(Connection(url, None, None, 30.0))
    begun = cpu_seconds(server)
    rate = median_of(
        lambda: rows.write.format("topics").mode("append").save(url=url, topic="bench.sink"),
        SINK_ROWS,
        lambda: client.call("DELETE", "/v0/topics/bench.sink"),
    )
    # The checkpoint writes the rows to segments: their cost is part of the sink's.
    client.call("POST", "/v0/admin/checkpoint", {})
    cost = (cpu_seconds(server) - begun) / (TIMES + 1) / SINK_ROWS * 1e6
    print_result("sink, default options, 160 B rows", rows_per_s=round(rate))
    print_result("sink, CPU of the server per million rows", seconds=round(cost, 2))
    file = str(folder / "sink.parquet")
    rate = median_of(
        lambda: rows.write.mode("overwrite").parquet(file),
        SINK_ROWS,
        nothing,
    )
    print_result("sink to Parquet", rows_per_s=round(rate))


def idle(spark: SparkSession, url: str, server: int) -> None:
    """The processor time of a streaming query that has nothing to do."""
    client = Client(Connection(url, None, None, 30.0))
    client.call("PUT", "/v0/topics/bench.idle", {})
    query = (
        spark.readStream.format("topics")
        .load(url=url, subscribe="bench.idle")
        .writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(prefix="bench-"))
        .start()
    )
    client.call("POST", "/v0/topics/bench.idle", {"records": [{"data": 1}]})
    query.processAllAvailable()
    time.sleep(IDLE_SECONDS / 2)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc.pid

    def used() -> dict[int, float]:
        return {pid: cpu_seconds(pid) for pid in (server, os.getpid(), jvm, *descendants(jvm))}

    begun = used()
    time.sleep(IDLE_SECONDS)
    # A worker that ends meanwhile is not counted: an idle query has none that works.
    cost = {pid: ended - begun.get(pid, 0.0) for pid, ended in used().items()}
    query.stop()
    python = sum(cost.values()) - cost[server] - cost[jvm]
    print_result(
        f"an idle query, CPU per {IDLE_SECONDS} s",
        server_s=round(cost[server], 2),
        python_s=round(python, 2),
        jvm_s=round(cost[jvm], 2),
    )


def link(spark: SparkSession, url: str) -> None:
    """Reads and writes of flights through a connection of limited bandwidth, by compression."""
    client = Client(Connection(url, None, None, 30.0))
    for codec in CODECS:
        to = {"url": url, "compression": codec}

        def frame(to: dict[str, str] = to) -> DataFrame:
            return spark.read.format("topics").load(subscribe=FLIGHTS, **to)

        rate = median_of(partial(_read_once, frame), FLIGHT_ROWS, nothing)
        print_result(f"read by the link, compression {codec}", rows_per_s=round(rate))
    rows = spark.read.format("topics").load(url=url, subscribe=FLIGHTS).select("data").cache()
    rows.count()
    for codec in CODECS:
        to = {"url": url, "compression": codec}
        write = partial(rows.write.format("topics").mode("append").options(**to).save)
        rate = median_of(
            partial(write, topic="bench.link"),
            FLIGHT_ROWS,
            lambda: client.call("DELETE", "/v0/topics/bench.link"),
        )
        print_result(f"sink by the link, compression {codec}", rows_per_s=round(rate))


def fill_kafka(spark: SparkSession, url: str, broker: str) -> None:
    """The same rows in a topic of Kafka, after a measurement of its sink."""
    to = {"kafka.bootstrap.servers": broker}
    rows = made(spark).selectExpr("data AS value")
    write = partial(rows.write.format("kafka").options(topic="bench.sink", **to).save)
    print_result("sink to Kafka", rows_per_s=round(median_of(write, SINK_ROWS, nothing)))
    rows = spark.read.format("topics").load(url=url, subscribe=SOURCE)
    rows.selectExpr("data AS value").write.format("kafka").options(topic=SOURCE, **to).save()


def kafka(spark: SparkSession, broker: str) -> None:
    """Reads with as many tasks as a topic of ours has; Spark prunes the columns of this source."""
    for name, columns in (("all columns", ["*"]), ("seq, data", ["offset", "string(value)"])):

        def frame(columns: list[str] = columns) -> DataFrame:
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker)
            reader = reader.options(subscribe=SOURCE, minPartitions=ROWS // 1_000_000)
            return reader.load().selectExpr(*columns)

        assert frame().count() == ROWS
        rate = median_of(partial(_read_once, frame), ROWS, nothing)
        print_result(f"read from Kafka, {name}", rows_per_s=round(rate))


def latency(spark: SparkSession, url: str) -> None:
    """From the append of a row to the append of the stream's result."""
    client = Client(Connection(url, None, None, 30.0))
    for name in ("bench.in", "bench.out"):
        client.call("DELETE", f"/v0/topics/{name}")
        client.call("PUT", f"/v0/topics/{name}", {})
    frame = spark.readStream.format("topics").load(url=url, subscribe="bench.in")
    packed = "concat('{\"at\":', unix_millis(ts), '}') AS data"
    query = (
        frame.selectExpr(packed)
        .writeStream.format("topics")
        .option("checkpointLocation", tempfile.mkdtemp(prefix="bench-"))
        .start(url=url, topic="bench.out")
    )
    for n in range(WARM):
        client.call("POST", "/v0/topics/bench.in", {"records": [{"data": n}]})
        query.processAllAvailable()
    feed_at(url)
    query.processAllAvailable()
    progress = [p for p in query.recentProgress if p["numInputRows"]][WARM:]
    query.stop()
    behind = {"startingOffsets": f'{{"bench.out":{WARM + 1}}}'}
    rows = spark.read.format("topics").options(**behind).load(url=url, subscribe="bench.out")
    found = rows.selectExpr("unix_millis(ts) - get_json_object(data, '$.at') AS ms")
    p50, p99 = found.approxQuantile("ms", [0.5, 0.99], 0.0)
    took = statistics.median(p["durationMs"]["triggerExecution"] for p in progress)
    print_result("latency", rows=found.count(), p50_ms=p50, p99_ms=p99, batch_ms=took)


def feed_at(url: str) -> None:
    client = Client(Connection(url, None, None, 30.0))
    started, sent = time.monotonic(), 0
    while sent < RATE * SECONDS:
        due = min(RATE * SECONDS, int((time.monotonic() - started) * RATE))
        if due > sent:
            records = [{"data": n} for n in range(sent, due)]
            client.call("POST", "/v0/topics/bench.in", {"records": records})
            sent = due
        time.sleep(0.01)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("cores", type=int)
    arguments.add_argument("what")
    arguments.add_argument("url")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--broker", default="")
    arguments.add_argument("--pid", type=int, default=0, help="of the server")
    given = arguments.parse_args()
    url, folder = given.url, given.folder
    spark = session(
        "bench",
        cores=given.cores,
        folder=folder / f"spark-{given.cores}-{given.what}",
        spark__driver__extraClassPath=f"{PEERS / 'spark-kafka'}/*" if given.broker else "",
    )
    if given.what == "server":
        read(spark, {"url": url}, "from a server")
        parquet(spark, url, folder)
    elif given.what == "path":
        read(spark, {"path": str(folder / "data")}, "from a directory")
    elif given.what == "kafka-sink":
        fill_kafka(spark, url, given.broker)
    elif given.what == "kafka":
        kafka(spark, given.broker)
    elif given.what == "link":
        link(spark, url)
    else:
        sink(spark, url, folder, given.pid)
        latency(spark, url)
        idle(spark, url, given.pid)
    spark.stop()


if __name__ == "__main__":
    main()
