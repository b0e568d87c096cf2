"""Each limit at its value and one beyond, through every protocol; and keys of other names'
clients.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from support.h2_client import Http2Port
from support.http_client import Http, Reply
from support.server import Server
from support.sse import Events
from support.waiting import until
from support.websocket import Socket
from topics_engine import settings as engine
from topics_engine.asgi.route import Route
from topics_engine.asgi.routes import ROUTES
from topics_engine.asgi.settings import SERVER

from .cases import one
from .pending import DEADLINE
from .test_conformance import place

SIZES = {
    "max_batch_records": 3,
    "max_record_bytes": 100,
    "max_body_bytes": 2000,
    "max_meta_bytes": 60,
    "max_tag_bytes": 5,
    "max_node_bytes": 5,
    "max_limit": 4,
    "max_claim": 3,
    "max_watch_topics": 2,
}
COUNTS = {
    "max_topics": 4,
    "max_routers": 2,
    "max_watch_sessions": 2,
    "max_sse_connections": 2,
    "max_total_bytes": 4000,
    "max_idempotency_keys": 3,
    "max_consumers": 2,
    "max_txn_writers": 2,
}
EMBEDDED = "..client.test_append:test_limits_of_calls_in_process"
# Limits that are tried where they are at home.
ELSEWHERE = {
    "max_sse_connections_per_key": ".test_keys:test_slots_are_taken_and_given_back",
    "max_inflight_per_key": ".test_keys:test_requests_of_a_key_are_counted_while_they_run",
    "max_receiving_bytes": ".test_receiving:test_all_bodies_together_are_bounded",
    "max_unsent_bytes": "..server.test_unsent:test_pages_that_are_not_read_are_bounded",
    "max_open_files": "..client.test_descriptors:test_the_setting_bounds_what_stays_open",
    "max_txn_writers_per_key": ".test_txn:test_writers_and_keys_are_of_an_api_key",
    "max_streams_per_connection": (
        "..server.test_http2:test_more_streams_than_there_may_be_are_refused"
    ),
    **dict.fromkeys(
        ("max_embedded_batch_records", "max_embedded_batch_bytes", "max_embedded_record_bytes"),
        EMBEDDED,
    ),
}


def test_every_limit_is_tried() -> None:
    known = {name for name in {**engine.engine_settings(), **SERVER} if name.startswith("max_")}
    assert known == {*SIZES, *COUNTS, *ELSEWHERE}
    for where in ELSEWHERE.values():
        module, _, test = where.partition(":")
        assert callable(getattr(importlib.import_module(module, __package__), test)), where


def start(directory: Path, limits: dict[str, int], **env: str) -> Server:
    given = {f"TOPICS_{name.upper()}": str(value) for name, value in limits.items()}
    live = Server(directory, env=given | env)
    live.start()
    return live


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Servers with limits of sizes, one without the hot protocol."""
    servers = []
    try:
        for hot in "01":
            directory = tmp_path_factory.mktemp("small") / "data"
            servers.append(start(directory, SIZES, TOPICS_HOT_PROTOCOL=hot))
        yield servers
        assert [server.stop() for server in servers] == [0, 0]
    finally:
        for server in servers:
            server.ensure_dead()


@pytest.fixture(params=["plain", "hot", "h2"])
def api(request: pytest.FixtureRequest, small: list[Server]) -> Iterator[Http]:
    port = small[request.param != "plain"].port
    client = Http(Http2Port(port) if request.param == "h2" else port)
    yield client
    client.close()


def records(*given: dict[str, Any]) -> dict[str, Any]:
    return {"records": list(given)}


def of(size: int) -> str:
    """A JSON string of so many bytes."""
    return "x" * (size - 2)


def test_sizes_at_their_limit_and_beyond(api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"

    def write(body: Any, headers: dict[str, str] | None = None) -> Reply:
        return api("POST", path, body, headers)

    meta = {"m": "v" * (60 - len('{"m": ""}'))}
    longer = {"m": meta["m"] + "v"}
    padded = b'{"records":[{"data":1}]}'
    pairs: list[tuple[Any, Any, tuple[int, str]]] = [
        (records(*[{"data": 1}] * 3), records(*[{"data": 1}] * 4), (400, "batch_too_large")),
        (one(of(100)), one(of(101)), (400, "record_too_large")),
        (padded.ljust(2000), padded.ljust(2001), (413, "payload_too_large")),
        (records({"data": 1, "meta": meta}), records({"data": 1, "meta": longer}),
         (400, "record_too_large")),
        (records({"data": 1, "tag": "x" * 5}), records({"data": 1, "tag": "x" * 6}),
         (400, "record_too_large")),
        (records({"data": 1, "node": "x" * 5}), records({"data": 1, "node": "x" * 6}),
         (400, "record_too_large")),
    ]  # fmt: skip
    for fits, over, refusal in pairs:
        head = api("GET", path).json["head_seq"] if api("GET", path).status == 200 else 0
        reply = write(fits)
        assert reply.status in (200, 201), (fits, reply)
        refused = write(over)
        assert (refused.status, refused.code) == refusal, (over, refused)
        assert api("GET", path).json["head_seq"] == head + reply.json["count"]
    for limit, expected in ((3, 3), (4, 4), (5, 4), (0, 4)):
        read = api("POST", f"{path}/diff", {"limit": limit}).json["records"]
        assert len(read) == expected, limit
    queue = f"{path}-q"
    assert api("PUT", queue, {"type": "queue"}).status == 201
    for most, expected in ((4, 3), (3, 3), (2, 2)):
        for _ in range(2):
            assert api("POST", queue, records(*[{"data": 1}] * 3)).status == 200
        claimed = api("POST", f"{queue}/claim", {"node": "w", "max": most}).json
        assert claimed["count"] == expected
    with Events(api.port, f"/v0/watch?topic={topic}&from_seq=0") as events:
        assert len(next(events).data["records"]) == 4, "what an event has unless it is asked for"
    names = [topic, f"{topic}-q", f"{topic}-none"]
    assert api("POST", "/v0/watch?lenient", {"topics": names[:2]}).status == 200
    refused = api("POST", "/v0/watch?lenient", {"topics": names})
    assert (refused.status, refused.code) == (400, "invalid_request")


def full(reply: Reply, limit: str, most: int) -> None:
    """A refusal for want of room."""
    assert (reply.status, reply.code) == (429, "throttled"), reply
    assert int(reply.headers["retry-after"]) >= 1
    detail = reply.json["error"]["detail"]
    assert (detail["limit"], detail["max"]) == (limit, most)


def test_counts_at_their_limit_and_beyond(tmp_path: Path) -> None:
    limits = COUNTS | {"max_total_bytes": 0}
    server = start(tmp_path / "data", limits)
    try:
        clients = [Http(server.port), Http(Http2Port(server.port))]
        api = clients[0]
        for n in range(4):
            assert api("PUT", f"/v0/topics/t{n}").status == 201
        for client in clients:
            full(client("PUT", "/v0/topics/t4"), "max_topics", 4)
            full(client("POST", "/v0/topics/t4", one()), "max_topics", 4)
            assert client("PUT", "/v0/topics/t3", {"ttl_ms": 5000}).status == 200
            assert client("POST", "/v0/topics/t3", one()).status == 200
        for n in (1, 2):
            asked = {"source": "t0", "dest": f"t{n}"}
            assert api("PUT", f"/v0/routers/r{n}", asked).status == 201
        for client in clients:
            full(client("PUT", "/v0/routers/r3", {"source": "t0", "dest": "t3"}), "max_routers", 2)
            assert client("PUT", "/v0/routers/r2", {"source": "t0", "dest": "t2"}).status == 200
        consumers = "/v0/topics/t1/consumers"
        for n in range(2):
            assert api("PUT", f"{consumers}/c{n}", {}).status == 201
        for client in clients:
            full(client("PUT", f"{consumers}/c2", {}), "max_consumers", 2)
            assert client("PUT", f"{consumers}/c1", {}).status == 200
        assert api("DELETE", f"{consumers}/c0").json["deleted"] is True
        assert clients[1]("PUT", f"{consumers}/c2", {}).status == 201
        listed = api("GET", f"{consumers}?page_size=1").json
        assert [c["consumer"] for c in listed["consumers"]] == ["c1"]
        listed = api("GET", f"/v0/consumers?page_size=1&cursor={listed['next_cursor']}").json
        assert [c["consumer"] for c in listed["consumers"]] == ["c2"]

        def commit(client: Http, writer: str, epoch: int) -> Reply:
            appends = [{"topic": "t1", **one()}]
            asked = {"appends": appends, "writer": writer, "epoch": epoch}
            return client("POST", "/v0/txn", asked)

        assert [commit(client, f"w{n}", 7).status for n, client in enumerate(clients)] == [
            200,
            200,
        ]
        for client in clients:
            full(commit(client, "w2", 1), "max_txn_writers", 2)
            assert commit(client, "w1", 7).json["deduped"] is True
        assert api("DELETE", "/v0/txn/w0").json["forgotten"] is True
        assert api("DELETE", "/v0/txn/w0").json["forgotten"] is False
        assert commit(clients[1], "w2", 1).status == 200
        wids = [api("POST", "/v0/watch", {"topics": ["t0"]}).json["wid"] for _ in range(2)]
        for client in clients:
            full(client("POST", "/v0/watch", {"topics": ["t0"]}), "max_watch_sessions", 2)
        assert api("DELETE", f"/v0/watch/{wids[0]}").json["ended"] is True
        assert clients[1]("POST", "/v0/watch", {"topics": ["t0"]}).status == 200
        streams = [Events(client.port, "/v0/watch?topic=t0") for client in clients]
        for stream in streams:
            stream.until("caught-up")
        for client in clients:
            full(client("GET", "/v0/watch?topic=t0"), "max_sse_connections", 2)
        with pytest.raises(InvalidStatus) as refused:
            Socket(server.port)
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["retry-after"] == "1"
        detail = json.loads(refused.value.response.body or b"")["error"]["detail"]
        assert (detail["limit"], detail["max"]) == ("max_sse_connections", 2)
        for n in range(3):
            assert (
                clients[n % 2]("POST", "/v0/topics/t1", one(idempotency_key=f"k{n}")).status == 200
            )
        for client in clients:
            full(
                client("POST", "/v0/topics/t1", one(idempotency_key="k3")),
                "max_idempotency_keys",
                3,
            )
            assert (
                client("POST", "/v0/topics/t1", one(idempotency_key="k0")).json["deduped"] is True
            )
            assert client("POST", "/v0/topics/t1", one()).status == 200
        streams[1].close()
        until(lambda: _opens(server.port), DEADLINE)
        streams[0].close()
        assert api("DELETE", "/v0/topics/t0").json["deleted"] is True
        assert api("PUT", "/v0/topics/t5").status == 201
        for client in clients:
            client.close()
        assert server.stop() == 0
    finally:
        server.ensure_dead()


def _opens(port: int) -> bool:
    with Events(port, "/v0/watch?topic=t0") as events:
        return events.status == 200


def test_what_is_refused_for_too_many_topics_creates_none(tmp_path: Path) -> None:
    with Server(tmp_path / "data", env={"TOPICS_MAX_TOPICS": "2"}) as server:
        api = Http(server.port)
        assert api("POST", "/v0/topics/a", one()).status == 201
        both = [{"topic": name, "records": [{"data": 1}]} for name in ("n1", "n2")]
        refused = [
            api("POST", "/v0/txn", {"appends": both}),
            api("PUT", "/v0/routers/r", {"source": "s", "dest": "d"}),
        ]
        for reply in refused:
            assert (reply.status, reply.json["error"]["detail"]["limit"]) == (429, "max_topics")
        assert [t["topic"] for t in api("GET", "/v0/topics").json["topics"]] == ["a"]
        # There is room for one.
        assert api("POST", "/v0/txn", {"appends": both[:1]}).status == 200
        api.close()


def test_all_bytes_at_their_limit_and_beyond(tmp_path: Path) -> None:
    server = start(tmp_path / "data", {"max_total_bytes": 4000})
    try:
        clients = [Http(server.port), Http(Http2Port(server.port))]
        written = 0
        while (reply := clients[written % 2]("POST", "/v0/topics/t", one(of(500)))).status != 429:
            assert reply.status in (200, 201), reply
            written += 1
        full(reply, "max_total_bytes", 4000)
        held = clients[0]("GET", "/v0/topics/t").json["bytes"]
        assert held <= 4000
        assert held + 500 > 4000 - 100
        assert clients[0]("POST", "/v0/topics/t/delete", {"before_seq": 3}).json["deleted"] == 2
        assert clients[1]("POST", "/v0/topics/t", one(of(500))).status == 200
        for client in clients:
            client.close()
        assert server.stop() == 0
    finally:
        server.ensure_dead()


def test_writes_wait_for_memory(tmp_path: Path) -> None:
    # Entries of 24 bytes: above 200 records in no segment, writes wait for a checkpoint.
    server = start(tmp_path / "data", {"memory_bytes": 24 * 100})
    try:
        waits: list[float] = []

        def write() -> None:
            client = Http(server.port)
            for _ in range(8):
                reply = client("POST", "/v0/topics/t", records(*[{"data": 1}] * 20))
                assert reply.status in (200, 201), reply
                waits.append(reply.json["performance"].get("throttle_wait_ms", 0))
            client.close()

        with ThreadPoolExecutor(8) as pool:
            for writer in [pool.submit(write) for _ in range(8)]:
                writer.result(DEADLINE)
        assert len(waits) == 64
        assert max(waits) > 0
        client = Http(server.port)
        assert client("GET", "/v0/topics/t").json["head_seq"] == 1280
        client.close()
        assert server.stop() == 0
    finally:
        server.ensure_dead()


def test_0_is_no_limit(tmp_path: Path) -> None:
    off = dict.fromkeys({**SIZES, **COUNTS, **ELSEWHERE}, 0)
    del off["max_streams_per_connection"]
    # What a call in process may have is still the most that a request may.
    server = start(tmp_path / "data", off)
    try:
        for client in (Http(server.port), Http(Http2Port(server.port))):
            kind = type(client.port).__name__
            for n in range(5):
                assert client("PUT", f"/v0/topics/{kind}{n}").status == 201
            path = f"/v0/topics/{kind}0"
            wide = {"data": of(2 << 20), "tag": "t" * 9000, "node": "n" * 9000,
                    "meta": {"k": "v" * 100_000}}  # fmt: skip
            many = records(*[{"data": 1}] * 12_000)
            assert client("POST", path, records(wide)).json["count"] == 1
            assert client("POST", path, many | {"idempotency_key": "k"}).json["count"] == 12_000
            read = client("POST", f"{path}/diff", {"from_seq": 1, "limit": 5000}).json
            assert len(read["records"]) == 5000
            assert len(client("POST", f"{path}/diff", {"from_seq": 1}).json["records"]) == 256
            assert client("PUT", f"{path}q", {"type": "queue"}).status == 201
            assert client("POST", f"{path}q", many).json["count"] == 12_000
            claim = {"node": "w" * 200, "max": 5000}
            assert client("POST", f"{path}q/claim", claim).json["count"] == 5000
            for n in range(3):
                router = {"source": f"{kind}0", "dest": f"{kind}r{n}"}
                assert client("PUT", f"/v0/routers/{kind}{n}", router).status == 201
            names = [f"{kind}0", *(f"none{n}" for n in range(255))]
            assert client("POST", "/v0/watch?lenient", {"topics": names}).status == 200
            with Events(client.port, f"/v0/watch?topic={kind}0&from_seq=1&limit=5000") as events:
                assert len(next(events).data["records"]) == 5000
            # What a frame cannot hold is refused, whatever the settings say.
            for field in ("tag", "node"):
                long = client("POST", path, records({"data": 1, field: "x" * 70_000}))
                assert (long.status, long.code) == (400, "record_too_large"), field
            client.close()
        socket = Socket(server.port)
        assert socket.ask("unsubscribe", "unsubscribed", topic="x" * 3_000_000)
        socket.close()
        assert server.stop() == 0
    finally:
        server.ensure_dead()


def test_every_named_route_is_bound_by_the_prefixes_of_a_key(tmp_path: Path) -> None:
    """Every route and no key, a wrong one, one without its scope, one of other names."""
    keys = {"TOPICS_API_KEYS": "root,mine::mine.,none:read,w:write"}
    server = start(tmp_path / "data", {}, **keys)
    plain = start(tmp_path / "plain", {}, **keys, TOPICS_HOT_PROTOCOL="0")
    try:
        root = {"Authorization": "Bearer root"}
        clients = [Http(server.port), Http(Http2Port(server.port)), Http(plain.port)]
        for name in ("mine.t", "other"):
            assert clients[0]("PUT", f"/v0/topics/{name}", {}, root).status == 201
        for route in ROUTES:
            if not route.open and route.verb != "socket":
                for client in clients:
                    check_keys(client, route)
        for client in clients:
            client.close()
        assert (server.stop(), plain.stop()) == (0, 0)
    finally:
        server.ensure_dead()
        plain.ensure_dead()


def check_keys(client: Http, route: Route) -> None:
    """What one route says to clients that are not to have it."""
    body = {} if route.body is not None else None

    def ask(key: str | None, name: str = "other") -> Reply:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return client(route.method, place(route, name), body, headers)

    for wrong in (None, "Mine", "roo", "root2"):
        reply = ask(wrong)
        assert (reply.status, reply.code) == (401, "unauthorized"), route.path
        assert reply.headers["www-authenticate"].startswith("Bearer")
    reply = ask("none" if route.needs != ("read",) else "w")
    assert (reply.status, reply.code) == (403, "forbidden"), route.path
    if route.named:
        # Whether it is there or not: who may not name it does not learn.
        for name in ("other", "nobody"):
            reply = ask("mine", name)
            assert (reply.status, reply.code) == (403, "forbidden"), (route.path, reply)
