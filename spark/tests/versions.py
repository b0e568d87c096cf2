"""What the tests do differently with an older Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark_topics.compat import ADMITS_ROWS

SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))

needs_admission = pytest.mark.skipif(
    not ADMITS_ROWS,
    reason=f"Spark {pyspark.__version__} neither divides availableNow nor reports a lag: 4.2 does",
)
NO_FILTERS = f"Spark {pyspark.__version__} passes no conditions to a source: 4.1 does"


def run_to_end(start: Callable[[], Any], checkpoint: Path) -> list[Any]:
    """Runs a query with the trigger `availableNow` to the end of the available rows; returns the
    progress of every batch with rows. Where each run is one batch, it runs until one changes
    nothing."""
    found: list[Any] = []
    while True:
        before = batches(checkpoint)
        query = start()
        query.awaitTermination()
        found += [p for p in query.recentProgress if p["numInputRows"]]
        if ADMITS_ROWS or batches(checkpoint) == before:
            return found


def batches(checkpoint: Path) -> set[str]:
    """The planned and the committed batches."""
    return {f"{file.parent.name}/{file.name}" for file in checkpoint.glob("[oc]*s/[0-9]*")}
