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
from typing import TypeVar

import topics_engine as te
from benches.report import Table, curve, scaled, tail

PAYLOAD = b"x" * 100
BATCH = [PAYLOAD] * 1000
T = TypeVar("T")


def waiting(call: Callable[[], T]) -> T:
    """Calls again, after the time that the refusal names, while the engine is overloaded."""
    while True:
        try:
            return call()
        except te.Throttled as refused:
            time.sleep(refused.retry_after)


def p50(times: list[int]) -> float:
    """Median of nanoseconds, in microseconds."""
    return statistics.median(times) / 1000


def timed(n: int, call: Callable[[], object]) -> list[int]:
    """Nanoseconds of each of `n` calls."""
    out = []
    for _ in range(n):
        began = time.perf_counter_ns()
        waiting(call)
        out.append(time.perf_counter_ns() - began)
    return out


def device(folder: Path, size: int, n: int) -> list[int]:
    """`fdatasync` after a write of `size` bytes into preallocated space: nanoseconds of each."""
    path = folder / "device-probe"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.pwrite(fd, bytes(size * n), 0)
        os.fsync(fd)
        at, data = iter(range(0, size * n, size)), b"y" * size

        def once() -> None:
            os.pwrite(fd, data, next(at))
            os.fdatasync(fd)

        return timed(n, once)
    finally:
        os.close(fd)
        path.unlink()


def batches(topic: te.Topic, n: int) -> float:
    """Records per second of `n` batches."""
    began = time.perf_counter()
    for _ in range(n):
        waiting(lambda: topic.append_batch(BATCH))
    return n * len(BATCH) / (time.perf_counter() - began)


def jobs(queue: te.Queue, n: int, claimed: int) -> float:
    """Jobs per second that one worker does in `with job:`, `claimed` of them per claim."""
    for _ in range(0, n, len(BATCH)):
        waiting(lambda: queue.append_batch(BATCH))
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


def arrow(table: Table, topic: te.Topic, work: str, goal: tuple[str, float] | None) -> None:
    """Reads a whole topic as a table; frees the memory of the previous table first."""
    runs, limits, rows = [], [], 0
    for _ in range(5):
        began = time.perf_counter()
        read = topic.read().to_arrow()
        runs.append(read.num_rows / (time.perf_counter() - began))
        rows = read.num_rows
        # The values of each row: seq, ts, an offset, the payload.
        size = rows * (8 + 8 + 4 + len(PAYLOAD))
        del read
        limits.append(rows / memory(size))
    notes = (
        f"{rows:,} rows; first call {runs[0] / 1e6:.1f} M; the same bytes copied into new memory by"
        f" two threads: {statistics.median(limits) / 1e6:.1f} M (slowest {min(limits) / 1e6:.1f})"
    )
    device = statistics.median(limits)
    table.row(work, runs, "rows/s", goal, device=device, notes=[notes])


def singles(table: Table, disk: te.Topic, synced: te.Topic, folder: Path) -> None:
    """Single records: class `disk`, and synced in turns with the device."""
    latency = curve(timed(scaled(50_000), lambda: disk.append(PAYLOAD)))
    figure, goal = latency[2][1], ("≤", 14.0)
    work = "one record, class disk: p50"
    table.row(work, figure, "µs", goal, latency=latency, notes=[tail(latency)])
    figures, all_times, bare = [], [], []
    for _ in range(3):
        os.sync()
        bare += device(folder, 170, scaled(400))
        times = timed(scaled(400), lambda: synced.append(PAYLOAD))
        figures.append(p50(times))
        all_times += times
    latency, probe = curve(all_times), curve(bare)
    notes = [tail(latency), f"device p50 {p50(bare):.0f}, {tail(probe)}"]
    table.row(
        "one record, synced: p50",
        figures,
        "µs",
        device=p50(bare),
        latency=latency,
        device_latency=probe,
        notes=notes,
    )


def main(folder: Path) -> None:
    """Measures all rows in a scratch directory."""
    table = Table("python", "Embedded, from Python (100-byte payloads)")
    with te.open(folder / "data") as db:
        disk = db.topic("disk", durability="disk")
        synced = db.topic("synced", durability="fsync")
        for topic in (disk, synced):
            topic.create()
        singles(table, disk, synced, folder)
        for name, topic, goal in (("disk", disk, 2e6), ("synced", synced, 1.2e6)):
            runs = []
            for _ in range(5):
                db.checkpoint()
                os.sync()
                runs.append(batches(topic, scaled(1000)))
            work = f"batches of 1000 x 100 B, one thread, {name}"
            table.row(work, runs, "rec/s", ("≥", goal), notes=["list[bytes]"])
        queue = db.queue("jobs", durability="disk")
        for claimed in (100, 1):
            runs = [jobs(queue, scaled(20_000, 1000), claimed) for _ in range(5)]
            least = ("≥", 50e3) if claimed > 1 else None
            work = f"with job: one worker, {claimed} per claim, disk"
            table.row(work, runs, "jobs/s", least, notes=["claim, payload, ack of each"])
        few = db.topic("few", durability="disk")
        few.create()
        batches(few, scaled(500))
        db.checkpoint()
        arrow(table, disk, "to_arrow()", ("≥", 8e6))
        arrow(table, few, "to_arrow(), half a million rows", None)
    table.finish()


if __name__ == "__main__":
    base = Path(os.environ.get("TOPICS_BENCH_DIR", "target/bench"))
    base.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="python-", dir=base))
    try:
        main(scratch)
    finally:
        shutil.rmtree(scratch)
