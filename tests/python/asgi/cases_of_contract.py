"""The rows of the contract that clients of the system before rely on, one case or more for each."""

from __future__ import annotations

from typing import Any

from .cases import QUEUE, THREE, C, Case, R, Request, T, good, one, rows, stream

TWO_TAGS: Request = (
    "POST", T, {"records": [{"data": n, "tag": tag} for n, tag in enumerate(("a:1", "a:2", "b:1"))]}
)  # fmt: skip


def session(topics: Any, **fields: Any) -> Request:
    return ("POST", "/v0/watch", {"topics": topics, **fields})


def watched(topics: Any, events: str, **data: Any) -> Case:
    """The stream of a session; `data` are fields of its first event."""
    made = stream("/v0/watch/{wid}", events, THREE, session(topics))
    return Case(**{**vars(made), "has": {f"0.{name}": value for name, value in data.items()}})


def started(topics: Any, from_seq: int, **fields: Any) -> Case:
    """A session, and the cursor at which it says that it begins."""
    return good(200, "POST", "/v0/watch", {"topics": topics, **fields}, THREE,
                **{"topics.{t}.from_seq": from_seq, "topics.{t}.head_seq": 3,
                   "topics.{t}.earliest_seq": 1})  # fmt: skip


def differs(field: str, config: dict[str, Any]) -> Case:
    return Case(409, "topic_exists_incompatible", "POST", T, one(config=config),
                before=(("PUT", T, {"cap_records": 9}),), detail={"field": field})  # fmt: skip


def router(source: str, dest: str, **fields: Any) -> dict[str, Any]:
    return {"source": source, "dest": dest, **fields}


FIRST: Request = ("PUT", R, router("{t}", "{t}-d"))
EXISTING = {"existing_source": "{t}", "existing_dest": "{t}-d"}

CONTRACT: dict[str, Case] = {
    # Writes.
    "seqs of a write": good(201, "POST", T, {"records": [{"data": 1}, {"data": 2}]}, seqs=[1, 2]),
    "seqs of a repeat": good(200, "POST", T, one(idempotency_key="k"),
                             ("POST", T, one(idempotency_key="k")), seqs=[1], deduped=True),
    "seqs of lines": Case(201, "", "POST", T, b"1\n2\n", {"Content-Type": "application/x-ndjson"},
                          has={"seqs": [1, 2]}),
    "no seqs of lines": Case(201, "", "POST", T + "?return_seqs=false", b"1\n2\n",
                             {"Content-Type": "application/x-ndjson"}, has={"seqs": None}),
    "no seqs of a write": good(201, "POST", T + "?return_seqs=false", one(), seqs=None, count=1),
    "many seqs for one that takes gzip": Case(
        201, "", "POST", T, {"records": [{"data": 1}] * 900}, {"Accept-Encoding": "gzip"},
        has={"seqs": list(range(1, 901))},
    ),
    "an empty tag and node": good(
        200, "POST", T + "/diff", {"include_tags": True},
        ("POST", T, {"records": [{"data": 1, "tag": "", "node": ""}], "node": ""}),
        **{"records.0": {"$seq": 1, "$ts": ..., "data": 1}},
    ),
    "null for every option": good(
        201, "POST", T,
        {"records": [{"data": None, "tag": None, "node": None, "meta": None, "ttl_ms": None}],
         "node": None, "idempotency_key": None, "expect_head": None, "sync": None, "create": None,
         "config": None, "disable_backpressure": None}, count=1,
    ),
    "config that differs": good(200, "POST", T, one(config={"cap_records": 5, "ttl_ms": 1}),
                                ("PUT", T, {"cap_records": 9}), created=False),
    "config that differs changes nothing": good(
        200, "GET", T, None, ("PUT", T, {"cap_records": 9}),
        ("POST", T, one(config={"cap_records": 5})), **{"config.cap_records": 9},
    ),
    "config of another type": differs("type", {"type": "queue"}),
    "config of another durability": differs("durability", {"durability": "fsync"}),
    "config of another class": differs("durability", {"durable": True, "cap_records": 5}),
    "config that agrees": good(
        200, "POST", T, one(config={"cap_records": 9}),
        ("PUT", T, {"cap_records": 9}), created=False,
    ),
    # Reads.
    "bare tag": good(200, "POST", T + "/diff", {"match": "a:1"}, TWO_TAGS,
                     **{"records.0.data": 0, "next_from_seq": 3}),
    "bare glob": good(200, "POST", T + "/diff", {"match": "a:*", "include_tags": True}, TWO_TAGS,
                      **{"records.1.$tag": "a:2", "records.0.$tag": "a:1"}),
    "bare glob of two stars": Case(400, "invalid_request", "POST", T + "/diff", {"match": "a*b*"},
                                   before=(TWO_TAGS,), says="match"),
    "bare tag with a star in it": good(200, "POST", T + "/diff", {"match": "a*1"}, TWO_TAGS,
                                       records=[]),
    "skip of an empty node": good(
        200, "POST", T + "/diff", {"node": ["", "n"]},
        ("POST", T, {"records": [{"data": 1}, {"data": 2, "node": "n"}]}), **{"records.0.data": 1},
    ),
    "a page back": good(200, "POST", T + "/diff", {"tail": 1, "before_seq": 3}, THREE,
                        **{"records.0.$seq": 2}),
    "limit 0": good(200, "POST", T + "/diff", {"limit": 0}, THREE, next_from_seq=3),
    "limit over the maximum": good(200, "POST", T + "/diff", {"limit": 10**9, "wait_ms": 10**9},
                                   THREE, next_from_seq=3),
    # Deletes.
    "delete of seqs": good(200, "POST", T + "/delete", {"seqs": [3, 1, 3, 99]}, THREE,
                           deleted=2, count=1, earliest_seq=2, head_seq=3),
    "delete of no seqs": good(200, "POST", T + "/delete", {"seqs": []}, THREE, deleted=0),
    "delete of seqs and more": Case(400, "invalid_request", "POST", T + "/delete",
                                    {"seqs": [1], "before_seq": 2}, before=(THREE,), says="seqs"),
    "delete of too many seqs": Case(400, "batch_too_large", "POST", T + "/delete",
                                    {"seqs": [1] * 1001}, before=(THREE,)),
    "delete of a bare glob": good(200, "POST", T + "/delete", {"match": "a:*"}, TWO_TAGS,
                                  deleted=2),
    # Watches.
    "named topic starts at 0": started({"{t}": {}}, 0),
    "tail of a number": started({"{t}": {"tail": 1}}, 2),
    "tail true": started({"{t}": {"tail": True}}, 3),
    "tail false": started({"{t}": {"tail": False}}, 0),
    "tail false and a cursor": started({"{t}": {"tail": False, "from_seq": 1}}, 1),
    "nulls of a named topic": started({"{t}": {"tail": None, "from_seq": None}}, 0),
    "array starts at the head": started(["{t}"], 3),
    "pattern starts at the head": good(200, "POST", "/v0/watch", {"patterns": ["{t}*"]}, THREE,
                                       **{"topics.{t}.from_seq": 3}),
    "session has its fields": good(200, "POST", "/v0/watch", {"topics": ["{t}"]}, THREE,
                                   session_ttl_ms=300_000),
    "tail of another kind": Case(400, "invalid_request", "POST", "/v0/watch",
                                 {"topics": {"{t}": {"tail": "1"}}}, before=(THREE,), says="tail"),
    "option of a named topic": Case(
        400, "invalid_request", "POST", "/v0/watch", {"topics": {"{t}": {"form_seq": 1}}},
        before=(THREE,), says="from_seq", detail={"field": "form_seq", "nearest": "from_seq"},
    ),
    "watch from a cursor": watched({"{t}": {"from_seq": 1}}, "record caught-up",
                                   from_seq=1, to_seq=3, head_seq=3),
    "watch from 0": watched({"{t}": {}}, "record caught-up", from_seq=0, to_seq=3),
    "watch of a tail of one": watched({"{t}": {"tail": 1}}, "record caught-up", from_seq=2),
    "watch of the head": watched({"{t}": {"tail": True}}, "caught-up", topic="{t}", head_seq=3),
    "watch by a query tail": stream("/v0/watch?topic={t}&tail=true", "caught-up", THREE),
    "watch by no query tail": stream("/v0/watch?topic={t}&tail=false", "caught-up", THREE),
    "watch by a bare glob": stream("/v0/watch?topic={t}&from_seq=0&match=a:*", "record caught-up",
                                   TWO_TAGS),
    "watch by a glob of two stars": Case(400, "invalid_request", "GET",
                                         "/v0/watch?topic={t}&match=a*b*", before=(THREE,)),
    "watch of a gap": Case(
        200, "", "GET", "/v0/watch?topic={t}&from_seq=0",
        before=(("PUT", T, {"cap_records": 1}), THREE), events=("tombstone", "record"),
        has={"0.reason": "from_seq_too_old", "0.gap_from": 1, "0.gap_to": 2, "0.earliest_seq": 3,
             "0.head_seq": 3, "1.from_seq": 2, "1.to_seq": 3},
    ),
    "watch of unknown topics": good(200, "POST", "/v0/watch?lenient", {"topics": ["{t}", "{t}-no"]},
                                    THREE, **{"topics.{t}.from_seq": 3}),
    "an event of another session": Case(
        200, "", "GET", "/v0/watch/{wid}", headers={"Last-Event-ID": "s99"},
        before=(THREE, session({"{t}": {}})), events=("record",), has={"0.from_seq": 0},
    ),
    "an event of no session": Case(
        200, "", "GET", "/v0/watch/{wid}", headers={"Last-Event-ID": "e30x"},
        before=(THREE, session({"{t}": {}})), events=("record",), has={"0.from_seq": 0},
    ),
    "an event id without a session": Case(
        400, "invalid_request", "GET", "/v0/watch?topic={t}", headers={"Last-Event-ID": "e30x"},
        before=(THREE,),
    ),
    # Routers.
    "router with an arrow": good(201, "PUT", "/v0/routers/{t}-%3E{t}-d", router("{t}", "{t}-d"),
                                 router="{t}->{t}-d", created=True),
    "router with a plain arrow": good(200, "GET", "/v0/routers/{t}->{t}-d", None,
                                      ("PUT", "/v0/routers/{t}->{t}-d", router("{t}", "{t}-d")),
                                      source="{t}"),
    "router of missing topics": good(200, "GET", T + "-d", None, FIRST, head_seq=0, type="log"),
    "router of a missing source": good(200, "GET", T, None, FIRST, head_seq=0, type="log"),
    "router to a missing topic": Case(
        404, "topic_not_found", "PUT", R, router("{t}", "{t}-d", create_dest=False), before=(THREE,)
    ),
    "router to itself": Case(400, "invalid_request", "PUT", R, router("{t}", "{t}"), says="itself"),
    "router to itself in a cycle": Case(400, "invalid_request", "PUT", R,
                                        router("{t}", "{t}", allow_cycle=True), says="itself"),
    "router back": Case(409, "router_cycle", "PUT", R + "-2", router("{t}-d", "{t}"),
                        before=(FIRST,), detail={"cycle": ["{t}-d", "{t}", "{t}-d"]}),
    "router of two sources": Case(
        409, "topic_exists_incompatible", "PUT", R + "-2", router("{t}-x", "{t}-d"),
        before=(FIRST,), detail={"reason": "router_dest_fan_in", **EXISTING},
    ),
    "router to another topic": Case(
        409, "topic_exists_incompatible", "PUT", R, router("{t}", "{t}-x"), before=(FIRST,),
        detail={"reason": "router_repoint_forbidden", **EXISTING},
    ),
    "router of a bare glob": good(201, "PUT", R, router("{t}", "{t}-d", filter="a:*"),
                                  filter=["tag", "Glob", "a:*"]),
    # Configs stay strict.
    "null in a config": Case(400, "invalid_request", "PUT", T, {"ttl_ms": None}, says="ttl_ms"),
    "null in the config of a write": Case(400, "invalid_request", "POST", T,
                                          one(config={"ttl_ms": None}), says="config.ttl_ms"),
    # Unknown fields.
    "unknown field of a record": Case(
        400, "invalid_request", "POST", T, {"records": [{"data": 1, "tga": "x"}]},
        says="records[0].tga", detail={"field": "tga", "nearest": "tag", "index": 0},
    ),
    "unknown field of a write": Case(
        400, "invalid_request", "POST", T, one(return_seq=False), detail={"field": "return_seq"}
    ),
    "unknown parameter": Case(400, "invalid_request", "POST", T + "?return_seq=false", one(),
                              detail={"field": "return_seq", "nearest": "return_seqs"}),
    "no seqs of a transaction": good(200, "POST", "/v0/txn", rows(1, 2),
                                     **{"topics.{t}.first_seq": 1}),
    "a consumer's match by a bare glob": good(
        200, "POST", C + "/read", {"match": "a:*"}, TWO_TAGS, ("PUT", C, {}),
        **{"records.0.data": 0, "next_from_seq": 3},
    ),
    "a queue made by a write": good(
        200, "POST", T, one(config={"type": "queue", "lease_ms": 5}), QUEUE, created=False
    ),
}  # fmt: skip
