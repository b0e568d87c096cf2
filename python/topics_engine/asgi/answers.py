"""The types of answers: a field has the same type in all of them, with few exceptions."""

from __future__ import annotations

from typing import Any

from .route import Route

Schema = dict[str, Any]

ANY: Schema = {}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
STRING: Schema = {"type": "string"}
INTEGER_OR_NULL: Schema = {"type": ["integer", "null"]}
STRING_OR_NULL: Schema = {"type": ["string", "null"]}


def ref(name: str) -> Schema:
    """The schema of a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema) -> Schema:
    """The schema of an array."""
    return {"type": "array", "items": items}


def by_name(values: Schema) -> Schema:
    """The schema of an object whose keys are names."""
    return {"type": "object", "additionalProperties": values}


def record(*optional: str, **fields: Schema) -> Schema:
    """The schema of an object with these fields, and others that clients ignore. Those named in
    `optional` may be absent.
    """
    names = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": names}


def integers(names: str) -> dict[str, Schema]:
    """Integer fields with these names."""
    return dict.fromkeys(names.split(), INTEGER)


_RECORD = {
    **integers("$seq $ts"),
    **dict.fromkeys(("$node", "$tag", "data_b64"), STRING),
    "meta": by_name(STRING),
    "data": ANY,
}
_CLAIMED = {
    **_RECORD,
    **integers("deliveries deadline lease_ms lane"),
    **dict.fromkeys(("lease_id", "group"), STRING),
}
# A peeked job has `$node`, its record's, too; generators take it for the name `node` of its worker.
_PEEKED = {
    **{name: kind for name, kind in _CLAIMED.items() if name != "$node"},
    **integers("visible_at"),
    **dict.fromkeys(("state", "node", "error"), STRING),
}
_PERFORMANCE = dict.fromkeys(
    ("server_total_ms", "wal_append_ms", "fsync_ms", "throttle_wait_ms"), NUMBER
)
_STATE = {
    "topic": STRING,
    "type": STRING,
    **integers("topic_id epoch head_seq earliest_seq evict_floor next_seq count bytes"),
    "config": ref("Config"),
    "effective_priority": INTEGER,
    "gaps": array(array({"type": ["integer", "string"]})),
    "last_write_ts": INTEGER_OR_NULL,
    "last_read_ts": INTEGER_OR_NULL,
    "queue": ref("QueueCounts"),
}
_FILTER: Schema = {"type": ["array", "null"], "items": STRING}
_ROUTER = {
    **dict.fromkeys(("router", "source", "dest", "guarantee"), STRING),
    **dict.fromkeys(("preserve_node", "preserve_tag", "create_dest", "allow_cycle"), BOOLEAN),
    "filter": _FILTER,
    **integers("forwarded_total lag"),
    "stopped_by": STRING_OR_NULL,
}
_CONSUMER = {
    **dict.fromkeys(("topic", "consumer", "mode"), STRING),
    **integers("cursor lag lag_ms"),
}

COMPONENTS: dict[str, Schema] = {
    "Record": record("$node", "$tag", "meta", "data", "data_b64", **_RECORD),
    "Performance": record(
        *_PERFORMANCE.keys() - {"server_total_ms"},
        "records_scanned",
        "cold_segments_read",
        **_PERFORMANCE,
        **integers("records_scanned cold_segments_read"),
    ),
    "Tombstone": record(
        **integers("gap_from gap_to missed_estimate earliest_seq head_seq"), reason=STRING
    ),
    "QueueCounts": {"type": "object", "additionalProperties": INTEGER},
    "TopicState": record("queue", **_STATE),
    "TopicSummary": record(
        **dict.fromkeys(("topic", "type", "durability"), STRING),
        **integers("head_seq earliest_seq count bytes effective_priority"),
        durable=BOOLEAN,
    ),
    "Router": record(**_ROUTER),
    "Consumer": record(**_CONSUMER),
    "Segment": record(
        "file_no",
        "file_bytes",
        "sealed",
        tier=STRING,
        **integers("first_seq last_seq count bytes first_ts last_ts file_no file_bytes"),
        sealed=BOOLEAN,
    ),
    "Split": record(**integers("from_seq to_seq records bytes")),
    "WatchedTopic": record(
        "topic_id", "head_seq", "earliest_seq",
        **integers("from_seq topic_id head_seq earliest_seq"),
    ),
    "Published": record(**integers("topic_id first_seq last_seq")),
    "ClaimedJob": record(*_CLAIMED.keys() - {"$seq", "deliveries"}, **_CLAIMED),
    "PeekedJob": record(*_PEEKED.keys() - {"$seq", "deliveries"}, **_PEEKED),
    "Problem": record(file=STRING, offset=INTEGER, detail=STRING),
    "Stage": record(id=STRING, **integers("parts records bytes")),
    "Writer": record(writer=STRING, last_epoch=INTEGER_OR_NULL, **integers("records bytes")),
}  # fmt: skip
"""The schemas that several answers share."""

FIELDS: dict[str, Schema] = {
    **_STATE,
    **_ROUTER,
    **_CONSUMER,
    **integers("first_seq last_seq next_from_seq from_seq to_seq seq moved ready in_flight"),
    **integers("session_ttl_ms uptime_ms bytes files cold_records"),
    **dict.fromkeys(("created", "deduped", "caught_up", "ended", "dry_run", "ok"), BOOLEAN),
    **dict.fromkeys(("committed", "aborted", "forgotten", "synced", "checkpointed"), BOOLEAN),
    **dict.fromkeys(("deleted", "auto_commit", "wal_replay_complete"), BOOLEAN),
    **dict.fromkeys(("durability", "wid", "stream_url", "next_cursor", "writer", "id"), STRING),
    **dict.fromkeys(("status", "version", "dir", "owner"), STRING),
    **dict.fromkeys(("missing", "routers_removed", "scopes", "prefixes"), array(STRING)),
    **integers("linked copied copied_bytes fetched"),
    **integers("count acked nacked released extended removed promoted"),
    "deadlines": by_name(INTEGER),
    "claimed": array(ref("ClaimedJob")),
    "jobs": array(ref("PeekedJob")),
    "seqs": array(INTEGER),
    "skipped": array(INTEGER),
    "reasons": array(STRING),
    "records": array(ref("Record")),
    "tombstone": {"anyOf": [ref("Tombstone"), {"type": "null"}]},
    "segments": array(ref("Segment")),
    "splits": array(ref("Split")),
    "routers": array(ref("Router")),
    "consumers": array(ref("Consumer")),
    "problems": array(ref("Problem")),
    "topics": array(ref("TopicSummary")),
    "writers": array(ref("Writer")),
    "last_epoch": INTEGER_OR_NULL,
    "staged": INTEGER,
    "loop_panics": by_name(INTEGER),
    "remote_state": STRING,
}
"""The type of each field."""

EXCEPTIONS: dict[tuple[str, str], Schema] = {
    ("delete", "deleted"): INTEGER,
    ("trim", "deleted"): INTEGER,
    ("split", "records"): INTEGER,
    ("verify", "records"): INTEGER,
    ("ready", "topics"): INTEGER,
    ("states", "topics"): by_name(ref("TopicState")),
    ("watch_create", "topics"): by_name(ref("WatchedTopic")),
    ("txn", "topics"): by_name(ref("Published")),
    ("txn_commit", "topics"): by_name(ref("Published")),
    ("txn_writer", "staged"): array(ref("Stage")),
}
"""The types of fields that differ, by the verb of the route."""

UNMEASURED = ("health", "openapi", "key")
"""Verbs whose answers do not have `performance`."""


def answer_name(route: Route) -> str:
    """The name of the schema of a JSON answer; routes of one verb share it."""
    return "".join(word.capitalize() for word in route.verb.split("_")) + "Answer"


def answer_schema(route: Route) -> Schema:
    """The schema of a JSON answer."""
    if route.answer == "object":
        return {"type": "object"}
    names = route.answer.split()
    fields = {
        name: EXCEPTIONS.get((route.verb, name), FIELDS.get(name, ANY))
        for name in (n.rstrip("?") for n in names)
    }
    if route.verb not in UNMEASURED:
        names.append("performance")
        fields["performance"] = ref("Performance")
    return record(*(n.rstrip("?") for n in names if n.endswith("?")), **fields)
