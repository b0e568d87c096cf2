"""Clients that send a byte now and then, in every phase of a connection: the deadline of the phase
ends it, however many bytes come, and a server that is told to go ends with all of them open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support.gate import figure, sized
from support.http_client import once
from support.server import Server, running
from support.tls import TlsPort, TlsServer, hello, trust
from support.waiting import DEADLINE, until_received
from topics_engine.server import limits
from topics_engine.server.limits import MIN_BYTES_PER_SECOND, WriteTimeout

from .test_abuse import (
    BINARY,
    CLOSING,
    DATA,
    END,
    END_HEADERS,
    GET,
    HEADERS,
    ONE,
    OPEN,
    OPENING,
    PING,
    POST,
    PREFACE,
    START,
    WHOLE,
    WS_PING,
    block,
    frame,
    get,
    message,
    nothing_left_behind,
    post,
)

LIMITS = {
    "TOPICS_HEADER_TIMEOUT_MS": "400",
    "TOPICS_BODY_TIMEOUT_MS": "400",
    "TOPICS_IDLE_TIMEOUT_MS": "400",
    "TOPICS_STALL_TIMEOUT_MS": "400",
    "TOPICS_MAX_BODY_BYTES": "200000",
}
PAUSE = 0.05
# Much longer than a few limits one after the other, and the second in which a closed connection may
# linger.
SECONDS = DEADLINE


@dataclass(frozen=True)
class Dripper:
    """What a client begins with, and the piece that it then sends for as long as it may."""

    opening: bytes
    piece: bytes
    # The opening is sent in two parts: the second when the first has been answered.
    then: bytes = b""
    # Instead of TLS, where the server speaks it.
    raw: bool = False


def length(size: int) -> str:
    return f"Content-Length: {size}"


LONG = length(100_000)
UPGRADE = ("Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMA")
CHUNKS = "Transfer-Encoding: chunked"
CLOSED = (1000).to_bytes(2, "big")
NOOP = frame(PING, 0, 0, b"12345678")


def opening(*headers: str) -> bytes:
    """The handshake of a WebSocket with further headers."""
    return OPENING[:-2] + "".join(f"{line}\r\n" for line in headers).encode() + b"\r\n"


def asked(path: str, *headers: str) -> bytes:
    """A POST whose body does not come with it."""
    return post(b"", *headers, path=path, length=False)


HTTP1: dict[str, Dripper] = {
    "bytes": Dripper(b"", b"G"),
    "headers": Dripper(get("/v0/health")[:-2] + b"X: ", b"y"),
    "blank lines": Dripper(b"\r\n", b"\r\n"),
    "blank lines after an answer": Dripper(get("/v0/health"), b"\r\n"),
    "blank lines after a hot answer": Dripper(post(ONE), b"\r\n"),
    "headers after an answer": Dripper(get("/v0/health"), b"y", b"GET /v0/health HTTP/1.1\r\nX: "),
    "headers after a hot answer": Dripper(post(ONE), b"y", post(ONE)[:-30]),
    "a body": Dripper(asked("/v0/topics/abuse", LONG, "X-Odd: 1"), b"x"),
    "a hot body": Dripper(asked("/v0/topics/abuse", LONG), b"x"),
    "chunks": Dripper(asked("/v0/topics/abuse", CHUNKS), b"1\r\n{\r\n"),
    "a chunk's extension": Dripper(asked("/v0/topics/abuse", CHUNKS) + b"1;", b"x"),
    "trailers": Dripper(
        asked("/v0/topics/abuse", CHUNKS) + b"%x\r\n%b\r\n0\r\nX: " % (len(ONE), ONE), b"y"
    ),
    "a body that nobody reads": Dripper(get("/v0/health", LONG), b"x"),
    "chunks that nobody reads": Dripper(get("/v0/health", CHUNKS), b"1\r\n{\r\n"),
    "a body of a route that there is not": Dripper(asked("/v0/nothing", LONG), b"x"),
    "a body of another type": Dripper(
        b"POST /v0/topics/abuse HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % LONG.encode(), b"x"
    ),
    "a body that is too large": Dripper(asked("/v0/topics/abuse", length(10**9)), b"x"),
    "behind the last answer": Dripper(get("/v0/health", "Connection: close"), b"x"),
    "an upgrade": Dripper(asked("/v0/topics/abuse", LONG, *UPGRADE), b"x"),
    "an upgrade's headers": Dripper(get("/v0/health", *UPGRADE)[:-2] + b"X: ", b"y"),
    "a socket's message": Dripper(
        OPENING + b"\x81\xfe" + (60_000).to_bytes(2, "big") + bytes(4) + b"x", b"x"
    ),
    "a socket's message in fragments": Dripper(
        OPENING + b"\x01\x81" + bytes(4) + b"x", b"\x00\x81" + bytes(4) + b"x"
    ),
    "a socket's headers": Dripper(OPENING[:-2] + b"X: ", b"y"),
    "a socket with a body": Dripper(opening(LONG), b"x"),
    "a socket with chunks": Dripper(opening(CHUNKS), b"1\r\n{\r\n"),
    "a socket with a long header": Dripper(opening("X: " + "y" * 10_000), b"x"),
    "a socket with many headers": Dripper(opening(*[f"X-{n}: y" for n in range(150)]), b"x"),
    "a socket with a long path": Dripper(
        OPENING.replace(b"/v0/ws", b"/v0/ws?x=" + b"y" * 9000), b"x"
    ),
    "a socket of an old version": Dripper(OPENING.replace(b"13", b"12"), b"x"),
    "a socket that there is not": Dripper(OPENING.replace(b"/v0/ws", b"/v0/not"), b"x"),
    "a socket that says goodbye": Dripper(OPENING, b"x", message(CLOSING, CLOSED)),
    "a socket that is told goodbye": Dripper(OPENING, b"x", message(BINARY, b"x")),
    "pings of a socket that is told goodbye": Dripper(
        OPENING, message(WS_PING, b"x"), message(BINARY, b"x")
    ),
    "a socket that breaks the protocol": Dripper(OPENING, b"x", message(BINARY, b"x", mask=b"")),
}
HTTP2: dict[str, Dripper] = {
    "a preface": Dripper(PREFACE[:-3], b"\r"),
    "no settings": Dripper(PREFACE, b"\0"),
    "pings for settings": Dripper(PREFACE, NOOP),
    "pings without streams": Dripper(START, NOOP),
    "settings without streams": Dripper(START, frame(4, 0, 0)),
    "pings after an answer": Dripper(START, NOOP, frame(HEADERS, WHOLE, 1, block(*GET))),
    "windows after an answer": Dripper(
        START, frame(8, 0, 0, b"\0\0\0\1"), frame(HEADERS, WHOLE, 1, block(*GET))
    ),
    "a frame": Dripper(START + frame(HEADERS, WHOLE, 1, length=10_000), b"x"),
    "a block of headers": Dripper(
        START + frame(HEADERS, END, 1, block(*GET)), frame(9, 0, 1, b"\0\1x\1y")
    ),
    "a body": Dripper(START + OPEN, frame(DATA, 0, 1, b"x")),
    "a body that nobody reads": Dripper(
        START + frame(HEADERS, END_HEADERS, 1, block(*GET)), frame(DATA, 0, 1, b"x")
    ),
    "a body of a route that there is not": Dripper(
        START + frame(HEADERS, END_HEADERS, 1, block(*POST[:2], (":path", "/v0/no"), *POST[3:])),
        frame(DATA, 0, 1, b"x"),
    ),
    "behind a goodbye": Dripper(START + frame(7, 0, 0, b"\0" * 8), NOOP),
}
HELLO = hello("h2", "http/1.1")
HANDSHAKES: dict[str, Dripper] = {
    "a hello": Dripper(HELLO[:3] + b"\xff\xff" + HELLO[5:], b"x", raw=True),
    "alerts": Dripper(b"", b"\x15\x03\x01\x00\x02\x01\x5a", raw=True),
}
ALL = {
    **{f"HTTP/1.1, {name}": dripper for name, dripper in HTTP1.items()},
    **{f"HTTP/2, {name}": dripper for name, dripper in HTTP2.items()},
}


@contextlib.contextmanager
def begun(port: int, dripper: Dripper) -> Iterator[socket.socket]:
    """A connection in the phase in which the client begins to drip."""
    with contextlib.ExitStack() as opened:
        sock = opened.enter_context(
            socket.create_connection(("127.0.0.1", int(port)), timeout=DEADLINE)
        )
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(port, TlsPort) and not dripper.raw:
            sock = opened.enter_context(trust().wrap_socket(sock))
        sock.sendall(dripper.opening)
        if dripper.then:
            if not sock.recv(65536):
                raise ConnectionResetError("the server has ended it before it began")
            sock.sendall(dripper.then)
        yield sock


def dripped(sock: socket.socket, piece: bytes, seconds: float) -> float | None:
    """How long a client could go on; `None`: longer than that."""
    started = time.monotonic()
    sock.setblocking(False)
    # `select` takes no descriptor above 1023.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    with contextlib.suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        while (took := time.monotonic() - started) < seconds:
            sock.sendall(piece)
            if not poll.poll(1000 * PAUSE):
                continue
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                if not sock.recv(65536):
                    # Only the kernel knows whether the server still takes bytes.
                    sock.sendall(b"\0" * 10)
                    time.sleep(PAUSE)  # sleep: a slow client
                    sock.sendall(b"\0" * 10)
        return None
    return took


KINDS = {"hot": Server, "tls": TlsServer, "plain": Server}


@pytest.fixture(scope="module", params=list(KINDS)[: sized(1, 2, 3)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings(kind: str, tls: dict[str, str]) -> dict[str, str]:
    """The environment of a server of a kind."""
    hot = {"TOPICS_HOT_PROTOCOL": str(int(kind != "plain"))}
    # Handshakes take their time when there are many.
    return hot | (tls | {"TOPICS_HEADER_TIMEOUT_MS": "2000"} if kind == "tls" else {})


@pytest.fixture(scope="module")
def strict(
    kind: str, tmp_path_factory: pytest.TempPathFactory, tls: dict[str, str]
) -> Iterator[Server]:
    """A server whose limits are short."""
    folder = tmp_path_factory.mktemp(kind) / "data"
    for server in running(folder, LIMITS | settings(kind, tls), KINDS[kind]):
        assert once(server.port, "PUT", "/v0/topics/abuse").status == 201
        yield server


def drippers(kind: str) -> dict[str, Dripper]:
    """Each, and one that begins like it and then says nothing."""
    made = ALL | (HANDSHAKES if kind == "tls" else {})
    return made | {f"{name}, silent": replace(each, piece=b"") for name, each in made.items()}


def test_no_byte_renews_a_deadline(strict: Server, kind: str) -> None:
    def one(name: str) -> tuple[str, float | None]:
        dripper = drippers(kind)[name]
        for _ in range(5):
            # On a slow machine the time may end before the client has begun.
            with (
                contextlib.suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError),
                begun(strict.port, dripper) as sock,
            ):
                return name, dripped(sock, dripper.piece, SECONDS)
        late.append(name)
        return name, 0.0

    late: list[str] = []
    names = drippers(kind)
    with nothing_left_behind(strict), ThreadPoolExecutor(len(names)) as pool:
        took = dict(pool.map(one, names))
    figure("clients whose time ended before they began", len(late), below=len(names) / 4)
    endless = [name for name, seconds in took.items() if seconds is None]
    assert not endless, f"open for as long as bytes come: {endless}"
    slowest = max(took, key=lambda name: took[name] or 0)
    print(f"{len(took)} clients that drip; the last, {slowest}, ended {took[slowest]:.1f} s in")


def test_a_server_ends_with_every_such_connection_open(
    kind: str, tmp_path: Path, tls: dict[str, str]
) -> None:
    """Its own deadlines are far away; the time of the shutdown is what counts."""
    far = {name: "3600000" for name in LIMITS if name.endswith("_TIMEOUT_MS")}
    env = settings(kind, tls) | far | {"TOPICS_SHUTDOWN_TIMEOUT_MS": "1500"}
    with KINDS[kind](tmp_path / "data", env=env) as server, contextlib.ExitStack() as opened:
        assert once(server.port, "PUT", "/v0/topics/abuse").status == 201
        names = drippers(kind)
        socks = [opened.enter_context(begun(server.port, names[name])) for name in names]
        for sock in socks:
            until_received(sock)
        with ThreadPoolExecutor(len(names)) as pool:
            ends = [
                pool.submit(dripped, sock, names[name].piece, 2 * SECONDS)
                for name, sock in zip(names, socks, strict=True)
            ]
            started = time.monotonic()
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait() == 0
            seconds = time.monotonic() - started
            assert all(client.result() is not None for client in ends)
        print(f"{len(names)} clients that drip")
        # Twice what requests are given: those of clients, and the application's end; then it
        # closes.
        figure("ended after the signal", seconds, below=5, unit="s")


class Clock:
    """A loop whose time is the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Clock.Handle]] = []

    class Handle:
        def __init__(self, call: Callable[[], None]) -> None:
            self.call: Callable[[], None] | None = call

        def cancel(self) -> None:
            self.call = None

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Clock.Handle:
        handle = Clock.Handle(call)
        self._due.append((self.now + seconds, handle))
        return handle

    def advance(self, seconds: float) -> None:
        self.now += seconds
        ready = [handle for at, handle in self._due if at <= self.now]
        self._due = [(at, handle) for at, handle in self._due if at > self.now]
        for handle in ready:
            if handle.call is not None:
                handle.call()


class Transport:
    """A transport whose client takes a byte a second."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.aborted = self.closing = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("closing", [False, True], ids=["open", "closing"])
def test_a_client_that_takes_a_byte_now_and_then_is_given_up(
    monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    monkeypatch.setattr(limits, "unacked_bytes", Transport.get_write_buffer_size)
    clock, transport = Clock(), Transport(1 << 20)
    write_timeout = WriteTimeout(clock, transport, 30)  # type: ignore[arg-type]
    transport.closing = closing
    (write_timeout.transport_closing if closing else write_timeout.pause_writing)()
    while not transport.aborted and clock.now < 10_000:
        clock.advance(1)
        transport.size -= 1
    assert clock.now == 30 + (1 << 20) / MIN_BYTES_PER_SECOND


def test_a_client_that_takes_what_there_is_stays() -> None:
    clock, transport = Clock(), Transport(1 << 20)
    write_timeout = WriteTimeout(clock, transport, 30)  # type: ignore[arg-type]
    for _ in range(100):
        write_timeout.pause_writing()
        clock.advance(100)
        write_timeout.resume_writing()
    clock.advance(10_000)
    assert not transport.aborted
