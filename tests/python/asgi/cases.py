"""What each route answers: requests that prepare, the one that is looked at, and its outcome.

The tests of conformance send all of it through every protocol. A route of the table without its
cases here fails them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Request = tuple[str, str, Any]


def one(data: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"records": [{"data": data}], **fields}


@dataclass(frozen=True)
class Case:
    """Requests that prepare, and the one whose answer is known. `{t}` is a topic of its own.

    `code` is the error's, `detail` fields of its detail; without one, `has` are fields of the
    answer with their values, by the way to them (`topics.0.topic`; `None` is for one that is
    absent, too), and `events` those that a stream begins with: their data is the answer then.
    """

    status: int
    code: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    before: tuple[Request, ...] = ()
    says: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    has: dict[str, Any] = field(default_factory=dict)
    events: tuple[str, ...] = ()


def good(
    status: int, method: str, path: str, body: Any = None, /, *before: Request, **has: Any
) -> Case:
    return Case(status, "", method, path, body, before=before, has=has)


def stream(path: str, events: str, *before: Request) -> Case:
    return Case(200, "", "GET", path, before=before, events=tuple(events.split()))


T = "/v0/topics/{t}"
C = T + "/consumers/c"
R = "/v0/routers/{t}"
THREE = ("POST", T, {"records": [{"data": n, "tag": f"t:{n}"} for n in range(3)]})
QUEUE = ("PUT", T, {"type": "queue", "lease_ms": 60_000})
CONSUMER = ("PUT", C, {})
TAKEN_OVER = (
    ("POST", C + "/read", {"reader": "old"}),
    ("POST", C + "/read", {"reader": "new", "max_records": 1}),
)
HELD = {"node": "w", "seqs": [1]}
CLAIMED = (QUEUE, THREE, ("POST", T + "/claim", {"node": "w", "max": 2}))
ROUTER = ("PUT", R, {"source": "{t}", "dest": "{t}-d"})
MANY = {"node": "w", "seqs": [1] * 1001}
X = "/v0/txn/{t}"
PART = X + "/stage/s?part=0"
SMALL = ("PUT", T, {"cap_records": 2, "discard": "reject"})


def rows(*data: Any, **fields: Any) -> dict[str, Any]:
    """The appends of a transaction to the topic."""
    return {"appends": [{"topic": "{t}", "records": [{"data": d} for d in data]}], **fields}


def publish(epoch: int = 1, **work: Any) -> dict[str, Any]:
    return {"epoch": epoch, "stages": [{"id": "s", "parts": 1, "records": 2}], **work}


OWNER = {"owner": "0123456789abcdef"}
STAGED = ("POST", PART, rows(1, 2))

GOOD: dict[str, Case] = {
    "list": good(200, "GET", "/v0/topics?prefix={t}", None, THREE),
    "list of a page": good(200, "GET", "/v0/topics?prefix={t}&page_size=1", None, THREE),
    "create": good(201, "PUT", T, {"ttl_ms": 5000}, created=True),
    "create without a body": good(201, "PUT", T, created=True),
    "update": good(200, "PUT", T, {"ttl_ms": 5000}, ("PUT", T, {}), created=False),
    "state": good(200, "GET", T, None, THREE, head_seq=3, count=3, type="log"),
    "state of a queue": good(200, "GET", T + "?touch=false", None, *CLAIMED, type="queue"),
    "head": Case(200, "", "HEAD", "/v0/topics"),
    "drop": good(200, "DELETE", T, None, THREE, deleted=True),
    "drop of nothing": good(200, "DELETE", T, deleted=False),
    "drop if empty": good(200, "DELETE", T + "?if_empty=true", None, ("PUT", T, {}), deleted=True),
    "first write": good(201, "POST", T, one({"é": [1, None]}), created=True, last_seq=1),
    "write": good(200, "POST", T + "?return_seqs=true", one(), THREE, seqs=[4], head_seq=4),
    "write twice": good(200, "POST", T, one(idempotency_key="k"),
                        ("POST", T, one(idempotency_key="k")), deduped=True),
    "write at a head": good(200, "POST", T, one(expect_head=3), THREE, last_seq=4),
    "write of lines": Case(201, "", "POST", T + "?tag=a", b'1\n{"x":2}\n',
                           {"Content-Type": "application/x-ndjson"}, has={"count": 2}),
    "write of bytes": Case(201, "", "POST", T + "?node=n&key=k", b"\x00\xff",
                           {"Content-Type": "application/octet-stream"}, has={"count": 1}),
    "an empty octet body": Case(201, "", "POST", T, b"",
                                {"Content-Type": "application/octet-stream"}, has={"count": 1}),
    "diff": good(200, "POST", T + "/diff", {"from_seq": 1}, THREE, next_from_seq=3, lag=0),
    "diff without a body": good(200, "POST", T + "/diff", None, THREE, caught_up=True),
    "diff of a tag": good(200, "POST", T + "/diff", {"match": "t:1", "include_tags": True}, THREE),
    "diff of a tail": good(200, "POST", T + "/diff", {"tail": 1}, THREE, next_from_seq=3),
    "diff that waits": good(200, "POST", T + "/diff", {"from_seq": 3, "wait_ms": 1}, THREE,
                            records=[]),
    "diff of a loss": good(200, "POST", T + "/diff", {},
                           ("PUT", T, {"cap_records": 1}), THREE, earliest_seq=3),
    "delete": good(200, "POST", T + "/delete", {"before_seq": 3}, THREE, deleted=2),
    "delete of a tag": good(200, "POST", T + "/delete", {"match": ["tag", "Glob", "t:*"]}, THREE,
                            deleted=3),
    "scan": good(200, "POST", T + "/scan", {"from_seq": 1, "columns": ["seq", "data"]}, THREE),
    "split": good(200, "POST", T + "/split", {"max_records": 2}, THREE, to_seq=3, records=3),
    "segments": good(200, "GET", T + "/segments", None, THREE, head_seq=3),
    "txn": good(200, "POST", "/v0/txn", rows(1, 2), committed=True, deduped=False),
    "txn twice": good(200, "POST", "/v0/txn", rows(1, idempotency_key="{t}"),
                      ("POST", "/v0/txn", rows(1, idempotency_key="{t}")), deduped=True),
    "writers": good(200, "GET", "/v0/txn?prefix={t}", None, STAGED),
    "writer": good(200, "GET", X, None, STAGED, writer="{t}", last_epoch=None),
    "stage": good(200, "POST", PART, rows(1, 2), staged=2, deduped=False),
    "stage twice": good(200, "POST", PART, rows(1, 2), STAGED, staged=2, deduped=True),
    "abort": good(200, "DELETE", X + "/stage/s", None, STAGED, aborted=True),
    "commit": good(200, "POST", X + "/commit", publish(), STAGED, committed=True, deduped=False),
    "commit twice": good(200, "POST", X + "/commit", publish(), STAGED,
                         ("POST", X + "/commit", publish()), deduped=True),
    "forget": good(200, "DELETE", X, None, STAGED, forgotten=True),
    "hand over": good(200, "PUT", X + "/owner", OWNER, STAGED, writer="{t}", **OWNER),
    "forget of none": good(200, "DELETE", X, None, forgotten=False),
    "trim": good(200, "POST", T + "/trim", {"to_count": 1}, THREE, deleted=2, count=1, head_seq=3),
    "seek": good(200, "POST", T + "/seek", {"ts": 1}, THREE, seq=0),
    "states": good(200, "POST", "/v0/state", {"topics": ["{t}", "{t}-none"]}, THREE,
                   missing=["{t}-none"]),
    "claim": good(200, "POST", T + "/claim", {"node": "w", "max": 9}, QUEUE, THREE, count=3),
    "claim of nothing": good(200, "POST", T + "/claim", {"node": "w", "wait_ms": 1}, QUEUE,
                             claimed=[]),
    "ack": good(200, "POST", T + "/ack", HELD, *CLAIMED, acked=1, skipped=[]),
    "nack": good(200, "POST", T + "/nack", HELD, *CLAIMED, nacked=1, ready=2),
    "release": good(200, "POST", T + "/release", {**HELD, "seqs": [1, 3]}, *CLAIMED,
                    released=1, skipped=[3], reasons=["ended"], ready=2),
    "extend": good(200, "POST", T + "/extend", {**HELD, "seqs": [1, 3]}, *CLAIMED,
                   extended=1, skipped=[3]),
    "jobs": good(200, "GET", T + "/jobs?state=leased", None, *CLAIMED),
    "remove": good(200, "POST", T + "/remove", {"seqs": [1, 3, 9]}, *CLAIMED,
                   removed=1, skipped=[1, 9], ready=0, in_flight=2),
    "promote": good(200, "POST", T + "/promote", {"seqs": [1, 4]}, *CLAIMED,
                    ("POST", T, {"records": [{"data": 4, "delay_ms": 60_000}]}),
                    promoted=1, skipped=[1], ready=2),
    "redrive": good(200, "POST", T + "/redrive", {"dry_run": True}, QUEUE, moved=0, dry_run=True),
    "redrive to a log": good(
        200, "POST", T + "/redrive", {"to": "{t}-l"},
        ("PUT", T + "-q", {"type": "queue", "max_deliveries": 1, "dead_letter": "{t}"}),
        ("POST", T + "-q", one()),
        ("POST", T + "-q/claim", {"node": "w"}),
        ("POST", T + "-q/nack", HELD),
        ("POST", T + "-q/release", HELD),
        ("POST", T + "-q/claim", {"node": "w"}),
        ("POST", T + "-l", one()),
        moved=1,
    ),
    "routers": good(200, "GET", "/v0/routers?prefix={t}", None, THREE, ROUTER),
    "router put": good(201, "PUT", R, {"source": "{t}", "dest": "{t}-d"}, THREE, created=True),
    "router put again": good(200, "PUT", R, {"source": "{t}", "dest": "{t}-d"}, THREE, ROUTER,
                             created=False),
    "router": good(200, "GET", R, None, THREE, ROUTER, source="{t}", stopped_by=None),
    "router drop": good(200, "DELETE", R, None, THREE, ROUTER, deleted=True),
    "watch create": good(200, "POST", "/v0/watch", {"topics": {"{t}": {"tail": 1}}}, THREE,
                         session_ttl_ms=300_000),
    "watch": stream("/v0/watch/{wid}", "record caught-up", THREE,
                    ("POST", "/v0/watch", {"topics": {"{t}": {"from_seq": 1}}})),
    "watch end": good(200, "DELETE", "/v0/watch/{wid}", None, THREE,
                      ("POST", "/v0/watch", {"topics": ["{t}"]}), ended=True),
    "watch without a session": stream("/v0/watch?topic={t}&from_seq=0", "record caught-up", THREE),
    "watch of a tail": stream("/v0/watch?topic={t}", "caught-up", THREE),
    "watch of a loss": stream("/v0/watch?topic={t}&from_seq=0&limit=1", "tombstone record",
                              ("PUT", T, {"cap_records": 1}), THREE),
    "work": stream(T + "/work?node=w&max=2", "stream job job", QUEUE, THREE),
    "consumers": good(200, "GET", "/v0/consumers?topic={t}", None, THREE, CONSUMER),
    "consumers of a topic": good(200, "GET", T + "/consumers", None, THREE, CONSUMER),
    "consumer put": good(201, "PUT", C, {"start": "end"}, THREE, created=True, cursor=3),
    "consumer put again": good(200, "PUT", C, None, THREE, CONSUMER, created=False),
    "consumer": good(200, "GET", C, None, THREE, CONSUMER, cursor=0, lag=3),
    "consumer of a topic with deletes": good(
        200, "GET", C, None, THREE, CONSUMER, ("POST", T + "/delete", {"seqs": [1, 3]}),
        cursor=0, lag=1,
    ),
    "consumer with nothing left": good(
        200, "GET", C, None, THREE, CONSUMER, ("POST", T + "/delete", {"before_seq": 4}),
        cursor=0, lag=0, lag_ms=0,
    ),
    "diff of what deletes left": good(
        200, "POST", T + "/diff", {"from_seq": 0, "limit": 1}, THREE,
        ("POST", T + "/delete", {"seqs": [2]}), next_from_seq=2, lag=1,
    ),
    "consumer drop": good(200, "DELETE", C, None, THREE, CONSUMER, deleted=True),
    "consumer read": good(200, "POST", C + "/read", {"max_records": 2}, THREE, CONSUMER,
                          next_from_seq=2, lag=1),
    "consumer commit": good(200, "POST", C + "/commit", {"seq": 2}, THREE, CONSUMER, cursor=2),
    "consumer seek": good(200, "POST", C + "/seek", {"to": "end"}, THREE, CONSUMER, cursor=3),
    "sync": good(200, "POST", "/v0/sync", synced=True),
    "sync of a topic": good(200, "POST", "/v0/sync", {"topic": "{t}"}, THREE, synced=True),
    "checkpoint": good(200, "POST", "/v0/admin/checkpoint", checkpointed=True),
    "backup": good(200, "POST", "/v0/admin/backup", {"dir": "{t}"}, dir="{t}", fetched=0),
    "verify": good(200, "POST", "/v0/admin/verify", ok=True, problems=[]),
    "metrics as text": Case(200, "", "GET", "/v0/metrics", headers={"Accept": "text/plain"}),
    "metrics at the root": Case(200, "", "GET", "/metrics"),
    "metrics as JSON": Case(200, "", "GET", "/v0/metrics", headers={"Accept": "application/json"}),
    "openapi": good(200, "GET", "/v0/openapi.json", openapi="3.1.0"),
    "key": good(200, "GET", "/v0/key", scopes=["read", "write", "delete", "admin"], prefixes=[]),
    "root": good(302, "GET", "/"),
    "console": good(200, "GET", "/console"),
    "console module": good(200, "GET", "/console/app.js"),
    "console style": good(200, "GET", "/console/console.css"),
    **{path: good(200, "GET", path, status="ok") for path in ("/v0/health", "/healthz")},
    **{path: good(200, "GET", path, status="ready") for path in ("/v0/ready", "/readyz")},
}  # fmt: skip


def unknown(method: str, path: str, body: Any = None) -> Case:
    return Case(404, "topic_not_found", method, path, body)


def no_queue(method: str, path: str, body: Any = None, *before: Request) -> Case:
    return Case(409, "not_a_queue", method, path, body, before=(THREE, *before))


def no_consumer(method: str, path: str, body: Any = None) -> Case:
    return Case(404, "consumer_not_found", method, path, body, before=(THREE,))


def fenced(verb: str, body: dict[str, Any]) -> Case:
    """A call of the reader from which another one took the consumer over."""
    before = (THREE, CONSUMER, *TAKEN_OVER)
    return Case(409, "consumer_fenced", "POST", f"{C}/{verb}", {"reader": "old", **body},
                before=before, says="open a new handle")  # fmt: skip


def refusals_of_work(path: str, body: dict[str, Any], *before: Request) -> dict[str, Case]:
    """What both ways of a transaction are refused for."""
    held = {"queue": "{t}", "node": "w", "seqs": [1], "lease_ids": [1]}
    cursor = {"topic": "{t}-in", "consumer": "c", "seq": 1}
    queue = ("PUT", "/v0/topics/{t}-q", {"type": "queue"})
    log = ("POST", "/v0/topics/{t}-in", one())
    consumer = "/v0/topics/{t}-in/consumers/c"
    taken_over = (
        ("PUT", consumer, {}),
        *(("POST", consumer + "/read", {"reader": reader}) for reader in ("old", "new")),
    )
    made = {
        "head_mismatch": (409, {"expect_heads": {"{t}": 9}}, ()),
        "topic_not_found": (404, {"commits": [cursor]}, ()),
        "consumer_not_found": (404, {"commits": [cursor]}, (log,)),
        "consumer_fenced": (409, {"commits": [cursor | {"reader": "old"}]}, (log, *taken_over)),
        "not_a_queue": (409, {"acks": [held | {"queue": "{t}-in"}]}, (log,)),
        "lease_lost": (409, {"acks": [held | {"queue": "{t}-q"}]}, (queue,)),
    }
    return {
        f"{code} of {path}": Case(
            status, code, "POST", path, body | work, before=(*before, *prepared)
        )
        for code, (status, work, prepared) in made.items()
    }


COMMIT = X + "/commit"
LATE = ("POST", "/v0/txn", rows(1, writer="{t}", epoch=5))

MORE_REFUSALS: dict[str, Case] = {
    "backup without a directory": Case(400, "invalid_request", "POST", "/v0/admin/backup", {}),
    "backup elsewhere": Case(
        400, "invalid_request", "POST", "/v0/admin/backup", {"dir": "../x"}, says="backup_dir"
    ),
    "backup into a name with NUL": Case(
        400, "invalid_request", "POST", "/v0/admin/backup", {"dir": "a\0b"}, says="NUL"
    ),
    "backup into a long name": Case(
        400, "invalid_request", "POST", "/v0/admin/backup", {"dir": "a" * 300}, says="too long"
    ),
    "backup into a long path": Case(
        400, "invalid_request", "POST", "/v0/admin/backup", {"dir": "a/" * 2000}, says="too long"
    ),
    "scan unknown": unknown("POST", T + "/scan", {}),
    "split unknown": unknown("POST", T + "/split", {}),
    "segments unknown": unknown("GET", T + "/segments"),
    **refusals_of_work("/v0/txn", rows(1)),
    **refusals_of_work(COMMIT, publish(), STAGED),
    "txn of an old epoch": Case(409, "stale_epoch", "POST", "/v0/txn",
                                rows(2, writer="{t}", epoch=4), before=(LATE,)),
    "txn of too much": Case(
        422, "topic_full", "POST", "/v0/txn", rows(1, 2), before=(SMALL, ("POST", T, one()))
    ),
    "txn of too many": Case(400, "batch_too_large", "POST", "/v0/txn", rows(*range(1001))),
    "txn too large": Case(400, "record_too_large", "POST", "/v0/txn", rows("x" * 10_001)),
    "another txn of the key": Case(
        409, "idempotency_mismatch", "POST", "/v0/txn", rows(2, idempotency_key="{t}"),
        before=(("POST", "/v0/txn", rows(1, idempotency_key="{t}")),),
    ),
    "no writer": Case(404, "txn_not_found", "GET", X),
    "no writer to hand over": Case(404, "txn_not_found", "PUT", X + "/owner", OWNER),
    "no label of a key": Case(400, "invalid_request", "PUT", X + "/owner", {"owner": "0123"},
                              says="the first 16 hex digits", detail={"field": "owner"}),
    "the last epoch": Case(400, "invalid_request", "POST", "/v0/txn",
                           rows(1, writer="{t}", epoch=2**64 - 1), says="must be below"),
    "the last epoch of a commit": Case(400, "invalid_request", "POST", X + "/commit",
                                       {"epoch": 2**64 - 1}, says="must be below"),
    "a writer's bad name": Case(400, "invalid_request", "GET", "/v0/txn/%ff"),
    "a forgotten bad name": Case(400, "invalid_request", "DELETE", "/v0/txn/%ff"),
    "an aborted bad name": Case(400, "invalid_request", "DELETE", "/v0/txn/%ff/stage/s"),
    "stage of too many": Case(400, "batch_too_large", "POST", PART, rows(*range(1001))),
    "stage too large": Case(400, "record_too_large", "POST", PART, rows("x" * 10_001)),
    "stage without a part": Case(400, "invalid_request", "POST", X + "/stage/s", rows(1)),
    "commit of what is not staged": Case(409, "txn_incomplete", "POST", COMMIT, publish()),
    "commit of an old epoch": Case(409, "stale_epoch", "POST", COMMIT, publish(4),
                                   before=(STAGED, LATE)),
    "commit of too much": Case(
        422, "topic_full", "POST", COMMIT, publish(),
        before=(SMALL, ("POST", T, one()), STAGED),
    ),
    "commit of more than fits": Case(
        400, "record_too_large", "POST", COMMIT, publish(),
        before=(("PUT", T, {"cap_records": 1, "discard": "reject"}), STAGED),
    ),
    "claim unknown": unknown("POST", T + "/claim", {"node": "w"}),
    "ack unknown": unknown("POST", T + "/ack", HELD),
    "nack unknown": unknown("POST", T + "/nack", HELD),
    "release unknown": unknown("POST", T + "/release", HELD),
    "extend unknown": unknown("POST", T + "/extend", HELD),
    "jobs unknown": unknown("GET", T + "/jobs"),
    "remove unknown": unknown("POST", T + "/remove", {"seqs": [1]}),
    "promote unknown": unknown("POST", T + "/promote", {"seqs": [1]}),
    "redrive unknown": unknown("POST", T + "/redrive", {}),
    "work unknown": unknown("GET", T + "/work?node=w"),
    "watch unknown": unknown("GET", "/v0/watch?topic={t}"),
    "session of unknown": unknown("POST", "/v0/watch", {"topics": ["{t}"]}),
    "router to unknown": unknown(
        "PUT", R, {"source": "{t}", "dest": "{t}-d", "create_dest": False}
    ),
    "consumers unknown": unknown("GET", T + "/consumers"),
    "all consumers unknown": unknown("GET", "/v0/consumers?topic={t}"),
    "consumer put unknown": unknown("PUT", C, {}),
    "consumer of unknown": unknown("GET", C),
    "consumer drop unknown": unknown("DELETE", C),
    "consumer read unknown": unknown("POST", C + "/read", {}),
    "consumer commit unknown": unknown("POST", C + "/commit", {"seq": 1}),
    "consumer seek unknown": unknown("POST", C + "/seek", {"seq": 1}),
    "no consumer": no_consumer("GET", C),
    "read of no consumer": no_consumer("POST", C + "/read", {}),
    "commit of no consumer": no_consumer("POST", C + "/commit", {"seq": 1}),
    "seek of no consumer": no_consumer("POST", C + "/seek", {"seq": 1}),
    "read of a fenced reader": fenced("read", {}),
    "commit of a fenced reader": fenced("commit", {"seq": 1}),
    "seek of a fenced reader": fenced("seek", {"to": "start"}),
    "mode of a consumer": Case(
        409, "topic_exists_incompatible", "PUT", C, {"mode": "at_most_once"},
        before=(THREE, CONSUMER),
    ),
    "write of a job to a log": no_queue("POST", T, {"records": [{"data": 1, "lane": 1}]}),
    "claim of a log": no_queue("POST", T + "/claim", {"node": "w"}),
    "ack of a log": no_queue("POST", T + "/ack", HELD),
    "nack of a log": no_queue("POST", T + "/nack", HELD),
    "release of a log": no_queue("POST", T + "/release", HELD),
    "extend of a log": no_queue("POST", T + "/extend", HELD),
    "remove of a log": no_queue("POST", T + "/remove", {"seqs": [1]}),
    "promote of a log": no_queue("POST", T + "/promote", {"seqs": [1]}),
    "jobs of a log": no_queue("GET", T + "/jobs"),
    "work of a log": no_queue("GET", T + "/work?node=w"),
    "ack of too many": Case(400, "batch_too_large", "POST", T + "/ack", MANY, before=(QUEUE,)),
    "nack of too many": Case(400, "batch_too_large", "POST", T + "/nack", MANY, before=(QUEUE,)),
    "release of too many": Case(
        400, "batch_too_large", "POST", T + "/release", MANY, before=(QUEUE,)
    ),
    "extend of too many": Case(400, "batch_too_large", "POST", T + "/extend", MANY,
                               before=(QUEUE,)),
    "remove of too many": Case(400, "batch_too_large", "POST", T + "/remove",
                               {"seqs": [1] * 1001}, before=(QUEUE,)),
    "promote of too many": Case(400, "batch_too_large", "POST", T + "/promote",
                                {"seqs": [1] * 1001}, before=(QUEUE,)),
    "redrive of too many": Case(400, "batch_too_large", "POST", T + "/redrive",
                                {"seqs": [1] * 1001}, before=(QUEUE,)),
    "router cycle": Case(
        409, "router_cycle", "PUT", R + "-back", {"source": "{t}-d", "dest": "{t}"},
        before=(THREE, ROUTER),
    ),
    "router fan-in": Case(
        409, "topic_exists_incompatible", "PUT", R + "-2", {"source": "{t}-2", "dest": "{t}-d"},
        before=(THREE, ROUTER, ("POST", "/v0/topics/{t}-2", one())),
    ),
    "no router": Case(404, "router_not_found", "GET", R),
    "end of no session": Case(404, "not_found", "DELETE", "/v0/watch/nobody"),
    "no session": Case(404, "not_found", "GET", "/v0/watch/nobody"),
    "socket without an upgrade": Case(400, "invalid_request", "GET", "/v0/ws"),
    "state of nothing": Case(400, "invalid_request", "POST", "/v0/state", {}),
    "bad resumption": Case(
        400, "invalid_request", "GET", "/v0/watch?topic={t}", headers={"Last-Event-ID": "?"},
        before=(THREE,),
    ),
    "query twice": Case(400, "invalid_request", "GET", T + "/jobs?max=x", before=(QUEUE,)),
}  # fmt: skip


REFUSALS: dict[str, Case] = {
    "not JSON": Case(400, "invalid_request", "POST", T, b"{"),
    "not an object": Case(400, "invalid_request", "POST", T, [1]),
    "no records": Case(400, "invalid_request", "POST", T, {}),
    "empty records": Case(400, "invalid_request", "POST", T, {"records": []}),
    "record without data": Case(400, "invalid_request", "POST", T, {"records": [{"tag": "x"}]}),
    "bad record names its index": Case(
        400,
        "invalid_request",
        "POST",
        T,
        {"records": [{"data": 1}, {"data": 2, "tag": 3}]},
        says="1",
    ),
    "NaN": Case(400, "invalid_request", "POST", T, b'{"records":[{"data":NaN}]}'),
    "BOM": Case(400, "invalid_request", "POST", T, b'\xef\xbb\xbf{"records":[{"data":1}]}'),
    "not UTF-8": Case(400, "invalid_request", "POST", T, b'{"records":[{"data":"\xff"}]}'),
    "too deep": Case(
        400, "invalid_request", "POST", T, b'{"records":[{"data":%b}]}' % (b"[" * 200 + b"]" * 200)
    ),
    "wrong type": Case(400, "invalid_request", "POST", T, one(sync="yes")),
    "tag too long": Case(
        400, "record_too_large", "POST", T, {"records": [{"data": 1, "tag": "x" * 257}]}
    ),
    "reserved meta": Case(
        400, "invalid_request", "POST", T, {"records": [{"data": 1, "meta": {"$x": "y"}}]}
    ),
    "bad name": Case(400, "invalid_request", "POST", "/v0/topics/.hidden", one()),
    "name with a slash": Case(400, "invalid_request", "POST", "/v0/topics/a%2Fb", one()),
    "name not UTF-8": Case(400, "invalid_request", "GET", "/v0/topics/%ff"),
    "name too long": Case(400, "invalid_request", "POST", "/v0/topics/" + "x" * 256, one()),
    "bad config value": Case(400, "invalid_request", "PUT", T, {"durability": "perhaps"}),
    "unknown config field": Case(
        400, "invalid_request", "PUT", T, {"cap_record": 5}, says="cap_record"
    ),
    "bad from_seq": Case(
        400, "invalid_request", "POST", T + "/diff", {"from_seq": -1}, before=(("POST", T, one()),)
    ),
    "delete of nothing": Case(
        400, "invalid_request", "POST", T + "/delete", {}, before=(("POST", T, one()),)
    ),
    "bad match": Case(
        400,
        "invalid_request",
        "POST",
        T + "/delete",
        {"match": ["tag", "Glob", "a*b*"]},
        before=(("POST", T, one()),),
    ),
    "trim unknown": Case(404, "topic_not_found", "POST", T + "/trim", {"to_count": 1}),
    "trim without a count": Case(
        400, "invalid_request", "POST", T + "/trim", {}, before=(("POST", T, one()),)
    ),
    "seek without ts": Case(
        400, "invalid_request", "POST", T + "/seek", {}, before=(("POST", T, one()),)
    ),
    "bad page size": Case(400, "invalid_request", "GET", "/v0/topics?page_size=x"),
    "bad cursor": Case(400, "invalid_request", "GET", "/v0/topics?cursor=%00"),
    "too many records": Case(400, "batch_too_large", "POST", T, {"records": [{"data": 1}] * 1001}),
    "record too large": Case(400, "record_too_large", "POST", T, one("x" * 10_001)),
    "record over the whole cap": Case(
        400,
        "record_too_large",
        "POST",
        T,
        one("x" * 500),
        before=(("PUT", T, {"cap_bytes": 100, "discard": "reject"}),),
    ),
    "foreign host": Case(403, "forbidden", "GET", "/v0/topics", headers={"Host": "example.com"}),
    "get unknown": Case(404, "topic_not_found", "GET", T),
    "diff unknown": Case(404, "topic_not_found", "POST", T + "/diff", {}),
    "delete unknown": Case(404, "topic_not_found", "POST", T + "/delete", {"before_seq": 1}),
    "seek unknown": Case(404, "topic_not_found", "POST", T + "/seek", {"ts": 1}),
    "sync unknown": Case(404, "topic_not_found", "POST", "/v0/sync", {"topic": "{t}"}),
    "write without create": Case(404, "topic_not_found", "POST", T, one(create=False)),
    "no such path": Case(404, "not_found", "GET", "/v1/topics"),
    "no such verb": Case(404, "not_found", "POST", T + "/frobnicate", {}),
    "wrong method": Case(405, "method_not_allowed", "GET", T + "/diff", says="POST"),
    "not acceptable": Case(
        406, "not_acceptable", "GET", "/v0/topics", headers={"Accept": "image/png"}
    ),
    "type differs": Case(
        409, "topic_exists_incompatible", "PUT", T, {"type": "queue"}, before=(("PUT", T, {}),)
    ),
    "create what exists": Case(
        409, "already_exists", "PUT", T + "?create=true", {"ttl_ms": 1}, before=(("PUT", T, {}),)
    ),
    "update what does not exist": Case(
        404, "topic_not_found", "PUT", T + "?create=false", {"ttl_ms": 1}
    ),
    "not empty": Case(
        409, "topic_not_empty", "DELETE", T + "?if_empty=true", before=(("POST", T, one()),)
    ),
    "head differs": Case(
        409, "head_mismatch", "POST", T, one(expect_head=7), before=(("POST", T, one()),), says="1"
    ),
    "key reused": Case(
        409,
        "idempotency_mismatch",
        "POST",
        T,
        one(2, idempotency_key="k"),
        before=(("POST", T, one(1, idempotency_key="k")),),
    ),
    "body over the limit": Case(413, "payload_too_large", "POST", T, one("x" * 200_001)),
    "no content type": Case(
        415, "unsupported_media_type", "POST", T, b"{}", headers={"Content-Type": ""}
    ),
    "form": Case(
        415,
        "unsupported_media_type",
        "PUT",
        T,
        b"a=b",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    ),
    "full": Case(
        422,
        "topic_full",
        "POST",
        T,
        one(),
        before=(("PUT", T, {"cap_records": 1, "discard": "reject"}), ("POST", T, one())),
    ),
    "headers too large": Case(
        431, "headers_too_large", "GET", "/v0/topics", headers={"X": "y" * 70_000}
    ),
}


# Values over a maximum clamp; what is not a value is refused.
PUT_1200: tuple[Request, ...] = tuple(
    ("POST", T, {"records": [{"data": n} for n in range(400)]}) for _ in range(3)
)
SIZES: dict[str, tuple[Case, str, int]] = {
    f"{name} {value}": (Case(200, "", method, path, body, before=before), listed, expected)
    for name, method, path, make, listed, before, values in (
        ("diff", "POST", T + "/diff", lambda v: {"limit": v}, "records", PUT_1200,
         {0: 256, 1: 1, 999: 999, 1000: 1000, 1001: 1000, 10**18: 1000}),
        ("tail", "POST", T + "/diff", lambda v: {"tail": v, "limit": 1000}, "records", PUT_1200,
         {0: 0, 1: 1, 1000: 1000, 10**15: 1000}),
        ("claim", "POST", T + "/claim", lambda v: {"node": "w", "max": v}, "claimed",
         (QUEUE, *PUT_1200), {1: 1, 999: 999, 1000: 1000, 1001: 1000, 10**15: 1000}),
        ("read", "POST", C + "/read", lambda v: {"max_records": v}, "records",
         (*PUT_1200, *PUT_1200, CONSUMER), {1: 1, 1999: 1999, 2000: 2000, 2001: 2000}),
    )
    for value, expected in values.items()
    for body in (make(value),)
}  # fmt: skip
WRONG_NUMBERS: tuple[Any, ...] = (-1, 1.5, "5", True, [], 2**64)
NUMBERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "diff": ("POST", T + "/diff", {"limit": 1, "tail": 1, "max_batch_bytes": 1, "wait_ms": 0}),
    "claim": ("POST", T + "/claim", {"max": 1, "lease_ms": 1000, "wait_ms": 0}),
    "read": ("POST", C + "/read", {"max_records": 1, "max_bytes": 1, "wait_ms": 0}),
    "watch": ("POST", "/v0/watch", {"limit": 1, "heartbeat_ms": 1, "max_batch_bytes": 1}),
}
