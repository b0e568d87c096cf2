"""`doctor` and `bench`: what this machine's disk does, and what the engine makes of it."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..client import Database

RECORD = "x" * 98


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def sync_latencies(folder: Path, rounds: int = 400, size: int = 170) -> list[float]:
    """Seconds of each `fdatasync` after a write over bytes that are already there.

    The file is filled first: its size and extents are on the disk, and a sync flushes data alone.
    """
    payload = os.urandom(size)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".topics-doctor-") as file:
        fd = file.fileno()
        os.pwrite(fd, bytes(rounds * size), 0)
        os.fsync(fd)
        sync = getattr(os, "fdatasync", os.fsync)
        taken = []
        for i in range(rounds):
            start = time.perf_counter()
            os.pwrite(fd, payload, i * size)
            sync(fd)
            taken.append(time.perf_counter() - start)
    return taken


def nearest_folder(path: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def file_system(path: Path) -> str:
    """Type and device of the file system that holds `path`."""
    best = ("", "unknown")
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            device, point, kind = line.split()[:3]
            inside = point == "/" or path == Path(point) or Path(point) in path.parents
            if inside and len(point) >= len(best[0]):
                best = (point, f"{kind} on {device}")
    return best[1]


def doctor(data_dir: Path, rounds: int = 400) -> dict[str, Any]:
    """Facts about the machine, the disk's real sync latency, and what follows from it."""
    folder = nearest_folder(data_dir)
    taken = sync_latencies(folder, rounds)
    p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
    space = os.statvfs(folder)
    answer: dict[str, Any] = {
        "directory": str(folder),
        "file_system": file_system(folder),
        "free_bytes": space.f_bavail * space.f_frsize,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "fdatasync_p50_ms": round(p50 * 1e3, 3),
        "fdatasync_p99_ms": round(p99 * 1e3, 3),
        "synced_writes_per_s_alone": round(1 / p50),
        "advice": advice(p50, p99),
    }
    return answer


def advice(p50: float, p99: float) -> str:
    """What to expect of durability class `fsync` on such a disk."""
    if p50 < 20e-6:
        return "syncs return at once: a RAM disk, or a device that ignores flushes; do not trust it"
    if p50 > 5e-3:
        return (
            "a slow disk: many writers at once or large batches make up for it, one writer cannot"
        )
    if p99 > 20 * p50:
        return "good in the middle, but some syncs are slow: expect pauses under class fsync"
    return "fit for class fsync"


def bench(db: Database, records: int, out: Callable[[str], None]) -> dict[str, Any]:
    """Appends and reads through the client, into a topic that is deleted afterwards."""
    topic = db.topic(f"topics-bench-{secrets.token_hex(4)}", durability="disk")
    topic.create()
    try:
        singles = [_taken(lambda: topic.append(RECORD)) for _ in range(min(500, records))]
        out(f"one record: p50 {percentile(singles, 0.5) * 1e6:,.0f} µs")
        alone = min(200, records)
        synced = [_taken(lambda: topic.append(RECORD, sync=True)) for _ in range(alone)]
        out(f"one record, synced: p50 {percentile(synced, 0.5) * 1e6:,.0f} µs")
        batch = [RECORD] * 1000
        rounds = max(3, records // 1000)
        rates = [1000 / _taken(lambda: topic.append(batch)) for _ in range(rounds)]
        out(f"batches of 1000: {statistics.median(rates):,.0f} records/s")
        start = time.perf_counter()
        read = sum(map(len, topic.read(after=0).batches()))
        rate = read / (time.perf_counter() - start)
        out(f"reading 1000 at a time: {rate:,.0f} records/s")
    finally:
        topic.drop()
    return {
        "where": db.path,
        "single_p50_us": round(percentile(singles, 0.5) * 1e6, 1),
        "single_synced_p50_us": round(percentile(synced, 0.5) * 1e6, 1),
        "batch_1000_records_per_s": round(statistics.median(rates)),
        "read_1000_records_per_s": round(rate),
        "python": sys.version.split()[0],
    }


def _taken(verb: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    verb()
    return time.perf_counter() - start
