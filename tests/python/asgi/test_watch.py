"""Event streams on a live server: watches with and without a session, and jobs."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.http_client import Http
from support.server import Server
from support.sse import Events
from support.waiting import until

from .pending import DEADLINE
from .test_routes import write


@pytest.fixture
def wid(api: Http, topic: str) -> str:
    write(api, topic, 1, 2)
    made = api("POST", "/v0/watch", {"topics": {topic: {"from_seq": 0}}})
    assert made.status == 200
    answer = made.json
    assert answer["stream_url"] == f"/v0/watch/{answer['wid']}"
    assert answer["session_ttl_ms"] == 300_000
    topic_id = api("GET", f"/v0/topics/{topic}").json["topic_id"]
    joined = {"from_seq": 0, "topic_id": topic_id, "head_seq": 2, "earliest_seq": 1}
    assert answer["topics"] == {topic: joined}
    assert re.fullmatch("wid_[A-Za-z0-9_-]{22}", answer["wid"])
    return str(answer["wid"])


def streams(api: Http) -> int:
    metrics = api("GET", "/v0/metrics", headers={"Accept": "application/json"}).json
    return int(metrics["watch_streams"])


def test_a_stream_begins_with_the_backlog_and_goes_on_live(
    server: Server, api: Http, topic: str
) -> None:
    write(api, topic, {"n": 1}, {"n": 2})
    with Events(server.port, f"/v0/watch?topic={topic}&from_seq=0") as events:
        headers = dict(events.response.getheaders())
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        first = next(events)
        assert events.retry == 2000
        assert (first.kind, first.data["topic"]) == ("record", topic)
        assert [r["data"]["n"] for r in first.data["records"]] == [1, 2]
        edges = (first.data["from_seq"], first.data["to_seq"], first.data["head_seq"])
        assert edges == (0, 2, 2)
        caught = next(events)
        assert (caught.kind, caught.data) == ("caught-up", {"topic": topic, "head_seq": 2})
        write(api, topic, {"n": 3})
        assert events.values(1) == [{"n": 3}]
        padded = first.id + "=" * (-len(first.id) % 4)
        cursors = json.loads(base64.urlsafe_b64decode(padded))
        assert cursors[topic][1] == 2
    until(lambda: streams(api) == 0, DEADLINE)


def test_last_event_id_resumes_without_a_session(server: Server, api: Http, topic: str) -> None:
    write(api, topic, *range(10))
    other = f"{topic}-b"
    write(api, other, "x")
    path = f"/v0/watch?topic={topic}&topic={other}&from_seq=0&limit=3"
    with Events(server.port, path) as events:
        seen = events.values(4)
    back = {"Last-Event-ID": events.last_id}
    with Events(server.port, path, back) as events:
        seen += events.values(7)
    assert sorted(seen, key=str) == sorted([*range(10), "x"], key=str)
    assert [v for v in seen if v != "x"] == list(range(10))
    with Events(server.port, path, {"Last-Event-ID": "nonsense!"}) as refused:
        assert (refused.status, refused.code) == (400, "invalid_request")


def test_options_of_a_stream(server: Server, api: Http, topic: str) -> None:
    records = [
        {"data": 1, "tag": "eu:1", "node": "w1"},
        {"data": 2, "tag": "us:1", "node": "w2", "meta": {"k": "v"}},
        {"data": {"a": "\n"}, "tag": "eu:2", "node": "w3"},
    ]
    api("POST", f"/v0/topics/{topic}", {"records": records})
    base = f"/v0/watch?topic={topic}&from_seq=0"
    with Events(server.port, f"{base}&match=eu:*&node=w1") as events:
        assert events.values(1) == [{"a": "\n"}]
    with Events(server.port, f"{base}&include_data=false&include_tags=false") as events:
        shown = next(events).data["records"]
        assert [set(r) for r in shown] == [{"$seq", "$ts", "$node"}] * 1 + [
            {"$seq", "$ts", "$node", "meta"},
            {"$seq", "$ts", "$node"},
        ]
    with Events(server.port, f"{base}&consistency=strong") as events:
        assert len(events.values(3)) == 3
    with Events(server.port, f"/v0/watch?topic={topic}&tail=1") as events:
        assert events.values(1) == [{"a": "\n"}]


def test_a_session_keeps_its_place(server: Server, api: Http, topic: str, wid: str) -> None:
    path = f"/v0/watch/{wid}"
    with Events(server.port, path) as events:
        assert events.values(2) == [1, 2]
        second = events.last_id
        write(api, topic, 3)
        assert events.values(1) == [3]
    until(lambda: streams(api) == 0, DEADLINE)
    write(api, topic, 4)
    with Events(server.port, path) as events:
        assert events.values(1) == [4]
    until(lambda: streams(api) == 0, DEADLINE)
    # What was sent and did not arrive is asked for again.
    with Events(server.port, path, {"Last-Event-ID": second}) as events:
        assert events.values(2) == [3, 4]


def test_a_session_ends(server: Server, api: Http, wid: str) -> None:
    path = f"/v0/watch/{wid}"
    with Events(server.port, path) as events:
        events.until("caught-up")
        assert api("DELETE", path).json["ended"] is True
        last = events.until("error")
        assert (last.data["code"], last.data["error"]) == (410, "session_gone")
        assert list(events) == []
    for unknown in (wid, "wid_" + "A" * 22, "wid_" + "0" * 32, wid[4:], "x", "../topics"):
        with Events(server.port, f"/v0/watch/{unknown.replace('/', '%2F')}") as events:
            assert (events.status, events.code) == (404, "not_found")
    assert api("DELETE", path).code == "not_found"


def test_a_session_of_many_topics_numbers_its_events(server: Server, api: Http, topic: str) -> None:
    names = [f"{topic}-{n:02}" for n in range(70)]
    for name in names:
        write(api, name, f"{name} 1")
    made = api("POST", "/v0/watch", {"topics": {name: {"from_seq": 0} for name in names}}).json
    path = f"/v0/watch/{made['wid']}"
    with Events(server.port, path) as events:
        seen = events.values(10)
        assert events.last_id.startswith("s")
    until(lambda: streams(api) == 0, DEADLINE)
    # The server had sent more than that; the client says how far it came.
    with Events(server.port, path, {"Last-Event-ID": events.last_id}) as events:
        seen += events.values(60)
    assert sorted(seen) == [f"{name} 1" for name in names]


def id_of(cursors: dict[str, list[int]]) -> str:
    """The id of a stream that stands there."""
    return base64.urlsafe_b64encode(json.dumps(cursors).encode()).decode().rstrip("=")


def test_an_id_leads_a_session_back_and_never_on(
    server: Server, api: Http, topic: str, wid: str
) -> None:
    topic_id = api("GET", f"/v0/topics/{topic}").json["topic_id"]
    path = f"/v0/watch/{wid}"
    # Nothing was sent yet: whatever the client says that it has seen, it has not.
    ahead = {"Last-Event-ID": id_of({topic: [topic_id, 2], "unknown": [9, 9]})}
    with Events(server.port, path, ahead) as events:
        assert events.values(2) == [1, 2]
    until(lambda: streams(api) == 0, DEADLINE)
    write(api, topic, 3)
    for back, seen in ((1, [2, 3]), (0, [1, 2, 3]), (3, [])):
        header = {"Last-Event-ID": id_of({topic: [topic_id, back]})}
        with Events(server.port, path, header) as events:
            assert events.values(len(seen)) == seen
            assert events.until("caught-up").data["head_seq"] == 3
        until(lambda: streams(api) == 0, DEADLINE)


def test_an_id_of_a_topic_that_was_created_again_is_a_loss(
    server: Server, api: Http, topic: str
) -> None:
    write(api, topic, 1, 2, 3)
    path = f"/v0/watch?topic={topic}&from_seq=0"
    with Events(server.port, path) as events:
        events.values(3)
    assert api("DELETE", f"/v0/topics/{topic}").json["deleted"] is True
    write(api, topic, "new", "newer")
    with Events(server.port, path, {"Last-Event-ID": events.last_id}) as events:
        lost = next(events)
        assert (lost.kind, lost.data["reason"]) == ("tombstone", "recreated")
        assert (lost.data["gap_from"], lost.data["gap_to"]) == (1, 2)
        behind_the_gap = lost.id
        assert events.values(2) == ["new", "newer"]
    # A connection that broke right behind the gap has got none of the new records.
    with Events(server.port, path, {"Last-Event-ID": behind_the_gap}) as events:
        assert events.values(2) == ["new", "newer"]
    read = api("POST", f"/v0/topics/{topic}/diff", {"from_seq": 9}).json
    assert read["tombstone"]["reason"] == "recreated"


def test_events_have_these_fields_and_no_others(server: Server, api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    api("PUT", path, {"cap_records": 2})
    write(api, topic, 1, 2, 3)
    fields = {
        "tombstone": {"topic", "reason", "gap_from", "gap_to", "missed_estimate", "earliest_seq",
                      "head_seq"},
        "record": {"topic", "records", "from_seq", "to_seq", "head_seq"},
        "caught-up": {"topic", "head_seq"},
        "topic-deleted": {"topic", "head_seq", "reason"},
        "error": {"code", "error", "message"},
    }  # fmt: skip
    made = api("POST", "/v0/watch", {"topics": {topic: {"from_seq": 0}}}).json
    seen = []
    with Events(server.port, f"/v0/watch/{made['wid']}") as events:
        for event in events:
            seen.append(event.kind)
            assert set(event.data) == fields[event.kind], event
            assert bool(event.id) == (event.kind != "error"), event
            if event.kind == "caught-up":
                assert api("DELETE", path).json["deleted"] is True
            if event.kind == "topic-deleted":
                assert api("DELETE", f"/v0/watch/{made['wid']}").json["ended"] is True
    assert seen == ["tombstone", "record", "caught-up", "topic-deleted", "error"]
    api("PUT", path, {"type": "queue"})
    api("POST", path, {"records": [{"data": 1, "tag": "t", "meta": {"k": "v"}, "node": "n"}]})
    with Events(server.port, f"{path}/work?node=w&lease_ms=5000") as events:
        opened = next(events)
        assert (opened.kind, set(opened.data)) == ("stream", {"topic", "stream"})
        job = next(events)
        assert set(job.data) == {
            "topic", "$seq", "$ts", "$node", "$tag", "meta", "data", "lease_id", "deadline",
            "lease_ms", "deliveries",
        }  # fmt: skip
        assert (job.id, job.data["lease_ms"]) == ("1", 5000)


@pytest.mark.parametrize(
    ("query", "sizes"),
    [
        ("", [256] * 4 + [176]),
        ("&limit=999", [999, 201]),
        ("&limit=1000", [1000, 200]),
        ("&limit=1001", [1000, 200]),
        (f"&limit={2**64 - 1}", [1000, 200]),
    ],
)
def test_events_hold_so_many_records(
    server: Server, api: Http, topic: str, query: str, sizes: list[int]
) -> None:
    for _ in range(3):
        write(api, topic, *range(400))
    with Events(server.port, f"/v0/watch?topic={topic}&from_seq=0{query}") as events:
        got = [len(next(events).data["records"]) for _ in sizes]
    assert got == sizes


def test_sizes_of_events_and_reads_in_bytes(server: Server, api: Http, topic: str) -> None:
    """1 MiB of a read and 256 KiB of an event unless more is asked for, and 8 MiB at most."""
    path = f"/v0/topics/{topic}"
    payload = "x" * 9_900
    for _ in range(50):
        write(api, topic, *[payload] * 20)

    def read(**asked: int) -> int:
        answer = api("POST", f"{path}/diff", {"limit": 1000, **asked}).json
        return sum(len(r["data"]) + 2 for r in answer["records"])

    one = len(payload) + 2
    for asked, most in (({}, 1 << 20), ({"max_batch_bytes": 0}, 1 << 20),
                        ({"max_batch_bytes": 3 << 20}, 3 << 20),
                        ({"max_batch_bytes": 8 << 20}, 8 << 20),
                        ({"max_batch_bytes": 2**60}, 8 << 20)):  # fmt: skip
        assert most - one < read(**asked) <= most, asked
    assert read(max_batch_bytes=1) == one, "never fewer than one record"

    def event(query: str) -> int:
        with Events(server.port, f"/v0/watch?topic={topic}&from_seq=0&limit=1000{query}") as events:
            return sum(len(r["data"]) + 2 for r in next(events).data["records"])

    for query, most in (("", 256 << 10), ("&max_batch_bytes=1048576", 1 << 20),
                        (f"&max_batch_bytes={2**40}", 8 << 20)):  # fmt: skip
        assert most - one < event(query) <= most, query
    assert event("&max_batch_bytes=1") == one


def test_64_topics_without_a_session(server: Server, api: Http, topic: str) -> None:
    names = [f"{topic}-{n}" for n in range(64)]
    for name in names:
        write(api, name, name)
    path = "/v0/watch?from_seq=0" + "".join(f"&topic={name}" for name in names)
    with Events(server.port, path) as events:
        seen = events.values(40)
    # At most 64 topics an id spells them all out.
    assert not events.last_id.startswith("s")
    with Events(server.port, path, {"Last-Event-ID": events.last_id}) as events:
        seen += events.values(24)
    assert sorted(seen) == sorted(names)


def test_patterns_take_in_what_is_created_later(server: Server, api: Http, topic: str) -> None:
    write(api, f"{topic}.a", "old")
    made = api("POST", "/v0/watch", {"patterns": [f"{topic}.*"]})
    with Events(server.port, f"/v0/watch/{made.json['wid']}") as events:
        assert events.until("caught-up").data["topic"] == f"{topic}.a"
        write(api, f"{topic}.b", "new")
        assert events.values(1) == ["new"]


def test_deletes_and_losses_are_events(server: Server, api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    api("PUT", path, {"cap_records": 2})
    write(api, topic, 1, 2, 3)
    with Events(server.port, f"/v0/watch?topic={topic}&from_seq=0") as events:
        lost = next(events)
        assert lost.kind == "tombstone"
        assert lost.data["reason"] == "from_seq_too_old"
        assert (lost.data["gap_from"], lost.data["gap_to"]) == (1, 1)
        assert {"topic", "earliest_seq", "head_seq"} <= set(lost.data)
        assert events.values(2) == [2, 3]
        events.until("caught-up")
        assert api("DELETE", path).json["deleted"] is True
        gone = events.until("topic-deleted")
        assert gone.data == {"topic": topic, "head_seq": 3, "reason": "deleted"}
        write(api, topic, "again")
        assert events.values(1) == ["again"]


def heartbeat(events: Events) -> int:
    """The server's time of the next heartbeat, in milliseconds."""
    while not (line := events.response.readline()).startswith(b": hb "):
        assert line, "the stream ended"
    return int(line[len(b": hb ") :])


def test_an_idle_stream_is_kept(server: Server, api: Http, topic: str) -> None:
    """With a heartbeat a second, which is the least: 1 ms is not obeyed."""
    write(api, topic, 1)
    path = f"/v0/watch?topic={topic}&heartbeat_ms="
    with (
        Events(server.port, f"{path}1", timeout=DEADLINE) as shortest,
        Events(server.port, f"{path}1000", timeout=DEADLINE) as second,
    ):
        for events in (shortest, second):
            first = heartbeat(events)
            assert heartbeat(events) - first > 500


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "invalid_request"),
        ("?topic=none-such", 404, "topic_not_found"),
        ("?topic=a&tail=1&from_seq=1", 400, "invalid_request"),
        ("?topic=a&limit=x", 400, "invalid_request"),
        ("?" + "&".join(f"topic=a{n}" for n in range(65)), 400, "invalid_request"),
    ],
)
def test_refusals_of_streams(server: Server, query: str, status: int, code: str) -> None:
    with Events(server.port, f"/v0/watch{query}") as events:
        assert (events.status, events.code) == (status, code)


def test_refusals_of_sessions(server: Server, api: Http, topic: str) -> None:
    def code(body: Any, query: str = "") -> str:
        return api("POST", f"/v0/watch{query}", body).code

    assert code({}) == "invalid_request"
    assert code({"topics": {topic: {}}}) == "topic_not_found"
    assert code({"topics": [topic]}, "?lenient") == ""
    assert code({"topics": {f"t{n}": {} for n in range(257)}}) == "invalid_request"
    assert code({"patterns": ["a*b"]}) == "invalid_request"
    with Events(server.port, "/v0/watch?topic=a", {"Accept": "application/json"}) as events:
        assert (events.status, events.code) == (406, "not_acceptable")
    assert api("HEAD", "/v0/watch?topic=a").status == 405


def test_work_is_pushed_and_given_back(server: Server, api: Http, topic: str) -> None:
    queue = f"/v0/topics/{topic}"
    api("PUT", queue, {"type": "queue", "lease_ms": 60_000})
    write(api, topic, "a", "b", "c")
    with Events(server.port, f"{queue}/work?node=w1&max=2") as events:
        assert next(events).kind == "stream"
        jobs = [next(events), next(events)]
        assert [(e.kind, e.data["topic"]) for e in jobs] == [("job", topic)] * 2
        assert [(e.id, e.data["data"]) for e in jobs] == [("1", "a"), ("2", "b")]
        held = [e.data for e in jobs]
        assert api("GET", queue).json["queue"]["in_flight"] == 2
        done = {"node": "w1", "seqs": [held[0]["$seq"]], "lease_ids": [held[0]["lease_id"]]}
        assert api("POST", f"{queue}/ack", done).json["acked"] == 1
        assert next(events).data["data"] == "c"
    # The connection dropped: what it held is there at once for others.
    until(lambda: api("GET", queue).json["queue"]["ready"] == 2, DEADLINE)
    # A browser sends the id of the last event again: it means nothing here.
    headers = {"Last-Event-ID": "2"}
    with Events(server.port, f"{queue}/work?node=w2&max=9", headers) as events:
        assert next(events).kind == "stream"
        again = [next(events).data for _ in range(2)]
        assert [j["deliveries"] for j in again] == [2, 2]
        api("DELETE", queue)
        assert events.until("topic-deleted").data["topic"] == topic
    for query, code in {"?node=w": "topic_not_found", "": "invalid_request"}.items():
        with Events(server.port, f"/v0/topics/none-such/work{query}") as events:
            assert events.code == code


def test_streams_end_with_a_frame_when_the_server_stops(tmp_path: Path) -> None:
    # A shutdown that waited for a client would not be over within the deadline of `stop`.
    with Server(tmp_path / "data", shutdown_timeout_ms=3_600_000) as server:
        api = Http(server.port, DEADLINE)
        write(api, "t", 1)
        api("PUT", "/v0/topics/q", {"type": "queue"})
        api.close()
        with (
            Events(server.port, "/v0/watch?topic=t", timeout=DEADLINE) as watch,
            Events(server.port, "/v0/topics/q/work?node=w", timeout=DEADLINE) as work,
        ):
            watch.until("caught-up")
            assert server.stop() == 0
            for events in (watch, work):
                last = events.until("error")
                assert (last.data["code"], last.data["error"]) == (503, "shutting_down")
                assert list(events) == []


def test_a_stream_goes_on_behind_a_restart(own_server: Server) -> None:
    own_server.start()
    api = Http(own_server.port)
    write(api, "t", 1, 2)
    api.close()
    path = "/v0/watch?topic=t&from_seq=0"
    with Events(own_server.port, path) as events:
        assert events.values(2) == [1, 2]
    own_server.kill()
    own_server.start()
    api = Http(own_server.port)
    write(api, "t", 3)
    api.close()
    with Events(own_server.port, path, {"Last-Event-ID": events.last_id}) as events:
        assert events.values(1) == [3]
