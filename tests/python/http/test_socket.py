"""The WebSocket on a live server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from benches.demo.server import Server

from .conftest import HTTP1, Http
from .test_routes import until, write
from .test_watch import streams


class Socket:
    """A connection; `ask` sends a message and waits for its answer."""

    def __init__(self, port: int, **kwargs: Any) -> None:
        self._open = connect(f"ws://127.0.0.1:{port}/v0/ws", **kwargs)
        self.connection: ClientConnection = self._open.__enter__()

    def close(self) -> None:
        self._open.__exit__(None, None, None)

    def send(self, message: dict[str, Any] | str) -> None:
        self.connection.send(message if isinstance(message, str) else json.dumps(message))

    def take(self, op: str = "", timeout: float = 20) -> Any:
        """The next message, or the next of a kind."""
        while True:
            message = json.loads(self.connection.recv(timeout))
            if not op or message["op"] == op:
                return message

    def ask(self, op: str, answer: str, **fields: Any) -> Any:
        self.send({"op": op, "request_id": f"r-{op}", **fields})
        got = self.take(answer)
        assert got["request_id"] == f"r-{op}"
        return got

    def refused(self, message: dict[str, Any] | str) -> Any:
        self.send(message)
        got = self.take("error")
        assert got["message"]
        return got["code"]


@pytest.fixture
def socket(server: Server) -> Iterator[Socket]:
    made = Socket(server.port)
    yield made
    made.close()


@HTTP1
def test_subscribe_and_publish(api: Http, socket: Socket, topic: str) -> None:
    write(api, topic, {"n": 1})
    told = socket.ask("subscribe", "subscribed", topic=topic, from_seq=0)
    topic_id = api("GET", f"/v0/topics/{topic}").json["topic_id"]
    joined = {"from_seq": 0, "topic_id": topic_id, "head_seq": 1, "earliest_seq": 1}
    assert told["topics"] == {topic: joined}
    first = socket.take()
    assert (first["op"], first["topic"], first["to_seq"]) == ("record", topic, 1)
    assert [r["data"] for r in first["records"]] == [{"n": 1}]
    assert socket.take() == {"op": "caught_up", "topic": topic, "head_seq": 1}
    ack = socket.ask(
        "publish",
        "ack",
        topic=topic,
        records=[{"data": 2}, {"data": 3}],
        return_seqs=True,
        idempotency_key="k",
    )
    assert (ack["last_seq"], ack["head_seq"], ack["seqs"]) == (3, 3, [2, 3])
    assert ack["performance"]["server_total_ms"] >= 0
    assert [r["data"] for r in socket.take("record")["records"]] == [2, 3]
    again = socket.ask(
        "publish", "ack", topic=topic, records=[{"data": 2}, {"data": 3}], idempotency_key="k"
    )
    assert again["deduped"] is True
    assert socket.ask("ping", "pong") == {"op": "pong", "request_id": "r-ping"}
    api("DELETE", f"/v0/topics/{topic}")
    gone = socket.take("topic_deleted")
    assert (gone["topic"], gone["reason"]) == (topic, "deleted")


@HTTP1
def test_unsubscribe_and_losses(api: Http, socket: Socket, topic: str) -> None:
    api("PUT", f"/v0/topics/{topic}", {"cap_records": 1})
    write(api, topic, 1, 2, 3)
    socket.ask("subscribe", "subscribed", topics=[topic], from_seq=0)
    lost = socket.take("tombstone")
    assert (lost["gap_from"], lost["gap_to"]) == (1, 2)
    socket.take("caught_up")
    ended = socket.ask("unsubscribe", "unsubscribed", topic=topic)
    assert ended["ended"] == 1
    write(api, topic, 4)
    assert socket.ask("ping", "pong")
    assert socket.ask("unsubscribe", "unsubscribed", topic=topic)["ended"] == 0


@HTTP1
def test_many_messages_in_order(api: Http, socket: Socket, topic: str) -> None:
    socket.ask("publish", "ack", topic=topic, records=[{"data": -1}])
    socket.ask("subscribe", "subscribed", topic=topic)
    for n in range(500):
        socket.send({"op": "publish", "topic": topic, "records": [{"data": n}]})
    got: list[int] = []
    acks = 0
    while len(got) < 500 or acks < 500:
        message = socket.take()
        if message["op"] == "record":
            got += [r["data"] for r in message["records"]]
        acks += message["op"] == "ack"
    assert got == list(range(500))


@HTTP1
def test_refusals(socket: Socket, topic: str) -> None:
    assert socket.refused("{") == "invalid_request"
    assert socket.refused({"op": "dance"}) == "invalid_request"
    assert socket.refused({"op": "subscribe"}) == "invalid_request"
    assert socket.refused({"op": "subscribe", "topic": topic}) == "topic_not_found"
    assert socket.refused({"op": "publish", "records": [{"data": 1}]}) == "invalid_request"
    assert socket.refused({"op": "publish", "topic": topic, "records": []}) == "invalid_request"
    bad = {"op": "publish", "topic": topic, "records": [{"data": 1}], "expect_head": 9}
    assert socket.refused(bad | {"request_id": "x"}) in ("head_mismatch", "topic_not_found")
    socket.connection.send(b"\x00")
    with pytest.raises(ConnectionClosed) as closed:
        socket.take()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


@HTTP1
def test_a_socket_that_goes_leaves_nothing(server: Server, api: Http, topic: str) -> None:
    write(api, topic, 1)
    before = streams(api)
    made = Socket(server.port)
    made.ask("subscribe", "subscribed", topic=topic)
    assert streams(api) == before + 1
    made.close()
    until(lambda: streams(api) == before)


@HTTP1
def test_pages_from_elsewhere_get_no_socket(server: Server, api: Http) -> None:
    with pytest.raises(InvalidStatus) as refused:
        Socket(server.port, origin="https://evil.example")
    assert refused.value.response.status_code == 403
    own = Socket(server.port, origin=f"http://localhost:{server.port}")
    assert own.ask("ping", "pong")
    own.close()
    # Nor may they post: a browser sends such a request without asking first.
    page = {"Origin": "https://evil.example"}
    assert api("POST", "/v0/sync", headers=page).code == "forbidden"
    assert api("GET", "/v0/health", headers=page).status == 200


def test_keys_of_sockets(tmp_path: Path) -> None:
    env = {"TOPICS_API_KEYS": "root,r:read:a.,w:write:a."}
    server = Server(tmp_path / "data", env=env)
    server.start()
    try:
        with pytest.raises(InvalidStatus) as refused:
            Socket(server.port)
        assert refused.value.response.status_code == 401
        assert b"unauthorized" in (refused.value.response.body or b"")

        def opened(key: str) -> Socket:
            return Socket(server.port, additional_headers={"Authorization": f"Bearer {key}"})

        reader, writer = opened("r"), opened("w")
        one = {"records": [{"data": 1}]}
        assert writer.ask("publish", "ack", topic="a.t", **one)["last_seq"] == 1
        assert writer.refused({"op": "publish", "topic": "b", **one}) == "forbidden"
        assert writer.refused({"op": "publish", "topic": "a.t", "config": {}, **one}) == "forbidden"
        assert writer.refused({"op": "subscribe", "topic": "a.t"}) == "forbidden"
        assert reader.refused({"op": "publish", "topic": "a.t", **one}) == "forbidden"
        assert reader.refused({"op": "subscribe", "topic": "b"}) == "forbidden"
        reader.ask("subscribe", "subscribed", topic="a.t", from_seq=0)
        assert reader.take("record")["records"][0]["data"] == 1
        assert server.stop() == 0
        assert reader.take("error")["code"] == "shutting_down"
        with pytest.raises(ConnectionClosed):
            reader.take()
        for socket in (reader, writer):
            socket.close()
    finally:
        server.ensure_dead()
