"""Event streams under load: clients that are killed and come back, many watchers, stalled ones."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.gate import EXPLORES, figure, run_seed, sized
from support.h2_client import Http2Connection, Http2Port
from support.http_client import Http
from support.server import Server
from support.sse import Events
from support.waiting import until

from .pending import DEADLINE
from .test_watch import streams

# Limits on the memory of the server, which is disturbed by what runs beside it.
pytestmark = [pytest.mark.serial] if EXPLORES else []

RESUMPTIONS = sized(50, 200, 200)
CAP = 60
WATCHERS = sized(100, 1000, 1000)
# Of one connection of HTTP/2.
STREAMS = 100
EACH = 20
STALLED = sized(3, 10, 10)
READERS = sized(1, 3, 3)
BIG = "x" * 10_000


@contextmanager
def writing(port: int, topics: list[str], size: int = 10) -> Iterator[None]:
    """A thread writes to all of the topics, without a pause."""
    stop = threading.Event()
    failed: list[object] = []

    def write() -> None:
        api = Http(int(port), DEADLINE)
        n = 0
        try:
            while not stop.is_set():
                for topic in topics:
                    batch = [{"data": n + i} for i in range(size)]
                    reply = api("POST", f"/v0/topics/{topic}", {"records": batch})
                    if reply.status != 200:
                        failed.append(reply)
                n += size
                # Lets the other threads of this process run.
                time.sleep(0.001)
        except OSError as failure:
            failed.append(failure)
        finally:
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
            # Whoever writes here counts.
            assert record["data"] in (record["$seq"] - 1, BIG), f"I2: {record}"
    elif event.kind == "tombstone":
        seen[data["topic"]].gap(data["gap_from"], data["gap_to"])
    else:
        assert event.kind == "caught-up", event


def test_a_client_that_is_killed_and_comes_back_sees_all_once(
    server: Server, api: Http, topic: str
) -> None:
    topics = [f"{topic}-{n}" for n in range(3)]
    for name in topics:
        assert api("PUT", f"/v0/topics/{name}", {"cap_records": CAP}).status == 201
    seen = {name: Seen() for name in topics}
    rng = random.Random(run_seed())
    path = "/v0/watch?from_seq=0&limit=40&topic=" + "&topic=".join(topics)

    def head(name: str) -> int:
        return int(api("GET", f"/v0/topics/{name}").json["head_seq"])

    # Streams of the tests before may still be closing.
    until(lambda: streams(api) == 0, DEADLINE)
    last_id, memory, opened = "", server.memory()[1], 0
    with writing(server.port, topics):
        while opened < RESUMPTIONS or sum(s.records for s in seen.values()) <= RESUMPTIONS:
            header = {"Last-Event-ID": last_id} if last_id else {}
            events = Events(server.port, path, header, DEADLINE)
            opened += 1
            assert events.status == 200, events.body
            for _ in range(rng.randrange(4)):
                event = next(events)
                take(event, seen)
                last_id = event.id or last_id
            events.kill()
            if opened == RESUMPTIONS // 2 or rng.random() < 0.15:
                # Stays away until the next record that it has not seen is evicted.
                until(lambda: head(topics[0]) >= seen[topics[0]].next + CAP, DEADLINE)
    heads = {name: head(name) for name in topics}
    with Events(server.port, path, {"Last-Event-ID": last_id}, DEADLINE) as events:
        while any(seen[name].next <= heads[name] for name in topics):
            take(next(events), seen)
    until(lambda: streams(api) == 0, DEADLINE)
    records, lost = (sum(getattr(s, n) for s in seen.values()) for n in ("records", "lost"))
    print(f"{records} records and {lost} lost ones, each once, in {opened + 1} streams")
    assert lost > 0, "a client that never loses anything tests no tombstone"
    # No stream leaves anything behind, and the topics are short.
    figure("memory", (server.memory()[1] - memory) / 2**20, below=16, unit="MiB")


def followed(line: bytes) -> list[int]:
    """The seqs of the records in a line of a stream."""
    if not line.startswith(b"data: ") or b'"records"' not in line:
        return []
    return [record["$seq"] for record in json.loads(line[6:])["records"]]


async def watcher(port: int, path: str) -> float:
    """When the last record came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    seqs: list[int] = []
    try:
        while len(seqs) < EACH:
            line = await reader.readline()
            assert line, "the stream ended"
            seqs += followed(line)
    finally:
        writer.close()
    assert seqs == list(range(1, EACH + 1)), "I2: each once and in order"
    return time.monotonic()


async def watchers(port: int, path: str) -> list[float]:
    """A connection for each."""
    async with asyncio.timeout(DEADLINE):
        return await asyncio.gather(*(watcher(port, path) for _ in range(WATCHERS)))


def watchers_together(port: int, path: str) -> list[float]:
    """A stream for each, of one connection; when the last record came to the last of them."""
    link = Http2Connection("127.0.0.1", port, timeout=DEADLINE)
    ends = time.monotonic() + DEADLINE
    open_ = {link.start("GET", path): bytearray() for _ in range(STREAMS)}
    done: list[bytearray] = []
    while open_:
        assert time.monotonic() < ends, f"{len(open_)} of {STREAMS} streams miss records"
        link.receive()
        for response, text in list(open_.items()):
            assert not response.ended, "the stream ended"
            text += response.take()
            if text.count(b'"$seq"') >= EACH and text.endswith(b"\n\n"):
                done.append(text)
                del open_[response]
    at = time.monotonic()
    link.close()
    for text in done:
        seqs = [seq for line in text.splitlines() for seq in followed(line)]
        assert seqs == list(range(1, EACH + 1)), "I2: each once and in order"
    return [at]


@pytest.fixture
def own(protocol: str, tmp_path: Path) -> Iterator[Server]:
    env = {
        "TOPICS_HOT_PROTOCOL": str(int(protocol != "plain")),
        "TOPICS_STALL_TIMEOUT_MS": "3600000",
    }
    with Server(tmp_path / "data", env=env) as live:
        if protocol == "h2":
            live.port = Http2Port(live.port)
        yield live


def test_many_watchers(own: Server) -> None:
    api = Http(own.port, DEADLINE)
    assert api("PUT", "/v0/topics/many").status == 201
    before = own.memory()[1]
    path = "/v0/watch?topic=many&from_seq=0&include_meta=false"
    with ThreadPoolExecutor(WATCHERS // STREAMS) as pool:
        if isinstance(own.port, Http2Port):
            links = range(WATCHERS // STREAMS)
            waiting = [pool.submit(watchers_together, own.port, path) for _ in links]
        else:
            waiting = [pool.submit(asyncio.run, watchers(own.port, path))]
        try:
            until(lambda: streams(api) == WATCHERS, DEADLINE)
            each = (own.memory()[1] - before) / WATCHERS / 1024
            for n in range(EACH):
                assert api("POST", "/v0/topics/many", {"records": [{"data": n}]}).status == 200
            times = [at for some in waiting for at in some.result()]
        except BaseException:
            # Ends the threads, which the pool waits for.
            own.ensure_dead()
            raise
    until(lambda: streams(api) == 0, DEADLINE)
    print(f"{WATCHERS} watchers; all had the last record within {max(times) - min(times):.3f} s")
    figure("memory of a watcher", each, below=200, unit="KiB")
    grown = (own.memory()[1] - before) / WATCHERS / 1024
    figure("memory of a watcher that has gone", grown, below=200, unit="KiB")
    api.close()
    assert own.stop() == 0


def passed(own: Server, api: Http, records: int) -> list[tuple[int, str]]:
    """Has so many records go past several readers; what they see, from the head on."""
    head = api("GET", "/v0/topics/big").json["head_seq"]
    body = {"records": [{"data": BIG} for _ in range(20)]}
    path = f"/v0/watch?topic=big&from_seq={head}"
    with ExitStack() as opened:
        readers = [
            opened.enter_context(Events(own.port, path, timeout=DEADLINE)) for _ in range(READERS)
        ]
        seen: list[list[tuple[int, str]]] = [[] for _ in readers]
        for done in range(20, records + 1, 20):
            assert api("POST", "/v0/topics/big", body).status == 200
            for reader, got in zip(readers, seen, strict=True):
                while len(got) < done:
                    event = next(reader)
                    assert event.kind in ("record", "caught-up"), event
                    got += [(r["$seq"] - head, r["data"]) for r in event.data.get("records", ())]
    assert all(got == seen[0] for got in seen)
    return seen[0]


def test_stalled_watchers_change_nothing_for_others(own: Server) -> None:
    """30 MB go past ten clients that take nothing, and three that take all of it. Then the ten go
    on, and know of each record what became of it.
    """
    api = Http(own.port, DEADLINE)
    assert api("PUT", "/v0/topics/big", {"cap_records": 2000}).status == 201
    started = time.monotonic()
    alone = passed(own, api, 1500)
    between = time.monotonic()
    before = own.memory()[1]
    path = "/v0/watch?topic=big&from_seq=0"
    stalled = [Events(own.port, path, timeout=DEADLINE) for _ in range(STALLED)]
    until(lambda: streams(api) == STALLED, DEADLINE)
    begun = time.monotonic()
    beside = passed(own, api, 1500)
    ended = time.monotonic()
    grown = (own.memory()[1] - before) / 2**20
    print(f"15 MB: {between - started:.2f} s alone, {ended - begun:.2f} s beside {STALLED}")
    # What the clients do not take is the kernel's, and what their connections may hold.
    figure(f"memory for {STALLED} stalled watchers", grown, below=64, unit="MiB")
    assert [seq for seq, _ in alone] == list(range(1, 1501))
    assert beside == alone, "others see something else"
    # Who read has gone; the ten are still there.
    until(lambda: streams(api) == STALLED, DEADLINE)
    for events in stalled:
        seen = {"big": Seen()}
        while seen["big"].next <= 3000:
            take(next(events), seen)
        assert seen["big"].lost > 0, "it was buffered for"
        events.close()
    until(lambda: streams(api) == 0, DEADLINE)
    api.close()
    assert own.stop() == 0
