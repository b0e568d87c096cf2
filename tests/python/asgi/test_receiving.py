"""Bodies that are being received: what all of them may hold, and how many a key may send at once,
through every protocol; the server answers others meanwhile, and nothing of it is left behind.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gate import EXPLORES, figure
from support.h2_client import Http2Connection, Http2Port
from support.http_client import Http, Reply
from support.server import Server, opened
from support.waiting import until

from .pending import DEADLINE, until_read

# Limits on times and on the memory of the server, which are disturbed by what runs beside it.
pytestmark = [pytest.mark.serial] if EXPLORES else []

MOST = 4 << 20
PIECE = 1 << 20
BEARER = {"Authorization": "Bearer key"}
ENV = {
    # One for each protocol whose requests a test counts.
    "TOPICS_API_KEYS": "key,other,plain,hot,h2",
    "TOPICS_MAX_INFLIGHT_PER_KEY": "20",
    "TOPICS_MAX_RECEIVING_BYTES": str(MOST),
    "TOPICS_MAX_BODY_BYTES": str(MOST),
    "TOPICS_BODY_TIMEOUT_MS": "600000",
    "TOPICS_MAX_RECORD_BYTES": str(32 << 20),
    "TOPICS_MAX_BATCH_RECORDS": "0",
}
ONE = {"records": [{"data": 1}]}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    with contextlib.ExitStack() as stack:
        made = {}
        for protocol, hot in (("plain", "0"), ("hot", "1")):
            directory: Path = tmp_path_factory.mktemp(f"receiving-{protocol}") / "data"
            env = ENV | {"TOPICS_HOT_PROTOCOL": hot}
            made[protocol] = stack.enter_context(opened(directory, env))
            api = Http(made[protocol].port)
            assert api("POST", "/v0/topics/t", ONE, BEARER).status == 201
            api.close()
        yield made | {"h2": made["hot"]}


@pytest.fixture
def server(servers: dict[str, Server], protocol: str) -> Server:
    return servers[protocol]


class Body:
    """A write whose body is sent as far as it is told."""

    def __init__(self, port: int, size: int, protocol: str, key: str = "key") -> None:
        text = json.dumps({"records": [{"data": "x" * (size - 27)}]}).encode()
        assert len(text) == size
        self.left = memoryview(text)
        given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        if protocol == "h2":
            self._link = Http2Connection("127.0.0.1", Http2Port(port), DEADLINE)
            length = {"Content-Length": str(size)}
            self._stream = self._link.start("POST", "/v0/topics/t", None, given | length, end=False)
            return
        lines = [f"{name}: {value}" for name, value in given.items()]
        head = ["POST /v0/topics/t HTTP/1.1", "Host: localhost", *lines, f"Content-Length: {size}"]
        self._link = None
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self._sock.sendall("\r\n".join([*head, "", ""]).encode())

    def send(self, size: int) -> None:
        """So many bytes more; a server that has had enough may end it."""
        piece, self.left = self.left[:size], self.left[size:]
        with contextlib.suppress(ConnectionError):
            if self._link is None:
                self._sock.sendall(piece)
            else:
                self._link.send(self._stream, bytes(piece), end=not self.left)

    def answer(self) -> Reply:
        if self._link is not None:
            response = self._stream
            response.wait(lambda: response.ended)
            return Reply(response.status, response.headers, bytes(response.buffer))
        received = bytearray()
        while b"\r\n\r\n" not in received:
            received += self._sock.recv(65536)
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        while len(body) < int(headers["content-length"]):
            body += self._sock.recv(65536)
        return Reply(int(lines[0].split()[1]), headers, body)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        else:
            self._sock.close()


def is_free(server: Server) -> None:
    """As much may be sent as at first: nothing is held for anybody."""
    until(lambda: status(server, MOST - 100) == 200, DEADLINE)


def status(server: Server, size: int) -> int:
    """The status of a write with a record of this size; 0 if the connection broke."""
    api = Http(server.port, DEADLINE)
    try:
        return api("POST", "/v0/topics/t", {"records": [{"data": "x" * size}]}, BEARER).status
    except (OSError, http.client.HTTPException):
        # The server refused it before it had come.
        return 0
    finally:
        api.close()


def health(api: Http) -> float:
    """The seconds of one answer."""
    began = time.monotonic()
    assert api("GET", "/healthz").status == 200
    return time.monotonic() - began


def test_all_bodies_together_are_bounded(server: Server, protocol: str) -> None:
    is_free(server)
    before = server.memory()[1]
    # Fifteen times as much as there may be.
    with contextlib.ExitStack() as stack:
        bodies = [
            stack.enter_context(contextlib.closing(Body(server.port, 7 * PIECE // 2, protocol)))
            for _ in range(18)
        ]
        check_bounded(server, protocol, bodies, before)
    is_free(server)


def check_bounded(server: Server, protocol: str, bodies: list[Body], before: int) -> None:
    api = Http(server.port, DEADLINE)
    first, others = bodies[:4], bodies[4:]
    for body in first:
        body.send(PIECE)
    # Until the server has received more of the first ones than leaves room for one of the others.
    until(lambda: status(server, PIECE) == 429, DEADLINE)
    seconds = []
    for body in others:
        body.send(PIECE)
    for body in others:
        body.send(2 * PIECE)
        seconds += [health(api), health(api)]
    api.close()
    grown, median = server.memory()[1] - before, statistics.median(seconds)
    # A machine that is busy with something else delays one answer; a server that works on a body
    # where it should answer delays one for each body.
    *_, third, _, slowest = sorted(seconds)
    print(f"{protocol}: /healthz median {median * 1000:.1f} ms, slowest {slowest * 1000:.1f} ms")
    for body in others:
        body.send(PIECE)
    for body in others:
        reply = body.answer()
        assert (reply.status, reply.code) == (429, "throttled"), reply
        assert reply.json["error"]["detail"] | {"retry_after_ms": 0} == {
            "limit": "max_receiving_bytes",
            "max": MOST,
            "retry_after_ms": 0,
        }
        assert reply.headers["retry-after"] == "1"
    # What was packed for the engine, what connections buffer, and what is not given back to the
    # system comes on top.
    figure("memory", grown / 2**20, below=32, unit="MiB")
    figure("third slowest /healthz", third * 1000, below=100, unit="ms")


@pytest.mark.parametrize("kind", ["plain", "hot"])
def test_messages_of_sockets_count_as_bodies(servers: dict[str, Server], kind: str) -> None:
    server = servers[kind]
    is_free(server)
    handshake = (
        "GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(6):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)
            socks.append(stack.enter_context(sock))
            sock.sendall(handshake.encode())
            assert b" 101 " in sock.recv(4096)
            # A third of a message.
            sock.sendall(b"\x81\xff" + (3 * PIECE).to_bytes(8, "big") + bytes(4))
            with contextlib.suppress(ConnectionError):
                sock.sendall(b" " * PIECE)
        codes: dict[socket.socket, int] = {}

        def refused() -> int:
            for sock in select.select(socks, [], [], 0)[0]:
                with contextlib.suppress(ConnectionError):
                    received = sock.recv(4096)
                    if received[:1] == b"\x88":
                        codes[sock] = int.from_bytes(received[2:4], "big")
            return len(codes)

        until(lambda: refused() >= 2, DEADLINE)
        assert set(codes.values()) == {1013}
        assert status(server, 3 * PIECE) in (0, 429), "they hold what there is"
    is_free(server)


@pytest.mark.parametrize("how", ["gone", "whole", "refused", "slow", "reset"])
def test_nothing_is_held_of_a_request_that_has_ended(
    tmp_path: Path, servers: dict[str, Server], protocol: str, how: str
) -> None:
    """However it ended, many times what there may be at once."""
    if how == "slow":
        env = ENV | {"TOPICS_BODY_TIMEOUT_MS": "2000"}
        env["TOPICS_HOT_PROTOCOL"] = str(int(protocol != "plain"))
        with opened(tmp_path / "data", env) as server:
            check_ends(server, protocol, how)
    else:
        check_ends(servers[protocol], protocol, how)


def check_ends(server: Server, protocol: str, how: str) -> None:
    with contextlib.ExitStack() as stack:
        end_bodies(server, protocol, how, stack)


def end_bodies(server: Server, protocol: str, how: str, stack: contextlib.ExitStack) -> None:
    is_free(server)
    # One that was slow has taken its time already.
    for _ in range(1 if how == "slow" else 3):
        bodies = [
            stack.enter_context(contextlib.closing(Body(server.port, PIECE, protocol)))
            for _ in range(3)
        ]
        for body in bodies:
            body.send(PIECE - 100)
        if how == "refused":
            # No JSON at its end.
            for body in bodies:
                body.left = memoryview(b"}" * 100)
        if how in ("whole", "refused"):
            for body in bodies:
                body.send(100)
            assert {body.answer().status for body in bodies} == {200 if how == "whole" else 400}
        if how == "slow":
            assert {body.answer().status for body in bodies} == {408}
        if how == "reset" and protocol == "h2":
            for body in bodies:
                body._link.h2.reset_stream(body._stream.id)
                body._link.flush()
            is_free(server)
        for body in bodies:
            body.close()
    is_free(server)


def test_a_body_that_is_being_received_is_a_request_of_its_key(
    server: Server, protocol: str
) -> None:
    most = int(ENV["TOPICS_MAX_INFLIGHT_PER_KEY"])
    bearer = {"Authorization": f"Bearer {protocol}"}
    api = Http(server.port, DEADLINE)
    with contextlib.ExitStack() as stack:

        def started(key: str) -> Body:
            return stack.enter_context(contextlib.closing(Body(server.port, 1000, protocol, key)))

        bodies = [started(protocol) for _ in range(most)]
        for body in bodies:
            body.send(500)
        # A request of this key that ran beside them would have one of them refused.
        until_read(api)
        until(lambda: api("GET", "/v0/topics", None, bearer).status == 429, DEADLINE)
        full = api("POST", "/v0/topics/t", ONE, bearer)
        limit = full.json["error"]["detail"]["limit"]
        assert (full.status, limit) == (429, "max_inflight_per_key"), full
        another = started(protocol)
        another.send(1000)
        assert another.answer().status == 429
        # Another key's are its own.
        theirs = started("other")
        theirs.send(1000)
        assert theirs.answer().status == 200
        # One that comes to its end makes room for one.
        bodies[0].send(500)
        assert bodies[0].answer().status == 200
        until(lambda: api("POST", "/v0/topics/t", ONE, bearer).status == 200, DEADLINE)
        for body in bodies[1:11]:
            body.close()
        for body in bodies[11:]:
            body.send(500)
            assert body.answer().status == 200
    api.close()
    is_free(server)


@pytest.mark.parametrize("protocol", ["hot"])
def test_who_reads_no_answers_is_not_read_from(servers: dict[str, Server], protocol: str) -> None:
    """The server does not read requests of a client that takes no answers."""
    server = servers[protocol]
    api = Http(server.port, DEADLINE)
    big = {"records": [{"data": "x" * 500_000} for _ in range(8)]}
    assert api("POST", "/v0/topics/large", big, BEARER).status in (200, 201)
    read = b'{"max_batch_bytes":8388608}'
    head = "\r\n".join([
        "POST /v0/topics/large/diff HTTP/1.1", "Host: localhost", "Authorization: Bearer key",
        "Content-Type: application/json", f"Content-Length: {len(read)}", "", "",
    ])  # fmt: skip
    before = server.memory()[1]
    sent = 0
    ahead = (head.encode() + read) * 1000
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as sock:
        with contextlib.suppress(TimeoutError):
            sock.settimeout(1)
            while sent < 64 << 20:
                sent += sock.send(ahead)
        grown = server.memory()[1] - before
    api.close()
    assert sent < 32 << 20, "the kernel's buffers, and what is read ahead"
    figure(f"memory, {sent / 2**20:.1f} MiB sent ahead", grown / 2**20, below=32, unit="MiB")
