"""What differs between the versions of Spark that the package runs on, 4.0 and later.

From 4.2 on Spark tells the reader of a stream the start and the limit of a micro-batch. From 4.1 on
it passes the conditions of a batch read to the source, and Arrow batches to the sink of a stream by
a class of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.sql import datasource

ADMITS_ROWS = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark tells the reader of a stream the start and the limit of a micro-batch."""
PUSHES_FILTERS = hasattr(datasource, "Filter")
"""Whether Spark can pass conditions to a source."""
KEEPS_EMPTY_ROWS = PUSHES_FILTERS
"""Whether rows without columns reach the JVM. Before 4.1 a worker drops them without an error."""

if TYPE_CHECKING or ADMITS_ROWS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    # The reader sets its own limits, in the words of later versions.
    class ReadLimit:
        pass

    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    class SupportsTriggerAvailableNow:
        pass


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    # A task of Spark 4.0 gets Arrow batches if its writer is of the class for batch writes.
    class DataSourceStreamArrowWriter(
        datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
    ):
        pass


__all__ = [
    "ADMITS_ROWS",
    "KEEPS_EMPTY_ROWS",
    "PUSHES_FILTERS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
