"""The hot protocol may only be faster than the application: never different."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

import topics_engine as te
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


def of_type(path: str, kind: str, body: bytes, *headers: str) -> bytes:
    """A request with a body of another type than JSON."""
    return request(path, body, *headers).replace(b"application/json", kind.encode(), 1)


def ndjson(path: str, body: bytes, *headers: str) -> bytes:
    return of_type(path, "application/x-ndjson", body, *headers)


def octets(path: str, body: bytes, *headers: str) -> bytes:
    return of_type(path, "application/octet-stream", body, *headers)


def arrow(path: str, body: bytes, *headers: str) -> bytes:
    return of_type(path, "application/vnd.apache.arrow.stream", body, *headers)


def ipc(*batches: dict[str, Any]) -> bytes:
    """An Arrow IPC stream with a batch for each of these tables."""
    sink = io.BytesIO()
    tables = [pa.table(columns) for columns in batches]
    with pa.ipc.new_stream(sink, tables[0].schema) as out:
        for table in tables:
            out.write_table(table)
    return sink.getvalue()


def chunked(raw: bytes, size: int = 7) -> bytes:
    """The request with its body in chunks."""
    head, _, body = raw.partition(b"\r\n\r\n")
    head = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"\r\n\r\n" + chunks + b"0\r\n\r\n"


ROWS = ipc({"data": ["1", '{"a":[1,"é"]}', '"x"']})
BINARY = ipc({"data": [b"a", b"\0\xff"], "tag": ["t", None], "node": [None, "n"]})
META = {"meta": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string()))}
DICTIONARY = pa.array(["1", "2", "1"]).dictionary_encode()

# Writes of bodies that are not JSON.
FORMATS: dict[str, bytes] = {
    "lines": ndjson("f", b'1\n{"a":2}\r\n\n  "x" '),
    "lines with a query": ndjson("f?tag=a&node=n&key=k&return_seqs=false", b"1\n2\n"),
    "lines with a query again": ndjson("f?tag=a&node=n&key=k&return_seqs=false", b"1\n2\n"),
    "other lines for the key": ndjson("f?key=k", b"1\n3\n"),
    "lines with a key in a header": ndjson("f", b"1", "Idempotency-Key: h"),
    "lines with a bad one": ndjson("f", b'1\n{"a":\n3'),
    "lines with one that is not UTF-8": ndjson("f", b'1\n"\xff"'),
    "lines with a bad one before that": ndjson("f", b'{\n"\xff"'),
    "lines with one that is two values": ndjson("f", b"1 2\n"),
    "blank lines": ndjson("f", b"\n \r\n"),
    "no lines": ndjson("f", b""),
    "too many lines": ndjson("f", b"1\n" * 1001),
    "a line that is too large": ndjson("f", b'1\n"' + b"x" * 10_001 + b'"'),
    "too many bytes of lines": ndjson("f", b'"%s"\n' % (b"x" * 9000) * 23),
    "an unknown parameter": ndjson("f?tga=a", b"1"),
    "lines in chunks": chunked(ndjson("f", b'1\n{"a":2}')),
    "lines that wait to be asked for": ndjson("f", b"1", "Expect: 100-continue"),
    "lines that are packed": ndjson("f", b"1", "Content-Encoding: gzip"),
    "lines for a client that takes gzip": ndjson("f", b"1", "Accept-Encoding: gzip"),
    "lines for a client that takes Arrow": ndjson("f", b"1", "Accept: application/*"),
    "lines with a charset": of_type("f", "application/x-ndjson; charset=utf-8", b"1"),
    "lines with another charset": of_type("f", "application/x-ndjson; charset=latin-1", b"1"),
    "lines in capitals": of_type("f", "Application/X-NDJSON", b"1"),
    "lines and JSON": ndjson("f", b"1", "Content-Type: application/json"),
    "lines for a read": ndjson("f/diff", b"{}"),
    "lines for a claim": ndjson("f/claim", b'{"node":"a"}'),
    "another type": of_type("f", "text/csv", b"1"),
    "bytes": octets("b", b"\0\r\n\xff"),
    "bytes with a query": octets("b?tag=a&node=n&key=k", b"1"),
    "bytes for the same key": octets("b?key=k", b"2"),
    "no bytes": octets("b", b""),
    "too many bytes": octets("b", b"x" * 10_001),
    "far too many bytes": octets("b", b"x" * 200_001),
    "bytes in chunks": chunked(octets("b", b"chunks of bytes")),
    "bytes that wait to be asked for": octets("b", b"x", "Expect: 100-continue"),
    "bytes read back": request("b/diff", {"include_tags": True}),
    "rows": arrow("a", ROWS),
    "rows with a query": arrow("a?tag=a&node=n&key=k", ROWS),
    "rows with a query again": arrow("a?tag=a&node=n&key=k", ROWS),
    "binary rows": arrow("a?return_seqs=false", BINARY),
    "two batches": arrow("a", ipc({"data": ["1"]}, {"data": ["2", "3"]})),
    "rows with meta": arrow("a", ipc({"data": ["1", "2"], **META})),
    "rows of a dictionary": arrow("a", ipc({"data": DICTIONARY})),
    "large rows": arrow("a", ipc({"data": pa.array(["1"], pa.large_string())})),
    "rows of views": arrow("a", ipc({"data": pa.array(["1"], pa.string_view())})),
    "a row that is not JSON": arrow("a", ipc({"data": ["1", "{"]})),
    "a row that is not UTF-8": arrow("a", ROWS.replace(b'"x"', b'"\xff"')),
    "a tag that is not UTF-8": arrow(
        "a", ipc({"data": ["1"], "tag": ["t"]}).replace(b"t\0", b"\xff\0")
    ),
    "a row without data": arrow("a", ipc({"data": ["1", None]})),
    "a row that is too large": arrow("a", ipc({"data": ["1", '"%s"' % ("x" * 10_001)]})),
    "a tag that is too long": arrow("a", ipc({"data": ["1"], "tag": ["x" * 1000]})),
    "no column with data": arrow("a", ipc({"date": ["1"]})),
    "numbers": arrow("a", ipc({"data": [1]})),
    "tags that are numbers": arrow("a", ipc({"data": ["1"], "tag": [1]})),
    "no rows": arrow("a", ipc({"data": pa.array([], pa.string())})),
    "no stream": arrow("a", b""),
    "no Arrow": arrow("a", b"1\n2\n"),
    "rows without their end": arrow("a", ROWS[:-8]),
    "rows that break off": arrow("a", ROWS[: len(ROWS) // 2]),
    "a schema that breaks off": arrow("a", ROWS[:20]),
    "too many rows": arrow("a", ipc({"data": ["1"] * 1001})),
    "too many bytes of rows": arrow("a", ipc({"data": ['"%s"' % ("x" * 9000)] * 23})),
    "rows in chunks": chunked(arrow("a", ROWS)),
    "rows that wait to be asked for": arrow("a", ROWS, "Expect: 100-continue"),
    "rows for a queue": arrow("q", ROWS) + request("q/claim", {"node": "a"}),
    "rows for a read": arrow("a/diff", ROWS),
    "rows read back": request("a/diff", {"include_tags": True}),
    "pipelined": ndjson("p", b"1\n2") + octets("p", b"3") + arrow("p", ROWS) + request("p", one()),
    "pipelined, then read back": arrow("p", ROWS) + request("p/diff", {}),
}


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

ARROW = "application/vnd.apache.arrow.stream"
ACCEPT = f"Accept: {ARROW}"


def as_arrow(path: str, body: Any, *headers: str) -> bytes:
    return request(path, body, ACCEPT, *headers)


# Reads and scans with columns as answers, and what they read.
COLUMNS: dict[str, bytes] = {
    "filled": request(
        "c", {"records": [{"data": {"n": n}, "tag": f"t{n % 3}", "node": "n"} for n in range(20)]}
    ),
    "with meta": request("c", {"records": [{"data": 1, "meta": {"k": "v"}}, {"data": None}]}),
    "deleted": request("c/delete", {"seqs": [3, 7]}),
    "bytes": octets("o", b"\0"),
    "text behind bytes": request("o", one()),
    "large": ndjson("l", (b'"%s"\n' % (b"x" * 9000)) * 20) * 20,
    "read": as_arrow("c/diff", {}),
    "read of two": as_arrow("c/diff", {"from_seq": 1, "limit": 2}),
    "read over the deleted": as_arrow("c/diff", {"from_seq": 2, "limit": 4}),
    "read of the earliest": as_arrow("c/diff", {"from_seq": "earliest", "limit": 8192}),
    "read of more than a page": as_arrow("c/diff", {"from_seq": "earliest", "limit": 8193}),
    "read of the tail": as_arrow("c/diff", {"tail": 3}),
    "read before": as_arrow("c/diff", {"before_seq": 9, "limit": 3}),
    "read of columns": as_arrow("c/diff", {"columns": ["seq", "data"], "limit": 5}),
    "read of the index": as_arrow("c/diff", {"columns": ["seq"], "limit": 5}),
    "read of fields": as_arrow("c/diff", {"fields": {"n": "int64"}}),
    "read of tags": as_arrow("c/diff", {"match": "t1", "limit": 3}),
    "read of a node": as_arrow("c/diff", {"nodes": ["n"]}),
    "read without a node": as_arrow("c/diff", {"node": "n"}),
    "read by time": as_arrow("c/diff", {"ts_from": 1}),
    "read of synced records": as_arrow("c/diff", {"consistency": "strong"}),
    "read at the head": as_arrow("c/diff", {"from_seq": 22}),
    "read behind the head": as_arrow("c/diff", {"from_seq": 99}),
    "read of another topic id": as_arrow("c/diff", {"from_seq": 1, "topic_id": 12345}),
    "wait with records": as_arrow("c/diff", {"from_seq": 20, "wait_ms": 60_000}),
    "wait that ends": as_arrow("c/diff", {"from_seq": 22, "wait_ms": 20}),
    "read of bytes": as_arrow("o/diff", {}),
    "text among bytes": as_arrow("o/diff", {"from_seq": 1}),
    "bytes as text": as_arrow("o/diff", {"data_type": "string"}),
    "read of many bytes": as_arrow("l/diff", {"limit": 400}),
    "read of a batch": as_arrow("l/diff", {"limit": 400, "max_batch_bytes": 8 << 20}),
    "read of few bytes": as_arrow("l/diff", {"limit": 20}),
    "unknown topic": as_arrow("nobody/diff", {}),
    "unknown field": as_arrow("c/diff", {"colums": []}),
    "unknown column": as_arrow("c/diff", {"columns": ["date"]}),
    "unknown parameter": as_arrow("c/diff?x=1", {}),
    "not JSON": as_arrow("c/diff", b"{"),
    "no body": as_arrow("c/diff", b""),
    "with an id": as_arrow("c/diff", {"limit": 1}, "X-Request-Id: a-1"),
    "for a client that takes gzip": as_arrow("c/diff", {"limit": 1}, "Accept-Encoding: gzip"),
    "for one of several": request("c/diff", {}, f"Accept: {ARROW};q=0.5, application/json;q=0.1"),
    "two of them": as_arrow("c/diff", {}, ACCEPT),
    "write": as_arrow("c", one()),
    "scan": request("c/scan", {}),
    "scan of a range": as_arrow("c/scan", {"from_seq": 2, "to_seq": 9}),
    "scan of anything": request("c/scan", {"columns": ["seq", "data"]}, "Accept: */*"),
    "scan as JSON": request("c/scan", {}, "Accept: application/json"),
    "scan of many bytes": as_arrow("l/scan", {"columns": ["seq", "data"]}),
    "scan of an unknown field": as_arrow("c/scan", {"limit": 1}),
    "scan of an empty range": as_arrow("c/scan", {"from_seq": 9, "to_seq": 9}),
    "pipelined": as_arrow("c/diff", {"limit": 1})
    + request("c/diff", {"limit": 1})
    + as_arrow("c/scan", {"to_seq": 2}),
    "pipelined before a stream": as_arrow("c/diff", {"limit": 1})
    + as_arrow("l/diff", {})
    + as_arrow("c/diff", {"limit": 2}),
    "trimmed": request("c/trim", {"keep": 4}),
    "read of a gap": as_arrow("c/diff", {}),
    "read of the earliest behind a gap": as_arrow("c/diff", {"from_seq": "earliest"}),
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
    "lines": ndjson("t", b"1\n2", bearer("rw-key")),
    "lines with a key for reads": ndjson("t", b"1", bearer("ro-key")),
    "bytes with a key for another prefix": octets("t", b"x", bearer("own-key")),
    "rows": arrow("t", ROWS, bearer("rw-key")),
    "rows without a key": arrow("t", ROWS),
    "rows with a key for reads": arrow("t", ROWS, bearer("ro-key")),
}

KEYED_COLUMNS: dict[str, bytes] = {
    "filled": request("k", {"records": [{"data": n} for n in range(5)]}, bearer("rw-key")),
    "columns": as_arrow("k/diff", {"columns": ["seq", "data"]}, bearer("ro-key")),
    "a scan": request("k/scan", {}, bearer("rw-key")),
    "another prefix": as_arrow("k/diff", {}, bearer("own-key")),
    "without a key": request("k/scan", {}),
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
    """The answers without what varies."""
    received = received_for(port, parts)
    return re.sub(rb'"uptime_ms":\d+', b'"uptime_ms":0', comparable(received))


def received_for(port: int, parts: list[bytes]) -> bytes:
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
    return bytes(received)


def answers(raw: bytes) -> list[tuple[bytes, Any]]:
    """The head and the content of each answer: of an Arrow stream its schema and its batches."""
    found = []
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        if b"\r\ntransfer-encoding: chunked" not in head:
            length = re.search(rb"\r\ncontent-length: (\d+)", head)
            size = int(length[1]) if length else 0
            found.append((comparable(head), comparable(raw[:size])))
            raw = raw[size:]
            continue
        body, size = b"", -1
        while size:
            line, _, raw = raw.partition(b"\r\n")
            size = int(line, 16)
            body, raw = body + raw[:size], raw[size + 2 :]
        stream = pa.ipc.open_stream(body)
        metadata = {**stream.schema.metadata, b"topic_id": b""}
        batches = [batch.to_pydict() for batch in stream]
        times = [batch.pop("ts", []) for batch in batches]
        found.append((comparable(head), (stream.schema, metadata, batches, list(map(len, times)))))
    return found


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


def test_bodies_of_all_types_have_the_same_answers(pair: list[int]) -> None:
    for name, raw in FORMATS.items():
        plain, hot = (exchange(port, [raw]) for port in pair)
        assert plain.startswith(b"HTTP/1.1 "), name
        assert hot == plain, name
        # In pieces, of which one ends within the head.
        parts = [raw[:50], *(raw[at : at + 4096] for at in range(50, len(raw), 4096))]
        plain, hot = (exchange(port, parts) for port in pair)
        assert hot == plain, name


def test_columns_are_the_same(pair: list[int]) -> None:
    streams = 0
    for name, raw in COLUMNS.items():
        plain, hot = (answers(received_for(port, [raw]))[:-1] for port in pair)
        assert plain, name
        assert hot == plain, name
        streams += sum(isinstance(content, tuple) for _, content in hot)
    assert streams > 40


def test_with_keys_the_answers_are_the_same_bytes(keyed: list[int]) -> None:
    for name, raw in KEYED.items():
        plain, hot = (exchange(port, [raw]) for port in keyed)
        assert plain.startswith(b"HTTP/1.1 "), name
        assert hot == plain, name
    for name, raw in KEYED_COLUMNS.items():
        both = [answers(received_for(port, [raw]))[:-1] for port in keyed]
        assert both[0], name
        assert both[0] == both[1], name


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
            assert (await hot.answers(transport, 4))[-1]["next_from_seq"] == 2
            whole = request("t", one("x" * 10_000)) + request("t/diff", {"from_seq": 3})
            for at in range(0, len(whole), 2500):
                connection.data_received(whole[at : at + 2500])
            bodies = await hot.answers(transport, 6)
            assert bodies[-1]["records"][0]["data"] == "x" * 10_000
            assert transport.written[0].startswith(b"HTTP/1.1 201 Created\r\ndate: today\r\n")
            for n, write in enumerate((ndjson("t", b"1\n2"), octets("t", b"x"), arrow("t", ROWS))):
                connection.data_received(write)
                bodies = await hot.answers(transport, 7 + n)
            assert [body["count"] for body in bodies[-3:]] == [2, 1, 3]
            binary = {"data_type": "binary"}
            for n, read in enumerate((as_arrow("t/diff", binary), request("t/scan", binary))):
                connection.data_received(read)
                _, content = answers(transport.written[9 + n])[0]
                assert sum(len(batch["seq"]) for batch in content[2]) == 10
            assert hot.handed_over == []
            connection.connection_lost(None)
            assert hot.state.connections == set()

    asyncio.run(go())


def test_small_answers_of_a_turn_are_sent_together(tmp_path: Path) -> None:
    """Those before the last request of a client that pipelines are sent at once."""

    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            (one_request, first), (pipeline, second) = hot.connect(), hot.connect()
            one_request.data_received(request("t", one()))
            await hot.answers(first, 1)
            one_request.data_received(request("large", one("x" * 5000)))
            await hot.answers(first, 2)
            read = request("t/diff", {"from_seq": "earliest"})
            one_request.data_received(read)
            pipeline.data_received(read * 3)
            assert (len(first.written), len(second.written)) == (2, 2)
            await asyncio.sleep(0)  # sleep: one turn of the loop
            assert (len(first.written), len(second.written)) == (3, 3)
            one_request.data_received(request("large/diff", {"from_seq": "earliest"}))
            assert len(first.bodies[-1]["records"]) == 1
            one_request.data_received(request("nobody/diff", {}))
            assert first.bodies[-1]["error"]["code"] == "topic_not_found"

    asyncio.run(go())


def test_an_answer_is_sent_if_the_engine_is_closed_in_its_turn(tmp_path: Path) -> None:
    bodies: list[Any] = []
    refused: list[Any] = []

    async def go() -> None:
        # The lifespan finds its engine closed.
        with suppress(te.Closed):
            async with Hot(tmp_path / "d") as hot:
                asyncio.get_running_loop().set_exception_handler(
                    lambda _, context: refused.append(context["exception"])
                )
                connection, transport = hot.connect()
                connection.data_received(request("t", one()))
                await hot.answers(transport, 1)
                connection.data_received(request("t/diff", {"from_seq": "earliest"}))
                hot.app.lifespan.engine.close()
                bodies.extend(await hot.answers(transport, 2))

    asyncio.run(go())
    assert len(bodies[1]["records"]) == 1
    assert [type(error) for error in refused] == [te.Closed]


def test_columns_that_are_no_page_are_streamed_by_the_application(tmp_path: Path) -> None:
    async def go() -> None:
        async with Hot(tmp_path / "d") as hot:
            writer, written = hot.connect()
            writer.data_received(ndjson("t", b"1\n" * 9000))
            writer.data_received(ndjson("l", (b'"%s"\n' % (b"x" * 100_000)) * 40))
            await hot.answers(written, 2)
            streamed = [
                as_arrow("t/diff", {}),
                as_arrow("t/diff", {"from_seq": "earliest", "limit": 8193}),
                as_arrow("t/scan", {}),
                as_arrow("t/scan", {"ts_from": 1, "to_seq": 1}),
                as_arrow("t/diff", {"from_seq": 9000, "wait_ms": 1000}),
                as_arrow("l/diff", {"limit": 40}),
                as_arrow("l/diff", {"limit": 1, "max_batch_bytes": 8 << 20}),
                as_arrow("nobody/diff", {}),
            ]
            for n, read in enumerate(streamed):
                connection, transport = hot.connect()
                connection.data_received(as_arrow("t/diff", {"limit": 1}) + read)
                assert len(transport.written) == 1
                assert len(hot.handed_over) == n + 1
                hot.handed_over[n].data_received.assert_called_once_with(read)
            pages = [
                as_arrow("t/diff", {"limit": 8192}),
                as_arrow("t/diff", {"from_seq": 1000}),
                as_arrow("t/scan", {"to_seq": 8192}),
                as_arrow("t/diff", {"from_seq": 8999, "wait_ms": 1000}),
                as_arrow("l/diff", {"limit": 10}),
            ]
            connection, transport = hot.connect()
            for page in pages:
                connection.data_received(page)
            assert (len(transport.written), len(hot.handed_over)) == (len(pages), len(streamed))

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
            # What is answered, if not sent yet, waits for nothing.
            readers = [hot.connect() for _ in range(3)]
            for each, _ in readers:
                each.data_received(request("t/diff", {"from_seq": "earliest"}, bearer("ro-key")))
            assert not taken
            assert not hot.handed_over
            for _, each_transport in readers:
                await hot.answers(each_transport, 1)
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
            await hot.answers(transport, 4)

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
