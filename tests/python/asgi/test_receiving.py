"""Bodies that are being received: what all of them may hold, and how many a key may send at once,
through every protocol; the server answers others meanwhile, and nothing of it is left behind.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.h2_client import Http2Connection, Http2Port
from support.http_client import Http, Reply
from support.server import Server, opened
from support.waiting import until

MOST = 4 << 20
PIECE = 1 << 20
BEARER = {"Authorization": "Bearer key"}
ENV = {
    "TOPICS_API_KEYS": "key,other",
    "TOPICS_MAX_INFLIGHT_PER_KEY": "20",
    "TOPICS_MAX_RECEIVING_BYTES": str(MOST),
    "TOPICS_MAX_BODY_BYTES": str(MOST),
    "TOPICS_BODY_TIMEOUT_MS": "20000",
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
            self._link = Http2Connection("127.0.0.1", Http2Port(port), 30)
            length = {"Content-Length": str(size)}
            self._stream = self._link.start("POST", "/v0/topics/t", None, given | length, end=False)
            return
        lines = [f"{name}: {value}" for name, value in given.items()]
        head = ["POST /v0/topics/t HTTP/1.1", "Host: localhost", *lines, f"Content-Length: {size}"]
        self._link = None
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=30)
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
    api = Http(server.port)
    large = {"records": [{"data": "x" * (MOST - 100)}]}
    until(lambda: api("POST", "/v0/topics/t", large, BEARER).status == 200)
    api.close()


def health(api: Http) -> float:
    """The seconds of one answer."""
    began = time.monotonic()
    assert api("GET", "/healthz").status == 200
    return time.monotonic() - began


@pytest.mark.serial
def test_all_bodies_together_are_bounded(server: Server, protocol: str) -> None:
    is_free(server)
    before = server.memory()[1]
    # Fifteen times as much as there may be.
    bodies = [Body(server.port, 7 * PIECE // 2, protocol) for _ in range(18)]
    try:
        check_bounded(server, protocol, bodies, before)
    finally:
        for body in bodies:
            body.close()
    is_free(server)


def check_bounded(server: Server, protocol: str, bodies: list[Body], before: int) -> None:
    api = Http(server.port)
    for body in bodies:
        body.send(PIECE)
    seconds = []
    for body in bodies[4:]:
        body.send(2 * PIECE)
        seconds += [health(api), health(api)]
    api.close()
    grown, median = server.memory()[1] - before, statistics.median(seconds)
    # A machine that is busy with something else delays one answer; a server that works on a body
    # where it should answer delays one for each body.
    *_, third, _, slowest = sorted(seconds)
    print(
        f"{protocol}: memory {grown / 2**20:+.1f} MiB, /healthz median {median * 1000:.1f} ms, "
        f"slowest {slowest * 1000:.1f} ms"
    )
    refused = 0
    for body in bodies[4:]:
        body.send(PIECE)
    for body in bodies[4:]:
        reply = body.answer()
        if reply.status == 200:
            continue
        refused += 1
        assert (reply.status, reply.code) == (429, "throttled"), reply
        assert reply.json["error"]["detail"] | {"retry_after_ms": 0} == {
            "limit": "max_receiving_bytes",
            "max": MOST,
            "retry_after_ms": 0,
        }
        assert reply.headers["retry-after"] == "1"
    assert refused >= 12, "most came when there was no room"
    # What was packed for the engine, what connections buffer, and what is not given back to the
    # system comes on top.
    assert grown < 32 << 20
    assert third < 0.1


@pytest.mark.parametrize("how", ["gone", "whole", "refused", "slow", "reset"])
def test_nothing_is_held_of_a_request_that_has_ended(
    tmp_path: Path, servers: dict[str, Server], protocol: str, how: str
) -> None:
    """However it ended, many times what there may be at once."""
    if how == "slow":
        env = ENV | {"TOPICS_BODY_TIMEOUT_MS": "200"}
        env["TOPICS_HOT_PROTOCOL"] = str(int(protocol != "plain"))
        with opened(tmp_path / "data", env) as server:
            check_ends(server, protocol, how)
    else:
        check_ends(servers[protocol], protocol, how)


def check_ends(server: Server, protocol: str, how: str) -> None:
    is_free(server)
    for _ in range(3):
        bodies = [Body(server.port, PIECE, protocol) for _ in range(3)]
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
    api = Http(server.port)
    until(lambda: api("GET", "/v0/topics", None, BEARER).status == 200)
    bodies = [Body(server.port, 1000, protocol) for _ in range(most)]
    for body in bodies:
        body.send(500)
    until(lambda: api("GET", "/v0/topics", None, BEARER).status == 429)
    full = api("POST", "/v0/topics/t", ONE, BEARER)
    assert (full.status, full.json["error"]["detail"]["limit"]) == (429, "max_inflight_per_key"), (
        full
    )
    another = Body(server.port, 1000, protocol)
    another.send(1000)
    assert another.answer().status == 429
    another.close()
    # Another key's are its own.
    theirs = Body(server.port, 1000, protocol, "other")
    theirs.send(1000)
    assert theirs.answer().status == 200
    theirs.close()
    # One that comes to its end makes room for one.
    bodies[0].send(500)
    assert bodies[0].answer().status == 200
    until(lambda: api("POST", "/v0/topics/t", ONE, BEARER).status == 200)
    for body in bodies[1:11]:
        body.close()
    for body in bodies[11:]:
        body.send(500)
        assert body.answer().status == 200
        body.close()
    bodies[0].close()
    api.close()
    is_free(server)


@pytest.mark.parametrize("protocol", ["hot"])
def test_who_reads_no_answers_is_not_read_from(servers: dict[str, Server], protocol: str) -> None:
    """Requests that are sent ahead of answers that nobody takes are left with their client."""
    server = servers[protocol]
    api = Http(server.port)
    big = {"records": [{"data": "x" * 500_000} for _ in range(8)]}
    assert api("POST", "/v0/topics/large", big, BEARER).status in (200, 201)
    read = b'{"max_batch_bytes":8388608}'
    head = "\r\n".join([
        "POST /v0/topics/large/diff HTTP/1.1", "Host: localhost", "Authorization: Bearer key",
        "Content-Type: application/json", f"Content-Length: {len(read)}", "", "",
    ])  # fmt: skip
    before = server.memory()[1]
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    sent = 0
    ahead = (head.encode() + read) * 1000
    with contextlib.suppress(TimeoutError):
        sock.settimeout(1)
        while sent < 64 << 20:
            sent += sock.send(ahead)
    grown = server.memory()[1] - before
    print(f"sent {sent / 2**20:.1f} MiB ahead, memory {grown / 2**20:+.1f} MiB")
    assert sent < 32 << 20, "the kernel's buffers, and what is read ahead"
    assert grown < 32 << 20
    sock.close()
    api.close()
