"""Metrics of the server itself: requests of every protocol, the process, the disk, the build."""

from __future__ import annotations

import re
from typing import Any

import pytest

import topics_engine
from support.http_client import Http
from support.server import Server
from support.sse import Events
from support.waiting import until
from support.websocket import Socket
from topics_engine.asgi.metrics import BOUNDS, FAMILIES, ServerMetrics
from topics_engine.asgi.routes import ROUTES

from .pending import DEADLINE
from .test_metrics import scraped


def values(api: Http, path: str = "/v0/metrics") -> dict[str, float]:
    return scraped(api("GET", path, headers={"Accept": "text/plain"}).body.decode())[1]


def requests_of(found: dict[str, float], method: str, route: str, status: int) -> float:
    labels = f'{{method="{method}",route="{route}",status="{status}"}}'
    return found.get(f"topics_http_requests_total{labels}", 0)


def without_streams(api: Http) -> None:
    """Waits until the streams of the tests before have ended, and were counted."""
    until(lambda: values(api)["topics_http_streams"] == 0, DEADLINE)


def test_requests_are_counted_by_route_and_status(protocols: dict[str, Server]) -> None:
    """The same requests count the same over every protocol, the native one included."""
    counted: dict[str, list[float]] = {}
    asked = (
        ("POST", "/v0/topics/:t", 201), ("POST", "/v0/topics/:t", 200),
        ("POST", "/v0/topics/:t", 400), ("POST", "/v0/topics/:t/diff", 200),
        ("POST", "/v0/topics/:t/diff", 404), ("GET", "/v0/topics/:t", 200), ("GET", "none", 404),
        ("GET", "/console/:file", 200), ("GET", "/console/:file", 304), ("other", "none", 405),
    )  # fmt: skip
    for protocol, server in protocols.items():
        api = Http(server.port)
        before = values(api)
        api.close()
        # A connection of its own: it is hot until the first request that is not.
        api = Http(server.port)
        for n in range(3):
            assert api("POST", "/v0/topics/counted", {"records": [{"data": n}]}).status < 300
        assert api("POST", "/v0/topics/counted", {"records": []}).status == 400
        assert api("POST", "/v0/topics/counted/diff", {"from_seq": 0}).status == 200
        assert api("POST", "/v0/topics/absent-one/diff", {"from_seq": 0}).status == 404
        assert api("GET", "/v0/topics/counted").status == 200
        assert api("GET", "/no/such/path").status == 404
        tag = api("GET", "/console/app.js").headers["etag"]
        assert api("GET", "/console/app.js", headers={"If-None-Match": tag}).status == 304
        after = values(api)
        counted[protocol] = [
            requests_of(after, *each) - requests_of(before, *each) for each in asked
        ]
        hot = 'topics_http_request_seconds_count{method="POST",route="/v0/topics/:t"}'
        assert after[hot] - before.get(hot, 0) == 4
        assert after[hot.replace("_count", "_sum")] > before.get(hot.replace("_count", "_sum"), 0)
        api.close()
    for protocol, found in counted.items():
        assert found == [1, 2, 1, 1, 1, 1, 1, 1, 1, 0], protocol


def test_a_stream_counts_when_it_ends(server: Server, api: Http, topic: str) -> None:
    assert api("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}).status == 201
    row = ("GET", "/v0/watch", 200)
    without_streams(api)
    before = requests_of(values(api), *row)
    with Events(server.port, f"/v0/watch?topic={topic}") as events:
        events.until("caught-up")
        found = values(api)
        assert found["topics_http_streams"] >= 1
        assert requests_of(found, *row) == before
    until(lambda: requests_of(values(api), *row) == before + 1, DEADLINE)
    assert 'topics_http_request_seconds_count{method="GET",route="/v0/watch"}' not in [
        name for name, value in values(api).items() if value
    ]


def test_a_socket_counts_when_it_ends(server: Server, api: Http) -> None:
    row = ("GET", "/v0/ws", 101)
    without_streams(api)
    before = requests_of(values(api), *row)
    socket = Socket(server.port)
    socket.ask("ping", "pong")
    assert requests_of(values(api), *row) == before
    socket.close()
    until(lambda: requests_of(values(api), *row) == before + 1, DEADLINE)


def test_the_process_the_disk_and_the_build(api: Http) -> None:
    found = values(api)
    assert 1 << 20 < found["process_resident_memory_bytes"] < found["process_virtual_memory_bytes"]
    assert found["process_cpu_seconds_total"] > 0
    assert 3 < found["process_open_fds"] < found["process_max_fds"]
    assert found["process_start_time_seconds"] > 1_700_000_000
    assert 0 < found["topics_disk_free_bytes"] <= found["topics_disk_size_bytes"]
    (build,) = [name for name in found if name.startswith("topics_build_info")]
    assert f'version="{topics_engine.__version__}"' in build


def test_the_same_at_metrics_and_as_json(api: Http) -> None:
    kinds, _ = scraped(api("GET", "/metrics", headers={"Accept": "text/plain"}).body.decode())
    assert {family.name: family.kind for family in FAMILIES}.items() <= kinds.items()
    told: dict[str, Any] = api("GET", "/metrics", headers={"Accept": "application/json"}).json
    assert told["disk_free_bytes"] > 0
    assert told["build_info"]["version"] == topics_engine.__version__
    assert any(each["route"] == "/metrics" for each in told["http_requests"])
    assert told["appends"] >= 0, "what the core tells is there, too"


@pytest.mark.parametrize("seconds", [0.0, *BOUNDS, 11.0])
def test_a_bound_belongs_to_its_bucket(seconds: float) -> None:
    metrics = ServerMetrics("1", lambda: 0, lambda: 0)
    metrics.count(ROUTES[0], "GET", 200, seconds)
    text = metrics.text(None).decode()
    for bound, count in re.findall(r'_bucket\{.*le="([^"]+)"\} (\d+)', text):
        assert int(count) == (seconds <= float(bound)), bound


def test_what_a_client_invents_makes_no_label() -> None:
    metrics = ServerMetrics("1", lambda: 0, lambda: 0)
    metrics.count(None, 'X"\n', 405, 0.1)
    assert 'method="other",route="none"' in metrics.text(None).decode()
