"""The streaming job: joins flights with the weather of their hour, sums up delays, and writes rows
that cannot take part to a dead-letter topic. It works exactly once from a checkpoint, so it
continues after a kill at any time. It ends when its standard input ends and all available rows are
processed.

    python -m pipeline.job URL FOLDER flights=ROWS weather=ROWS [--master MASTER --py-files FILE]
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local_spark import session
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from .dataset import LATE

RESULTS, DEAD = "delays", "delays.dead"
COMMON = "origin string, hour timestamp, at timestamp"
FIELDS = {"flights": f"{COMMON}, dep_delay double", "weather": f"{COMMON}, temp double"}
"""Typed columns of each topic, parsed by the engine."""
LATENESS = f"{int(LATE.total_seconds())} seconds"


def source(
    spark: SparkSession, url: str, topic: str, per_trigger: str, columns: str = ""
) -> DataFrame:
    """A topic's rows, each with the reason why it cannot take part, if there is one. `columns` are
    those besides the typed ones."""
    return (
        spark.readStream.format("topics")
        .options(fields=FIELDS[topic], maxOffsetsPerTrigger=per_trigger)
        .schema(f"{columns}{FIELDS[topic]}")
        .load(url=url, subscribe=topic)
        .withColumn("reason", reason())
    )


def reason() -> Any:
    broken = f.col("origin").isNull() | f.col("hour").isNull() | f.col("at").isNull()
    late = f.col("at") > f.col("hour") + f.expr(f"INTERVAL {LATENESS}")
    return f.when(broken, "malformed").when(late, "late")


def delays(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """One row for each airport and hour, when no further row for it can arrive."""

    def good(rows: DataFrame, *columns: str) -> DataFrame:
        chosen = rows.where("reason IS NULL").select("hour", "origin", *columns)
        return chosen.withWatermark("hour", LATENESS)

    left = good(flights, "dep_delay").alias("l")
    right = good(weather, "temp").alias("r")
    joined = left.join(right, f.expr("l.origin = r.origin AND l.hour = r.hour"))
    hours = joined.groupBy("l.origin", f.window("l.hour", "1 hour")).agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.sum("dep_delay").alias("delay_sum"),
        f.max("dep_delay").alias("delay_max"),
        f.max("temp").alias("temp"),
    )
    hour = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("hour")
    values = ("flights", "departed", "delay_sum", "delay_max", "temp")
    packed = f.to_json(f.struct("origin", hour, *values), {"ignoreNullFields": "false"})
    # The final rows of the topics are in no closing window. A filter on them would be moved before
    # the watermark, which they must raise.
    return hours.select(f.col("origin").alias("tag"), packed.alias("data"))


def dead(rows: DataFrame) -> DataFrame:
    packed = f.to_json(f.struct("reason", "topic", "seq", "data"))
    return rows.where("reason IS NOT NULL").select(
        f.col("reason").alias("tag"), packed.alias("data")
    )


class Restarted:
    """A query whose sources are initialized, and that is started again from its checkpoint if Spark
    could not serialize its plan.

    The sources of a session that Spark found by their name share one map of environment variables,
    a part of their plans. Initializing a source of a stream adds to it, without a lock: two queries
    that do so at once can leave it broken ("Task not serializable", caused by "Illegal size of
    collection"). So the next query must start after the initialization of this one, when all
    variables are there. A plan that is serialized meanwhile can fail once. Every other error ends
    the job.
    """

    LIMIT = 3

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._restarts = 0
        self.query = self._initialized()

    def _initialized(self) -> StreamingQuery:
        query = self._start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.02)
        return query

    def check(self) -> None:
        """Starts the query again, or raises its error, if it has ended."""
        if self.query.isActive:
            return
        error = self.query.exception()
        if error is None:
            raise SystemExit(f"{self.query.name} ended without a request")
        if "Task not serializable" not in str(error) or self._restarts == self.LIMIT:
            raise error
        self._restarts += 1
        print(f"{self.query.name} is started again: {error}", file=sys.stderr, flush=True)
        self.query = self._initialized()

    def finish(self) -> None:
        """Processes all available rows, and stops the query."""
        while True:
            try:
                self.query.processAllAvailable()
                return self.query.stop()
            except StreamingQueryException:
                self.check()


def start(
    url: str, folder: Path, per_trigger: dict[str, str], master: str | None, py_files: str | None
) -> list[Restarted]:
    """Starts both queries. A task may fail four times, as it may on a cluster."""
    if py_files:
        # Python workers of the driver would find the package of the working directory.
        os.chdir(folder)
    spark = session("pipeline", 3 if master else 2, 4, folder / "spark", master, py_files)

    def run(frame: DataFrame, topic: str) -> Restarted:
        writer = frame.writeStream.format("topics").options(url=url, topic=topic)
        writer = writer.option("checkpointLocation", str(folder / "checkpoints" / topic))
        return Restarted(writer.queryName(topic).outputMode("append").start)

    def both(columns: str = "") -> list[DataFrame]:
        return [source(spark, url, topic, per_trigger[topic], columns) for topic in FIELDS]

    flights, weather = (dead(rows) for rows in both("topic string, seq long, data string, "))
    return [run(delays(*both()), RESULTS), run(flights.unionByName(weather), DEAD)]


def run_until_input_ends(queries: list[Restarted]) -> None:
    """Runs until standard input ends, and then until all available rows are processed."""
    while not select.select([sys.stdin], [], [], 0.25)[0]:
        for query in queries:
            query.check()
    for query in queries:
        query.finish()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("url")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("limits", nargs="+", metavar="TOPIC=ROWS")
    arguments.add_argument("--master")
    arguments.add_argument("--py-files")
    given = arguments.parse_args()
    limits = dict(limit.split("=", 1) for limit in given.limits)
    run_until_input_ends(start(given.url, given.folder, limits, given.master, given.py_files))


if __name__ == "__main__":
    main()
