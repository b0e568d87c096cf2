"""The one table of routes: the router, the documentation, the OpenAPI document and the tests are
made from it."""

from __future__ import annotations

from .messages import ARROW, CSS, EVENTS, HTML, JAVASCRIPT, JSON, NDJSON, OCTETS, PROMETHEUS
from .route import Field, Route, fields

TOPIC = ("topic_not_found",)
QUEUE = ("topic_not_found", "not_a_queue")
CONSUMER = ("topic_not_found", "consumer_not_found")

PAGE = fields(
    "prefix: string: names begin with this",
    "page_size: integer: entries of a page, 100 unless given, at most 1000",
    "cursor: string: `next_cursor` of the page before",
)
SHOWN = fields(
    "include_tags: boolean: show tags",
    "include_meta: boolean: show metadata",
    "include_data: boolean: show payloads",
)
FILTER = fields(
    "node: string or array of strings: records of these nodes are skipped",
    "match: match: only records with this tag",
    'consistency: string: "eventual", or "strong" for what has been synced',
)
FRAMES = fields(
    "limit: integer: records of an event, 256 unless given, at most 1000",
    "max_batch_bytes: integer: payload bytes of an event, 256 KiB unless given, at most 8 MiB",
    "heartbeat_ms: integer: a comment when idle for so long, 15000 unless given, 1000 to 60000",
)
RECORD = fields(
    "data: any: JSON, or else `data_b64`",
    "data_b64: string: bytes as base64",
    "tag: string: for filters",
    "node: string: its origin",
    "meta: object: strings by name",
    "ttl_ms: integer: it expires after this",
    "lane: integer: queue: 0 to 9, the lowest first",
    "group: string: queue: one job of a group at a time",
    "delay_ms: integer: queue: claimable after this",
    "deliver_at: integer: queue: claimable at this time, ms",
)
WRITE = fields(
    "records!: array of objects: `data` or `data_b64`, `tag`, `node`, `meta`, `ttl_ms`; in a queue "
    "also `lane`, `group`, `delay_ms`, `deliver_at`",
    "node: string: origin of the records that name none",
    "idempotency_key: string: a repeat returns the first answer",
    "expect_head: integer: refuse unless this is the head",
    "sync: boolean: answer when it is durable, whatever the class",
    "create: boolean: create the topic when it is missing",
    "config: config: config at creation; a topic that exists may differ, but for `type` and "
    "`durability`",
    "disable_backpressure: boolean: wait for room instead of being refused",
    records=RECORD,
)
CONFIG = fields(
    'type: string: "log" or "queue"',
    'durability: string: "ephemeral", "memory", "disk" or "fsync"',
    "durable: boolean: true is fsync, false is disk",
    "ttl_ms: integer: records expire after this; 0 is never",
    "cap_records: integer: most records; 0 is no cap",
    "cap_bytes: integer: most payload bytes; 0 is no cap",
    'discard: string: what a full topic does, "old" or "reject"',
    "priority: integer: -1000 to 1000, or null",
    "auto_priority: boolean: priority by how recently it was read",
    "auto_create: boolean: queue: a dead letter may create the topic it goes to",
    "dedupe_node: boolean: readers may skip records by node",
    "idempotency_window_ms: integer: how long keys are kept",
    "lease_ms: integer: queue: how long a lease lasts",
    "claim_jitter_ms: integer: queue: claims within this share what there is",
    "max_deliveries: integer: queue: deliveries before a job is dead; 0 is no limit",
    "dead_letter: string: queue: where dead jobs go, or null",
    "retry_backoff_ms: integer: queue: delay of a nack without one",
    "leases_durable: boolean: queue: leases survive a restart",
    "paused: boolean: queue: nothing is claimed",
)
DIFF = fields(
    'from_seq: string or integer: records after this; "earliest" begins at the first that is kept',
    "tail: integer: begin this many records before the head",
    "before_seq: integer: with tail: page backwards from here",
    "limit: integer: records, 256 unless given, at most 1000; as Arrow 1000000",
    "max_batch_bytes: integer: payload bytes, 1 MiB unless given, at most 8 MiB; as Arrow of each "
    "batch, 2 MiB unless given",
    "wait_ms: integer: wait for records, at most 30000",
    "topic_id: integer: the id that the cursor was made with",
)
COLUMNS = fields(
    "columns: array of strings: as Arrow: only these, in the schema's order",
    "fields: object: as Arrow: typed columns: name to type, or to `{type, path}`; without "
    "`columns` they replace `data`",
    'data_type: string: as Arrow: "string" or "binary"; as the first record is unless given',
)
HELD_IDS = (
    "lease_ids: array of strings or integers: their leases, as the claim named them: a stale one "
    "is skipped; none, or an empty array, is no fence"
)
HELD = fields(
    "node!: string: the worker that claimed the jobs",
    "seqs!: array of integers: the jobs, at most 1000",
    HELD_IDS,
)
OF_STREAM = fields(
    "node!: string: the worker that claimed the jobs",
    "seqs: array of integers: the jobs, at most 1000",
    HELD_IDS,
    "stream: string: instead of `seqs`: every job of a stream of this worker, by the id in its "
    "`stream` event",
)
CLAIM = fields(
    "node!: string: the worker",
    "max: integer: most jobs, 1 unless given, at most 1000",
    "lease_ms: integer: how long the leases last, the queue's unless given",
)
RANGE = fields(
    'from_seq: string or integer: records after this; "earliest" begins at the first that is kept',
    "to_seq: integer: the last record, the head unless given",
)
SCAN = RANGE + fields(
    "columns: array of strings: only these, in the schema's order",
    "fields: object: typed columns: name to type, or to `{type, path}`; without `columns` they "
    "replace `data`",
    'data_type: string: "string" or "binary"; as the first record is unless given',
    "node: string or array of strings: records of these nodes are skipped",
    "nodes: string or array of strings: only records of these nodes",
    "match: match: only records with this tag",
    "ts_from: integer: only records committed at or after this time, ms",
    "ts_to: integer: only records committed before this time, ms",
    'consistency: string: "eventual", or "strong" for what has been synced',
    "topic_id: integer: the id that the cursor was made with",
)
WORK = fields(
    "expect_heads: object: topic to the head that it must have",
    "commits: array of objects: `topic`, `consumer`, `seq`, `reader`",
    "acks: array of objects: `queue`, `node`, `seqs`, `lease_ids`",
    commits=fields(
        "topic!: string: what was read",
        "consumer!: string: by whom",
        "seq!: integer: everything up to it is dealt with",
        "reader: string: who read it; refused if another reader took the consumer over",
    ),
    acks=fields("queue!: string: of the jobs") + HELD,
)
APPEND = fields(
    "topic!: string: where to",
    "records!: array of objects: as in a write",
    "node: string: origin of the records that name none",
    records=RECORD,
)
TXN = (
    *"txn_incomplete stale_epoch topic_not_found consumer_not_found consumer_fenced".split(),
    *"topic_full head_mismatch lease_lost not_a_queue batch_too_large record_too_large".split(),
)
ROUTER = fields(
    "source!: string: the topic that is copied from; created when it is missing, as by a write",
    "dest!: string: the topic that is copied to; created when it is missing, as by a write",
    "preserve_node: boolean: copies keep their node",
    "preserve_tag: boolean: copies keep their tag",
    "filter: match: only records with this tag",
    "create_dest: boolean: false refuses a destination that is missing",
    "allow_cycle: boolean: allow a directed cycle",
    'guarantee: string: "at_least_once" or "exactly_once"',
)
WATCH = fields(
    "topics: object: name to `{from_seq}`, `{tail}` or `{}`, which begins at 0; an array of names "
    "begins at the head",
    "patterns: array of strings: prefixes with a `*`, topics to come included",
    topics=fields(
        'from_seq: string or integer: events after this, or "earliest"',
        "tail: integer or boolean: begin this many records before the head; true is 0",
        "topic_id: integer: the id that the cursor was made with",
    ),
)
READER = "reader: string: who reads, 1 to 64 bytes; another one takes at_least_once over by a read"
READ = fields(
    "max_bytes: integer: payload bytes, 1 MiB unless given, at most 8 MiB",
    "max_records: integer: records, at most 2000",
    "checkpoint: boolean: false peeks and leaves the cursor",
    "wait_ms: integer: wait for records, at most 30000",
    "match: match: only records with this tag",
    "fail_if_busy: boolean: at_most_once: do not wait for the reader before",
    READER,
    "after: integer: the position of a reader that keeps it itself: records after this seq",
)


# fmt: off
TOPICS: tuple[Route, ...] = (
    Route(
        "GET", "/v0/topics", "list", ("read",), "topics in name order, a page at a time",
        query=PAGE + fields("touch: boolean: true counts as consumption"),
        answer="topics next_cursor?",
    ),
    Route(
        "PUT", "/v0/topics/:t", "create", ("admin",), "create a topic or update its config",
        query=fields(
            "create: boolean: true refuses a topic that exists, false one that does not"
        ),
        body=CONFIG, statuses=(200, 201),
        codes=("already_exists", "topic_not_found", "topic_exists_incompatible"),
        answer="topic topic_id created config",
    ),
    Route(
        "GET", "/v0/topics/:t", "state", ("read",), "the state of a topic",
        query=fields("touch: boolean: false does not count as consumption"), codes=TOPIC,
        answer="topic topic_id epoch type head_seq earliest_seq evict_floor next_seq count bytes "
        "gaps config effective_priority last_write_ts last_read_ts queue?",
    ),
    Route(
        "DELETE", "/v0/topics/:t", "drop", ("delete",),
        "delete a topic and all that belongs to it",
        query=fields("if_empty: boolean: refuse when it has records"), codes=("topic_not_empty",),
        answer="topic deleted routers_removed",
    ),
    Route(
        "POST", "/v0/topics/:t", "write", ("write",), "append a batch of records",
        query=fields(
            "return_seqs: boolean: list every seq in `seqs`; true unless given",
            "tag: string: of records that are no JSON body and have none",
            "node: string: of records that are no JSON body",
            "key: string: idempotency key of records that are no JSON body",
        ),
        body=WRITE, statuses=(200, 201), takes=(JSON, NDJSON, OCTETS, ARROW),
        codes=(
            *QUEUE, "batch_too_large", "record_too_large", "head_mismatch", "topic_full",
            "idempotency_mismatch", "topic_exists_incompatible",
        ),
        answer="topic topic_id first_seq last_seq seqs? head_seq count created deduped durability",
    ),
    Route(
        "POST", "/v0/topics/:t/diff", "diff", ("read",), "what came after a seq",
        body=DIFF + SHOWN[:2] + FILTER + COLUMNS, codes=TOPIC, waits=True, offers=(JSON, ARROW),
        answer="topic topic_id records next_from_seq head_seq earliest_seq caught_up tombstone "
        "lag lag_ms",
    ),
    Route(
        "POST", "/v0/topics/:t/delete", "delete", ("delete",), "delete records",
        body=fields(
            "before_seq: integer: records with a smaller seq",
            "match: match: records with this tag",
            "seqs: array of integers: single records instead, at most 1000",
        ),
        codes=(*TOPIC, "batch_too_large"),
        answer="topic deleted earliest_seq head_seq count bytes",
    ),
    Route(
        "POST", "/v0/topics/:t/seek", "seek", ("read",), "the cursor before a point in time",
        body=fields("ts!: integer: milliseconds since 1970"), codes=TOPIC, answer="seq",
    ),
    Route(
        "POST", "/v0/topics/:t/scan", "scan", ("read",), "a whole range as an Arrow stream",
        body=SCAN, codes=TOPIC, offers=(ARROW,), streams=True,
        answer="topic seq ts node tag meta data gap_to gap_reason",
    ),
    Route(
        "POST", "/v0/topics/:t/split", "split", ("read",), "a range in parts of about one size",
        body=RANGE[1:] + fields(
            "from_seq: integer: records after this",
            "max_records: integer: records of a part, 1000000 unless given",
            "max_bytes: integer: payload bytes of a part, 256 MiB unless given",
        ),
        codes=TOPIC, answer="topic topic_id head_seq from_seq to_seq records bytes splits",
    ),
    Route(
        "GET", "/v0/topics/:t/segments", "segments", ("read",), "where the records lie, by tier",
        codes=TOPIC, answer="topic topic_id head_seq earliest_seq segments",
    ),
    Route(
        "POST", "/v0/state", "states", ("read",), "the state of many topics",
        body=fields(
            "topics: array of strings: by name",
            "patterns: array of strings: by prefix and `*`",
        ),
        answer="topics missing",
    ),
)

QUEUES: tuple[Route, ...] = (
    Route(
        "POST", "/v0/topics/:q/claim", "claim", ("read", "write"), "lease jobs to a worker",
        body=CLAIM + fields("wait_ms: integer: wait for a job, at most 30000"),
        codes=QUEUE, waits=True, answer="topic topic_id claimed count ready",
    ),
    Route(
        "POST", "/v0/topics/:q/ack", "ack", ("write",), "delete jobs that are done",
        body=HELD, codes=(*QUEUE, "batch_too_large"),
        answer="topic acked skipped reasons? ready in_flight",
    ),
    Route(
        "POST", "/v0/topics/:q/nack", "nack", ("write",), "give jobs back",
        body=HELD + fields(
            "delay_ms: integer: claimable after this, immediately unless given; null: the queue's "
            "backoff",
            "error: string: why; the first KiB is kept with the jobs and goes to the dead letter",
        ),
        codes=(*QUEUE, "batch_too_large"), answer="topic nacked skipped reasons? ready in_flight",
    ),
    Route(
        "POST", "/v0/topics/:q/release", "release", ("write",),
        "give back jobs that were not begun; this was no delivery",
        body=OF_STREAM, codes=(*QUEUE, "batch_too_large"),
        answer="topic released skipped reasons? ready in_flight",
    ),
    Route(
        "POST", "/v0/topics/:q/extend", "extend", ("write",), "renew leases",
        body=OF_STREAM + fields("lease_ms: integer: from now, the queue's unless given"),
        codes=(*QUEUE, "batch_too_large"),
        answer="topic extended skipped reasons? deadlines ready in_flight",
    ),
    Route(
        "GET", "/v0/topics/:q/jobs", "jobs", ("read",), "look at jobs without claiming them",
        query=fields(
            "state: string: ready, leased, delayed or dead",
            "max: integer: of each state, 100 unless given, at most 1000",
        ),
        codes=QUEUE, answer="topic topic_id jobs",
    ),
    Route(
        "POST", "/v0/topics/:q/remove", "jobs_remove", ("delete",),
        "delete jobs in any state; leased ones are skipped",
        body=fields(
            "seqs!: array of integers: the jobs, at most 1000",
            "force: boolean: leased ones too",
        ),
        codes=(*QUEUE, "batch_too_large"), answer="topic removed skipped ready in_flight",
    ),
    Route(
        "POST", "/v0/topics/:q/promote", "jobs_promote", ("write",),
        "make delayed jobs ready; others are skipped",
        body=fields("seqs!: array of integers: the jobs, at most 1000"),
        codes=(*QUEUE, "batch_too_large"), answer="topic promoted skipped ready in_flight",
    ),
    Route(
        "POST", "/v0/topics/:q/redrive", "redrive", ("admin",),
        "move dead letters back, or revive dead jobs",
        body=fields(
            "to: string: where to; where each came from unless given",
            "match: match: only records with this tag",
            "seqs: array of integers: only these, at most 1000",
            "limit: integer: most jobs to move",
            "dry_run: boolean: only count",
        ),
        codes=(*TOPIC, "batch_too_large"), answer="topic moved dry_run",
    ),
)

_ROUTER = (
    "router source dest preserve_node preserve_tag filter create_dest allow_cycle guarantee "
    "forwarded_total lag stopped_by"
)

ROUTERS: tuple[Route, ...] = (
    Route(
        "GET", "/v0/routers", "routers", ("read",), "routers in name order, a page at a time",
        query=(*PAGE, *fields("source: string: only from this", "dest: string: only to this")),
        answer="routers next_cursor?",
    ),
    Route(
        "PUT", "/v0/routers/:r", "router_put", ("admin",), "create a router or update its options",
        body=ROUTER, statuses=(200, 201),
        codes=(*TOPIC, "topic_exists_incompatible", "router_cycle"),
        answer=f"{_ROUTER} created",
    ),
    Route(
        "GET", "/v0/routers/:r", "router", ("read",), "a router and how far it is",
        codes=("router_not_found",), answer=_ROUTER,
    ),
    Route(
        "DELETE", "/v0/routers/:r", "router_drop", ("delete",),
        "delete a router; what it copied stays", answer="router deleted",
    ),
)

WATCHES: tuple[Route, ...] = (
    Route(
        "POST", "/v0/watch", "watch_create", ("read",), "create a watch session",
        query=fields("lenient: boolean: unknown topics join when they are created"),
        body=WATCH + FRAMES + SHOWN + FILTER, codes=TOPIC,
        answer="wid stream_url session_ttl_ms topics",
    ),
    Route(
        "GET", "/v0/watch/:wid", "watch", ("read",), "the events of a session",
        offers=(EVENTS,), streams=True, codes=("session_gone",), answer="events",
    ),
    Route(
        "DELETE", "/v0/watch/:wid", "watch_end", ("read",), "end a session and its streams",
        answer="wid ended",
    ),
    Route(
        "GET", "/v0/watch", "watch_query", ("read",), "the events of topics, without a session",
        query=(
            *fields(
                "topic!: string: again for each, at most 64",
                'from_seq: string or integer: events after this, or "earliest"',
                "tail: integer or boolean: begin this many records before the head; 0 unless given",
                "lenient: boolean: unknown topics join when they are created",
            ),
            *FRAMES, *SHOWN, *FILTER,
        ),
        offers=(EVENTS,), streams=True, codes=TOPIC, answer="events",
    ),
    Route(
        "GET", "/v0/ws", "socket", (), "a WebSocket: subscribe, publish", statuses=(101,),
        streams=True, codes=("invalid_request",), answer="messages",
    ),
    Route(
        "GET", "/v0/topics/:q/work", "work", ("read", "write"),
        "a stream of jobs; ending it gives unacked jobs back",
        query=CLAIM + FRAMES[2:], codes=QUEUE, offers=(EVENTS,), streams=True, answer="events",
    ),
)

_CONSUMER = "topic consumer mode cursor lag lag_ms"

CONSUMERS: tuple[Route, ...] = (
    Route(
        "GET", "/v0/consumers", "consumers", ("read",), "every consumer with its lag",
        query=(*PAGE, *fields("topic: string: only of this topic")), codes=TOPIC,
        answer="consumers next_cursor?",
    ),
    Route(
        "GET", "/v0/topics/:t/consumers", "consumers", ("read",), "the consumers of a topic",
        query=PAGE, codes=TOPIC, answer="consumers next_cursor?",
    ),
    Route(
        "PUT", "/v0/topics/:t/consumers/:c", "consumer_put", ("read", "write"),
        "create a consumer, or open an existing one at its stored cursor",
        body=fields(
            'mode: string: "at_least_once" or "at_most_once"; a consumer keeps the one it has',
            'start: string: where a new one begins, "start" or "end"',
            "auto_commit: boolean: a read stores where the one before ended",
            "reader: string: who will read, 1 to 64 bytes; its first read takes at_least_once over",
        ),
        statuses=(200, 201), codes=(*TOPIC, "topic_exists_incompatible"),
        answer=f"{_CONSUMER} auto_commit created",
    ),
    Route(
        "GET", "/v0/topics/:t/consumers/:c", "consumer", ("read",), "a consumer with its lag",
        codes=CONSUMER, answer=_CONSUMER,
    ),
    Route(
        "DELETE", "/v0/topics/:t/consumers/:c", "consumer_drop", ("delete",), "delete a consumer",
        codes=TOPIC, answer="topic consumer deleted",
    ),
    Route(
        "POST", "/v0/topics/:t/consumers/:c/read", "consumer_read", ("read", "write"),
        "records from the consumer's cursor", body=READ,
        codes=(*CONSUMER, "consumer_busy", "consumer_fenced"), waits=True,
        answer="topic topic_id consumer records tombstone next_from_seq head_seq caught_up lag "
        "lag_ms",
    ),
    Route(
        "POST", "/v0/topics/:t/consumers/:c/commit", "consumer_commit", ("read", "write"),
        "store a cursor that is further on",
        body=fields("seq!: integer: everything up to it is dealt with", READER),
        codes=(*CONSUMER, "consumer_fenced"),
        answer="topic consumer cursor",
    ),
    Route(
        "POST", "/v0/topics/:t/consumers/:c/seek", "consumer_seek", ("read", "write"),
        "set the cursor, forwards or back",
        body=fields(
            "seq: integer: behind this seq",
            "ts: integer: before the first record at or after this time",
            'to: string: "start" or "end"',
            READER,
        ),
        codes=(*CONSUMER, "consumer_fenced"), answer="topic consumer cursor",
    ),
)

TXNS: tuple[Route, ...] = (
    Route(
        "POST", "/v0/txn", "txn", ("write",), "a transaction in one request",
        body=fields(
            "appends: array of objects: `topic`, `records`, `node`, `expect_head`",
            "idempotency_key: string: a repeat returns the first answer, for two minutes",
            "writer: string: a repeat of its last epoch returns the first answer",
            "epoch: integer: of the writer, rising; the one after its last unless given",
            appends=APPEND + fields("expect_head: integer: refuse unless this is the head"),
        ) + WORK,
        codes=(*TXN[1:], "idempotency_mismatch"), answer="committed deduped topics epoch?",
    ),
    Route(
        "GET", "/v0/txn", "txns", ("write",), "writers in name order, a page at a time",
        query=PAGE, answer="writers next_cursor?",
    ),
    Route(
        "GET", "/v0/txn/:writer", "txn_writer", ("write",),
        "the last epoch of a writer, and what it has staged",
        codes=("txn_not_found", "invalid_request"), answer="writer last_epoch staged",
    ),
    Route(
        "DELETE", "/v0/txn/:writer", "txn_forget", ("delete",),
        "forget a writer: its next commit may have any epoch; its staged transactions are aborted",
        codes=("invalid_request",), answer="writer forgotten",
    ),
    Route(
        "PUT", "/v0/txn/:writer/owner", "txn_owner", ("admin",),
        "hand a writer over to another key, with its last epoch and what it has staged",
        body=fields("owner!: string: the label of the key, 16 hex digits"),
        codes=("txn_not_found",), answer="writer owner",
    ),
    Route(
        "POST", "/v0/txn/:writer/stage/:id", "txn_stage", ("write",),
        "rows that a commit will publish",
        query=fields(
            "part!: integer: of the stage, from 0; one that is staged already stays as it is",
            "topic: string: of Arrow rows that have no column `topic`",
        ),
        body=fields("appends!: array of objects: `topic`, `records`, `node`", appends=APPEND),
        takes=(JSON, ARROW),
        codes=("batch_too_large", "record_too_large"), answer="staged bytes deduped",
    ),
    Route(
        "DELETE", "/v0/txn/:writer/stage/:id", "txn_abort", ("write",),
        "give a stage up; what is published stays",
        codes=("invalid_request",), answer="writer id aborted",
    ),
    Route(
        "POST", "/v0/txn/:writer/commit", "txn_commit", ("write",),
        "publish stages, with cursors and acks: all or nothing",
        body=fields(
            "epoch!: integer: of the writer, rising; its last one again answers as the first time",
            "stages: array of objects: `id`, `parts`, `records`",
            stages=fields(
                "id!: string: of the stage",
                "parts!: integer: how many it has",
                "records: integer: rows in all of them",
            ),
        ) + WORK,
        codes=TXN, answer="committed deduped topics epoch?",
    ),
)

_HEALTH = "status version uptime_ms"
_READY = "status wal_replay_complete topics loop_panics remote_state?"

SERVER: tuple[Route, ...] = (
    Route(
        "POST", "/v0/sync", "sync", ("write",), "return when all acked before is durable",
        body=fields("topic: string: only what was acked of this topic"),
        answer="synced", codes=("data_loss", "topic_not_found"),
    ),
    Route(
        "POST", "/v0/admin/checkpoint", "checkpoint", ("admin",), "one checkpoint round",
        body=(), answer="checkpointed",
    ),
    Route(
        "POST", "/v0/admin/backup", "backup", ("admin",), "copy the engine into a directory",
        body=fields("dir!: string: below the server's `backup_dir`; missing or empty"),
        codes=("invalid_directory",), answer="dir linked copied copied_bytes fetched",
    ),
    Route(
        "POST", "/v0/admin/verify", "verify", ("admin",), "check every checksum and index",
        body=(), answer="ok files bytes records cold_records problems",
    ),
    Route(
        "GET", "/v0/metrics", "metrics", ("read",), "Prometheus text or JSON",
        offers=(PROMETHEUS, JSON),
    ),
    Route(
        "GET", "/metrics", "metrics", ("read",), "Prometheus text or JSON",
        offers=(PROMETHEUS, JSON),
    ),
    Route("GET", "/v0/openapi.json", "openapi", ("read",), "this table as OpenAPI 3.1"),
    Route(
        "GET", "/v0/key", "key", ("read",), "what the key of the request may do",
        answer="scopes prefixes",
    ),
    Route(
        "GET", "/", "console", (), "redirects to the web console", statuses=(302,), offers=(HTML,)
    ),
    Route("GET", "/console", "console", (), "the web console", offers=(HTML,)),
    Route(
        "GET", "/console/:file", "console", (), "the files of the web console",
        offers=(JAVASCRIPT, CSS, HTML),
    ),
    Route("GET", "/v0/health", "health", (), "the process is alive", answer=_HEALTH),
    Route("GET", "/healthz", "health", (), "the process is alive", answer=_HEALTH),
    Route("GET", "/v0/ready", "ready", (), "recovery is done, writes are taken", answer=_READY),
    Route("GET", "/readyz", "ready", (), "recovery is done, writes are taken", answer=_READY),
)

# fmt: on
ROUTES: tuple[Route, ...] = TOPICS + TXNS + QUEUES + WATCHES + ROUTERS + CONSUMERS + SERVER

__all__ = ["ROUTES", "Field", "Route"]
