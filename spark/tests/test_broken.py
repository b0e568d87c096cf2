"""Broken connections: reads continue at their position, writes are repeated, nothing is doubled."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading

import pytest
from pyspark.errors import PySparkException
from pyspark_topics.access import ScanRequest
from pyspark_topics.client import Client
from pyspark_topics.errors import Interrupted, InvalidOption, TopicsError
from pyspark_topics.options import Connection, Selection, Subscription
from pyspark_topics.server import Server

from support.tls import certificate

ROWS = 30_000


@pytest.mark.parametrize("what", ["cut", "unmark", "refuse", "busy", "unavailable"])
def test_a_read_goes_on_where_it_was(topics, topic, read, proxy, what):
    topics.append(topic, [{"n": n, "pad": "x" * 100} for n in range(ROWS)])
    proxy.break_next("/scan", what, times=3)
    rows = read("seq long", url=proxy.url).collect()
    assert sorted(row.seq for row in rows) == list(range(1, ROWS + 1))
    # A stream without its marker is incomplete, but no row of this range is missing from it.
    assert sum("/scan" in path for path in proxy.seen) == (1 if what == "unmark" else 4)


def test_planning_waits_for_a_server_that_is_away(topics, topic, read, proxy):
    topics.append(topic, [1, 2, 3])
    proxy.break_next("/state", "refuse", times=2)
    assert read(url=proxy.url).count() == 3


def test_patience_ends(topics, topic, read, proxy):
    topics.append(topic, [1])
    proxy.break_next("/scan", "refuse", times=1000)
    with pytest.raises(PySparkException, match="scan"):
        read(url=proxy.url, retryTimeoutMs="500").collect()


class Listener(threading.Thread):
    """Accepts connections and answers each with the same bytes, over TLS or not."""

    def __init__(self, answer: bytes, context: ssl.SSLContext | None = None) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.answer, self.context, self.accepted = answer, context, 0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.socket.accept()
                self.accepted += 1
                with contextlib.suppress(OSError), peer:
                    if self.context is not None:
                        peer = self.context.wrap_socket(peer, server_side=True)
                    peer.recv(1 << 16)
                    peer.sendall(self.answer)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the thread.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.join(60)


def refused(url):
    # What was waited for would take an hour.
    with pytest.raises(InvalidOption, match='"url"') as why:
        Client(Connection(url, "s3cret", None, 3600.0)).call("GET", "/v0/health")
    assert "s3cret" not in str(why.value)
    return str(why.value)


def test_what_no_wait_can_mend_is_refused_with_the_option(tmp_path, topics, monkeypatch):
    files = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files["TOPICS_TLS_CERT"], files["TOPICS_TLS_KEY"])
    with Listener(b"SSH-2.0-OpenSSH_9.9\r\n") as ssh:
        assert "does not speak HTTP" in refused(f"http://127.0.0.1:{ssh.port}")
    with Listener(b"", tls) as server:
        assert "use https://" in refused(f"http://127.0.0.1:{server.port}")
        assert "certificate" in refused(f"https://127.0.0.1:{server.port}")
    assert "use http://" in refused(f"https://127.0.0.1:{topics.server.port}")
    for head, why in (
        (b"200 OK\r\nContent-Type: text/html; charset=utf-8", "'text/html' instead of"),
        (b"200 OK", "instead of application/json"),
        (b"302 Found\r\nLocation: https://h/login", "redirection to 'https://h/login'"),
        (b"307 Else\r\nContent-Type: application/json\r\nLocation: /b", "redirection to '/b'"),
    ):
        with Listener(b"HTTP/1.1 " + head + b"\r\nContent-Length: 2\r\n\r\n{}") as other:
            assert why in refused(f"http://127.0.0.1:{other.port}")
    gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nhere"
    with Listener(gone) as other, pytest.raises(TopicsError, match=r"HTTP 404 .*'here'"):
        Client(Connection(f"http://127.0.0.1:{other.port}", None, None, 3600.0)).call("GET", "/v0")

    def unknown(*_args, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "'no-such-host' does not exist" in refused("http://no-such-host:4000")


def test_what_may_pass_is_waited_for(monkeypatch, topics):
    answers = [socket.gaierror(socket.EAI_AGAIN, "again"), ConnectionRefusedError(111, "refused")]
    connect = socket.create_connection

    def flaky(*args, **more):
        if answers:
            raise answers.pop()
        return connect(*args, **more)

    monkeypatch.setattr(socket, "create_connection", flaky)
    assert Client(Connection(topics.url, None, None, 60.0)).call("GET", "/v0/health")
    assert answers == []


def test_a_machine_that_does_not_answer_is_tried_again(monkeypatch):
    monkeypatch.setattr("pyspark_topics.client.CONNECT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as kept:
        # The system drops what does not fit into the backlog, as a firewall does.
        for _ in range(2):
            sock = kept.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        with pytest.raises(Interrupted, match=r"TimeoutError\('timed out'\)"):
            Client(Connection(url, None, None, 1.0)).call("GET", "/v0/health")


def scan(server, topic, upto):
    request = ScanRequest(
        topic=topic,
        topic_id=server.heads(Subscription((topic,)))[topic].topic_id,
        after=0,
        upto=upto,
        columns=("seq", "data", "gap_to", "gap_reason"),
        binary=False,
        strong=False,
        selection=Selection(),
    )
    with server.scan(request) as found:
        return sum(batch.num_rows for batch in found.batches())


def test_a_stream_without_its_end_is_an_error(topics, topic, proxy):
    topics.append(topic, list(range(100)))
    server = Server(Connection(proxy.url, None, None, 60.0))
    assert scan(server, topic, 100) == 100
    for what in ("cut", "unmark"):
        proxy.break_next("/scan", what)
        with pytest.raises(Interrupted):
            scan(server, topic, 100)
    # The broken connection is not used again.
    assert scan(server, topic, 100) == 100


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(topics, proxy, caplog):
    client = Client(Connection(proxy.url, None, None, 60.0))
    proxy.break_next("/topics", "hang up")
    client.call("GET", "/v0/topics")
    # When the connection is readable, its end has arrived.
    assert select.select([client._connection.sock], [], [], 60)[0]
    client.call("GET", "/v0/topics")
    assert (len(proxy.seen), caplog.records) == (2, [])


def test_a_stream_waits_for_a_server_that_is_away(topics, topic, stream, proxy):
    topics.append(topic, list(range(30)))
    for path, what in (("/state", "refuse"), ("/state", "busy"), ("/scan", "refuse")):
        proxy.break_next(path, what, times=2)
    stream.run(url=proxy.url, maxOffsetsPerTrigger="10")
    assert sorted(topics.data(stream.sink)) == list(range(30))


def test_a_refusal_is_not_repeated(topics, topic, proxy):
    server = Server(Connection(proxy.url, None, None, 60.0))
    with pytest.raises(TopicsError) as refused:
        server.seek(topic, 0)
    assert refused.value.code == "topic_not_found"
    assert len(proxy.seen) == 1


@pytest.mark.parametrize("what", ["refuse", "forget", "busy", "unavailable"])
def test_a_batch_write_is_published_once(spark, topics, topic, proxy, what):
    for path in ("/stage/", "/commit"):
        proxy.break_next(path, what)
    frame = spark.range(1000).selectExpr("cast(id as string) AS data")
    frame.write.format("topics").mode("append").save(url=proxy.url, topic=topic)
    assert sorted(topics.data(topic)) == list(range(1000))
    assert sum("/commit" in path for path in proxy.seen) >= (1 if what == "forget" else 2)


def test_what_cannot_be_read_is_named(topics, topic, read):
    """The stream ends after the last readable record; a request for the rest returns the reason."""
    topics.append(topic, [{"pad": "x" * 1000}] * 9000)
    topics.client.call("POST", f"/v0/topics/{topic}", {"records": [{"data_b64": "/w=="}]})
    # If the cause counted as a broken connection, the read would wait.
    patient = {"retryTimeoutMs": "600000"}
    with pytest.raises(PySparkException, match=r"record 9001 is binary.*dataType=binary"):
        read("data string", **patient).collect()
    assert read("data binary", **patient).count() == 9001
    server = Server(Connection(topics.url, None, None, 60.0))
    with pytest.raises(Interrupted):
        scan(server, topic, 9001)
    # A read without the damaged column does not fail.
    assert read("seq long", **patient).count() == 9001
