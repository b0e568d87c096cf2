"""Keys: what a client may do, by route, by name, by session; and what others learn of a key."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.asgi_driver import Driver, Sent, run
from support.h2_client import Http2Port
from support.http_client import Http
from support.server import Server, opened, running
from support.sse import Events
from support.waiting import until
from topics_engine.asgi.access import BindRefused, KeyGuard, check_bind
from topics_engine.asgi.keys import SCOPES, Keys, forget
from topics_engine.asgi.openapi import operation_id
from topics_engine.asgi.routes import ROUTES
from topics_engine.asgi.settings import resolve
from topics_engine.errors import InvalidRequest

from ..server.test_serve import serve
from .pending import DEADLINE
from .test_watch import streams

ROOT, READER, ORDERS, SWEEPER = "root-key", "reader-key", "orders-key", "sweeper-key"
CHIEF = "chief-key"
KEYS = f"{ROOT},{READER}:read,{ORDERS}:rw:orders.|jobs,{SWEEPER}:delete+r,{CHIEF}::chief."


class Client(Http):
    """Sends one key with every request."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__(port)
        self.bearer = {"Authorization": f"Bearer {key}"}

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        return super().__call__(method, path, body, {**self.bearer, **(headers or {})})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from running(tmp_path_factory.mktemp("keys") / "data", {"TOPICS_API_KEYS": KEYS})


@pytest.fixture
def clients(guarded: Server) -> Iterator[dict[str, Client]]:
    made = clients_of(guarded)
    yield made
    for client in made.values():
        client.close()


def clients_of(server: Server) -> dict[str, Client]:
    return {key: Client(server.port, key) for key in (ROOT, READER, ORDERS, SWEEPER, CHIEF)}


def ask(keys: str, route: Any, key: str | None) -> Sent:
    async def go() -> Sent:
        driver = Driver(guard=KeyGuard(Keys.parse(keys)))
        await driver.ready()
        path = re.sub("/:[a-z]+", "/x", route.path.replace(":file", "app.js"))
        body = b"{}" if route.method in ("POST", "PUT") else b""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        sent = await driver.request(route.method, path, body, headers=headers)
        # Whoever is refused did not reach the core.
        assert sent.status == 200 or driver.http.calls == []
        return sent

    return run(go())


@pytest.mark.parametrize("route", ROUTES, ids=operation_id)
def test_every_route_asks_for_its_scopes(route: Any) -> None:
    if route.open:
        assert ask("k", route, None).status == (302 if route.path == "/" else 200)
        return
    good = 400 if route.verb == "socket" else 200
    for absent in (None, "", "other", "k "):
        sent = ask("k", route, absent)
        expected = good if absent == "k " else 401
        assert sent.status == expected, absent
        if expected == 401:
            assert sent.headers[b"www-authenticate"].startswith(b"Bearer")
    assert ask(f"k:{'+'.join(route.needs)}", route, "k").status == good
    for missing in route.needs:
        rest = "+".join(s for s in SCOPES if s != missing)
        sent = ask(f"k:{rest}", route, "k")
        error = json.loads(sent.body)["error"]
        assert (sent.status, error["code"]) == (403, "forbidden")
        assert error["detail"] == {"missing": [missing]}


def test_a_path_that_is_not_there_asks_for_a_key_too() -> None:
    async def go() -> None:
        driver = Driver(guard=KeyGuard(Keys.parse("k")))
        await driver.ready()
        assert (await driver.request("GET", "/v0/nothing")).status == 401
        bearer = {"authorization": "bearer k"}
        assert (await driver.request("GET", "/v0/nothing", headers=bearer)).status == 404

    run(go())


@pytest.mark.parametrize("path", ["/v0/health", "/healthz", "/v0/ready", "/readyz"])
def test_probes_are_open_unless_told(path: str) -> None:
    async def go() -> None:
        for probes, expected in ((False, 200), (True, 401)):
            driver = Driver(guard=KeyGuard(Keys.parse("k"), probes=probes))
            await driver.ready()
            assert (await driver.request("GET", path)).status == expected

    run(go())


def test_a_token_in_the_query_opens_streams_only_and_is_not_kept() -> None:
    async def go() -> None:
        driver = Driver(guard=KeyGuard(Keys.parse("k%:read")))
        await driver.ready()
        scope: dict[str, Any] = {"query_string": b"topic=a&token=k%25"}
        sent = await driver.request("GET", "/v0/watch", scope=scope)
        assert sent.status == 200
        # Neither the core nor a log sees it.
        assert driver.http.calls[0].query == b"topic=a"
        opened = set()
        for route in ROUTES:
            body = b"{}" if route.method in ("POST", "PUT") else b""
            path = re.sub("/:[a-z]+", "/x", route.path)
            sent = await driver.request(route.method, path, body, query=b"token=k%25")
            if sent.status != 401 and not route.open:
                opened.add(path)
        # This key has not what it takes to work.
        assert opened == {"/v0/watch", "/v0/watch/x", "/v0/topics/x/work"}

    run(go())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (",", "entry 1"),
        ("a,,b", "entry 2"),
        ("a,secret x", "entry 2"),
        ("secret:everything", "scopes must be"),
        ("secret:read+", "scopes must be"),
        ("secret:x", "scopes must be"),
        ("secret::or ders", "prefix"),
        ("secret::a||b", "prefix"),
        ("secret::*", "prefix"),
        ("secret:r:", "entry 1: the prefix is empty"),
        ("secret::", "the prefix is empty"),
        ("a,secret:rw: ,b", "entry 2: the prefix is empty"),
        ("secret,other,secret:read", "entry 3: the key was given before"),
        ("sécret", "printable"),
    ],
)
def test_a_malformed_entry_stops_the_start_and_is_not_repeated(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        Keys.parse(text)
    assert "secret" not in str(caught.value)


def test_scopes_and_prefixes() -> None:
    keys = Keys.parse("a, b:rw,c:read+delete:x.|y:z , d::p,e:rwda")
    found = {name: keys.find(name.encode()) for name in "abcde"}
    scopes = {
        name: client and "".join(sorted(s[0] for s in client.scopes))
        for name, client in found.items()
    }
    assert scopes == {"a": "adrw", "b": "rw", "c": "dr", "d": "adrw", "e": "adrw"}
    grants = keys.grants()
    assert grants is not None
    assert [g[1:] for g in grants] == [
        ([], True),
        ([], False),
        (["x.", "y:z"], False),
        (["p"], True),
        ([], True),
    ]
    assert keys.find(b"A") is keys.find(b"") is None
    assert not Keys.parse("")
    assert Keys().grants() is None


def test_keys_are_parsed_and_found_by_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    class Digest(bytes):
        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return super().__eq__(other)

    def sha256(secret: bytes) -> SimpleNamespace:
        digest = Digest(hashlib.sha256(secret).digest())
        return SimpleNamespace(digest=lambda: digest)

    monkeypatch.setattr("topics_engine.asgi.keys.hashlib", SimpleNamespace(sha256=sha256))
    keys = Keys.parse(",".join(f"k{n}:r" for n in range(2000)))
    assert len(keys) == 2000
    assert keys.find(b"none") is None
    assert compared == []
    assert keys.find(b"k1999") is not None
    assert len(compared) <= 1


def test_a_key_is_kept_as_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys.parse("hunter2:read")
    assert "hunter2" not in repr(keys) + str(vars(keys)) + repr(keys.find(b"hunter2"))
    settings = resolve(environ={"TOPICS_API_KEYS": "hunter2"}).settings
    assert "hunter2" not in repr(settings)
    monkeypatch.setenv("TOPICS_API_KEYS", "hunter2")
    forget("other")
    assert "TOPICS_API_KEYS" in os.environ
    forget("hunter2")
    assert "TOPICS_API_KEYS" not in os.environ


def test_serve_refuses_a_malformed_key_and_listens_anywhere_with_one(tmp_path: Path) -> None:
    bad = serve(TOPICS_API_KEYS="secret:nothing", TOPICS_DATA_DIR=str(tmp_path / "d"))
    assert bad.returncode == 2
    assert "TOPICS_API_KEYS, entry 1" in bad.stderr
    assert "secret" not in bad.stderr + bad.stdout
    assert not (tmp_path / "d").exists()
    with pytest.raises(BindRefused):
        check_bind("0.0.0.0", insecure=False, keys=False)
    check_bind("0.0.0.0", insecure=False, keys=True)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dict[str, Client]]:
    """Clients of a server that no other test uses."""
    with opened(tmp_path / "data", {"TOPICS_API_KEYS": KEYS}) as server:
        yield clients_of(server)


def test_names_are_bound_by_prefixes(alone: dict[str, Client]) -> None:
    clients = alone
    root, orders = clients[ROOT], clients[ORDERS]
    one = {"records": [{"data": 1}]}
    for topic in ("orders.eu", "other", "jobs"):
        assert root("PUT", f"/v0/topics/{topic}").status == 201
    assert orders("POST", "/v0/topics/orders.eu", one).status == 200
    assert orders("POST", "/v0/topics/orders.new", one).status == 201
    refused = [
        ("POST", "/v0/topics/other", one),
        ("POST", "/v0/topics/orders", one),
        ("GET", "/v0/topics/none-such", None),
        ("POST", "/v0/topics/orders.none", one | {"config": {"ttl_ms": 5}}),
        ("POST", "/v0/state", {"topics": ["other"]}),
        ("POST", "/v0/watch", {"topics": {"orders.eu": {}, "other": {}}}),
        ("POST", "/v0/watch", {"patterns": ["*"]}),
        ("GET", "/v0/consumers?topic=other", None),
        ("GET", "/v0/watch?topic=other", None),
        ("POST", "/v0/topics/other/claim", {"node": "w"}),
    ]
    for method, path, body in refused:
        reply = orders(method, path, body)
        assert (reply.status, reply.code) == (403, "forbidden"), (method, path, reply.body)
        assert reply.json["error"]["message"]
    # A topic that exists keeps its config, so that a write with one needs no administrator.
    kept = one | {"config": {"ttl_ms": 5, "dead_letter": "other"}}
    assert orders("POST", "/v0/topics/orders.eu", kept).status == 200
    assert root("GET", "/v0/topics/orders.eu").json["config"]["ttl_ms"] == 0
    for how in ({"create": True}, {"disable_backpressure": True}):
        reply = orders("POST", "/v0/topics/orders.none", kept | how)
        assert (reply.status, reply.code) == (403, "forbidden")
    assert orders("POST", "/v0/topics/orders.none", kept | {"create": False}).status == 404
    listed = orders("GET", "/v0/topics").json["topics"]
    assert [t["topic"] for t in listed] == ["jobs", "orders.eu", "orders.new"]
    states = orders("POST", "/v0/state", {"patterns": ["*"]}).json["topics"]
    assert sorted(states) == ["jobs", "orders.eu", "orders.new"]
    for accept in ("text/plain", "application/json"):
        shown = orders("GET", "/v0/metrics", headers={"Accept": accept}).body
        assert b'"orders.eu"' in shown
        assert b'"other"' not in shown
    assert root("PUT", "/v0/routers/r", {"source": "other", "dest": "audit"}).status == 201
    assert orders("GET", "/v0/routers").json["routers"] == []
    assert len(root("GET", "/v0/routers").json["routers"]) == 1
    assert clients[READER]("GET", "/v0/routers").status == 200
    assert clients[SWEEPER]("DELETE", "/v0/routers/r").json["deleted"] is True
    assert clients[READER]("DELETE", "/v0/topics/other").status == 403


ROW = {"records": [{"data": 1}]}
HELD = {"node": "w", "seqs": [1]}
# Requests of a key for `chief.`, each with a name that is not its own.
NAMED: list[tuple[str, str, Any]] = [
    ("PUT", "/v0/topics/chief.a", {"dead_letter": "other"}),
    ("PUT", "/v0/topics/other", {}),
    ("POST", "/v0/topics/chief.b", ROW | {"config": {"dead_letter": "other"}}),
    ("POST", "/v0/state", {"topics": ["chief.a", "other"]}),
    ("POST", "/v0/watch", {"topics": ["chief.t", "other"]}),
    ("POST", "/v0/watch", {"topics": {"other": {"from_seq": 0}}}),
    ("POST", "/v0/watch", {"topics": ["chief.t"], "patterns": ["chief*"]}),
    ("POST", "/v0/watch", {"patterns": ["*"]}),
    ("POST", "/v0/watch?lenient", {"topics": ["nobody"]}),
    ("GET", "/v0/watch?topic=chief.t&topic=other", None),
    ("GET", "/v0/topics/other/work?node=w", None),
    ("GET", "/v0/consumers?topic=other", None),
    ("PUT", "/v0/routers/other", {"source": "chief.t", "dest": "chief.d"}),
    ("PUT", "/v0/routers/chief.r", {"source": "other", "dest": "chief.d"}),
    ("PUT", "/v0/routers/chief.r", {"source": "chief.t", "dest": "other"}),
    ("GET", "/v0/routers/other", None),
    ("DELETE", "/v0/routers/other", None),
    ("POST", "/v0/topics/other/remove", {"seqs": [1]}),
    ("POST", "/v0/topics/other/promote", {"seqs": [1]}),
    ("POST", "/v0/topics/chief.dead/redrive", {"to": "other"}),
    ("POST", "/v0/topics/chief.dead/redrive", {}),
    ("POST", "/v0/txn", {"appends": [{"topic": "other", **ROW}]}),
    ("POST", "/v0/txn", {"appends": [{"topic": "chief.t", **ROW}], "expect_heads": {"other": 0}}),
    ("POST", "/v0/txn", {"commits": [{"topic": "other", "consumer": "c", "seq": 0}]}),
    ("POST", "/v0/txn", {"acks": [{"queue": "other", **HELD}]}),
    ("POST", "/v0/txn/w/stage/s?part=0", {"appends": [{"topic": "other", **ROW}]}),
    ("POST", "/v0/txn/w/commit", {"epoch": 1, "expect_heads": {"other": 0}}),
    ("PUT", "/v0/txn/w/owner", {"owner": "0123456789abcdef"}),
    ("POST", "/v0/txn/w/commit", {"epoch": 1, "acks": [{"queue": "other", **HELD}]}),
    ("POST", "/v0/txn/w/commit",
     {"epoch": 1, "commits": [{"topic": "other", "consumer": "c", "seq": 0}]}),
]  # fmt: skip


def test_names_in_bodies_are_bound_by_prefixes(clients: dict[str, Client]) -> None:
    root, chief = clients[ROOT], clients[CHIEF]
    for topic in ("chief.t", "chief.dead", "other"):
        assert root("PUT", f"/v0/topics/{topic}", {}).status in (200, 201)
        assert root("PUT", f"/v0/topics/{topic}/consumers/c", {}).status in (200, 201)
    # With a header that it does not know a request is none of the hot protocol's.
    for headers in ({}, {"X-Unknown": "1"}):
        for method, path, body in NAMED:
            reply = chief(method, path, body, headers)
            assert (reply.status, reply.code) == (403, "forbidden"), (method, path, body, reply)
    for topic in ("chief.a", "chief.b", "chief.d", "nobody"):
        assert root("GET", f"/v0/topics/{topic}").status == 404, "a refusal leaves nothing behind"
    assert root("GET", "/v0/routers?prefix=chief").json["routers"] == []
    config = {"type": "queue", "dead_letter": "chief.dead"}
    assert chief("PUT", "/v0/topics/chief.q", config).status == 201
    assert chief("POST", "/v0/topics/chief.p", ROW | {"config": config}).status == 201
    router = {"source": "chief.t", "dest": "chief.d"}
    assert chief("PUT", "/v0/routers/chief.r", router).status == 201
    assert root("PUT", "/v0/routers/seen", {"source": "other", "dest": "d"}).status == 201
    redrive = chief("POST", "/v0/topics/chief.dead/redrive", {"to": "chief.q"})
    assert (redrive.status, redrive.json["moved"]) == (200, 0)
    # Lists show what is the key's own.
    listed = {
        "/v0/topics": ("topics", "topic"),
        "/v0/routers": ("routers", "router"),
        "/v0/consumers": ("consumers", "topic"),
    }
    for path, (name, of) in listed.items():
        mine = {entry[of] for entry in chief("GET", path).json[name]}
        assert mine, path
        assert all(entry.startswith("chief.") for entry in mine), (path, mine)
        assert {entry[of] for entry in root("GET", path).json[name]} > mine
    assert chief("GET", "/v0/topics?prefix=oth").json["topics"] == []
    states = chief("POST", "/v0/state", {"patterns": ["*", "oth*", "chief.t*"]}).json
    assert "other" not in states["topics"]
    assert "chief.t" in states["topics"]
    for name in ("chief.r", "seen"):
        assert root("DELETE", f"/v0/routers/{name}").json["deleted"] is True


def test_a_session_is_its_keys(guarded: Server, clients: dict[str, Client]) -> None:
    root, reader = clients[ROOT], clients[READER]
    root("PUT", "/v0/topics/orders.s")
    wid = reader("POST", "/v0/watch", {"topics": ["orders.s"]}).json["wid"]
    path = f"/v0/watch/{wid}"
    for headers in (root.bearer, clients[ORDERS].bearer):
        with Events(guarded.port, path, headers) as events:
            assert (events.status, events.code) == (404, "not_found")
    assert root("DELETE", path).status == 404
    with Events(guarded.port, path) as events:
        assert (events.status, events.code) == (401, "unauthorized")
    with Events(guarded.port, f"{path}?token={READER}") as events:
        events.until("caught-up")
        assert reader("DELETE", path).json["ended"] is True
        assert events.until("error").data["code"] == 410


def test_health_needs_no_key_and_metrics_do(guarded: Server, clients: dict[str, Client]) -> None:
    bare = Http(guarded.port)
    assert bare("GET", "/v0/health").status == 200
    assert bare("GET", "/v0/ready").status == 200
    assert bare("GET", "/v0/metrics").code == "unauthorized"
    # With keys any name of the host will do.
    assert bare("GET", "/v0/health", headers={"Host": "example.com"}).status == 200
    bare.close()
    assert clients[READER]("GET", "/v0/metrics").status == 200


def test_slots_are_taken_and_given_back(tmp_path: Path) -> None:
    env = {
        "TOPICS_API_KEYS": "a,b,c",
        "TOPICS_MAX_SSE_CONNECTIONS": "2",
        "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "1",
        "TOPICS_MAX_WATCH_SESSIONS": "1",
        "TOPICS_MAX_ROUTERS": "1",
    }
    server = Server(tmp_path / "data", env=env)
    server.start()
    try:
        a = Client(server.port, "a")
        assert a("PUT", "/v0/topics/t").status == 201
        path = "/v0/watch?topic=t&token="
        with Events(server.port, path + "a") as first, Events(server.port, path + "b"):
            first.until("caught-up")
            for key, limit in (("a", "max_sse_connections"), ("c", "max_sse_connections")):
                with Events(server.port, path + key) as refused:
                    assert (refused.status, refused.code) == (429, "throttled")
                    assert refused.response.headers["retry-after"] == "1"
                    detail = json.loads(refused.body)["error"]["detail"]
                    assert (detail["limit"], detail["max"]) == (limit, 2)
        until(lambda: streams(a) == 0, DEADLINE)
        with Events(server.port, path + "a") as again:
            again.until("caught-up")
            with Events(server.port, path + "a") as refused:
                detail = json.loads(refused.body)["error"]["detail"]
                assert (detail["limit"], detail["max"]) == ("max_sse_connections_per_key", 1)
            # One that was refused for another reason holds no slot.
            with Events(server.port, "/v0/watch?topic=none&token=b") as absent:
                assert absent.status == 404
            with Events(server.port, path + "b") as other:
                other.until("caught-up")
        assert a("POST", "/v0/watch", {"topics": ["t"]}).status == 200
        full = a("POST", "/v0/watch", {"topics": ["t"]})
        assert full.json["error"]["detail"]["limit"] == "max_watch_sessions"
        assert a("PUT", "/v0/routers/r", {"source": "t", "dest": "d1"}).status == 201
        full = a("PUT", "/v0/routers/s", {"source": "t", "dest": "d2"})
        assert full.json["error"]["detail"] == {
            "limit": "max_routers",
            "max": 1,
            "retry_after_ms": 1000,
        }
        assert a("PUT", "/v0/routers/r", {"source": "t", "dest": "d1"}).status == 200
        a.close()
        assert server.stop() == 0
    finally:
        server.ensure_dead()


def test_requests_of_a_key_are_counted_while_they_run() -> None:
    async def go() -> None:
        keys = KeyGuard(Keys.parse("a,b"))
        driver = Driver(lambda _: None, guard=keys, max_inflight_per_key=1)
        await driver.ready()

        def ask(key: str, leave: asyncio.Event | None = None) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            path = "/v0/topics/t/diff"
            return driver.request("POST", path, b"{}", headers=headers, leave=leave)

        leave = asyncio.Event()
        waiting = asyncio.ensure_future(ask("a", leave))
        while not driver.http.calls:
            await asyncio.sleep(0)
        full = await ask("a")
        detail = json.loads(full.body)["error"]["detail"]
        assert (full.status, detail["limit"], detail["max"]) == (429, "max_inflight_per_key", 1)
        other = asyncio.ensure_future(ask("b"))
        while len(driver.http.calls) < 2:
            await asyncio.sleep(0)
        leave.set()
        await waiting
        again = asyncio.ensure_future(ask("a"))
        while len(driver.http.calls) < 3:
            await asyncio.sleep(0)
        for call in driver.http.calls[1:]:
            driver.http.bridge.complete(call.token, 200, b"{}")
        assert {(await other).status, (await again).status} == {200}

    run(go())


class ProbedWithKey(Server):
    """A server whose readiness is asked for with a key."""

    def _is_ready(self) -> bool:
        client = Client(self.port, ROOT)
        try:
            return bool(client("GET", "/readyz").status == 200)
        except OSError:
            return False
        finally:
            client.close()


def test_probes_of_a_server_that_was_told_to_ask_for_a_key(tmp_path: Path) -> None:
    for hot in "01":
        env = {"TOPICS_API_KEYS": KEYS, "TOPICS_PROBE_AUTH": "1", "TOPICS_HOT_PROTOCOL": hot}
        with opened(tmp_path / hot, env, ProbedWithKey) as server:
            for port in (server.port, Http2Port(server.port)):
                anyone, reader = Http(port), Client(port, READER)
                for path in ("/healthz", "/v0/health", "/readyz", "/v0/ready"):
                    refused = anyone("GET", path)
                    assert (refused.status, refused.code) == (401, "unauthorized"), path
                    assert reader("GET", path).status == 200, path
                # The console's page asks for the key.
                assert anyone("GET", "/console").status == 200
                anyone.close()
                reader.close()
