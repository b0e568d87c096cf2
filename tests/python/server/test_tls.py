"""TLS: both protocols over it, and clients that abuse it as they would the bytes within."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from support.gate import GATE, figure, run_seed, sized
from support.h2_client import Http2Connection
from support.http_client import once
from support.server import Server, running
from support.tls import TlsServer, hello, secure, trust
from support.waiting import DEADLINE, until, until_received
from topics_engine.server.http2 import Http2Protocol
from topics_engine.server.limits import Limits
from topics_engine.server.protocol import BoundedProtocol
from topics_engine.server.tls import Certificate

from .test_abuse import GET as HEAD
from .test_abuse import (
    GOODBYE,
    HTTP1,
    HTTP2,
    ONE,
    START,
    WHOLE,
    Attack,
    block,
    drip,
    established,
    fill,
    frame,
    get,
    hold,
    impatient,
    let_go,
    nothing_left_behind,
    post,
    small_streams,
    statuses,
    survived,
)
from .test_http2 import JSON, whole
from .test_serve import serve

GARBAGE = random.Random(7).randbytes(500)
HELLO = hello("h2", "http/1.1")
# What is sent instead of a handshake, or of its end.
HANDSHAKES: dict[str, Attack] = {
    "nothing": Attack(()),
    "a hello": Attack((HELLO,)),
    "half a hello": Attack((HELLO[:100],)),
    "a slow hello": Attack(drip(HELLO), 0.02),
    "two hellos": Attack((HELLO * 2,)),
    "half-closed": Attack((HELLO,), half_close=True),
    "half-closed in a hello": Attack((HELLO[:100],), half_close=True),
    "gone": Attack((HELLO,), reads=False),
    "gone in a hello": Attack((HELLO[:100],), reads=False),
    "a hello and garbage": Attack((HELLO + GARBAGE,)),
    "a hello and data": Attack((HELLO + b"\x17\x03\x03\x00\x20" + b"x" * 32,)),
    "a hello of another length": Attack((HELLO[:3] + b"\xff\xff" + HELLO[5:],)),
    "a long record": Attack((b"\x16\x03\x01\xff\xff" + b"x" * 70_000,)),
    "empty records": Attack((b"\x16\x03\x01\x00\x00" * 5000,)),
    "endless hellos": Attack((b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"x" * 16380,) * 100),
    "an alert": Attack((b"\x15\x03\x01\x00\x02\x02\x28",)),
    "warnings": Attack((b"\x15\x03\x01\x00\x02\x01\x5a" * 5000,)),
    "SSL 2": Attack((b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"\x01" * 37,)),
    "SSL 3": Attack((HELLO[:1] + b"\x03\x00" + HELLO[3:],)),
    "TLS 1.0": Attack((HELLO[:9] + b"\x03\x01" + HELLO[11:],)),
    "HTTP/1.1": Attack((get("/v0/health"),)),
    "a write": Attack((post(ONE),)),
    "HTTP/2": Attack((START + frame(1, WHOLE, 1, block(*HEAD)),)),
    "zeros": Attack((b"\x00" * 5000,)),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, tls: dict[str, str]) -> Iterator[Server]:
    # Handshakes take their time when there are many.
    env = tls | {"TOPICS_HEADER_TIMEOUT_MS": "1000"}
    yield from impatient(tmp_path_factory.mktemp("tls") / "data", env, TlsServer)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, tls: dict[str, str]) -> Iterator[Server]:
    """A server with the usual timeouts: a client that is slow has no other answers."""
    for server in running(tmp_path_factory.mktemp("patient-tls") / "data", tls, TlsServer):
        fill(server)
        yield server


def test_both_protocols(tmp_path: Path, tls: dict[str, str]) -> None:
    server = TlsServer(tmp_path / "data", env=tls)
    server.start()
    try:
        body = json.dumps({"records": [{"data": 1}]}).encode()
        link = Http2Connection("127.0.0.1", server.port, tls=trust("h2", "http/1.1"))
        status, answer = whole(link.start("POST", "/v0/topics/t", body, JSON))
        assert (status, answer["first_seq"]) == (201, 1)
        assert link.sock.selected_alpn_protocol() == "h2"  # type: ignore[union-attr]
        watch = link.start("GET", "/v0/watch?topic=t&from_seq=0")
        watch.wait(lambda: b"caught-up" in watch.buffer)
        old = secure(server.port, DEADLINE)
        for seq in (2, 3):
            old.request("POST", "/v0/topics/t", body, JSON)
            assert json.loads(old.getresponse().read())["first_seq"] == seq
        old.request("GET", "/v0/health")
        assert old.getresponse().read()
        # Who does not speak TLS hears nothing of the application.
        plain = http.client.HTTPConnection("127.0.0.1", int(server.port), timeout=DEADLINE)
        plain.request("GET", "/v0/health")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        assert f"https://127.0.0.1:{server.port}" in (server.data_dir / ".topics.lock").read_text()
        assert server.stop() == 0
        watch.wait(lambda: b"shutting_down" in watch.buffer)
        for made in (link, old, plain):
            made.close()
    finally:
        server.ensure_dead()


def test_a_certificate_that_cannot_be_used_stops_the_start(
    tmp_path: Path, tls: dict[str, str]
) -> None:
    cert, key = tls["TOPICS_TLS_CERT"], tls["TOPICS_TLS_KEY"]
    for arguments in (
        ("--tls-key", key),
        ("--tls-cert", cert),
        ("--tls-cert", str(tmp_path / "none"), "--tls-key", key),
        ("--tls-cert", key, "--tls-key", cert),
    ):
        refused = serve("--data-dir", str(tmp_path / "d"), *arguments)
        assert refused.returncode == 2, refused
        assert "certificate" in refused.stderr
    assert not (tmp_path / "d").exists()


# Of each table; the bytes within are as they are without TLS.
TRIED = None if GATE == "release" else sized(6, 25, 0)


@pytest.mark.parametrize("attacks", [HTTP1, HTTP2], ids=["http1", "http2"])
def test_bytes_that_no_client_should_send(target: Server, attacks: dict[str, Attack]) -> None:
    names = random.Random(run_seed()).sample(sorted(attacks), TRIED or len(attacks))
    some = {name: attacks[name] for name in names}
    survived(target, target.port, some, http2=attacks is HTTP2)


def test_handshakes_that_no_client_should_begin(target: Server) -> None:
    """Each has its end about when the headers of a request have theirs."""
    started = time.monotonic()
    # Without TLS on the client's side.
    survived(target, int(target.port), HANDSHAKES, http2=False)
    figure("handshakes, all ended after", time.monotonic() - started, below=18, unit="s")


def asked(sock: ssl.SSLSocket, http2: bool) -> list[int]:
    """The statuses of one request's answer, or of none."""
    one = START + frame(1, WHOLE, 1, block(*HEAD)) + GOODBYE
    received = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        sock.sendall(one if http2 else get("/v0/health", "Connection: close"))
        while piece := sock.recv(65536):
            received += piece
    return statuses(received, http2)


@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_is_offered_and_what_is_spoken(patient: Server, most: ssl.TLSVersion) -> None:
    """The protocol is that of the first bytes; ALPN only says what the client may count on."""
    offers: dict[tuple[str, ...], str | None] = {
        (): None,
        ("h2",): "h2",
        ("http/1.1",): "http/1.1",
        ("http/1.1", "h2"): "h2",
        ("h3", "spdy/3", "h2c"): None,
        ("x" * 255,): None,
        tuple(f"p{n}" for n in range(500)): None,
    }
    with nothing_left_behind(patient):
        for offered, agreed in offers.items():
            for http2 in (True, False):
                sock = socket.create_connection(("127.0.0.1", int(patient.port)), timeout=DEADLINE)
                with trust(*offered, most=most).wrap_socket(sock) as made:
                    assert made.selected_alpn_protocol() == agreed
                    assert made.version() == most.name.replace("v1_", "v1.")
                    assert asked(made, http2) == [200], (offered, http2)


def raw_of(sock: ssl.SSLSocket) -> socket.socket:
    """The connection below."""
    return socket.socket(fileno=os.dup(sock.fileno()))


def truncated(sock: ssl.SSLSocket) -> None:
    """TCP ends, TLS does not."""
    with raw_of(sock) as raw:
        raw.shutdown(socket.SHUT_WR)


def forged(sock: ssl.SSLSocket) -> None:
    """A record that is not the client's."""
    with raw_of(sock) as raw:
        raw.sendall(b"\x17\x03\x03\x00\x40" + GARBAGE[:64])


def again(sock: ssl.SSLSocket) -> None:
    """A second handshake in the clear."""
    with raw_of(sock) as raw:
        raw.sendall(HELLO)


def said_goodbye(sock: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        sock.unwrap()


def reset(sock: ssl.SSLSocket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


WAIT = post(b'{"wait_ms":30000}', path="/v0/topics/still/diff")
STREAM = get("/v0/watch?topic=abuse&from_seq=0")
BEGUN = START + frame(1, 4, 1, block(*HEAD[:2], (":path", "/v0/topics/half"), HEAD[3]))


@pytest.mark.parametrize("end", [truncated, forged, again, said_goodbye, reset])
def test_connections_that_end_in_the_middle(
    patient: Server, end: Callable[[ssl.SSLSocket], None]
) -> None:
    """In headers, in a body, in a wait, in a stream, by both protocols: each is let go."""
    with nothing_left_behind(patient):
        for sent in (b"", b"POST /v0/to", post(ONE)[:-5], WAIT, STREAM, START, BEGUN):
            sock = socket.create_connection(("127.0.0.1", int(patient.port)), timeout=DEADLINE)
            with trust().wrap_socket(sock) as made:
                made.sendall(sent)
                until_received(made)
                end(made)
                with contextlib.suppress(ConnectionError, ssl.SSLError, ValueError):
                    while made.fileno() >= 0 and made.recv(65536):
                        pass
    assert once(patient.port, "GET", "/v0/topics/half").status == 404


def test_a_record_of_tls_for_each_byte(patient: Server) -> None:
    request = post(ONE, "Connection: close")
    conversation = START + frame(1, WHOLE, 1, block(*HEAD)) + GOODBYE
    for raw, http2 in ((request, False), (conversation, True)):
        sock = socket.create_connection(("127.0.0.1", int(patient.port)), timeout=DEADLINE)
        with trust().wrap_socket(sock) as made:
            received = b""
            for byte in drip(raw):
                made.sendall(byte)
            while piece := made.recv(65536):
                received += piece
        assert statuses(received, http2) == [200]


@pytest.mark.parametrize("http2", [True, False], ids=["http2", "http1"])
def test_a_shutdown_finds_a_connection_that_is_lost(
    tmp_path: Path, tls: dict[str, str], http2: bool
) -> None:
    """uvloop takes the socket from a TLS transport before the protocol hears of it: a shutdown in
    between ends as any other.
    """
    context = Certificate.load(tls["TOPICS_TLS_CERT"], tls["TOPICS_TLS_KEY"])
    assert context is not None
    config = uvicorn.Config(lambda: None, lifespan="off", log_config=None)
    config.load()

    async def go() -> None:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[None] = loop.create_future()

        def lost(protocol: Any, exc: Exception | None) -> None:
            try:
                protocol.shutdown()
            except Exception as failure:
                found.set_exception(failure)
            else:
                found.set_result(None)
            finally:
                kind.connection_lost(protocol, exc)

        kind: Any = Http2Protocol if http2 else BoundedProtocol
        leaving = type("Leaving", (kind,), {"connection_lost": lost})
        state = (config, ServerState(), {}, loop)
        server = await loop.create_server(
            lambda: leaving(*state, Limits()) if http2 else leaving(*state, limits=Limits()),
            "127.0.0.1", 0, ssl=context.listener,
        )  # fmt: skip
        port = server.sockets[0].getsockname()[1]

        def leave() -> None:
            sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
            with trust().wrap_socket(sock):
                pass

        try:
            async with asyncio.timeout(DEADLINE):
                await asyncio.to_thread(leave)
                await found
        finally:
            # uvloop does not end with an open server.
            server.close()

    uvloop.run(go())


def test_many_small_streams(patient: Server) -> None:
    small_streams(patient)


def test_clients_that_take_nothing_are_let_go(target: Server) -> None:
    let_go(target)


def test_a_client_that_only_ends_is_let_go(target: Server) -> None:
    """It sends no more and takes nothing: what it is owed waits for it, but not without end."""
    with nothing_left_behind(target):
        socks = []
        for size in range(1, 600, 40):
            limits = {"max_batch_bytes": 8 << 20, "limit": size}
            asked = post(json.dumps(limits).encode(), path="/v0/topics/large/diff")
            sock = hold(target.port, asked)
            assert isinstance(sock, ssl.SSLSocket)
            until_received(sock)
            truncated(sock)
            socks.append(sock)
        mine = {sock.getsockname()[1] for sock in socks}
        until(lambda: not mine & established(target.port))
        for sock in socks:
            sock.close()
