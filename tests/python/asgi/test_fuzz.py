"""Generated requests, ten thousand at the full gate: each is answered, and none with 500.

The generator begins from the table of routes and from valid bodies, and breaks them in one place or
several, so that requests reach every depth of the parser.
"""

from __future__ import annotations

import json
import re
from http.client import IncompleteRead
from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from support.gate import run_seed, sized
from support.h2_client import StreamReset
from support.http_client import Http
from topics_engine.asgi.route import Route
from topics_engine.asgi.routes import ROUTES

REQUESTS = sized(200, 10_000, 100_000)
PER_EXAMPLE = 20

# Status of each code; an answer that pairs them otherwise is wrong.
STATUS = {
    "invalid_request": {400},
    "batch_too_large": {400},
    "record_too_large": {400},
    "topic_not_found": {404},
    "not_found": {404},
    "method_not_allowed": {405},
    "not_acceptable": {406},
    "topic_exists_incompatible": {409},
    "topic_not_empty": {409},
    "already_exists": {409},
    "head_mismatch": {409},
    "idempotency_mismatch": {409},
    "not_a_queue": {409},
    "lease_lost": {409},
    "txn_incomplete": {409},
    "stale_epoch": {409},
    "txn_not_found": {404},
    "router_not_found": {404},
    "consumer_not_found": {404},
    "router_cycle": {409},
    "consumer_busy": {409},
    "consumer_fenced": {409},
    "payload_too_large": {413},
    "unsupported_media_type": {415},
    "topic_full": {422},
    "throttled": {429},
    "headers_too_large": {431},
}

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
edge_numbers = st.sampled_from(
    [0, 1, -1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 1e300]
)
short = st.sampled_from(["a", "b", "eu:7", "", "*", "eu:*", "a*b", "é", "\0", "x" * 300])

records = st.fixed_dictionaries(
    {"data": json_values},
    optional={
        "tag": short,
        "node": short,
        "meta": st.dictionaries(short, short, max_size=3),
        "ttl_ms": edge_numbers,
        "data_b64": st.sampled_from(["AAE=", "!", ""]),
    },
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["log", "queue", "x"]),
        "ttl_ms": edge_numbers,
        "cap_records": st.sampled_from([0, 1, 5, 2**64]),
        "cap_bytes": st.sampled_from([0, 1, 500]),
        "discard": st.sampled_from(["old", "reject", 1]),
        "durability": st.sampled_from(["ephemeral", "memory", "disk", "fsync", ""]),
        "durable": st.booleans(),
        "priority": st.one_of(st.none(), edge_numbers),
        "dedupe_node": st.booleans(),
        "idempotency_window_ms": edge_numbers,
        "dead_letter": st.one_of(st.none(), short),
    },
)
matches = st.one_of(
    short,
    st.tuples(st.sampled_from(["tag", "node"]), st.sampled_from(["Eq", "Glob", "x"]), short).map(
        list
    ),
)
names = st.one_of(
    st.sampled_from(["fuzz-a", "fuzz-b", "fuzz-c"]),
    st.sampled_from([".", "..", "a/b", "a b", "é", "x" * 255, "x" * 256, "%", "\0", "a\nb"]),
    st.text(min_size=1, max_size=12),
)
held = st.fixed_dictionaries(
    {"node": short, "seqs": st.lists(edge_numbers, max_size=3)},
    optional={
        "lease_ids": st.lists(st.one_of(edge_numbers, short), max_size=3),
        "error": short,
        "delay_ms": st.one_of(st.none(), edge_numbers),
        "lease_ms": edge_numbers,
    },
)
span = {
    "from_seq": st.one_of(edge_numbers, st.just("earliest")),
    "to_seq": edge_numbers,
}
appends = st.lists(
    st.fixed_dictionaries(
        {"topic": names, "records": st.lists(records, max_size=3)},
        optional={"node": short, "expect_head": edge_numbers},
    ),
    max_size=3,
)
work = {
    "expect_heads": st.dictionaries(names, edge_numbers, max_size=2),
    "commits": st.lists(
        st.fixed_dictionaries(
            {"topic": names, "consumer": short, "seq": edge_numbers}, optional={"reader": short}
        ),
        max_size=2,
    ),
    "acks": st.lists(
        st.fixed_dictionaries({"queue": names, "node": short, "seqs": st.just([1])}), max_size=2
    ),
}
BODIES: dict[str, st.SearchStrategy[Any]] = {
    "create": configs,
    "write": st.fixed_dictionaries(
        {"records": st.lists(records, max_size=5)},
        optional={
            "node": short,
            "idempotency_key": short,
            "expect_head": edge_numbers,
            "sync": st.booleans(),
            "create": st.booleans(),
            "config": configs,
            "disable_backpressure": st.booleans(),
        },
    ),
    "diff": st.fixed_dictionaries(
        {},
        optional={
            "from_seq": st.one_of(edge_numbers, st.just("earliest")),
            "tail": edge_numbers,
            "before_seq": edge_numbers,
            "limit": edge_numbers,
            "node": st.one_of(short, st.lists(short, max_size=3)),
            "match": matches,
            "consistency": st.sampled_from(["strong", "eventual", "x"]),
            "include_tags": st.booleans(),
            "include_meta": st.booleans(),
            "wait_ms": st.sampled_from([0, 1, 2]),
            "max_batch_bytes": edge_numbers,
        },
    ),
    "scan": st.fixed_dictionaries(
        {},
        optional={
            **span,
            "columns": st.lists(st.sampled_from(["seq", "data", "gap_to", "x"]), max_size=3),
            "fields": st.dictionaries(
                st.sampled_from(["a", "a.b[0]", "a..b", "tag", "_raw"]),
                st.sampled_from(["int64", "timestamp[us, UTC]", "int46", {"type": "string"}, 1]),
                max_size=3,
            ),
            "nodes": st.one_of(short, st.lists(short, max_size=3)),
            "match": matches,
            "ts_from": edge_numbers,
            "ts_to": edge_numbers,
            "consistency": st.sampled_from(["strong", "eventual", "x"]),
            "topic_id": edge_numbers,
            "data_type": st.sampled_from(["binary", "x"]),
            "compression": st.sampled_from(["lz4", "zstd", "x"]),
        },
    ),
    "split": st.fixed_dictionaries(
        {}, optional={**span, "max_records": edge_numbers, "max_bytes": edge_numbers}
    ),
    "txn": st.fixed_dictionaries(
        {"appends": appends},
        optional={
            **work,
            "writer": names,
            "epoch": st.integers(0, 3),
            "idempotency_key": short,
        },
    ),
    "txn_stage": st.fixed_dictionaries({"appends": appends}),
    "txn_commit": st.fixed_dictionaries(
        {"epoch": edge_numbers},
        optional={
            **work,
            "stages": st.lists(
                st.fixed_dictionaries({"id": short, "parts": st.sampled_from([0, 1, 2**32])}),
                max_size=2,
            ),
        },
    ),
    "delete": st.fixed_dictionaries({}, optional={"before_seq": edge_numbers, "match": matches}),
    "seek": st.fixed_dictionaries({}, optional={"ts": edge_numbers}),
    "states": st.fixed_dictionaries(
        {},
        optional={"topics": st.lists(short, max_size=3), "patterns": st.lists(short, max_size=3)},
    ),
    "claim": st.fixed_dictionaries(
        {"node": short},
        optional={"max": edge_numbers, "lease_ms": edge_numbers, "wait_ms": st.just(1)},
    ),
    **dict.fromkeys(("ack", "nack", "release", "extend"), held),
    "jobs_remove": st.fixed_dictionaries(
        {"seqs": st.lists(edge_numbers, max_size=3)}, optional={"force": st.booleans()}
    ),
    "jobs_promote": st.fixed_dictionaries({"seqs": st.lists(edge_numbers, max_size=3)}),
    "redrive": st.fixed_dictionaries(
        {},
        optional={
            "to": names,
            "match": matches,
            "seqs": st.lists(edge_numbers, max_size=3),
            "limit": edge_numbers,
            "dry_run": st.booleans(),
        },
    ),
    "router_put": st.fixed_dictionaries(
        {"source": names, "dest": names},
        optional={
            "filter": st.one_of(st.none(), matches),
            "preserve_node": st.booleans(),
            "create_dest": st.booleans(),
            "allow_cycle": st.booleans(),
            "guarantee": st.sampled_from(["at_least_once", "exactly_once", ""]),
        },
    ),
    "consumer_put": st.fixed_dictionaries(
        {},
        optional={
            "mode": st.sampled_from(["at_least_once", "at_most_once", "x"]),
            "start": st.sampled_from(["start", "end", 1]),
            "auto_commit": st.booleans(),
            "reader": short,
        },
    ),
    "consumer_read": st.fixed_dictionaries(
        {},
        optional={
            "max_bytes": edge_numbers,
            "max_records": edge_numbers,
            "checkpoint": st.booleans(),
            "wait_ms": st.sampled_from([0, 1]),
            "match": matches,
            "fail_if_busy": st.booleans(),
            "reader": short,
            "after": edge_numbers,
        },
    ),
    "watch_create": st.fixed_dictionaries(
        {
            "topics": st.one_of(
                st.lists(names, max_size=3),
                st.dictionaries(
                    names,
                    st.fixed_dictionaries(
                        {},
                        optional={
                            "from_seq": st.one_of(edge_numbers, st.just("earliest")),
                            "tail": edge_numbers,
                            "topic_id": edge_numbers,
                        },
                    ),
                    max_size=3,
                ),
            )
        },
        optional={
            "patterns": st.lists(short, max_size=3),
            "node": st.one_of(short, st.lists(short, max_size=3)),
            "match": matches,
            "limit": edge_numbers,
            "max_batch_bytes": edge_numbers,
            "heartbeat_ms": edge_numbers,
            "include_data": st.booleans(),
            "consistency": st.sampled_from(["strong", "x"]),
        },
    ),
    "consumer_commit": st.fixed_dictionaries({"seq": edge_numbers}, optional={"reader": short}),
    "consumer_seek": st.fixed_dictionaries(
        {},
        optional={
            "seq": edge_numbers,
            "ts": edge_numbers,
            "to": st.sampled_from(["end", ""]),
            "reader": short,
        },
    ),
}


@st.composite
def bodies(draw: st.DrawFn, verb: str) -> bytes:
    body = draw(BODIES.get(verb, st.just({})))
    damage = draw(st.sampled_from(["none"] * 6 + ["type", "extra", "cut", "bytes", "other"]))
    if damage == "type" and body:
        body = body | {draw(st.sampled_from(sorted(body))): draw(json_values)}
    elif damage == "extra":
        body = body | {draw(st.text(max_size=8)): draw(json_values)}
    elif damage == "other":
        body = draw(json_values)
    text = json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if damage == "cut":
        text = text[: draw(st.integers(0, len(text)))]
    elif damage == "bytes":
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.binary(max_size=4)) + text[at:]
    return text


@st.composite
def requests(draw: st.DrawFn) -> tuple[Route, str, str, bytes | None, dict[str, str]]:
    # `sync`, `checkpoint` and `verify` do no parsing, and do real work on the disk.
    idle = ("sync", "checkpoint", "verify")
    cheap = [r for r in ROUTES if r.verb not in idle and not r.endless]
    route: Route = draw(st.sampled_from(cheap + [r for r in cheap if r.verb in BODIES] * 3))
    path = re.sub(r":[a-z]+", lambda _: quote(draw(names), safe=""), route.path)
    query = draw(
        st.dictionaries(
            st.sampled_from(
                ["prefix", "page_size", "cursor", "touch", "x", *(f.name for f in route.query)]
            ),
            st.sampled_from(["", "true", "1", "0", "-1", "99999999999999999999", "fuzz", "é", "%"]),
            max_size=2,
        )
    )
    if query:
        path += "?" + urlencode(query)
    method = draw(st.sampled_from([route.method] * 40 + ["GET", "POST", "PUT", "DELETE", "PATCH"]))
    headers = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "Accept": st.sampled_from(
                    ["*/*", "application/json", "", "a/b, */*"] * 8
                    + ["text/plain", "x;q=", "*/*;q=0"]
                ),
                "Idempotency-Key": st.sampled_from(["k1", "k2", "x" * 300]),
                "Content-Type": st.sampled_from(
                    ["application/json"] * 6
                    + ["application/x-ndjson", "application/octet-stream", "x"]
                ),
            },
        )
    )
    body = draw(bodies(route.verb)) if method in ("POST", "PUT") else None
    return route, method, path, body, headers


def run_requests(api: Http, seen: dict[int, int], batch: list[Any]) -> None:
    for route, method, path, body, headers in batch:
        note(f"{method} {path} {body!r} {headers}")
        try:
            reply = api(method, path, body, headers)
        except (IncompleteRead, StreamReset):
            # As text it breaks off at a binary record, which others have written.
            assert route.verb == "scan", route.verb
            api.close()
            seen[0] = seen.get(0, 0) + 1
            continue
        seen[reply.status] = seen.get(reply.status, 0) + 1
        assert reply.status < 500, reply
        if reply.status >= 400:
            assert reply.status in STATUS[reply.code], reply
            assert method != route.method or reply.code in route.all_codes, (route.verb, reply)
        elif reply.headers["content-type"] == "application/json":
            json.loads(reply.body)


def test_no_generated_request_is_500(api: Http, protocol: str) -> None:
    seen: dict[int, int] = {}
    # The application has had all of them by two ways when it gets those of HTTP/2.
    most = REQUESTS // 4 if protocol == "h2" else REQUESTS
    chosen = seed(run_seed())
    batches = st.lists(requests(), min_size=PER_EXAMPLE, max_size=PER_EXAMPLE)
    run = settings(
        max_examples=most // PER_EXAMPLE,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )(given(batch=batches)(run_requests))
    chosen(run)(api, seen)
    print(f"{sum(seen.values())} requests: {dict(sorted(seen.items()))}")
    assert sum(seen.values()) >= most
    # A generator that only ever fails tests nothing.
    assert seen[200] > most // 20
    assert api("GET", "/v0/ready").status == 200
