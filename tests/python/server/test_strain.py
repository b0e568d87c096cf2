"""A live server under strain: whom it tells that his topic waits, and what comes of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.h2_client import Http2Port
from support.http_client import Http
from support.server import Server
from support.sse import Event, Events
from support.waiting import until
from support.websocket import Socket

from ..asgi.test_routes import write
from ..asgi.test_watch import streams

# The engine comes under strain when delivery takes long for half a second: the machine decides.
# What an engine does then is in crates/topics-engine/src/delivery/tests/pressure.rs, at every gate.
pytestmark = [pytest.mark.explore, pytest.mark.serial]

# Twice as many topics as are full depth for one worker. One request writes to all of them, and each
# watcher has their records looked at anew: serving takes longer than writing.
BUSY = [f"busy.{n}" for n in range(128)]
WATCHERS = 64
NODES = 64
RECORDS = [{"data": 1, "node": "w00000000"}] * 70
# The longest that a topic of the lowest priority can have to wait.
AGED_MS = 10_000


@pytest.fixture
def one_worker(tmp_path: Path, protocol: str) -> Iterator[Server]:
    """A server on one core, which delivers on one thread."""
    cores = os.sched_getaffinity(0)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})
        env = {"TOPICS_HOT_PROTOCOL": str(int(protocol != "plain"))}
        live = stack.enter_context(Server(tmp_path / "data", env=env))
        os.sched_setaffinity(0, cores)
        if protocol == "h2":
            live.port = Http2Port(live.port)
        yield live
        assert live.stop() == 0


@contextmanager
def strained(port: int, api: Http) -> Iterator[None]:
    """More is written than can be delivered, until the end of the block."""
    for name in BUSY:
        assert api("PUT", f"/v0/topics/{name}").status == 201
    with ExitStack() as stack:
        for n in range(WATCHERS):
            passed = [f"{n:04}{node:05}" for node in range(NODES)]
            made = api("POST", "/v0/watch", {"patterns": ["busy.*"], "node": passed})
            assert made.status == 200, made
            stack.enter_context(Events(port, made.json["stream_url"]))
        until(lambda: streams(api) >= WATCHERS)
        stop, failed = threading.Event(), []

        def keep_busy() -> None:
            appends = [{"topic": name, "records": RECORDS} for name in BUSY]
            writer, body = Http(port), json.dumps({"appends": appends}).encode()
            while not stop.is_set() and not failed:
                reply = writer("POST", "/v0/txn", body)
                if reply.status not in (200, 429):
                    failed.append(reply)
            writer.close()

        thread = threading.Thread(target=keep_busy, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        until(lambda: bool(failed) or measured(api, "strains") > 0)
        yield
    assert not failed, failed


def measured(api: Http, name: str) -> int:
    metrics = api("GET", "/v0/metrics", headers={"Accept": "application/json"}).json
    return int(metrics[name])


class Told:
    """What a watcher of one topic was told: values, and between them that they wait."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.paced: list[dict[str, Any]] = []
        self.waits = False

    def take(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "error":
            assert not self.waits, "told twice of one wait"
            self.waits = True
            self.paced.append(data)
            return
        assert kind == "record", (kind, data)
        self.waits = False
        self.values += [record["data"] for record in data["records"]]


def by_event(event: Event, told: Told) -> None:
    if event.kind == "error":
        assert event.id == "", "it moves no cursor"
        assert set(event.data) == {"code", "error", "message", "retry_after_ms", "topics"}
        assert (event.data["code"], event.data["error"]) == (429, "throttled")
        assert event.data["topics"] == ["low"]
    told.take(event.kind, event.data)


def by_message(message: dict[str, Any], told: Told) -> None:
    if message["op"] == "error":
        assert set(message) == {"op", "code", "message", "topic", "retry_after_ms"}
        assert (message["code"], message["topic"]) == ("throttled", "low")
    told.take(message["op"], message)


def test_watchers_are_told_that_their_topic_waits(one_worker: Server, protocol: str) -> None:
    port = one_worker.port
    api = Http(port)
    for name, priority in (("low", -1000), ("high", 1000)):
        assert api("PUT", f"/v0/topics/{name}", {"priority": priority}).status == 201
    with ExitStack() as stack:
        query = stack.enter_context(Events(port, "/v0/watch?topic=low"))
        wid = api("POST", "/v0/watch", {"topics": ["low"]}).json["wid"]
        session = stack.enter_context(Events(port, f"/v0/watch/{wid}"))
        high = stack.enter_context(Events(port, "/v0/watch?topic=high"))
        for events in (query, session, high):
            assert events.until("caught-up")
        takes = [
            lambda told: by_event(next(query), told),
            lambda told: by_event(next(session), told),
        ]
        if protocol != "h2":
            # A socket is opened over HTTP/1.1.
            socket = Socket(port)
            stack.callback(socket.close)
            socket.ask("subscribe", "subscribed", topic="low")
            assert socket.take("caught_up")
            takes.append(lambda told: by_message(socket.take(), told))
        watchers = [Told() for _ in takes]
        written = 0
        with strained(port, api):
            # What comes when the strain lets up for a moment is not paced.
            while not watchers[0].paced:
                assert written < 10, "nobody is told"
                write(api, "low", written)
                written += 1
                takes[0](watchers[0])
            # It waits, and can be read meanwhile.
            read = api("POST", "/v0/topics/low/diff", {"tail": 1}).json
            assert read["records"][0]["data"] == written - 1
            write(api, "high", "at once")
            assert high.values(1) == ["at once"], "others are served, and not told"
            for take, told in zip(takes, watchers, strict=True):
                while not told.paced:
                    take(told)
                assert 0 < told.paced[0]["retry_after_ms"] <= AGED_MS
        for take, told in zip(takes, watchers, strict=True):
            while len(told.values) < written:
                take(told)
            assert told.values == list(range(written)), "I2: all of it, once and in order"
    until(lambda: streams(api) == 0)
    api.close()
