"""Every error code that these routes can give, from a live server."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState

from support.http_client import Http
from support.marks import HTTP1
from support.server import Server, opened
from topics_engine.server.limits import Limits
from topics_engine.server.protocol import BoundedProtocol

from .cases import one
from .pending import DEADLINE


def exchange(port: int, *parts: bytes) -> bytes:
    """The answer to these bytes. A server that closes while they are still being sent may reset the
    connection.
    """
    received = bytearray()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as sock,
        contextlib.suppress(ConnectionError),
    ):
        with contextlib.suppress(ConnectionError):
            for part in parts:
                sock.sendall(part)
        while piece := sock.recv(65536):
            received += piece
    return bytes(received)


def test_a_refused_write_appends_nothing(api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert api("POST", path, one(1)).status == 201
    bad = {"records": [{"data": 2}, {"data": 3, "meta": {"a": 1}}]}
    assert api("POST", path, bad).code == "invalid_request"
    assert api("POST", path, one(4)).json["first_seq"] == 2


@HTTP1
def test_a_body_that_stops_is_408(tmp_path: Path, protocol: str) -> None:
    head = (
        b"POST /v0/topics/slow HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    env = {"TOPICS_BODY_TIMEOUT_MS": "300", "TOPICS_HOT_PROTOCOL": str(int(protocol == "hot"))}
    with opened(tmp_path / "data", env) as server:
        answer = exchange(server.port, head)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer


@HTTP1
def test_headers_without_end_are_431(server: Server) -> None:
    head = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n"
    answer = exchange(server.port, head, *[b"X: " + b"y" * 1000 + b"\r\n"] * 400)
    # Nothing, if the server closed before the answer could be read.
    assert answer.startswith(b"HTTP/1.1 431 ") or not answer


def test_headers_that_stop_are_408(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer of a connection, on an event loop whose time the test moves."""
    # Its transport has no socket that could be asked.
    monkeypatch.setattr("topics_engine.server.limits.unacked_bytes", lambda transport: 0)
    loop = StoppedLoop()
    protocol = BoundedProtocol(uvicorn.Config(app), ServerState(), {}, _loop=loop)  # type: ignore[arg-type]
    transport = Recorder()
    protocol.connection_made(transport)
    protocol.data_received(b"GET /v0/health HTT")
    assert [round(seconds) for seconds, _ in loop.timers] == [round(Limits().header)]
    loop.timers[0][1]()
    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert transport.closed


@HTTP1
def test_what_is_not_http_is_400_as_json(server: Server) -> None:
    answer = exchange(server.port, b"\x16\x03\x01 hello\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_request"


class StoppedLoop:
    """Keeps timers instead of running them."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, seconds: float, work: Callable[[], None]) -> MagicMock:
        self.timers.append((seconds, work))
        return MagicMock()


class Recorder(MagicMock):
    """A transport that keeps what is written to it."""

    written = b""
    closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> None:
        return None


async def app(scope: object, receive: object, send: object) -> None:
    raise AssertionError("the application is not reached")


@HTTP1
def test_an_oversized_body_is_answered_before_it_is_sent(server: Server) -> None:
    head = (
        b"POST /v0/topics/big HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        b"Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
    )
    answer = exchange(server.port, head)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in answer.partition(b"\r\n\r\n")[0]


@HTTP1
def test_a_chunked_body_over_the_limit_is_413(server: Server) -> None:
    head = (
        b"POST /v0/topics/big HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = exchange(server.port, head, *[chunk] * 8, b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"payload_too_large"' in answer
