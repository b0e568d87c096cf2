"""The flights of the pipeline, some of which a producer has compressed; and what a lake must have
of them, computed with pandas."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pandas as pd
from pipeline.dataset import Row, hour_of
from pipeline.feed import plain

from .table import NAMES

BINARY = "binary data in a text column"
MISFIT = 'does not fit: ["hour"]'
MISSING = "origin, hour or at is missing"


def is_compressed(row: Row) -> bool:
    return row.number >= 0 and zlib.crc32(f"compressed:{row.number}".encode()) % 1499 == 0


def record(row: Row) -> dict[str, Any]:
    """The record of a row as it is appended."""
    if is_compressed(row):
        return {"data_b64": base64.b64encode(zlib.compress(row.text.encode())).decode()}
    return plain(row)


def expected(rows: list[Row]) -> tuple[pd.DataFrame, dict[int, str]]:
    """The rows of a table by their seq; the reasons why others are dead letters, by their seq."""
    good, dead = [], {}
    for seq, row in enumerate(rows, start=1):
        value: Any = None if is_compressed(row) else json.loads(row.text)
        if reason := _reason(value):
            dead[seq] = reason
        else:
            good.append([seq, *(value.get(name) for name in NAMES[1:])])
    return comparable(pd.DataFrame(good, columns=NAMES)), dead


def _reason(value: Any) -> str | None:
    if value is None:
        return BINARY
    if not isinstance(value, dict) or "origin" not in value:
        return MISSING
    try:
        hour_of(value["hour"])
    except ValueError:
        return MISFIT
    return None


def comparable(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows by their seq, in types that do not depend on the way that they came."""
    times = {name: pd.to_datetime(rows[name], utc=True).dt.as_unit("us") for name in ("hour", "at")}
    numbers = dict.fromkeys(("flight", "sched_dep_time", "dep_delay"), "float64")
    return rows.assign(**times).astype(numbers).sort_values("seq", ignore_index=True)


def sums(rows: pd.DataFrame) -> pd.DataFrame:
    """What the maintenance job sums up."""
    groups = rows.assign(day=rows["hour"].dt.date).groupby(["origin", "day"], as_index=False)
    found = groups.agg(
        flights=("seq", "size"),
        departed=("dep_delay", "count"),
        # As in SQL, the sum over no value is null.
        delay_sum=("dep_delay", lambda values: values.sum(min_count=1)),
        delay_max=("dep_delay", "max"),
    )
    return found.sort_values(["origin", "day"], ignore_index=True)
