"""The application over a scripted core: what it refuses, what it hands on, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from support.asgi_driver import Call, Driver, Sent, run
from topics_engine import _core
from topics_engine.asgi.access import (
    BindRefused,
    OpenGuard,
    check_bind,
    is_loopback_authority,
)
from topics_engine.asgi.matching import Router, decode_name
from topics_engine.asgi.messages import ARROW, HttpError
from topics_engine.asgi.openapi import operation_id
from topics_engine.asgi.route import ENGINELESS
from topics_engine.asgi.routes import ROUTES


def refused(driver: Driver, method: str, path: str, *args: Any, **kwargs: Any) -> tuple[int, str]:
    async def go() -> tuple[int, str]:
        await driver.ready()
        sent = await driver.request(method, path, *args, **kwargs)
        assert sent.headers[b"content-type"] == b"application/json"
        error = json.loads(sent.body)["error"]
        assert error["message"]
        return sent.status, error["code"]

    return run(go())


JSON_BODY = b'{"records":[{"data":1}]}'


@pytest.mark.parametrize(
    ("method", "path", "kwargs", "expected"),
    [
        ("GET", "/v0", {}, (404, "not_found")),
        ("GET", "/v0/topics/", {}, (404, "not_found")),
        ("GET", "/v0/topics/a/", {}, (404, "not_found")),
        ("GET", "/v0/topics//diff", {}, (404, "not_found")),
        ("POST", "/v0/topics/a/b/c", {}, (404, "not_found")),
        ("PATCH", "/v0/topics/a", {}, (405, "method_not_allowed")),
        ("OPTIONS", "/v0/topics", {}, (405, "method_not_allowed")),
        ("GET", "/v0/topics/a/diff", {}, (405, "method_not_allowed")),
        ("GET", "/v0/topics/%zz", {}, (400, "invalid_request")),
        ("GET", "/v0/topics/%2", {}, (400, "invalid_request")),
        ("GET", "/v0/topics/%ff", {}, (400, "invalid_request")),
        ("GET", "/v0/topics", {"headers": {"accept": "text/html"}}, (406, "not_acceptable")),
        (
            "GET",
            "/v0/topics",
            {"headers": {"accept": "application/json;q=0, */*"}},
            (406, "not_acceptable"),
        ),
        ("GET", "/v0/topics", {"headers": {"host": "evil.example"}}, (403, "forbidden")),
        ("GET", "/nothing", {"headers": {"host": "evil.example"}}, (403, "forbidden")),
        ("GET", "/v0/health", {"headers": {"host": "127.0.0.1.evil.example"}}, (403, "forbidden")),
        (
            "POST",
            "/v0/topics/a",
            {"body": JSON_BODY, "headers": {"content-type": ""}},
            (415, "unsupported_media_type"),
        ),
        (
            "POST",
            "/v0/topics/a",
            {"body": JSON_BODY, "headers": {"content-type": "text/plain"}},
            (415, "unsupported_media_type"),
        ),
        (
            "POST",
            "/v0/topics/a/diff",
            {"body": JSON_BODY, "headers": {"content-type": "application/x-ndjson"}},
            (415, "unsupported_media_type"),
        ),
        (
            "POST",
            "/v0/topics/a",
            {"body": JSON_BODY, "headers": {"content-type": "application/json; charset=latin-1"}},
            (415, "unsupported_media_type"),
        ),
        (
            "POST",
            "/v0/topics/a",
            {"body": JSON_BODY, "headers": {"content-encoding": "br"}},
            (415, "unsupported_media_type"),
        ),
        ("POST", "/v0/topics/a", {"body": b"x" * 101}, (413, "payload_too_large")),
        (
            "POST",
            "/v0/topics/a",
            {
                "body": [b"x" * 60, b"x" * 60],
                "headers": {"content-length": "", "transfer-encoding": "chunked"},
            },
            (413, "payload_too_large"),
        ),
        ("GET", "/v0/health", {"headers": {"x": "y" * 70_000}}, (431, "headers_too_large")),
        (
            "GET",
            "/v0/health",
            {"headers": {f"x-{i}": "y" for i in range(200)}},
            (431, "headers_too_large"),
        ),
    ],
)
def test_refusals(
    method: str, path: str, kwargs: dict[str, Any], expected: tuple[int, str]
) -> None:
    driver = Driver(max_body_bytes=100)
    assert refused(driver, method, path, **kwargs) == expected
    assert driver.http.calls == []


def test_405_names_the_methods() -> None:
    async def go() -> bytes:
        driver = Driver()
        await driver.ready()
        return (await driver.request("PATCH", "/v0/topics/a")).headers[b"allow"]

    assert run(go()) == b"DELETE, GET, HEAD, POST, PUT"


def test_a_body_that_does_not_arrive_is_408() -> None:
    driver = Driver(body_timeout_ms=1)
    headers = {"content-type": "application/json", "content-length": "10"}
    stuck = driver.request("POST", "/v0/topics/a", [], headers=headers)

    async def go() -> tuple[int, bytes]:
        await driver.ready()
        sent = await stuck
        return sent.status, sent.headers[b"connection"]

    assert run(go()) == (408, b"close")


@pytest.mark.parametrize("route", ROUTES, ids=operation_id)
def test_every_route_reaches_its_verb(route: Any) -> None:
    async def go() -> None:
        driver = Driver()
        await driver.ready()
        path = re.sub("/:[tqr]", "/a%3Ab%2e", route.path.replace(":file", "app.js"))
        # Only the last name in a path may have a slash of its own.
        path = re.sub("/:[a-z]+(?=/.*:)", "/b%2E", path)
        path = re.sub("/:[a-z]+", "/c%2Fd", path)
        body = b"{}" if route.method in ("POST", "PUT") else b""
        # What is answered here has no parameters.
        query = b"" if route.verb in (*ENGINELESS, "socket") else b"touch=true"
        sent = await driver.request(
            route.method,
            path,
            body,
            query=query,
            headers={"last-event-id" if route.streams else "idempotency-key": "k"},
        )
        if route.verb == "socket":
            assert sent.status == 400
            return
        assert sent.status == (302 if route.path == "/" else 200)
        if route.verb in ENGINELESS:
            assert driver.http.calls == []
            return
        call = driver.http.calls[0]
        name = "a:b." if route.named else ""
        parts = [p for p, there in (("b.", "/b%2E/"), ("c/d", "/c%2Fd")) if there in path]
        part = "/".join(parts)
        assert (call.route, call.name, call.part, call.body) == (route.verb, name, part, body)
        flags = _core.ACCEPT_ARROW if route.offers == (ARROW,) else 0
        assert (call.query, call.key, call.flags) == (b"touch=true", b"k", flags)

    run(go())


@pytest.mark.parametrize(
    ("method", "path", "headers", "flags", "content_type"),
    [
        ("POST", "/v0/topics/a", {"content-type": "application/x-ndjson"}, "BODY_NDJSON", None),
        ("POST", "/v0/topics/a", {"content-type": "application/octet-stream"}, "BODY_OCTETS", None),
        ("POST", "/v0/topics/a", {"content-type": "Application/JSON; charset=UTF-8"}, None, None),
        (
            "POST",
            "/v0/topics/a/diff",
            {"accept": "application/vnd.apache.arrow.stream"},
            "ACCEPT_ARROW",
            b"application/vnd.apache.arrow.stream",
        ),
        ("POST", "/v0/topics/a/diff", {"accept": "text/html, */*;q=0.1"}, None, None),
        ("GET", "/v0/metrics", {"accept": "application/json"}, "ACCEPT_JSON", None),
        (
            "GET",
            "/v0/metrics",
            {"accept": "text/*, application/json;q=0.5"},
            None,
            b"text/plain; version=0.0.4; charset=utf-8",
        ),
    ],
)
def test_content_types(
    method: str, path: str, headers: dict[str, str], flags: str | None, content_type: bytes | None
) -> None:
    async def go() -> None:
        driver = Driver()
        await driver.ready()
        body = b"{}" if method == "POST" else b""
        sent = await driver.request(method, path, body, headers=headers)
        assert sent.status == 200
        assert sent.headers[b"content-type"] == (content_type or b"application/json")
        expected = getattr(_core, flags) if flags else 0
        assert driver.http.calls[0].flags == expected

    run(go())


def test_head_has_the_headers_of_get_and_no_body() -> None:
    async def go() -> None:
        driver = Driver(lambda _: (200, b'{"topics":[]}'))
        await driver.ready()
        sent = await driver.request("HEAD", "/v0/topics")
        assert (sent.status, sent.headers[b"content-length"], sent.body) == (200, b"13", b"")

    run(go())


def test_a_body_in_pieces_is_one_body() -> None:
    async def go() -> None:
        driver = Driver(max_body_bytes=10)
        await driver.ready()
        sent = await driver.request("POST", "/v0/topics/a", [b"01234", b"", b"56789"])
        assert sent.status == 200
        assert driver.http.calls[0].body == b"0123456789"

    run(go())


def test_one_flush_leads_all_writes_of_a_tick() -> None:
    async def go() -> None:
        driver = Driver()

        def stage(call: Call) -> None:
            driver.http.staged = True
            driver.http.stage.append((call.token, 201, b"%d" % call.token))

        driver.http.answer = stage
        await driver.ready()
        writes = [driver.request("POST", "/v0/topics/a", JSON_BODY) for _ in range(50)]
        answers = await asyncio.gather(*writes)
        assert [a.status for a in answers] == [201] * 50
        assert len({a.body for a in answers}) == 50
        assert driver.http.flushes == 1

    run(go())


def test_an_answer_over_the_bridge_reaches_its_request() -> None:
    async def go() -> None:
        driver = Driver(lambda _: None)
        await driver.ready()
        both = [
            asyncio.ensure_future(driver.request("POST", "/v0/topics/a/diff", b"{}")),
            asyncio.ensure_future(driver.request("POST", "/v0/sync")),
        ]
        while len(driver.http.calls) < 2:
            await asyncio.sleep(0)
        for call in reversed(driver.http.calls):
            driver.http.bridge.complete(call.token, 200, call.route.encode())
        assert [s.body for s in await asyncio.gather(*both)] == [b"diff", b"sync"]
        assert driver.lifespan.bridge is not None
        assert driver.lifespan.bridge.pending == 0

    run(go())


def test_a_client_that_leaves_a_wait_frees_its_slot() -> None:
    async def go() -> None:
        driver = Driver(lambda _: None)
        await driver.ready()
        leave = asyncio.Event()
        waiting = asyncio.ensure_future(
            driver.request("POST", "/v0/topics/a/diff", b"{}", leave=leave)
        )
        while not driver.http.calls:
            await asyncio.sleep(0)
        assert driver.http.cancelled == []
        leave.set()
        sent = await waiting
        assert sent.status == 0
        assert driver.http.cancelled == [driver.http.calls[0].token]
        assert driver.lifespan.bridge is not None
        assert driver.lifespan.bridge.pending == 0

    run(go())


def test_a_write_goes_on_when_its_client_leaves() -> None:
    async def go() -> None:
        driver = Driver(lambda _: None)
        await driver.ready()
        leave = asyncio.Event()
        leave.set()
        writing = asyncio.ensure_future(
            driver.request("POST", "/v0/topics/a", JSON_BODY, leave=leave)
        )
        while not driver.http.calls:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert driver.http.cancelled == []
        driver.http.bridge.complete(driver.http.calls[0].token, 200, b"{}")
        assert (await writing).status == 200

    run(go())


def test_errors_of_the_core_carry_retry_after() -> None:
    status, body = _core.error_body("throttled", "slower", b'{"retry_after_ms":2100}')

    async def go() -> None:
        driver = Driver(lambda _: (status, body))
        await driver.ready()
        sent = await driver.request("POST", "/v0/topics/a", JSON_BODY)
        assert (sent.status, sent.headers[b"retry-after"], sent.body) == (429, b"3", body)

    run(go())


def test_a_refusal_of_the_moment_says_when_to_come_back() -> None:
    codes = {"throttled": 429, "shutting_down": 503, "not_ready": 503, "storage_unavailable": 503}
    for code, status in codes.items():
        headers = dict(HttpError(status, code, "later", headers=[(b"x", b"y")]).response().headers)
        assert headers == {b"x": b"y", b"retry-after": b"1"}
    assert HttpError(400, "invalid_request", "never").response().headers == []


def test_a_client_whose_answer_is_lost_by_the_end_is_told_when_to_ask_again() -> None:
    async def go() -> Sent:
        driver = Driver(lambda _: None)
        await driver.ready()
        waiting = asyncio.ensure_future(driver.request("POST", "/v0/sync"))
        while not driver.http.calls:
            await asyncio.sleep(0)
        assert driver.lifespan.bridge is not None
        driver.lifespan.bridge.close()
        return await waiting

    sent = run(go())
    assert (sent.status, sent.headers[b"retry-after"]) == (503, b"1")
    assert json.loads(sent.body)["error"]["code"] == "shutting_down"


def test_a_failing_core_is_500_and_says_nothing_of_itself() -> None:
    def fail(_: Call) -> None:
        raise ZeroDivisionError("secret")

    async def go() -> None:
        driver = Driver(fail)
        await driver.ready()
        sent = await driver.request("GET", "/v0/topics")
        assert sent.status == 500
        assert json.loads(sent.body)["error"]["code"] == "internal"
        assert b"secret" not in sent.body

    run(go())


def test_mounted_below_a_path() -> None:
    async def go() -> None:
        driver = Driver()
        await driver.ready()
        scope = {"root_path": "/api v1", "raw_path": b"/api%20v1/v0/topics/a"}
        sent = await driver.request("GET", "/api v1/v0/topics/a", scope=scope)
        assert sent.status == 200
        assert driver.http.calls[0].name == "a"

    run(go())


def test_every_path_of_the_table_has_one_verb_per_method() -> None:
    assert len({(r.method, r.path) for r in ROUTES}) == len(ROUTES)
    router = Router()
    for route in ROUTES:
        found = router.match(route.method, re.sub("/:[a-z]+", "/x", route.path).encode())
        assert found.route is route
        assert found.name == (b"x" if route.named else b"")
        assert bool(found.part) == (route.path.count("/:") > route.named)


def test_names_are_decoded_as_they_were_encoded() -> None:
    assert decode_name(b"caf%C3%A9%2F%00") == "café/\0"
    for bad in (b"%", b"a%", b"%4", b"%+1", b"% 1", b"%C3"):
        with pytest.raises(HttpError):
            decode_name(bad)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"localhost", True),
        (b"LocalHost:80", True),
        (b"127.0.0.1:4000", True),
        (b"127.8.9.1", True),
        (b"[::1]:4000", True),
        (b"[::1]", True),
        (b"", False),
        (b"example.com", False),
        (b"localhost.example.com", False),
        (b"localhost@example.com", False),
        (b"0.0.0.0:4000", False),
        (b"[::]:4000", False),
        (b"::1", False),
        (b"127.0.0.1:4000:1", False),
        (b"2130706433", False),
        (b"localhost\xff", False),
    ],
)
def test_loopback_hosts(value: bytes, expected: bool) -> None:
    assert is_loopback_authority(value) is expected


def test_listening_beyond_this_machine_without_keys_is_refused() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.com", ""):
        with pytest.raises(BindRefused, match="TOPICS_ALLOW_INSECURE_NO_AUTH"):
            check_bind(host, insecure=False)
        check_bind(host, insecure=True)
    for host in ("127.0.0.1", "localhost", "::1"):
        check_bind(host, insecure=False)


def test_an_open_server_takes_any_host() -> None:
    async def go() -> None:
        driver = Driver(guard=OpenGuard())
        await driver.ready()
        sent = await driver.request("GET", "/v0/topics", headers={"host": "example.com"})
        assert sent.status == 200

    run(go())
