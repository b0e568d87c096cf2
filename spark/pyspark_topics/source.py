"""The data source `topics`: creates the readers and writers that Spark requests."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .batch import Snapshot, TopicsReader
from .columns import sink_types, spark_schema
from .compat import ADMITS_ROWS, KEEPS_EMPTY_ROWS, PUSHES_FILTERS
from .errors import InvalidOption, TopicsError
from .options import read_options, stream_options, write_options
from .sink import TopicsStreamWriter, TopicsWriter
from .stream import SelfLimitedReader, TopicsStreamReader

SOON = 5.0
"""The time in seconds that a server may be unavailable while a DataFrame is created; its plan
waits longer."""


class DefaultSource(DataSource):
    """Created by Spark, in a worker, for every DataFrame and every write."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._snapshot: Snapshot | None = None
        self._snapshot_tried = False

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        return spark_schema(read_options(self.options))

    def reader(self, schema: StructType) -> TopicsReader:
        options = read_options(self.options)
        if options.push_filters and not PUSHES_FILTERS:
            raise InvalidOption(
                f'"pushFilters" needs Spark 4.1, and this is {pyspark.__version__}: leave it out'
            )
        _refuse_no_columns(schema)
        return TopicsReader(options, schema, self._snapshot)

    def streamReader(self, schema: StructType) -> TopicsStreamReader:  # noqa: N802
        _refuse_no_columns(schema)
        if not ADMITS_ROWS:
            return SelfLimitedReader(stream_options(self.options, max_bytes=None), schema)
        return TopicsStreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicsWriter:
        if overwrite:
            raise InvalidOption(
                'mode "overwrite" is not supported: a topic is a log; write with mode("append"), '
                "and delete the topic before if its rows shall go"
            )
        options = write_options(self.options)
        sink_types(schema, options.topic)
        return TopicsWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicsStreamWriter:  # noqa: N802
        if overwrite:
            raise InvalidOption(
                'output mode "complete" is not supported: a topic is a log; use "append", or '
                '"update" for a row of each change'
            )
        options = write_options(self.options)
        sink_types(schema, options.topic)
        return TopicsStreamWriter(options)

    def __getstate__(self) -> dict[str, Any]:
        """A DataFrame is one snapshot. For some of its actions Spark plans it again, each time in
        another
        process, from the pickled form of this object. So the ranges are fixed when it is pickled. A
        stream
        does not need them. A failure here is not reported, because the plan meets it again.
        """
        if not self._snapshot_tried:
            self._snapshot_tried = True
            if "subscribe" in self.options or "subscribePattern" in self.options:
                try:
                    asked = read_options(self.options)
                    soon = min(SOON, asked.connection.retry_seconds)
                    to = replace(asked.connection, retry_seconds=soon)
                    self._snapshot = Snapshot.take(replace(asked, connection=to))
                except TopicsError:
                    self._snapshot = None
        return self.__dict__


def _refuse_no_columns(schema: StructType) -> None:
    if not schema.fields and not KEEPS_EMPTY_ROWS:
        raise InvalidOption(
            f"a schema without columns has no rows in Spark {pyspark.__version__}: name a column, "
            "seq long for example"
        )
