"""The Iceberg job: a stream from the Delta table to an Iceberg table, exactly once from its
checkpoint. It ends when all rows that are there are written. It is a job of its own because Iceberg
has no release for Spark 4.2 yet, which reads topics: this one runs on Spark 4.1. With OUTPUT it
compacts the Iceberg table first, and writes what is in it as Parquet, before and after.

    python -m lake.iceberg DELTA-TABLE FOLDER [OUTPUT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from .delta import COLUMNS, delta_session
from .maintain import FILES, write

PACKAGES = (
    "io.delta:delta-spark_4.1_2.13:4.4.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
)
SETTINGS = {
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
NAME = "lake.air.flights"


def iceberg_session(folder: Path) -> SparkSession:
    """A session for both formats, with a catalog of Iceberg tables in a directory."""
    warehouse = str(folder / "lake" / "iceberg")
    more = {**SETTINGS, "spark.sql.catalog.lake.warehouse": warehouse}
    return delta_session(folder, PACKAGES, **more)


def create(spark: SparkSession) -> None:
    """Creates the table unless it exists."""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {NAME} ({COLUMNS}) USING iceberg PARTITIONED BY (months(hour))"
    )


def append_available(spark: SparkSession, source: str, checkpoint: Path) -> None:
    """Appends the rows of the Delta table that are not in the Iceberg table, each once: a commit
    records the id of the query and the number of the batch in its snapshot, and a batch that is
    there is skipped."""
    rows = spark.readStream.format("delta").option("maxFilesPerTrigger", "1").load(source)
    # A task keeps one file open for each partition, instead of sorting its rows by partition.
    writer = rows.writeStream.format("iceberg").option("fanout-enabled", "true")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.toTable(NAME).awaitTermination()


def compact(spark: SparkSession) -> None:
    """Merges small files."""
    table, _, name = NAME.partition(".")
    options = "options => map('min-input-files', '2')"
    spark.sql(f"CALL {table}.system.rewrite_data_files(table => '{name}', {options})")


def files(spark: SparkSession) -> int:
    """The number of data files in the current version."""
    return spark.table(f"{NAME}.files").count()


def main() -> None:
    source, folder = sys.argv[1], Path(sys.argv[2])
    output = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    spark = iceberg_session(folder)
    create(spark)
    found = []
    if output is not None:
        write(spark, NAME, output, "before")
        found = [files(spark)]
        compact(spark)
        found.append(files(spark))
    append_available(spark, source, folder / "checkpoints" / "iceberg")
    if output is not None:
        found.append(files(spark))
        write(spark, NAME, output, "after")
        (output / FILES).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
