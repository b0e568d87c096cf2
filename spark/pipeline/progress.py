"""The progress of a query, from its checkpoint: the position from which Spark would continue."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pyspark_topics.offsets import Offset


@dataclass(frozen=True, slots=True)
class Progress:
    """A query's batches, and the number of source rows that its committed batches cover."""

    committed: int
    planned: int
    rows: int

    @property
    def busy(self) -> bool:
        """Whether a batch is in progress: planned and not committed."""
        return self.planned > self.committed


def progress(checkpoint: Path) -> Progress:
    # Commits before offsets: otherwise a batch that ends in between looks as if it had no plan.
    committed = last_batch(checkpoint / "commits")
    planned = last_batch(checkpoint / "offsets")
    return Progress(committed, planned, _rows(checkpoint / "offsets" / str(committed)))


def last_batch(folder: Path) -> int:
    """The newest batch of a log of a checkpoint, `offsets` or `commits`; -1 without one."""
    if not folder.is_dir():
        return -1
    return max((int(f.name) for f in folder.iterdir() if f.name.isdecimal()), default=-1)


def _rows(plan: Path) -> int:
    """The number of rows below the offsets of a batch. After the version and the metadata there
    is one line for each source; a source without rows is a dash."""
    if not plan.exists():
        return 0
    sources = [json.loads(line) for line in plan.read_text().splitlines()[2:] if line != "-"]
    return sum(span.hi - 1 for source in sources for span in Offset.parse(source).spans.values())
