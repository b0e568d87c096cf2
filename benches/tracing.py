"""What tracing costs, off and on: `python benches/tracing.py`.

Each round measures all variants one after the other, and each figure is the median of the ratios
of rounds, so that a slow minute of the machine counts in all of them. "Never on" was measured first
in the process, before OpenTelemetry was imported; "off" is after `uninstrument`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import topics_engine as te
from topics_engine.testing import Server

PAYLOAD = {"id": 1, "text": "x" * 80}
BATCH = [PAYLOAD] * 1000
RAW = [b"x" * 100] * 1000
ROUNDS = 9
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Work = Callable[[], int]


def embedded(db: te.Database) -> dict[str, Work]:
    """The calls that are traced; each returns how many there were."""
    log, raw = db.topic("log", cap_records=200_000), db.topic("raw", cap_records=200_000)
    queue = db.queue("queue")
    log.create()
    reader = log.consumer("reader")

    def append() -> int:
        for _ in range(2000):
            log.append(PAYLOAD)
        return 2000

    def append_many() -> int:
        for _ in range(10):
            log.append(BATCH)
        return 10_000

    def append_raw() -> int:
        for _ in range(20):
            raw.append_batch(RAW)
        return 20_000

    def jobs() -> int:
        queue.append([1] * 1000)
        done = 0
        while found := queue.claim("w", max=100):
            for job in found:
                with job:
                    done += 1
        return done

    def read() -> int:
        done = 0
        while batch := reader.read():
            done += len(batch)
        reader.seek(te.EARLIEST)
        return done

    return {
        "append, one record": append,
        "append, 1000 records": append_many,
        "append_batch, 1000 records": append_raw,
        "queue: append, claim 100, with job": jobs,
        "consumer: read, 2000 records": read,
    }


def over_http(port: int) -> dict[str, Work]:
    """Appends of one record over one connection, without and with the header."""

    def append(headers: dict[str, str]) -> Work:
        body = json.dumps({"records": [{"data": PAYLOAD}]}).encode()
        connection = HTTPConnection("127.0.0.1", port)
        given = {"Content-Type": "application/json", **headers}
        topic = "traced" if headers else "plain"

        def run() -> int:
            for _ in range(1000):
                connection.request("POST", f"/v0/topics/{topic}", body, given)
                connection.getresponse().read()
            return 1000

        return run

    return {"without": append({}), "with": append({"traceparent": PARENT})}


def nanoseconds(work: Work) -> float:
    """Of each call."""
    began = time.perf_counter_ns()
    done = work()
    return (time.perf_counter_ns() - began) / done


def row(name: str, base: list[float], *others: list[float]) -> None:
    """Prints a median in µs, and the medians of the ratios to it."""
    ratios = (
        statistics.median(b / a for a, b in zip(base, other, strict=True)) for other in others
    )
    shown = "".join(f"{ratio:>14.2f}" for ratio in ratios)
    print(f"{name:<40}{statistics.median(base) / 1000:>12.3f}{shown}", flush=True)


def main(folder: Path) -> None:
    """Measures in a scratch directory."""
    with te.open(folder / "data") as db:
        works = embedded(db)
        for work in works.values():
            work()
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
        never = {name: [nanoseconds(w) for _ in range(ROUNDS)] for name, w in works.items()}

        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

        providers = {"on": TracerProvider(), "unsampled": TracerProvider(sampler=ALWAYS_OFF)}
        figures: dict[str, dict[str, list[float]]] = {}
        for name, work in works.items():
            found = figures[name] = {"off": [], "on": [], "unsampled": []}
            for _ in range(ROUNDS):
                found["off"].append(nanoseconds(work))
                for variant, provider in providers.items():
                    te.otel.instrument(provider)
                    found[variant].append(nanoseconds(work))
                    te.otel.uninstrument()
        print(f"{'embedded':<40}{'off, µs':>12}{'on':>14}{'not sampled':>14}{'never on':>14}")
        for name, found in figures.items():
            row(name, found["off"], found["on"], found["unsampled"], never[name])
    with Server(folder / "served") as server:
        ways = over_http(server.port)
        for work in ways.values():
            work()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, work in ways.items():
                times[name].append(nanoseconds(work))
        print(f"\n{'HTTP':<40}{'without, µs':>12}{'with header':>14}")
        row("POST of one record", times["without"], times["with"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
