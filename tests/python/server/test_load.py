"""Mixed traffic for a while, with clients that are killed and two kills of the server: what was
acked is there, jobs that were acked do not come back, watchers see each record once, and nothing
grows: memory, descriptors, the disk, the time that a write takes. (How fast something grows is a
figure.)
"""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.gate import figure, run_seed, sized
from support.h2_client import Http2Port
from support.http_client import Http, Reply
from support.server import Server, bytes_on_disk
from support.sse import Events
from support.waiting import DEADLINE, until

from ..asgi.test_watch import streams
from ..asgi.test_watchers import Seen
from .test_abuse import sockets
from .test_kill import BUSY, TOPICS, Attempt, Journal, audit, check, read_all, settle, write
from .test_serve import descriptors

pytestmark = [pytest.mark.slow, pytest.mark.serial]

SECONDS = float(os.environ.get("TOPICS_LOAD_SECONDS") or sized(30, 30, 300))
# The server is killed at these parts of the time, early: what follows is one process's, long enough
# to see what it gathers.
KILLS = (1 / 6, 1 / 3)
WARM = 2 / 3
WRITERS = 3
# Nothing is kept for ever, so that what grows is a leak: records of the journal's topics are
# deleted when they are found right and so many newer ones are there, others when a cap says so.
KEPT = 3_000
STEADY = "steady"
CAP = 20_000
SHARE = 0.9
# What is kept in memory up to a bound is soon at it.
SMALL = {"TOPICS_TAIL_CACHE_BYTES": str(1 << 20)}
# Longer than whatever is in doubt stays so.
WINDOW_MS = 60_000
GONE = (OSError, http.client.HTTPException, EOFError)


@dataclass
class Load:
    """What all clients share."""

    server: Server
    stop: threading.Event = field(default_factory=threading.Event)
    journal: Journal = field(default_factory=Journal)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # When each write was answered, and after how long.
    writes: list[tuple[float, float]] = field(default_factory=list)
    # What the steady topic's acks said.
    steady: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    # Writes in doubt that were sent again, those of them that had been stored, and records of the
    # journal that were found right.
    doubts: int = 0
    stored: int = 0
    audited: int = 0
    claimed: int = 0
    seen: int = 0
    killed: int = 0
    churned: int = 0
    failures: list[str] = field(default_factory=list)

    def client(self, rng: random.Random, kind: type[Http] = Http) -> Http:
        """By either protocol."""
        port = self.server.port
        return kind(Http2Port(port) if rng.random() < 0.5 else port, timeout=20)

    def took_place(self) -> bool:
        """Whether something of each kind was done."""
        counts = self.audited, self.doubts, self.seen, self.churned, self.killed
        return min(*counts, len(self.writes), len(self.done)) > 0

    def settle(self, api: Http) -> None:
        doubts, stored = settle(api, self.journal)
        self.doubts += doubts
        self.stored += stored

    def run(self, work: Callable[[Load, random.Random], None], seed: int) -> None:
        """Works until the end; a server that is gone comes back."""
        rng = random.Random(seed)
        while not self.stop.is_set():
            try:
                work(self, rng)
            except GONE:
                time.sleep(0.05)  # sleep: between two attempts
            except Exception as failure:
                self.failures.append(f"{work.__name__}: {failure!r}")
                return


class Patient(Http):
    """A client to which an answer that says "later" is none."""

    def __call__(self, *request: Any, **how: Any) -> Reply:
        reply = super().__call__(*request, **how)
        if busy(reply.status):
            raise http.client.HTTPException(reply)
        return reply


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
            attempt = Attempt(rng.choice(list(TOPICS)), f"{rng.getrandbits(64):016x}", values)
            started = time.monotonic()
            if rng.random() < SHARE:
                write_steady(api, load, attempt)
            elif rng.random() < 0.05:
                with load.journal.lock:
                    load.journal.attempts[attempt.key] = attempt
                    load.journal.doubtful.add(attempt.key)
                api.abandon("POST", f"/v0/topics/{attempt.topic}", attempt.body())
                load.killed += 1
                return
            else:
                write(api, load.journal, attempt)
            answered = time.monotonic()
            load.writes.append((answered, answered - started))
    finally:
        api.close()


def write_steady(api: Http, load: Load, attempt: Attempt) -> None:
    """A write whose records go again when there are enough newer ones."""
    reply = api("POST", f"/v0/topics/{STEADY}", attempt.body())
    if not busy(reply.status):
        assert reply.status == 200, reply
        with load.lock:
            load.steady.update(enumerate(attempt.values, reply.json["first_seq"]))


def watch(load: Load, rng: random.Random) -> None:
    """Follows all topics in order, through kills of itself and of the server."""
    last_id, seen = "", {name: Seen() for name in (*TOPICS, STEADY)}
    path = "/v0/watch?lenient&from_seq=0&heartbeat_ms=1000&topic=" + "&topic=".join(seen)
    while not load.stop.is_set():
        port, events = load.server.port, None
        try:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            events = Events(Http2Port(port) if rng.random() < 0.5 else port, path, headers, 20)
            if busy(events.status):
                continue
            assert events.status == 200, events.body
            left = rng.randrange(1, 300)
            while left and not load.stop.is_set():
                event = events.read()
                if event is None:
                    # A heartbeat. When the writers have stopped, nothing else comes.
                    continue
                left -= 1
                if event.kind == "record":
                    for record in event.data["records"]:
                        seen[event.data["topic"]].record(record["$seq"])
                        load.seen += 1
                elif event.kind == "tombstone":
                    topic, gap_to = event.data["topic"], event.data["gap_to"]
                    trimmed = load.journal.trimmed.get(topic, 0)
                    assert topic == STEADY or gap_to <= trimmed, f"I1: {event}"
                    seen[topic].gap(event.data["gap_from"], gap_to)
                else:
                    assert event.kind in ("caught-up", "error"), event
                last_id = event.id or last_id
            events.kill()
            load.killed += 1
        except (*GONE, StopIteration):
            time.sleep(0.05)  # sleep: between two attempts
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
            body = {"node": f"w{rng.randrange(4)}", "max": 5, "wait_ms": 20, "lease_ms": 10_000}
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
                    load.done.update(set(seqs) - set(reply.json["skipped"]))
    finally:
        api.close()


def auditor(load: Load, rng: random.Random) -> None:
    """Sends again what is in doubt, and reads the journal's topics while they are written."""
    api = load.client(rng, Patient)
    try:
        for _ in range(rng.randrange(1, 20)):
            load.settle(api)
            for topic in TOPICS:
                load.audited += trim(api, load.journal, topic)
            if load.stop.wait(0.5):
                return
    finally:
        api.close()


def trim(api: Http, journal: Journal, topic: str) -> int:
    """Checks a topic, and deletes what is right and lies before all that is in doubt; how much."""
    rows = audit(api, journal, topic)
    unexplained = rows.keys() - journal.expected(topic).keys()
    end = min(unexplained, default=max(rows, default=0) + 1) - KEPT
    with journal.lock:
        settled = {
            key: last
            for key, (_, last) in journal.acked.items()
            if last < end and journal.attempts[key].topic == topic
        }
        if not settled:
            return 0
        for key in settled:
            del journal.attempts[key], journal.acked[key]
        bound = journal.trimmed[topic] = max(settled.values())
    journal.seen[topic] = {seq: value for seq, value in rows.items() if seq > bound}
    reply = api("POST", f"/v0/topics/{topic}/delete", {"before_seq": bound + 1})
    assert reply.status == 200, reply
    return len(rows) - len(journal.seen[topic])


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


class Sample(NamedTuple):
    """What the server held at some time."""

    at: float
    memory: int
    descriptors: int
    sockets: int
    disk: int


def slope(points: list[tuple[float, float]]) -> float:
    """What is added in a second, by least squares."""
    n = len(points)
    mean_t = sum(t for t, _ in points) / n
    mean_v = sum(v for _, v in points) / n
    spread = sum((t - mean_t) ** 2 for t, _ in points) or 1.0
    return sum((t - mean_t) * (v - mean_v) for t, v in points) / spread


def sample(load: Load, until_time: float) -> list[Sample]:
    """Looks at the server until then."""
    taken, server = [], load.server
    while (now := time.monotonic()) < until_time and not load.failures:
        held = server.memory()[1], descriptors(server.pid), sockets(server.pid)
        taken.append(Sample(now, *held, bytes_on_disk(server.data_dir)))
        time.sleep(max(0.2, SECONDS / 600))  # sleep: between two samples
    return taken


def test_mixed_traffic(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", env=BUSY | SMALL)
    server.start()
    load = Load(server)
    api = Http(server.port)
    for topic, durability in TOPICS.items():
        config = {"durability": durability, "idempotency_window_ms": WINDOW_MS}
        assert api("PUT", f"/v0/topics/{topic}", config).status == 201
    config = {"durability": "fsync", "cap_records": CAP, "idempotency_window_ms": 2000}
    assert api("PUT", f"/v0/topics/{STEADY}", config).status == 201
    assert api("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync"}).status == 201
    api.close()
    idle = sockets(server.pid)
    work = [writer] * WRITERS + [watch] * 2 + [worker] * 2 + [churn, auditor]
    # It decides what the clients send, not when the server is killed: it repeats no run.
    seed = run_seed()
    threads = [
        threading.Thread(target=load.run, args=(job, seed + n), daemon=True)
        for n, job in enumerate(work)
    ]
    started = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        for part in KILLS:
            sample(load, started + SECONDS * part)
            server.kill()
            server.start()
        # What a process makes once is made.
        sample(load, started + SECONDS * WARM)
        samples = sample(load, started + SECONDS)
        # On a slow machine it takes longer until each part has taken place.
        until(lambda: load.failures or load.took_place(), 10 * DEADLINE)
        load.stop.set()
        for thread in threads:
            thread.join(2 * DEADLINE)
            assert not thread.is_alive()
        assert not load.failures, load.failures
        api = Http(server.port)
        until(lambda: streams(api) == 0)
        until(lambda: sockets(server.pid) <= idle + 1)
        load.settle(api)
        load.audited += check(api, load.journal)
        check_steady(api, load.steady)
        nothing_stays_behind(api, server.data_dir)
        api.close()
        assert server.stop() == 0
    finally:
        load.stop.set()
        server.ensure_dead()
    report(load)
    nothing_grows(load, samples)


def check_steady(api: Http, acked: dict[int, str]) -> None:
    """What the cap has left is what was acked."""
    earliest = api("GET", f"/v0/topics/{STEADY}").json["earliest_seq"]
    rows = dict(read_all(api, STEADY, earliest - 1))
    lost = [seq for seq, value in acked.items() if seq >= earliest and rows.get(seq) != value]
    assert not lost, f"I1: acked and not there in {STEADY}: {lost[:10]}"
    assert len(rows) <= CAP + 1000, "the cap is kept"


def nothing_stays_behind(api: Http, data_dir: Path) -> None:
    """Topics that are gone leave no files, once two snapshots know nothing of them."""
    for _ in range(3):
        assert api("POST", "/v0/admin/checkpoint").status == 200
    listed = [topic["topic"] for topic in api("GET", "/v0/topics").json["topics"]]
    live = {api("GET", f"/v0/topics/{name}").json["topic_id"] for name in listed}
    folders = {int(folder.name) for folder in (data_dir / "topics").iterdir()}
    left = folders - live
    assert not left, f"of {len(folders)} folders, these are no topic's: {sorted(left)[:10]}"


def report(load: Load) -> None:
    """The figures of a run, and that each part of it took place."""
    p50, p99 = (quantile([took for _, took in load.writes], q) for q in (0.5, 0.99))
    print(
        f"{len(load.writes)} writes, p50 {p50:.1f} ms, p99 {p99:.1f} ms; {load.audited} "
        f"records checked against the journal, {load.doubts} writes sent again, {load.stored} of "
        f"them stored before; {load.seen} records seen by watchers, "
        f"{len(load.done)} jobs done, {load.churned} topics churned, {load.killed} clients killed"
    )
    assert load.took_place()


def quantile(seconds: list[float], q: float) -> float:
    """In milliseconds."""
    return sorted(seconds)[int(len(seconds) * q)] * 1000


def nothing_grows(load: Load, samples: list[Sample]) -> None:
    """What the last process held, once it was warm: a line through all that was seen of it."""
    first, last = samples[0], samples[-1]
    span = last.at - first.at
    rates = {
        name: slope([(s.at, getattr(s, name)) for s in samples])
        for name in ("memory", "descriptors", "sockets", "disk")
    }
    middle = first.at + span / 2
    halves = [
        [took for at, took in load.writes if begin <= at < end]
        for begin, end in ((first.at, middle), (middle, last.at))
    ]
    rate = sum(map(len, halves)) / span
    p99 = [quantile(half or [0.0], 0.99) for half in halves]
    print(
        f"the last {span:.0f} s of a process: {rate:.0f} writes/s; "
        f"memory {first.memory / 2**20:.1f} to {last.memory / 2**20:.1f} MiB, "
        f"{rates['memory'] / 1024:+.1f} KiB/s; {first.descriptors} to {last.descriptors} "
        f"descriptors, {rates['descriptors'] * 60:+.1f} a minute; {first.sockets} to "
        f"{last.sockets} sockets, {rates['sockets'] * 60:+.2f} a minute; "
        f"disk {first.disk / 2**20:.1f} to {last.disk / 2**20:.1f} MiB, "
        f"{rates['disk'] / 1024:+.1f} KiB/s; p99 {p99[0]:.1f} ms, then {p99[1]:.1f} ms"
    )
    # As much as the samples swing by themselves, whatever the time between first and last. In a
    # short run a process is still making what it makes once.
    memory = 2 << 20 if span > 60 else 4 << 20
    swing = {"memory": memory, "descriptors": 40, "sockets": 10, "disk": 4 << 20}
    for name, most in swing.items():
        figure(f"growth of {name} over {span:.0f} s", rates[name] * span, below=most)
    figure("most sockets", max(s.sockets for s in samples), below=100)
    figure("most descriptors", max(s.descriptors for s in samples), below=300)
    figure("disk", last.disk / 2**20, below=64, unit="MiB")
