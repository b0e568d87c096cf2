"""What tracing costs, off and on: `python benches/tracing.py [embedded | http]`.

Each round measures all variants one after the other, each in a process and a directory of its own,
and the figures are medians of the ratios of rounds: a slow minute of the machine counts in all of
them. The variants are a process that never imported OpenTelemetry, one that traced and stopped, one
that traces, and one whose sampler drops every span.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import topics_engine as te
from topics_engine.testing import Server

PAYLOAD = {"id": 1, "text": "x" * 80}
BATCH = [PAYLOAD] * 1000
RAW = [b"x" * 100] * 1000
ROUNDS = 9
VARIANTS = ("never", "off", "on", "unsampled")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Work = Callable[[], int]


def works(db: te.Database) -> dict[str, Work]:
    """The calls that are traced; each returns how many there were."""
    log, raw, read = db.topic("log"), db.topic("raw"), db.topic("read")
    queue = db.queue("queue")
    for _ in range(10):
        read.append(BATCH)
    reader = read.consumer("reader")

    def append() -> int:
        for _ in range(5000):
            log.append(PAYLOAD)
        return 5000

    def append_many() -> int:
        for _ in range(20):
            log.append(BATCH)
        return 20_000

    def append_raw() -> int:
        for _ in range(50):
            raw.append_batch(RAW)
        return 50_000

    def jobs() -> int:
        queue.append([1] * 2000)
        done = 0
        while found := queue.claim("w", max=100):
            for job in found:
                with job:
                    done += 1
        return done

    def consume() -> int:
        done = 0
        while batch := reader.read():
            done += len(batch)
        reader.seek(te.EARLIEST)
        return done

    return {
        "append, one record": append,
        "append, 1000 records": append_many,
        "append_batch, 1000 records": append_raw,
        "append, claim 100, with job": jobs,
        "read of a consumer, 2000 records": consume,
    }


def nanoseconds(work: Work) -> float:
    """Of each call or record, in the best of three runs."""
    found = []
    for _ in range(3):
        began = time.perf_counter_ns()
        done = work()
        found.append((time.perf_counter_ns() - began) / done)
    return min(found)


def measure(variant: str, folder: Path) -> dict[str, float]:
    """The figures of one variant, in this process."""
    if variant != "never":
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

        sampler = ALWAYS_OFF if variant == "unsampled" else ALWAYS_ON
        te.otel.instrument(TracerProvider(sampler=sampler))
        if variant == "off":
            te.otel.uninstrument()
    with te.open(folder) as db:
        return {name: nanoseconds(work) for name, work in works(db).items()}


def measured(variant: str) -> dict[str, float]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, variant, folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def over_http(port: int) -> dict[str, Work]:
    """Appends of one record over one connection, without and with the header."""

    def append(headers: dict[str, str]) -> Work:
        body = json.dumps({"records": [{"data": PAYLOAD}]}).encode()
        connection = HTTPConnection("127.0.0.1", port)
        given = {"Content-Type": "application/json", **headers}
        path = f"/v0/topics/{'traced' if headers else 'plain'}?return_seqs=false"

        def run() -> int:
            for _ in range(500):
                connection.request("POST", path, body, given)
                connection.getresponse().read()
            return 500

        return run

    return {"without": append({}), "with": append({"traceparent": PARENT})}


def row(name: str, base: list[float], *others: list[float]) -> None:
    """Prints a median in µs, and the medians of the ratios to it."""
    ratios: Any = (
        statistics.median(b / a for a, b in zip(base, other, strict=True)) for other in others
    )
    shown = "".join(f"{ratio:>14.2f}" for ratio in ratios)
    print(f"{name:<36}{statistics.median(base) / 1000:>12.3f}{shown}", flush=True)


def print_embedded() -> None:
    """Measures all variants in turns."""
    rounds = [{variant: measured(variant) for variant in VARIANTS} for _ in range(ROUNDS)]
    print(f"{'embedded':<36}{'never, µs':>12}{'off':>14}{'on':>14}{'not sampled':>14}")
    for name in rounds[0]["never"]:
        row(name, *([found[variant][name] for found in rounds] for variant in VARIANTS))


def print_http() -> None:
    """Measures requests with and without the header in turns."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        ways = over_http(server.port)
        for work in ways.values():
            work()
        for _ in range(ROUNDS):
            for name, work in ways.items():
                times.setdefault(name, []).append(nanoseconds(work))
    print(f"\n{'HTTP':<36}{'without, µs':>12}{'with header':>14}")
    row("POST of one record", times["without"], times["with"])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]) / "data")))
    else:
        if sys.argv[1:] != ["http"]:
            print_embedded()
        if sys.argv[1:] != ["embedded"]:
            print_http()
