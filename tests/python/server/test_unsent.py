"""Answers and events that their clients do not read: what the server holds of them is bounded, it
answers others meanwhile, and a stream that waited for room has lost nothing.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http_client import Http
from support.server import Server, opened
from support.waiting import until
from support.websocket import Socket

DEADLINE = 120
MOST = 16 << 20
ONE = 10 << 20
"""More than one page or event has, with its head: the bound may be exceeded by one."""
PAGE = {"from_seq": 0, "limit": 1000, "max_batch_bytes": 8 << 20}
BODY = json.dumps(PAGE).encode()
DIFF = (
    b"POST /v0/topics/big/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
CLIENTS = 24
RECORDS = 40
HANDSHAKE = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module", params=["hot", "plain"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    env = {
        "TOPICS_MAX_UNSENT_BYTES": str(MOST),
        "TOPICS_HOT_PROTOCOL": "1" if request.param == "hot" else "0",
    }
    directory: Path = tmp_path_factory.mktemp("unsent") / "data"
    with opened(directory, env) as live:
        api = Http(live.port, DEADLINE)
        for at in range(0, RECORDS, 5):
            records = [{"data": f"{at + i:04}" + "x" * 1_000_000} for i in range(5)]
            assert api("POST", "/v0/topics/big", {"records": records}).status in (200, 201)
        api.close()
        yield live


@pytest.fixture
def api(server: Server) -> Iterator[Http]:
    api = Http(server.port, DEADLINE)
    until(lambda: held(api) == 0, DEADLINE)
    yield api
    api.close()


def held(api: Http) -> int:
    """The bytes that clients have not taken, as the server counts them."""
    reply = api("GET", "/v0/metrics", headers={"Accept": "application/json"})
    return int(reply.json["http_unsent_bytes"])


@contextlib.contextmanager
def silent(port: int) -> Iterator[socket.socket]:
    """A connection that takes little unless it reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(DEADLINE)
    with sock:
        sock.connect(("127.0.0.1", port))
        yield sock


def test_pages_that_are_not_read_are_bounded(server: Server, api: Http) -> None:
    statuses = []
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            sock = stack.enter_context(silent(server.port))
            sock.sendall(DIFF)
            statuses.append(sock.recv(12)[-3:])
            assert held(api) <= MOST + ONE
        assert set(statuses) == {b"200", b"429"}
        # Small answers and writes of others go on.
        assert api("POST", "/v0/topics/small", {"records": [{"data": 1}]}).status in (200, 201)
        assert api("POST", "/v0/topics/small/diff", {"from_seq": 0}).status == 200
        # A client that reads has room in the end: those that read nothing are disconnected.
        until(lambda: api("POST", "/v0/topics/big/diff", PAGE).status == 200, DEADLINE)
    until(lambda: held(api) == 0, DEADLINE)


def test_a_refused_page_says_how_long_to_wait(server: Server, api: Http) -> None:
    with contextlib.ExitStack() as stack:
        refused = b""
        for _ in range(CLIENTS):
            sock = stack.enter_context(silent(server.port))
            sock.sendall(DIFF)
            if sock.recv(12)[-3:] == b"429":
                refused = sock.recv(4000)
                while b"retry_after_ms" not in refused:
                    refused += sock.recv(4000)
                break
        assert b"retry-after: 1\r\n" in refused.lower()
        detail = json.loads(refused[refused.index(b"{") :])["error"]["detail"]
        assert detail == {"limit": "max_unsent_bytes", "max": MOST, "retry_after_ms": 1000}


def test_a_refused_read_of_a_consumer_moves_nothing(server: Server, api: Http) -> None:
    asked = {"max_bytes": 8 << 20, "max_records": 100}
    statuses: list[int] = []
    with contextlib.ExitStack() as stack:
        while 429 not in statuses:
            assert len(statuses) < CLIENTS, statuses
            path = f"/v0/topics/big/consumers/c{len(statuses)}"
            assert api("PUT", path, {"start": "start"}).status in (200, 201)
            stack.enter_context(silent(server.port)).sendall(DIFF)
            statuses.append(api("POST", path + "/read", asked).status)
    until(lambda: held(api) == 0, DEADLINE)
    reply = api("POST", path + "/read", asked)
    assert reply.status == 200
    assert reply.json["records"][0]["data"][:4] == "0000"


def test_sockets_that_are_not_read_are_bounded(server: Server, api: Http) -> None:
    message = json.dumps(
        {"op": "subscribe", "topic": "big", "from_seq": 0, "max_batch_bytes": 8 << 20}
    ).encode()
    frame = b"\x81" + bytes([0x80 | len(message)]) + b"\0\0\0\0" + message
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            sock = stack.enter_context(silent(server.port))
            sock.sendall(HANDSHAKE)
            assert b" 101 " in sock.recv(999)
            sock.sendall(frame)
            assert held(api) <= MOST + ONE
        # Another subscriber gets everything.
        reader = Socket(server.port, max_size=None)
        reader.send({"op": "subscribe", "topic": "big", "from_seq": 0})
        seen: list[str] = []
        while len(seen) < RECORDS:
            seen += [r["data"][:4] for r in reader.take("record", DEADLINE)["records"]]
        assert seen == [f"{i:04}" for i in range(RECORDS)]
        assert held(api) <= MOST + ONE
        reader.close()
    until(lambda: held(api) == 0, DEADLINE)


def test_event_streams_that_are_not_read_are_bounded(server: Server, api: Http) -> None:
    head = (
        "GET /v0/watch?topic=big&from_seq=0&max_batch_bytes=8388608&limit=1000 HTTP/1.1\r\n"
        "Host: localhost\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            sock = stack.enter_context(silent(server.port))
            sock.sendall(head.encode())
            assert b" 200 " in sock.recv(15)
            assert held(api) <= MOST + ONE
    until(lambda: held(api) == 0, DEADLINE)


def test_a_refused_handshake_is_json(server: Server) -> None:
    wrong = HANDSHAKE.replace(b"Version: 13", b"Version: 12")
    with silent(server.port) as sock:
        sock.sendall(wrong)
        received = b""
        while piece := sock.recv(4096):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_request"
