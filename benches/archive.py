"""What a remote costs the engine that writes to it: archive, cold reads, and writes beside them.

The object store is a folder. Raw figures are of the same run.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

import topics_engine as te
from benches.remote import emptied, timed
from benches.report import Table, scaled

RECORDS = scaled(5_000_000, 200_000)
BATCH = 10_000
WRITES = scaled(5_000, 200)
READERS = 8
RUNS = 3
MIB = 1 << 20


def wrote(directory: Path) -> None:
    """Fills a directory that has no remote."""
    payload = b"x" * 90
    with te.open(directory) as db:
        topic = db.topic("t", durability="disk")
        for first in range(0, RECORDS, BATCH):
            topic.append([payload + b"%10d" % n for n in range(first, first + BATCH)])
        db.checkpoint()


def packs(store: Path) -> list[Path]:
    return [p for p in store.glob("*/p*") if p.is_file()]


def archived_again(found: list[Path], target: Path) -> float:
    """Seconds of what the archive does to the store: each object written, synced and read back."""

    def copy() -> None:
        target.mkdir()
        for pack in found:
            with open(target / pack.name, "wb") as file:
                file.write(pack.read_bytes())
                os.fsync(file.fileno())
            (target / pack.name).read_bytes()

    with emptied(target):
        return timed(copy)


def archived(directory: Path, store: Path) -> float:
    """Gives the directory a remote; seconds from the first object, which the engine puts within a
    second after the open, to the first base.
    """
    with te.open(directory, remote_url=store.as_uri(), hot_retain_segments=1) as db:
        while not (store / "HEAD").exists():
            time.sleep(0.005)
        began = time.perf_counter()
        while db.metrics()["remote_last_base_timestamp_seconds"] == 0:
            time.sleep(0.005)
        return time.perf_counter() - began


def scan(db: te.Database, after: int, to_seq: int) -> int:
    stream = pa.RecordBatchReader.from_stream(
        db.scan("t", after=after, to_seq=to_seq, columns=["seq", "data"])
    )
    return sum(batch.num_rows for batch in stream)


@contextmanager
def scanning(db: te.Database) -> Iterator[None]:
    """Readers of one share of the topic each, again and again. One that fails, ends."""
    stop = threading.Event()
    share = RECORDS // READERS

    def read(n: int) -> None:
        # Over the stream of Arrow, `cold_unavailable` is one of its errors.
        with suppress(te.Unavailable, pa.ArrowInvalid):
            while not stop.is_set():
                scan(db, n * share, n * share + share)

    threads = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(READERS)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


@contextmanager
def without_answers(store: Path) -> Iterator[None]:
    """Reads of objects hang: each is a FIFO that nobody writes to."""
    found = packs(store)
    for pack in found:
        pack.rename(pack.with_suffix(".away"))
        os.mkfifo(pack)
    yield
    for pack in found:
        # Whoever waits for the FIFO reads its end.
        os.close(os.open(pack, os.O_RDWR | os.O_NONBLOCK))
        pack.unlink()
        pack.with_suffix(".away").rename(pack)


def synced_writes(db: te.Database) -> tuple[float, float]:
    """p99 in µs and writes per second of one writer that waits for each fsync."""
    topic = db.topic("w", durability="fsync")
    times = [timed(lambda: topic.append(b"y" * 100)) for _ in range(WRITES)]
    return statistics.quantiles(times, n=100)[98] * 1e6, WRITES / sum(times)


def beside(db: te.Database, store: Path, hot: te.Database) -> dict[str, list[tuple[float, float]]]:
    """Synced writes alone, beside scans of another engine whose segments are local, beside cold
    scans, and beside such whose requests hang, in turn."""
    figures: dict[str, list[tuple[float, float]]]
    figures = {"alone": [], "hot": [], "scans": [], "hang": []}
    for _ in range(RUNS):
        figures["alone"].append(synced_writes(db))
        with scanning(hot):
            figures["hot"].append(synced_writes(db))
        with scanning(db):
            figures["scans"].append(synced_writes(db))
        with without_answers(store), scanning(db):
            figures["hang"].append(synced_writes(db))
    return figures


def ratios(figures: dict[str, list[tuple[float, float]]], of: str, at: int) -> list[float]:
    return [now[at] / alone[at] for now, alone in zip(figures[of], figures["alone"], strict=True)]


def cold_record(db: te.Database, after: int) -> tuple[float, float]:
    """Seconds of a read of one cold record, and of the same again."""
    topic = db.topic("t")

    def read() -> None:
        list(topic.read(after=after, limit=1))

    return timed(read), timed(read)


def raw_get(found: list[Path], rng: random.Random) -> float:
    """Seconds of 1 MiB of a pack."""
    pack = rng.choice(found)
    at = rng.randrange(max(1, pack.stat().st_size - MIB))

    def get() -> None:
        with open(pack, "rb", buffering=0) as file:
            file.seek(at)
            file.read(MIB)

    return timed(get)


RSS = """
import sys, pyarrow as pa, topics_engine as te
def anon():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024
with te.open(sys.argv[1], **({"remote_url": sys.argv[2]} if len(sys.argv) > 2 else {})) as db:
    most = 0
    for batch in pa.RecordBatchReader.from_stream(db.scan("t", columns=["seq", "data"])):
        most = max(most, anon())
print(most)
"""


def rss(*arguments: str) -> float:
    """MiB of memory of a process that scans the topic."""
    done = subprocess.run(
        [sys.executable, "-c", RSS, *arguments], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    table = Table("archive", f"A remote (a folder; {RECORDS / 1e6:g} M records of 100 bytes)")
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as name:
        below = Path(name)
        wrote(below / "hot")
        archives, raw = [], []
        for run in range(RUNS):
            te.clone(below / "hot", below / f"data{run}")
            took = archived(below / f"data{run}", below / f"store{run}")
            found = packs(below / f"store{run}")
            mib = sum(p.stat().st_size for p in found) / MIB
            archives.append(mib / took)
            raw.append(mib / archived_again(found, below / "raw"))
        limit = statistics.median(raw)
        table.row(
            "archive",
            archives,
            "MiB/s",
            ("≥", 0.8 * limit),
            device=limit,
            notes=["device: its packs written, synced and read back"],
        )
        directory, store = below / "data0", below / "store0"
        url = store.as_uri()
        options: te.Settings = {"hot_retain_segments": 1, "cold_timeout_ms": 2000}
        with te.open(directory, remote_url=url, **options) as db:
            while len(list(directory.glob("topics/*/*.data"))) > 1:
                db.checkpoint()
                time.sleep(0.05)
            rng = random.Random(1)
            # Far enough apart that none was fetched with another one.
            reads = [cold_record(db, n * RECORDS // 40) for n in range(20)]
            gets = statistics.median(raw_get(packs(store), rng) for _ in range(20)) * 1e6
            first, again = (statistics.median(column) * 1e6 for column in zip(*reads, strict=True))
            notes = ["device: 1 MiB of a pack"]
            table.row("a cold record", first, "µs", ("≤", gets + 1000), device=gets, notes=notes)
            table.row("a cold record again", again, "µs", ("≤", 100.0))
            with te.open(below / "hot", read_only=True) as hot:
                figures = beside(db, store, hot)
        for of, what, goals in (
            ("hot", f"{READERS} scans of local segments", (None, None)),
            ("scans", f"{READERS} cold scans", (("≤", 1.2), ("≥", 0.95))),
            ("hang", "reads that hang", (("≤", 1.2), ("≥", 0.95))),
        ):
            table.row(
                f"p99 of synced writes beside {what}", ratios(figures, of, 0), "of alone", goals[0]
            )
            table.row(f"synced writes beside {what}", ratios(figures, of, 1), "of alone", goals[1])
        more = rss(str(directory), url) - rss(str(below / "hot"))
        table.row("RssAnon of a cold scan, beyond a hot one", more, "MiB", ("≤", 72.0))
    table.finish()


if __name__ == "__main__":
    main()
