"""Typed columns beside `pyarrow.json` on the same rows; run by `make bench`.

Figures are per second of CPU of the whole process, helper threads included. `pyarrow.json` gets
the rows as one buffer of lines in memory, and the types of the columns; the engine reads segments.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.json

import topics_engine as te
from benches.embedded import waiting
from benches.report import Table, scaled

ROWS = scaled(1_000_000, 10_000)
SEED = 1
FIELDS = {"user": "int64", "price": "double", "at": "timestamp[us, UTC]"}
TYPES = {"user": pa.int64(), "price": pa.float64(), "at": pa.timestamp("us", "UTC")}


def made() -> list[str]:
    """Rows of six fields, about 150 bytes each."""
    drawn = random.Random(SEED)
    return [
        json.dumps(
            {
                "id": f"{drawn.getrandbits(64):016x}",
                "user": drawn.randrange(1_000_000),
                "price": round(drawn.random() * 1000, 2),
                "at": f"2026-01-{1 + i % 28:02}T{i % 24:02}:{i % 60:02}:{i % 59:02}Z",
                "city": drawn.choice(["Berlin", "São Paulo", "東京", "New York"]),
                "note": "a few words of text",
            },
            ensure_ascii=False,
        )
        for i in range(ROWS)
    ]


def repeated(work: Callable[[], Any]) -> list[float]:
    """CPU seconds of five calls."""
    found = []
    for _ in range(5):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return found


def main() -> None:
    lines = made()
    text = "\n".join(lines).encode()
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    only = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(TYPES.items()), unexpected_field_behavior="ignore"
    )
    blocks = pyarrow.json.ReadOptions(block_size=4 << 20)
    with te.open(":memory:") as db:
        topic = db.topic("t", durability="disk")
        for at in range(0, ROWS, 10_000):
            rows = pa.table({"data": lines[at : at + 10_000]})
            waiting(partial(topic.append_arrow, rows))
        db.checkpoint()
        ours = topic.read().to_arrow(FIELDS)
        theirs = pyarrow.json.read_json(io.BytesIO(text), blocks, only)
        assert ours.select(list(FIELDS)).equals(theirs.select(list(FIELDS)))
        typed = repeated(lambda: topic.read().to_arrow(FIELDS))
        plain = repeated(lambda: topic.read().to_arrow())
        peer = repeated(lambda: pyarrow.json.read_json(io.BytesIO(text), blocks, only))
        inferred = repeated(lambda: pyarrow.json.read_json(io.BytesIO(text), blocks))
    table = Table("typed", "Typed columns (rows of 150 bytes; per second of CPU)")

    def row(work: str, seconds: list[float], **more: Any) -> None:
        table.row(work, [megabytes / s for s in seconds], "MB/cpu-s", **more)

    theirs_rate = megabytes / statistics.median(peer)
    row(
        "typed columns, 3 of 6 fields",
        typed,
        goal=("≥", 150.0),
        peers={"pyarrow.json": theirs_rate},
        notes=[f"{len(lines) / statistics.median(typed) / 1e6:.2f} M rows/cpu-s"],
    )
    row("the payloads as text", plain)
    row("pyarrow.json, the same 3 fields", peer, notes=["from memory"])
    row("pyarrow.json, all fields, types inferred", inferred, notes=["from memory"])
    ratio = min(peer) / min(typed)
    table.row("typed columns beside pyarrow.json", ratio, "times", ("≥", 3.0))
    table.finish()


if __name__ == "__main__":
    main()
