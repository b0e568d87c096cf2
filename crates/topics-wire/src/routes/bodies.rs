//! The fields of the bodies of verbs, by verb.

use super::{Field, fields};

pub const CREATE: &[&[Field]] = &[fields::CONFIG];
pub const WRITE: &[&[Field]] = &[fields::WRITE];
pub const DIFF: &[&[Field]] =
    &[fields::DIFF, fields::SHOWN.split_at(2).0, fields::FILTER, fields::COLUMNS];
pub const DELETE: &[&[Field]] = &[&[
    Field::new("before_seq", "integer", "records with a smaller seq"),
    Field::new("match", "match", "records with this tag"),
    Field::new("seqs", "array of integers", "single records instead, at most 1000"),
]];
pub const TRIM: &[&[Field]] =
    &[&[Field::new("to_count", "integer", "how many of the newest records stay").required()]];
pub const SEEK: &[&[Field]] =
    &[&[Field::new("ts", "integer", "milliseconds since 1970").required()]];
pub const SCAN: &[&[Field]] = &[fields::RANGE, fields::SCAN];
pub const SPLIT: &[&[Field]] = &[&[
    Field::new("to_seq", "integer", "the last record, the head unless given"),
    Field::new("from_seq", "integer", "records after this"),
    Field::new("max_records", "integer", "records of a part, 1000000 unless given"),
    Field::new("max_bytes", "integer", "payload bytes of a part, 256 MiB unless given"),
]];
pub const STATES: &[&[Field]] = &[&[
    Field::new("topics", "array of strings", "by name"),
    Field::new("patterns", "array of strings", "by prefix and `*`"),
]];
pub const TXN: &[&[Field]] = &[
    &[
        Field::new("appends", "array of objects", "`topic`, `records`, `node`, `expect_head`")
            .with(TXN_APPEND),
        Field::new(
            "idempotency_key",
            "string",
            "a repeat returns the first answer, for two minutes",
        ),
        Field::new("writer", "string", "a repeat of its last epoch returns the first answer"),
        Field::new(
            "epoch",
            "integer",
            "of the writer, rising; the one after its last unless given",
        ),
    ],
    fields::WORK,
];
pub const TXN_OWNER: &[&[Field]] =
    &[&[Field::new("owner", "string", "the label of the key, 16 hex digits").required()]];
pub const TXN_STAGE: &[&[Field]] =
    &[&[Field::new("appends", "array of objects", "`topic`, `records`, `node`")
        .required()
        .with(&[fields::APPEND])]];
pub const TXN_COMMIT: &[&[Field]] = &[
    &[
        Field::new(
            "epoch",
            "integer",
            "of the writer, rising; its last one again answers as the first time",
        )
        .required(),
        Field::new(
            "query",
            "string",
            "what commits: the last epoch again is refused if another query has committed it",
        ),
        Field::new("stages", "array of objects", "`id`, `parts`, `records`").with(TXN_STAGES),
    ],
    fields::WORK,
];
pub const CLAIM: &[&[Field]] =
    &[fields::CLAIM, &[Field::new("wait_ms", "integer", "wait for a job, at most 30000")]];
pub const ACK: &[&[Field]] = &[fields::HELD];
pub const NACK: &[&[Field]] = &[
    fields::HELD,
    &[
        Field::new(
            "delay_ms",
            "integer",
            "claimable after this, immediately unless given; null: the queue's backoff",
        )
        .or_null(),
        Field::new(
            "error",
            "string",
            "why; the first KiB is kept with the jobs and goes to the dead letter",
        ),
    ],
];
pub const RELEASE: &[&[Field]] = &[fields::OF_STREAM];
pub const EXTEND: &[&[Field]] = &[
    fields::OF_STREAM,
    &[Field::new("lease_ms", "integer", "from now, the queue's unless given")],
];
pub const JOBS_REMOVE: &[&[Field]] = &[&[
    Field::new("seqs", "array of integers", "the jobs, at most 1000").required(),
    Field::new("force", "boolean", "leased ones too"),
]];
pub const JOBS_PROMOTE: &[&[Field]] =
    &[&[Field::new("seqs", "array of integers", "the jobs, at most 1000").required()]];
pub const REDRIVE: &[&[Field]] = &[&[
    Field::new("to", "string", "where to; where each came from unless given"),
    Field::new("match", "match", "only records with this tag"),
    Field::new("seqs", "array of integers", "only these, at most 1000"),
    Field::new("limit", "integer", "most jobs to move"),
    Field::new("dry_run", "boolean", "only count"),
]];
pub const WATCH_CREATE: &[&[Field]] =
    &[fields::WATCH, fields::FRAMES, fields::SHOWN, fields::FILTER];
pub const ROUTER_PUT: &[&[Field]] = &[fields::ROUTER];
pub const CONSUMER_PUT: &[&[Field]] = &[&[
    Field::new(
        "mode",
        "string",
        "\"at_least_once\" or \"at_most_once\"; a consumer keeps the one it has",
    )
    .words(&fields::MODES),
    Field::new("start", "string", "where a new one begins, \"start\" or \"end\"")
        .words(&fields::ENDS),
    Field::new("auto_commit", "boolean", "a read stores where the one before ended"),
    Field::new(
        "reader",
        "string",
        "who will read, 1 to 64 bytes; its first read takes at_least_once over",
    ),
]];
pub const CONSUMER_READ: &[&[Field]] = &[fields::READ];
pub const CONSUMER_COMMIT: &[&[Field]] = &[&[
    Field::new("seq", "integer", "everything up to it is dealt with").required(),
    Field::new(
        "reader",
        "string",
        "who reads, 1 to 64 bytes; another one takes at_least_once over by a read",
    ),
]];
pub const CONSUMER_SEEK: &[&[Field]] = &[&[
    Field::new("seq", "integer", "behind this seq"),
    Field::new("ts", "integer", "before the first record at or after this time"),
    Field::new("to", "string", "\"start\" or \"end\"").words(&fields::ENDS),
    Field::new(
        "reader",
        "string",
        "who reads, 1 to 64 bytes; another one takes at_least_once over by a read",
    ),
]];
pub const SYNC: &[&[Field]] =
    &[&[Field::new("topic", "string", "only what was acked of this topic")]];
pub const BACKUP: &[&[Field]] =
    &[&[Field::new("dir", "string", "below the server's `backup_dir`; missing or empty there")
        .required()]];
/// An item of `appends` of [`TXN`].
pub const TXN_APPEND: &[&[Field]] =
    &[fields::APPEND, &[Field::new("expect_head", "integer", "refuse unless this is the head")]];
/// An item of `stages` of [`TXN_COMMIT`].
pub const TXN_STAGES: &[&[Field]] = &[&[
    Field::new("id", "string", "of the stage").required(),
    Field::new("parts", "integer", "how many it has").required(),
    Field::new("records", "integer", "rows in all of them"),
]];
