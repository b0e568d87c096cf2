"""One group-by over the bucket alone, with `te.open(URL)` and with Spark; and with pandas over what
was sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import topics_engine as te

from .run import print_line

FIELDS = {"distance": "int64", "dep_delay": "int64"}


class Aggregate(NamedTuple):
    """Of the flights of one topic; a flight that did not depart has no delay."""

    topic: str
    flights: int
    distance: int
    least_delay: int
    largest_delay: int


Sent = Iterable[tuple[str, bytes]]
"""Topics, and flights as they were sent."""


def of_pandas(sent: Sent) -> list[Aggregate]:
    import pandas as pd

    rows = ((topic, json.loads(data)) for topic, data in sent)
    frame = pd.DataFrame([(topic, *(row[name] for name in FIELDS)) for topic, row in rows])
    frame.columns = ["topic", *FIELDS]
    groups = frame.groupby("topic", sort=True)
    found = groups.agg(
        flights=("distance", "size"),
        distance=("distance", "sum"),
        least=("dep_delay", "min"),
        largest=("dep_delay", "max"),
    )
    return [Aggregate(topic, *map(int, row)) for topic, *row in found.itertuples()]


def of_view(url: str) -> list[Aggregate]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = []
    with te.open(url, read_only=True) as view:
        for topic in sorted(view):
            table = pa.table(view.scan(topic, columns=["seq"], schema=FIELDS))
            delay = pc.min_max(table["dep_delay"]).as_py()
            distance = pc.sum(table["distance"]).as_py()
            found.append(Aggregate(topic, len(table), distance, delay["min"], delay["max"]))
    return found


def of_spark(url: str, folder: Path) -> list[Aggregate]:
    """A job that has the URL and the credentials of the environment, and no server or directory."""
    from local_spark import session
    from pyspark.sql import functions as f

    spark = session("demo-remote", folder=folder)
    try:
        flights = spark.read.format("topics").option("fields", "distance long, dep_delay long")
        found = (
            # The comparison has looked for what is missing: a gap is of writes that were not acked.
            flights.option("failOnDataLoss", "false")
            .load(path=url, subscribePattern=r"flights\..*")
            .groupBy("topic")
            .agg(f.count("*"), f.sum("distance"), f.min("dep_delay"), f.max("dep_delay"))
            .orderBy("topic")
            .collect()
        )
    finally:
        spark.stop()
    return [Aggregate(*row) for row in found]


def compare_aggregates(url: str, sent: Sent, folder: Path) -> list[str]:
    """Prints the aggregates of pandas, and whether those of the bucket are equal. Returns what is
    not.
    """
    expected = of_pandas(sent)
    for group in expected:
        print_line(
            f"pandas, of what was sent: {group.topic}: {group.flights:,} flights, "
            f"{group.distance:,} miles, delays of {group.least_delay} to {group.largest_delay} min"
        )
    problems = []
    ways: list[tuple[str, Callable[[], list[Aggregate]]]] = [
        ("te.open(URL)", lambda: of_view(url)),
        ("Spark over the bucket", lambda: of_spark(url, folder)),
    ]
    for name, aggregates in ways:
        started = time.monotonic()
        found = aggregates()
        verdict = "the same" if found == expected else f"DIFFERENT: {found}"
        print_line(f"{name}: {verdict}, after {time.monotonic() - started:.1f} s")
        if found != expected:
            problems.append(f"{name}: {found} instead of {expected}")
    return problems
