"""`kill -9` of the real server under load, with a journal of acks that the client keeps.

Acked ⊆ readable ⊆ attempted, batches whole, seq → value never changes (I1, I2, I4, I5); what was in
doubt is settled by its idempotency key, once.
"""

from __future__ import annotations

import http.client
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.gate import run_seed, sized
from support.http_client import Http
from support.server import Server
from support.waiting import DEADLINE, until
from topics_engine import _core
from topics_engine.errors import InvalidRequest

KILLS = int(os.environ.get("TOPICS_KILLS") or sized(2, 30, 5_000))
WRITERS = 4
# A killed process loses nothing of either class.
TOPICS = {"kill.fsync": "fsync", "kill.disk": "disk"}

# Checkpoints, seals and new log files happen all the time, so that kills meet them too.
BUSY = {
    "TOPICS_CHECKPOINT_INTERVAL_MS": "30",
    "TOPICS_CHECKPOINT_BYTES": "65536",
    "TOPICS_SEGMENT_MAX_EVENTS": "1000",
    "TOPICS_WAL_FILE_MIN": "65536",
    "TOPICS_WAL_FILE_MAX": "262144",
}


@dataclass
class Attempt:
    """One write: its payloads are unlike any other's."""

    topic: str
    key: str
    values: list[str]

    def body(self) -> dict[str, Any]:
        return {"records": [{"data": v} for v in self.values], "idempotency_key": self.key}


@dataclass
class Journal:
    """What was tried, what was promised, and what was ever read."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    seen: dict[str, dict[int, str]] = field(default_factory=dict)
    # Records up to here were found right, and then deleted.
    trimmed: dict[str, int] = field(default_factory=dict)

    def expected(self, topic: str) -> dict[int, str]:
        """The records that were promised and not deleted since."""
        records: dict[int, str] = {}
        with self.lock:
            for key, (first, last) in self.acked.items():
                attempt = self.attempts[key]
                if attempt.topic == topic:
                    assert last - first + 1 == len(attempt.values), "I5: a batch is whole"
                    records |= zip(range(first, last + 1), attempt.values, strict=True)
        return records


def write(api: Http, journal: Journal, attempt: Attempt) -> None:
    """Sends an attempt; journals what is known of it afterwards."""
    with journal.lock:
        journal.attempts[attempt.key] = attempt
        journal.doubtful.add(attempt.key)
    send(api, journal, attempt)


def send(api: Http, journal: Journal, attempt: Attempt) -> bool:
    """Sends an attempt, not for the first time perhaps; whether it had been stored before."""
    reply = api("POST", f"/v0/topics/{attempt.topic}", attempt.body())
    if reply.status in (429, 503):
        return False
    assert reply.status in (200, 201), reply
    ack = (reply.json["first_seq"], reply.json["last_seq"])
    with journal.lock:
        if attempt.key in journal.attempts:
            held = journal.acked.setdefault(attempt.key, ack)
            assert held == ack, f"{attempt.key} was acked as {held}, then as {ack}"
        journal.doubtful.discard(attempt.key)
    return bool(reply.json["deduped"])


def load(port: int, journal: Journal, rng: random.Random, failures: list[str]) -> None:
    """Writes until the server is gone."""
    api = Http(port, timeout=DEADLINE)
    try:
        while True:
            values = [f"{rng.getrandbits(64):016x}" for _ in range(rng.choice((1, 1, 2, 7, 40)))]
            attempt = Attempt(rng.choice(list(TOPICS)), f"{rng.getrandbits(64):016x}", values)
            write(api, journal, attempt)
    except (OSError, http.client.HTTPException):
        return
    except AssertionError as error:
        failures.append(str(error))
    finally:
        api.close()


def read_all(api: Http, topic: str, after: int) -> Iterator[tuple[int, str]]:
    cursor = after
    while True:
        reply = api("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
        assert reply.status == 200, reply
        assert not reply.json.get("tombstone"), f"I1: {topic} reports {reply.json}"
        for record in reply.json["records"]:
            yield record["$seq"], record["data"]
        cursor = reply.json["next_from_seq"]
        if reply.json["caught_up"]:
            return


def settle(api: Http, journal: Journal) -> tuple[int, int]:
    """Sends again what is in doubt; how many there were, and how many had been stored."""
    with journal.lock:
        doubtful = [journal.attempts[key] for key in sorted(journal.doubtful)]
    return len(doubtful), sum(send(api, journal, attempt) for attempt in doubtful)


def audit(api: Http, journal: Journal, topic: str) -> dict[int, str]:
    """Reads a topic: what was acked before is there, and what was read before is as it was."""
    expected = journal.expected(topic)
    rows = dict(read_all(api, topic, journal.trimmed.get(topic, 0)))
    assert list(rows) == sorted(rows), "I4: seqs rise"
    for seq, value in journal.seen.get(topic, {}).items():
        assert rows.get(seq) == value, f"I2: {topic} {seq} was {value}, is {rows.get(seq)}"
    missing = {seq for seq, value in expected.items() if rows.get(seq) != value}
    assert not missing, f"I1: acked and not there in {topic}: {sorted(missing)[:10]}"
    journal.seen[topic] = rows
    return rows


def check(api: Http, journal: Journal) -> int:
    """The oracle, over every record of both topics; how many there are."""
    assert not journal.doubtful, "what is in doubt is settled first"
    records = 0
    for topic in TOPICS:
        rows = audit(api, journal, topic)
        records += len(rows)
        # Everything is settled, so what is there beyond the acks was stored twice or invented.
        extra = rows.keys() - journal.expected(topic).keys()
        assert not extra, f"I3: never acked and there in {topic}: {sorted(extra)[:10]}"
    return records


def supported(backend: str, tmp_path: Path) -> bool:
    """Whether this kernel has the backend; any other failure to open is a failure here too."""
    try:
        _core.Engine.open(str(tmp_path / "probe"), {"io_backend": backend}).close()
    except InvalidRequest as refused:
        if "io_backend" not in str(refused):
            raise
        return False
    return True


def newest_snapshot(data_dir: Path) -> int:
    """The number of the newest snapshot, 0 before the first."""
    numbers = [int(p.name.split(".")[1]) for p in data_dir.glob("meta/snapshot.*.bin")]
    return max(numbers, default=0)


def until_checkpoint(data_dir: Path) -> None:
    """Returns when a checkpoint has taken effect."""
    before = newest_snapshot(data_dir)
    until(lambda: newest_snapshot(data_dir) != before)


@pytest.mark.parametrize("backend", ["posix", "uring"])
def test_kill_nine_under_load(tmp_path: Path, backend: str) -> None:
    if not supported(backend, tmp_path):
        print(f"backend {backend}: skipped, this kernel does not have it")
        pytest.skip(f"no {backend}")
    rng = random.Random(run_seed())
    server = Server(tmp_path / "data", env={"TOPICS_IO_BACKEND": backend, **BUSY})
    journal, failures = Journal(), []
    doubts = stored = records = checkpoints = 0
    try:
        server.start()
        api = Http(server.port)
        for topic, durability in TOPICS.items():
            config = {"durability": durability, "idempotency_window_ms": 86_400_000}
            assert api("PUT", f"/v0/topics/{topic}", config).status == 201
        api.close()
        for kill in range(KILLS):
            writers = [
                threading.Thread(
                    target=load,
                    args=(server.port, journal, random.Random(rng.getrandbits(64)), failures),
                    daemon=True,
                )
                for _ in range(WRITERS)
            ]
            known = len(journal.acked)
            for writer in writers:
                writer.start()
            # A number of writes, not a time, so that a slow machine does the same work. The writers
            # go on, so each has a request in flight when the server is gone.
            due = known + rng.randrange(1, 100)
            until(lambda due=due: failures or len(journal.acked) >= due)
            if kill % 5 == 1:
                # Some kills come right behind a checkpoint.
                until_checkpoint(server.data_dir)
                checkpoints += 1
            server.kill()
            for writer in writers:
                writer.join(2 * DEADLINE)
                assert not writer.is_alive()
            assert not failures, failures[0]
            server.start()
            api = Http(server.port)
            doubt, found = settle(api, journal)
            doubts, stored = doubts + doubt, stored + found
            records = check(api, journal)
            api.close()
        assert server.stop() == 0
    finally:
        server.ensure_dead()
    rounds = newest_snapshot(server.data_dir)
    print(
        f"{KILLS} kills: {records} records, {doubts} writes in doubt, {stored} of them had been "
        f"stored, {rounds} checkpoints"
    )
    assert rounds >= checkpoints > 0, "kills that meet no checkpoint test too little"
    assert records > KILLS
    assert doubts >= KILLS * WRITERS, "kills that meet no request in flight test nothing"
