"""Routers and consumers over HTTP, on a live server, and the table as OpenAPI."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.http_client import Http
from support.server import Server
from support.waiting import until
from topics_engine.asgi.openapi import operation_id
from topics_engine.asgi.routes import ROUTES

from .pending import DEADLINE, MOST_WAIT_MS, Pending, until_read


def write(api: Http, topic: str, *values: Any) -> int:
    records = [{"data": value} for value in values]
    last: int = api("POST", f"/v0/topics/{topic}", {"records": records}).json["last_seq"]
    return last


def test_what_counts_as_consumption(api: Http, topic: str) -> None:
    write(api, topic, 1)

    def read_at(query: str) -> int | None:
        before: int | None = api("GET", f"/v0/topics/{topic}?touch=false").json["last_read_ts"]
        assert api("GET", query).status == 200
        after: int | None = api("GET", f"/v0/topics/{topic}?touch=false").json["last_read_ts"]
        assert after is None or before is None or after >= before
        return after

    for quiet in (f"/v0/topics/{topic}?touch=false", f"/v0/topics?prefix={topic}",
                  f"/v0/topics?prefix={topic}&touch=false"):  # fmt: skip
        assert read_at(quiet) is None, quiet
    state = api("POST", "/v0/state", {"topics": [topic]}).json["topics"][topic]
    assert state["last_read_ts"] is None
    assert read_at(f"/v0/topics/{topic}?touch=false") is None
    assert read_at(f"/v0/topics?prefix={topic}&touch=true") is not None
    other = f"{topic}-other"
    write(api, other, 1)
    assert api("GET", f"/v0/topics/{other}").status == 200
    assert api("GET", f"/v0/topics/{other}?touch=false").json["last_read_ts"] is not None


def test_answers_say_what_they_cost(api: Http, topic: str) -> None:
    path, ms = f"/v0/topics/{topic}", {"server_total_ms", "wal_append_ms", "fsync_ms"}
    records = [{"data": n, "tag": f"t:{n}"} for n in range(4)]
    cost = api("POST", path, {"records": records}).json["performance"]
    assert (set(cost), cost["throttle_wait_ms"]) == (ms | {"throttle_wait_ms"}, 0)
    assert api("PUT", f"{path}/consumers/c").status == 201
    asked: tuple[tuple[str, Any, int], ...] = (
        ("diff", {"from_seq": 1}, 3),
        ("consumers/c/read", {"max_records": 2}, 2),
        ("delete", {"match": ["tag", "Glob", "t:*"], "before_seq": 3}, 2),
        ("delete", {"match": "none"}, 0),
    )
    for verb, body, scanned in asked:
        cost = api("POST", f"{path}/{verb}", body).json["performance"]
        assert set(cost) == {"server_total_ms", "records_scanned"}, verb
        assert cost["records_scanned"] == scanned, verb
    assert 1 <= api("POST", f"{path}/seek", {"ts": 1}).json["performance"]["records_scanned"] <= 4
    for verb, body in (("delete", {"before_seq": 4}), ("split", {})):
        cost = api("POST", f"{path}/{verb}", body).json["performance"]
        assert set(cost) == {"server_total_ms"}, verb


def test_a_router_copies(api: Http, topic: str) -> None:
    source, dest, path = f"{topic}-s", f"{topic}-d", f"/v0/routers/{topic}"
    write(api, source, "before")
    asked = {"source": source, "dest": dest, "filter": ["tag", "Glob", "eu:*"]}
    made = api("PUT", path, asked)
    assert (made.status, made.json["created"]) == (201, True)
    assert (made.json["source"], made.json["dest"]) == (source, dest)
    assert made.json["filter"] == ["tag", "Glob", "eu:*"]
    again = api("PUT", path, asked)
    assert (again.status, again.json["created"]) == (200, False)
    records = [{"data": n, "tag": tag} for n, tag in enumerate(["eu:1", "us:1", "eu:2"])]
    api("POST", f"/v0/topics/{source}", {"records": records})
    until(lambda: api("GET", path).json["forwarded_total"] == 2)
    got = api("POST", f"/v0/topics/{dest}/diff", {}).json["records"]
    assert [r["data"] for r in got] == [0, 2]
    assert api("DELETE", path).json["deleted"] is True
    assert api("DELETE", path).json["deleted"] is False
    assert api("GET", path).code == "router_not_found"


def test_what_a_source_lost_before_it_was_copied_is_a_gap(api: Http, topic: str) -> None:
    source, dest, path = f"{topic}-s", f"{topic}-d", f"/v0/routers/{topic}"
    assert api("PUT", f"/v0/topics/{source}", {"cap_records": 2}).status == 201
    full = {"cap_records": 1, "discard": "reject"}
    assert api("PUT", f"/v0/topics/{dest}", full).status == 201
    assert api("PUT", path, {"source": source, "dest": dest}).status == 201
    write(api, source, 1)
    until(lambda: api("GET", f"/v0/topics/{dest}").json["count"])
    # The router waits for room; what it waits with is evicted.
    for n in range(2, 7):
        write(api, source, n)
    until(lambda: api("GET", path).json["stopped_by"] == "topic_full")
    assert api("PUT", f"/v0/topics/{dest}", full | {"cap_records": 10}).status == 200
    until(lambda: api("GET", path).json["lag"] == 0)
    first = api("POST", f"/v0/topics/{dest}/diff", {"from_seq": 0}).json
    assert [r["data"] for r in first["records"]] == [1]
    after = api("POST", f"/v0/topics/{dest}/diff", {"from_seq": first["next_from_seq"]}).json
    told = {name: after["tombstone"][name] for name in ("gap_from", "gap_to", "reason")}
    assert told == {"gap_from": 2, "gap_to": 4, "reason": "source_trim"}
    assert [(r["$seq"], r["data"]) for r in after["records"]] == [(5, 5), (6, 6)]


def test_routers_are_listed_in_pages(api: Http, topic: str) -> None:
    write(api, topic, 1)
    names = [f"{topic}-r{n}" for n in range(5)]
    for name in names:
        asked = {"source": topic, "dest": f"{name}-d"}
        assert api("PUT", f"/v0/routers/{name}", asked).status == 201
    seen: list[str] = []
    query = f"prefix={topic}&source={topic}&page_size=2"
    page = api("GET", f"/v0/routers?{query}").json
    while True:
        seen += [r["router"] for r in page["routers"]]
        if "next_cursor" not in page:
            break
        page = api("GET", f"/v0/routers?{query}&cursor={page['next_cursor']}").json
    assert seen == names
    one = api("GET", f"/v0/routers?dest={names[3]}-d").json["routers"]
    assert [r["router"] for r in one] == [names[3]]


def test_routers_that_cannot_be(api: Http, topic: str) -> None:
    write(api, f"{topic}-a", 1)
    write(api, f"{topic}-b", 1)

    def put(name: str, **asked: Any) -> Any:
        return api("PUT", f"/v0/routers/{topic}-{name}", asked)

    assert put("ab", source=f"{topic}-a", dest=f"{topic}-b").status == 201
    cycle = put("ba", source=f"{topic}-b", dest=f"{topic}-a")
    assert (cycle.status, cycle.code) == (409, "router_cycle")
    back = [f"{topic}-b", f"{topic}-a", f"{topic}-b"]
    assert cycle.json["error"]["detail"]["cycle"] == back
    write(api, f"{topic}-c", 1)
    fan_in = put("cb", source=f"{topic}-c", dest=f"{topic}-b")
    assert (fan_in.status, fan_in.code) == (409, "topic_exists_incompatible")
    assert fan_in.json["error"]["detail"] == {
        "router": f"{topic}-cb",
        "reason": "router_dest_fan_in",
        "existing_source": f"{topic}-a",
        "existing_dest": f"{topic}-b",
    }
    none = put("x", source=f"{topic}-a", dest=f"{topic}-none", create_dest=False)
    assert none.code == "topic_not_found"
    for bad in ({}, {"source": "a"}, {"source": "a", "dest": 5}, {"source": "a", "dest": "*"}):
        assert put("x", **bad).code == "invalid_request"


def test_a_consumer_reads_and_commits(api: Http, topic: str) -> None:
    write(api, topic, *range(5))
    path = f"/v0/topics/{topic}/consumers/c1"
    assert api("POST", f"{path}/read", {}).code == "consumer_not_found"
    assert api("GET", path).code == "consumer_not_found"
    made = api("PUT", path)
    assert (made.status, made.json["created"], made.json["mode"]) == (201, True, "at_least_once")
    batch = api("POST", f"{path}/read", {"max_records": 2}).json
    assert [r["data"] for r in batch["records"]] == [0, 1]
    assert (batch["lag"], batch["tombstone"], batch["next_from_seq"]) == (3, None, 2)
    peek = api("POST", f"{path}/read", {"max_records": 1, "checkpoint": False}).json
    assert [r["data"] for r in peek["records"]] == [2]
    rest = api("POST", f"{path}/read", {}).json
    assert [r["data"] for r in rest["records"]] == [2, 3, 4]
    assert api("GET", path).json["cursor"] == 0
    assert api("POST", f"{path}/commit", {"seq": 2}).json["cursor"] == 2
    assert api("POST", f"{path}/commit", {"seq": 1}).json["cursor"] == 2
    assert api("GET", path).json["lag"] == 3
    # Whoever opens it anew begins at what was stored.
    opened = api("PUT", path)
    assert (opened.status, opened.json["created"]) == (200, False)
    again = api("POST", f"{path}/read", {}).json["records"]
    assert [r["data"] for r in again] == [2, 3, 4]
    assert api("POST", f"{path}/seek", {"to": "start"}).json["cursor"] == 0
    assert len(api("POST", f"{path}/read", {}).json["records"]) == 5
    assert api("POST", f"{path}/seek", {"seq": 4}).json["cursor"] == 4
    assert api("DELETE", path).json["deleted"] is True
    assert api("POST", f"{path}/read", {}).code == "consumer_not_found"


def test_at_most_once(api: Http, topic: str) -> None:
    write(api, topic, 1, 2)
    path = f"/v0/topics/{topic}/consumers/once"
    made = api("PUT", path, {"mode": "at_most_once", "start": "end"}).json
    assert (made["mode"], made["cursor"]) == ("at_most_once", 2)
    write(api, topic, 3)
    got = api("POST", f"{path}/read", {"fail_if_busy": True}).json["records"]
    assert [r["data"] for r in got] == [3]
    assert api("GET", path).json["cursor"] == 3
    wrong = api("PUT", path, {"mode": "at_least_once"})
    assert (wrong.status, wrong.code) == (409, "topic_exists_incompatible")


def test_a_consumer_that_commits_by_itself(api: Http, topic: str) -> None:
    write(api, topic, 1, 2, 3)
    path = f"/v0/topics/{topic}/consumers/auto"
    assert api("PUT", path, {"auto_commit": True}).json["auto_commit"] is True
    assert len(api("POST", f"{path}/read", {"max_records": 2}).json["records"]) == 2
    assert api("GET", path).json["cursor"] == 0, "it may not have been dealt with"

    def reads_on() -> bool:
        assert api("POST", f"{path}/read", {"max_records": 1}).status == 200
        return bool(api("GET", path).json["cursor"] == 3)

    until(reads_on, DEADLINE)


def test_a_consumer_waits_for_records(server: Server, api: Http, topic: str) -> None:
    write(api, topic, 1)
    path = f"/v0/topics/{topic}/consumers/w"
    assert api("PUT", path, {"start": "end"}).status == 201
    waiting = Pending(server.port, f"{path}/read", {"wait_ms": MOST_WAIT_MS})
    until_read(api)
    write(api, topic, "new")
    assert [r["data"] for r in waiting.reply().json["records"]] == ["new"]
    assert api("POST", f"{path}/read", {"wait_ms": 20}).json["records"] == []


def test_consumers_are_listed(api: Http, topic: str) -> None:
    for n in range(3):
        write(api, f"{topic}-{n}", 1)
        for name in ("a", "b"):
            assert api("PUT", f"/v0/topics/{topic}-{n}/consumers/{name}").status == 201
    mine = api("GET", f"/v0/topics/{topic}-1/consumers").json["consumers"]
    assert [(c["topic"], c["consumer"], c["lag"]) for c in mine] == [
        (f"{topic}-1", "a", 1),
        (f"{topic}-1", "b", 1),
    ]
    one = api("GET", f"/v0/consumers?topic={topic}-1&prefix=b").json["consumers"]
    assert [(c["topic"], c["consumer"]) for c in one] == [(f"{topic}-1", "b")]
    seen: list[Any] = []
    page = api("GET", "/v0/consumers?page_size=1").json
    while True:
        assert len(page["consumers"]) <= 1
        seen += [(c["topic"], c["consumer"]) for c in page["consumers"]]
        if "next_cursor" not in page:
            break
        page = api("GET", f"/v0/consumers?page_size=1&cursor={page['next_cursor']}").json
    assert seen == sorted(seen)
    assert [s for s in seen if s[0].startswith(topic)] == [
        (f"{topic}-{n}", name) for n in range(3) for name in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("read", {"max_bytes": "1"}),
        ("read", {"match": 5}),
        ("commit", {}),
        ("commit", {"seq": 99}),
        ("seek", {}),
        ("seek", {"seq": 1, "ts": 1}),
        ("seek", {"to": "middle"}),
    ],
)
def test_refusals_of_consumers(api: Http, topic: str, verb: str, body: Any) -> None:
    write(api, topic, 1)
    path = f"/v0/topics/{topic}/consumers/c"
    assert api("PUT", path).status == 201
    assert api("POST", f"{path}/{verb}", body).code == "invalid_request"
    assert api("PUT", path, {"mode": "twice"}).code == "invalid_request"


def test_the_document_says_what_the_table_says(api: Http) -> None:
    reply = api("GET", "/v0/openapi.json")
    document = reply.json
    assert (reply.status, document["openapi"]) == (200, "3.1.0")
    ids = set()
    for route in ROUTES:
        operation = document["paths"][re.sub(r":(\w+)", r"{\1}", route.path)][route.method.lower()]
        ids.add(operation["operationId"])
        assert operation["summary"] == route.summary
        names = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert names == set(re.findall(r":(\w+)", route.path))
        assert ("requestBody" in operation) == (route.body is not None)
        assert {str(s) for s in route.statuses} <= set(operation["responses"])
    assert len(ids) == len(ROUTES) == len({operation_id(r) for r in ROUTES})


def test_the_document_names_every_field_of_an_answer(api: Http, topic: str) -> None:
    config = api("PUT", f"/v0/topics/{topic}", {"type": "queue"}).json["config"]
    schemas = api("GET", "/v0/openapi.json").json["components"]["schemas"]
    assert set(config) == set(schemas["Config"]["properties"])
