"""Every error code that these routes can give, from a live server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState

from benches.demo.server import Server
from topics_engine.cli.limits import Limits
from topics_engine.cli.protocol import BoundedProtocol

from .conftest import HTTP1, Http, raw_exchange

Request = tuple[str, str, Any]


def one(data: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"records": [{"data": data}], **fields}


@dataclass(frozen=True)
class Case:
    """Requests that prepare, the one that is refused, and how. `{t}` is a topic of its own."""

    status: int
    code: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    before: tuple[Request, ...] = ()
    says: str = ""


T = "/v0/topics/{t}"
CASES: dict[str, Case] = {
    "not JSON": Case(400, "invalid_request", "POST", T, b"{"),
    "not an object": Case(400, "invalid_request", "POST", T, [1]),
    "no records": Case(400, "invalid_request", "POST", T, {}),
    "empty records": Case(400, "invalid_request", "POST", T, {"records": []}),
    "record without data": Case(400, "invalid_request", "POST", T, {"records": [{"tag": "x"}]}),
    "bad record names its index": Case(
        400,
        "invalid_request",
        "POST",
        T,
        {"records": [{"data": 1}, {"data": 2, "tag": 3}]},
        says="1",
    ),
    "NaN": Case(400, "invalid_request", "POST", T, b'{"records":[{"data":NaN}]}'),
    "BOM": Case(400, "invalid_request", "POST", T, b'\xef\xbb\xbf{"records":[{"data":1}]}'),
    "not UTF-8": Case(400, "invalid_request", "POST", T, b'{"records":[{"data":"\xff"}]}'),
    "too deep": Case(
        400, "invalid_request", "POST", T, b'{"records":[{"data":%b}]}' % (b"[" * 200 + b"]" * 200)
    ),
    "wrong type": Case(400, "invalid_request", "POST", T, one(sync="yes")),
    "tag too long": Case(
        400, "record_too_large", "POST", T, {"records": [{"data": 1, "tag": "x" * 257}]}
    ),
    "reserved meta": Case(
        400, "invalid_request", "POST", T, {"records": [{"data": 1, "meta": {"$x": "y"}}]}
    ),
    "bad name": Case(400, "invalid_request", "POST", "/v0/topics/.hidden", one()),
    "name with a slash": Case(400, "invalid_request", "POST", "/v0/topics/a%2Fb", one()),
    "name not UTF-8": Case(400, "invalid_request", "GET", "/v0/topics/%ff"),
    "name too long": Case(400, "invalid_request", "POST", "/v0/topics/" + "x" * 256, one()),
    "bad config value": Case(400, "invalid_request", "PUT", T, {"durability": "perhaps"}),
    "unknown config field": Case(
        400, "invalid_request", "PUT", T, {"cap_record": 5}, says="cap_record"
    ),
    "bad from_seq": Case(
        400, "invalid_request", "POST", T + "/diff", {"from_seq": -1}, before=(("POST", T, one()),)
    ),
    "delete of nothing": Case(
        400, "invalid_request", "POST", T + "/delete", {}, before=(("POST", T, one()),)
    ),
    "bad match": Case(
        400,
        "invalid_request",
        "POST",
        T + "/delete",
        {"match": ["tag", "Glob", "a*b*"]},
        before=(("POST", T, one()),),
    ),
    "seek without ts": Case(
        400, "invalid_request", "POST", T + "/seek", {}, before=(("POST", T, one()),)
    ),
    "bad page size": Case(400, "invalid_request", "GET", "/v0/topics?page_size=x"),
    "bad cursor": Case(400, "invalid_request", "GET", "/v0/topics?cursor=%00"),
    "too many records": Case(400, "batch_too_large", "POST", T, {"records": [{"data": 1}] * 1001}),
    "record too large": Case(400, "record_too_large", "POST", T, one("x" * 10_001)),
    "record over the whole cap": Case(
        400,
        "record_too_large",
        "POST",
        T,
        one("x" * 500),
        before=(("PUT", T, {"cap_bytes": 100, "discard": "reject"}),),
    ),
    "foreign host": Case(403, "forbidden", "GET", "/v0/topics", headers={"Host": "example.com"}),
    "get unknown": Case(404, "topic_not_found", "GET", T),
    "diff unknown": Case(404, "topic_not_found", "POST", T + "/diff", {}),
    "delete unknown": Case(404, "topic_not_found", "POST", T + "/delete", {"before_seq": 1}),
    "seek unknown": Case(404, "topic_not_found", "POST", T + "/seek", {"ts": 1}),
    "write without create": Case(404, "topic_not_found", "POST", T, one(create=False)),
    "no such path": Case(404, "not_found", "GET", "/v1/topics"),
    "no such verb": Case(404, "not_found", "POST", T + "/frobnicate", {}),
    "wrong method": Case(405, "method_not_allowed", "GET", T + "/diff", says="POST"),
    "not acceptable": Case(
        406, "not_acceptable", "GET", "/v0/topics", headers={"Accept": "image/png"}
    ),
    "type differs": Case(
        409, "topic_exists_incompatible", "PUT", T, {"type": "queue"}, before=(("PUT", T, {}),)
    ),
    "named config differs": Case(
        409,
        "topic_exists_incompatible",
        "POST",
        T,
        one(config={"ttl_ms": 5000}),
        before=(("PUT", T, {"ttl_ms": 9000}),),
        says="9000",
    ),
    "not empty": Case(
        409, "topic_not_empty", "DELETE", T + "?if_empty=true", before=(("POST", T, one()),)
    ),
    "head differs": Case(
        409, "head_mismatch", "POST", T, one(expect_head=7), before=(("POST", T, one()),), says="1"
    ),
    "key reused": Case(
        409,
        "idempotency_mismatch",
        "POST",
        T,
        one(2, idempotency_key="k"),
        before=(("POST", T, one(1, idempotency_key="k")),),
    ),
    "body over the limit": Case(413, "payload_too_large", "POST", T, one("x" * 200_001)),
    "no content type": Case(
        415, "unsupported_media_type", "POST", T, b"{}", headers={"Content-Type": ""}
    ),
    "form": Case(
        415,
        "unsupported_media_type",
        "PUT",
        T,
        b"a=b",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    ),
    "full": Case(
        422,
        "topic_full",
        "POST",
        T,
        one(),
        before=(("PUT", T, {"cap_records": 1, "discard": "reject"}), ("POST", T, one())),
    ),
    "headers too large": Case(
        431, "headers_too_large", "GET", "/v0/topics", headers={"X": "y" * 70_000}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refusal(api: Http, topic: str, name: str) -> None:
    case = CASES[name]
    for method, path, body in case.before:
        assert api(method, path.replace("{t}", topic), body).status < 300
    path = case.path.replace("{t}", topic)
    reply = api(case.method, path, case.body, case.headers)
    assert (reply.status, reply.code) == (case.status, case.code), reply.body
    error = reply.json["error"]
    assert set(error) <= {"code", "message", "detail"}
    assert case.says in error["message"] + str(error.get("detail", ""))
    # A refusal leaves nothing behind, and the connection, or the next one, is as good as new.
    assert api("GET", "/v0/health").status == 200
    if not case.before:
        assert api("GET", f"/v0/topics/{topic}").status == 404


def test_a_refused_write_appends_nothing(api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert api("POST", path, one(1)).status == 201
    bad = {"records": [{"data": 2}, {"data": 3, "meta": {"a": 1}}]}
    assert api("POST", path, bad).code == "invalid_request"
    assert api("POST", path, one(4)).json["first_seq"] == 2


@HTTP1
def test_a_body_that_stops_is_408(server: Server) -> None:
    head = (
        b"POST /v0/topics/slow HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    answer = raw_exchange(server.port, head)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer


@HTTP1
def test_headers_without_end_are_431(server: Server) -> None:
    head = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n"
    try:
        answer = raw_exchange(server.port, head, *[b"X: " + b"y" * 1000 + b"\r\n"] * 400)
    except OSError:
        # The server closed while the client was still sending; that may reset the connection.
        return
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_headers_that_stop_are_408() -> None:
    """The timer of a connection, on an event loop whose time the test moves."""
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
    answer = raw_exchange(server.port, b"\x16\x03\x01 hello\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_request"


class StoppedLoop:
    """Keeps timers instead of running them."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

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
    answer = raw_exchange(server.port, head)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in answer.partition(b"\r\n\r\n")[0]


@HTTP1
def test_a_chunked_body_over_the_limit_is_413(server: Server) -> None:
    head = (
        b"POST /v0/topics/big HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = raw_exchange(server.port, head, *[chunk] * 8, b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"payload_too_large"' in answer
