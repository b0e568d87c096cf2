"""Queues over HTTP, on a live server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.http_client import Http
from support.server import Server
from support.waiting import until

from .pending import DEADLINE, MOST_WAIT_MS, Pending, until_read


@pytest.fixture
def queue(api: Http, topic: str) -> str:
    config = {"type": "queue", "lease_ms": 60_000}
    assert api("PUT", f"/v0/topics/{topic}", config).status == 201
    return f"/v0/topics/{topic}"


def put(api: Http, queue: str, *records: dict[str, Any]) -> None:
    assert api("POST", queue, {"records": list(records)}).status == 200


def claim(api: Http, queue: str, node: str = "w1", **fields: Any) -> list[dict[str, Any]]:
    reply = api("POST", f"{queue}/claim", {"node": node, **fields})
    assert reply.status == 200, reply.body
    assert reply.json["count"] == len(reply.json["claimed"])
    claimed: list[dict[str, Any]] = reply.json["claimed"]
    return claimed


@contextlib.contextmanager
def waiting_claim(server: Server, api: Http, queue: str) -> Iterator[list[Any]]:
    """A claim that waits; at the end of the block the list has the payloads of its jobs."""
    claimed: list[Any] = []
    claim = Pending(server.port, f"{queue}/claim", {"node": "w1", "wait_ms": MOST_WAIT_MS})
    until_read(api)
    yield claimed
    reply = claim.reply()
    assert reply.status == 200, reply.body
    claimed += [job["data"] for job in reply.json["claimed"]]


def test_claim_ack_nack_extend(api: Http, queue: str) -> None:
    put(api, queue, *({"data": {"n": n}, "tag": "t"} for n in range(4)))
    jobs = claim(api, queue, max=3)
    assert [j["data"]["n"] for j in jobs] == [0, 1, 2]
    assert all(j["deliveries"] == 1 and j["$tag"] == "t" for j in jobs)
    seqs, ids = [j["$seq"] for j in jobs], [j["lease_id"] for j in jobs]
    longer = api("POST", f"{queue}/extend", {"node": "w1", "seqs": seqs, "lease_ms": 120_000}).json
    assert longer["extended"] == 3
    assert list(longer["deadlines"]) == [str(seq) for seq in seqs]
    assert all(d > jobs[0]["deadline"] for d in longer["deadlines"].values())
    done = api("POST", f"{queue}/ack", {"node": "w1", "seqs": seqs[:1], "lease_ids": ids[:1]}).json
    assert (done["acked"], done["skipped"], done["in_flight"]) == (1, [], 2)
    # Another worker's, and a stale lease, are passed over.
    other = api("POST", f"{queue}/ack", {"node": "w2", "seqs": seqs[1:]}).json
    assert (other["acked"], other["skipped"]) == (0, seqs[1:])
    stale = {"node": "w1", "seqs": seqs[1:2], "lease_ids": [1]}
    assert api("POST", f"{queue}/ack", stale).json["skipped"] == seqs[1:2]
    back = api("POST", f"{queue}/nack", {"node": "w1", "seqs": seqs[1:]}).json
    assert (back["nacked"], back["ready"], back["in_flight"]) == (2, 3, 0)
    assert [j["deliveries"] for j in claim(api, queue, max=9)] == [2, 2, 1]
    state = api("GET", queue).json
    assert state["type"] == "queue"
    assert (state["count"], state["queue"]["in_flight"]) == (3, 3)


def test_a_lease_of_another_queue_ends_no_job(api: Http, queue: str) -> None:
    def first_job(of: str) -> dict[str, Any]:
        put(api, of, {"data": 1})
        (job,) = claim(api, of, max=1)
        return job

    dropped = first_job(queue)
    assert api("DELETE", queue).status == 200
    assert api("PUT", queue, {"type": "queue"}).status == 201
    assert api("PUT", f"{queue}-other", {"type": "queue"}).status == 201
    other, mine = first_job(f"{queue}-other"), first_job(queue)
    # Worker, seq and number of the lease are the same.
    assert {job["$seq"] for job in (dropped, other, mine)} == {1}
    for job, skipped in ((dropped, [1]), (other, [1]), (mine, [])):
        body = {"node": "w1", "seqs": [1], "lease_ids": [job["lease_id"]]}
        assert api("POST", f"{queue}/ack", body).json["skipped"] == skipped


def test_options_of_jobs(api: Http, queue: str) -> None:
    put(
        api,
        queue,
        {"data": "later", "delay_ms": 3_600_000},
        {"data": "plain"},
        {"data": "first", "lane": 0},
        {"data": "g1", "group": "g", "lane": 9},
        {"data": "g2", "group": "g", "lane": 9},
    )
    assert [j["data"] for j in claim(api, queue, max=9)] == ["first", "plain", "g1"]
    jobs = api("GET", f"{queue}/jobs").json["jobs"]
    shown = {j["data"]: (j["state"], j["lane"], j.get("group")) for j in jobs}
    assert shown["later"] == ("delayed", 5, None)
    assert shown["first"] == ("leased", 0, None)
    assert shown["g1"] == ("leased", 9, "g")
    held = next(j for j in jobs if j["data"] == "plain")
    assert (held["node"], held["deliveries"]) == ("w1", 1)
    assert held["deadline"] > held["$ts"]
    assert held["lease_id"].startswith("lease_")
    delayed = api("GET", f"{queue}/jobs?state=delayed&max=1").json["jobs"]
    assert [j["visible_at"] > j["$ts"] for j in delayed] == [True]


def test_a_claim_waits_for_a_job(server: Server, api: Http, queue: str) -> None:
    with waiting_claim(server, api, queue) as claimed:
        put(api, queue, {"data": "now"})
    assert claimed == ["now"]
    assert claim(api, queue, wait_ms=50) == []


def test_dead_letters_come_back(api: Http, queue: str, topic: str) -> None:
    dead = f"{topic}-dead"
    config = {"max_deliveries": 1, "dead_letter": dead}
    assert api("PUT", queue, config).status == 200
    put(api, queue, {"data": "bad"})
    jobs = claim(api, queue)
    api("POST", f"{queue}/nack", {"node": "w1", "seqs": [jobs[0]["$seq"]]})
    assert claim(api, queue) == []
    letters = api("POST", f"/v0/topics/{dead}/diff", {}).json["records"]
    assert [r["meta"]["$dead_letter_from"] for r in letters] == [topic]
    count = api("POST", f"/v0/topics/{dead}/redrive", {"dry_run": True}).json
    assert (count["moved"], count["dry_run"]) == (1, True)
    assert count["performance"]["records_scanned"] == 1
    assert api("POST", f"/v0/topics/{dead}/redrive").json["moved"] == 1
    assert [j["data"] for j in claim(api, queue)] == ["bad"]


def test_the_error_of_a_failed_job_is_in_its_dead_letter(api: Http, queue: str, topic: str) -> None:
    dead = f"{topic}-dead"
    assert api("PUT", queue, {"max_deliveries": 2, "dead_letter": dead}).status == 200
    put(api, queue, {"data": "bad", "meta": {"k": "v"}})
    for error in ("first", 'it "broke"\n'):
        job = claim(api, queue)[0]
        # The lease id is sent back as it came.
        body = {"node": "w1", "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
        assert api("POST", f"{queue}/nack", body | {"error": error}).json["nacked"] == 1
    assert claim(api, queue) == []
    letters = api("POST", f"/v0/topics/{dead}/diff", {}).json["records"]
    assert [r["meta"]["$dead_letter_error"] for r in letters] == ['it "broke"\n']
    assert api("POST", f"/v0/topics/{dead}/redrive").json["moved"] == 1
    assert claim(api, queue)[0]["meta"] == {"k": "v"}


def test_jobs_are_removed_and_promoted(api: Http, queue: str) -> None:
    put(api, queue, {"data": 1}, {"data": 2, "delay_ms": 3_600_000}, {"data": 3})
    assert [j["data"] for j in claim(api, queue, max=1)] == [1]
    done = api("POST", f"{queue}/promote", {"seqs": [1, 2, 2]}).json
    assert (done["promoted"], done["skipped"], done["ready"]) == (1, [1, 2], 2)
    assert [j["state"] for j in api("GET", f"{queue}/jobs").json["jobs"]] == [
        "ready", "ready", "leased",
    ]  # fmt: skip
    done = api("POST", f"{queue}/remove", {"seqs": [1, 3]}).json
    assert (done["removed"], done["skipped"]) == (1, [1])
    done = api("POST", f"{queue}/remove", {"seqs": [1], "force": True}).json
    assert (done["removed"], done["in_flight"]) == (1, 0)
    assert api("POST", f"{queue}/ack", {"node": "w1", "seqs": [1]}).json["skipped"] == [1]
    assert [j["data"] for j in claim(api, queue, max=9)] == [2]


def test_a_paused_queue_leases_nothing_until_it_goes_on(
    server: Server, api: Http, queue: str
) -> None:
    assert api("PUT", queue, {"paused": True}).status == 200
    put(api, queue, {"data": 1})
    assert claim(api, queue, wait_ms=20) == []
    state = api("GET", queue).json
    assert (state["config"]["paused"], state["queue"]["ready"]) == (True, 1)
    with waiting_claim(server, api, queue) as claimed:
        assert api("PUT", queue, {"paused": False}).status == 200
    assert claimed == [1]


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("claim", {}, "invalid_request"),
        ("claim", {"node": "w", "max": 0}, "invalid_request"),
        ("claim", {"node": "w", "max": "1"}, "invalid_request"),
        ("ack", {"node": "w"}, "invalid_request"),
        ("ack", {"node": "w", "seqs": [1] * 1001}, "batch_too_large"),
        ("nack", {"node": "w", "seqs": [1, 2], "lease_ids": ["1"]}, "invalid_request"),
        ("nack", {"node": "w", "seqs": [1], "lease_ids": ["mine"]}, "invalid_request"),
        ("nack", {"node": "w", "seqs": [1], "error": 5}, "invalid_request"),
        ("ack", {"node": "w", "seqs": [1], "error": "x"}, "invalid_request"),
        ("remove", {}, "invalid_request"),
        ("remove", {"seqs": [1], "node": "w"}, "invalid_request"),
        ("promote", {"seqs": ["1"]}, "invalid_request"),
        ("extend", {"node": "w", "seqs": [1], "lease_ms": -1}, "invalid_request"),
        ("redrive", {"limit": 0}, "invalid_request"),
    ],
)
def test_refusals(api: Http, queue: str, verb: str, body: Any, code: str) -> None:
    reply = api("POST", f"{queue}/{verb}", body)
    assert reply.code == code
    assert reply.json["error"]["message"]


def test_a_log_is_no_queue(api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert api("POST", path, {"records": [{"data": 1}]}).status == 201
    # The type of the topic is checked before the fields.
    for verb in ("claim", "ack", "nack", "extend", "remove", "promote"):
        for body in ({}, {"node": "w", "seqs": [1]}, {"node": 5}, {"unknown": 1}):
            reply = api("POST", f"{path}/{verb}", body)
            assert (reply.status, reply.code) == (409, "not_a_queue"), (verb, body)
    for verb in ("jobs", "work", "jobs?state=wrong", "work?max=0"):
        assert api("GET", f"{path}/{verb}").code == "not_a_queue"
    for option in ({"lane": 1}, {"group": "g"}, {"delay_ms": 1}, {"deliver_at": 1}):
        record = {"data": 1, **option}
        assert api("POST", path, {"records": [record]}).code == "not_a_queue"
    assert api("POST", "/v0/topics/none-such/claim", {"node": "w"}).code == "topic_not_found"


def test_waiting_claims_end_with_the_server(tmp_path: Path) -> None:
    worker, other = ({"Authorization": f"Bearer {key}"} for key in ("worker", "other"))
    env = {"TOPICS_API_KEYS": "worker,other", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with Server(tmp_path / "data", env=env) as server:
        api = Http(server.port, DEADLINE)
        assert api("PUT", "/v0/topics/q", {"type": "queue"}, other).status == 201
        claim = {"node": "w", "wait_ms": MOST_WAIT_MS}
        waiting = Pending(server.port, "/v0/topics/q/claim", claim, worker)
        # The key has a request in flight: the claim was accepted.
        until(lambda: api("GET", "/v0/topics", None, worker).status == 429, DEADLINE)
        until_read(api)
        api.close()
        assert server.stop() == 0
        reply = waiting.reply()
        assert (reply.status, reply.json["claimed"]) == (200, [])
