"""Continuous backup to a folder: how soon an acked record can be restored, and what that costs.

Synced writes and the store share one device.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import topics_engine as te
from benches.remote import emptied, timed
from benches.report import Table, scaled

PAYLOAD = b"x" * 100
RECORDS = scaled(5_000_000, 200_000)
BATCH = 10_000
RPO_SECONDS = scaled(200) / 10
"""Of each interval."""
WRITE_SECONDS = scaled(50) / 10
"""Of single writes, with shipping and without it in turn."""
IDLE_SECONDS = scaled(150) / 10
"""Longer than the time between two passes of the archive."""
RUNS = 3
CYCLES = 10


def until(check: Callable[[], bool]) -> None:
    while not check():
        time.sleep(0.005)


def is_shipped(db: te.Database) -> bool:
    metrics = db.metrics()
    return bool(metrics["remote_lag_bytes"] == 0 == metrics["remote_lag_seconds"])


def count(metrics: Mapping[str, Any], *kinds: str) -> int:
    """Requests of these kinds, or of all."""
    by_kind = metrics["remote_requests"]
    return sum(
        n
        for kind in kinds or by_kind
        for outcome, n in by_kind[kind].items()
        if not outcome.endswith("_ns")
    )


def restorable_after(directory: Path, **settings: Any) -> tuple[list[float], float]:
    """Seconds from the ack of each record until a restore would have it, and of an upload."""
    found: list[float] = []
    acks: deque[float] = deque()
    with te.open(directory, **settings) as db:
        topic = db.topic("t")
        topic.append(PAYLOAD)
        until(lambda: is_shipped(db))
        write = time.time()
        end = write + RPO_SECONDS
        while acks or write < end:
            metrics, now = db.metrics(), time.time()
            while acks and acks[0] <= metrics["remote_last_success_timestamp_seconds"]:
                found.append(now - acks.popleft())
            if write <= now and write < end:
                topic.append(PAYLOAD)
                acks.append(time.time())
                write += 0.02
            time.sleep(0.002)
        upload = metrics["remote_requests"]["create"]["p50_ns"] / 1e9
    return sorted(found), upload


def write_all(directory: Path, **settings: Any) -> tuple[Mapping[str, Any], int]:
    """Writes the records at full speed. Returns the metrics when all is in the store, and how many
    requests an idle engine makes after it."""
    with te.open(directory, **settings) as db:
        topic = db.topic("t", durability="disk")
        for _ in range(RECORDS // BATCH):
            topic.append([PAYLOAD] * BATCH)
        until(lambda: is_shipped(db))
        metrics = db.metrics()
        # What follows the last round: its base, and segments that become cold.
        last = -1
        while (now := count(db.metrics())) != last:
            last = now
            time.sleep(IDLE_SECONDS)
        time.sleep(IDLE_SECONDS)
        return metrics, count(db.metrics()) - now


def objects(store: Path) -> int:
    return sum(1 for path in store.glob("*/*") if path.is_file())


def after_garbage(directory: Path, store: Path) -> tuple[list[int], int]:
    """Objects of a topic of constant size after each cycle of writes and a base, and how many were
    deleted."""
    found = []
    with te.open(
        directory,
        remote_url=store.as_uri(),
        remote_window_ms=0,
        remote_base_interval_ms=200,
        pack_bytes=1 << 20,
        segment_max_events=2000,
    ) as db:
        topic = db.topic("t")
        topic.create(cap_records=20_000)
        for _ in range(CYCLES):
            for _ in range(20):
                topic.append([PAYLOAD] * 1000)
            db.checkpoint()
            since = time.time()
            until(lambda since=since: has_base(db, since))  # type: ignore[misc]
            found.append(objects(store))
        return found, int(db.metrics()["remote_deleted"])


def has_base(db: te.Database, since: float) -> bool:
    return float(db.metrics()["remote_last_base_timestamp_seconds"]) > since


def append_seconds(directory: Path, durability: Any, **settings: Any) -> list[float]:
    """The percentiles of single writes of a class."""
    times = []
    with te.open(directory, **settings) as db:
        topic = db.topic("w", durability=durability)
        end = time.monotonic() + WRITE_SECONDS
        while time.monotonic() < end:
            times.append(timed(lambda: topic.append(PAYLOAD)))
    return statistics.quantiles(times, n=100)


def rpo_rows(table: Table, below: Path) -> None:
    for name, interval, settings in (
        ("rounds each second (default)", 1.0, {}),
        ("rounds each 100 ms", 0.1, {"remote_interval_ms": 100}),
        ("bases each second only", 1.0, {"remote_interval_ms": 0, "remote_base_interval_ms": 1000}),
    ):
        with emptied(below / "rpo") as directory, emptied(below / "rpo-store") as store:
            found, upload = restorable_after(directory, remote_url=store.as_uri(), **settings)
        quantiles = statistics.quantiles(found, n=100)
        table.row(
            f"ack → restorable, {name}: max",
            found[-1] * 1e3,
            "ms",
            ("≤", (interval + 2 * upload) * 1e3),
            notes=[
                f"p50 {quantiles[49] * 1e3:.0f}, p99 {quantiles[98] * 1e3:.0f}; "
                f"the upload of a round {upload * 1e3:.1f}"
            ],
        )


def cost_rows(table: Table, below: Path) -> None:
    written = RECORDS * len(PAYLOAD) / 1e9
    for name, settings in (("rounds", {}), ("bases only", {"remote_interval_ms": 0})):
        with emptied(below / "cost") as directory, emptied(below / "cost-store") as store:
            metrics, idle = write_all(directory, remote_url=store.as_uri(), **settings)
        kinds = ", ".join(
            f"{count(metrics, kind)} {kind.upper()}" for kind in ("get", "head", "delete")
        )
        puts, sent = count(metrics, "create", "replace"), metrics["remote_bytes"]["sent"] / 1e9
        notes = [f"{written:g} GB written, {sent:.2f} GB sent; {puts} PUT, {kinds}"]
        table.row(f"PUT per GB, {name}", puts / written, "PUT", ("≤", 40.0), notes=notes)
        table.row(f"requests in {IDLE_SECONDS:g} s while idle, {name}", idle, "", ("≤", 0.0))


def write_rows(table: Table, below: Path) -> None:
    for durability, percentiles in (("disk", (50,)), ("fsync", (50, 99))):
        shipped, plain = [], []
        for _ in range(RUNS):
            with emptied(below / "plain") as directory:
                plain.append(append_seconds(directory, durability))
            with emptied(below / "shipped") as directory, emptied(below / "ship-store") as store:
                url = store.as_uri()
                shipped.append(append_seconds(directory, durability, remote_url=url))
        for p in percentiles:
            both = [(a[p - 1], b[p - 1]) for a, b in zip(shipped, plain, strict=True)]
            table.row(
                f"p{p} of a {durability} write with shipping, of without",
                [with_it / without for with_it, without in both],
                "of it",
                ("≤", 1.02) if p == 50 else None,
                notes=["µs: " + ", ".join(f"{a * 1e6:.1f} {b * 1e6:.1f}" for a, b in both)],
            )


def main() -> None:
    table = Table("backup", "Continuous backup (a folder)")
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as name:
        below = Path(name)
        rpo_rows(table, below)
        cost_rows(table, below)
        levels, deleted = after_garbage(below / "garbage", below / "garbage-store")
        table.row(
            f"objects after {CYCLES} cycles, of after half of them",
            levels[-1] / levels[CYCLES // 2 - 1],
            "of it",
            ("≤", 1.1),
            notes=[f"{levels}; {deleted} deleted"],
        )
        write_rows(table, below)
    table.finish()


if __name__ == "__main__":
    main()
