"""The maintenance job: compacts the table, and then lets the streams finish what they have not
recorded as done. Writes the rows of the table and sums over them, before and after, as Parquet.

    python -m lake.maintain URL FOLDER OUTPUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from . import delta
from .job import start

FILES = "files.json"
SUMS = (
    "SELECT origin, CAST(hour AS DATE) AS day, count(*) AS flights, count(dep_delay) AS departed, "
    "sum(dep_delay) AS delay_sum, max(dep_delay) AS delay_max FROM {} GROUP BY 1, 2"
)
ALL = str(2**31 - 1)
"""No limit on the rows of a micro-batch."""


def write(spark: SparkSession, table: str, output: Path, moment: str) -> None:
    """Writes what a query on the table finds."""
    for what, query in (("rows", "SELECT * FROM {}"), ("sums", SUMS)):
        pq.write_table(
            spark.sql(query.format(table)).toArrow(), output / f"{what}.{moment}.parquet"
        )


def maintain(url: str, folder: Path, output: Path) -> None:
    spark = delta.delta_session(folder)
    write(spark, delta.name(folder), output, "before")
    files = [delta.files(spark, folder)]
    delta.compact(spark, folder)
    files.append(delta.files(spark, folder))
    for query in start(url, folder, ALL):
        query.finish()
    files.append(delta.files(spark, folder))
    write(spark, delta.name(folder), output, "after")
    (output / FILES).write_text(json.dumps(files))


if __name__ == "__main__":
    maintain(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
