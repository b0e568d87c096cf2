"""The hot protocol may only be faster than the application: never different."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from support.server import LIMITS, Server
from support.waiting import DEADLINE
from topics_engine import _core
from topics_engine.asgi import Settings, build
from topics_engine.asgi.messages import CLOSE, HttpError
from topics_engine.server.hot import HotProtocols
from topics_engine.server.limits import CLOSE_LINGER, MIN_BYTES_PER_SECOND, Limits

BODY_SECONDS = 2.0
# One tick of the gate is a quarter of what a body may take.
TICKS = 4


def request(path: str, body: Any, *headers: str, method: str = "POST") -> bytes:
    """A request as most clients send it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"{method} /v0/topics/{path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + raw


def one(data: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"records": [{"data": data}], **fields}


# What a server of its own is sent, one after the other; each changes what the next one finds.
EXCHANGES: dict[str, bytes] = {
    "created": request("t", one()),
    "appended": request("t", one({"a": [1, "é"]}, node="n")),
    "seqs": request("t?return_seqs=true", {"records": [{"data": n} for n in range(5)]}),
    "synced": request("t", one(sync=True)),
    "key": request("t", one(), "Idempotency-Key: k"),
    "key again": request("t", one(), "idempotency-key: k"),
    "another body for the key": request("t", one(2), "Idempotency-Key: k"),
    "empty key": request("t", one(), "Idempotency-Key: "),
    "key with a space behind it": request("t", one(), "Idempotency-Key: k "),
    "head differs": request("t", one(expect_head=99)),
    "read": request("t/diff", {"from_seq": 2}),
    "read of tail": request("t/diff", {"from_seq": "earliest", "limit": 2, "include_tags": True}),
    "wait that ends": request("t/diff", {"from_seq": 1000, "wait_ms": 20}),
    "unknown topic": request("nobody/diff", {}),
    "hidden name": request(".t", one()),
    "long name": request("x" * 256, one()),
    "not JSON": request("t", b"{"),
    "not an object": request("t", []),
    "bad record": request("t", {"records": [{"data": 1}, {"data": 1, "tag": 7}]}),
    "bad query": request("t?return_seqs=perhaps", one()),
    "odd query": request("t?%zz&a=b", one()),
    "record too large": request("t", one("x" * 10_001)),
    "body too large": request("t", one("x" * 200_001)),
    "no body": request("t", b""),
    "a verb that there is not": request("t/read", one()),
    "small for one that takes gzip": request("t", one(), "Accept-Encoding: gzip, deflate"),
    "large, and no gzip": request("t/diff", {}, "Accept-Encoding: identity, gzip;q=0"),
    "not hot: seek": request("t/seek", {"ts": 1}),
    "not hot: percent": request("%74", one()),
    "not hot: ranges": request("t/diff", {}, "Accept: application/*;q=0.5, text/html"),
    "not hot: html": request("t/diff", {}, "Accept: text/html"),
    "not hot: method": request("t", one(), method="PATCH"),
    "not hot: close": request("t", one(), "Connection: close"),
    "not hot: expect": request("t", one(), "Expect: 100-continue"),
    "not hot: encoding": request("t", one(), "Content-Encoding: gzip"),
    "not hot: many headers": request("t", one(), *[f"X-{n}: {n}" for n in range(200)]),
    "not hot: header of 5 kB": request("t", one(), "User-Agent: " + "x" * 5000),
    "not hot: folded": request("t", one(), "X-A: b\r\n c"),
    "two lengths": request("t", one(), "Content-Length: 27"),
    "two different lengths": request("t", one(), "Content-Length: 5"),
    "length and chunks": request("t", one(), "Transfer-Encoding: chunked"),
    "two hosts": request("t", one(), "Host: localhost"),
    "another host": request("t", one()).replace(b"Host: localhost", b"Host: example.org"),
    "loopback host with port": request("t", one()).replace(b"localhost", b"127.0.0.1:80"),
    "loopback host as IPv6": request("t", one()).replace(b"localhost", b"[::1]:80"),
    "host with an odd port": request("t", one()).replace(b"localhost", b"localhost:http"),
    "capital host": request("t", one()).replace(b"localhost", b"LocalHost"),
    "no host": request("t", one()).replace(b"Host: localhost\r\n", b""),
    "HTTP/1.0": request("t", one()).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "bare line feeds": request("t", one()).replace(b"\r\n", b"\n"),
    "NUL in a header": request("t", one(), "Idempotency-Key: a\0b"),
    "space before the colon": request("t", one(), "Idempotency-Key : k"),
    "queue": request(
        "q", {"records": [{"data": n} for n in range(9)], "config": {"type": "queue"}}
    ),
    "claim": request("q/claim", {"node": "a", "max": 4}),
    "claim of a log": request("t/claim", {"node": "a"}),
    "claim without a node": request("q/claim", {}),
    "ack": request("q/ack", {"node": "a", "seqs": [1]}),
    "ack again": request("q/ack", {"node": "a", "seqs": [1]}),
    "ack of another's": request("q/ack", {"node": "b", "seqs": [2]}),
    "ack with a lease that is not there": request(
        "q/ack", {"node": "a", "seqs": [2], "lease_ids": [1]}
    ),
    "ack of too many": request("q/ack", {"node": "a", "seqs": list(range(1001))}),
    "ack of nothing": request("nobody/ack", {"node": "a", "seqs": [1]}),
    "extend": request("q/extend", {"node": "a", "seqs": [2, 3], "lease_ms": 60_000}),
    "nack": request("q/nack", {"node": "a", "seqs": [2], "delay_ms": 0}),
    "release": request("q/release", {"node": "a", "seqs": [3, 9]}),
    "release of a log": request("t/release", {"node": "a", "seqs": [2]}),
    "nack of a log": request("t/nack", {"node": "a", "seqs": [2]}),
    "claimed again": request("q/claim", {"node": "b", "max": 1}),
    "claimed, acked, claimed": request("q/claim", {"node": "c", "max": 9})
    + request("q/ack", {"node": "c", "seqs": [5, 6, 7]})
    + request("q/claim", {"node": "c", "wait_ms": 20}),
    "pipelined": request("p", one()) + request("p", one(2, sync=True)) + request("p/diff", {}),
    "pipelined, then not hot": request("p", one()) + request("p/seek", {"ts": 1}),
    "pipelined behind a wait": request("p/diff", {"from_seq": 99, "wait_ms": 50})
    + request("p", one()),
    "pipelined, the last one broken": request("p", one()) + b"POST /v0/topics/p HTTP/1.1\r\n\r\n",
}

KEYS = "rw-key:read+write,ro-key:read,own-key:read+write:own.|theirs,all-key"


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


# The same for servers with keys.
KEYED: dict[str, bytes] = {
    "no key": request("t", one()),
    "all": request("t", one(), bearer("all-key")),
    "read and write": request("t", one(), bearer("rw-key")),
    "read": request("t/diff", {}, bearer("ro-key")),
    "a write with a key for reads": request("t", one(), bearer("ro-key")),
    "no such key": request("t", one(), bearer("no-key")),
    "an empty key": request("t", one(), "Authorization: Bearer "),
    "another scheme": request("t", one(), "Authorization: Basic cnc6"),
    "small letters, and more room": request("t", one(), "authorization: bearer    rw-key"),
    "two keys": request("t", one(), bearer("rw-key"), bearer("rw-key")),
    "the key in the query": request("t?token=rw-key", one()),
    "a key in the query besides": request("t?token=ro-key", one(), bearer("rw-key")),
    "its prefix": request("own.t", one(), bearer("own-key")),
    "its other prefix": request("theirs", one(), bearer("own-key")),
    "not its prefix": request("t", one(), bearer("own-key")),
    "a config without admin": request("c", one(config={"type": "queue"}), bearer("rw-key")),
    "a config": request("q", one(config={"type": "queue"}), bearer("all-key")),
    "a claim": request("q/claim", {"node": "a"}, bearer("rw-key")),
    "a claim with a key for reads": request("q/claim", {"node": "a"}, bearer("ro-key")),
    "an ack": request("q/ack", {"node": "a", "seqs": [1]}, bearer("rw-key")),
    "another host": request("t", one(), bearer("rw-key")).replace(b"localhost", b"example.org"),
}

# What differs from one server, and one moment, to the other.
VARIES = (
    (rb"\r\ndate: [^\r]*", b""),
    (rb'"performance":\{[^}]*\}', b'"performance":{}'),
    (rb'"topic_id":\d+', b'"topic_id":0'),
    (rb'"\$ts":\d+', b'"$ts":0'),
    (rb'"lag_ms":\d+', b'"lag_ms":0'),
    (rb'"deadline":\d+', b'"deadline":0'),
    (rb'"lease_id":"lease_\d+"', b'"lease_id":"lease_0"'),
    (rb'"deadlines":\{[^}]*\}', b'"deadlines":{}'),
)


def comparable(answer: bytes) -> bytes:
    for pattern, same in VARIES:
        answer = re.sub(pattern, same, answer)
    # Lengths count digits that vary.
    return re.sub(rb"content-length: \d+", b"content-length: 0", answer)


def exchange(port: int, parts: list[bytes]) -> bytes:
    """What comes back until the server has answered everything and sees that nothing follows."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = bytearray()
        try:
            for part in parts:
                sock.sendall(part)
            # An answered request behind it says that all of it was looked at.
            sock.sendall(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            while piece := sock.recv(65536):
                received += piece
        except ConnectionError:
            # The server refused, and closed while the client was still sending.
            pass
    return re.sub(rb'"uptime_ms":\d+', b'"uptime_ms":0', comparable(bytes(received)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    yield from two_servers(tmp_path_factory.mktemp("pair"), {})


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    yield from two_servers(tmp_path_factory.mktemp("keyed"), {"TOPICS_API_KEYS": KEYS})


def two_servers(directory: Path, env: dict[str, str]) -> Iterator[list[int]]:
    """The ports of two servers, the first of which has no hot protocol."""
    servers = []
    for hot in ("0", "1"):
        # No timeout decides what the server says: pieces of a request may come late.
        settings = {**LIMITS, "TOPICS_BODY_TIMEOUT_MS": "600000"}
        settings |= {**env, "TOPICS_HOT_PROTOCOL": hot}
        servers.append(Server(directory / hot, env=settings))
    try:
        for server in servers:
            server.start()
        yield [server.port for server in servers]
        for server in servers:
            assert server.stop() == 0
    finally:
        for server in servers:
            server.ensure_dead()


def test_the_answers_are_the_same_bytes(pair: list[int]) -> None:
    for name, raw in EXCHANGES.items():
        plain, hot = (exchange(port, [raw]) for port in pair)
        assert plain.startswith(b"HTTP/1.1 "), name
        assert hot == plain, name


def test_with_keys_the_answers_are_the_same_bytes(keyed: list[int]) -> None:
    for name, raw in KEYED.items():
        plain, hot = (exchange(port, [raw]) for port in keyed)
        assert plain.startswith(b"HTTP/1.1 "), name
        assert hot == plain, name


def test_split_anywhere_the_answers_are_the_same(pair: list[int]) -> None:
    raw = request("split", one(), "Idempotency-Key: k") + request("split/diff", {"limit": 1})
    whole = exchange(pair[0], [raw])
    assert whole.count(b"HTTP/1.1 20") == 3
    # From the second time on the write is answered from its key.
    again = exchange(pair[0], [raw])
    assert exchange(pair[1], [raw]) == whole
    for at in range(1, len(raw)):
        assert exchange(pair[1], [raw[:at], raw[at:]]) == again, at
    assert exchange(pair[1], [raw[n : n + 1] for n in range(len(raw))]) == again


class Transport(MagicMock):
    """Keeps what the connection does to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.protocol: Any = None
        self.closed = False

    def _get_child_mock(self, **kwargs: Any) -> MagicMock:
        return MagicMock(**kwargs)

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the transport is closed")
        self.written.append(bytes(data))

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def close(self) -> None:
        self.closed = True

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(w.partition(b"\r\n\r\n")[2]) for w in self.written]


class Hot:
    """Connections over a real engine, on the running loop; a test calls `check_timeouts` itself."""

    def __init__(self, directory: Path, **more: Any) -> None:
        body_timeout_ms = int(BODY_SECONDS * 1000)
        settings = Settings(data_dir=str(directory), body_timeout_ms=body_timeout_ms, **more)
        self.app = build(settings)
        self.protocols = HotProtocols(self.app, settings, Limits.of(settings))
        self.dispatcher = self.protocols._dispatcher
        self.state = MagicMock(connections=set(), default_headers=[(b"date", b"today")])
        self.handed_over: list[MagicMock] = []
        self.fresh: list[bool] = []

    async def __aenter__(self) -> Hot:
        self.app.lifespan.start()
        async with asyncio.timeout(DEADLINE):
            while self.app.lifespan.phase != "ready":
                assert self.app.lifespan.failure is None, self.app.lifespan.failure
                await asyncio.sleep(0.001)  # sleep: between two looks
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.app.lifespan.close(5)

    def connect(self) -> tuple[_core.Connection, Transport]:
        def complete(fresh: bool) -> MagicMock:
            self.fresh.append(fresh)
            self.handed_over.append(MagicMock())
            return self.handed_over[-1]

        connection, transport = _core.Connection(self.dispatcher, complete, self.state), Transport()
        connection.connection_made(transport)
        assert connection in self.state.connections
        return connection, transport

    async def answers(self, transport: Transport, count: int) -> list[Any]:
        async with asyncio.timeout(DEADLINE):
            while len(transport.written) < count:
                await asyncio.sleep(0.001)  # sleep: between two looks
        return transport.bodies


def test_hot_requests_never_reach_the_application(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            connection, transport = hot.connect()
            for n in range(1, 4):
                connection.data_received(request("t", one(n), "Accept: */*"))
                assert (await hot.answers(transport, n))[-1]["last_seq"] == n
            connection.data_received(request("t/diff", {"from_seq": 1, "limit": 1}))
            assert transport.bodies[-1]["next_from_seq"] == 2
            whole = request("t", one("x" * 10_000)) + request("t/diff", {"from_seq": 3})
            for at in range(0, len(whole), 2500):
                connection.data_received(whole[at : at + 2500])
            bodies = await hot.answers(transport, 6)
            assert bodies[-1]["records"][0]["data"] == "x" * 10_000
            assert transport.written[0].startswith(b"HTTP/1.1 201 Created\r\ndate: today\r\n")
            assert hot.handed_over == []
            connection.connection_lost(None)
            assert hot.state.connections == set()

    asyncio.run(go())


def test_clients_that_pipeline_share_the_turns_of_the_loop(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            writer, written = hot.connect()
            writer.data_received(request("t", {"records": [{"data": n} for n in range(100)]}))
            await hot.answers(written, 1)
            reads = b"".join(request("t/diff", {"from_seq": n, "limit": 1}) for n in range(100))
            readers = [hot.connect() for _ in range(40)]
            for connection, transport in readers:
                connection.data_received(reads[:-40])
                assert len(transport.written) == 16
                # What comes meanwhile waits behind the rest.
                connection.data_received(reads[-40:])
                assert len(transport.written) == 16
            writer.data_received(request("t", one()))
            turns = 0
            while min(len(transport.written) for _, transport in readers) < 100:
                before = [len(transport.written) for _, transport in readers]
                await asyncio.sleep(0)
                turns += 1
                assert turns < 1000
                for (_, transport), count in zip(readers, before, strict=True):
                    # The flush of the write is a turn of its own.
                    assert len(transport.written) - count <= 2 * 16
                if turns == 3:
                    # A write waits for the flush of its turn, not for the readers.
                    assert len(written.written) == 2
                    assert min(len(transport.written) for _, transport in readers) < 100
            for _, transport in readers:
                assert [body["next_from_seq"] for body in transport.bodies] == [*range(1, 101)]
            gone, transport = hot.connect()
            gone.data_received(reads)
            gone.connection_lost(None)
            stopped, closing = hot.connect()
            stopped.data_received(reads)
            stopped.shutdown()
            async with asyncio.timeout(DEADLINE):
                while not closing.closed:
                    await asyncio.sleep(0)
            # The reply after the shutdown is the last one.
            assert (len(transport.written), len(closing.written)) == (16, 17)

    asyncio.run(go())


def test_a_client_that_takes_a_byte_now_and_then_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        left = 100_000

        def unsent(_: Any) -> int:
            nonlocal left
            left -= 1
            return left

        monkeypatch.setattr("topics_engine.server.hot.unacked_bytes", unsent)
        async with Hot(tmp_path / "d", stall_timeout_ms=1000) as hot:
            connection, transport = hot.connect()
            connection.data_received(request("t", one(1)))
            await hot.answers(transport, 1)
            connection.shutdown()
            assert transport.closed
            sweeps = 0
            while not transport.abort.called and sweeps < 10_000:
                hot.dispatcher.check_timeouts()
                sweeps += 1
            seconds = 1 + 100_000 / MIN_BYTES_PER_SECOND
            # It is looked at when a goodbye may have come.
            assert seconds <= sweeps * hot.protocols._tick <= seconds + 2 * CLOSE_LINGER

    asyncio.run(go())


def test_requests_with_a_key_are_hot_and_hold_a_slot_while_they_wait(tmp_path: Path) -> None:
    async def go() -> None:
        keys = {"api_keys": KEYS, "max_inflight_per_key": 2}
        async with Hot(tmp_path / "d", **keys) as hot:
            taken = hot.app.in_flight.taken
            connection, transport = hot.connect()
            connection.data_received(request("t", one(), bearer("rw-key")))
            await hot.answers(transport, 1)
            assert not taken
            waiting = [hot.connect() for _ in range(3)]
            wait = request("t/diff", {"from_seq": 1, "wait_ms": 30_000}, bearer("rw-key"))
            for each, _ in waiting:
                each.data_received(wait)
            # The third is the application's to refuse.
            assert (list(taken.values()), len(hot.handed_over)) == ([2], 1)
            waiting[0][0].connection_lost(None)
            assert list(taken.values()) == [1]
            connection.data_received(request("t", one(), bearer("rw-key")))
            await hot.answers(waiting[1][1], 1)
            assert not taken
            assert len(hot.handed_over) == 1

    asyncio.run(go())


def test_the_first_request_that_is_not_hot_takes_the_connection_along(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            connection, transport = hot.connect()
            rest = b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n" + request("t", one())
            connection.data_received(request("t", one(sync=True)) + rest)
            await hot.answers(transport, 1)
            (complete,) = hot.handed_over
            complete.connection_made.assert_called_once_with(transport)
            complete.data_received.assert_called_once_with(rest)
            assert transport.protocol is complete
            # What uvicorn is to wait for at a shutdown is the other protocol.
            assert hot.state.connections == set()

    asyncio.run(go())


def test_answers_keep_their_order_and_a_client_that_runs_ahead_is_held(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            connection, transport = hot.connect()
            connection.data_received(request("t/diff", {"from_seq": 0, "wait_ms": 30_000}))
            assert transport.bodies == [{"error": transport.bodies[0]["error"]}]
            connection.data_received(request("t", one("first")))
            await hot.answers(transport, 2)
            connection.data_received(request("t/diff", {"from_seq": 1, "wait_ms": 30_000}))
            ahead = request("t", one("x" * 50_000))
            for _ in range(6):
                connection.data_received(ahead)
            transport.pause_reading.assert_called_once()
            transport.resume_reading.assert_not_called()
            assert len(transport.written) == 2
            other, _second = hot.connect()
            other.data_received(request("t", one("second")))
            bodies = await hot.answers(transport, 9)
            assert bodies[2]["records"][0]["data"] == "second"
            assert [b["first_seq"] for b in bodies[3:]] == list(range(3, 9))
            transport.resume_reading.assert_called_once()

    asyncio.run(go())


def test_a_client_that_does_not_read_gets_no_more_answers(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            connection, transport = hot.connect()
            connection.data_received(request("t", one()))
            await hot.answers(transport, 1)
            connection.pause_writing()
            connection.data_received(request("t/diff", {}) * 3)
            assert len(transport.written) == 1
            connection.resume_writing()
            assert len(transport.written) == 4

    asyncio.run(go())


def test_a_client_that_leaves_frees_its_wait_and_the_others_are_answered(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            connection, transport = hot.connect()
            connection.data_received(request("t", one()))
            await hot.answers(transport, 1)
            http = hot.app.lifespan.bridge._http  # type: ignore[union-attr]
            assert isinstance(http, _core.Http)
            connection.data_received(request("t/diff", {"from_seq": 1, "wait_ms": 30_000}))
            assert http.pending == 1
            connection.connection_lost(ConnectionResetError())
            assert http.pending == 0
            # A transport that was closed meanwhile refuses the answer; the other one has its own.
            gone, closed = hot.connect()
            other, open_still = hot.connect()
            gone.data_received(request("t", one(sync=True)))
            closed.close()
            other.data_received(request("t", one(sync=True)))
            await hot.answers(open_still, 1)
            assert (http.pending, closed.written) == (0, [])

    asyncio.run(go())


def test_slow_clients_are_ended(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            # uvicorn makes its connections through the factory, which starts the clock.
            _, silent = hot.connect()
            connection, half = hot.connect()
            connection.data_received(request("t", one())[:-1])
            connection, done = hot.connect()
            connection.data_received(request("t", one()))
            await hot.answers(done, 1)
            ticks = {}
            for tick in range(round(Limits().idle / BODY_SECONDS * TICKS) + 2):
                hot.dispatcher.check_timeouts()
                for name, transport in (("silent", silent), ("half", half), ("done", done)):
                    if transport.closed:
                        ticks.setdefault(name, tick)
            per_second = TICKS / BODY_SECONDS
            assert ticks == {
                "half": TICKS,
                "silent": round(Limits().header * per_second),
                "done": round(Limits().idle * per_second),
            }
            late = HttpError(408, "request_timeout", "the body did not arrive within 2 s")
            assert half.written[0].endswith(late.response().body)
            assert b": ".join(CLOSE) in half.written[0]
            assert silent.written[0].startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert len(done.written) == 1

    asyncio.run(go())


def test_a_shutdown_answers_what_it_has_and_closes(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            idle, idle_transport = hot.connect()
            waiting, transport = hot.connect()
            waiting.data_received(request("t", one()))
            await hot.answers(transport, 1)
            waiting.data_received(request("t/diff", {"from_seq": 1, "wait_ms": 30_000}))
            hot.app.lifespan.begin_shutdown()
            for connection in (idle, waiting):
                connection.shutdown()
            assert idle_transport.closed
            assert (await hot.answers(transport, 2))[1]["records"] == []
            assert b"\r\nconnection: close\r\n" in transport.written[1]
            assert transport.closed
            # A gate that is shut leaves everything to the application, which says 503.
            late, _late_transport = hot.connect()
            late.data_received(request("t", one()))
            hot.handed_over[0].data_received.assert_called_once_with(request("t", one()))

    asyncio.run(go())
