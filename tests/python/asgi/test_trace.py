"""The trace context of a request, in the meta of the records that it writes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from support.asgi_driver import Driver, run
from support.http_client import Http
from support.server import Server, opened
from support.waiting import until

from .pending import DEADLINE

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": PARENT, "tracestate": 'a=1,b="2\\'}
CONTEXT = HEADERS
OWN = "00-11111111111111111111111111111111-2222222222222222-00"


@pytest.fixture(params=["hot", "plain", "h2"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Each of them at every gate: the header takes another way in each."""
    return str(request.param)


def metas(api: Http, topic: str) -> list[Any]:
    reply = api("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0})
    assert reply.status == 200, reply.body
    return [record.get("meta") for record in reply.json["records"]]


def append(api: Http, topic: str, *records: dict[str, Any], **headers: str) -> Any:
    reply = api("POST", f"/v0/topics/{topic}", {"records": list(records)}, headers)
    assert reply.status in (200, 201), reply.body
    return reply.json


def test_records_keep_the_context_of_their_request(api: Http, topic: str) -> None:
    own = {"traceparent": OWN, "a": "b"}
    given: list[dict[str, Any]] = [
        {},
        {"meta": {}},
        {"meta": {"a": "é}"}},
        {"meta": own},
        {"meta": {"tracestate": ""}},
    ]
    append(api, topic, *({"data": 1, **more} for more in given), **HEADERS)
    append(api, topic, {"data": 1})
    append(api, topic, {"data": 1}, traceparent=PARENT)
    assert metas(api, topic) == [
        CONTEXT,
        CONTEXT,
        {"a": "é}", **CONTEXT},
        own,
        {"tracestate": ""},
        None,
        {"traceparent": PARENT},
    ]


@pytest.mark.parametrize(
    "invalid",
    ["x", PARENT[:-1], PARENT.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01", f"{PARENT}-1"],
)
def test_an_invalid_header_is_ignored(api: Http, topic: str, invalid: str) -> None:
    append(api, topic, {"data": 1}, {"data": 2, "meta": {"a": "b"}}, traceparent=invalid)
    append(api, topic, {"data": 3}, tracestate="a=1")
    append(api, topic, {"data": 4}, traceparent=PARENT, tracestate="x" * 513)
    assert metas(api, topic) == [None, {"a": "b"}, None, {"traceparent": PARENT}]


def test_every_kind_of_body(api: Http, topic: str) -> None:
    def post(kind: str, body: bytes) -> None:
        reply = api("POST", f"/v0/topics/{topic}", body, {"Content-Type": kind, **HEADERS})
        assert reply.status in (200, 201), reply.body

    post("application/x-ndjson", b"1\n2\n")
    post("application/octet-stream", b"\x00")
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({"data": ["1"]})
    with pyarrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    post("application/vnd.apache.arrow.stream", sink.getvalue().to_pybytes())
    waits = {"records": [{"data": 1}], "disable_backpressure": True}
    post("application/json", json.dumps(waits).encode())
    assert metas(api, topic) == [CONTEXT] * 5


def test_transactions(api: Http, topic: str) -> None:
    def post(path: str, body: Any) -> None:
        reply = api("POST", path, body, HEADERS)
        assert reply.status == 200, reply.body

    rows = {
        "appends": [{"topic": topic, "records": [{"data": 1}, {"data": 2, "meta": {"a": "b"}}]}]
    }
    assert api("PUT", f"/v0/topics/{topic}", {}).status == 201
    post("/v0/txn", rows)
    post(f"/v0/txn/{topic}/stage/s?part=0", rows)
    post(f"/v0/txn/{topic}/commit", {"epoch": 1, "stages": [{"id": "s", "parts": 1}]})
    assert metas(api, topic) == [CONTEXT, {"a": "b", **CONTEXT}] * 2


def test_claims_columns_and_streams_return_it(api: Http, server: Server, topic: str) -> None:
    assert api("PUT", f"/v0/topics/{topic}", {"type": "queue"}).status == 201
    append(api, topic, {"data": 1}, **HEADERS)
    reply = api(
        "POST",
        f"/v0/topics/{topic}/diff",
        {"from_seq": 0},
        {"Accept": "application/vnd.apache.arrow.stream"},
    )
    (row,) = pyarrow.ipc.open_stream(reply.body).read_all().to_pylist()
    assert dict(row["meta"]) == CONTEXT
    claimed = api("POST", f"/v0/topics/{topic}/claim", {"node": "w"}).json["claimed"]
    assert [job["meta"] for job in claimed] == [CONTEXT]


def test_a_repeat_may_have_another_context(api: Http, topic: str) -> None:
    records = [{"data": 1}, {"data": 2, "meta": {"a": "b"}}]
    body = json.dumps({"records": records}, separators=(" , ", " : ")).encode()
    answers = [
        api("POST", f"/v0/topics/{topic}", body, {"Idempotency-Key": "k", **headers}).json
        for headers in (HEADERS, {"traceparent": OWN}, {})
    ]
    assert [answer["deduped"] for answer in answers] == [False, True, True]
    assert metas(api, topic) == [CONTEXT, {"a": "b", **CONTEXT}]
    other = json.dumps({"records": [{"data": 1}, {"data": 2, "meta": {"a": "c"}}]}).encode()
    refused = api("POST", f"/v0/topics/{topic}", other, {"Idempotency-Key": "k", **HEADERS})
    assert refused.code == "idempotency_mismatch"


def test_routers_and_dead_letters_copy_it(api: Http, topic: str) -> None:
    queue, dead = f"{topic}.jobs", f"{topic}.dead"
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": dead}
    assert api("PUT", f"/v0/topics/{queue}", config).status == 201
    assert api("PUT", f"/v0/topics/{topic}", {}).status == 201
    router = {"source": topic, "dest": queue, "guarantee": "exactly_once"}
    assert api("PUT", f"/v0/routers/{topic}", router).status in (200, 201)
    append(api, topic, {"data": 1}, **HEADERS)
    claim = {"node": "w", "wait_ms": 20_000}
    (job,) = until(
        lambda: api("POST", f"/v0/topics/{queue}/claim", claim).json["claimed"], DEADLINE
    )
    assert {key: job["meta"][key] for key in CONTEXT} == CONTEXT
    nack = {"node": "w", "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
    assert api("POST", f"/v0/topics/{queue}/nack", nack).status == 200
    wait = {"from_seq": 0, "wait_ms": 20_000}
    assert api("PUT", f"/v0/topics/{dead}", {}).status in (200, 201)
    (letter,) = until(
        lambda: api("POST", f"/v0/topics/{dead}/diff", wait).json["records"], DEADLINE
    )
    assert {key: letter["meta"][key] for key in CONTEXT} == CONTEXT
    assert letter["meta"]["$dead_letter_from"] == queue


@contextmanager
def served(folder: Path, **env: str) -> Iterator[Http]:
    """A client of a server with settings of its own."""
    with opened(folder, env) as live:
        api = Http(live.port)
        yield api
        api.close()


def test_off(tmp_path: Path) -> None:
    with served(tmp_path / "data", TOPICS_TRACE_CONTEXT="false") as api:
        append(api, "t", {"data": 1}, {"data": 2, "meta": {"a": "b"}}, **HEADERS)
        # A header that is not hot sends the request to the application.
        append(api, "t", {"data": 3}, **HEADERS, cookie="a=b")
        assert metas(api, "t") == [None, {"a": "b"}, None]


def test_a_large_body_is_parsed_by_another_thread(tmp_path: Path) -> None:
    with served(tmp_path / "data") as api:
        append(api, "t", {"data": "x" * 300_000}, **HEADERS)
        append(api, "t", {"data": "x" * 300_000}, **HEADERS, cookie="a=b")
        assert metas(api, "t") == [CONTEXT] * 2


def test_a_record_at_its_limit_is_stored_without(tmp_path: Path) -> None:
    most = {"a": "b" * 40}
    env = {"TOPICS_MAX_META_BYTES": "100", "TOPICS_MAX_RECORD_BYTES": "300"}
    with served(tmp_path / "data", **env) as api:
        append(api, "t", {"data": 1}, {"data": 1, "meta": most}, traceparent=PARENT)
        append(api, "t", {"data": "x" * 290}, {"data": "x" * 200}, traceparent=PARENT)
        context = {"traceparent": PARENT}
        assert metas(api, "t") == [context, most, None, context]


def raw(port: int, topic: str, *headers: str) -> None:
    """Sends an append with header lines as they are."""
    body = b'{"records":[{"data":1}]}'
    lines = [
        f"POST /v0/topics/{topic} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as s:
        s.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        answer = s.makefile("rb").read()
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), answer


def test_repeated_headers(hot_server: Server, topic: str) -> None:
    raw(hot_server.port, topic, f"traceparent: {PARENT}", f"traceparent: {OWN}")
    raw(hot_server.port, topic, f"Traceparent: {PARENT}", "tracestate: a=1", "TraceState: b=2")
    expected = [None, {"traceparent": PARENT, "tracestate": "a=1,b=2"}]
    api = Http(hot_server.port)
    assert metas(api, topic) == expected
    api.close()


def test_only_requests_with_a_header_pass_one_on() -> None:
    driver = Driver()

    async def go() -> None:
        await driver.ready()
        for headers in ({}, {"traceparent": "x"}, {"tracestate": "a=1"}):
            body = b'{"records":[{"data":1}]}'
            await driver.request("POST", "/v0/topics/t", body, headers=headers)

    run(go())
    assert [call.trace for call in driver.http.calls] == [(None, None), (b"x", b""), (None, None)]
