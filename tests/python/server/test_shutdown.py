"""A server that is told to go, with all kinds of clients: it ends in time and keeps its word."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gate import figure, sized
from support.h2_client import Http2Connection, Http2Port, Response
from support.http_client import Http, once
from support.server import Server
from support.sse import Events
from support.waiting import DEADLINE, until, until_received
from support.websocket import Socket

from ..asgi.test_watch import streams
from .test_kill import read_all

ROUNDS = sized(1, 1, 10)
WATCHERS = sized(200, 900, 900)
# Beside them, on one connection.
STREAMS = sized(50, 100, 100)
WRITERS = 6
# What a shutdown usually takes, and what it may take on a slow machine.
USUAL_SECONDS = 8
SHUTDOWN_SECONDS = DEADLINE

HALF = (
    b"POST /v0/topics/half HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 24\r\n\r\n{"records":'
)


def write_on(port: int, acked: list[int], topic: str) -> None:
    """Writes until the server does not answer any more."""
    api = Http(port, timeout=DEADLINE)
    try:
        while True:
            body = {"records": [{"data": len(acked)}]}
            reply = api("POST", f"/v0/topics/{topic}", body)
            if reply.status == 503:
                assert reply.code == "shutting_down"
                return
            assert reply.status in (200, 201), reply
            acked.append(reply.json["last_seq"])
    except (OSError, http.client.HTTPException):
        return
    finally:
        api.close()


@pytest.mark.slow
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("hot", ["0", "1"])
def test_a_server_ends_whatever_its_clients_do(tmp_path: Path, sig: int, hot: str) -> None:
    env = {"TOPICS_SHUTDOWN_TIMEOUT_MS": "1000", "TOPICS_HOT_PROTOCOL": hot}
    server = Server(tmp_path / "data", env=env)
    with contextlib.ExitStack() as stack:
        stack.callback(server.ensure_dead)
        server.start()
        port = server.port
        assert once(port, "PUT", "/v0/topics/t", {"durability": "fsync"}).status == 201
        acks: dict[str, list[int]] = {"w1": [], "w2": []}
        writers = [
            threading.Thread(target=write_on, args=(p, acks[name], name), daemon=True)
            for p, name in ((port, "w1"), (Http2Port(port), "w2"))
        ]
        for writer in writers:
            writer.start()
        half, silent, stalled = (
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)
        )
        half.sendall(HALF)
        stalled.sendall(b"GET /v0/watch?topic=t HTTP/1.1\r\nHost: localhost\r\n\r\n")
        idle, link = Http(port), Http2Connection("127.0.0.1", port)
        assert idle("GET", "/v0/health").status == 200
        asked = link.start(
            "POST", "/v0/topics/t", None, {"content-type": "application/json"}, end=False
        )
        watch = Events(port, "/v0/watch?topic=t")
        watch.until("caught-up")
        ws = Socket(port)
        ws.ask("subscribe", "subscribed", topic="t")
        until(lambda: streams(idle) == 3)
        until(lambda: min(map(len, acks.values())) > 5)
        started = time.monotonic()
        os.kill(server.pid, sig)
        last = watch.until("error")
        assert (last.data["code"], last.data["error"]) == (503, "shutting_down")
        assert server.wait() == 0
        seconds = time.monotonic() - started
        for writer in writers:
            writer.join(DEADLINE)
            assert not writer.is_alive()
        for left in (half, silent, stalled, idle, link, watch, ws):
            left.close()
        del asked
        server.start()
        for topic, seqs in acks.items():
            head = once(server.port, "GET", f"/v0/topics/{topic}").json["head_seq"]
            assert head >= seqs[-1], f"I1: {topic} acked {seqs[-1]}, has {head}"
        assert once(server.port, "GET", "/v0/topics/half").status == 404
        assert server.stop() == 0
        print(f"{sum(map(len, acks.values()))} acks kept")
        # The requests that are not whole are given their second; closing takes a moment.
        figure("ended after the signal", seconds, below=USUAL_SECONDS, unit="s")


class Crowd:
    """Watchers of a topic, each on a connection of its own, that keep what they are sent."""

    def __init__(self, port: int, path: str) -> None:
        self.texts: list[bytearray] = []
        self._open = selectors.DefaultSelector()
        for _ in range(WATCHERS):
            sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            self.texts.append(bytearray())
            self._open.register(sock, selectors.EVENT_READ, self.texts[-1])

    def follow(self) -> None:
        """Until the last of them has been ended."""
        while self._open.get_map():
            ready = self._open.select(2 * DEADLINE)
            assert ready, "streams are open, and not even heartbeats come"
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                piece = key.fileobj.recv(65536)
                key.data.extend(piece)
                if not piece:
                    self._open.unregister(key.fileobj)
                    key.fileobj.close()

    def close(self) -> None:
        for key in list((self._open.get_map() or {}).values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._open.close()


def follow_together(link: Http2Connection, watches: list[tuple[Response, bytearray]]) -> None:
    """The same for the streams of one connection."""
    while not all(response.ended for response, _ in watches):
        link.receive()
        for response, text in watches:
            text += response.take()


def ended_well(text: bytes, last: bytes) -> int:
    """A stream has each record once, then its last frame, then its end; how many records."""
    events = text.decode()
    seqs = [
        record["$seq"]
        for line in events.splitlines()
        if line.startswith("data: ") and '"records"' in line
        for record in json.loads(line[6:])["records"]
    ]
    assert seqs == list(range(1, len(seqs) + 1)), "I2: each once and in order"
    assert events.count("event: error") == 1
    frame = events[events.index("event: error") :]
    assert '"code":503' in frame
    assert '"shutting_down"' in frame
    assert text.endswith(b"\n\n" + last), frame
    return len(seqs)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_loaded_server_ends_in_time_and_keeps_every_ack(tmp_path: Path, sig: int) -> None:
    """Many watchers, and writers with requests in flight, again and again."""
    env = {"TOPICS_SHUTDOWN_TIMEOUT_MS": str(int(SHUTDOWN_SECONDS * 1000))}
    for n in range(ROUNDS):
        server = Server(tmp_path / "data", env=env | {"TOPICS_HOT_PROTOCOL": str((n + 1) % 2)})
        try:
            server.start()
            seconds, acks, seen = end_under_load(server, sig, [f"{n}.{w}" for w in range(WRITERS)])
            print(f"round {n}: {acks} acks kept, {seen} records seen")
            figure("ended after the signal", seconds, below=USUAL_SECONDS, unit="s")
        finally:
            server.ensure_dead()


def end_under_load(server: Server, sig: int, topics: list[str]) -> tuple[float, int, int]:
    """One end; how long it took, and how many acks and records were seen before it."""
    with contextlib.ExitStack() as stack:
        return end_with_crowd(server, sig, topics, stack)


def end_with_crowd(
    server: Server, sig: int, topics: list[str], stack: contextlib.ExitStack
) -> tuple[float, int, int]:
    port, path = server.port, f"/v0/watch?from_seq=0&include_meta=false&topic={topics[0]}"
    api = Http(port)
    for topic in topics:
        assert api("PUT", f"/v0/topics/{topic}", {"durability": "fsync"}).status == 201
    crowd, link = Crowd(port, path), Http2Connection("127.0.0.1", port, timeout=DEADLINE)
    stack.callback(crowd.close)
    watches = [(link.start("GET", path), bytearray()) for _ in range(STREAMS)]
    acks: dict[str, list[int]] = {topic: [] for topic in topics}
    ports = [port, Http2Port(port)] * (WRITERS // 2)
    threads = [
        threading.Thread(target=crowd.follow, daemon=True),
        threading.Thread(target=follow_together, args=(link, watches), daemon=True),
        *(
            threading.Thread(target=write_on, args=(p, acks[topic], topic), daemon=True)
            for p, topic in zip(ports, topics, strict=True)
        ),
    ]
    for thread in threads[:2]:
        thread.start()
    until(lambda: streams(api) == WATCHERS + STREAMS)
    api.close()
    for thread in threads[2:]:
        thread.start()
    until(lambda: min(map(len, acks.values())) > 5)
    started = time.monotonic()
    os.kill(server.pid, sig)
    assert server.wait() == 0
    seconds = time.monotonic() - started
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    link.close()
    seen = sum(ended_well(bytes(text), b"\r\n0\r\n\r\n") for text in crowd.texts)
    seen += sum(ended_well(bytes(text), b"") for _, text in watches)
    server.start()
    api = Http(server.port)
    for topic, seqs in acks.items():
        rows = dict(read_all(api, topic, 0))
        lost = [seq for value, seq in enumerate(seqs) if rows.get(seq) != value]
        assert not lost, f"I1: {topic} acked {lost[:10]}"
    api.close()
    assert server.stop() == 0
    return seconds, sum(map(len, acks.values())), seen


def leaving(port: int) -> bool:
    """Whether the server accepts no connections any more: its shutdown has begun."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[Server]:
    """A server that waits for requests for longer than any test."""
    env = {"TOPICS_SHUTDOWN_TIMEOUT_MS": "3600000", "TOPICS_BODY_TIMEOUT_MS": "3600000"}
    with Server(tmp_path / "data", env=env) as server:
        yield server


def test_a_request_that_is_whole_too_late_is_told_so(unhurried: Server) -> None:
    port = unhurried.port
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as half:
        half.sendall(HALF)
        until_received(half)
        os.kill(unhurried.pid, signal.SIGTERM)
        until(lambda: leaving(port))
        half.sendall(b'[{"data":1}]}')
        answer = b""
        while piece := half.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after" in head
    assert json.loads(body)["error"]["code"] == "shutting_down"
    assert unhurried.wait() == 0


def test_a_second_interrupt_does_not_wait(unhurried: Server) -> None:
    with socket.create_connection(("127.0.0.1", unhurried.port)) as half:
        half.sendall(HALF)
        until_received(half)
        os.kill(unhurried.pid, signal.SIGINT)
        until(lambda: leaving(unhurried.port))
        os.kill(unhurried.pid, signal.SIGINT)
        unhurried.wait()
    # It did not close; what it holds is a log like that of any killed server.
    unhurried.start()
    assert unhurried.stop() == 0
