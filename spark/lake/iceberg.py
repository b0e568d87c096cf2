"""The Iceberg job: a stream from the topic to an Iceberg table, exactly once from its checkpoint.
It is a job of its own because Iceberg has no release for the Spark of the Delta job: this one runs
on Spark 4.1. It ends when its standard input ends and all available rows are written. With OUTPUT
it compacts the table first, lets the stream finish what it has not recorded as done, and writes
what is in the table as Parquet, before and after.

    python -m lake.iceberg URL FOLDER flights=ROWS [OUTPUT]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipeline.job import Restarted, run_until_input_ends
from pyspark.sql import DataFrame, SparkSession

from .job import TOPIC, good_rows
from .maintain import FILES, write
from .table import COLUMNS, lake_session

PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SETTINGS = {
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
NAME = "lake.air.flights"


def iceberg_session(folder: Path) -> SparkSession:
    """A session with a catalog of Iceberg tables in a directory."""
    warehouse = str(folder / "lake" / "iceberg")
    settings = {**SETTINGS, "spark.sql.catalog.lake.warehouse": warehouse}
    return lake_session(folder, PACKAGE, settings)


def create(spark: SparkSession) -> None:
    """Creates the table unless it exists."""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {NAME} ({COLUMNS}) USING iceberg PARTITIONED BY (months(hour))"
    )


def start(rows: DataFrame, checkpoint: Path) -> Restarted:
    """Starts the stream that appends the rows, each once: a commit records the id of the query and
    the number of the batch in its snapshot, and a batch that is there is skipped."""
    # A task keeps one file open for each partition, instead of sorting its rows by partition.
    writer = rows.writeStream.format("iceberg").option("fanout-enabled", "true")
    writer = writer.option("checkpointLocation", str(checkpoint)).queryName("iceberg")
    return Restarted(partial(writer.toTable, NAME))


def compact(spark: SparkSession) -> None:
    """Merges small files."""
    table, _, name = NAME.partition(".")
    options = "options => map('min-input-files', '2')"
    spark.sql(f"CALL {table}.system.rewrite_data_files(table => '{name}', {options})")


def files(spark: SparkSession) -> int:
    """The number of data files in the current version."""
    return spark.table(f"{NAME}.files").count()


def maintain(spark: SparkSession, query: Callable[[], Restarted], output: Path) -> None:
    """Compacts the table, and lets the stream finish."""
    write(spark, NAME, output, "before")
    found = [files(spark)]
    compact(spark)
    found.append(files(spark))
    query().finish()
    found.append(files(spark))
    write(spark, NAME, output, "after")
    (output / FILES).write_text(json.dumps(found))


def main() -> None:
    url, where, limit, *output = sys.argv[1:]
    folder = Path(where)
    spark = iceberg_session(folder)
    create(spark)
    rows = good_rows(spark, url, limit.removeprefix(f"{TOPIC}="))
    query = partial(start, rows, folder / "checkpoints" / "iceberg")
    if output:
        maintain(spark, query, Path(output[0]))
    else:
        run_until_input_ends([query()])


if __name__ == "__main__":
    main()
