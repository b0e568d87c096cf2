"""The expected result, computed with pandas from the same rows, without a stream."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from .dataset import LATE, NOWHERE, Row, hour_of

Dead = tuple[str, str, int]
"""Reason, topic, position in the topic."""


def expected(rows: dict[str, list[Row]]) -> tuple[pd.DataFrame, list[Dead]]:
    """Delays per airport and hour, and the dead letters, sorted."""
    frames, dead = {}, []
    for topic, happened in rows.items():
        good = []
        for seq, row in enumerate(happened, start=1):
            reason, value = _classify(row.text)
            if reason:
                dead.append((reason, topic, seq))
            elif value["origin"] != NOWHERE:
                good.append(value)
        frames[topic] = pd.DataFrame(good)
    joined = frames["flights"].merge(frames["weather"], on=["origin", "hour"])
    found = joined.groupby(["origin", "hour"], as_index=False).agg(
        flights=("id_x", "size"),
        departed=("dep_delay", "count"),
        delay_sum=("dep_delay", "sum"),
        delay_max=("dep_delay", "max"),
        temp=("temp", "max"),
    )
    return found.sort_values(["origin", "hour"], ignore_index=True), sorted(dead)


def _classify(text: str) -> tuple[str, dict[str, Any]]:
    value = json.loads(text)
    if not isinstance(value, dict) or "origin" not in value:
        return "malformed", {}
    try:
        hour, at = hour_of(value["hour"]), hour_of(value["at"])
    except ValueError:
        return "malformed", {}
    if at - hour > LATE:
        return "late", {}
    return "", value
