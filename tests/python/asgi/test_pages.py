"""Web pages: on a server without keys none of another origin gets anything done, whatever a browser
sends of it and whatever it leaves out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from support.h2_client import Http2Port
from support.http_client import Http
from support.server import Server, opened
from support.sse import Events
from support.websocket import Socket
from topics_engine.asgi.openapi import operation_id
from topics_engine.asgi.route import Route
from topics_engine.asgi.routes import ROUTES

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}
ALLOWED = "https://app.example"
# What pages of other origins are known by.
FOREIGN: dict[str, dict[str, str]] = {
    "another site": {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    "its origin alone": {"Origin": "https://evil.example"},
    "its name in ours": {"Origin": "http://127.0.0.1.evil.example"},
    "a sandbox": {"Origin": "null"},
    "a file": {"Origin": "file://"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "another name": {"Origin": "http://localhost:{port}"},
    "no port": {"Origin": "http://127.0.0.1"},
    "nothing of an origin": {"Origin": ""},
    "an image of another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "an image of the same site": {"Sec-Fetch-Site": "same-site"},
    "a link": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    "a word of later": {"Sec-Fetch-Site": "moon"},
    "both, of which one is ours": {
        "Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"
    },
    "an old browser": BROWSER | {"Referer": "https://evil.example/page"},
    "an old browser of a page with our name": BROWSER
    | {"Referer": "https://evil.example/http://127.0.0.1:{port}/"},
    "an origin that is allowed, of a page that is not": {
        "Origin": f"{ALLOWED}.evil.example", "Referer": ALLOWED
    },
}  # fmt: skip
# Where the page's own requests come from, and programs.
OWN: dict[str, dict[str, str]] = {
    "a program": {},
    "a program that says so": {"User-Agent": "curl/8"},
    "our page": BROWSER | {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"},
    "a stream of our page": BROWSER | {"Sec-Fetch-Site": "same-origin"},
    "an address that somebody typed": BROWSER | {"Sec-Fetch-Site": "none"},
    "our page in an old browser": BROWSER | {"Referer": "http://127.0.0.1:{port}/console"},
    "a page that is allowed": BROWSER | {"Origin": ALLOWED, "Sec-Fetch-Site": "cross-site"},
}
HARMLESS = [r for r in ROUTES if r.open or r.verb == "openapi"]
GUARDED = [r for r in ROUTES if r not in HARMLESS]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack:
        made: dict[str, int] = {}
        for name, hot in (("plain", "0"), ("hot", "1")):
            directory: Path = tmp_path_factory.mktemp(f"pages-{name}") / "data"
            env = {"TOPICS_CORS_ORIGINS": ALLOWED, "TOPICS_HOT_PROTOCOL": hot}
            server: Server = stack.enter_context(opened(directory, env))
            api = Http(server.port)
            assert api("PUT", "/v0/topics/q", {"type": "queue"}).status == 201
            assert api("POST", "/v0/topics/q", {"records": [{"data": 1}]}).status == 200
            assert api("POST", "/v0/topics/t", {"records": [{"data": 1}]}).status == 201
            api.close()
            made[name] = server.port
        yield made | {"h2": Http2Port(made["hot"])}


@pytest.fixture
def port(servers: dict[str, int], protocol: str) -> int:
    return servers[protocol]


def given(headers: dict[str, str], port: int) -> dict[str, str]:
    return {name: value.replace("{port}", str(int(port))) for name, value in headers.items()}


def path_of(route: Route) -> str:
    return re.sub("/:[a-z]+", "/q", route.path)


@pytest.mark.parametrize("route", GUARDED, ids=operation_id)
def test_no_page_of_another_origin_is_served(port: int, route: Route) -> None:
    api = Http(port)
    body = {} if route.body is not None else None
    for who, headers in FOREIGN.items():
        if who == "nothing of an origin":
            # Our client leaves a header without a value out.
            continue
        reply = api(route.method, path_of(route), body, given(headers, port))
        assert (reply.status, reply.code) == (403, "forbidden"), (who, reply)
        assert "TOPICS_CORS_ORIGINS" in reply.json["error"]["message"]
    # A browser that says nothing, of what it sends without asking first.
    if route.method in ("GET", "POST"):
        kinds = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; b=1")
        for kind in kinds if route.method == "POST" else ("",):
            headers = BROWSER | ({"Content-Type": kind} if kind else {})
            reply = api(route.method, path_of(route), b"x" if kind else None, headers)
            assert (reply.status, reply.code) == (403, "forbidden"), (kind, reply)
    api.close()


def test_nothing_was_claimed_or_written(port: int) -> None:
    """By streams, which a page may open with the tag of an image."""
    for who, headers in FOREIGN.items():
        for path in ("/v0/topics/q/work?node=w", "/v0/watch?topic=q"):
            with Events(port, path, given(headers, port)) as events:
                assert (events.status, events.code) == (403, "forbidden"), who
    api = Http(port)
    assert (
        api("GET", "/v0/topics/q").json["queue"] | {"dead": 0}
        == api("GET", "/v0/topics/q").json["queue"]
    )
    queue = api("GET", "/v0/topics/q").json["queue"]
    assert (queue["ready"], queue["in_flight"]) == (1, 0)
    api.close()


@pytest.mark.parametrize("who", OWN)
def test_programs_and_own_pages_are_served(port: int, who: str) -> None:
    api = Http(port)
    headers = given(OWN[who], port)
    for method, path, body in (
        ("POST", "/v0/topics/t", {"records": [{"data": 1}]}),
        ("POST", "/v0/topics/t/diff", {}),
        ("POST", "/v0/sync", {}),
        ("GET", "/v0/topics/t", None),
        ("GET", "/v0/topics?touch=true", None),
        ("DELETE", "/v0/topics/none", None),
    ):
        assert api(method, path, body, headers).status == 200, (method, path)
    with Events(port, "/v0/watch?topic=t&from_seq=0", headers) as events:
        assert events.status == 200
        assert events.until("record")
    api.close()


def test_a_browser_that_says_nothing_may_send_json(port: int) -> None:
    """It has asked first, so that its page was refused there."""
    api = Http(port)
    assert api("POST", "/v0/topics/t", {"records": [{"data": 1}]}, BROWSER).status == 200
    assert api("PUT", "/v0/topics/t", {}, BROWSER).status == 200
    assert api("DELETE", "/v0/topics/none", None, BROWSER).status == 200
    api.close()


@pytest.mark.parametrize("route", HARMLESS, ids=operation_id)
def test_what_answers_without_the_engine_is_open(port: int, route: Route) -> None:
    api = Http(port)
    for headers in (*FOREIGN.values(), *OWN.values(), BROWSER):
        assert (
            api(
                route.method, route.path.replace(":file", "app.js"), None, given(headers, port)
            ).status
            == route.statuses[0]
        )
    api.close()


@pytest.mark.parametrize("protocol", ["plain", "hot"])
def test_sockets(servers: dict[str, int], protocol: str) -> None:
    port = servers[protocol]
    for who, headers in (FOREIGN | {"silent": BROWSER}).items():
        with pytest.raises(InvalidStatus) as refused:
            Socket(port, additional_headers=given(headers, port), user_agent_header=None)
        assert refused.value.response.status_code == 403, who
    for headers in OWN.values():
        socket = Socket(port, additional_headers=given(headers, port), user_agent_header=None)
        assert socket.ask("ping", "pong")
        socket.close()
