"""The Delta table: the jar and the settings that it needs, and its statements."""

from __future__ import annotations

from pathlib import Path

import pyspark
from local_spark import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
VALUES = (
    "id BIGINT, origin STRING, hour TIMESTAMP, at TIMESTAMP, flight INT, sched_dep_time INT, "
    "dep_delay DOUBLE"
)
"""The typed columns: names of values in the records, and their types."""
COLUMNS = f"seq BIGINT, {VALUES}"
"""The columns of the table. The seq identifies a row: it must not be there twice."""
NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


def delta_session(folder: Path, package: str = PACKAGE, **more: str) -> SparkSession:
    """A session for Delta. Spark downloads the jar at its first start, and keeps it."""
    settings = {
        **SETTINGS,
        "spark.jars.packages": package,
        # Delta reads the log of a table with fifty tasks, which a small table does not need.
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    settings |= more
    # The home of Spark in this folder is of one version.
    home = folder / f"spark-{pyspark.__version__}"
    return session("lake", cores=2, failures=1, folder=home, **settings)


def path(folder: Path) -> str:
    return str(folder / "lake" / "delta" / "flights")


def name(folder: Path) -> str:
    """The table in SQL."""
    return f"delta.`{path(folder)}`"


def create(spark: SparkSession, folder: Path) -> None:
    """Creates the table unless it exists."""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name(folder)} ({COLUMNS}) USING delta")


def start(rows: DataFrame, folder: Path, checkpoint: Path) -> StreamingQuery:
    """Starts the stream that appends the rows, each once: a commit records the id of the query and
    the number of the batch in the table's log, and a batch that is there is skipped."""
    writer = rows.writeStream.format("delta").queryName("delta")
    return writer.option("checkpointLocation", str(checkpoint)).start(path(folder))


def compact(spark: SparkSession, folder: Path) -> None:
    """Merges small files."""
    spark.sql(f"OPTIMIZE {name(folder)}")


def files(spark: SparkSession, folder: Path) -> int:
    """The number of data files in the current version."""
    (detail,) = spark.sql(f"DESCRIBE DETAIL {name(folder)}").select("numFiles").collect()
    return int(detail[0])
