"""An archive in a folder that stands for an object store: what it costs to read and restore it.

Raw figures are of the same run: the packs of the archive, read and written in one piece each.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import topics_engine as te
from benches.report import Table, scaled

RECORDS = scaled(10_000_000, 200_000)
BATCH = 10_000
RUNS = 3


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def filled(directory: Path, url: str) -> float:
    """Writes the records; the seconds from the first write until they are all in the store."""
    payload = b"x" * 90
    began = time.perf_counter()
    with te.open(directory, remote_url=url, hot_retain_segments=1) as db:
        topic = db.topic("t", durability="disk")
        for first in range(0, RECORDS, BATCH):
            topic.append([payload + b"%10d" % n for n in range(first, first + BATCH)])
        db.checkpoint()
    return time.perf_counter() - began


@contextmanager
def emptied(directory: Path) -> Iterator[Path]:
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def first_record(url: str) -> None:
    with te.open(url, read_only=True) as view:
        next(iter(view.topic("t").read(after=RECORDS // 2, limit=1)))


def scanned(source: str | Path) -> float:
    """Seconds of a scan of the whole topic, after the open."""
    with te.open(source, read_only=True) as view:
        began = time.perf_counter()
        rows = sum(
            batch.num_rows
            for batch in pa.RecordBatchReader.from_stream(view.scan("t", columns=["seq", "data"]))
        )
        took = time.perf_counter() - began
    assert rows == RECORDS, rows
    return took


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as name:
        below = Path(name)
        url = (below / "store").as_uri()
        filled(below / "data", url)
        # What the first process has left becomes part of a base.
        with te.open(below / "data", remote_url=url) as db:
            while db.metrics()["remote_last_base_timestamp_seconds"] == 0:
                time.sleep(0.05)
        packs = [p for p in (below / "store").glob("*/p*") if p.is_file()]
        bases = sum(p.stat().st_size for p in (below / "store").glob("*/b*"))
        stored = sum(p.stat().st_size for p in packs)
        mib = stored / 2**20

        def read_packs() -> None:
            for pack in packs:
                pack.read_bytes()

        def write_packs() -> None:
            with emptied(below / "raw") as raw:
                raw.mkdir()
                for pack in packs:
                    with open(raw / pack.name, "wb") as file:
                        file.write(pack.read_bytes())
                        os.fsync(file.fileno())

        reads = [mib / timed(read_packs) for _ in range(RUNS)]
        writes = [mib / timed(write_packs) for _ in range(RUNS)]

        def restored(copy: bool) -> float:
            with emptied(below / "restored") as target:
                return timed(lambda: te.restore(url, target, copy=copy))

        opens = [timed(lambda: first_record(url)) for _ in range(RUNS)]
        scans = [mib / scanned(url) for _ in range(RUNS)]
        te.restore(url, below / "copy", copy=True)
        hot = [mib / scanned(below / "copy") for _ in range(RUNS)]
        copies = [mib / restored(copy=True) for _ in range(RUNS)]
        successors = [restored(copy=False) for _ in range(RUNS)]
    table = Table("remote", f"Object storage (a folder; {RECORDS / 1e6:g} M records of 100 bytes)")
    table.row("prefix opened and its first record read", opens, "s", ("≤", 2.0))
    limit = min(statistics.median(reads), statistics.median(hot))
    table.row(
        "scan of a prefix, one reader",
        scans,
        "MiB/s",
        ("≥", 0.7 * limit),
        device=limit,
        notes=["device: the slower of its packs read and of a directory scanned"],
    )
    table.row(
        "restore --copy",
        copies,
        "MiB/s",
        device=statistics.median(writes),
        notes=["device: its packs copied and synced"],
    )
    table.row("restore that goes on with the prefix", successors, "s")
    table.row("bases, of all bytes of the archive", 100 * bases / stored, "%", ("≤", 1.0))
    table.finish()


if __name__ == "__main__":
    main()
