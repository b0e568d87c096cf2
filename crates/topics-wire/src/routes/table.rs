//! The routes.

use super::{Field, Route, bodies, fields};

const TOPIC: &[&str] = &["topic_not_found"];
const QUEUE: &[&str] = &["topic_not_found", "not_a_queue"];
const CONSUMER: &[&str] = &["topic_not_found", "consumer_not_found"];
const TXN: &[&str] = &[
    "txn_incomplete",
    "stale_epoch",
    "topic_not_found",
    "consumer_not_found",
    "consumer_fenced",
    "topic_full",
    "head_mismatch",
    "lease_lost",
    "not_a_queue",
    "batch_too_large",
    "record_too_large",
];

/// Every route, in the order of the documentation.
pub static ROUTES: &[Route] = &[
    Route {
        method: "GET",
        path: "/v0/topics",
        verb: "list",
        needs: &["read"],
        summary: "topics in name order, a page at a time",
        query: &[fields::PAGE, &[Field::new("touch", "boolean", "true counts as consumption")]],
        answer: "topics next_cursor?",
        ..Route::DEFAULT
    },
    Route {
        method: "PUT",
        path: "/v0/topics/:t",
        verb: "create",
        needs: &["admin"],
        summary: "create a topic or update its config",
        query: &[&[Field::new(
            "create",
            "boolean",
            "true refuses a topic that exists, false one that does not",
        )]],
        body: Some(bodies::CREATE),
        answer: "topic topic_id created config",
        statuses: &[200, 201],
        codes: &["already_exists", "topic_not_found", "topic_exists_incompatible"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/topics/:t",
        verb: "state",
        needs: &["read"],
        summary: "the state of a topic",
        query: &[&[Field::new("touch", "boolean", "false does not count as consumption")]],
        answer: "topic topic_id epoch type head_seq earliest_seq evict_floor next_seq count bytes gaps config effective_priority last_write_ts last_read_ts queue?",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "DELETE",
        path: "/v0/topics/:t",
        verb: "drop",
        needs: &["delete"],
        summary: "delete a topic and all that belongs to it",
        query: &[&[Field::new("if_empty", "boolean", "refuse when it has records")]],
        answer: "topic deleted routers_removed",
        codes: &["topic_not_empty"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t",
        verb: "write",
        needs: &["write"],
        summary: "append a batch of records",
        query: &[&[
            Field::new("return_seqs", "boolean", "list every seq in `seqs`; true unless given"),
            Field::new("tag", "string", "of records that are no JSON body and have none"),
            Field::new("node", "string", "of records that are no JSON body"),
            Field::new("key", "string", "idempotency key of records that are no JSON body"),
        ]],
        body: Some(bodies::WRITE),
        answer: "topic topic_id first_seq last_seq seqs? head_seq count created deduped durability",
        statuses: &[200, 201],
        codes: &[
            "topic_not_found",
            "not_a_queue",
            "batch_too_large",
            "record_too_large",
            "head_mismatch",
            "topic_full",
            "idempotency_mismatch",
            "topic_exists_incompatible",
        ],
        takes: &[
            "application/json",
            "application/x-ndjson",
            "application/octet-stream",
            "application/vnd.apache.arrow.stream",
        ],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/diff",
        verb: "diff",
        needs: &["read"],
        summary: "what came after a seq",
        body: Some(bodies::DIFF),
        answer: "topic topic_id records next_from_seq head_seq earliest_seq caught_up tombstone lag lag_ms",
        codes: TOPIC,
        waits: true,
        offers: &["application/json", "application/vnd.apache.arrow.stream"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/delete",
        verb: "delete",
        needs: &["delete"],
        summary: "delete records",
        body: Some(bodies::DELETE),
        answer: "topic deleted earliest_seq head_seq count bytes",
        codes: &["topic_not_found", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/trim",
        verb: "trim",
        needs: &["delete"],
        summary: "delete all but the newest records",
        body: Some(bodies::TRIM),
        answer: "topic deleted earliest_seq head_seq count bytes",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/seek",
        verb: "seek",
        needs: &["read"],
        summary: "the cursor before a point in time",
        body: Some(bodies::SEEK),
        answer: "seq",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/scan",
        verb: "scan",
        needs: &["read"],
        summary: "a whole range as an Arrow stream",
        body: Some(bodies::SCAN),
        answer: "topic seq ts node tag meta data gap_to gap_reason",
        codes: TOPIC,
        streams: true,
        offers: &["application/vnd.apache.arrow.stream"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/split",
        verb: "split",
        needs: &["read"],
        summary: "a range in parts of about one size",
        body: Some(bodies::SPLIT),
        answer: "topic topic_id head_seq from_seq to_seq records bytes splits",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/topics/:t/segments",
        verb: "segments",
        needs: &["read"],
        summary: "where the records lie, by tier",
        answer: "topic topic_id head_seq earliest_seq segments",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/state",
        verb: "states",
        needs: &["read"],
        summary: "the state of many topics",
        body: Some(bodies::STATES),
        answer: "topics missing",
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/txn",
        verb: "txn",
        needs: &["write"],
        summary: "a transaction in one request",
        body: Some(bodies::TXN),
        answer: "committed deduped topics epoch?",
        codes: &[
            "stale_epoch",
            "topic_not_found",
            "consumer_not_found",
            "consumer_fenced",
            "topic_full",
            "head_mismatch",
            "lease_lost",
            "not_a_queue",
            "batch_too_large",
            "record_too_large",
            "idempotency_mismatch",
        ],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/txn",
        verb: "txns",
        needs: &["write"],
        summary: "writers in name order, a page at a time",
        query: &[fields::PAGE],
        answer: "writers next_cursor?",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/txn/:writer",
        verb: "txn_writer",
        needs: &["write"],
        summary: "the last epoch of a writer, and what it has staged",
        answer: "writer last_epoch staged",
        codes: &["txn_not_found", "invalid_request"],
        ..Route::DEFAULT
    },
    Route {
        method: "DELETE",
        path: "/v0/txn/:writer",
        verb: "txn_forget",
        needs: &["delete"],
        summary: "forget a writer: its next commit may have any epoch; its staged transactions are aborted",
        answer: "writer forgotten",
        codes: &["invalid_request"],
        ..Route::DEFAULT
    },
    Route {
        method: "PUT",
        path: "/v0/txn/:writer/owner",
        verb: "txn_owner",
        needs: &["admin"],
        summary: "hand a writer over to another key, with its last epoch and what it has staged",
        body: Some(bodies::TXN_OWNER),
        answer: "writer owner",
        codes: &["txn_not_found"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/txn/:writer/stage/:id",
        verb: "txn_stage",
        needs: &["write"],
        summary: "rows that a commit will publish",
        query: &[&[
            Field::new(
                "part",
                "integer",
                "of the stage, from 0; one that is staged already stays as it is",
            )
            .required(),
            Field::new("topic", "string", "of Arrow rows that have no column `topic`"),
        ]],
        body: Some(bodies::TXN_STAGE),
        answer: "staged bytes deduped",
        codes: &["batch_too_large", "record_too_large"],
        takes: &["application/json", "application/vnd.apache.arrow.stream"],
        ..Route::DEFAULT
    },
    Route {
        method: "DELETE",
        path: "/v0/txn/:writer/stage/:id",
        verb: "txn_abort",
        needs: &["write"],
        summary: "give a stage up; what is published stays",
        answer: "writer id aborted",
        codes: &["invalid_request"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/txn/:writer/commit",
        verb: "txn_commit",
        needs: &["write"],
        summary: "publish stages, with cursors and acks: all or nothing",
        body: Some(bodies::TXN_COMMIT),
        answer: "committed deduped topics epoch?",
        codes: TXN,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/claim",
        verb: "claim",
        needs: &["read", "write"],
        summary: "lease jobs to a worker",
        body: Some(bodies::CLAIM),
        answer: "topic topic_id claimed count ready",
        codes: QUEUE,
        waits: true,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/ack",
        verb: "ack",
        needs: &["write"],
        summary: "delete jobs that are done",
        body: Some(bodies::ACK),
        answer: "topic acked skipped reasons? ready in_flight",
        codes: &["topic_not_found", "not_a_queue", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/nack",
        verb: "nack",
        needs: &["write"],
        summary: "give failed jobs back",
        body: Some(bodies::NACK),
        answer: "topic nacked skipped reasons? ready in_flight",
        codes: &["topic_not_found", "not_a_queue", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/release",
        verb: "release",
        needs: &["write"],
        summary: "give back jobs that were not begun; this was no delivery",
        body: Some(bodies::RELEASE),
        answer: "topic released skipped reasons? ready in_flight",
        codes: &["topic_not_found", "not_a_queue", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/extend",
        verb: "extend",
        needs: &["write"],
        summary: "renew leases",
        body: Some(bodies::EXTEND),
        answer: "topic extended skipped reasons? deadlines ready in_flight",
        codes: &["topic_not_found", "not_a_queue", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/topics/:q/jobs",
        verb: "jobs",
        needs: &["read"],
        summary: "look at jobs without claiming them",
        query: &[&[
            Field::new("state", "string", "ready, leased, delayed or dead").words(&fields::STATES),
            Field::new("max", "integer", "of each state, 100 unless given, at most 1000"),
        ]],
        answer: "topic topic_id jobs",
        codes: QUEUE,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/remove",
        verb: "jobs_remove",
        needs: &["delete"],
        summary: "delete jobs in any state; leased ones are skipped",
        body: Some(bodies::JOBS_REMOVE),
        answer: "topic removed skipped ready in_flight",
        codes: &["topic_not_found", "not_a_queue", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/promote",
        verb: "jobs_promote",
        needs: &["write"],
        summary: "make delayed jobs ready; others are skipped",
        body: Some(bodies::JOBS_PROMOTE),
        answer: "topic promoted skipped ready in_flight",
        codes: &["topic_not_found", "not_a_queue", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:q/redrive",
        verb: "redrive",
        needs: &["admin"],
        summary: "move dead letters back, or revive dead jobs",
        body: Some(bodies::REDRIVE),
        answer: "topic moved dry_run",
        codes: &["topic_not_found", "batch_too_large"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/watch",
        verb: "watch_create",
        needs: &["read"],
        summary: "create a watch session",
        query: &[&[Field::new("lenient", "boolean", "unknown topics join when they are created")]],
        body: Some(bodies::WATCH_CREATE),
        answer: "wid stream_url session_ttl_ms topics",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/watch/:wid",
        verb: "watch",
        needs: &["read"],
        summary: "the events of a session",
        answer: "events",
        codes: &["session_gone"],
        streams: true,
        offers: &["text/event-stream"],
        ..Route::DEFAULT
    },
    Route {
        method: "DELETE",
        path: "/v0/watch/:wid",
        verb: "watch_end",
        needs: &["read"],
        summary: "end a session and its streams",
        answer: "wid ended",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/watch",
        verb: "watch_query",
        needs: &["read"],
        summary: "the events of topics, without a session",
        query: &[
            &[
                Field::new("topic", "string", "again for each, at most 64").required(),
                Field::new("from_seq", "string or integer", "events after this, or \"earliest\""),
                Field::new(
                    "tail",
                    "integer or boolean",
                    "begin this many records before the head; 0 unless given",
                ),
                Field::new("lenient", "boolean", "unknown topics join when they are created"),
            ],
            fields::FRAMES,
            fields::SHOWN,
            fields::FILTER,
        ],
        answer: "events",
        codes: TOPIC,
        streams: true,
        offers: &["text/event-stream"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/ws",
        verb: "socket",
        needs: &[],
        summary: "a WebSocket: subscribe, publish",
        answer: "messages",
        statuses: &[101],
        codes: &["invalid_request"],
        streams: true,
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/topics/:q/work",
        verb: "work",
        needs: &["read", "write"],
        summary: "a stream of jobs; ending it gives unacked jobs back",
        query: &[fields::CLAIM, fields::FRAMES.split_at(2).1],
        answer: "events",
        codes: QUEUE,
        streams: true,
        offers: &["text/event-stream"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/routers",
        verb: "routers",
        needs: &["read"],
        summary: "routers in name order, a page at a time",
        query: &[
            fields::PAGE,
            &[
                Field::new("source", "string", "only from this"),
                Field::new("dest", "string", "only to this"),
            ],
        ],
        answer: "routers next_cursor?",
        ..Route::DEFAULT
    },
    Route {
        method: "PUT",
        path: "/v0/routers/:r",
        verb: "router_put",
        needs: &["admin"],
        summary: "create a router or update its options",
        body: Some(bodies::ROUTER_PUT),
        answer: "router source dest preserve_node preserve_tag filter create_dest allow_cycle guarantee forwarded_total lag stopped_by created",
        statuses: &[200, 201],
        codes: &["topic_not_found", "topic_exists_incompatible", "router_cycle"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/routers/:r",
        verb: "router",
        needs: &["read"],
        summary: "a router and how far it is",
        answer: "router source dest preserve_node preserve_tag filter create_dest allow_cycle guarantee forwarded_total lag stopped_by",
        codes: &["router_not_found"],
        ..Route::DEFAULT
    },
    Route {
        method: "DELETE",
        path: "/v0/routers/:r",
        verb: "router_drop",
        needs: &["delete"],
        summary: "delete a router; what it copied stays",
        answer: "router deleted",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/consumers",
        verb: "consumers",
        needs: &["read"],
        summary: "every consumer with its lag",
        query: &[fields::PAGE, &[Field::new("topic", "string", "only of this topic")]],
        answer: "consumers next_cursor?",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/topics/:t/consumers",
        verb: "consumers",
        needs: &["read"],
        summary: "the consumers of a topic",
        query: &[fields::PAGE],
        answer: "consumers next_cursor?",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "PUT",
        path: "/v0/topics/:t/consumers/:c",
        verb: "consumer_put",
        needs: &["read", "write"],
        summary: "create a consumer, or open an existing one at its stored cursor",
        body: Some(bodies::CONSUMER_PUT),
        answer: "topic consumer mode cursor lag lag_ms auto_commit created",
        statuses: &[200, 201],
        codes: &["topic_not_found", "topic_exists_incompatible"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/topics/:t/consumers/:c",
        verb: "consumer",
        needs: &["read"],
        summary: "a consumer with its lag",
        answer: "topic consumer mode cursor lag lag_ms",
        codes: CONSUMER,
        ..Route::DEFAULT
    },
    Route {
        method: "DELETE",
        path: "/v0/topics/:t/consumers/:c",
        verb: "consumer_drop",
        needs: &["delete"],
        summary: "delete a consumer",
        answer: "topic consumer deleted",
        codes: TOPIC,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/consumers/:c/read",
        verb: "consumer_read",
        needs: &["read", "write"],
        summary: "records from the consumer's cursor",
        body: Some(bodies::CONSUMER_READ),
        answer: "topic topic_id consumer records tombstone next_from_seq head_seq caught_up lag lag_ms",
        codes: &["topic_not_found", "consumer_not_found", "consumer_busy", "consumer_fenced"],
        waits: true,
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/consumers/:c/commit",
        verb: "consumer_commit",
        needs: &["read", "write"],
        summary: "store a cursor: everything up to it is done",
        body: Some(bodies::CONSUMER_COMMIT),
        answer: "topic consumer cursor",
        codes: &["topic_not_found", "consumer_not_found", "consumer_fenced"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/topics/:t/consumers/:c/seek",
        verb: "consumer_seek",
        needs: &["read", "write"],
        summary: "set the cursor, forwards or back",
        body: Some(bodies::CONSUMER_SEEK),
        answer: "topic consumer cursor",
        codes: &["topic_not_found", "consumer_not_found", "consumer_fenced"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/sync",
        verb: "sync",
        needs: &["write"],
        summary: "return when all acked before is durable",
        body: Some(bodies::SYNC),
        answer: "synced",
        codes: &["data_loss", "topic_not_found"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/admin/checkpoint",
        verb: "checkpoint",
        needs: &["admin"],
        summary: "one checkpoint round",
        body: Some(&[]),
        answer: "checkpointed",
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/admin/backup",
        verb: "backup",
        needs: &["admin"],
        summary: "copy the engine into a directory, or an object store",
        body: Some(bodies::BACKUP),
        answer: "dir linked copied copied_bytes fetched",
        codes: &["invalid_directory"],
        ..Route::DEFAULT
    },
    Route {
        method: "POST",
        path: "/v0/admin/verify",
        verb: "verify",
        needs: &["admin"],
        summary: "check every checksum and index",
        body: Some(&[]),
        answer: "ok files bytes records cold_records problems",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/metrics",
        verb: "metrics",
        needs: &["read"],
        summary: "Prometheus text or JSON",
        offers: &["text/plain; version=0.0.4; charset=utf-8", "application/json"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/metrics",
        verb: "metrics",
        needs: &["read"],
        summary: "Prometheus text or JSON",
        offers: &["text/plain; version=0.0.4; charset=utf-8", "application/json"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/openapi.json",
        verb: "openapi",
        needs: &["read"],
        summary: "this table as OpenAPI 3.1",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/key",
        verb: "key",
        needs: &["read"],
        summary: "what the key of the request may do",
        answer: "scopes prefixes",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/",
        verb: "console",
        needs: &[],
        summary: "redirects to the web console",
        statuses: &[302],
        offers: &["text/html; charset=utf-8"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/console",
        verb: "console",
        needs: &[],
        summary: "the web console",
        offers: &["text/html; charset=utf-8"],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/console/:file",
        verb: "console",
        needs: &[],
        summary: "the files of the web console",
        offers: &[
            "text/javascript; charset=utf-8",
            "text/css; charset=utf-8",
            "text/html; charset=utf-8",
        ],
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/health",
        verb: "health",
        needs: &[],
        summary: "the process is alive",
        answer: "status version uptime_ms",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/healthz",
        verb: "health",
        needs: &[],
        summary: "the process is alive",
        answer: "status version uptime_ms",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/v0/ready",
        verb: "ready",
        needs: &[],
        summary: "recovery is done, writes are taken",
        answer: "status wal_replay_complete topics loop_panics remote_state?",
        ..Route::DEFAULT
    },
    Route {
        method: "GET",
        path: "/readyz",
        verb: "ready",
        needs: &[],
        summary: "recovery is done, writes are taken",
        answer: "status wal_replay_complete topics loop_panics remote_state?",
        ..Route::DEFAULT
    },
];
