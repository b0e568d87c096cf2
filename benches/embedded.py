"""Embedded appends and reads from Python, compared with the device; run by `make bench`."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import topics_engine as te

PAYLOAD = b"x" * 100
BATCH = [PAYLOAD] * 1000
missed: list[str] = []


def row(work: str, figure: float, unit: str, goal: tuple[str, float] | None, notes: str) -> None:
    """Prints one row of the table and records a missed goal."""
    text, mark = "", ""
    if goal is not None:
        text = f"{goal[0]} {goal[1]:,.2f}"
        ok = figure <= goal[1] if goal[0] == "≤" else figure >= goal[1]
        mark = "ok" if ok else "MISSED"
        if not ok:
            missed.append(f"{work}: {figure:,.2f} {unit}, goal {text}")
    print(f"{work:<46}{figure:>12,.2f} {unit:<8}{text:>14}  {mark:<6} {notes}", flush=True)


def p50(times: list[int]) -> float:
    """Median of nanoseconds, in microseconds."""
    return statistics.median(times) / 1000


def timed(n: int, call: Callable[[], object]) -> list[int]:
    """Nanoseconds of each of `n` calls."""
    out = []
    for _ in range(n):
        began = time.perf_counter_ns()
        call()
        out.append(time.perf_counter_ns() - began)
    return out


def device(folder: Path, size: int, n: int) -> float:
    """`fdatasync` after a write of `size` bytes into preallocated space: p50 in µs."""
    path = folder / "device-probe"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.pwrite(fd, bytes(size * n), 0)
        os.fsync(fd)
        at, data = iter(range(0, size * n, size)), b"y" * size

        def once() -> None:
            os.pwrite(fd, data, next(at))
            os.fdatasync(fd)

        return p50(timed(n, once))
    finally:
        os.close(fd)
        path.unlink()


def batches(topic: te.Topic, n: int) -> float:
    """Records per second of `n` batches."""
    began = time.perf_counter()
    for _ in range(n):
        topic.append_batch(BATCH)
    return n * len(BATCH) / (time.perf_counter() - began)


def jobs(queue: te.Queue, n: int, claimed: int) -> float:
    """Jobs per second that one worker does in `with job:`, `claimed` of them per claim."""
    for _ in range(0, n, len(BATCH)):
        queue.append_batch(BATCH)
    done = 0
    began = time.perf_counter()
    while found := queue.claim("worker", claimed):
        for job in found:
            with job:
                done += len(job.data)
    took = time.perf_counter() - began
    assert done == n * len(PAYLOAD)
    return n / took


def memory(size: int) -> float:
    """Seconds that two threads need to copy `size` bytes into memory that is new to this
    process."""
    part = size // 2
    source = ctypes.create_string_buffer(8 << 20)
    ctypes.memset(source, 1, len(source))
    with mmap.mmap(-1, size + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as target:
        target.madvise(mmap.MADV_HUGEPAGE)
        anchor = ctypes.c_char.from_buffer(target)
        base = ctypes.addressof(anchor)

        def fill(begin: int) -> None:
            for at in range(begin, begin + part, len(source)):
                ctypes.memmove(base + at, source, min(len(source), begin + part - at))

        threads = [threading.Thread(target=fill, args=(at,)) for at in (0, part)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        del anchor
    return took


def arrow(topic: te.Topic, work: str, goal: tuple[str, float] | None) -> None:
    """Reads a whole topic as a table; frees the memory of the previous table first."""
    runs, limits, rows = [], [], 0
    for _ in range(5):
        began = time.perf_counter()
        table = topic.read().to_arrow()
        runs.append(table.num_rows / (time.perf_counter() - began) / 1e6)
        rows = table.num_rows
        # The values of each row: seq, ts, an offset, the payload.
        size = rows * (8 + 8 + 4 + len(PAYLOAD))
        del table
        limits.append(rows / memory(size) / 1e6)
    notes = (
        f"{rows:,} rows; first call {runs[0]:.1f}; the same bytes copied into new memory by"
        f" two threads: {statistics.median(limits):.1f} (slowest {min(limits):.1f})"
    )
    row(work, statistics.median(runs), "M rows/s", goal, notes)


def main(folder: Path) -> None:
    """Measures all rows in a scratch directory."""
    print("\nEmbedded, from Python (100-byte payloads)")
    print("-" * 118)
    with te.open(folder / "data") as db:
        disk = db.topic("disk", durability="disk")
        synced = db.topic("synced", durability="fsync")
        for topic in (disk, synced):
            topic.create()
        times = timed(50_000, lambda: disk.append(PAYLOAD))
        tail = sorted(times)[len(times) * 99 // 100] / 1000
        row("one record, class disk: p50", p50(times), "µs", ("≤", 14), f"p99 {tail:.1f}")
        figures, bare = [], []
        for _ in range(3):
            os.sync()
            bare.append(device(folder, 170, 400))
            figures.append(p50(timed(400, lambda: synced.append(PAYLOAD))))
        notes = f"device p50 {statistics.median(bare):.0f} µs in the same run"
        row("one record, synced: p50", statistics.median(figures), "µs", None, notes)
        for name, topic, goal in (("disk", disk, 2e6), ("synced", synced, 1.2e6)):
            runs = []
            for _ in range(5):
                db.checkpoint()
                os.sync()
                runs.append(batches(topic, 1000))
            work = f"batches of 1000 x 100 B, one thread, {name}"
            row(work, statistics.median(runs) / 1e6, "M rec/s", ("≥", goal / 1e6), "list[bytes]")
        queue = db.queue("jobs", durability="disk")
        for claimed in (100, 1):
            figure = statistics.median(jobs(queue, 20_000, claimed) for _ in range(5))
            goal = ("≥", 50.0) if claimed > 1 else None
            work = f"with job: one worker, {claimed} per claim, disk"
            row(work, figure / 1000, "k jobs/s", goal, "claim, payload, ack of each")
        few = db.topic("few", durability="disk")
        few.create()
        batches(few, 500)
        db.checkpoint()
        arrow(disk, "to_arrow()", ("≥", 8))
        arrow(few, "to_arrow(), half a million rows", None)
    print("\n".join(f"goal missed: {m}" for m in missed) or "every goal of this table is met")


if __name__ == "__main__":
    base = Path(os.environ.get("TOPICS_BENCH_DIR", "target/bench"))
    base.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="python-", dir=base))
    try:
        main(scratch)
    finally:
        shutil.rmtree(scratch)
