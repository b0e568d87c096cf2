"""Clients that make the server work or keep something for little: packed bodies that unpack to very
much, and frames that bring nothing. It answers others meanwhile; its memory stays within reach and
comes back.
"""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.gate import EXPLORES, figure, sized
from support.h2_client import Http2Port
from support.http_client import Http, once
from support.server import Server, running
from support.tls import TlsServer
from support.waiting import DEADLINE, until
from support.websocket import Socket

from .test_abuse import (
    END,
    GET,
    GOAWAY,
    HEADERS,
    OPENING,
    SETTINGS,
    START,
    WHOLE,
    WS_PING,
    block,
    established,
    frame,
    hold,
    message,
    nothing_left_behind,
    statuses,
)

MIB = 1 << 20
# Only where its figures have limits must nothing run beside it.
pytestmark = [pytest.mark.serial] if EXPLORES else []

QUICK_MS = 100
"""In which others are answered, but for one in twenty, or one: the machine is not idle."""


class Observer:
    """A client that asks for the server's health all the while, and looks at its memory."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._done = threading.Event()
        self.seconds: list[float] = []
        self.before = self.most = server.memory()[1]

    def run(self) -> None:
        api = Http(self._server.port, timeout=DEADLINE)
        while not self.seconds or not self._done.wait(0.005):
            started = time.monotonic()
            assert api("GET", "/healthz").status == 200
            self.seconds.append(time.monotonic() - started)
            self.most = max(self.most, self._server.memory()[1])
        api.close()

    def stop(self) -> None:
        self._done.set()


@contextlib.contextmanager
def observed(server: Server, name: str, most: int) -> Iterator[None]:
    """Others are answered meanwhile. The time that this takes and the memory that the server gains
    are figures.
    """
    observer = Observer(server)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(observer.run)
        try:
            yield
        finally:
            observer.stop()
        running.result()

    def left() -> int:
        return server.memory()[1] - observer.before

    if EXPLORES:
        with contextlib.suppress(AssertionError):
            until(lambda: left() < 48 * MIB)
    took = sorted(observer.seconds)
    usual = took[max(0, min(len(took) * 95 // 100, len(took) - 2))]
    print(f"{name}: /healthz {took[-1] * 1000:.0f} ms (worst of {len(took)})")
    figure("/healthz (95 %)", usual * 1000, below=QUICK_MS, unit="ms")
    figure("memory, at most", (observer.most - observer.before) / MIB, below=most / MIB, unit="MiB")
    figure("memory, afterwards", left() / MIB, below=48, unit="MiB")


KINDS = {"hot": Server, "tls": TlsServer, "plain": Server}


@pytest.fixture(scope="module", params=list(KINDS)[: sized(1, 2, 3)])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tls: dict[str, str]
) -> Iterator[Server]:
    """A server whose bodies may be as large as they usually may."""
    kind = request.param
    env = {"TOPICS_STALL_TIMEOUT_MS": "500", "TOPICS_HOT_PROTOCOL": str(int(kind != "plain"))}
    folder = tmp_path_factory.mktemp(f"floods-{kind}") / "data"
    for server in running(folder, env | (tls if kind == "tls" else {}), KINDS[kind]):
        assert once(server.port, "PUT", "/v0/topics/still").status == 201
        yield server


def blank(size: int, packed: int) -> bytes:
    """So many spaces, tabs and line ends, which gzip makes about `packed` bytes of."""
    noise = bytes(random.Random(7).choices(b" \t\r\n", k=4 * packed))
    return noise + b" " * (size - len(noise))


WAIT = b'{"from_seq":0,"wait_ms":1000,'
BOMBS = {
    # Each would be 60 MiB of a wait's request.
    "endless": (30, gzip.compress(WAIT + b" " * (60 * MIB) + b'"limit":1}'), 413),
    "small": (200, gzip.compress(WAIT + b" " * (2 * MIB) + b'"limit":1}'), 413),
    "within the ratio": (
        60, gzip.compress(WAIT + blank(4 * MIB, 30_000) + b'"limit":1}'), 200,
    ),
    "nested": (50, gzip.compress(gzip.compress(b" " * (60 * MIB))), 400),
    "of two members": (20, gzip.compress(b" " * (8 * MIB)) + gzip.compress(b"{}"), 413),
}  # fmt: skip
PACKED = {"Content-Encoding": "gzip", "Content-Type": "application/json"}


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("name", BOMBS)
def test_bodies_that_unpack_to_very_much(target: Server, name: str, http2: bool) -> None:
    count, body, expected = BOMBS[name]
    port = target.port
    if isinstance(target, TlsServer):
        pytest.skip("the same bytes within; handshakes of so many clients take their time")
    if http2:
        port = Http2Port(port)

    def one(_: int) -> int:
        client = Http(port, timeout=2 * DEADLINE)
        with contextlib.closing(client):
            return client("POST", "/v0/topics/still/diff", body, PACKED).status

    size = f"{len(body) / 1024:.0f} KiB"
    with (
        observed(target, f"{count} bodies of {size}, {name}", 128 * MIB),
        ThreadPoolExecutor(count) as pool,
    ):
        assert set(pool.map(one, range(count))) == {expected}


def test_messages_of_a_socket_are_not_packed(target: Server) -> None:
    if isinstance(target, TlsServer):
        pytest.skip("the same bytes within")
    made = Socket(target.port, compression="deflate")
    assert made.connection.protocol.extensions == []
    assert made.ask("ping", "pong")
    made.close()


def test_pings_of_a_client_that_does_not_read(target: Server) -> None:
    """Their answers wait for it: it is not read from, and let go."""
    pings = message(WS_PING, b"x" * 125) * 1000
    with nothing_left_behind(target), observed(target, "a flood of pings to a socket", 32 * MIB):
        sock = hold(target.port, OPENING)
        assert b"101" in sock.recv(4096)
        sent = 0
        with contextlib.suppress(OSError):
            for _ in range(500):
                sock.sendall(pings)
                sent += len(pings)
        mine = sock.getsockname()[1]
        until(lambda: mine not in established(int(target.port)))
        sock.close()
        print(f"{sent / MIB:.0f} MiB of pings were taken")
        assert sent < 32 * MIB


def setting(code: int, value: int) -> bytes:
    return code.to_bytes(2, "big") + value.to_bytes(4, "big")


def sizes(count: int) -> bytes:
    return b"".join(setting(1, n % 4096) for n in range(count))


UPDATES = b"\x20\x3f\xe1\x1f"
ALTSVC = 10
FRAMES: dict[str, bytes] = {
    "table sizes": b"".join(frame(SETTINGS, 0, 0, setting(1, n % 4096)) for n in range(20_000)),
    "many table sizes in each": frame(SETTINGS, 0, 0, sizes(2700)) * 3000,
    "settings of no meaning": b"".join(
        frame(SETTINGS, 0, 0, b"".join(setting(n + 10, 1) for n in range(at, at + 2700)))
        for at in range(0, 62_000, 2700)
    ) * 4,
    "updates of the table": b"".join(
        frame(HEADERS, WHOLE, n, UPDATES * 4 + block(*GET)) for n in range(1, 20_000, 2)
    ),
    "a block of updates": frame(HEADERS, END, 1, b"\x20" * 16_000)
    + frame(9, 0, 1, b"\x20" * 16_000) * 60 + frame(9, 4, 1, block(*GET)),
    "alternative services": frame(ALTSVC, 0, 0, b"\0\x01ax") * 20_000,
    "data of a stream that has ended": frame(HEADERS, WHOLE, 1, block(*GET))
    + frame(3, 0, 1, b"\0\0\0\0") + frame(0, 0, 1, b"x") * 20_000,
    "pings": frame(6, 0, 0, b"12345678") * 20_000,
    "acknowledgements": frame(SETTINGS, 1, 0) * 20_000,
    "frames of no kind": frame(0xEE, 0, 0, b"x") * 20_000,
    "goodbyes": frame(GOAWAY, 0, 0, b"\0" * 8) * 20_000,
}  # fmt: skip


def goodbye(received: bytes) -> int | None:
    """The code of the GOAWAY in what came back."""
    at, found = 0, None
    while at + 9 <= len(received):
        size = int.from_bytes(received[at : at + 3], "big")
        if received[at + 3] == GOAWAY:
            found = int.from_bytes(received[at + 13 : at + 17], "big")
        at += 9 + size
    return found


def flooded(port: int, raw: bytes) -> bytes:
    """What comes back until the server ends the connection."""
    received = bytearray()

    def read(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := sock.recv(65536):
                received.extend(piece)

    with socket.create_connection(("127.0.0.1", int(port)), timeout=DEADLINE) as sock:
        reader = threading.Thread(target=read, args=(sock,), daemon=True)
        reader.start()
        with contextlib.suppress(OSError):
            sock.sendall(START + raw)
        reader.join(DEADLINE)
        assert not reader.is_alive(), "the server took all of it"
    return bytes(received)


@pytest.mark.parametrize("name", FRAMES)
def test_frames_that_bring_nothing(target: Server, name: str) -> None:
    if isinstance(target, TlsServer):
        pytest.skip("the same bytes within")
    with nothing_left_behind(target), observed(target, f"a flood of {name}", 32 * MIB):
        ends = [flooded(target.port, FRAMES[name]) for _ in range(8)]
    codes = {goodbye(received) for received in ends}
    # Too many frames, or headers that cannot be read; a reset may overtake what says so.
    assert codes <= {0, 1, 9, 11, None}, codes
    answered = max(len(statuses(received, True)) for received in ends)
    assert answered < 2000
