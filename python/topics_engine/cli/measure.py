"""`doctor` and `bench`: measure the disk, the way to a server, and the engine."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..client import Database, Topic
from ..errors import Forbidden
from .output import Progress

RECORD = "x" * 98


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def sync_latencies(folder: Path, rounds: int = 400, size: int = 170) -> list[float]:
    """Seconds of each `fdatasync` after an overwrite.

    The file is filled first, so that its size and extents are on disk and a sync flushes data only.
    """
    payload = os.urandom(size)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".topics-doctor-") as file:
        fd = file.fileno()
        os.pwrite(fd, bytes(rounds * size), 0)
        os.fsync(fd)
        sync = getattr(os, "fdatasync", os.fsync)

        def once() -> None:
            os.pwrite(fd, payload, len(taken) * size)
            sync(fd)

        taken: list[float] = []
        progress = Progress("doctor", rounds)
        while len(taken) < rounds:
            taken.append(_seconds_of(once))
            progress.show(len(taken))
        progress.end()
    return taken


def nearest_folder(path: Path) -> Path:
    """The directory, or its nearest existing parent."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def file_system(path: Path) -> str:
    """Type and device of the file system of `path`."""
    best = ("", "unknown")
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            device, point, kind = line.split()[:3]
            inside = point == "/" or path == Path(point) or Path(point) in path.parents
            if inside and len(point) >= len(best[0]):
                best = (point, f"{kind} on {device}")
    return best[1]


def cold_segments(data_dir: Path) -> int:
    """The number of segments whose records are only in an object store.

    Their `.data` is not in the directory, while their index stays there.
    """
    names: dict[str, set[str]] = {".idx": set(), ".data": set()}
    for file in data_dir.glob("topics/*/seg-*"):
        if file.suffix in names:
            names[file.suffix].add(str(file.with_suffix("")))
    return len(names[".idx"] - names[".data"])


def unlooked(what: str) -> str:
    """Advice on what a doctor has not looked at."""
    return f"{what} in the object store were not looked at: `topics verify URL` does"


def doctor(data_dir: Path, rounds: int = 400) -> dict[str, Any]:
    """Facts about the machine, the disk's sync latency, and advice."""
    cold = cold_segments(data_dir)
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
        "cold_segments": cold,
        "advice": advice(p50, p99),
    }
    if cold:
        answer["advice"] += f"; {unlooked(f'{cold:,} segments')}"
    return answer


def advice(p50: float, p99: float) -> str:
    """What to expect of durability class `fsync` on this disk."""
    if p50 < 20e-6:
        return "syncs return immediately: a RAM disk, or a device that ignores flushes"
    if p50 > 5e-3:
        return "a slow disk: use many concurrent writers or large batches; a single writer is slow"
    if p99 > 20 * p50:
        return "good in the middle, but some syncs are slow: expect pauses under class fsync"
    return "fit for class fsync"


def of_server(db: Database, rounds: int = 200) -> dict[str, Any]:
    """Facts about a server, its round-trip time, and its sync latency."""
    backend = db._backend
    health = backend.answer("health")
    ready = backend.answer("ready")
    progress = Progress("doctor", rounds)
    trips = []
    for done in range(rounds):
        trips.append(_seconds_of(lambda: backend.caller.call("health")))
        progress.show(done)
    progress.end()
    p50, p99 = percentile(trips, 0.5), percentile(trips, 0.99)
    answer: dict[str, Any] = {
        "url": db.path,
        "version": health["version"],
        "uptime_s": round(health["uptime_ms"] / 1000),
        "status": ready["status"],
        "topics": ready["topics"],
        "round_trip_p50_ms": round(p50 * 1e3, 3),
        "round_trip_p99_ms": round(p99 * 1e3, 3),
        "requests_per_s_alone": round(1 / p50),
    }
    with contextlib.suppress(Forbidden):
        answer |= _counted(db.metrics())
    answer["advice"] = advice_on_server(answer)
    return answer


def _counted(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that show the health of a server."""
    syncs = metrics["fsync"]
    counted = {
        "fsyncs": syncs["count"],
        "fsync_p50_ms": round(syncs["p50_ns"] / 1e6, 3),
        "fsync_p99_ms": round(syncs["p99_ns"] / 1e6, 3),
        "pressure": metrics["pressure_ratio"],
        "read_only_shards": metrics["read_only_shards"],
        "corrupt_records": metrics["corrupt_records"],
        "packs": metrics["packs"],
    }
    of_remote = ("remote_state", "remote_reason")
    return counted | {name: metrics[name] for name in of_remote if name in metrics}


def advice_on_server(facts: Mapping[str, Any]) -> str:
    """What to do about this server, and what to expect of it."""
    said, packs = _advice_on_server(facts), facts.get("packs")
    return f"{said}; {unlooked(f'{packs:,} packs')}" if packs else said


def _advice_on_server(facts: Mapping[str, Any]) -> str:
    if facts.get("read_only_shards"):
        return "its disk has refused a sync: check the disk, then restart the server"
    if facts.get("corrupt_records"):
        return "it has met damaged records: run `topics verify`"
    if facts.get("remote_state", "ok") not in ("ok", "starting"):
        why = facts.get("remote_reason", "the log says why, and what to do")
        return f"its object store is {facts['remote_state']}: {why}"
    if facts.get("pressure", 0) > 0.8:
        return "it is overloaded: fewer or larger writes, or a faster disk"
    if facts["round_trip_p50_ms"] > 5:
        return "far away: write in batches, read in large pages, and watch rather than ask"
    if "fsyncs" in facts and not facts["fsyncs"]:
        return "nothing was synced yet: `topics bench` measures what a synced write takes"
    return "in good health"


ROUNDS = 500


def bench(db: Database, records: int) -> dict[str, Any]:
    """Measures appends and reads on a topic that is deleted afterwards."""
    topic = db.topic(f"topics-bench-{secrets.token_hex(4)}", durability="disk")
    topic.create()
    batch = [RECORD] * 1000
    try:
        alone = _timed("one record", min(ROUNDS, records), lambda: topic.append(RECORD))
        synced = _timed(
            "synced", min(200, records), lambda: topic.append(RECORD, sync=True), seconds=5.0
        )
        many = _timed("batches of 1000", max(3, records // 1000), lambda: topic.append(batch))
        read, taken = _read(topic)
    finally:
        topic.drop()
    rate = 1000 / statistics.median(many)
    return {
        "where": db.path,
        "single_p50_us": round(percentile(alone, 0.5) * 1e6, 1),
        "single_p99_us": round(percentile(alone, 0.99) * 1e6, 1),
        "single_synced_p50_us": round(percentile(synced, 0.5) * 1e6, 1),
        "single_synced_p99_us": round(percentile(synced, 0.99) * 1e6, 1),
        "batch_1000_records_per_s": round(rate),
        "batch_1000_mb_per_s": round(rate * len(RECORD) / 1e6, 1),
        "read_1000_records_per_s": round(read / taken),
        "read_1000_mb_per_s": round(read * len(RECORD) / taken / 1e6, 1),
        "python": platform.python_version(),
    }


def _timed(
    what: str, rounds: int, verb: Callable[[], object], seconds: float = math.inf
) -> list[float]:
    """Seconds of each call, for at most `seconds` in total."""
    progress = Progress(what, rounds)
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < rounds and (not taken or time.perf_counter() < until):
        taken.append(_seconds_of(verb))
        progress.show(len(taken))
    progress.end()
    return taken


def _read(topic: Topic) -> tuple[int, float]:
    """The number of records read, and the seconds it took."""
    progress = Progress("read", topic.state().count)
    start, read = time.perf_counter(), 0
    for batch in topic.read(after=0).batches():
        read += len(batch)
        progress.show(read)
    taken = time.perf_counter() - start
    progress.end()
    return read, taken


def _seconds_of(verb: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    verb()
    return time.perf_counter() - start
