"""Bodies that are too large to be parsed on the event loop: the same answers, in the same order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.h2_client import Http2Port
from support.http_client import Http
from support.server import Server, opened
from support.websocket import Socket
from topics_engine import _core

LARGE = 3 * _core.LARGE_BODY
PROTOCOLS = ("plain", "hot", "h2")


@pytest.fixture(scope="module", params=PROTOCOLS)
def large_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    env = {"TOPICS_HOT_PROTOCOL": str(int(request.param != "plain"))}
    with opened(tmp_path_factory.mktemp(request.param) / "data", env) as server:
        server.port = Http2Port(server.port) if request.param == "h2" else server.port
        yield server


@pytest.fixture
def client(large_server: Server) -> Any:
    made = Http(large_server.port)
    yield made
    made.close()


def records(*more: Any) -> bytes:
    """A write of many records, and these."""
    many = [{"data": n, "tag": f"t:{n}"} for n in range(LARGE // 20)]
    return json.dumps({"records": [*many[:9000], {"data": "x" * LARGE}, *more]}).encode()


def test_writes_of_every_kind(client: Http) -> None:
    body = records({"data": "last"})
    assert len(body) > _core.LARGE_BODY
    made = client("POST", "/v0/topics/large", body)
    assert (made.status, made.json["count"]) == (201, 9002)
    assert made.json["seqs"] == list(range(1, 9003))
    again = client("POST", "/v0/topics/large?return_seqs=false", body)
    assert (again.status, again.json["last_seq"], "seqs" in again.json) == (200, 18_004, False)
    tail = client("POST", "/v0/topics/large/diff", {"tail": 2}).json["records"]
    assert [r["data"] for r in tail] == ["x" * LARGE, "last"]
    lines = {"Content-Type": "application/x-ndjson"}
    wide = b"\n".join([b'"%b"' % (b"y" * 1000)] * 600)
    assert client("POST", "/v0/topics/lines", wide, lines).json["count"] == 600
    octets = {"Content-Type": "application/octet-stream"}
    assert client("POST", "/v0/topics/octets", b"\xff" * LARGE, octets).json["count"] == 1


def test_refusals_are_the_same_and_the_connection_goes_on(client: Http) -> None:
    for body, code in (
        (records()[:-1], "invalid_request"),
        (records({"data": 1, "tga": "x"}), "invalid_request"),
        (records({"data": "x" * (2 << 20)}), "record_too_large"),
        (b" " * LARGE, "invalid_request"),
    ):
        reply = client("POST", "/v0/topics/refused", body)
        assert (reply.status, reply.code) == (400, code)
    assert (
        "records[9001].tga"
        in client("POST", "/v0/topics/refused", records({"data": 1, "tga": "x"})).json["error"][
            "message"
        ]
    )
    assert client("GET", "/v0/topics/refused").status == 404
    twice = {"records": [{"data": "x" * LARGE}], "expect_head": 7}
    assert client("POST", "/v0/topics/refused", twice).code == "head_mismatch"


def test_other_verbs(client: Http) -> None:
    pad = b" " * LARGE
    assert client("PUT", "/v0/topics/q", pad + b'{"type":"queue"}').status == 201
    assert client("POST", "/v0/topics/q", {"records": [{"data": 1}]}).status == 200
    read = client("POST", "/v0/topics/q/diff", pad + b'{"from_seq":0}')
    assert [r["data"] for r in read.json["records"]] == [1]
    waited = client("POST", "/v0/topics/q/diff", pad + b'{"from_seq":1,"wait_ms":20}')
    assert waited.json["records"] == []
    claim = client("POST", "/v0/topics/q/claim", pad + b'{"node":"w"}')
    assert claim.json["count"] == 1
    part = {"appends": [{"topic": "txn", "records": [{"data": "x" * 300}] * 1000}]}
    assert client("POST", "/v0/txn", part).json["topics"]["txn"]["last_seq"] == 1000
    scan = client("POST", "/v0/topics/txn/scan", pad + b'{"from_seq":990}')
    assert (scan.status, scan.headers["content-type"]) == (
        200,
        "application/vnd.apache.arrow.stream",
    )


def test_messages_of_a_socket_stay_in_order(large_server: Server) -> None:
    if isinstance(large_server.port, Http2Port):
        pytest.skip("sockets are HTTP/1.1")
    socket = Socket(large_server.port, max_size=None)
    sizes = [1, LARGE, 2, LARGE, LARGE, 3] * 3
    for n, size in enumerate(sizes):
        data = f"{n}:" + "x" * size
        socket.send({"op": "publish", "topic": "socket", "records": [{"data": data}]})
    acks = [socket.take("ack") for _ in sizes]
    assert [ack["seqs"] for ack in acks] == [[n] for n in range(1, len(sizes) + 1)]
    socket.send('{"op":"publish","topic":"socket","records":[' + " " * LARGE)
    assert socket.take("error")["code"] == "invalid_request"
    socket.ask("subscribe", "subscribed", topic="socket", from_seq=0, max_batch_bytes=1)
    got = [socket.take("record")["records"][0]["data"] for _ in sizes]
    assert [int(data.partition(":")[0]) for data in got] == list(range(len(sizes)))
    socket.close()
