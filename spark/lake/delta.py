"""The Delta table: the jar and the settings that it needs, and its statements."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from .table import COLUMNS, lake_session

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta_session(folder: Path) -> SparkSession:
    # Delta reads the log of a table with fifty tasks, which a small table does not need.
    return lake_session(
        folder, PACKAGE, {**SETTINGS, "spark.databricks.delta.snapshotPartitions": "2"}
    )


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
