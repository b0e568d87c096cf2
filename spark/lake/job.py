"""The streaming job: two streams over one topic. One writes its rows as typed columns to a Delta
table; the other writes the rows that do not fit the table to a dead-letter topic. Each works
exactly once from its checkpoint, so the job continues after a kill at any time. It ends when its
standard input ends and all available rows are processed.

    python -m lake.job URL FOLDER flights=ROWS
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pipeline.job import Restarted, run_until_input_ends
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from . import delta
from .table import COLUMNS, NAMES, VALUES

TOPIC, DEAD = "flights", "flights.dead"
FIT = "_misfits IS NULL AND origin IS NOT NULL AND hour IS NOT NULL AND at IS NOT NULL"
"""The condition for a row of the table: every value has its type, and the required ones exist."""


def source(spark: SparkSession, url: str, limit: str, columns: str, **options: str) -> DataFrame:
    """The topic from its first record; only the columns that are named are transferred."""
    return (
        spark.readStream.format("topics")
        .options(fields=f"{VALUES}, _misfits STRING", maxOffsetsPerTrigger=limit, **options)
        .schema(columns)
        .load(url=url, subscribe=TOPIC)
    )


def good_rows(spark: SparkSession, url: str, limit: str) -> DataFrame:
    rows = source(spark, url, limit, f"{COLUMNS}, _misfits STRING")
    return rows.where(FIT).select(*NAMES)


def dead_letters(spark: SparkSession, url: str, limit: str) -> DataFrame:
    """The records of all other rows, with the reason. Binary records, which a text column cannot
    show, are copied by the source itself."""
    columns = f"topic STRING, {COLUMNS}, data STRING, _misfits STRING"
    rows = source(spark, url, limit, columns, badRecords=f"topic:{DEAD}")
    missing = f.lit("origin, hour or at is missing")
    reason = f.coalesce(f.concat(f.lit("does not fit: "), "_misfits"), missing)
    meta = {
        "bad_topic": f.col("topic"),
        "bad_seq": f.col("seq").cast("string"),
        "bad_reason": reason,
    }
    pairs = [part for name, value in meta.items() for part in (f.lit(name), value)]
    return rows.where(f"NOT ({FIT})").select("data", f.create_map(*pairs).alias("meta"))


def start(url: str, folder: Path, limit: str) -> list[Restarted]:
    """Starts the streams."""
    spark = delta.delta_session(folder)
    delta.create(spark, folder)
    checkpoints = folder / "checkpoints"
    rows = good_rows(spark, url, limit)
    to_table = Restarted(partial(delta.start, rows, folder, checkpoints / "delta"))
    writer = dead_letters(spark, url, limit).writeStream.format("topics").queryName("dead")
    writer = writer.options(url=url, topic=DEAD).option(
        "checkpointLocation", str(checkpoints / "dead")
    )
    return [to_table, Restarted(writer.start)]


def main() -> None:
    url, folder, limit = sys.argv[1:]
    run_until_input_ends(start(url, Path(folder), limit.removeprefix(f"{TOPIC}=")))


if __name__ == "__main__":
    main()
