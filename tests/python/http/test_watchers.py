"""Event streams under load: clients that are killed and come back, many watchers, stalled ones."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benches.demo.server import Server

from .conftest import Http
from .sse import Events
from .test_routes import until
from .test_watch import streams

RESUMPTIONS = 200
WATCHERS = 1000


@contextmanager
def writing(port: int, topics: list[str], size: int = 10) -> Iterator[None]:
    """Somebody writes to all of the topics, without a pause."""
    stop = threading.Event()
    failed: list[object] = []

    def write() -> None:
        api = Http(int(port))
        n = 0
        while not stop.is_set():
            for topic in topics:
                batch = [{"data": n + i} for i in range(size)]
                reply = api("POST", f"/v0/topics/{topic}", {"records": batch})
                if reply.status != 200:
                    failed.append(reply)
            n += size
            # The others are to have a turn of this process too.
            time.sleep(0.001)
        api.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed, failed[0]


class Seen:
    """What a reader knows of a topic: each seq once, as a record or as lost."""

    def __init__(self) -> None:
        self.next = 1
        self.records = 0
        self.lost = 0

    def record(self, seq: int) -> None:
        assert seq == self.next, f"I2: seq {seq} where {self.next} was due"
        self.next += 1
        self.records += 1

    def gap(self, first: int, last: int) -> None:
        assert (first, last >= first) == (self.next, True), f"I6: gap {first} to {last}"
        self.next = last + 1
        self.lost += last - first + 1


def take(event: Any, seen: dict[str, Seen]) -> None:
    data = event.data
    if event.kind == "record":
        for record in data["records"]:
            seen[data["topic"]].record(record["$seq"])
    elif event.kind == "tombstone":
        seen[data["topic"]].gap(data["gap_from"], data["gap_to"])
    else:
        assert event.kind == "caught-up", event


def test_a_client_that_is_killed_and_comes_back_sees_all_once(
    server: Server, api: Http, topic: str
) -> None:
    topics = [f"{topic}-{n}" for n in range(3)]
    # Small enough that a client which is away for a while has lost something.
    for name in topics:
        assert api("PUT", f"/v0/topics/{name}", {"cap_records": 60}).status == 201
    seen = {name: Seen() for name in topics}
    rng = random.Random(topic)
    path = "/v0/watch?from_seq=0&limit=40&topic=" + "&topic=".join(topics)
    last_id, before = "", streams(api)
    with writing(server.port, topics):
        for _ in range(RESUMPTIONS):
            events = Events(server.port, path, {"Last-Event-ID": last_id} if last_id else {})
            assert events.status == 200, events.body
            for _ in range(rng.randrange(4)):
                event = next(events)
                take(event, seen)
                last_id = event.id or last_id
            events.kill()
            if rng.random() < 0.15:
                time.sleep(0.05)
    heads = {name: api("GET", f"/v0/topics/{name}").json["head_seq"] for name in topics}
    with Events(server.port, path, {"Last-Event-ID": last_id}) as events:
        while any(seen[name].next <= heads[name] for name in topics):
            take(next(events), seen)
    until(lambda: streams(api) == before)
    records, lost = (sum(getattr(s, n) for s in seen.values()) for n in ("records", "lost"))
    print(f"{records} records and {lost} lost ones, each once, in {RESUMPTIONS + 1} streams")
    assert records > RESUMPTIONS
    assert lost > 0, "a client that never loses anything tests no tombstone"


async def watcher(port: int, path: str, count: int) -> list[float]:
    """When each of so many records came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    times: list[float] = []
    seqs: list[int] = []
    try:
        while len(seqs) < count:
            line = await reader.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: ") and b'"records"' in line:
                found = [r["$seq"] for r in json.loads(line[6:])["records"]]
                seqs += found
                times += [time.monotonic()] * len(found)
    finally:
        writer.close()
    assert seqs == list(range(1, count + 1)), "I2: each once and in order"
    return times


@pytest.fixture(params=["hot", "plain"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    env = {"TOPICS_HOT_PROTOCOL": str(int(request.param == "hot"))}
    live = Server(tmp_path / "data", env=env)
    live.start()
    yield live
    live.ensure_dead()


def test_a_thousand_watchers(own: Server) -> None:
    api = Http(own.port)
    assert api("PUT", "/v0/topics/many").status == 201
    before = own.memory()[1]

    async def go() -> list[list[float]]:
        path = "/v0/watch?topic=many&from_seq=0&include_meta=false"
        waiting = [asyncio.ensure_future(watcher(own.port, path, 20)) for _ in range(WATCHERS)]
        while streams(api) < WATCHERS:
            await asyncio.sleep(0.05)
        print(f"{(own.memory()[1] - before) / WATCHERS / 1024:.1f} KiB a watcher")
        for n in range(20):
            assert api("POST", "/v0/topics/many", {"records": [{"data": n}]}).status == 200
            await asyncio.sleep(0.02)
        return await asyncio.wait_for(asyncio.gather(*waiting), 60)

    times = asyncio.run(go())
    spread = max(t[-1] for t in times) - min(t[-1] for t in times)
    print(f"{WATCHERS} watchers: the last record reached all within {spread * 1000:.0f} ms")
    until(lambda: streams(api) == 0)
    grown = own.memory()[1] - before
    assert grown < WATCHERS * 200 * 1024
    api.close()
    assert own.stop() == 0


def test_stalled_watchers_change_nothing_for_others(own: Server) -> None:
    """30 MB go past ten clients that take nothing, and an eleventh that takes all of it."""
    api = Http(own.port)
    assert api("PUT", "/v0/topics/big", {"cap_records": 2000}).status == 201
    path = "/v0/watch?topic=big&from_seq=0"

    def stall() -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", own.port))
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return sock

    def pass_through(records: int) -> float:
        """Seconds until so many more have been written and seen."""
        started = time.monotonic()
        head = api("GET", "/v0/topics/big").json["head_seq"]
        body = {"records": [{"data": "x" * 10_000} for _ in range(20)]}
        with Events(own.port, f"/v0/watch?topic=big&from_seq={head}") as events:
            for _ in range(records // 20):
                assert api("POST", "/v0/topics/big", body).status == 200
                got = 0
                while got < 20:
                    event = next(events)
                    assert event.kind != "tombstone"
                    got += len(event.data["records"]) if event.kind == "record" else 0
        return time.monotonic() - started

    alone = pass_through(1500)
    before = own.memory()[1]
    stalled = [stall() for _ in range(10)]
    until(lambda: streams(api) == 10)
    beside = pass_through(1500)
    grown = own.memory()[1] - before
    print(f"15 MB: {alone:.2f} s alone, {beside:.2f} s beside ten; {grown >> 20} MiB more held")
    # The eleventh has gone; the ten are still there.
    until(lambda: streams(api) == 10)
    # What ten clients do not take is the kernel's, and what their connections may hold.
    assert grown < 64 << 20
    assert beside < alone * 3 + 2
    for sock in stalled:
        sock.close()
    until(lambda: streams(api) == 0)
    api.close()
    assert own.stop() == 0
