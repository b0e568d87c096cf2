"""The routes without a socket: `Http.call`, the bridge, waiting reads."""

from __future__ import annotations

import base64
import json
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from topics_engine import _core


class Loop:
    """What an event loop does with the native half of a server."""

    def __init__(self, path: Path, settings: dict[str, Any] | None = None) -> None:
        self.engine = _core.Engine.open(str(path), settings)
        self.http = _core.Http(self.engine, settings)
        self.bridge = self.http.bridge
        self.token = 0
        self.done: dict[int, tuple[int, Any]] = {}

    def call(
        self, route: str, name: str = "", body: Any = b"", query: str = "", **more: Any
    ) -> tuple[int, Any] | int:
        self.token += 1
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.http.call(
            route, name, query.encode(), raw, more.pop("flags", 0), self.token, **more
        )
        return self.token if answer is None else (answer[0], decode(answer[1]))

    def tick(self) -> None:
        if self.http.staged:
            self.http.flush()
        for token, status, body in self.bridge.drain():
            assert token not in self.done, "a completion comes once"
            self.done[token] = (status, decode(body))

    def wait(self, token: int) -> tuple[int, Any]:
        self.tick()
        while token not in self.done:
            ready, _, _ = select.select([self.bridge.fd], [], [], 30)
            assert ready, "the completion never came"
            self.tick()
        return self.done.pop(token)

    def ask(self, route: str, name: str = "", body: Any = b"", **more: Any) -> tuple[int, Any]:
        answer = self.call(route, name, body, **more)
        return self.wait(answer) if isinstance(answer, int) else answer

    def close(self) -> None:
        self.http.close()
        self.engine.close()


def decode(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


@pytest.fixture
def loop(data_dir: Path) -> Iterator[Loop]:
    made = Loop(data_dir)
    yield made
    made.close()


def test_write_and_diff(loop: Loop) -> None:
    body = (
        b'{"records":[{"data": {"a": 1.50} ,"tag":"x","meta":{"k":"v"}},'
        b'{"data_b64":"/wA="}],"node":"n"}'
    )
    status, ack = loop.ask("write", "t", body)
    assert status == 201
    performance = ack.pop("performance")
    spent = {"server_total_ms", "wal_append_ms", "fsync_ms", "throttle_wait_ms"}
    assert set(performance) == spent
    assert ack == {
        "topic": "t",
        "topic_id": 1,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
        "durability": "disk",
    }
    status, ack = loop.ask("write", "t", {"records": [{"data": 3}]}, query="return_seqs=false")
    assert (status, ack["last_seq"], "seqs" in ack) == (200, 3, False)
    answer = loop.http.call("diff", "t", b"", b'{"include_tags":true}', 0, 99)
    assert answer is not None
    assert b'"data":{"a": 1.50}' in answer[1], "stored and returned byte for byte"
    page = json.loads(answer[1])
    one, two, three = page["records"]
    assert (one["$seq"], one["$tag"], one["$node"], one["meta"]) == (1, "x", "n", {"k": "v"})
    assert base64.b64decode(two["data_b64"]) == b"\xff\x00"
    assert "data" not in two
    assert set(three) == {"$seq", "$ts", "data"}
    assert page["tombstone"] is None
    numbers = [page[k] for k in ("next_from_seq", "head_seq", "earliest_seq", "lag", "lag_ms")]
    assert numbers == [3, 3, 1, 0, 0]
    assert page["caught_up"] is True
    assert page["performance"]["records_scanned"] == 3


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_many_writes_of_one_tick(loop: Loop, durability: str) -> None:
    assert loop.ask("create", "t", {"durability": durability})[0] == 201
    calls = [loop.call("write", "t", {"records": [{"data": i}]}) for i in range(50)]
    acks = [loop.wait(c) if isinstance(c, int) else c for c in calls]
    assert [a["first_seq"] for _, a in acks] == list(range(1, 51))
    assert {a["durability"] for _, a in acks} == {durability}
    assert loop.http.pending == 0
    assert not loop.http.staged


def test_writes_without_a_sync_complete_in_the_flush(loop: Loop) -> None:
    loop.ask("create", "t", {"durability": "disk"})
    token = loop.call("write", "t", {"records": [{"data": 1}]})
    if isinstance(token, int):
        assert loop.http.staged
        loop.http.flush()
        assert [t for t, _, _ in loop.bridge.drain()] == [token]
        assert select.select([loop.bridge.fd], [], [], 0)[0] == [], "and wake nobody"


def test_bodies_of_other_types(loop: Loop) -> None:
    query = "tag=a%20b&node=n&key=k1"
    assert loop.ask("write", "t", b'{"a":1}\n2\n', query=query, flags=_core.BODY_NDJSON)[0] == 201
    status, ack = loop.ask("write", "t", b"\x00\xff", query="tag=o", flags=_core.BODY_OCTETS)
    assert (status, ack["count"]) == (200, 1)
    _, page = loop.ask("diff", "t", {"include_tags": True})
    assert [r.get("data") for r in page["records"]] == [{"a": 1}, 2, None]
    assert [r["$tag"] for r in page["records"]] == ["a b", "a b", "o"]
    assert page["records"][2]["data_b64"] == "AP8="
    again = loop.ask("write", "t", b'{"a":1}\n2\n', query=query, flags=_core.BODY_NDJSON)
    assert again[1]["deduped"] is True


def test_the_header_is_a_key_too(loop: Loop) -> None:
    body = {"records": [{"data": 1}]}
    assert loop.ask("write", "t", body, key=b"k")[1]["deduped"] is False
    assert loop.ask("write", "t", body, key=b"k")[1]["deduped"] is True
    assert loop.ask("write", "t", body | {"idempotency_key": "other"}, key=b"k")[1]["last_seq"] == 2


@pytest.mark.parametrize(
    ("route", "name", "body", "status", "code"),
    [
        ("write", "t", b"{", 400, "invalid_request"),
        ("write", "t", b"", 400, "invalid_request"),
        ("write", "t", b"\xff", 400, "invalid_request"),
        ("write", "t", {"records": []}, 400, "invalid_request"),
        ("write", "a b", {"records": [{"data": 1}]}, 400, "invalid_request"),
        ("write", "t", {"records": [{"data": 1, "lane": 3}]}, 409, "not_a_queue"),
        ("write", "new", {"records": [{"data": 1}], "create": False}, 404, "topic_not_found"),
        ("write", "t", {"records": [{"data": 1}], "expect_head": 9}, 409, "head_mismatch"),
        ("write", "t", {"records": [{"data": "x" * (1 << 20)}]}, 400, "record_too_large"),
        ("write", "t", {"records": [{"data": 1}] * 10001}, 400, "batch_too_large"),
        ("diff", "none", {}, 404, "topic_not_found"),
        ("diff", "t", {"limit": "x"}, 400, "invalid_request"),
        ("state", "none", b"", 404, "topic_not_found"),
        ("delete", "t", {}, 400, "invalid_request"),
        ("delete", "none", {"before_seq": 1}, 404, "topic_not_found"),
        ("seek", "t", {}, 400, "invalid_request"),
        ("create", "t", {"type": "queue"}, 409, "topic_exists_incompatible"),
        ("create", "t", {"ttl_ms": "x"}, 400, "invalid_request"),
        ("nothing", "t", b"", 404, "not_found"),
    ],
)
def test_refusals(loop: Loop, route: str, name: str, body: Any, status: int, code: str) -> None:
    loop.ask("write", "t", {"records": [{"data": 1}]})
    got, answer = loop.ask(route, name, body)
    assert (got, answer["error"]["code"]) == (status, code), answer
    assert answer["error"]["message"]


def test_the_other_verbs(loop: Loop) -> None:
    status, made = loop.ask("create", "t", {"cap_records": 5})
    assert (status, made["created"], made["config"]["cap_records"]) == (201, True, 5)
    assert loop.ask("create", "t", {"cap_records": 0})[0] == 200
    loop.ask("write", "t", {"records": [{"data": i, "tag": f"k{i}"} for i in range(4)]})
    assert loop.ask("state", "t")[1]["count"] == 4
    gone = loop.ask("delete", "t", {"match": ["tag", "Eq", "k1"]})[1]
    assert (gone["deleted"], gone["count"]) == (1, 3)
    assert loop.ask("seek", "t", {"ts": 0})[1]["seq"] == 0
    assert loop.ask("sync")[0] == 200
    assert loop.ask("checkpoint")[0] == 200
    loop.ask("create", "u")
    states = loop.ask("states", body={"topics": ["t", "none"], "patterns": ["u*"]})[1]
    assert sorted(states["topics"]) == ["t", "u"]
    assert states["missing"] == ["none"]
    first = loop.ask("list", query="page_size=1")[1]
    assert [t["topic"] for t in first["topics"]] == ["t"]
    second = loop.ask("list", query=f"page_size=1&cursor={first['next_cursor']}")[1]
    assert [t["topic"] for t in second["topics"]] == ["u"]
    assert "next_cursor" not in second
    assert loop.ask("drop", "t")[1]["deleted"] is True
    assert loop.ask("drop", "t")[1]["deleted"] is False
    assert loop.ask("health")[1]["status"] == "ok"
    assert loop.ask("ready")[1]["status"] == "ready"
    loop.http.set_ready(False)
    assert loop.ask("ready")[0] == 503
    assert b"topics_appends_total 1" in loop.ask("metrics")[1]
    assert loop.ask("metrics", flags=_core.ACCEPT_JSON)[1]["appends"] == 1


def test_a_waiting_read_is_answered_by_a_write(loop: Loop) -> None:
    loop.ask("create", "t")
    token = loop.call("diff", "t", {"wait_ms": 30_000})
    assert isinstance(token, int)
    loop.tick()
    assert token not in loop.done
    assert loop.http.pending == 1
    loop.ask("write", "t", {"records": [{"data": "x"}]})
    status, page = loop.wait(token)
    assert (status, [r["data"] for r in page["records"]]) == (200, ["x"])
    assert loop.http.pending == 0


def test_a_write_from_another_thread_wakes_the_loop(loop: Loop) -> None:
    loop.ask("create", "t")
    tokens = [loop.call("diff", "t", {"wait_ms": 30_000}) for _ in range(20)]
    record = (b"1", False, None, None, None, 0)
    thread = threading.Thread(target=loop.engine.append, args=("t", [record]), daemon=True)
    thread.start()
    for token in tokens:
        assert isinstance(token, int)
        assert loop.wait(token)[1]["head_seq"] == 1
    thread.join(60)


def test_a_waiting_read_ends_at_its_deadline(loop: Loop) -> None:
    loop.ask("create", "t")
    token = loop.call("diff", "t", {"wait_ms": 20})
    assert isinstance(token, int)
    status, page = loop.wait(token)
    assert (status, page["records"], page["caught_up"]) == (200, [], True)


def test_a_waiting_read_follows_what_it_does_not_see(loop: Loop) -> None:
    loop.ask("create", "t")
    token = loop.call("diff", "t", {"wait_ms": 30_000, "node": "me"})
    assert isinstance(token, int)
    loop.ask("write", "t", {"records": [{"data": 1}], "node": "me"})
    loop.tick()
    assert token not in loop.done
    loop.ask("write", "t", {"records": [{"data": 2}]})
    page = loop.wait(token)[1]
    assert ([r["data"] for r in page["records"]], page["next_from_seq"]) == ([2], 2)


def test_a_strong_waiting_read_ends_when_it_is_synced(loop: Loop) -> None:
    loop.ask("create", "t")
    token = loop.call("diff", "t", {"wait_ms": 30_000, "consistency": "strong"})
    assert isinstance(token, int)
    loop.ask("write", "t", {"records": [{"data": 1}], "sync": True})
    assert [r["data"] for r in loop.wait(token)[1]["records"]] == [1]


def test_a_cancelled_read_is_forgotten(loop: Loop) -> None:
    loop.ask("create", "t")
    token = loop.call("diff", "t", {"wait_ms": 30_000})
    assert isinstance(token, int)
    loop.http.cancel(token)
    assert loop.http.pending == 0
    loop.ask("write", "t", {"records": [{"data": 1}]})
    loop.tick()
    assert token not in loop.done


def test_a_waiting_read_of_a_topic_that_goes(loop: Loop) -> None:
    loop.ask("create", "t")
    token = loop.call("diff", "t", {"wait_ms": 30_000})
    assert isinstance(token, int)
    loop.ask("drop", "t")
    assert loop.wait(token)[0] == 404


def test_closing_answers_everyone(loop: Loop) -> None:
    loop.ask("create", "t")
    tokens = [loop.call("diff", "t", {"wait_ms": 30_000}) for _ in range(3)]
    loop.http.close()
    loop.http.close()
    for token in tokens:
        assert isinstance(token, int)
        assert loop.wait(token)[0] == 200
    assert loop.http.pending == 0
    assert loop.ask("diff", "t", {"wait_ms": 30_000})[0] == 200


def test_a_closed_engine_answers_503(loop: Loop) -> None:
    loop.ask("create", "t")
    loop.engine.close()
    for route, body in [("write", {"records": [{"data": 1}]}), ("diff", {}), ("state", b"")]:
        status, answer = loop.ask(route, "t", body)
        assert (status, answer["error"]["code"]) == (503, "shutting_down")


def columns(loop: Loop, body: bytes, token: int) -> bytes:
    """A read as Arrow, pulled to its end."""
    assert loop.http.call("diff", "t", b"", body, _core.ACCEPT_ARROW, token) is None
    assert loop.wait(token) == (200, b"")
    pieces: list[bytes] = []
    while (pulled := loop.http.pull(token)) is not None:
        pieces += pulled[0]
        if pulled[1] == 1:
            assert select.select([loop.bridge.fd], [], [], 30)[0]
            loop.bridge.drain()
    loop.http.cancel(token)
    return b"".join(pieces)


def test_diff_as_arrow(loop: Loop) -> None:
    ipc = pytest.importorskip("pyarrow.ipc")
    records = [{"data": {"i": i}, "tag": "x"} for i in range(3000)]
    loop.ask("write", "t", {"records": records})
    table = ipc.open_stream(columns(loop, b'{"limit":2500}', 99)).read_all()
    table.validate(full=True)
    assert table.num_rows == 2500
    assert table.schema.metadata == {b"topic_id": b"1", b"head_seq": b"3000", b"to_seq": b"2500"}
    assert table["data"][0].as_py() == '{"i": 0}'
    rest = columns(loop, b'{"from_seq":3000}', 98)
    assert ipc.open_stream(rest).read_all().num_rows == 0
    assert loop.http.pending == 0


def test_limits_are_settings(data_dir: Path) -> None:
    loop = Loop(data_dir, {"max_batch_records": 2, "max_limit": 1})
    try:
        assert loop.ask("write", "t", {"records": [{"data": 1}] * 2})[0] == 201
        assert loop.ask("write", "t", {"records": [{"data": 1}] * 3})[0] == 400
        assert len(loop.ask("diff", "t", {"limit": 5})[1]["records"]) == 1
    finally:
        loop.close()


def test_a_write_that_waits_for_room_goes_another_way(loop: Loop) -> None:
    token = loop.call("write", "t", {"records": [{"data": 1}], "disable_backpressure": True})
    assert isinstance(token, int)
    assert loop.wait(token)[1]["created"] is True


def test_in_a_fork_every_route_is_refused(loop: Loop) -> None:
    import os

    loop.ask("create", "t")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = loop.http.call("diff", "t", b"", b"{}", 0, 1)
            loop.http.cancel(1)
            loop.http.close()
            try:
                loop.http.flush()
            except te.Closed:
                os.write(write, b"x" if answer is not None and answer[0] == 503 else b"-")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 10) == b"x"
    os.close(read)
    assert loop.ask("diff", "t", {})[0] == 200


class Transport:
    """Counts what is written to it."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)


def test_streams_with_a_backlog_share_the_turns_of_the_loop(loop: Loop) -> None:
    records = [{"data": "x" * 1000}] * 500
    loop.ask("write", "t", {"records": records})
    loop.ask("write", "other", {"records": [{"data": 1}]})
    transports = [Transport() for _ in range(100)]
    writers = []
    for transport in transports:
        token = loop.call("watch_query", query="topic=t&from_seq=0")
        if isinstance(token, tuple):
            token = loop.token
        else:
            assert loop.wait(token)[0] == 200
        writers.append(_core.StreamWriter(loop.http, token, transport, lambda _: None))
        writers[-1].begin()
    whole = 500_000
    turns = 0
    while min(transport.size for transport in transports) < whole:
        before = [transport.size for transport in transports]
        answer = loop.call("state", "other")
        assert select.select([loop.bridge.fd], [], [], 30)[0]
        # One turn: the budget, one pull more, and the framing of the chunks.
        loop.tick()
        took = [transport.size - size for transport, size in zip(transports, before, strict=True)]
        assert sum(took) <= (1 << 20) + (65 << 10), sum(took)
        assert isinstance(answer, tuple) or answer in loop.done
        behind = min(part for part, size in zip(took, before, strict=True) if size < whole)
        assert max(took) <= behind + (65 << 10), "no stream takes the turn of the others"
        turns += 1
    assert turns > 40
    for writer in writers:
        writer.close()


def test_a_lone_stream_has_the_whole_turn(loop: Loop) -> None:
    loop.ask("write", "t", {"records": [{"data": "x" * 1000}] * 3000})
    assert loop.http.call("diff", "t", b"", b'{"limit":1000}', _core.ACCEPT_ARROW, 99) is None
    assert loop.wait(99) == (200, b"")
    transport = Transport()
    writer = _core.StreamWriter(loop.http, 99, transport, lambda _: None)
    writer.begin()
    took = []
    while transport.size < 1_000_000:
        before = transport.size
        assert select.select([loop.bridge.fd], [], [], 30)[0]
        loop.tick()
        took.append(transport.size - before)
    assert max(took) > 500_000, took
    writer.close()


def test_the_rest_of_a_cut_event_is_taken_whole(loop: Loop) -> None:
    """A connection that ends a stream with an event of its own sends the rest of the last one."""
    loop.ask("write", "t", {"records": [{"data": "x" * 200_000}]})
    token = loop.call("watch_query", query="topic=t&from_seq=0")
    if isinstance(token, tuple):
        token = loop.token
    else:
        assert loop.wait(token)[0] == 200
    taken = b""
    while b"xxx" not in taken:
        pulled = loop.http.pull(token)
        assert pulled is not None
        taken += b"".join(pulled[0])
        if pulled[1] == 1:
            assert select.select([loop.bridge.fd], [], [], 30)[0]
            loop.bridge.drain()
    assert len(taken) < 200_000, "the event is cut"
    whole = taken + loop.http.take_rest(token)
    assert whole.count(b"x" * 200_000) == 1
    assert whole.endswith(b"\n\n")
    assert loop.http.take_rest(token) == b""


def test_ranges_are_pulled_in_small_pieces(loop: Loop) -> None:
    loop.ask("write", "t", {"records": [{"data": "x" * 1000}] * 1000})
    assert loop.http.call("diff", "t", b"", b'{"limit":1000}', _core.ACCEPT_ARROW, 99) is None
    assert loop.wait(99) == (200, b"")
    sizes = []
    while (pulled := loop.http.pull(99)) is not None:
        sizes.append(sum(map(len, pulled[0])))
        if pulled[1] == 1:
            assert select.select([loop.bridge.fd], [], [], 30)[0]
            loop.bridge.drain()
    assert sum(sizes) > 1_000_000
    assert max(sizes) <= 64 << 10
