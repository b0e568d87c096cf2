"""gzip both ways, and pages of other origins."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from support.asgi_driver import Call, Driver, run
from support.http_client import Http
from topics_engine.asgi.compress import accepts_gzip, inflate
from topics_engine.asgi.messages import HttpError
from topics_engine.asgi.streaming import END, MORE, WAIT


def test_gzip_both_ways(api: Http, topic: str) -> None:
    body = {"records": [{"data": "x" * 500} for _ in range(10)]}
    packed = gzip.compress(json.dumps(body).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert api("POST", f"/v0/topics/{topic}", packed, headers).json["count"] == 10
    path = f"/v0/topics/{topic}/diff"
    plain = api("POST", path, {})
    assert "content-encoding" not in plain.headers
    small = api("POST", path, {}, {"Accept-Encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert small.headers["vary"] == "Accept-Encoding"
    assert len(small.body) < len(plain.body) // 5
    assert json.loads(gzip.decompress(small.body))["records"] == plain.json["records"]


def test_a_body_that_unpacks_to_too_much_is_refused(api: Http, topic: str) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert len(bomb) < 200_000
    refused = api("POST", f"/v0/topics/{topic}", bomb, headers)
    assert (refused.status, refused.code) == (413, "payload_too_large")
    for bad in (b"", b"plain", gzip.compress(b"{}")[:-4], gzip.compress(b"{}") + b"x"):
        if bad:
            refused = api("POST", f"/v0/topics/{topic}", bad, headers)
            assert (refused.status, refused.code) == (400, "invalid_request"), bad
    brotli = headers | {"Content-Encoding": "br"}
    assert api("POST", f"/v0/topics/{topic}", b"x", brotli).status == 415


def test_no_more_than_the_limit_is_unpacked() -> None:
    body = gzip.compress(b"x" * 1000)
    assert inflate(body, 1000) == inflate(body, 0) == b"x" * 1000
    with pytest.raises(HttpError) as caught:
        inflate(body, 999)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, False),
        (b"*", False),
        (b"br", False),
        (b"gzip", True),
        (b"br, GZIP;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip;q=x", False),
    ],
)
def test_only_who_asks_gets_gzip(accept: bytes | None, expected: bool) -> None:
    assert accepts_gzip(accept, 5000) is expected
    assert not accepts_gzip(accept, 1000)


def test_pages_of_named_origins() -> None:
    async def go() -> None:
        driver = Driver(cors_origins="https://a.example, https://b.example")
        await driver.ready()
        page = {"origin": "https://a.example"}
        sent = await driver.request("GET", "/v0/topics", headers=page)
        assert sent.headers[b"access-control-allow-origin"] == b"https://a.example"
        assert sent.headers[b"vary"] == b"Origin"
        ahead = page | {"access-control-request-method": "PUT"}
        asked = await driver.request("OPTIONS", "/v0/topics/x", headers=ahead)
        assert asked.status == 204
        assert b"PUT" in asked.headers[b"access-control-allow-methods"]
        assert b"Authorization" in asked.headers[b"access-control-allow-headers"]
        refusal = await driver.request("GET", "/v0/nothing", headers=page)
        assert refusal.headers[b"access-control-allow-origin"] == b"https://a.example"
        other = {"origin": "https://c.example"}
        sent = await driver.request("GET", "/v0/topics", headers=other)
        assert b"access-control-allow-origin" not in sent.headers
        sent = await driver.request("OPTIONS", "/v0/topics", headers=other | ahead | other)
        assert sent.status == 403

    run(go())


def test_without_origins_nothing_is_said_of_them() -> None:
    async def go() -> None:
        driver = Driver()
        await driver.ready()
        sent = await driver.request("GET", "/v0/topics", headers={"origin": "https://a.example"})
        assert not [name for name in sent.headers if name.startswith(b"access-control")]

    run(go())


def stream(driver: Driver, pulls: list[Any], **kwargs: Any) -> Any:
    driver.http.pulls = pulls
    return driver.request("GET", "/v0/watch", query=b"topic=t", **kwargs)


def test_a_stream_is_pulled_when_something_comes() -> None:
    async def go() -> None:
        driver = Driver(lambda _: (200, b"retry: 2000\n\n"))
        await driver.ready()
        sent = asyncio.ensure_future(
            stream(driver, [([b"a"], MORE), ([b"b", b"c"], WAIT), ([b"d"], END)])
        )
        while len(driver.http.pulls) > 1:
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(driver.http.pulls) == 1, "it waits"
        driver.http.bridge.complete(driver.http.calls[0].token, 0, b"")
        response = await sent
        assert response.body == b"retry: 2000\n\nabcd"
        assert driver.http.cancelled == [driver.http.calls[0].token]

    run(go())


def test_a_stream_whose_client_goes_is_given_up() -> None:
    async def go() -> None:
        driver = Driver(lambda _: (200, b""))
        await driver.ready()
        leave = asyncio.Event()
        waiting = asyncio.ensure_future(stream(driver, [([], WAIT)], leave=leave))
        while driver.http.pulls:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert driver.app._streams.total == 1
        leave.set()
        await waiting
        assert driver.http.cancelled == [driver.http.calls[0].token]
        assert driver.app._streams.total == 0
        cut = asyncio.ensure_future(stream(driver, [([], WAIT)]))
        while driver.http.pulls:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        assert driver.http.cancelled == [c.token for c in driver.http.calls]
        assert driver.app._streams.total == 0

    run(go())


def test_a_client_that_takes_nothing_is_let_go() -> None:
    aborted = []

    async def go() -> None:
        driver = Driver(lambda _: (200, b"retry"), stall_timeout_ms=10)
        await driver.ready()
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": "/v0/watch",
            "raw_path": b"/v0/watch",
            "query_string": b"topic=t",
            "headers": [(b"host", b"localhost")],
            "extensions": {"topics.abort": {"abort": lambda: aborted.append(True)}},
        }

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def receive() -> Any:
            await asyncio.Event().wait()

        await driver.app(scope, receive, send)
        assert aborted == [True]
        assert driver.http.cancelled == [driver.http.calls[0].token]
        assert driver.app._streams.total == 0

    run(go())


def test_a_refused_stream_is_an_ordinary_answer() -> None:
    def refuse(_: Call) -> tuple[int, bytes]:
        return 404, b'{"error":{"code":"topic_not_found","message":"x"}}'

    async def go() -> None:
        driver = Driver(refuse)
        await driver.ready()
        sent = await stream(driver, [])
        assert (sent.status, sent.headers[b"content-type"]) == (404, b"application/json")

    run(go())
