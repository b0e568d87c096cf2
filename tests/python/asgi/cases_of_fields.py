"""What each field of a request changes: with those of `cases.py` no field of the table is left."""

from __future__ import annotations

from typing import Any

from .cases import (
    CONSUMER,
    QUEUE,
    TAKEN_OVER,
    THREE,
    C,
    Case,
    R,
    Request,
    T,
    X,
    good,
    one,
    rows,
    stream,
)

NODES: Request = (
    "POST", T,
    {"records": [{"data": n, "node": f"n{n}", "tag": f"t:{n}", "meta": {"k": str(n)}}
                 for n in range(3)]},
)  # fmt: skip
TWO: tuple[Request, ...] = (("PUT", T + "-a", {}), ("PUT", T + "-b", {}))
LEASED: tuple[Request, ...] = (QUEUE, THREE, ("POST", T + "/claim", {"node": "w", "max": 2}))
# Everything that a config has, in a range and beyond it: what is given, and what is kept.
WHOLE: dict[str, Any] = {
    "type": "queue", "durability": "fsync", "durable": False, "ttl_ms": 3_600_000,
    "cap_records": 50, "cap_bytes": 5000, "discard": "old", "priority": -7,
    "auto_priority": False, "auto_create": False, "dedupe_node": False,
    "idempotency_window_ms": 60_000, "lease_ms": 5000, "claim_jitter_ms": 10,
    "max_deliveries": 3, "dead_letter": "{t}-dead", "retry_backoff_ms": 20,
    "leases_durable": True, "paused": True,
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "type": "log", "durability": "disk", "durable": False, "ttl_ms": 0, "cap_records": 0,
    "cap_bytes": 0, "discard": "old", "priority": None, "auto_priority": True,
    "auto_create": True, "dedupe_node": True, "idempotency_window_ms": 120_000,
    "lease_ms": 30_000, "claim_jitter_ms": 0, "max_deliveries": 0, "dead_letter": None,
    "retry_backoff_ms": 1000, "leases_durable": False, "paused": False,
}  # fmt: skip


def config(given: dict[str, Any], **kept: Any) -> Case:
    return good(201, "PUT", T, given, config=DEFAULTS | given | kept)


# A queue of two dead jobs with tags, and a dead-letter topic of the same.
DEAD: tuple[Request, ...] = (
    ("PUT", T, {"type": "queue", "max_deliveries": 1}),
    ("POST", T, {"records": [{"data": n, "tag": f"t:{n}"} for n in range(2)]}),
    ("POST", T + "/claim", {"node": "w", "max": 2}),
    ("POST", T + "/nack", {"node": "w", "seqs": [1, 2]}),
    ("POST", T + "/claim", {"node": "w", "max": 2}),
)
ALL_OF_ROUTER = {
    "preserve_node": False, "preserve_tag": False, "filter": ["tag", "Glob", "t:*"],
    "create_dest": False, "allow_cycle": True, "guarantee": "exactly_once",
}  # fmt: skip
ROUTES_OF: tuple[Request, ...] = (
    THREE,
    ("PUT", R + "-1", {"source": "{t}", "dest": "{t}-x"}),
    ("PUT", R + "-2", {"source": "{t}", "dest": "{t}-y"}),
)
STAGES: tuple[Request, ...] = (("POST", X + "/stage/s?part=0", rows(1, 2)),)
WORKED: tuple[Request, ...] = (
    ("POST", T + "-in", one()),
    ("PUT", T + "-in/consumers/c", {}),
    ("PUT", T + "-q", {"type": "queue"}),
    ("POST", T + "-q", one()),
    ("POST", T + "-q/claim", {"node": "w"}),
)
WORK = {
    "expect_heads": {"{t}-in": 1},
    "commits": [{"topic": "{t}-in", "consumer": "c", "seq": 1, "reader": "r"}],
    "acks": [{"queue": "{t}-q", "node": "w", "seqs": [1]}],
}


def diff(body: dict[str, Any], **has: Any) -> Case:
    return good(200, "POST", T + "/diff", body, NODES, **has)


def read(body: dict[str, Any], **has: Any) -> Case:
    return good(200, "POST", C + "/read", body, NODES, CONSUMER, **has)


def watched(query: str, events: str, *before: Request) -> Case:
    return stream(f"/v0/watch?topic={{t}}&from_seq=0&{query}", events, *(before or (NODES,)))


MORE_GOOD: dict[str, Case] = {
    "page behind a cursor": good(
        200, "GET", "/v0/topics?prefix={t}-&page_size=1&cursor={next_cursor}", None, *TWO,
        ("GET", "/v0/topics?prefix={t}-&page_size=1", None), **{"topics.0.topic": "{t}-b"},
    ),
    "list that counts": good(200, "GET", "/v0/topics?prefix={t}&touch=true", None, *TWO,
                             **{"topics.1.topic": "{t}-b"}),
    "create with all": config(WHOLE, durable=True),
    "create as durable": config({"durable": True}, durability="fsync"),
    "create a queue": config({"type": "queue"}, discard="reject"),
    "create below ranges": config({"lease_ms": 1, "priority": -5000}, lease_ms=100, priority=-1000),
    "create above ranges": config(
        {"lease_ms": 10**12, "priority": 5000, "claim_jitter_ms": 9999},
        lease_ms=86_400_000, priority=1000, claim_jitter_ms=5000,
    ),
    "create once": good(
        201, "PUT", T + "?create=true", {"ttl_ms": 7}, created=True, **{"config.ttl_ms": 7}
    ),
    "update only": good(
        200, "PUT", T + "?create=false", {"ttl_ms": 7}, ("PUT", T, {"cap_records": 9}),
        created=False, **{"config.ttl_ms": 7, "config.cap_records": 9},
    ),
    "state that counts": good(200, "GET", T + "?touch=true", None, THREE, next_seq=4, gaps=[]),
    "drop with a router": good(200, "DELETE", T, None, *ROUTES_OF,
                               routers_removed=["{t}-1", "{t}-2"]),
    "write with all": good(
        201, "POST", T + "?return_seqs=true",
        {"records": [{"data": 1, "ttl_ms": 3_600_000, "tag": "t", "meta": {"a": "b"}},
                     {"data_b64": "AP8=", "node": "own"}],
         "node": "all", "idempotency_key": "k", "expect_head": 0, "sync": True, "create": True,
         "config": {"durability": "disk"}, "disable_backpressure": True},
        seqs=[1, 2], count=2,
    ),
    "write of a job": good(
        200, "POST", T,
        {"records": [{"data": 1, "lane": 0, "group": "g"}, {"data": 2, "delay_ms": 60_000},
                     {"data": 3, "deliver_at": 2**41}]},
        QUEUE, count=3,
    ),
    "write that creates a queue": good(201, "POST", T, one(config={"type": "queue"}), created=True),
    "write by a key of the query": Case(
        200, "", "POST", T + "?key=k", b"x", {"Content-Type": "application/octet-stream"},
        (("POST", T, one()),), has={"last_seq": 2, "deduped": False},
    ),
    "write by the key of its body": Case(
        200, "", "POST", T, one(idempotency_key="k"), {"Idempotency-Key": "other"},
        (("POST", T, one(idempotency_key="k")),), has={"deduped": True},
    ),
    "write of packed JSON": Case(
        200, "", "POST", T + "?return_seqs=false", one(), {"Accept-Encoding": "gzip"}, (THREE,),
        has={"last_seq": 4},
    ),
    "diff of an earlier page": diff({"tail": 1, "before_seq": 3}, next_from_seq=2, caught_up=False),
    "diff of all but nodes": diff({"node": ["n0", "n2"]}, next_from_seq=3,
                                  **{"records.0.data": 1, "records.0.$node": "n1"}),
    "diff of all but a node": diff({"node": "n0"}, **{"records.0.data": 1}),
    "diff of a match": diff({"match": ["tag", "Eq", "t:2"], "include_tags": True},
                            **{"records.0.$tag": "t:2"}),
    "diff of what is synced": good(200, "POST", T + "/diff", {"consistency": "strong"}, NODES,
                                   ("POST", "/v0/sync", None), next_from_seq=3),
    "diff of anything": diff({"consistency": "eventual", "limit": 1}, next_from_seq=1, lag=2),
    "diff without metadata": diff(
        {"include_meta": False, "include_tags": False, "limit": 1},
        **{"records.0": {"$seq": 1, "$ts": ..., "$node": "n0", "data": 0}},
    ),
    "diff of one byte": diff({"max_batch_bytes": 1}, next_from_seq=1),
    "diff from the earliest": good(
        200, "POST", T + "/diff", {"from_seq": "earliest"}, ("PUT", T, {"cap_records": 1}), NODES,
        tombstone=None, earliest_seq=3, **{"records.0.$seq": 3},
    ),
    "diff of another topic": diff(
        {"from_seq": 2, "topic_id": 2**40},
        **{"tombstone.reason": "recreated", "tombstone.gap_from": 1, "tombstone.gap_to": 3},
    ),
    "diff of columns as JSON": diff(
        {"columns": ["seq"], "data_type": "binary", "fields": {"a": "int64"}},
        **{"records.0.data": 0},
    ),
    "diff beyond the head": diff(
        {"from_seq": 99}, **{"tombstone.reason": "recreated", "tombstone.gap_to": 3,
                             "records.0.$seq": 1},
    ),
    "delete of both": good(200, "POST", T + "/delete", {"before_seq": 3, "match": "t:1"}, THREE,
                           deleted=1, count=2, head_seq=3, earliest_seq=1),
    "seek of later": good(200, "POST", T + "/seek", {"ts": 2**42}, THREE, seq=3),
    "scan of all": good(
        200, "POST", T + "/scan",
        {"from_seq": "earliest", "to_seq": 3, "columns": ["data"], "data_type": "binary",
         "fields": {"a": "int64", "b": {"type": "string", "path": "a[0].b"}},
         "node": "n0", "nodes": ["n0", "n1"], "match": ["tag", "Glob", "t:*"], "ts_from": 1,
         "ts_to": 2**42, "consistency": "eventual", "topic_id": 2**40, "compression": "lz4"},
        NODES,
    ),
    "split of a range": good(200, "POST", T + "/split",
                             {"from_seq": 1, "to_seq": 2, "max_records": 1, "max_bytes": 1}, THREE,
                             from_seq=1, to_seq=2, records=1),
    "states of patterns": good(
        200, "POST", "/v0/state", {"patterns": ["{t}-*", "{t}-none"]}, *TWO,
        **{"topics.{t}-a.head_seq": 0, "topics.{t}-b.count": 0, "missing": ["{t}-none"]},
    ),
    "claim for a time": good(200, "POST", T + "/claim", {"node": "w", "lease_ms": 5000}, QUEUE,
                             NODES, **{"claimed.0.lease_ms": 5000, "claimed.0.deliveries": 1,
                                       "claimed.0.$tag": "t:0", "claimed.0.meta": {"k": "0"}}),
    "claim for too short a time": good(200, "POST", T + "/claim", {"node": "w", "lease_ms": 1},
                                       QUEUE, THREE, **{"claimed.0.lease_ms": 100}),
    "claim for too long a time": good(200, "POST", T + "/claim", {"node": "w", "lease_ms": 10**12},
                                      QUEUE, THREE, **{"claimed.0.lease_ms": 86_400_000}),
    "ack of a stale lease": good(
        200, "POST", T + "/ack", {"node": "w", "seqs": [1, 2], "lease_ids": [1, 2]}, *LEASED,
        acked=0, skipped=[1, 2], in_flight=2,
    ),
    "ack of a stale lease by its string": good(
        200, "POST", T + "/ack", {"node": "w", "seqs": [1, 2], "lease_ids": ["1", 2]}, *LEASED,
        acked=0, skipped=[1, 2], in_flight=2,
    ),
    "ack without a fence": good(
        200, "POST", T + "/ack", {"node": "w", "seqs": [1, 2], "lease_ids": []}, *LEASED,
        acked=2, skipped=[], in_flight=0,
    ),
    "ack of a thousand": good(200, "POST", T + "/ack", {"node": "w", "seqs": [1] * 1000}, *LEASED,
                              in_flight=1),
    "nack for later": good(
        200, "POST", T + "/nack",
        {"node": "w", "seqs": [1, 2], "lease_ids": [1, 2], "delay_ms": 60_000}, *LEASED,
        nacked=0, skipped=[1, 2],
    ),
    "nack with a delay": good(200, "POST", T + "/nack",
                              {"node": "w", "seqs": [1], "delay_ms": 60_000}, *LEASED,
                              nacked=1, ready=1, in_flight=1),
    "nack with an error": good(200, "POST", T + "/nack",
                               {"node": "w", "seqs": [1], "error": "disk full"}, *LEASED,
                               nacked=1, ready=2, in_flight=1),
    "jobs show the error": good(
        200, "GET", T + "/jobs?state=ready&max=1", None, *LEASED,
        ("POST", T + "/nack", {"node": "w", "seqs": [1], "error": "x" * 2000}),
        **{"jobs.0.$seq": 1, "jobs.0.error": "x" * 1024, "jobs.0.deliveries": 1},
    ),
    "nack with the queue's delay": good(200, "POST", T + "/nack",
                                        {"node": "w", "seqs": [1], "delay_ms": None}, *LEASED,
                                        nacked=1, ready=1, in_flight=1),
    "release under a stale lease": good(
        200, "POST", T + "/release", {"node": "w", "seqs": [1], "lease_ids": [1]}, *LEASED,
        released=0, skipped=[1], reasons=["restarted"],
    ),
    "release of a stream": good(200, "POST", T + "/release", {"node": "w", "stream": "9999"},
                                *LEASED, released=0, skipped=[]),
    "extend of a stream": good(200, "POST", T + "/extend", {"node": "w", "stream": "9999"},
                               *LEASED, extended=0, deadlines={}),
    "extend for a time": good(
        200, "POST", T + "/extend",
        {"node": "w", "seqs": [1], "lease_ids": [1], "lease_ms": 60_000}, *LEASED,
        extended=0, skipped=[1], deadlines={},
    ),
    "remove with force": good(200, "POST", T + "/remove", {"seqs": [1, 3, 3], "force": True},
                              *LEASED, removed=2, skipped=[3], ready=0, in_flight=1),
    "jobs of a state": good(200, "GET", T + "/jobs?state=ready&max=1", None, *LEASED,
                            **{"jobs.0.$seq": 3, "jobs.0.state": "ready"}),
    "redrive of dead jobs": good(200, "POST", T + "/redrive", {}, *DEAD, moved=2),
    "redrive of a tag": good(200, "POST", T + "/redrive", {"match": "t:1"}, *DEAD, moved=1),
    "redrive of seqs": good(200, "POST", T + "/redrive", {"seqs": [2, 9]}, *DEAD, moved=1),
    "redrive of a few": good(200, "POST", T + "/redrive", {"limit": 1}, *DEAD, moved=1),
    "routers behind a cursor": good(
        200, "GET", "/v0/routers?prefix={t}&page_size=1&cursor={next_cursor}", None, *ROUTES_OF,
        ("GET", "/v0/routers?prefix={t}&page_size=1", None), **{"routers.0.router": "{t}-2"},
    ),
    "routers to a topic": good(200, "GET", "/v0/routers?source={t}&dest={t}-y", None, *ROUTES_OF,
                               **{"routers.0.router": "{t}-2"}),
    "router put with all": good(
        201, "PUT", R, {"source": "{t}", "dest": "{t}-d", **ALL_OF_ROUTER}, THREE,
        ("PUT", T + "-d", {}), **ALL_OF_ROUTER,
    ),
    "router put of defaults": good(
        200, "PUT", R, {"source": "{t}", "dest": "{t}-d", "filter": None}, THREE,
        ("PUT", T + "-d", {}),
        ("PUT", R, {"source": "{t}", "dest": "{t}-d", **ALL_OF_ROUTER}),
        created=False, filter=None, preserve_tag=True, guarantee="at_least_once",
    ),
    "watch create with all": good(
        200, "POST", "/v0/watch?lenient=true",
        {"topics": {"{t}": {"from_seq": 1}, "{t}-none": {}}, "patterns": ["{t}.*"], "limit": 5,
         "max_batch_bytes": 10**12, "heartbeat_ms": 1, "include_tags": False, "include_meta": False,
         "include_data": False, "node": ["n0"], "match": "t:1", "consistency": "strong"},
        NODES, **{"topics.{t}.from_seq": 1, "topics.{t}.head_seq": 3},
    ),
    "watch of an earlier place": stream("/v0/watch?topic={t}&from_seq=earliest", "record caught-up",
                                        NODES),
    "watch of the last": stream("/v0/watch?topic={t}&tail=1", "record caught-up", NODES),
    "watch of what may come": stream("/v0/watch?topic={t}&topic={t}-none&lenient&tail=2",
                                     "record caught-up", NODES),
    "watch of a few at a time": watched("limit=2", "record record caught-up"),
    "watch of no limit": watched("limit=0&max_batch_bytes=0", "record caught-up"),
    "watch of a byte at a time": watched("max_batch_bytes=1", "record record record caught-up"),
    "watch of all but a node": watched("node=n0&node=n1", "record caught-up"),
    "watch of a match": watched("match=t:1*", "record caught-up"),
    "watch of what is synced": watched("consistency=strong", "record caught-up", NODES,
                                       ("POST", "/v0/sync", None)),
    "watch of little": watched(
        "include_tags=false&include_meta=false&include_data=false&heartbeat_ms=999999",
        "record caught-up",
    ),
    "work for a time": stream(T + "/work?node=w&max=2&lease_ms=5000&heartbeat_ms=1",
                              "stream job job", QUEUE, THREE),
    "consumers behind a cursor": good(
        200, "GET", "/v0/consumers?topic={t}&prefix=c&page_size=1&cursor={next_cursor}", None,
        THREE, CONSUMER, ("PUT", C + "2", {}),
        ("GET", "/v0/consumers?topic={t}&page_size=1", None), **{"consumers.0.consumer": "c2"},
    ),
    "consumers of a topic behind a cursor": good(
        200, "GET", T + "/consumers?prefix=c&page_size=1&cursor={next_cursor}", None,
        THREE, CONSUMER, ("PUT", C + "2", {}),
        ("GET", T + "/consumers?page_size=1", None), **{"consumers.0.consumer": "c2"},
    ),
    "consumer put with all": good(
        201, "PUT", C, {"mode": "at_least_once", "start": "end", "auto_commit": True}, THREE,
        auto_commit=True, cursor=3, mode="at_least_once",
    ),
    "consumer read of bytes": read({"max_bytes": 1}, next_from_seq=1),
    "consumer read of a match": read({"match": ["tag", "Eq", "t:2"], "fail_if_busy": True},
                                     next_from_seq=3, **{"records.0.data": 2}),
    "consumer peek": good(200, "POST", C + "/read", {"max_records": 1, "wait_ms": 1}, NODES,
                          CONSUMER, ("POST", C + "/read", {"checkpoint": False}), next_from_seq=1),
    "consumer peek again": read({"checkpoint": False}, next_from_seq=3),
    "consumer put of a reader": good(200, "PUT", C, {"reader": "old"}, THREE, CONSUMER,
                                     *TAKEN_OVER, cursor=0),
    "consumer read of a reader": read({"reader": "r", "max_records": 1}, next_from_seq=1),
    "consumer read of a reader's position": good(
        200, "POST", C + "/read", {"reader": "new", "after": 2}, THREE, CONSUMER, *TAKEN_OVER,
        next_from_seq=3, **{"records.0.data": 2},
    ),
    "consumer commit of a reader": good(200, "POST", C + "/commit", {"seq": 1, "reader": "new"},
                                        THREE, CONSUMER, *TAKEN_OVER, cursor=1),
    "consumer seek of a reader": good(200, "POST", C + "/seek", {"seq": 1, "reader": "new"},
                                      THREE, CONSUMER, *TAKEN_OVER, cursor=1),
    "consumer seek of a seq": good(200, "POST", C + "/seek", {"seq": 2}, THREE, CONSUMER, cursor=2),
    "consumer seek of a time": good(200, "POST", C + "/seek", {"ts": 2**42}, THREE, CONSUMER,
                                    cursor=3),
    "txn with all": good(
        200, "POST", "/v0/txn", {**rows(1), **WORK, "writer": "{t}", "epoch": 4}, *WORKED,
        **{"topics.{t}.last_seq": 1},
    ),
    "txn at a head": good(
        200, "POST", "/v0/txn",
        {"appends": [{"topic": "{t}", "node": "n", "expect_head": 3, "records": [{"data": 1}]}]},
        THREE, **{"topics.{t}.first_seq": 4},
    ),
    "writers behind a cursor": good(
        200, "GET", "/v0/txn?prefix={t}&page_size=1&cursor={next_cursor}", None,
        *(("POST", "/v0/txn", rows(1, writer="{t}-" + name)) for name in "ab"),
        ("GET", "/v0/txn?prefix={t}&page_size=1", None), **{"writers.0.writer": "{t}-b"},
    ),
    "stage for a topic": good(200, "POST", X + "/stage/s?part=3&topic={t}", rows(1, 2), staged=2),
    "commit with all": good(200, "POST", X + "/commit",
                            {"epoch": 1, "stages": [{"id": "s", "parts": 1}], "query": "q", **WORK},
                            *STAGES, *WORKED, **{"topics.{t}.last_seq": 2}),
}  # fmt: skip


MORE_REFUSED: dict[str, Case] = {
    "an event of a session": Case(
        400, "invalid_request", "GET", "/v0/watch?topic={t}&from_seq=0",
        headers={"Last-Event-ID": "s1"}, before=(THREE,), says="session",
    ),
    "65 topics": Case(400, "invalid_request", "GET",
                      "/v0/watch?lenient&" + "&".join(f"topic=a{n}" for n in range(65))),
    "no topic": Case(400, "invalid_request", "GET", "/v0/watch"),
    "no worker": Case(400, "invalid_request", "GET", T + "/work", before=(QUEUE,)),
    "claim of none": Case(400, "invalid_request", "POST", T + "/claim", {"node": "w", "max": 0},
                          before=(QUEUE,)),
    "claim of a long name": Case(400, "invalid_request", "POST", T + "/claim", {"node": "w" * 129},
                                 before=(QUEUE,)),
    "redrive of none": Case(400, "invalid_request", "POST", T + "/redrive", {"limit": 0},
                            before=(QUEUE,)),
    "dead letters to itself": Case(400, "invalid_request", "PUT", T, {"dead_letter": "{t}"}),
    "dead letters to no name": Case(400, "invalid_request", "PUT", T, {"dead_letter": "a b"}),
    "too many keys of metadata": Case(
        400, "invalid_request", "POST", T,
        {"records": [{"data": 1, "meta": {str(n): "" for n in range(65)}}]}, says="64",
    ),
    "data twice": Case(400, "invalid_request", "POST", T,
                       {"records": [{"data": 1, "data_b64": "AA=="}]}),
    "an empty key": Case(400, "invalid_request", "POST", T, one(idempotency_key="")),
    "a long key": Case(400, "invalid_request", "POST", T, one(idempotency_key="x" * 257)),
    "a long key of the header": Case(400, "invalid_request", "POST", T, one(),
                                     {"Idempotency-Key": "x" * 257}),
    "both starts": Case(400, "invalid_request", "POST", T + "/diff", {"from_seq": 1, "tail": 1},
                        before=(THREE,), says="tail"),
    "a page back from nowhere": Case(400, "invalid_request", "POST", T + "/diff",
                                     {"before_seq": 1}, before=(THREE,), says="tail"),
    "65 nodes": Case(400, "invalid_request", "POST", T + "/diff",
                     {"node": [str(n) for n in range(65)]}, before=(THREE,), says="64"),
    "leases of others": Case(400, "invalid_request", "POST", T + "/ack",
                             {"node": "w", "seqs": [1, 2], "lease_ids": [1]}, before=(QUEUE,)),
    "commit beyond the head": Case(400, "invalid_request", "POST", C + "/commit", {"seq": 9},
                                   before=(THREE, CONSUMER)),
    "commit of too many": Case(
        400, "batch_too_large", "POST", X + "/commit",
        {"epoch": 1, "stages": [{"id": "s", "parts": 2, "records": 2000}]},
        before=tuple(("POST", X + f"/stage/s?part={part}", rows(*range(1000))) for part in (0, 1)),
    ),
    "a writer and a key": Case(400, "invalid_request", "POST", "/v0/txn",
                               rows(1, writer="{t}", idempotency_key="k"), says="not both"),
    "seek of two": Case(400, "invalid_request", "POST", C + "/seek", {"seq": 1, "to": "end"},
                        before=(THREE, CONSUMER)),
    "a line that is no JSON": Case(400, "invalid_request", "POST", T, b'1\n{"x":\n',
                                   {"Content-Type": "application/x-ndjson"}, says="records[1]"),
    "too many lines": Case(400, "batch_too_large", "POST", T, b"1\n" * 1001,
                           {"Content-Type": "application/x-ndjson"}),
    "a large line": Case(400, "record_too_large", "POST", T, b"1\n" + b"2" * 10_001,
                         {"Content-Type": "application/x-ndjson"}, says="1"),
    "large bytes": Case(400, "record_too_large", "POST", T, b"x" * 10_001,
                        {"Content-Type": "application/octet-stream"}),
    "no bytes": Case(400, "invalid_request", "POST", T, None),
    "a long tag of the query": Case(400, "record_too_large", "POST", T + "?tag=" + "x" * 257, b"1",
                                    {"Content-Type": "application/x-ndjson"}),
    "a long node of all": Case(400, "invalid_request", "POST", T, one(node="x" * 129), says="node"),
    "a long node": Case(400, "record_too_large", "POST", T,
                        {"records": [{"data": 1, "node": "x" * 129}]}),
    "a position of no reader": Case(400, "invalid_request", "POST", C + "/read", {"after": 1},
                                    before=(THREE, CONSUMER), says="reader"),
    "a long reader": Case(400, "invalid_request", "PUT", C, {"reader": "x" * 65}, before=(THREE,),
                          says="1 to 64"),
    "a consumer's bad name": Case(400, "invalid_request", "PUT", T + "/consumers/a%20b",
                                  before=(THREE,)),
    "a consumer's long name": Case(400, "invalid_request", "PUT", T + "/consumers/" + "x" * 256,
                                   before=(THREE,)),
    "a router's bad name": Case(400, "invalid_request", "PUT", "/v0/routers/-x",
                                {"source": "{t}", "dest": "{t}-d"}, before=(THREE,)),
    "a router to no name": Case(400, "invalid_request", "PUT", R, {"source": "{t}", "dest": "a b"},
                                before=(THREE,)),
    "a watch of no name": Case(400, "invalid_request", "POST", "/v0/watch?lenient",
                               {"topics": ["a b"]}),
    "a pattern in the middle": Case(400, "invalid_request", "POST", "/v0/watch",
                                    {"patterns": ["a*b"]}),
    "a group of a long name": Case(400, "record_too_large", "POST", T,
                                   {"records": [{"data": 1, "group": "g" * 129}]}, before=(QUEUE,)),
    "no lines": Case(400, "invalid_request", "POST", T, b"\n\n",
                     {"Content-Type": "application/x-ndjson"}, says="expected NDJSON"),
    "an empty body of lines": Case(400, "invalid_request", "POST", T, b"",
                                   {"Content-Type": "application/x-ndjson"},
                                   says="expected NDJSON, one JSON value a line"),
    "an empty body of columns": Case(400, "invalid_request", "POST", T, b"",
                                     {"Content-Type": "application/vnd.apache.arrow.stream"},
                                     says="expected an Arrow IPC stream"),
    "an empty body of JSON": Case(400, "invalid_request", "POST", T, b"",
                                  {"Content-Type": "application/json"}, says="not valid JSON"),
    "what is no gzip": Case(400, "invalid_request", "POST", T, b"x",
                            {"Content-Type": "application/json", "Content-Encoding": "gzip"}),
    "brotli": Case(415, "unsupported_media_type", "POST", T, b"x",
                   {"Content-Type": "application/json", "Content-Encoding": "br"}),
    "another charset": Case(415, "unsupported_media_type", "POST", T, one(),
                            {"Content-Type": "application/json; charset=latin-1"}),
    "columns as lines": Case(415, "unsupported_media_type", "POST", T + "/diff", b"1",
                             {"Content-Type": "application/x-ndjson"}, (THREE,)),
    "a read as text": Case(406, "not_acceptable", "POST", T + "/diff", {},
                           {"Accept": "text/plain, application/json;q=0"}, (THREE,)),
    "a stream as JSON": Case(406, "not_acceptable", "GET", "/v0/watch?topic={t}", None,
                             {"Accept": "application/json"}, (THREE,)),
}  # fmt: skip
