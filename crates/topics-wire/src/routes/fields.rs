//! Fields that several verbs have.

use super::Field;
use crate::words;

const TYPES: [&str; 2] = words::of(&words::TYPES);
const DURABILITIES: [&str; 4] = words::of(&words::DURABILITIES);
const DISCARDS: [&str; 2] = words::of(&words::DISCARDS);
const CONSISTENCIES: [&str; 2] = words::of(&words::CONSISTENCIES);
const GUARANTEES: [&str; 2] = words::of(&words::GUARANTEES);
const DATA_TYPES: [&str; 2] = words::of(&words::DATA_TYPES);
const COMPRESSIONS: [&str; 2] = words::of(&words::COMPRESSIONS);
pub const STATES: [&str; 4] = words::of(&words::JOB_STATES);
pub const MODES: [&str; 2] = words::of(&words::MODES);
pub const ENDS: [&str; 2] = words::of(&words::ENDS);

pub const PAGE: &[Field] = &[
    Field::new("prefix", "string", "names begin with this"),
    Field::new("page_size", "integer", "entries of a page, 100 unless given, at most 1000"),
    Field::new("cursor", "string", "`next_cursor` of the page before"),
];
pub const SHOWN: &[Field] = &[
    Field::new("include_tags", "boolean", "show tags"),
    Field::new("include_meta", "boolean", "show metadata"),
    Field::new("include_data", "boolean", "show payloads"),
];
pub const FILTER: &[Field] = &[
    Field::new("node", "string or array of strings", "records of these nodes are skipped"),
    Field::new("match", "match", "only records with this tag"),
    Field::new("consistency", "string", "\"eventual\", or \"strong\" for what has been synced")
        .words(&CONSISTENCIES),
];
pub const FRAMES: &[Field] = &[
    Field::new("limit", "integer", "records of an event, 256 unless given, at most 1000"),
    Field::new(
        "max_batch_bytes",
        "integer",
        "payload bytes of an event, 256 KiB unless given, at most 8 MiB",
    ),
    Field::new(
        "heartbeat_ms",
        "integer",
        "a comment when idle for so long, 15000 unless given, 1000 to 60000",
    ),
];
pub const RECORD: &[Field] = &[
    Field::new("data", "any", "JSON, or else `data_b64`").or_null(),
    Field::new("data_b64", "string", "bytes as base64"),
    Field::new("tag", "string", "for filters"),
    Field::new("node", "string", "its origin"),
    Field::new("meta", "object", "strings by name"),
    Field::new("ttl_ms", "integer", "it expires after this"),
    Field::new("lane", "integer", "queue: 0 to 9, the lowest first"),
    Field::new("group", "string", "queue: one job of a group at a time"),
    Field::new("delay_ms", "integer", "queue: claimable after this"),
    Field::new("deliver_at", "integer", "queue: claimable at this time, ms"),
];
pub const WRITE: &[Field] = &[Field::new("records", "array of objects", "`data` or `data_b64`, `tag`, `node`, `meta`, `ttl_ms`; in a queue also `lane`, `group`, `delay_ms`, `deliver_at`").required().with(&[RECORD]), Field::new("node", "string", "origin of the records that name none"), Field::new("idempotency_key", "string", "a repeat returns the first answer"), Field::new("expect_head", "integer", "refuse unless this is the head"), Field::new("sync", "boolean", "answer when it is durable, whatever the class"), Field::new("create", "boolean", "create the topic when it is missing"), Field::new("config", "config", "config at creation; a topic that exists may differ, but for `type` and `durability`"), Field::new("disable_backpressure", "boolean", "wait for room instead of being refused")];
pub const CONFIG: &[Field] = &[
    Field::new("type", "string", "\"log\" or \"queue\"").words(&TYPES),
    Field::new("durability", "string", "\"ephemeral\", \"memory\", \"disk\" or \"fsync\"")
        .words(&DURABILITIES),
    Field::new("durable", "boolean", "true is fsync, false is disk"),
    Field::new("ttl_ms", "integer", "records expire after this; 0 is never"),
    Field::new("cap_records", "integer", "most records; 0 is no cap"),
    Field::new("cap_bytes", "integer", "most payload bytes; 0 is no cap"),
    Field::new("discard", "string", "what a full topic does, \"old\" or \"reject\"")
        .words(&DISCARDS),
    Field::new("priority", "integer", "-1000 to 1000, or null").or_null(),
    Field::new("auto_priority", "boolean", "priority by how recently it was read"),
    Field::new("auto_create", "boolean", "queue: a dead letter may create the topic it goes to"),
    Field::new("dedupe_node", "boolean", "readers may skip records by node"),
    Field::new("idempotency_window_ms", "integer", "how long keys are kept"),
    Field::new("lease_ms", "integer", "queue: how long a lease lasts"),
    Field::new("claim_jitter_ms", "integer", "queue: claims within this share what there is"),
    Field::new(
        "max_deliveries",
        "integer",
        "queue: deliveries before a job is dead; 0 is no limit",
    ),
    Field::new("dead_letter", "string", "queue: where dead jobs go, or null").or_null(),
    Field::new("retry_backoff_ms", "integer", "queue: delay of a nack without one"),
    Field::new("leases_durable", "boolean", "queue: leases survive a restart"),
    Field::new("paused", "boolean", "queue: nothing is claimed"),
];
pub const DIFF: &[Field] = &[
    Field::new(
        "from_seq",
        "string or integer",
        "records after this; \"earliest\" begins at the first that is kept",
    ),
    Field::new("tail", "integer", "begin this many records before the head"),
    Field::new("before_seq", "integer", "with tail: page backwards from here"),
    Field::new("limit", "integer", "records, 256 unless given, at most 1000; as Arrow 1000000"),
    Field::new(
        "max_batch_bytes",
        "integer",
        "payload bytes, 1 MiB unless given, at most 8 MiB; as Arrow of each batch, 2 MiB unless given",
    ),
    Field::new("wait_ms", "integer", "wait for records, at most 30000"),
    Field::new("topic_id", "integer", "the id that the cursor was made with"),
];
pub const COLUMNS: &[Field] = &[
    Field::new("columns", "array of strings", "as Arrow: only these, in the schema's order"),
    Field::new(
        "fields",
        "object",
        "as Arrow: typed columns: name to type, or to `{type, path}`; without `columns` they replace `data`",
    ),
    Field::new(
        "data_type",
        "string",
        "as Arrow: \"string\" or \"binary\"; as the first record is unless given",
    )
    .words(&DATA_TYPES),
];
pub const HELD: &[Field] = &[
    Field::new("node", "string", "the worker that claimed the jobs").required(),
    Field::new("seqs", "array of integers", "the jobs, at most 1000").required(),
    Field::new(
        "lease_ids",
        "array of strings or integers",
        "their leases, as the claim named them: a stale one is skipped; none, or an empty array, is no fence",
    ),
];
pub const OF_STREAM: &[Field] = &[
    Field::new("node", "string", "the worker that claimed the jobs").required(),
    Field::new("seqs", "array of integers", "the jobs, at most 1000"),
    Field::new(
        "lease_ids",
        "array of strings or integers",
        "their leases, as the claim named them: a stale one is skipped; none, or an empty array, is no fence",
    ),
    Field::new(
        "stream",
        "string",
        "instead of `seqs`: every job of a stream of this worker, by the id in its `stream` event",
    ),
];
pub const CLAIM: &[Field] = &[
    Field::new("node", "string", "the worker").required(),
    Field::new("max", "integer", "most jobs, 1 unless given, at most 1000"),
    Field::new("lease_ms", "integer", "how long the leases last, the queue's unless given"),
];
pub const RANGE: &[Field] = &[
    Field::new(
        "from_seq",
        "string or integer",
        "records after this; \"earliest\" begins at the first that is kept",
    ),
    Field::new("to_seq", "integer", "the last record, the head unless given"),
];
pub const SCAN: &[Field] = &[
    Field::new("columns", "array of strings", "only these, in the schema's order"),
    Field::new(
        "fields",
        "object",
        "typed columns: name to type, or to `{type, path}`; without `columns` they replace `data`",
    ),
    Field::new(
        "data_type",
        "string",
        "\"string\" or \"binary\"; as the first record is unless given",
    )
    .words(&DATA_TYPES),
    Field::new(
        "compression",
        "string",
        "\"lz4\" or \"zstd\", of the buffers of the batches; none unless given",
    )
    .words(&COMPRESSIONS),
    Field::new("node", "string or array of strings", "records of these nodes are skipped"),
    Field::new("nodes", "string or array of strings", "only records of these nodes"),
    Field::new("match", "match", "only records with this tag"),
    Field::new("ts_from", "integer", "only records committed at or after this time, ms"),
    Field::new("ts_to", "integer", "only records committed before this time, ms"),
    Field::new("consistency", "string", "\"eventual\", or \"strong\" for what has been synced")
        .words(&CONSISTENCIES),
    Field::new("topic_id", "integer", "the id that the cursor was made with"),
];
pub const WORK: &[Field] = &[
    Field::new("expect_heads", "object", "topic to the head that it must have"),
    Field::new("commits", "array of objects", "`topic`, `consumer`, `seq`, `reader`").with(COMMITS),
    Field::new("acks", "array of objects", "`queue`, `node`, `seqs`, `lease_ids`").with(ACKS),
];
pub const APPEND: &[Field] = &[
    Field::new("topic", "string", "where to").required(),
    Field::new("records", "array of objects", "as in a write").required().with(&[RECORD]),
    Field::new("node", "string", "origin of the records that name none"),
];
pub const ROUTER: &[Field] = &[
    Field::new(
        "source",
        "string",
        "the topic that is copied from; created when it is missing, as by a write",
    )
    .required(),
    Field::new(
        "dest",
        "string",
        "the topic that is copied to; created when it is missing, as by a write",
    )
    .required(),
    Field::new("preserve_node", "boolean", "copies keep their node"),
    Field::new("preserve_tag", "boolean", "copies keep their tag"),
    Field::new("filter", "match", "only records with this tag"),
    Field::new("create_dest", "boolean", "false refuses a destination that is missing"),
    Field::new("allow_cycle", "boolean", "allow a directed cycle"),
    Field::new("guarantee", "string", "\"at_least_once\" or \"exactly_once\"").words(&GUARANTEES),
];
pub const WATCH: &[Field] = &[Field::new("topics", "object", "name to `{from_seq}`, `{tail}` or `{}`, which begins at 0; an array of names begins at the head").with(START), Field::new("patterns", "array of strings", "prefixes with a `*`, topics to come included")];
pub const READ: &[Field] = &[
    Field::new("max_bytes", "integer", "payload bytes, 1 MiB unless given, at most 8 MiB"),
    Field::new("max_records", "integer", "records, at most 2000"),
    Field::new("checkpoint", "boolean", "false peeks and leaves the cursor"),
    Field::new("wait_ms", "integer", "wait for records, at most 30000"),
    Field::new("match", "match", "only records with this tag"),
    Field::new("fail_if_busy", "boolean", "at_most_once: do not wait for the reader before"),
    Field::new(
        "reader",
        "string",
        "who reads, 1 to 64 bytes; another one takes at_least_once over by a read",
    ),
    Field::new(
        "after",
        "integer",
        "the position of a reader that keeps it itself: records after this seq",
    ),
];
pub const COMMITS: &[&[Field]] = &[&[
    Field::new("topic", "string", "what was read").required(),
    Field::new("consumer", "string", "by whom").required(),
    Field::new("seq", "integer", "everything up to it is dealt with").required(),
    Field::new("reader", "string", "who read it; refused if another reader took the consumer over"),
]];
pub const ACKS: &[&[Field]] = &[&[Field::new("queue", "string", "of the jobs").required()], HELD];
pub const START: &[&[Field]] = &[&[
    Field::new("from_seq", "string or integer", "events after this, or \"earliest\""),
    Field::new("tail", "integer or boolean", "begin this many records before the head; true is 0"),
    Field::new("topic_id", "integer", "the id that the cursor was made with"),
]];
