"""What the documents promise of every route, through every protocol: uvicorn's own protocol, the
hot protocol, and HTTP/2. The answers are the same bytes, but for what says when and where they were
made.
"""

from __future__ import annotations

import asyncio
import json
import platform
import re
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from support.asgi_driver import Driver, run
from support.h2_client import Http2Connection, Http2Port
from support.holding import QUIET, Holding
from support.http_client import Http, Reply, once
from support.server import Server, opened
from support.sse import Events
from support.sync_filter import NUMBERS as SYSTEM_CALLS
from support.waiting import until
from support.websocket import Socket
from topics_engine import _core
from topics_engine.asgi.answers import UNMEASURED, answer_schema
from topics_engine.asgi.matching import Router
from topics_engine.asgi.messages import HttpError
from topics_engine.asgi.openapi import describe, operation_id, status_of
from topics_engine.asgi.route import ENGINELESS, Route
from topics_engine.asgi.routes import ROUTES

from .cases import GOOD, MORE_REFUSALS, NUMBERS, REFUSALS, SIZES, THREE, WRONG_NUMBERS, C, Case, T
from .cases_of_contract import CONTRACT
from .cases_of_fields import MORE_GOOD, MORE_REFUSED
from .pending import DEADLINE

ALL_GOOD = GOOD | MORE_GOOD | {name: case for name, case in CONTRACT.items() if not case.code}
CASES = ALL_GOOD | REFUSALS | MORE_REFUSALS | MORE_REFUSED | CONTRACT

COMPONENTS = describe(_core.__version__)["components"]
ARROW = "application/vnd.apache.arrow.stream"

# Codes that it takes more than a request to reach, and the tests of them below.
ELSEWHERE = {
    ("post_topics_t_consumers_c_read", "consumer_busy"): "test_a_busy_consumer",
    ("get_ws", 101): "test_a_socket_opens",
    ("get_watch_wid", "session_gone"): "test_an_event_that_is_no_longer_kept",
    ("post_admin_backup", "invalid_directory"): "test_a_backup_into_a_used_directory",
    ("post_sync", "data_loss"): "test_a_sync_after_acked_records_were_lost",
}

# What differs between two servers, and between two moments.
VARIES = (
    (rb'"performance":\{[^}]*\}', b'"performance":{}'),
    (rb'"lease_id":"lease_\d+"', b'"lease_id":"lease_0"'),
    (rb'"(topic_id|epoch|\$ts|lag_ms|uptime_ms|deadline|visible_at|bytes|files|'
     rb'taken_at|last_write_ts|last_read_ts|effective_priority|linked|copied|copied_bytes)":-?\d+',
     rb'"\1":0'),
    (rb'"deadlines":\{[^}]*\}', b'"deadlines":{}'),
    (rb"took it over at \d+", b"took it over at 0"),
    (rb"wid_[A-Za-z0-9_-]{22}", b"WID"),
    (rb'"stream":"\d+"', b'"stream":"ID"'),
    (rb"id: \S+", b"id: ID"),
    (rb'"records":\d{2,}', b'"records":0'),
    # Of the whole server: some tests use one of the three only.
    (rb'"topics":\d+', b'"topics":0'),
)  # fmt: skip


def comparable(body: bytes) -> bytes:
    for pattern, same in VARIES:
        body = re.sub(pattern, same, body)
    return body


def headers_of(reply: Reply) -> dict[str, str]:
    """The headers that do not belong to a connection, and lengths of what does not vary."""
    skip = {"date", "connection", "transfer-encoding", "content-length"}
    return {name: value for name, value in reply.headers.items() if name not in skip}


def told(value: Any, names: dict[str, str]) -> Any:
    """The same with the names of this case in it."""
    if isinstance(value, str):
        for name, given in names.items():
            value = value.replace("{" + name + "}", given)
        return value
    if isinstance(value, list):
        return [told(v, names) for v in value]
    if isinstance(value, dict):
        return {told(k, names): told(v, names) for k, v in value.items()}
    return value


def send(case: Case, api: Http, topic: str) -> Reply:
    """The answer of a case; of a stream, what it begins with."""
    names = {"t": topic}
    for method, path, body in case.before:
        reply = api(method, told(path, names), told(body, names))
        assert reply.status < 300, reply
        told_here = {"wid", "next_cursor"} & set(reply.json)
        names |= {name: reply.json[name] for name in told_here}
    path = told(case.path, names)
    if not case.events:
        return api(case.method, path, told(case.body, names), case.headers)
    with Events(api.port, api.base + path, case.headers) as events:
        assert events.status == case.status, events.body
        kinds = []
        lines = []
        while len(kinds) < len(case.events):
            event = next(events)
            kinds.append(event.kind)
            lines.append(f"{event.kind}: {json.dumps(event.data)}".replace(": ", ":"))
        assert tuple(kinds) == case.events
        headers = {name.lower(): value for name, value in events.response.getheaders()}
        return Reply(events.status, headers, "\n".join(lines).encode())


def check(case: Case, reply: Reply, topic: str) -> None:
    """Whether an answer is the one that was promised."""
    assert (reply.status, reply.code) == (case.status, case.code), reply
    if case.code:
        error = reply.json["error"]
        assert set(error) <= {"code", "message", "detail"}
        assert case.says in error["message"] + str(error.get("detail", ""))
        wanted = told(case.detail, {"t": topic})
        assert {name: error["detail"].get(name) for name in wanted} == wanted, reply
    events = [line.partition(b":")[2] for line in reply.body.splitlines()] if case.events else []
    for way, value in case.has.items():
        found: Any = [json.loads(data) for data in events] if case.events else reply.json
        *steps, last = way.split(".")
        for step in steps:
            found = found[int(step) if step.isdigit() else told(step, {"t": topic})]
        found = found[int(last)] if last.isdigit() else found.get(last)
        value = told(value, {"t": topic})
        if isinstance(value, dict):
            # `...` stands for any value.
            value = {k: found.get(k) if v is ... else v for k, v in value.items()}
        assert found == value, (way, reply)


def route_of(case: Case) -> Route | None:
    """The row of the table that answers a case; `None` for what no row does."""
    path = case.path.partition("?")[0].replace("{t}", "t").replace("{wid}", "w")
    try:
        return Router().match(case.method, path.encode()).route
    except HttpError:
        return None


@pytest.mark.parametrize("name", CASES)
def test_every_case_through_every_protocol(clients: dict[str, Http], name: str) -> None:
    case = CASES[name]
    topic = "t-" + re.sub(r"[^A-Za-z0-9]", "-", name)
    replies = {protocol: send(case, api, topic) for protocol, api in clients.items()}
    for reply in replies.values():
        check(case, reply, topic)
    first, *others = replies.values()
    # A browser may keep files of the console, and asks whether they are current.
    is_file = case.path.startswith("/console") and not case.code
    assert first.headers["cache-control"] == ("no-cache" if is_file else "no-store")
    assert first.headers["x-content-type-options"] == "nosniff"
    for reply in others:
        assert headers_of(reply) == headers_of(first)
        if "metrics" in case.path or "segments" in case.path:
            # Where a server keeps what is its own affair.
            continue
        if reply.headers["content-type"] == ARROW:
            # Times stand in its columns.
            assert len(reply.body) == len(first.body)
        else:
            assert comparable(reply.body) == comparable(first.body)
    if case.code and not case.before:
        # A refusal leaves nothing behind, and the connection, or the next one, is as good as new.
        for api in clients.values():
            assert api("GET", f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize("route", ROUTES, ids=operation_id)
def test_every_route_has_its_cases(route: Route) -> None:
    """Each status, each code of its own, each content type, and each field of its answer."""
    mine = [case for case in CASES.values() if route_of(case) is route]
    seen: set[Any] = {case.code or case.status for case in mine}
    for (where, what), test in ELSEWHERE.items():
        if where == operation_id(route):
            assert callable(globals()[test])
            seen.add(what)
    missing = {*route.statuses, *route.codes} - seen
    assert not missing, f"no case in cases.py for {sorted(map(str, missing))}"
    assert {c.code for c in mine if c.code} <= route.all_codes


def test_answers_have_the_fields_that_are_promised(clients: dict[str, Http]) -> None:
    for name, case in ALL_GOOD.items():
        route = route_of(case)
        assert route is not None, name
        if case.events or case.method == "HEAD" or "metrics" in case.path:
            continue
        reply = send(case, clients["hot"], "f-" + re.sub(r"[^A-Za-z0-9]", "-", name))
        if reply.headers["content-type"] != "application/json":
            continue
        schema = answer_schema(route)
        if route.answer != "object":
            assert set(reply.json) <= set(schema["properties"]), name
        validator = jsonschema_rs.Draft202012Validator({"components": COMPONENTS, **schema})
        problems = [error.message for error in validator.iter_errors(reply.json)]
        assert problems == [], (name, reply)
        if route.verb not in UNMEASURED:
            assert reply.json["performance"]["server_total_ms"] >= 0, name


def place(route: Route, name: str = "x") -> str:
    # The only parameter that names a file of the package.
    return re.sub("/:[a-z]+", f"/{name}", route.path.replace(":file", "app.js"))


# What every route answers to requests that are wrong in a way of their own.
Common = Callable[[Route], tuple[str, str, Any, dict[str, str]] | None]
COMMON: dict[str, Common] = {
    "method_not_allowed": lambda r: ("PATCH", place(r), None, {}),
    "not_acceptable": lambda r: (r.method, place(r), None, {"Accept": "image/png"}),
    "not_found": lambda r: (r.method, place(r) + "/no/such/thing", None, {}),
    "headers_too_large": lambda r: (r.method, place(r), None, {f"X-{n}": "" for n in range(130)}),
    "forbidden": lambda r: (r.method, place(r), None, {"Host": "example.com"}),
    "unsupported_media_type": lambda r: (
        None if r.body is None else (r.method, place(r), b"x", {"Content-Type": "text/html"})
    ),
    "payload_too_large": lambda r: (
        None if r.body is None else (r.method, place(r), b" " * 200_001, {})
    ),
    "invalid_request": lambda r: (
        (r.method, place(r, "%ff"), None, {})
        if r.named
        else (r.method, place(r), b"{", {})
        if r.body is not None
        else None
    ),
}


@pytest.mark.parametrize("code", COMMON)
def test_what_is_common_to_all_routes(clients: dict[str, Http], code: str) -> None:
    for route in ROUTES:
        asked = COMMON[code](route)
        if asked is None or (code == "method_not_allowed" and route.method == "PATCH"):
            continue
        method, path, body, headers = asked
        # Empty values are left out by the client.
        headers = {name: value or "y" for name, value in headers.items()}
        replies = [api(method, path, body, headers) for api in clients.values()]
        for reply in replies:
            if route.verb in ("sync", "checkpoint", "verify") and code == "invalid_request":
                # They take no fields, and look at no body.
                assert reply.status in (200, 400), (route.verb, reply)
                continue
            assert (reply.status, reply.code) == (status_of(code), code), (route.path, reply)
            assert headers_of(reply) == headers_of(replies[0])
            assert reply.body == replies[0].body


def test_every_code_that_a_route_has_is_tried(clients: dict[str, Http]) -> None:
    tried = {*COMMON, *ENGINE, "unauthorized", "request_timeout"}
    for route in ROUTES:
        common = route.all_codes - set(route.codes)
        assert common <= tried, f"nothing tries {sorted(common - tried)} of {route.path}"


def test_head_is_answered_as_get_is(clients: dict[str, Http]) -> None:
    """The same status and headers, and no body; of a stream there is none."""
    for api in clients.values():
        assert api("PUT", "/v0/topics/head", {"type": "queue"}).status in (200, 201)
        assert api("PUT", "/v0/topics/head/consumers/head").status in (200, 201)
    for route in ROUTES:
        if route.method != "GET":
            continue
        path = place(route, "head")
        for protocol, api in clients.items():
            get = Reply(405, {}, b"") if route.streams else api("GET", path)
            head = api("HEAD", path)
            assert (head.status, head.body) == (get.status, b""), (protocol, path)
            if route.streams:
                assert "HEAD" not in head.headers["allow"]
            else:
                assert headers_of(head) == headers_of(get)
                assert int(head.headers["content-length"]) > 0


def test_every_405_names_the_methods_that_there_are(clients: dict[str, Http]) -> None:
    for route in ROUTES:
        methods = {r.method for r in ROUTES if r.path == route.path}
        methods |= (
            {"HEAD"}
            if any(r.path == route.path and r.method == "GET" and not r.streams for r in ROUTES)
            else set()
        )
        for method in ("PATCH", "TRACE", "OPTIONS"):
            for api in clients.values():
                reply = api(method, place(route))
                assert (reply.status, reply.code) == (405, "method_not_allowed"), (method, route)
                assert set(reply.headers["allow"].split(", ")) == methods


def nested(depth: int) -> bytes:
    """A body that is nested so deep; the data of its record is a part of it."""
    return b'{"records":[{"data":' + b"[" * (depth - 3) + b"]" * (depth - 3) + b"}]}"


def test_nesting_at_its_limit_and_beyond(clients: dict[str, Http]) -> None:
    lines = {"Content-Type": "application/x-ndjson"}
    for protocol, api in clients.items():
        path = "/v0/topics/nested"
        for body, headers, fits in (
            (nested(128), {}, True),
            (nested(129), {}, False),
            (b"[" * 125 + b"]" * 125, lines, True),
            (b"[" * 126 + b"]" * 126, lines, False),
        ):
            reply = api("POST", path, body, headers)
            assert (reply.status in (200, 201)) is fits, (protocol, body, reply)
            assert fits or reply.code == "invalid_request"
    for route in ROUTES:
        if route.body is None:
            continue
        for inside in (127, 128, 60_000):
            # A field that is not known is refused before anybody looks into it.
            body = b'{"unknown":' + b"[" * inside + b"]" * inside + b"}"
            path = place(route, "deep") + ("?part=0" if route.verb == "txn_stage" else "")
            for api in clients.values():
                reply = api(route.method, path, body)
                assert (reply.status, reply.code) == (400, "invalid_request"), (route.path, reply)
                assert "field `unknown`; " in reply.json["error"]["message"]


def test_headers_at_their_limit_and_beyond(clients: dict[str, Http]) -> None:
    for protocol, api in clients.items():
        # What names the host, and what takes no packing, or that no body follows.
        host = f"127.0.0.1:{int(api.port)}"
        sent = {"host": host}
        sent |= {"content-length": "0"} if protocol == "h2" else {"accept-encoding": "identity"}
        own = len(sent)
        for count, status in ((128 - own, 200), (129 - own, 431)):
            reply = api("GET", "/v0/health", None, {f"x-{n}": "y" for n in range(count)})
            assert reply.status == status, (protocol, count)
        size = sum(len(name) + len(value) for name, value in sent.items())
        for more, status in ((0, 200), (1, 431)):
            wide = {f"x-{n}": "y" * 8000 for n in range(7)}
            size_of_wide = sum(len(name) + len(value) for name, value in wide.items())
            rest = (64 << 10) - size - size_of_wide - len("x-last") + more
            reply = api("GET", "/v0/health", None, wide | {"x-last": "z" * rest})
            assert reply.status == status, (protocol, more)


def test_pages_of_other_origins(tmp_path: Path) -> None:
    """Of those that the settings name, every answer and stream; of others, none."""
    page, other = {"Origin": "https://a.example"}, {"Origin": "https://b.example"}
    ahead = page | {"Access-Control-Request-Method": "PUT"}
    for hot in "01":
        env = {"TOPICS_CORS_ORIGINS": "https://a.example", "TOPICS_HOT_PROTOCOL": hot}
        with opened(tmp_path / hot, env) as server:
            for port in (server.port, Http2Port(server.port)):
                api = Http(port)
                for method, path, body in (
                    ("POST", "/v0/topics/t", {"records": [{"data": 1}]}),
                    ("POST", "/v0/topics/t/diff", {}),
                    ("GET", "/v0/topics/t", None),
                    ("GET", "/v0/nothing", None),
                ):
                    reply = api(method, path, body, page)
                    assert reply.headers["access-control-allow-origin"] == "https://a.example"
                    assert "retry-after" in reply.headers["access-control-expose-headers"].lower()
                    assert reply.headers["vary"] == "Origin"
                    foreign = api(method, path, body, other)
                    assert "access-control-allow-origin" not in foreign.headers
                    assert method == "GET" or foreign.code == "forbidden"
                asked = api("OPTIONS", "/v0/topics/t", None, ahead)
                assert (asked.status, asked.body) == (204, b"")
                allowed = asked.headers["access-control-allow-methods"]
                assert set(allowed.split(", ")) == {"DELETE", "GET", "HEAD", "POST", "PUT"}
                refused = api("OPTIONS", "/v0/topics/t", None, ahead | other)
                assert refused.status in (403, 405)
                with Events(port, "/v0/watch?topic=t&from_seq=0", page) as events:
                    assert events.until("record")
                    headers = dict(events.response.getheaders())
                    assert headers["access-control-allow-origin"] == "https://a.example"
                api.close()


def test_a_full_staging_is_429_unless_the_writer_waits(tmp_path: Path) -> None:
    """Writes that come at once, where there is room for one."""
    for hot in "01":
        env = {"TOPICS_STAGING_FRAMES": "1", "TOPICS_HOT_PROTOCOL": hot}
        with opened(tmp_path / hot, env) as server:
            assert once(server.port, "PUT", "/v0/topics/t").status == 201
            link = Http2Connection("127.0.0.1", server.port)
            kind = {"Content-Type": "application/json"}
            for patient in (False, True):
                body = json.dumps(
                    {"records": [{"data": 1}], "disable_backpressure": patient}
                ).encode()
                statuses = set()
                for response in link.at_once(50, "POST", "/v0/topics/t", body, kind):
                    response.wait(lambda response=response: response.status)
                    answer = json.loads(response.read())
                    statuses.add(response.status)
                    if response.status == 429:
                        assert answer["error"]["code"] == "throttled"
                        assert answer["error"]["detail"]["retry_after_ms"] > 0
                        assert int(response.headers["retry-after"]) >= 1
                assert statuses == ({200} if patient else {200, 429})
            link.close()


def _failing() -> Any:
    raise OSError("the disk is gone")


def _raise(_: Any) -> Any:
    raise ZeroDivisionError


# The states of a server, as an application over a scripted core.
ENGINE: dict[str, Callable[[], Driver]] = {
    "cold_unavailable": lambda: Driver(lambda _: _core.error_body("cold_unavailable", "later")),
    "internal": lambda: Driver(_raise),
    "not_ready": lambda: Driver(),
    "storage_unavailable": lambda: Driver(open_engine=_failing),
    "shutting_down": lambda: Driver(),
    "throttled": lambda: Driver(lambda _: _core.error_body("throttled", "slower")),
}


@pytest.mark.parametrize("code", ENGINE)
def test_every_route_says_what_state_the_server_is_in(code: str) -> None:
    async def go(route: Route) -> tuple[int, str]:
        driver = ENGINE[code]()
        if code == "not_ready":
            driver.lifespan.phase = "opening"
        else:
            driver.lifespan.start()
            while driver.lifespan.phase == "opening":
                await asyncio.sleep(0)
        if code == "shutting_down":
            driver.lifespan.begin_shutdown()
        sent = await driver.request(route.method, place(route))
        if sent.status in (429, 503):
            assert int(sent.headers[b"retry-after"]) >= 1
        return sent.status, json.loads(sent.body)["error"]["code"]

    for route in ROUTES:
        if route.verb in (*ENGINELESS, "socket"):
            continue
        assert run(go(route)) == (status_of(code), code), route.path


def test_every_route_with_a_body_gives_it_a_time() -> None:
    async def go(route: Route) -> tuple[int, str]:
        driver = Driver(body_timeout_ms=1)
        await driver.ready()
        headers = {"content-type": "application/json", "content-length": "10"}
        sent = await driver.request(route.method, place(route), [], headers=headers)
        return sent.status, json.loads(sent.body)["error"]["code"]

    for route in ROUTES:
        if route.body is not None:
            assert run(go(route)) == (408, "request_timeout"), route.path


def test_values_over_a_maximum_clamp(clients: dict[str, Http]) -> None:
    for number, (name, (case, listed, expected)) in enumerate(SIZES.items()):
        for protocol, api in clients.items():
            reply = send(case, api, f"clamp-{number}")
            assert reply.status == 200, (protocol, name, reply)
            assert len(reply.json[listed]) == expected, (protocol, name)


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_not_a_number_is_refused(clients: dict[str, Http], name: str) -> None:
    method, path, fields = NUMBERS[name]
    queue: Any = ("PUT", T, {"type": "queue"})
    before = {"claim": (queue,), "read": (THREE, ("PUT", C, {}))}.get(name, (THREE,))
    base = {"node": "w"} if name == "claim" else {"topics": ["{t}"]} if name == "watch" else {}
    for field in fields:
        for number, wrong in enumerate(WRONG_NUMBERS):
            case = Case(400, "invalid_request", method, path, base | {field: wrong}, before=before)
            bodies = set()
            for api in clients.values():
                topic = f"n-{name}-{field}-{number}"
                reply = send(case, api, topic)
                assert (reply.status, reply.code) == (400, "invalid_request"), (field, wrong)
                assert field in reply.json["error"]["message"]
                bodies.add(reply.body)
            assert len(bodies) == 1


def test_a_backup_into_a_used_directory(clients: dict[str, Http]) -> None:
    for api in clients.values():
        assert api("POST", "/v0/admin/backup", {"dir": "used"}).status == 200
        reply = api("POST", "/v0/admin/backup", {"dir": "used"})
        assert (reply.status, reply.code) == (400, "invalid_directory")
        assert "it is not empty" in reply.json["error"]["message"]


@pytest.mark.skipif(platform.machine() not in SYSTEM_CALLS, reason="no numbers of its system calls")
def test_a_busy_consumer(tmp_path: Path) -> None:
    """The reader before is one whose cursor is still being written: its sync is held."""
    with Holding(tmp_path / "data", env=QUIET) as server:
        for port in (server.port, Http2Port(server.port)):
            with closing(Http(port)) as api, closing(Http(port)) as other:
                busy(server, api, other, f"/v0/topics/busy-{type(port).__name__}")


def busy(server: Holding, api: Http, other: Http, topic: str) -> None:
    """Reads while the cursor of another read is being written."""
    path, one = f"{topic}/consumers/once", {"max_records": 1, "fail_if_busy": True}
    assert api("PUT", topic, {"durability": "fsync"}).status == 201
    assert api("POST", topic, {"records": [{"data": 1}, {"data": 2}]}).status == 200
    assert api("PUT", path, {"mode": "at_most_once"}).status == 201
    assert api("POST", "/v0/sync").status == 200
    server.hold()
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(other, "POST", f"{path}/read", one)
        server.until_held()
        reply = api("POST", f"{path}/read", one)
        server.release()
        first = before.result(DEADLINE)
    assert (reply.status, reply.code) == (409, "consumer_busy")
    assert [record["data"] for record in first.json["records"]] == [1]
    after = api("POST", f"{path}/read", one)
    assert [record["data"] for record in after.json["records"]] == [2], "none is passed over"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the limits of another process")
def test_a_sync_after_acked_records_were_lost(tmp_path: Path) -> None:
    """The size limit of files makes the write behind the ack fail."""
    with opened(tmp_path / "data") as server:
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        for port in (server.port, Http2Port(server.port)):
            api, topic = Http(port), f"clicks-{type(port).__name__}"
            assert api("PUT", f"/v0/topics/{topic}", {"durability": "memory"}).status == 201
            assert api("POST", "/v0/sync").status == 200
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
            records = {"records": [{"data": 1}, {"data": 2}]}
            assert api("POST", f"/v0/topics/{topic}", records).status == 200
            assert api("POST", "/v0/sync").status == 503
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))

            def synced(api: Http = api) -> Reply | None:
                reply = api("POST", "/v0/sync")
                return None if reply.status == 503 else reply

            # Until the engine looks for space again.
            reply = until(synced, DEADLINE)
            assert reply is not None
            error = json.loads(reply.body)["error"]
            assert (reply.status, error["code"]) == (500, "data_loss")
            detail = {"topic": topic, "gap_from": 1, "gap_to": 2, "reason": "crash"}
            assert error["detail"] == detail
            assert api("POST", "/v0/sync").status == 200, "each loss is reported once"
            api.close()


def test_an_event_that_is_no_longer_kept(protocols: dict[str, Server]) -> None:
    """A session keeps the places of its last 16384 events; behind those it cannot go back."""
    port = protocols["hot"].port
    api = Http(port)
    for _ in range(17):
        reply = api("POST", "/v0/topics/kept", {"records": [{"data": 1}] * 1000})
        assert reply.status in (200, 201)
    made = api("POST", "/v0/watch", {"topics": {"kept": {}}, "limit": 1}).json
    with Events(port, made["stream_url"]) as events:
        while next(events).data.get("to_seq", 0) < 16_999:
            pass
    for event, status in (("s1", 410), ("s99999", 200), ("s16998", 200)):
        with Events(port, made["stream_url"], {"Last-Event-ID": event}) as events:
            assert events.status == status, event
            assert status == 200 or events.code == "session_gone"
    api.close()


@pytest.mark.parametrize("size", [2, 65])
@pytest.mark.parametrize("name", ["plain", "hot"])
def test_a_stream_goes_on_behind_what_its_client_received(
    protocols: dict[str, Server], topic: str, name: str, size: int
) -> None:
    """The server learns late that a connection is gone, and goes on sending to it meanwhile. Above
    64 topics the ids of events are numbers.
    """
    port = protocols[name].port
    api = Http(port)
    for n in range(size):
        assert api("POST", f"/v0/topics/{topic}.{n}", {"records": [{"data": 0}]}).status == 201
    made = api("POST", "/v0/watch", {"topics": {}, "patterns": [f"{topic}.*"]}).json

    def records(events: Events, wanted: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < wanted:
            if (event := next(events)).kind == "record":
                found += [record["data"] for record in event.data["records"]]
        return found

    def write(n: int) -> None:
        path = f"/v0/topics/{topic}.new{n}"
        assert api("POST", path, {"records": [{"data": n}]}).status == 201

    with Events(port, made["stream_url"]) as lost:
        write(1)
        assert records(lost, 1) == [1]
        received = {"Last-Event-ID": lost.last_id}
        write(2)
        assert records(lost, 1) == [2], "sent, but let the client not have received it"
        with Events(port, made["stream_url"], received) as events:
            assert records(events, 1) == [2]
            last = [event for event in lost if event.kind == "error"][-1].data
            assert (last["code"], last["error"]) == (410, "session_gone")
            write(3)
            assert records(events, 1) == [3]
            received = {"Last-Event-ID": events.last_id}
        with Events(port, made["stream_url"], received) as events:
            write(4)
            assert records(events, 1) == [4]
    api.close()


def test_a_socket_opens(protocols: dict[str, Server]) -> None:
    for name in ("plain", "hot"):
        socket = Socket(protocols[name].port)
        assert socket.ask("ping", "pong")
        socket.close()
