"""The batch job: reads the results and the dead letters, writes Parquet and a plot.

python -m pipeline.report URL FOLDER OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from local_spark import session
from pyspark.sql import functions as f

from .job import DEAD, RESULTS

if TYPE_CHECKING:
    import pandas as pd

PLOT = "delays.png"
FIELDS = (
    "origin string, hour string, flights long, departed long, delay_sum double, "
    "delay_max double, temp double"
)


def report(url: str, folder: Path, output: Path) -> None:
    spark = session("report", folder=folder / "spark")

    def read(topic: str, fields: str) -> None:
        rows = spark.read.format("topics").schema("data string").load(url=url, subscribe=topic)
        rows = rows.select(f.from_json("data", fields).alias("row")).select("row.*")
        rows.write.mode("overwrite").parquet(str(output / f"{topic}.parquet"))

    read(RESULTS, FIELDS)
    read(DEAD, "reason string, topic string, seq long, data string")
    hours = spark.read.parquet(str(output / f"{RESULTS}.parquet"))
    # The airports are five hours behind in winter, which is accurate enough for a daily pattern.
    clock = (f.hour(f.to_timestamp("hour")) + 19) % 24
    mean = hours.groupBy("origin", clock.alias("clock")).agg(
        (f.sum("delay_sum") / f.sum("departed")).alias("delay")
    )
    plot(mean.orderBy("origin", "clock").toPandas(), output / PLOT)


def plot(means: pd.DataFrame, to: Path) -> None:
    """Mean delay of departures by hour of the day."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for origin, rows in means.groupby("origin"):
        axes.plot(rows["clock"], rows["delay"], marker="o", markersize=3, label=origin)
    axes.set(
        xlabel="hour of day (UTC-5)",
        ylabel="mean departure delay, minutes",
        title="Departures from New York, 2013",
    )
    axes.set_xticks(range(0, 24, 3))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(to, dpi=120)


if __name__ == "__main__":
    report(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
