"""What the tables have in common: their columns, and a session for their format."""

from __future__ import annotations

from pathlib import Path

import pyspark
from local_spark import session
from pyspark.sql import SparkSession

VALUES = (
    "id BIGINT, origin STRING, hour TIMESTAMP, at TIMESTAMP, flight INT, sched_dep_time INT, "
    "dep_delay DOUBLE"
)
"""The typed columns: names of values in the records, and their types."""
COLUMNS = f"seq BIGINT, {VALUES}"
"""The columns of a table. The seq identifies a row: it must not be there twice."""
NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


def lake_session(folder: Path, package: str, settings: dict[str, str]) -> SparkSession:
    """A session with the jar of a format. Spark downloads it at its first start, and keeps it."""
    # The home of Spark in this folder is of one version.
    home = folder / f"spark-{pyspark.__version__}"
    more = {**settings, "spark.jars.packages": package}
    return session("lake", cores=2, failures=1, folder=home, **more)
