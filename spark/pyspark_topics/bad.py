"""Bad records: rows that the engine refuses, and records that a text column cannot show."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_topics")

LOGGED = 10
"""Bad rows of a part that are logged one by one; the others are counted."""
META = ("bad_topic", "bad_partition", "bad_row", "bad_reason")
"""What the record of a bad row of a sink says about it."""


@dataclass(frozen=True, slots=True)
class BadRecords:
    """What happens to bad records: the task fails, they are logged, or they go to a topic."""

    kind: Literal["fail", "log", "topic"] = "fail"
    topic: str = ""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that a sink cannot write."""

    topic: str
    row: int
    """Its index in the rows of its partition, from 0."""
    data: bytes
    reason: str

    def where(self, partition: int) -> str:
        return f"row {self.row} of partition {partition}, for topic {self.topic!r}"


def as_records(to: str, partition: int, rows: Sequence[BadRow]) -> pa.Table:
    """The bad rows as records of the topic `to`: their bytes, with their origin in `meta`."""
    import pyarrow as pa

    meta = [
        list(zip(META, (bad.topic, str(partition), str(bad.row), bad.reason), strict=True))
        for bad in rows
    ]
    return pa.table(
        {
            "topic": pa.array([to] * len(rows), pa.string()),
            "data": pa.array([bad.data for bad in rows], pa.binary()),
            "meta": pa.array(meta, pa.map_(pa.string(), pa.string())),
        }
    )


def report(partition: int, rows: Sequence[BadRow]) -> None:
    """Logs rows that are left out."""
    for bad in rows[:LOGGED]:
        log.warning("%s is left out: %s", bad.where(partition), bad.reason)
    if len(rows) > LOGGED:
        log.warning("partition %d: %d more rows are left out", partition, len(rows) - LOGGED)


def not_json(data: Any) -> str | None:
    """Why a value of a text column is not a record; `None` for a JSON value."""
    if data is None:
        return "data is null"
    if isinstance(data, bytes):
        return None
    try:
        json.loads(data, parse_constant=_refuse)
    except RecursionError:
        return "data is nested too deeply"
    except ValueError as e:
        return f"data is not valid JSON: {e}"
    return None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a JSON value")
