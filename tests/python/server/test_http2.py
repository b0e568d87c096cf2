"""HTTP/2 on the port of HTTP/1.1: streams beside each other, windows, limits, ends, TLS."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from support.gate import figure
from support.h2_client import Http2Connection, Http2Port, Response, StreamReset
from support.http_client import Http, once, raw_exchange
from support.server import Server, running
from support.sse import Events
from support.tls import TlsServer
from support.waiting import DEADLINE, until

from ..asgi.test_routes import write
from ..asgi.test_watch import streams
from .test_abuse import connected, sockets

JSON = {"Content-Type": "application/json"}
STREAMS = 5


def serving(
    request: pytest.FixtureRequest,
    factory: pytest.TempPathFactory,
    tls: dict[str, str],
    limits: dict[str, str],
) -> Iterator[Server]:
    """A server with these limits, with TLS or without."""
    folder = factory.mktemp("h2") / "data"
    if request.param == "tls":
        yield from running(folder, limits | tls, TlsServer)
    else:
        yield from running(folder, limits)


@pytest.fixture(scope="module", params=["tcp", "tls"])
def five(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tls: dict[str, str]
) -> Iterator[Server]:
    """A server with the usual timeouts and few streams."""
    limits = {"TOPICS_MAX_STREAMS_PER_CONNECTION": str(STREAMS)}
    yield from serving(request, tmp_path_factory, tls, limits)


@pytest.fixture(scope="module", params=["tcp", "tls"])
def hasty(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tls: dict[str, str]
) -> Iterator[Server]:
    """A server that soon ends connections without requests."""
    limits = {"TOPICS_HEADER_TIMEOUT_MS": "300", "TOPICS_IDLE_TIMEOUT_MS": "300"}
    yield from serving(request, tmp_path_factory, tls, limits)


@pytest.fixture(scope="module", params=["tcp", "tls"])
def impatient(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tls: dict[str, str]
) -> Iterator[Server]:
    """A server with short timeouts for bodies, and for answers that a client does not read."""
    limits = {"TOPICS_STALL_TIMEOUT_MS": "300", "TOPICS_BODY_TIMEOUT_MS": "300"}
    yield from serving(request, tmp_path_factory, tls, limits)


@pytest.fixture
def link(hot_server: Server) -> Iterator[Http2Connection]:
    made = Http2Connection("127.0.0.1", hot_server.port, timeout=DEADLINE)
    made.connect()
    yield made
    made.close()


def post(link: Http2Connection, path: str, body: Any) -> Response:
    return link.start("POST", path, json.dumps(body).encode(), JSON)


def whole(response: Response) -> tuple[int, Any]:
    response.wait(lambda: response.status)
    return response.status, json.loads(response.read())


def ended(link: Http2Connection) -> int | None:
    """Receives until the server has closed the connection; what its GOAWAY said, if one came."""
    # Nothing is acknowledged any more: a write may fail before all was read.
    link.flush = lambda: None  # type: ignore[method-assign]
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while True:
            link.receive()
    return None if link.goodbye is None else int(link.goodbye.error_code or 0)


def calmed(link: Http2Connection, server: Server) -> bool:
    """Whether the server has ended the connection of a client that sends too many frames."""
    code = ended(link)
    # OpenSSL may not read any more when a write has failed.
    return code == ErrorCodes.ENHANCE_YOUR_CALM or (code is None and isinstance(server, TlsServer))


def test_streams_are_answered_beside_each_other(link: Http2Connection, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert whole(post(link, path, {"records": [{"data": 0}]}))[0] == 201
    waiting = [post(link, f"{path}/diff", {"from_seq": 1, "wait_ms": 20_000}) for _ in range(20)]
    writes = [post(link, path, {"records": [{"data": n}]}) for n in range(1, 20)]
    seqs = [whole(response)[1]["first_seq"] for response in writes]
    assert seqs == list(range(2, 21))
    for response in waiting:
        status, answer = whole(response)
        assert (status, answer["records"][0]["data"]) == (200, 1)


def test_a_large_answer_waits_for_its_windows_and_holds_up_no_other(
    link: Http2Connection, topic: str
) -> None:
    path = f"/v0/topics/{topic}"
    for _ in range(40):
        big = [{"data": "x" * 9000} for _ in range(20)]
        assert whole(post(link, path, {"records": big}))[0] in (200, 201)
    large = {"from_seq": 0, "limit": 1000, "max_batch_bytes": 8 << 20}
    slow = post(link, f"{path}/diff", large)
    slow.wait(lambda: not link.h2.remote_flow_control_window(slow.id))
    assert len(slow.buffer) <= 65_535, "the window that a client has unless it says more"
    # What there is of the connection's window goes to both, in turns.
    link.h2.increment_flow_control_window(30_000)
    link.flush()
    assert whole(post(link, f"{path}/diff", {"from_seq": 799}))[1]["caught_up"] is True
    assert not slow.ended
    records = json.loads(slow.read())["records"]
    assert len(records) == 800
    assert all(r["data"] == "x" * 9000 for r in records)


def test_a_stream_of_events_beside_requests(
    link: Http2Connection, hot_server: Server, topic: str
) -> None:
    api = Http(hot_server.port)
    write(api, topic, 1)
    # The streams of earlier tests have ended.
    until(lambda: streams(api) == 0)
    before = 0
    watch = link.start("GET", f"/v0/watch?topic={topic}&from_seq=0")
    watch.wait(lambda: b"caught-up" in watch.buffer)
    assert watch.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streams(api) == before + 1
    assert whole(post(link, f"/v0/topics/{topic}", {"records": [{"data": "two"}]}))[0] == 200
    watch.wait(lambda: b'"two"' in watch.buffer)
    # A client that gives the stream up frees its place; the connection is as good as before.
    watch.close()
    until(lambda: streams(api) == before)
    assert whole(link.start("GET", "/v0/health"))[0] == 200
    api.close()


def test_a_stream_that_nobody_takes_holds_up_no_other(
    link: Http2Connection, hot_server: Server, topic: str
) -> None:
    api = Http(hot_server.port)
    write(api, topic, "first")
    link.h2.increment_flow_control_window(1 << 20)
    path = f"/v0/watch?topic={topic}&from_seq=0"
    stalled, taken = link.start("GET", path), link.start("GET", path)
    sent = ["first", *(f"{n:x<5000}" for n in range(40))]

    def values(response: Response, count: int) -> list[str]:
        got: list[str] = []
        while len(got) < count:
            line = response.readline()
            if line.startswith(b"data: ") and b'"records"' in line:
                got += [record["data"] for record in json.loads(line[6:])["records"]]
        return got

    assert values(taken, 1) == sent[:1]
    for value in sent[1:]:
        write(api, topic, value)
        assert values(taken, 1) == [value]
    assert len(stalled.buffer) <= 65_535
    assert values(stalled, len(sent)) == sent
    api.close()


def test_what_is_not_for_http2_stays_away(link: Http2Connection, topic: str) -> None:
    big = post(link, f"/v0/topics/{topic}", {"records": [{"data": "x" * 300_000}]})
    assert whole(big)[0] == 413
    assert "connection" not in big.headers
    assert "transfer-encoding" not in big.headers
    # The stream ended, and nothing else.
    assert whole(link.start("GET", "/v0/health"))[0] == 200
    asked = link.start(
        "POST", f"/v0/topics/{topic}", None, JSON | {"expect": "100-continue"}, end=False
    )
    asked.wait(lambda: asked.informational)
    assert asked.informational == [100]
    link.send(asked, b'{"records":[{"data":1}]}')
    assert whole(asked)[0] == 201
    for path in ("*", "no-slash", "/v0/%", "/\xff"):
        assert whole(link.start("GET", path))[0] in (400, 404), path


def test_a_body_in_pieces_without_a_length(link: Http2Connection, topic: str) -> None:
    sent = link.start("POST", f"/v0/topics/{topic}", None, JSON, end=False)
    for piece in (b'{"records":', b"", b"[{", b'"data":1}]}'):
        link.h2.send_data(sent.id, piece, pad_length=7)
        link.flush()
    link.h2.end_stream(sent.id)
    link.flush()
    assert whole(sent)[0] == 201
    # Neither a length nor a body: as a POST without both in HTTP/1.1.
    assert whole(link.start("POST", "/v0/sync"))[0] == 200


def test_a_body_larger_than_every_window(link: Http2Connection, topic: str) -> None:
    body = {"records": [{"data": "y" * 1000} for _ in range(190)]}
    for _ in range(8):
        assert whole(post(link, f"/v0/topics/{topic}", body))[0] in (200, 201)


def test_more_streams_than_there_may_be_are_refused(five: Server) -> None:
    link = Http2Connection("127.0.0.1", five.port, timeout=DEADLINE)
    link.connect()
    assert once(five.port, "PUT", "/v0/topics/many").status in (200, 201)
    wait = {"from_seq": 0, "wait_ms": 20_000}
    # All at once, before the server's settings have arrived.
    asked = [post(link, "/v0/topics/many/diff", wait) for _ in range(8)]
    for response in asked[5:]:
        with pytest.raises(StreamReset) as refused:
            whole(response)
        assert refused.value.code == ErrorCodes.REFUSED_STREAM
    assert link.h2.remote_settings.max_concurrent_streams == STREAMS
    asked[0].close()
    until(lambda: _is_answered(link))
    assert once(five.port, "POST", "/v0/topics/many", {"records": [{"data": 1}]}).status == 200
    assert [whole(response)[0] for response in asked[1:5]] == [200] * 4
    link.close()


def _is_answered(link: Http2Connection) -> bool:
    try:
        return whole(link.start("GET", "/v0/health"))[0] == 200
    except StreamReset:
        return False


def test_rapid_resets_end_the_connection(five: Server) -> None:
    assert once(five.port, "PUT", "/v0/topics/rapid").status in (200, 201)
    until(lambda: not connected(five.port))
    before = sockets(five.pid)
    link = Http2Connection("127.0.0.1", five.port, timeout=DEADLINE)
    link.connect()
    with contextlib.suppress(OSError):
        for _ in range(2000):
            stream_id = link.h2.get_next_available_stream_id()
            head = link.head("POST", "/v0/topics/rapid/diff", JSON.items())
            link.h2.send_headers(stream_id, head)
            link.h2.send_data(stream_id, b'{"wait_ms":20000}', end_stream=True)
            link.h2.reset_stream(stream_id)
            link.flush()
    assert calmed(link, five)
    link.close()
    until(lambda: sockets(five.pid) <= before)


@pytest.mark.parametrize("flood", ["ping", "settings", "priority", "empty data", "window"])
def test_floods_of_frames_that_bring_nothing_end_the_connection(five: Server, flood: str) -> None:
    link = Http2Connection("127.0.0.1", five.port, timeout=DEADLINE)
    link.connect()
    stream_id = link.h2.get_next_available_stream_id()
    link.h2.send_headers(stream_id, link.head("POST", "/v0/topics/flood", JSON.items()))
    frames = {
        "ping": lambda: link.h2.ping(b"12345678"),
        "settings": lambda: link.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 4096}),
        "priority": lambda: link.h2.prioritize(stream_id, weight=5),
        "empty data": lambda: link.h2.send_data(stream_id, b""),
        "window": lambda: link.h2.increment_flow_control_window(1),
    }
    try:
        for _ in range(8000):
            frames[flood]()
        link.flush()
    except OSError:
        pass
    assert calmed(link, five)
    link.close()
    assert once(five.port, "GET", "/v0/health").status == 200


def test_a_connection_without_requests_ends(hasty: Server) -> None:
    def without_requests(requests: int) -> Http2Connection | None:
        """A connection after `requests` requests; `None` if this machine was too slow for them."""
        link = Http2Connection("127.0.0.1", hasty.port, timeout=DEADLINE)
        with contextlib.suppress(ConnectionError):
            link.connect()
            for _ in range(requests):
                assert whole(link.start("GET", "/v0/health"))[0] == 200
            return link
        return None

    for requests in (0, 1):
        link = until(lambda requests=requests: without_requests(requests))
        started = time.monotonic()
        assert ended(link) == ErrorCodes.NO_ERROR
        figure("an idle connection ended after", time.monotonic() - started, below=9, unit="s")
        link.close()


def test_a_body_that_stops_is_408_and_the_connection_stays(impatient: Server) -> None:
    link = Http2Connection("127.0.0.1", impatient.port, timeout=DEADLINE)
    slow = link.start("POST", "/v0/topics/slow", None, JSON, end=False)
    link.h2.send_data(slow.id, b"{")
    link.flush()
    status, answer = whole(slow)
    assert (status, answer["error"]["code"]) == (408, "request_timeout")
    assert whole(link.start("GET", "/v0/health"))[0] == 200
    link.close()


def test_a_client_without_windows_loses_its_streams(impatient: Server) -> None:
    assert once(impatient.port, "PUT", "/v0/topics/closed").status in (200, 201)
    link = Http2Connection("127.0.0.1", impatient.port, timeout=DEADLINE)
    link.connect()
    link.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    link.flush()
    for path in ("/v0/health", "/v0/watch?topic=closed"):
        response = link.start("GET", path)
        with pytest.raises(StreamReset) as lost:
            response.read()
        assert lost.value.code == ErrorCodes.CANCEL
        assert response.status == 200
    api = Http(impatient.port)
    until(lambda: streams(api) == 0)
    api.close()
    link.close()


def test_headers_have_their_limits(link: Http2Connection) -> None:
    many = {f"x-{n}": "y" for n in range(200)}
    assert whole(link.start("GET", "/v0/health", None, many))[0] == 431
    large = {f"x-{n}": "y" * 7000 for n in range(11)}
    assert whole(link.start("GET", "/v0/health", None, large))[0] == 431
    huge = {f"x-{n}": "y" * 7000 for n in range(30)}
    link.start("GET", "/v0/health", None, huge)
    assert ended(link) != ErrorCodes.NO_ERROR


def test_a_shutdown_says_so_and_answers_what_it_has(own_server: Server) -> None:
    own_server.start()
    assert once(own_server.port, "PUT", "/v0/topics/t").status == 201
    links = [Http2Connection("127.0.0.1", own_server.port, timeout=DEADLINE) for _ in range(2)]
    idle, busy = links
    assert whole(idle.start("GET", "/v0/health"))[0] == 200
    waiting = post(busy, "/v0/topics/t/diff", {"from_seq": 0, "wait_ms": 30_000})
    watch = busy.start("GET", "/v0/watch?topic=t")
    watch.wait(lambda: b"caught-up" in watch.buffer)
    assert own_server.stop() == 0
    assert whole(waiting)[1]["records"] == []
    assert watch.read().rstrip().endswith(b"}")
    assert watch.ended
    for link in links:
        assert ended(link) == ErrorCodes.NO_ERROR
        link.close()


def test_http2_begins_with_the_first_byte_or_not_at_all(hot_server: Server, topic: str) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    body = b'{"records":[{"data":1}]}'
    hot = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    answer = raw_exchange(hot_server.port, hot, preface)
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert b"HTTP/1.1 400 " in answer
    for broken in (b"PRI * HTTP/2.0\r\n\r\nXX", b"PRI / HTTP/1.1\r\nHost: a\r\n\r\n"):
        assert raw_exchange(hot_server.port, broken).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("upgrade", ["h2c", "TLS/1.2", "nonsense"])
def test_an_upgrade_to_what_there_is_not_is_passed_over(
    hot_server: Server, topic: str, upgrade: str
) -> None:
    """Many clients of Java ask for h2c with every request: what follows is still its body."""
    body = b'{"records":[{"data":1}]}'
    asks = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": upgrade, "HTTP2-Settings": "AAMA"}
    made = http.client.HTTPConnection("127.0.0.1", hot_server.port, timeout=DEADLINE)
    for seq in range(1, 4):
        made.putrequest("POST", f"/v0/topics/{topic}")
        for name, value in (asks | JSON | {"Content-Length": str(len(body))}).items():
            made.putheader(name, value)
        made.endheaders()
        for piece in (body[:5], body[5:]):
            time.sleep(0.01)  # sleep: a slow client
            made.send(piece)
        answer = made.getresponse()
        assert (answer.status, json.loads(answer.read())["first_seq"]) == (
            201 if seq == 1 else 200,
            seq,
        )
    made.request("POST", f"/v0/topics/{topic}", iter([body]), asks | JSON, encode_chunked=True)
    assert json.loads(made.getresponse().read())["first_seq"] == 4
    made.close()


def test_events_over_http2_are_events(hot_server: Server, topic: str) -> None:
    port = Http2Port(hot_server.port)
    api = Http(port)
    write(api, topic, *range(5))
    with Events(port, f"/v0/watch?topic={topic}&from_seq=0&limit=2") as events:
        assert events.values(4) == [0, 1, 2, 3]
    with Events(port, f"/v0/watch?topic={topic}", {"Last-Event-ID": events.last_id}) as again:
        assert again.values(1) == [4]
    api.close()
