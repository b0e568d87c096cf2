"""The streaming job: joins flights with the weather of their hour, sums up delays, and writes rows
that cannot take part to a dead-letter topic. It works exactly once from a checkpoint, so it
continues after a kill at any time. It ends when its standard input ends and all available rows are
processed.

    python -m pipeline.job URL FOLDER flights=ROWS weather=ROWS
"""

from __future__ import annotations

import select
import sys
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
COMMON = "id long, origin string, hour string, at string"
FIELDS = {"flights": f"{COMMON}, dep_delay double", "weather": f"{COMMON}, temp double"}
LATENESS = f"{int(LATE.total_seconds())} seconds"


def source(spark: SparkSession, url: str, topic: str, per_trigger: str) -> DataFrame:
    """A topic's rows, each with the reason why it cannot take part, if there is one."""
    return (
        spark.readStream.format("topics")
        .option("maxOffsetsPerTrigger", per_trigger)
        .schema("topic string, seq long, data string")
        .load(url=url, subscribe=topic)
        .withColumn("row", f.from_json("data", FIELDS[topic]))
        .withColumn("hour", f.try_to_timestamp("row.hour"))
        .withColumn("at", f.try_to_timestamp("row.at"))
        .withColumn("reason", reason())
    )


def reason() -> Any:
    broken = f.col("row.origin").isNull() | f.col("hour").isNull() | f.col("at").isNull()
    late = f.col("at") > f.col("hour") + f.expr(f"INTERVAL {LATENESS}")
    return f.when(broken, "malformed").when(late, "late")


def delays(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """One row for each airport and hour, when no further row for it can arrive."""

    def good(rows: DataFrame, *columns: str) -> DataFrame:
        chosen = rows.where("reason IS NULL").select("hour", "row.origin", *columns)
        return chosen.withWatermark("hour", LATENESS)

    left = good(flights, "row.dep_delay").alias("l")
    right = good(weather, "row.temp").alias("r")
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
    """A query that is started again from its checkpoint if Spark could not serialize its plan.

    Spark serializes a plan while other threads of the driver may still change it. On rare occasions
    that fails ("Task not serializable", caused by a collection that changed meanwhile), and the
    next start succeeds. Every other error ends the job.
    """

    LIMIT = 3

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._restarts = 0
        self.query = start()

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
        self.query = self._start()

    def finish(self) -> None:
        """Processes all available rows, and stops the query."""
        while True:
            try:
                self.query.processAllAvailable()
                return self.query.stop()
            except StreamingQueryException:
                self.check()


def start(url: str, folder: Path, per_trigger: dict[str, str]) -> list[Restarted]:
    """Starts both queries."""
    spark = session("pipeline", folder=folder / "spark")

    def run(frame: DataFrame, topic: str) -> Restarted:
        writer = frame.writeStream.format("topics").options(url=url, topic=topic)
        writer = writer.option("checkpointLocation", str(folder / "checkpoints" / topic))
        return Restarted(writer.queryName(topic).outputMode("append").start)

    flights, weather = (
        source(spark, url, topic, per_trigger[topic]) for topic in ("flights", "weather")
    )
    dead_letters = dead(flights).unionByName(dead(weather))
    return [run(delays(flights, weather), RESULTS), run(dead_letters, DEAD)]


def run_until_input_ends(queries: list[Restarted]) -> None:
    """Runs until standard input ends, and then until all available rows are processed."""
    while not select.select([sys.stdin], [], [], 0.25)[0]:
        for query in queries:
            query.check()
    for query in queries:
        query.finish()


def main() -> None:
    url, folder, *limits = sys.argv[1:]
    run_until_input_ends(start(url, Path(folder), dict(limit.split("=", 1) for limit in limits)))


if __name__ == "__main__":
    main()
