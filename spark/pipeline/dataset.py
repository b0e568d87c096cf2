"""The year 2013 at New York's airports, and the first days of it again as those of 2014, in the
order in which the data arrives.

Every row has the hour that it describes (event time) and an arrival time. A few rows arrive days
late, and a few are broken. The choice of these rows is fixed, so that the expected result can be
computed by other means.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benches.demo.flights import MISSING, find

LATE = timedelta(hours=48)
"""A row that arrives more than this after its hour is late. Rows on time need at most 30 hours."""
START = datetime(2013, 1, 1, 5, tzinfo=UTC)
YEAR = timedelta(days=365)
AGAIN = 1_000_000
"""What is added to the number of a row that is repeated a year later."""
END = datetime(2014, 8, 1, tzinfo=UTC)
"""The hour of each topic's last row, which has no airport: it closes all earlier windows."""
NOWHERE = "END"

FLIGHT_NUMBERS = ("dep_delay", "sched_dep_time", "flight")
WEATHER_NUMBERS = ("temp", "wind_speed", "precip")


@dataclass(frozen=True, slots=True)
class Row:
    """An event, and its text."""

    topic: str
    number: int
    arrives: datetime
    text: str


def dataset(days: int | None = None, again: int = 0) -> dict[str, list[Row]]:
    """Both topics, each in order of arrival: the first `days` of the year (all of it unless given),
    and the first `again` of these (at most 182) a second time, a year later."""
    days = YEAR.days if days is None else days
    return {
        "flights": _rows("flights", _flights(), FLIGHT_NUMBERS, days, again),
        "weather": _rows("weather", _weather(), WEATHER_NUMBERS, days, again),
    }


def first_year(rows: dict[str, list[Row]]) -> dict[str, int]:
    """The number of rows of each topic that arrive within a year of the start."""
    ends = START + YEAR
    return {topic: sum(row.arrives < ends for row in found) for topic, found in rows.items()}


def hour_of(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _rows(
    topic: str, source: Iterator[dict[str, str]], numbers: tuple[str, ...], days: int, again: int
) -> list[Row]:
    rows = []
    for number, hour, given in _repeated(source, days, again):
        chance = zlib.crc32(f"{topic}:{number}".encode())
        arrives = hour + timedelta(minutes=chance % 300)
        delay = given.get("dep_delay", "")
        if delay not in MISSING:
            arrives += timedelta(minutes=max(0.0, float(delay)))
        if chance % 499 == 0:
            arrives += timedelta(days=5)
        text = _text(topic, number, given, numbers, hour, arrives)
        if chance % 997 == 0:
            text = _broken(text, chance)
        rows.append(Row(topic, number, arrives, text))
    rows.sort(key=lambda row: (row.arrives, row.number))
    last = {"id": -1, "origin": NOWHERE, "hour": _iso(END), "at": _iso(END)}
    return [*rows, Row(topic, -1, END, json.dumps(last))]


def _repeated(
    source: Iterator[dict[str, str]], days: int, again: int
) -> Iterator[tuple[int, datetime, dict[str, str]]]:
    """The rows of the first year and those of the second, with number and hour."""
    end, end_again = (_iso(START + timedelta(days=length)) for length in (days, min(days, again)))
    for number, given in enumerate(source):
        # Texts of one format: most rows of a short dataset are left out without being parsed.
        if given["time_hour"] >= end:
            continue
        hour = hour_of(given["time_hour"])
        yield number, hour, given
        if given["time_hour"] < end_again:
            yield AGAIN + number, hour + YEAR, given


def _text(
    topic: str,
    number: int,
    given: dict[str, str],
    numbers: tuple[str, ...],
    hour: datetime,
    arrives: datetime,
) -> str:
    row: dict[str, Any] = {
        "id": number,
        "origin": given["origin"],
        "hour": _iso(hour),
        "at": _iso(arrives),
    }
    for name in numbers:
        row[name] = None if given[name] in MISSING else float(given[name])
    return json.dumps(row)


def _broken(text: str, chance: int) -> str:
    """A broken row: still a JSON value, because a topic accepts nothing else, but without
    airport, without time, or not an object."""
    row = json.loads(text)
    kind = chance // 997 % 3
    if kind == 0:
        del row["origin"]
    elif kind == 1:
        row["hour"] = "yesterday"
    else:
        return json.dumps(text[: len(text) // 2])
    return json.dumps(row)


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _flights() -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(find()) as archive, archive.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))


def _weather() -> Iterator[dict[str, str]]:
    with (Path(find()).parent / "weather.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
