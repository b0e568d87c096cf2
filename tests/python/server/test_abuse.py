"""Bytes that no client should send, by all protocols: an answer or an end in time, no 5xx but 503,
nothing of a smuggled request, and no descriptor, stream or slot left behind.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hpack import Encoder

from support.gate import figure, run_seed, sized
from support.h2_client import Http2Connection, Response
from support.http_client import Http, Reply, once
from support.server import Server, opened, running
from support.sse import Events
from support.tls import TlsPort, TlsServer, trust
from support.waiting import DEADLINE, until, until_received

SHORT_TIMEOUTS = {
    "TOPICS_HEADER_TIMEOUT_MS": "200",
    "TOPICS_BODY_TIMEOUT_MS": "200",
    "TOPICS_IDLE_TIMEOUT_MS": "300",
    "TOPICS_STALL_TIMEOUT_MS": "300",
    "TOPICS_MAX_BODY_BYTES": "200000",
    "TOPICS_MAX_SSE_CONNECTIONS": str(sized(16, 64, 64)),
}
# Much longer than all timeouts of a server together.
SECONDS = DEADLINE


@dataclass(frozen=True)
class Attack:
    """Pieces that are sent with a pause between two, and how the client goes on then."""

    pieces: tuple[bytes, ...]
    pause: float = 0.0
    half_close: bool = False
    reads: bool = True
    # The first piece is answered before the others are sent.
    opens: bool = False


def post(body: bytes, *headers: str, path: str = "/v0/topics/abuse", length: bool = True) -> bytes:
    given = [f"Content-Length: {len(body)}"] if length else []
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, *given, *headers, "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


ONE = b'{"records":[{"data":1}]}'
SMUGGLED = post(ONE, path="/v0/topics/smuggled")
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ONE), ONE)


def drip(data: bytes, size: int = 1) -> tuple[bytes, ...]:
    return tuple(data[at : at + size] for at in range(0, len(data), size))


def ambiguous(*headers: str, body: bytes = b"0\r\n\r\n") -> Attack:
    """A body whose end two parsers may see at two places, with a request in it."""
    return Attack((post(body + SMUGGLED, *headers, length=False),))


BODIES: dict[str, bytes] = {
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 30_000,
    "deep data": b'{"records":[{"data":' + b"[" * 129 + b"]" * 129 + b"}]}",
    "invalid UTF-8": b'{"records":[{"data":"\xc0\x80\xff"}]}',
    "lone surrogate": b'{"records":[{"data":"\\ud800"}]}',
    "lone surrogate as a key": b'{"records":[{"data":{"\\udfff":1}}]}',
    "lone surrogate as UTF-8": b'{"records":[{"data":"\xed\xa0\x80"}]}',
    "NUL": b'{"records":[{"data":"\\u0000","tag":"\\u0000"}]}',
    "raw NUL": b'{"records":[{"data":"\x00"}]}\x00',
    "1e400": b'{"records":[{"data":1e400}],"expect_head":1e400}',
    "a long number": b'{"records":[{"data":' + b"9" * 5000 + b"}]}",
    "duplicate keys": b'{"records":[{"data":1}],"records":[]}',
    "duplicate data": b'{"records":[{"data":1,"data":2}]}',
    "many keys": b"{" + b",".join(b'"%d":1' % n for n in range(10_000)) + b"}",
    "nothing but space": b" " * 100_000,
    "two values": ONE + ONE,
    "broken escapes": b'{"records":[{"data":"\\u12"},{"data":"\\x"}]}',
}
HTTP1: dict[str, Attack] = {
    "nothing": Attack(()),
    "half a line": Attack((b"GET /v0/hea",)),
    "slow headers": Attack(drip(get("/v0/health", *[f"X-{n}: y" for n in range(20)]), 4), 0.02),
    "slow headers of a hot request": Attack(drip(post(ONE), 5), 0.03),
    "slow body": Attack((post(b"", "Content-Length: 50", length=False), *drip(b"{" * 40)), 0.02),
    "slow chunks": Attack(
        (post(b"", "Transfer-Encoding: chunked", length=False), *[b"1\r\n{\r\n"] * 40), 0.02
    ),
    "a body that stops": Attack((post(ONE)[:-5],)),
    "half-closed": Attack((post(ONE),), half_close=True),
    "half-closed in a body": Attack((post(ONE)[:-5],), half_close=True),
    "half-closed in a wait": Attack(
        (post(b'{"wait_ms":30000}', path="/v0/topics/still/diff"),), half_close=True
    ),
    "gone in a wait": Attack(
        (post(b'{"wait_ms":30000}', path="/v0/topics/still/diff"),), reads=False
    ),
    "gone from a stream": Attack((get("/v0/watch?topic=abuse"),), reads=False),
    "pipelined and gone": Attack((post(ONE) * 200,), reads=False),
    "pipelined": Attack((post(ONE) * 50 + get("/v0/health") * 50,)),
    "a long path": Attack((get("/" + "x" * 100_000),)),
    "a long header": Attack((get("/v0/health", "X: " + "y" * 200_000),)),
    "many headers": Attack((get("/v0/health", *[f"X-{n}: y" for n in range(5000)]),)),
    "an announced body": Attack((post(b"", "Content-Length: 99999999999999999999", length=False),)),
    "a large body": Attack((post(b"x" * 300_000),)),
    "not HTTP": Attack((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,)),
    "HTTP/0.9": Attack((b"GET /v0/health\r\n\r\n",)),
    "HTTP/3.0": Attack((get("/v0/health").replace(b"HTTP/1.1", b"HTTP/3.0"),)),
    "CONNECT": Attack((b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,)),
    "OPTIONS of all": Attack((b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",)),
    "TRACE": Attack((b"TRACE /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n",)),
    "a whole URL": Attack((get("http://localhost/v0/health"),)),
    "a path of bytes": Attack((b"GET /v0/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",)),
    "dots": Attack((get("/v0/topics/../../etc/passwd"),)),
    "a bare CR": Attack((b"GET /v0/health HTTP/1.1\rHost: localhost\r\n\r\n",)),
    "an upgrade with a body": Attack((post(ONE, "Connection: Upgrade", "Upgrade: h2c") * 2,)),
    "an upgrade with a request in its body": Attack(
        (post(SMUGGLED, "Connection: Upgrade", "Upgrade: nonsense"),)
    ),
    "a websocket's first half": Attack(
        (get("/v0/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),)
    ),
    "half a preface": Attack((b"PRI * HTTP/2.0\r\n\r\nS",)),
    "chunks and a length": ambiguous("Transfer-Encoding: chunked", "Content-Length: 5"),
    "a length and chunks": ambiguous("Content-Length: 5", "Transfer-Encoding: chunked"),
    "two lengths": ambiguous("Content-Length: 5", "Content-Length: 300"),
    "lengths in a list": ambiguous("Content-Length: 5, 300"),
    "a signed length": ambiguous("Content-Length: +5"),
    "a hexadecimal length": ambiguous("Content-Length: 0x5"),
    "a negative length": ambiguous("Content-Length: -5"),
    "chunked twice": ambiguous("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "chunked not last": ambiguous("Transfer-Encoding: chunked, identity"),
    "almost chunked": ambiguous("Transfer-Encoding: xchunked"),
    "chunked behind a space": ambiguous("Transfer-Encoding : chunked", "Content-Length: 5"),
    "chunked behind a tab": ambiguous("Transfer-Encoding:\tchunked", "Content-Length: 5"),
    "chunked, folded": ambiguous("Transfer-Encoding:\r\n chunked", "Content-Length: 5"),
    "chunked behind NUL": ambiguous("Transfer-Encoding: \0chunked", "Content-Length: 5"),
    "a chunk's size that overflows": ambiguous(
        "Transfer-Encoding: chunked", body=b"ffffffffffffffff1\r\n{\r\n0\r\n\r\n"
    ),
    "a chunk's size with bare line feeds": ambiguous(
        "Transfer-Encoding: chunked", body=b"5\n12345\n0\n\n"
    ),
    "a chunk that is longer than it says": ambiguous(
        "Transfer-Encoding: chunked", body=b"2\r\n12345\r\n0\r\n\r\n"
    ),
    "a long extension of a chunk": Attack(
        (post(b"1;" + b"x" * 300_000, "Transfer-Encoding: chunked", length=False),)
    ),
    "trailers": Attack(
        (post(CHUNKED[:-2] + b"X: y\r\n\r\n", "Transfer-Encoding: chunked", length=False),)
    ),
    **{name: Attack((post(body),)) for name, body in BODIES.items()},
    **{f"{name}, in chunks": Attack((
        post(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), "Transfer-Encoding: chunked",
             length=False),)) for name, body in BODIES.items()},
}  # fmt: skip

HANDSHAKE = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip
OPENING = get("/v0/ws", *HANDSHAKE)
TEXT, BINARY, CLOSING, WS_PING = 0x81, 0x82, 0x88, 0x89


def message(first: int, payload: bytes, length: int = -1, mask: bytes = b"abcd") -> bytes:
    """A frame of a WebSocket, masked unless `mask` is empty."""
    size = len(payload) if length < 0 else length
    bit = 0x80 if mask else 0
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 1 << 16:
        head = bytes((first, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, bit | 127)) + size.to_bytes(8, "big")
    keys = mask * (len(payload) // 4 + 1) if mask else bytes(len(payload))
    return head + mask + bytes(a ^ b for a, b in zip(payload, keys, strict=False))


def op(**fields: object) -> bytes:
    return message(TEXT, json.dumps(fields).encode())


def ws(*frames: bytes, reads: bool = True) -> Attack:
    """A socket whose client says nothing after that."""
    return Attack((OPENING, b"".join(frames)), half_close=reads, reads=reads, opens=True)


SOCKETS: dict[str, Attack] = {
    "nothing": ws(),
    "a ping": ws(op(op="ping")),
    "without a mask": ws(message(TEXT, b"{}", mask=b"")),
    "reserved bits": ws(message(0xF1, b"{}")),
    "no such opcode": ws(message(0x83, b"{}")),
    "bytes": ws(message(BINARY, b"{}")),
    "a continuation of nothing": ws(message(0x80, b"{}")),
    "fragments without an end": ws(message(0x01, b"{"), *[message(0x00, b" ")] * 500),
    "fragments over the limit": ws(message(0x01, b"{"), *[message(0x00, b" " * 50_000)] * 5),
    "a text between fragments": ws(message(0x01, b"{"), message(TEXT, b"{}")),
    "a ping in fragments": ws(message(0x09, b"x")),
    "a ping of 126 bytes": ws(message(WS_PING, b"x" * 126)),
    "pings": ws(*[message(WS_PING, b"x")] * 2000),
    "invalid UTF-8": ws(message(TEXT, b'{"op":"\xff"}')),
    "half a message": ws(message(TEXT, b"{", length=1000)),
    "a message over the limit": ws(message(TEXT, b" " * 200_001)),
    "a length of 2^63": ws(message(TEXT, b"{}", length=1 << 63)),
    "a length of 2^62": ws(message(TEXT, b"{}", length=1 << 62)),
    "a close of a byte": ws(message(CLOSING, b"x")),
    "a close of no code": ws(message(CLOSING, (999).to_bytes(2, "big"))),
    "a close, then a message": ws(message(CLOSING, (1000).to_bytes(2, "big")), op(op="ping")),
    "a close whose reason is no text": ws(message(CLOSING, b"\x03\xe8\xff")),
    "published and gone": ws(
        *[op(op="publish", topic="abuse", records=[{"data": 1}])] * 100, reads=False
    ),
    "subscribed and gone": ws(*[op(op="subscribe", topic="large", from_seq=0)] * 64, reads=False),
    "subscribed and half-closed": ws(op(op="subscribe", topic="large", from_seq=0)),
    "half a handshake": Attack((OPENING[:-2],)),
    "an old version": Attack((OPENING.replace(b"13", b"12"),)),
    "a key that is none": Attack((OPENING.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"x"),)),
    "no key": Attack((get("/v0/ws", *HANDSHAKE[:3]),)),
    "another path": Attack((get("/v0/topics", *HANDSHAKE),)),
    "by POST": Attack((post(b"", *HANDSHAKE, path="/v0/ws"),)),
    "by HTTP/1.0": Attack((OPENING.replace(b"HTTP/1.1", b"HTTP/1.0"),), half_close=True),
    "of another host": Attack((OPENING.replace(b"localhost", b"example.org"),)),
    "a handshake and a request": Attack((OPENING + SMUGGLED,)),
    **{name: ws(message(TEXT, body[:100_000])) for name, body in BODIES.items()},
}

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int = -1) -> bytes:
    size = len(payload) if length < 0 else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def block(*headers: tuple[str, str]) -> bytes:
    return Encoder().encode(headers, huffman=False)


GET = (
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/v0/health"),
    (":authority", "localhost"),
)
POST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/v0/topics/abuse"),
    (":authority", "localhost"),
    ("content-type", "application/json"),
)
START = PREFACE + frame(4, 0, 0)
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
WHOLE = END | END_HEADERS
OPEN = frame(HEADERS, END_HEADERS, 1, block(*POST))
# The server ends the connection when it has answered.
GOODBYE = frame(GOAWAY, 0, 0, b"\0" * 8)


def h2(*frames: bytes, **kwargs: bool) -> Attack:
    return Attack((START + b"".join(frames),), **kwargs)


def asked(*headers: tuple[str, str]) -> Attack:
    return h2(frame(HEADERS, WHOLE, 1, block(*headers)))


HTTP2: dict[str, Attack] = {
    "only a preface": Attack((PREFACE,)),
    "no settings": Attack((PREFACE + frame(PING, 0, 0, b"12345678"),)),
    "slow preface": Attack(drip(START), 0.02),
    "slow headers": Attack((START, *drip(frame(HEADERS, WHOLE, 1, block(*GET)))), 0.02),
    "headers without an end": h2(frame(HEADERS, END, 1, block(*GET))),
    "headers, then another frame": h2(frame(HEADERS, END, 1, b""), frame(PING, 0, 0, b"12345678")),
    "continuations without an end": h2(
        frame(HEADERS, END, 1, b""), *[frame(CONTINUATION, 0, 1, b"x" * 100)] * 200
    ),
    "empty continuations": h2(frame(HEADERS, END, 1, b""), *[frame(CONTINUATION, 0, 1)] * 5000),
    "a continuation of nothing": h2(frame(CONTINUATION, END_HEADERS, 1, b"")),
    "data of no stream": h2(frame(DATA, END, 1, b"x")),
    "data of stream 0": h2(frame(DATA, END, 0, b"x")),
    "headers of stream 0": h2(frame(HEADERS, WHOLE, 0, block(*GET))),
    "an even stream": h2(frame(HEADERS, WHOLE, 2, block(*GET))),
    "streams backwards": h2(
        frame(HEADERS, WHOLE, 5, block(*GET)), frame(HEADERS, WHOLE, 3, block(*GET))
    ),
    "a stream twice": h2(*[frame(HEADERS, WHOLE, 1, block(*GET))] * 2),
    "an overlong frame": h2(frame(DATA, 0, 1, b"", length=(1 << 24) - 1)),
    "a frame over the size": h2(OPEN, frame(DATA, 0, 1, b"x" * 20_000)),
    "settings of 5 bytes": h2(frame(SETTINGS, 0, 0, b"12345")),
    "settings of a stream": h2(frame(SETTINGS, 0, 1)),
    "an acknowledgement with content": h2(frame(SETTINGS, ACK, 0, b"123456")),
    "acknowledgements of nothing": h2(*[frame(SETTINGS, ACK, 0)] * 50),
    "a window of 2^31": h2(frame(SETTINGS, 0, 0, b"\0\4\x80\0\0\0")),
    "push from a client": h2(frame(SETTINGS, 0, 0, b"\0\2\0\0\0\5")),
    "a frame size of 1": h2(frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1")),
    "a table of 4 GiB": h2(frame(SETTINGS, 0, 0, b"\0\1\xff\xff\xff\xff"),
                           frame(HEADERS, WHOLE, 1, block(*GET))),
    "a ping of 7 bytes": h2(frame(PING, 0, 0, b"1234567")),
    "a ping of a stream": h2(frame(PING, 0, 1, b"12345678")),
    "a window of nothing": h2(frame(WINDOW, 0, 0, b"\0\0\0\0")),
    "a window that overflows": h2(*[frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff")] * 2),
    "a stream's window that overflows": h2(OPEN, *[frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff")] * 2),
    "a window of an idle stream": h2(frame(WINDOW, 0, 99, b"\0\0\0\1")),
    "a reset of an idle stream": h2(frame(RST, 0, 99, b"\0\0\0\0")),
    "a reset of 3 bytes": h2(OPEN, frame(RST, 0, 1, b"\0\0\0")),
    "a stream that depends on itself": h2(frame(PRIORITY, 0, 1, b"\0\0\0\1\5")),
    "a push of a client": h2(OPEN, frame(PUSH, 4, 1, b"\0\0\0\2" + block(*GET))),
    "a goodbye, then a request": h2(frame(GOAWAY, 0, 0, b"\0" * 8),
                                    frame(HEADERS, WHOLE, 1, block(*GET))),
    "frames of no kind": h2(*[frame(0xEE, 0xFF, 7, b"x" * 50)] * 100,
                            frame(HEADERS, WHOLE, 1, block(*GET))),
    "padding that is too long": h2(OPEN, frame(DATA, PADDED, 1, b"\xff" + b"x" * 10)),
    "an index that there is not": h2(frame(HEADERS, WHOLE, 1, b"\xff\xff\xff\xff\x0f")),
    "an endless integer": h2(frame(HEADERS, WHOLE, 1, b"\xff" * 200)),
    "broken Huffman": h2(frame(HEADERS, WHOLE, 1, b"\x00\x85\xff\xff\xff\xff\xff\x01a")),
    "a table that grows in its block": h2(frame(HEADERS, WHOLE, 1, b"\x3f\xe1\xff\xff\x7f")),
    "a bomb of references": h2(
        frame(HEADERS, END, 1, b"\x40\x01a\x7f\xe1\x1e" + b"x" * 4000),
        *[frame(CONTINUATION, 0, 1, b"\xbe" * 16_000)] * 5,
    ),
    "capitals": asked(*GET, ("X-Capital", "y")),
    "no method": asked(*GET[1:]),
    "no path": asked(*GET[:2], GET[3]),
    "an empty path": asked(*GET[:2], (":path", ""), GET[3]),
    "no scheme": asked(GET[0], *GET[2:]),
    "no authority": asked(*GET[:3]),
    "two authorities": asked(*GET, ("host", "example.com")),
    "a method twice": asked(GET[0], *GET),
    "a pseudo-header of its own": asked(*GET, (":debug", "1")),
    "a pseudo-header too late": asked(("x", "y"), *GET),
    "a status": asked(*GET, (":status", "200")),
    "a connection": asked(*GET, ("connection", "close")),
    "chunks": asked(*GET, ("transfer-encoding", "chunked")),
    "te": asked(*GET, ("te", "gzip")),
    "a line feed": asked(*GET, ("x", "y\r\nHost: example.com")),
    "NUL in a value": asked(*GET, ("x", "y\0z")),
    "a request in the path": asked(*GET[:2], (":path", "/v0/x HTTP/1.1\r\nHost: a\r\n\r\nGET /"),
                                   GET[3]),
    "CONNECT": asked((":method", "CONNECT"), (":authority", "localhost:80")),
    "a socket by CONNECT": asked((":method", "CONNECT"), (":protocol", "websocket"), *GET[1:]),
    "a method of bytes": asked((":method", "\xe9"), *GET[1:]),
    "a long header": asked(*GET, ("x", "y" * 16_000)),
    "more than was announced": h2(
        frame(HEADERS, END_HEADERS, 1, block(*POST, ("content-length", "5"))),
        frame(DATA, END, 1, ONE),
    ),
    "less than was announced": h2(
        frame(HEADERS, END_HEADERS, 1, block(*POST, ("content-length", "500"))),
        frame(DATA, END, 1, ONE),
    ),
    "two lengths": h2(
        frame(HEADERS, END_HEADERS, 1,
              block(*POST, ("content-length", "5"), ("content-length", "24"))),
        frame(DATA, END, 1, ONE),
    ),
    "a body that stops": h2(OPEN, frame(DATA, 0, 1, b"{")),
    "a slow body": Attack((START + OPEN, *[frame(DATA, 0, 1, b"{")] * 40), 0.02),
    "trailers": h2(OPEN, frame(DATA, 0, 1, ONE), frame(HEADERS, WHOLE, 1, block(("x", "y")))),
    "trailers without an end": h2(OPEN, frame(HEADERS, END_HEADERS, 1, block(("x", "y")))),
    "data behind the end": h2(OPEN, frame(DATA, END, 1, ONE), frame(DATA, END, 1, ONE)),
    "half-closed": h2(OPEN, frame(DATA, END, 1, ONE), half_close=True),
    "gone": h2(*[frame(HEADERS, WHOLE, n, block(*GET)) for n in range(1, 99, 2)], reads=False),
    "gone from waits": h2(
        *[frame(HEADERS, END_HEADERS, n, block(*POST[:2], (":path", "/v0/topics/still/diff"),
                                               *POST[3:]))
          + frame(DATA, END, n, b'{"wait_ms":30000}') for n in range(1, 99, 2)], reads=False
    ),
    "streams of events without a window": h2(
        frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"),
        *[frame(HEADERS, WHOLE, n, block(*GET[:2], (":path", "/v0/watch?topic=abuse"), GET[3]))
          for n in range(1, 40, 2)],
    ),
    "large answers without a window": h2(
        frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"),
        *[frame(HEADERS, END_HEADERS, n, block(*POST[:2], (":path", "/v0/topics/large/diff"),
                                               *POST[3:])) + frame(DATA, END, n, b"{}")
          for n in range(1, 190, 2)],
    ),
    **{name: h2(OPEN, *[frame(DATA, 0, 1, body[at : at + 16_000])
                        for at in range(0, len(body), 16_000)], frame(DATA, END, 1))
       for name, body in BODIES.items()},
}  # fmt: skip


def strike(port: int, attack: Attack) -> bytes:
    """Everything that comes back until the connection ends."""
    received = bytearray()
    with contextlib.ExitStack() as opened, contextlib.suppress(ConnectionError, ssl.SSLError):
        sock = opened.enter_context(
            socket.create_connection(("127.0.0.1", int(port)), timeout=SECONDS)
        )
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(port, TlsPort):
            sock = opened.enter_context(trust().wrap_socket(sock))
        for n, piece in enumerate(attack.pieces):
            sock.sendall(piece)
            time.sleep(attack.pause)  # sleep: a slow client
            while attack.opens and n == 0 and b"\r\n\r\n" not in received:
                received += sock.recv(65536) or b"\r\n\r\n"
        if attack.half_close:
            half_close(sock)
        while attack.reads and (piece := sock.recv(65536)):
            received += piece
    return bytes(received)


def exchange(port: int, pieces: tuple[bytes, ...], pause: float, answers: int) -> bytes:
    """Returns all bytes that a server without short timeouts answers. After `answers` answers over
    HTTP/1.1 the client closes its sending side.
    """
    received = bytearray()
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            sock.sendall(piece)
            time.sleep(pause)  # sleep: a slow client
        while piece := sock.recv(65536):
            received += piece
            if received.count(b"HTTP/1.1 ") >= answers and is_whole(received):
                half_close(sock)
                answers = 1 << 30
    return bytes(received)


def is_whole(received: bytes | bytearray) -> bool:
    """Whether the last answer over HTTP/1.1 has its body."""
    head, end, body = received[received.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and (length is None or len(body) >= int(length[1]))


def half_close(sock: socket.socket) -> None:
    """Says that nothing more will be sent, to a server that may have gone."""
    if isinstance(sock, ssl.SSLSocket):
        sock.unwrap()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def statuses(received: bytes, http2: bool) -> list[int]:
    """Of all answers in what came back."""
    if not http2:
        return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
    client = H2Connection(H2Configuration(client_side=True, validate_inbound_headers=False))
    client.initiate_connection()
    for _ in range(100):
        with contextlib.suppress(Exception):
            client.send_headers(client.get_next_available_stream_id(), GET, end_stream=True)
    found = []
    with contextlib.suppress(Exception):
        for at in range(len(received)):
            for event in client.receive_data(received[at : at + 1]):
                headers = dict(getattr(event, "headers", None) or ())
                if b":status" in headers:
                    found.append(int(headers[b":status"]))
    return found


def impatient(
    directory: Path, env: dict[str, str], kind: type[Server] = Server
) -> Iterator[Server]:
    """A server of little patience, with something to read."""
    for server in running(directory, SHORT_TIMEOUTS | env, kind):
        fill(server)
        yield server


def fill(server: Server) -> None:
    """Makes the topics that attacks use: `large` has 600 records."""
    with contextlib.closing(Http(server.port)) as api:
        for name in ("abuse", "still"):
            assert ask(api, "PUT", f"/v0/topics/{name}").status in (200, 201)
        records = [{"data": "x" * 9000} for _ in range(20)]
        for n in range(30):
            large = {"records": records, "idempotency_key": str(n)}
            assert ask(api, "POST", "/v0/topics/large", large).status in (200, 201)


def ask(
    to: Http | int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> Reply:
    """One request, on a connection of its own unless one is given; again when this machine was too
    slow for the timeouts of the server.
    """

    def tried() -> Reply | None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            reply = api(method, path, body, headers)
            if reply.status != 408:
                return reply
        api.close()
        return None

    api = to if isinstance(to, Http) else Http(to)
    try:
        return until(tried)
    finally:
        if api is not to:
            api.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from impatient(tmp_path_factory.mktemp("plain") / "data", {"TOPICS_HOT_PROTOCOL": "0"})


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from impatient(tmp_path_factory.mktemp("hot") / "data", {})


@pytest.fixture(scope="module")
def targets(plain: Server, hot: Server) -> dict[str, Server]:
    return {"plain": plain, "hot": hot}


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Servers with the usual timeouts: a client that is slow has no other answers."""
    with contextlib.ExitStack() as stack:
        made = {}
        for name in ("plain", "hot"):
            directory = tmp_path_factory.mktemp(f"patient-{name}") / "data"
            env = {"TOPICS_HOT_PROTOCOL": str(int(name == "hot"))}
            made[name] = stack.enter_context(opened(directory, env))
        yield made


def sockets(pid: int) -> int:
    """How many sockets a process has open (Linux)."""
    found = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(entry.path).startswith("socket:")
    return found


@contextlib.contextmanager
def nothing_left_behind(server: Server, most: int = 64 << 20) -> Iterator[None]:
    """The server's sockets and streams are as before; its other files are the engine's business.
    `most` is the limit of the memory that it has gained.
    """
    # The connections of earlier tests have ended.
    until(lambda: not connected(server.port))
    before, memory = sockets(server.pid), server.memory()[1]
    yield
    until(lambda: sockets(server.pid) <= before)
    grown = server.memory()[1] - memory
    until(lambda: open_streams(server) == 0)
    smuggled = ask(server.port, "GET", "/v0/topics/smuggled")
    assert smuggled.status == 404, "it was smuggled in"
    figure("memory of the server, gained", grown / 2**20, below=most / 2**20, unit="MiB")


def open_streams(server: Server) -> int:
    """By connections of their own: this server's patience is short."""
    reply = ask(server.port, "GET", "/v0/metrics", headers={"Accept": "application/json"})
    return int(reply.json["watch_streams"])


def all_places_are_free(server: Server) -> None:
    """As many streams as there may be are opened, and not one more."""
    most = int(SHORT_TIMEOUTS["TOPICS_MAX_SSE_CONNECTIONS"])
    with contextlib.ExitStack() as opened:
        for n in range(most + 1):
            events = opened.enter_context(until(lambda: watching(server.port)))
            assert events.status == (200 if n < most else 429), f"stream {n} of {most}"
    until(lambda: open_streams(server) == 0)


def watching(port: int) -> Events | None:
    """A stream, or its refusal; `None` when this machine was too slow for the server's timeouts."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        events = Events(port, "/v0/watch?topic=abuse")
        if events.status != 408:
            return events
        events.close()
    return None


def survived(server: Server, port: int, attacks: dict[str, Attack], *, http2: bool) -> None:
    """Strikes with all of these; each has an end in time, and no answer that is a bug's."""
    wrong = []

    def one(name: str) -> None:
        try:
            received = strike(port, attacks[name])
        except TimeoutError:
            wrong.append(f"{name}: neither an answer nor an end")
            return
        found = statuses(received, http2)
        if any(status >= 500 and status not in (501, 503) for status in found):
            wrong.append(f"{name}: {found}")

    with nothing_left_behind(server), ThreadPoolExecutor(16) as pool:
        list(pool.map(one, attacks))
    assert not wrong
    assert ask(server.port, "POST", "/v0/topics/abuse", json.loads(ONE)).status == 200
    all_places_are_free(server)


@pytest.mark.parametrize(
    ("protocol", "attacks"),
    [(protocol, attacks) for protocol in ("plain", "hot") for attacks in (HTTP1, SOCKETS, HTTP2)],
)
def test_bytes_that_no_client_should_send(
    targets: dict[str, Server], protocol: str, attacks: dict[str, Attack]
) -> None:
    server = targets[protocol]
    survived(server, server.port, attacks, http2=attacks is HTTP2)


SMALL_STREAMS = sized(1000, 10_000, 10_000)
TOGETHER = 100


TWICE = ("Authorization: Bearer a", "Authorization: Bearer b")
WRONG_BODIES: dict[str, bytes] = {
    "no size": b"{}\r\n0\r\n\r\n",
    "a size that is none": b"x\r\n{}\r\n0\r\n\r\n",
    "a negative size": b"-2\r\n{}\r\n0\r\n\r\n",
    "a size that overflows": b"ffffffffffffffff1\r\n{\r\n0\r\n\r\n",
    "more than it says": b"2\r\n12345\r\n0\r\n\r\n",
    "no end of a chunk": b"2\r\n{}0\r\n\r\n",
    "wrong behind a good chunk": b"1\r\n{\r\nzz\r\n}\r\n0\r\n\r\n",
    "a trailer that is none": b"2\r\n{}\r\n0\r\n\0: x\r\n\r\n",
}
REFUSED: dict[str, tuple[bytes, int, str]] = {
    **{
        f"coded as {value}": (
            post(b"2\r\n{}\r\n0\r\n\r\n", f"Transfer-Encoding: {value}", length=False),
            501,
            "not_implemented",
        )
        for value in ("gzip, chunked", "gzip", "identity", "xchunked", "chunked, chunked",
                      "chunked, gzip", "deflate", "chunked;q=1")
    },
    "coded twice": (
        post(b"0\r\n\r\n", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked", length=False),
        501,
        "not_implemented",
    ),
    "two keys": (post(ONE, *TWICE), 400, "invalid_request"),
    "two keys of a read": (get("/v0/topics/abuse", *TWICE), 400, "invalid_request"),
    "two keys of an open route": (get("/healthz", *TWICE), 400, "invalid_request"),
    "two idempotency keys": (
        post(ONE, "Idempotency-Key: a", "Idempotency-Key: b"), 400, "invalid_request"
    ),
    "two types": (post(ONE, "Content-Type: text/plain"), 400, "invalid_request"),
    "no host": (get("/v0/topics").replace(b"Host: localhost\r\n", b""), 400, "invalid_request"),
    "no host of a hot request": (
        post(ONE).replace(b"Host: localhost\r\n", b""), 400, "invalid_request"
    ),
    "no host beside an absolute target": (
        get("http://localhost/v0/topics").replace(b"Host: localhost\r\n", b""),
        400,
        "invalid_request",
    ),
    **{
        f"a foreign target {target}": (get(target), 403, "forbidden")
        for target in ("http://evil.example/v0/topics", "https://evil.example:80/v0/topics",
                       "http://localhost@evil.example/v0/topics", "http://evil.example?/v0/topics",
                       "http://localhost.evil.example/v0/topics")
    },
    "two hosts": (get("/v0/topics", "Host: localhost"), 400, "invalid_request"),
    **{
        f"chunks with {name}": (
            post(body, "Transfer-Encoding: chunked", length=False), 400, "invalid_request"
        )
        for name, body in WRONG_BODIES.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("protocol", ["plain", "hot"])
def test_what_is_wrong_is_answered(patient: dict[str, Server], protocol: str, name: str) -> None:
    raw, status, code = REFUSED[name]
    port = patient[protocol].port
    cut = raw.index(b"\r\n\r\n") + 4
    # The body may come later: the application waits for it then.
    later = [((raw[:cut], raw[cut:]), 0.02)] if b"Transfer-Encoding" in raw else []
    for pieces, pause in (((raw,), 0.0), *later):
        received = exchange(port, pieces, pause, 1)
        assert statuses(received, http2=False) == [status], received
        assert f'{{"error":{{"code":"{code}"'.encode() in received
    # The request before it is answered first.
    received = exchange(port, (get("/v0/health") + raw,), 0.0, 2)
    assert statuses(received, http2=False) == [200, status], received
    assert once(port, "GET", "/v0/topics/smuggled").status == 404


@pytest.mark.parametrize("protocol", ["plain", "hot"])
def test_an_absolute_target_is_the_host(patient: dict[str, Server], protocol: str) -> None:
    port = patient[protocol].port
    for target in ("http://localhost/v0/topics?page_size=1", f"HTTP://127.0.0.1:{port}/healthz"):
        foreign = get(target).replace(b"Host: localhost", b"Host: evil.example")
        received = exchange(port, (foreign + get("/healthz"),), 0.0, 2)
        assert statuses(received, http2=False) == [200, 200], received


MALFORMED = {
    "no request": b"GARBAGE\r\n\r\n",
    "no length": get("/v0/health", "Content-Length: x"),
    "a coding": post(b"", "Transfer-Encoding: gzip", length=False),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("protocol", ["plain", "hot"])
def test_requests_before_a_malformed_one_are_answered(
    patient: dict[str, Server], protocol: str, name: str, topic: str
) -> None:
    port = patient[protocol].port
    lines = post(b"1\n", path=f"/v0/topics/{topic}").replace(b"/json", b"/x-ndjson")
    # Of what follows the malformed request, nothing is applied.
    for good, head in (
        ([lines], 1),
        ([lines, lines], 3),
        ([post(ONE, path=f"/v0/topics/{topic}")], 4),
    ):
        pieces = b"".join((*good, MALFORMED[name], lines))
        received = exchange(port, (pieces,), 0.0, len(good) + 1)
        found = statuses(received, http2=False)
        refused = 501 if name == "a coding" else 400
        assert [status // 100 for status in found[:-1]] == [2] * len(good), received
        assert found[-1] == refused, received
        assert ask(port, "GET", f"/v0/topics/{topic}").json["head_seq"] == head


def test_two_keys_by_http2(patient: dict[str, Server]) -> None:
    two = (("authorization", "Bearer a"), ("authorization", "Bearer b"))
    for method, path in (("GET", "/v0/topics"), ("GET", "/healthz"), ("DELETE", "/v0/topics/none")):
        given = ((":method", method), (":scheme", "http"), (":path", path))
        attack = asked(*given, (":authority", "localhost"), *two)
        attack = replace(attack, pieces=(attack.pieces[0] + GOODBYE,))
        assert statuses(strike(patient["plain"].port, attack), http2=True) == [400]


def ends(received: bytes) -> tuple[int, bytes]:
    """How many streams end in these frames, and the frame that is not whole yet."""
    found = at = 0
    while at + 9 <= len(received):
        size = 9 + int.from_bytes(received[at : at + 3], "big")
        if at + size > len(received):
            break
        kind, flags = received[at + 3], received[at + 4]
        assert kind not in (RST, GOAWAY), f"{found} streams, then {received[at : at + size]!r}"
        found += kind in (DATA, HEADERS) and bool(flags & END)
        at += size
    return found, received[at:]


def small_streams(server: Server) -> None:
    """One connection, very many small requests: all are answered, and nothing of them is kept."""
    asked, begun = block(*GET), 0
    with nothing_left_behind(server, 32 << 20), contextlib.ExitStack() as opened:
        address = ("127.0.0.1", int(server.port))
        sock = opened.enter_context(socket.create_connection(address, timeout=SECONDS))
        if isinstance(server.port, TlsPort):
            sock = opened.enter_context(trust("h2").wrap_socket(sock))
        sock.sendall(WINDOWS)
        left = b""
        while begun < SMALL_STREAMS:
            ids = range(2 * begun + 1, 2 * (begun + TOGETHER), 2)
            sock.sendall(b"".join(frame(HEADERS, WHOLE, n, asked) for n in ids))
            begun += TOGETHER
            open_ = TOGETHER
            while open_:
                piece = sock.recv(65536)
                assert piece, f"the connection ended with {begun - open_} streams answered"
                done, left = ends(left + piece)
                open_ -= done


def test_many_small_streams(patient: dict[str, Server]) -> None:
    small_streams(patient["hot"])


def conversation() -> bytes:
    """A write and a read as a client of HTTP/2 sends them, and its goodbye."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for path, body in (("/v0/topics/split", ONE), ("/v0/topics/split/diff", b'{"tail":1}')):
        stream = client.get_next_available_stream_id()
        headers = [h if h[0] != ":path" else (":path", path) for h in POST]
        client.send_headers(stream, headers)
        client.send_data(stream, body, end_stream=True)
    return client.data_to_send() + GOODBYE


@pytest.mark.slow
def test_frames_split_at_every_byte(patient: dict[str, Server]) -> None:
    raw, port = conversation(), patient["hot"].port
    # Two streams: the read may be answered before the first write is.
    assert set(statuses(strike(port, Attack((raw,))), True)) <= {201, 200, 404}
    splits = [Attack((raw[:at], raw[at:]), 0.002) for at in range(1, len(raw))]
    splits.append(Attack(drip(raw), 0.0))
    with ThreadPoolExecutor(16) as pool:
        for found in pool.map(lambda attack: statuses(strike(port, attack), True), splits):
            assert found == [200, 200]


# What a connection of HTTP/1.1 may bring, hot and not, and how each of it is answered.
UNUSUAL = (
    post(ONE, "Content-Encoding: identity", path="/v0/topics/split1")
    + post(CHUNKED, "Transfer-Encoding: chunked", path="/v0/topics/split1", length=False)
    + get("/v0/topics/split1?touch=false", "X-Odd: 1").replace(b"GET", b"HEAD")
    + get("/v0/nothing")
    + post(b'{"tail":1}', "Connection: close", path="/v0/topics/split1/diff")
)
ASKED = op(op="ping", request_id="r")
PONG = b'{"op":"pong","request_id":"r"}'


def everywhere(raw: bytes) -> Iterator[tuple[bytes, ...]]:
    """Bytes in two pieces, split at each place, and one by one."""
    for at in range(1, len(raw)):
        yield raw[:at], raw[at:]
    yield drip(raw)


def talk(port: int, opening: tuple[bytes, ...], asked: tuple[bytes, ...]) -> bytes:
    """What a socket answers until the client says goodbye, and it has."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pieces, answer in ((opening, b"\r\n\r\n"), (asked, PONG)):
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.001)  # sleep: a slow client
            while answer not in received:
                piece = sock.recv(65536)
                assert piece, bytes(received)
                received += piece
        sock.sendall(message(CLOSING, (1000).to_bytes(2, "big")))
        while piece := sock.recv(65536):
            received += piece
    return bytes(received)


@pytest.mark.parametrize("protocol", ["plain", "hot"])
def test_requests_split_at_every_byte(patient: dict[str, Server], protocol: str) -> None:
    server = patient[protocol]
    with nothing_left_behind(server), ThreadPoolExecutor(16) as pool:
        strike(server.port, Attack((UNUSUAL,)))
        attacks = [Attack(pieces, 0.001) for pieces in everywhere(UNUSUAL)]
        for at, received in enumerate(pool.map(lambda a: strike(server.port, a), attacks), 1):
            assert statuses(received, False) == [200, 200, 200, 404, 200], (at, received)


@pytest.mark.parametrize("protocol", ["plain", "hot"])
def test_sockets_split_at_every_byte(patient: dict[str, Server], protocol: str) -> None:
    server = patient[protocol]
    talks = [(pieces, (ASKED,)) for pieces in everywhere(OPENING)]
    talks += [((OPENING,), pieces) for pieces in everywhere(ASKED)]
    with nothing_left_behind(server), ThreadPoolExecutor(16) as pool:
        for received in pool.map(lambda pieces: talk(server.port, *pieces), talks):
            assert statuses(received, False) == [101], received


KEY = b"Host: localhost\r\nAuthorization: Bearer abuser"
SLOTS = 24
SLOTTED = SHORT_TIMEOUTS | {
    "TOPICS_API_KEYS": "abuser,other",
    "TOPICS_MAX_INFLIGHT_PER_KEY": str(SLOTS),
    "TOPICS_MAX_SSE_CONNECTIONS": "64",
    "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": str(SLOTS),
}


@pytest.fixture(params=["0", "1"])
def slotted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    yield from running(tmp_path / "data", SLOTTED | {"TOPICS_HOT_PROTOCOL": request.param})


def test_no_slot_of_a_key_is_left_behind(slotted: Server) -> None:
    """After all of it the key has as many requests and streams as it may have, and no more."""
    port = slotted.port
    mine = {"Authorization": "Bearer abuser"}
    attacks = [
        replace(attack, pieces=(first.replace(b"Host: localhost", KEY), *rest))
        for attack in (*HTTP1.values(), *SOCKETS.values())
        for first, *rest in (attack.pieces or (b"",),)
    ]
    for name in ("abuse", "large", "still"):
        assert ask(port, "PUT", f"/v0/topics/{name}", {}, mine).status in (200, 201)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda attack: strike(port, attack), attacks))
    metrics = mine | {"Accept": "application/json"}
    until(lambda: ask(port, "GET", "/v0/metrics", None, metrics).json["watch_streams"] == 0)
    head = ask(port, "GET", "/v0/topics/abuse", None, mine).json["head_seq"]
    wait = json.dumps({"from_seq": head, "wait_ms": 30_000}).encode()
    given = mine | {"Content-Type": "application/json"}

    def waiting() -> tuple[Http2Connection, list[Response]] | None:
        """A connection with as many waits as there may be; `None` if it was begun too slowly."""
        link = Http2Connection("127.0.0.1", port, timeout=SECONDS)
        with contextlib.suppress(OSError):
            link.connect()
            assert link.sock is not None
            waits = link.at_once(SLOTS, "POST", "/v0/topics/abuse/diff", wait, given)
            until_received(link.sock)
            if ask(port, "GET", "/v0/topics", None, mine).status == 429:
                return link, waits
        link.close()
        return None

    link, waits = until(waiting)
    watches = [link.start("GET", "/v0/watch?topic=abuse", None, mine) for _ in range(SLOTS + 1)]
    for watch in watches:
        watch.wait(lambda watch=watch: watch.status)
    assert sorted(watch.status for watch in watches) == [200] * SLOTS + [429]
    other = {"Authorization": "Bearer other"}
    assert ask(port, "POST", "/v0/topics/abuse", json.loads(ONE), other).status == 200
    for response in waits:
        response.wait(lambda response=response: response.status)
    assert [response.status for response in waits] == [200] * SLOTS
    link.close()


def test_damaged_conversations(targets: dict[str, Server]) -> None:
    """Bytes of a good conversation, changed, dropped, doubled: an answer or an end."""
    seed = run_seed()
    rng = random.Random(seed)
    good = [conversation(), post(ONE) + get("/v0/topics/abuse") + post(CHUNKED, length=False)]

    def damaged() -> bytes:
        raw = bytearray(rng.choice(good))
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(raw))
            how = rng.randrange(4)
            if how == 0:
                raw[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                del raw[at : at + rng.randrange(1, 20)]
            elif how == 2:
                raw[at:at] = raw[at : at + rng.randrange(1, 40)]
            else:
                raw[at:at] = rng.randbytes(rng.randrange(1, 9))
        return bytes(raw)

    def one(raw: bytes) -> list[int]:
        return statuses(strike(server.port, Attack((raw,))), raw.startswith(b"PRI"))

    for server in targets.values():
        with nothing_left_behind(server), ThreadPoolExecutor(32) as pool:
            for found in pool.map(one, [damaged() for _ in range(sized(100, 300, 300))]):
                assert all(s < 500 or s in (501, 503) for s in found), (seed, found)


def hold(port: int, raw: bytes) -> socket.socket:
    """A client that asks and takes nothing of the answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(SECONDS)
    sock.connect(("127.0.0.1", port))
    with contextlib.suppress(OSError):
        if isinstance(port, TlsPort):
            sock = trust().wrap_socket(sock)
        sock.sendall(raw)
    return sock


LARGE = post(b'{"max_batch_bytes":8388608,"limit":1000}', path="/v0/topics/large/diff")
WINDOWS = (
    START
    + frame(SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff")
    + frame(WINDOW, 0, 0, b"\x7f\xff\x00\x00")
)
STREAMED = get("/v0/watch?topic=large&from_seq=0&max_batch_bytes=8388608&limit=1000")
HELD: dict[str, Callable[[], bytes]] = {
    "an answer": lambda: LARGE,
    "an answer that is not hot": lambda: LARGE.replace(b"Host", b"X-Odd: 1\r\nHost"),
    "the last answer": lambda: LARGE.replace(b"Host", b"Connection: close\r\nHost"),
    "many answers": lambda: LARGE * 50,
    "a stream": lambda: STREAMED,
    "answers by HTTP/2": lambda: WINDOWS
    + b"".join(
        frame(HEADERS, END_HEADERS, n, block(*POST[:2], (":path", "/v0/topics/large/diff"),
                                             *POST[3:]))
        + frame(DATA, END, n, b'{"max_batch_bytes":8388608,"limit":1000}')
        for n in range(1, 60, 2)
    ),
    "pongs": lambda: START + frame(PING, 0, 0, b"12345678") * 1500,
}  # fmt: skip


@pytest.mark.parametrize("protocol", ["plain", "hot"])
def test_clients_that_take_nothing_are_let_go(targets: dict[str, Server], protocol: str) -> None:
    let_go(targets[protocol])


@contextlib.contextmanager
def standard_error_in(file: Path) -> Iterator[None]:
    """What processes that start in this block write to their standard error is in the file."""
    saved = os.dup(2)
    with file.open("wb") as opened_file:
        os.dup2(opened_file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@pytest.mark.parametrize("hot", ["0", "1"])
def test_clients_cannot_fill_the_log(tmp_path: Path, hot: str) -> None:
    log = tmp_path / "log"
    server = Server(tmp_path / "data", env=SHORT_TIMEOUTS | {"TOPICS_HOT_PROTOCOL": hot})
    with contextlib.ExitStack() as stack:
        with standard_error_in(log):
            stack.enter_context(server)
        fill(server)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda attack: strike(server.port, attack), SOCKETS.values()))
        scan = get("/v0/topics/large/scan")
        socks = {name: hold(server.port, make()) for name, make in HELD.items()}
        socks |= {f"scan {n}": hold(server.port, scan) for n in range(4)}
        # The client leaves while the first of its requests waits, and others queue behind it.
        wait = post(b'{"wait_ms":30000,"from_seq":0}', path="/v0/topics/still/diff")
        odd = wait.replace(b"Host", b"X-Odd: 1\r\nHost")
        for _ in range(10):
            hold(server.port, get("/v0/topics") + odd * 3).close()
        assert still_held(server, socks) == []
        for sock in socks.values():
            sock.close()
        assert server.stop() == 0
    # One line at most about each stream that breaks off, and no traceback.
    lines = log.read_text().splitlines()
    assert all(" breaks off: " in line for line in lines), lines


def let_go(server: Server) -> None:
    """Clients ask, and take nothing of what they are answered."""
    with nothing_left_behind(server, 150 << 20):
        socks = {name: hold(server.port, make()) for name, make in HELD.items()}
        # Nothing is read of any: each is let go, with the answer that it did not take.
        held = still_held(server, socks)
        assert not held, f"never let go: {held}"
        for sock in socks.values():
            sock.close()


@pytest.fixture
def lenient(
    request: pytest.FixtureRequest, tmp_path: Path, tls: dict[str, str]
) -> Iterator[Server]:
    """A server whose clients may stall, with other timeouts that are short."""
    kind = TlsServer if request.param == "tls" else Server
    env = {
        "TOPICS_STALL_TIMEOUT_MS": "600000",
        "TOPICS_HEADER_TIMEOUT_MS": "600000",
        "TOPICS_HOT_PROTOCOL": str(int(request.param != "plain")),
    }
    yield from impatient(tmp_path / "data", env | (tls if kind is TlsServer else {}), kind)


CLOSED = ("Connection: close",)


@pytest.mark.parametrize(
    ("lenient", "headers"),
    [("plain", CLOSED), ("hot", ()), ("tls", CLOSED), ("tls", ())],
    indirect=["lenient"],
    ids=["plain", "hot", "tls-closed", "tls-kept"],
)
def test_an_answer_reaches_a_slow_client_whole(lenient: Server, headers: tuple[str, ...]) -> None:
    """It takes what there is after a while, in which all timeouts but that of a stall pass."""
    body = b'{"max_batch_bytes":8388608,"limit":1000}'
    received = bytearray()
    with hold(lenient.port, post(body, *headers, path="/v0/topics/large/diff")) as sock:
        until_received(sock)
        time.sleep(1.2)  # sleep: a slow client
        while piece := sock.recv(65536):
            received += piece
    head, _, answer = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(json.loads(answer)["records"]) == 600


SCAN = post(b"{}", "Connection: close", path="/v0/topics/large/scan")


@pytest.fixture(params=["plain", "hot"])
def stalling(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that waits a second for a client that takes nothing, and ten for that of a scan."""
    env = {
        "TOPICS_STALL_TIMEOUT_MS": "1000",
        "TOPICS_HOT_PROTOCOL": str(int(request.param == "hot")),
    }
    for server in running(tmp_path / "data", env):
        fill(server)
        yield server


# The verdict is between two times of the server: a client that stalls ten seconds is ended.
@pytest.mark.explore
def test_a_scan_waits_for_a_client_who_works_on_what_he_has(stalling: Server) -> None:
    """Longer than anybody else, ten times: it holds little meanwhile. Over both protocols."""
    received = bytearray()
    link = Http2Connection("127.0.0.1", stalling.port, timeout=SECONDS)
    headers = {"content-type": "application/json"}
    response = link.start("POST", "/v0/topics/large/scan", b"{}", headers)
    with hold(stalling.port, SCAN) as sock:
        time.sleep(2.5)
        while piece := sock.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"\r\n0\r\n\r\n"), "it was broken off"
    assert len(response.read()) > 5_000_000
    assert response.ended
    link.close()


def test_a_scan_reaches_a_client_who_works_on_what_he_has(patient: dict[str, Server]) -> None:
    """The client takes nothing until the server waits for it."""
    for server in patient.values():
        fill(server)
        received = bytearray()
        with hold(server.port, SCAN) as sock:
            until_received(sock)
            until(lambda sock=sock: select.select([sock], [], [], 0)[0])
            while piece := sock.recv(65536):
                received += piece
        assert received.startswith(b"HTTP/1.1 200 ")
        assert received.endswith(b"\r\n0\r\n\r\n"), "it was broken off"


def still_held(server: Server, socks: dict[str, socket.socket]) -> list[str]:
    """Whose connection the server still has, when it had all the time that it may take."""
    mine = {sock.getsockname()[1]: name for name, sock in socks.items()}
    left: list[str] = []

    def gone() -> bool:
        left[:] = [mine[port] for port in established(server.port) if port in mine]
        return not left

    with contextlib.suppress(AssertionError):
        until(gone)
    return left


def established(port: int) -> set[int]:
    """The clients' ports of connections that the server has (Linux)."""
    return {remote for remote, state, _ in connections(port) if state in ("01", "08")}


def connected(port: int) -> set[int]:
    """The clients' ports of connections for which the server has a descriptor, or will have one."""
    found = connections(port)
    return {remote for remote, state, inode in found if state in ("01", "08") or inode != "0"}


def connections(port: int) -> Iterator[tuple[int, str, str]]:
    """The client's port, the state and the inode of each connection of a server (Linux)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, _, _, _, _, _, inode, *_ = line.split()
        if int(local.split(":")[1], 16) == port and state != "0A":
            yield int(remote.split(":")[1], 16), state, inode
