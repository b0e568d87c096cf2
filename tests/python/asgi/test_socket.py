"""The WebSocket on a live server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support.http_client import Http
from support.marks import HTTP1
from support.server import Server
from support.waiting import until
from support.websocket import Socket

from .pending import DEADLINE
from .test_routes import write
from .test_watch import streams


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
    assert ended == {"op": "unsubscribed", "request_id": "r-unsubscribe", "topics": [topic]}
    write(api, topic, 4)
    assert socket.ask("ping", "pong")
    assert socket.ask("unsubscribe", "unsubscribed", topic=topic)["topics"] == []


@HTTP1
def test_options_of_a_subscription(server: Server, api: Http, socket: Socket, topic: str) -> None:
    records = [
        {"data": n, "tag": f"t:{n}", "node": f"n{n}", "meta": {"k": str(n)}} for n in range(4)
    ]
    api("POST", f"/v0/topics/{topic}", {"records": records})

    def seen(**options: Any) -> list[list[dict[str, Any]]]:
        """The records of each message until the client has caught up."""
        socket.ask("subscribe", "subscribed", topic=topic, **options)
        got = []
        while (message := socket.take())["op"] == "record":
            assert set(message) == {"op", "topic", "records", "from_seq", "to_seq", "head_seq"}
            got.append(message["records"])
        assert message == {"op": "caught_up", "topic": topic, "head_seq": 4}
        assert socket.ask("unsubscribe", "unsubscribed", topics=[topic])["topics"] == [topic]
        return got

    assert [len(batch) for batch in seen(from_seq=0)] == [4]
    assert [len(batch) for batch in seen(from_seq="earliest", limit=3)] == [3, 1]
    assert [len(batch) for batch in seen(from_seq=0, max_batch_bytes=1)] == [1] * 4
    assert [r["data"] for r in seen(tail=2)[0]] == [2, 3]
    assert seen() == []
    assert [r["data"] for r in seen(from_seq=0, node=["n0", "n3"])[0]] == [1, 2]
    assert [r["data"] for r in seen(from_seq=0, match="t:3")[0]] == [3]
    bare = seen(from_seq=3, include_tags=False, include_meta=False, include_data=False)
    assert [set(r) for r in bare[0]] == [{"$seq", "$ts", "$node"}]
    full = seen(from_seq=3, consistency="eventual")[0][0]
    assert set(full) == {"$seq", "$ts", "$node", "$tag", "meta", "data"}
    # One that is ended by the request that began it, and one that goes on.
    other = f"{topic}-other"
    write(api, other, 1)
    for name in (topic, other):
        socket.send({"op": "subscribe", "request_id": name, "topics": [name]})
        assert socket.take("subscribed")["request_id"] == name
    socket.send({"op": "unsubscribe", "request_id": topic})
    ended = {"op": "unsubscribed", "request_id": topic, "topics": [topic]}
    assert socket.take("unsubscribed") == ended
    write(api, topic, "unheard")
    write(api, other, "heard")
    assert [r["data"] for r in socket.take("record")["records"]] == ["heard"]


@HTTP1
def test_starts_of_a_subscription(api: Http, socket: Socket, topic: str) -> None:
    write(api, topic, 0, 1, 2)

    def start(**fields: Any) -> int:
        """Where a subscription begins, and the `from_seq` of its first records is that, too."""
        told = socket.ask("subscribe", "subscribed", **fields)
        at = int(told["topics"][topic]["from_seq"])
        first = socket.take()
        if first["op"] == "record":
            assert (first["from_seq"], first["to_seq"]) == (at, 3)
            first = socket.take()
        assert first == {"op": "caught_up", "topic": topic, "head_seq": 3}
        assert socket.ask("unsubscribe", "unsubscribed", topic=topic)["topics"] == [topic]
        return at

    assert start(topic=topic) == 3
    assert start(topics=[topic]) == 3
    assert start(topics={topic: {}}) == 0
    assert start(topics={topic: {"tail": False}}) == 0
    assert start(topics={topic: {"tail": True}}) == 3
    assert start(topics={topic: {"tail": 1}}) == 2
    assert start(topics={topic: {}}, tail=1) == 2
    assert start(topics={topic: {"from_seq": 1}}, tail=0) == 1
    assert start(topic=topic, tail=True) == 3
    assert start(topic=topic, tail=False, from_seq=2) == 2
    wrong = socket.ask("subscribe", "error", topics={topic: {"form_seq": 1}})
    assert "did you mean `from_seq`?" in wrong["message"]
    socket.ask("subscribe", "subscribed", topics={topic: {"tail": True}})
    ended = socket.ask("unsubscribe", "unsubscribed", topics={topic: {}})
    assert ended["topics"] == [topic]


@HTTP1
def test_answers_of_a_socket(socket: Socket, topic: str) -> None:
    one: dict[str, Any] = {"topic": topic, "records": [{"data": 1}]}
    socket.send({"op": "publish", **one})
    plain = {"op", "topic", "count", "first_seq", "last_seq", "head_seq", "deduped", "created"}
    told = socket.take()
    assert set(told) == plain | {"performance", "seqs"}, "the message has no name"
    assert (told["created"], told["count"], told["seqs"]) == (True, 1, [1])
    named = socket.ask("publish", "ack", return_seqs=False, expect_head=1, **one)
    assert set(named) == plain | {"performance", "request_id"}
    refused = socket.ask("publish", "error", expect_head=9, **one)
    assert set(refused) == {"op", "request_id", "code", "message", "detail"}
    assert (refused["code"], refused["detail"]["head_seq"]) == ("head_mismatch", 2)
    assert set(socket.ask("dance", "error")) == {"op", "request_id", "code", "message", "detail"}
    for op, fields in {
        "subscribe": [{"topic": 5}, {"topics": "x"}, {"topics": [5]}, {"tail": -1}, {"limit": "x"},
                      {"from_seq": 0, "tail": 1}, {"topic": topic, "heartbeat_ms": "x"},
                      {"topic": topic, "include_data": 1}, {"topic": topic, "request_id": 5}],
        "publish": [{}, {"topics": [topic, topic]}, one | {"records": [{}]}, one | {"topic": "a b"},
                    one | {"sync": 1}, one | {"return_seqs": 1}, one | {"config": {"x": 1}}],
        "unsubscribe": [{"topics": [None]}, {"topic": {}}],
    }.items():  # fmt: skip
        for wrong in fields:
            assert socket.refused({"op": op, **wrong}) == "invalid_request", (op, wrong)
    half = '{"op":"ping","request_id":"\\ud800"}'
    for text in ("", "[]", "5", "null", '{"op":5}', '{"op":"ping"', '{"op":"ping"}x', half):
        assert socket.refused(text) == "invalid_request", text
    for depth, says in ((128, "deeper than 128"), (127, "unknown field `x`")):
        socket.send('{"op":"ping","x":' + "[" * depth + "]" * depth + "}")
        assert says in socket.take("error")["message"]


@HTTP1
def test_a_socket_has_64_subscriptions_and_messages_a_size(
    server: Server, api: Http, topic: str
) -> None:
    write(api, topic, 1)
    socket = Socket(server.port)
    for _ in range(64):
        socket.ask("subscribe", "subscribed", topic=topic)
    refused = {"op": "subscribe", "topic": topic}
    assert socket.refused(refused) == "invalid_request"
    assert socket.ask("unsubscribe", "unsubscribed", topic=topic)["topics"] == [topic]
    socket.ask("subscribe", "subscribed", topic=topic)
    most = 200_000
    head = '{"op":"ping","request_id":"'
    socket.send(head + "y" * (most - len(head) - 2) + '"}')
    assert socket.take("pong")
    socket.send(head + "y" * (most - len(head) - 1) + '"}')
    with pytest.raises(ConnectionClosed) as closed:
        socket.take()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    socket.close()


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
    # Streams of the tests before may still be closing.
    until(lambda: streams(api) == 0, DEADLINE)
    made = Socket(server.port)
    made.ask("subscribe", "subscribed", topic=topic)
    assert streams(api) == 1
    made.close()
    until(lambda: streams(api) == 0, DEADLINE)


@HTTP1
def test_pages_from_elsewhere_get_no_socket(server: Server, api: Http) -> None:
    with pytest.raises(InvalidStatus) as refused:
        Socket(server.port, origin="https://evil.example")
    assert refused.value.response.status_code == 403
    own = Socket(server.port, origin=f"http://127.0.0.1:{server.port}")
    assert own.ask("ping", "pong")
    own.close()
    # Nor may they post: a browser sends such a request without asking first.
    page = {"Origin": "https://evil.example"}
    assert api("POST", "/v0/sync", headers=page).code == "forbidden"
    assert api("GET", "/v0/health", headers=page).status == 200


@HTTP1
def test_unknown_fields_of_messages_are_refused(
    server: Server, api: Http, socket: Socket, topic: str
) -> None:
    one = {"topic": topic, "records": [{"data": 1}]}
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("subscribe", {"topic": topic, "from_sqe": 0}, "from_seq"),
        ("subscribe", {"topic": topic, "incldue_tags": True}, "include_tags"),
        ("unsubscribe", {"tpoic": topic}, "topic"),
        ("unsubscribe", {"topic": topic, "reqest_id": "x"}, "request_id"),
        ("publish", {**one, "idempotency_kye": "k"}, "idempotency_key"),
        ("publish", {**one, "records": [{"data": 1, "tga": "t"}]}, "tag"),
        ("publish", {**one, "config": {"durabilty": "fsync"}}, "durability"),
        ("ping", {"reqest_id": "x"}, "request_id"),
    ]
    for op, fields, name in wrong:
        refused = socket.ask(op, "error", **fields)
        assert refused["code"] == "invalid_request", refused
        assert f"did you mean `{name}`?" in refused["message"], refused
    assert api("GET", f"/v0/topics/{topic}").status == 404, "a refusal leaves nothing behind"
    with pytest.raises(InvalidStatus) as unknown:
        Socket(server.port, "?topic=a")
    assert unknown.value.response.status_code == 400
    # A null is as if it were not there.
    nulls = {"idempotency_key": None, "node": None, "expect_head": None, "return_seqs": None}
    assert socket.ask("publish", "ack", **one, **nulls)["last_seq"] == 1
    socket.ask("subscribe", "subscribed", topic=topic, from_seq=0, tail=None, limit=None)
    assert socket.take("record")["to_seq"] == 1
    ended = socket.ask("unsubscribe", "unsubscribed", topic=topic, topics=None)
    assert ended["topics"] == [topic]


def test_keys_of_sockets(tmp_path: Path) -> None:
    env = {"TOPICS_API_KEYS": "root,r:read:a.,w:write:a.,chief:write+admin:a."}
    server = Server(tmp_path / "data", env=env)
    server.start()
    try:
        for query in ("", "?token=r"):
            with pytest.raises(InvalidStatus) as refused:
                Socket(server.port, query)
            assert refused.value.response.status_code == 401
        assert b"unauthorized" in (refused.value.response.body or b"")

        def opened(key: str) -> Socket:
            return Socket(server.port, additional_headers={"Authorization": f"Bearer {key}"})

        reader, writer = opened("r"), opened("w")
        one = {"records": [{"data": 1}]}
        assert writer.ask("publish", "ack", topic="a.t", **one)["last_seq"] == 1
        assert writer.refused({"op": "publish", "topic": "b", **one}) == "forbidden"
        new = {"op": "publish", "topic": "a.new", "config": {"ttl_ms": 9}, **one}
        for how in ({}, {"disable_backpressure": True}):
            assert writer.refused(new | how) == "forbidden"
        assert writer.refused(new | {"create": False}) == "topic_not_found"
        assert (
            writer.ask("publish", "ack", topic="a.t", config={"ttl_ms": 9}, **one)["last_seq"] == 2
        )
        assert writer.refused({"op": "subscribe", "topic": "a.t"}) == "forbidden"
        chief = opened("chief")
        for name, answer in (("a.dead", "ack"), ("b", "error")):
            config = {"type": "queue", "dead_letter": name}
            told = chief.ask("publish", answer, topic=f"a.{answer}", config=config, **one)
            assert told.get("code", "") == ("forbidden" if answer == "error" else "")
        chief.close()
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
