"""Mixed traffic for a while, with clients that are killed and two kills of the server: what was
acked is there, jobs that were acked do not come back, nothing is seen twice, and nothing grows.
"""

from __future__ import annotations

import http.client
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benches.demo.server import Server

from .conftest import Http
from .h2_client import Http2Port
from .sse import Events
from .test_abuse import sockets
from .test_kill import BUSY, Attempt, Journal, check, settle, write
from .test_routes import until
from .test_watch import streams

SECONDS = float(
    os.environ.get("TOPICS_LOAD_SECONDS")
    or (300 if os.environ.get("TOPICS_GATE") == "release" else 30)
)
KILLS = 2
WRITERS = 3
# Both classes survive a killed process; these are the topics that the journal is checked against.
JOURNALED = ("kill.fsync", "kill.disk")
GONE = (OSError, http.client.HTTPException, EOFError)


@dataclass
class Load:
    """What all clients share."""

    server: Server
    stop: threading.Event = field(default_factory=threading.Event)
    journal: Journal = field(default_factory=Journal)
    lock: threading.Lock = field(default_factory=threading.Lock)
    writes: list[float] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    claimed: int = 0
    seen: int = 0
    killed: int = 0
    churned: int = 0
    failures: list[str] = field(default_factory=list)

    def client(self, rng: random.Random) -> Http:
        """By either protocol."""
        port = self.server.port
        return Http(Http2Port(port) if rng.random() < 0.5 else port, timeout=20)

    def run(self, work: Callable[[Load, random.Random], None], seed: int) -> None:
        """Works until the end; a server that is gone comes back."""
        rng = random.Random(seed)
        while not self.stop.is_set():
            try:
                work(self, rng)
            except GONE:
                time.sleep(0.05)
            except Exception as failure:
                self.failures.append(f"{work.__name__}: {failure!r}")
                return


def busy(status: int) -> bool:
    """Whether the answer only says: later."""
    return status in (429, 503)


def writer(load: Load, rng: random.Random) -> None:
    """Writes with keys, and is killed now and then with a write on its way."""
    api = load.client(rng)
    try:
        for _ in range(rng.randrange(1, 200)):
            if load.stop.is_set():
                return
            values = [f"{rng.getrandbits(64):016x}" for _ in range(rng.choice((1, 1, 5, 30)))]
            attempt = Attempt(rng.choice(JOURNALED), secrets.token_hex(8), values)
            if rng.random() < 0.01:
                with load.journal.lock:
                    load.journal.attempts[attempt.key] = attempt
                    load.journal.doubtful.add(attempt.key)
                api.abandon("POST", f"/v0/topics/{attempt.topic}", attempt.body())
                load.killed += 1
                return
            started = time.monotonic()
            write(api, load.journal, attempt)
            load.writes.append(time.monotonic() - started)
    finally:
        api.close()


def watch(load: Load, rng: random.Random) -> None:
    """Follows both topics in order, through kills of itself and of the server."""
    last_id, next_seq = "", dict.fromkeys(JOURNALED, 1)
    path = "/v0/watch?lenient&from_seq=0&heartbeat_ms=1000&topic=" + "&topic=".join(JOURNALED)
    while not load.stop.is_set():
        port, events = load.server.port, None
        try:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            events = Events(Http2Port(port) if rng.random() < 0.5 else port, path, headers, 20)
            if busy(events.status):
                continue
            assert events.status == 200, events.body
            for _ in range(rng.randrange(1, 300)):
                event = next(events)
                if event.kind == "record":
                    for record in event.data["records"]:
                        topic, seq = event.data["topic"], record["$seq"]
                        assert seq >= next_seq[topic], f"I2: {topic} {seq} was seen before"
                        next_seq[topic] = seq + 1
                        load.seen += 1
                else:
                    assert event.kind in ("caught-up", "error"), event
                last_id = event.id or last_id
                if load.stop.is_set():
                    break
            events.kill()
            load.killed += 1
        except (*GONE, StopIteration):
            time.sleep(0.05)
        finally:
            if events is not None:
                events.close()


def worker(load: Load, rng: random.Random) -> None:
    """Claims and acks jobs, and now and then is gone with some."""
    api = load.client(rng)
    try:
        for _ in range(rng.randrange(1, 60)):
            if load.stop.is_set():
                return
            api("POST", "/v0/topics/jobs", {"records": [{"data": rng.random()}] * 3})
            body = {"node": f"w{rng.randrange(4)}", "max": 5, "wait_ms": 20, "lease_ms": 600_000}
            reply = api("POST", "/v0/topics/jobs/claim", body)
            if reply.status != 200:
                assert busy(reply.status), reply
                continue
            seqs = [job["$seq"] for job in reply.json["claimed"]]
            with load.lock:
                twice = load.done.intersection(seqs)
                assert not twice, f"acked, and claimed again: {sorted(twice)}"
                load.claimed += len(seqs)
            if not seqs or rng.random() < 0.05:
                continue
            held = {"node": body["node"], "seqs": seqs}
            reply = api("POST", "/v0/topics/jobs/ack", held)
            if reply.status == 200:
                with load.lock:
                    load.done.update(reply.json["acked"])
    finally:
        api.close()


def churn(load: Load, rng: random.Random) -> None:
    """Topics come and go, with records, readers and deletes."""
    api = load.client(rng)
    try:
        for _ in range(20):
            if load.stop.is_set():
                return
            path = f"/v0/topics/churn-{rng.randrange(8)}"
            batch = {"records": [{"data": "x" * rng.randrange(2000)} for _ in range(20)]}
            steps = [
                api("PUT", path, {"cap_records": 500}),
                api("POST", path, batch),
                api("POST", f"{path}/diff", {"tail": 10}),
                api("POST", f"{path}/delete", {"before_seq": 10}),
                api("GET", path),
            ]
            if rng.random() < 0.3:
                steps.append(api("DELETE", path))
            wrong = [s for s in steps if s.status >= 400 and s.status not in (404, 409, 429, 503)]
            assert not wrong, wrong
            load.churned += 1
    finally:
        api.close()


def slope(samples: list[tuple[float, int]]) -> float:
    """Bytes a second, by least squares."""
    n = len(samples)
    mean_t = sum(t for t, _ in samples) / n
    mean_v = sum(v for _, v in samples) / n
    spread = sum((t - mean_t) ** 2 for t, _ in samples) or 1.0
    return sum((t - mean_t) * (v - mean_v) for t, v in samples) / spread


def sample(load: Load, until_time: float) -> list[tuple[float, int]]:
    """Anonymous memory over time."""
    taken = []
    while time.monotonic() < until_time and not load.failures:
        taken.append((time.monotonic(), load.server.memory()[1]))
        time.sleep(0.2)
    return taken


def test_mixed_traffic(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", env=BUSY)
    server.start()
    load = Load(server)
    api = Http(server.port)
    for topic, durability in zip(JOURNALED, ("fsync", "disk"), strict=True):
        # What is in doubt is asked about in the end.
        config = {"durability": durability, "idempotency_window_ms": 3_600_000}
        assert api("PUT", f"/v0/topics/{topic}", config).status == 201
    assert api("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync"}).status == 201
    api.close()
    idle = sockets(server.pid)
    work = [writer] * WRITERS + [watch] * 2 + [worker] * 2 + [churn]
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {SECONDS:g} s")
    threads = [
        threading.Thread(target=load.run, args=(job, seed + n)) for n, job in enumerate(work)
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            sample(load, time.monotonic() + SECONDS / (KILLS + 1))
            server.kill()
            server.start()
        # What a process makes once is made.
        sample(load, time.monotonic() + SECONDS / (KILLS + 1) / 3)
        memory = sample(load, time.monotonic() + SECONDS / (KILLS + 1) * 2 / 3)
        open_at_most = sockets(server.pid)
        load.stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not load.failures, load.failures
        api = Http(server.port)
        until(lambda: streams(api) == 0)
        until(lambda: sockets(server.pid) <= idle + 1)
        doubts, stored = settle(api, load.journal)
        records = check(api, load.journal)
        api.close()
        assert server.stop() == 0
    finally:
        load.stop.set()
        server.ensure_dead()
    report(load, records, doubts, stored, memory)
    assert open_at_most < 100
    # Every record that is kept costs some memory; the index of them is no leak.
    span = memory[-1][0] - memory[0][0]
    index = records / SECONDS * 200
    assert slope(memory) < (48 << 20) / span + index, "memory grows"


def report(
    load: Load, records: int, doubts: int, stored: int, memory: list[tuple[float, int]]
) -> None:
    """The figures of a run, and that each part of it took place."""
    times = sorted(load.writes)
    p50, p99 = (times[int(len(times) * q)] * 1000 for q in (0.5, 0.99))
    print(
        f"{len(times)} writes, p50 {p50:.1f} ms, p99 {p99:.1f} ms; {records} records, "
        f"{doubts} in doubt, {stored} of them stored; {load.seen} seen by watchers, "
        f"{len(load.done)} jobs done, {load.churned} topics churned, {load.killed} clients killed; "
        f"memory {memory[0][1] >> 20} to {memory[-1][1] >> 20} MiB, "
        f"{slope(memory) / 1024:.0f} KiB/s"
    )
    assert min(len(times), load.seen, len(load.done), load.churned, load.killed) > 0
